//! The one world of the scheduler: nodes, locks, agents, devices and pods in compact own records, fed by events.
//!
//! Bound pods' `device-allocated` is the truth about devices, whoever bound them. Every change raises the generation, so a
//! decision can say which world it was made on.

pub mod budget;
pub mod capacity;
mod dense;
pub mod devices;
pub mod event;
mod feed;
mod finder;
pub mod gangs;
mod id;
mod images;
mod jobs;
pub mod journal;
mod locked;
pub mod mix;
pub mod node;
pub mod pod;
mod reserve;
pub mod resources;
pub mod spec;
mod state;
pub mod tyjob_facts;
pub mod volume;

pub use budget::BudgetFacts;
pub use capacity::CapacityFacts;
pub use dense::{Dense, DenseId};
pub use devices::{KnownChoices, Listed, Stock};
pub use event::{Changes, Wake, WorldEvent};
pub use id::{NodeId, PodId};
pub use journal::Journal;
pub use mix::Mix;
pub use node::{Agent, LockSeen, Node, NodeFacts};
pub use pod::{Place, Pod, PodFacts};
pub use resources::{Rated, RequestParts, Resources, Scalars};
pub use spec::{JobClaim, PodSpec, Qos};
pub use state::{World, WorldPolicy};
pub use volume::{AccessModes, ClaimFacts, ClassFacts, VolumeFacts, VolumePlan};
