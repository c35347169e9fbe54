//! The one world of the scheduler: nodes, locks, agents, devices and pods in compact own records, fed by events.
//!
//! The annotation `device-allocated` of bound pods is a promise, whichever scheduler bound them; where the node's daemon has handed out
//! something else, its word counts ([`holders`]). Every change raises the generation, so a
//! decision names the world that it was made on.

pub mod agent;
pub mod capacity;
mod dense;
pub mod devices;
pub mod event;
mod feed;
mod finder;
pub mod gangs;
pub mod holders;
pub mod journal;
mod leaving;
pub mod mix;
pub mod node;
mod offered;
pub mod pod;
mod quotas;
mod reserve;
pub mod resources;
pub mod spec;
mod state;
mod suspects;
pub mod tyjob_facts;
mod tyjobs;
pub mod volume;

pub use agent::Agent;
pub use capacity::CapacityFacts;
pub use dense::{Dense, DenseId, NodeId, PodId};
pub use devices::{DeviceTotals, KnownChoices, Stock};
pub use event::{Changes, Wake, WorldEvent};
pub use journal::Journal;
pub use leaving::{has_left, still_used};
pub use mix::{Mix, MixPolicy};
pub use node::{LockSeen, Node, NodeFacts, SliceFacts};
pub use offered::{not_offered, offered};
pub use pod::{Place, Pod, PodFacts};
pub use resources::{Rated, RequestParts, Resources, Scalars};
pub use spec::{BudgetFacts, JobClaim, PodSpec, Qos};
pub use state::{World, WorldPolicy};
pub use suspects::Suspect;
pub use volume::{AccessModes, ClaimFacts, ClassFacts, VolumeFacts, VolumePlan};
