//! Extension points of the scheduling cycle: small traits, what they may answer, and the registry that orders them.
//!
//! QueueSort → PreFilter → Filter → PostFilter → PreScore → Score → NormalizeScore → Reserve → Permit → (binding cycle)
//! PreBind → lock → Binding; Unreserve on any failure after Reserve. Lock and Binding are no extension points: they are what Baton is.
//!
//! # A scheduler with rules of one's own
//!
//! The traits but PostFilter and PreBind are a public interface: [`Plugins::with`] adds a rule to the default set, and
//! `examples/custom_plugin.rs` is a scheduler with three. **It is unstable**: any version may change it.

pub mod binding_annotations;
mod known_request;
pub mod outcome;
pub mod plugins;
pub mod points;
pub mod registry;
pub mod slots;

pub use crate::text::Text;
pub use binding_annotations::Annotations;
pub use known_request::KnownRequest;
pub use outcome::{Outcome, Refusal};
pub use plugins::Plugins;
pub use points::{
    Claimed, Eligibility, Filter, NodeScore, Permit, Plugin, PreFilter, PreScore, PreemptionCandidate, QueueSort,
    Queued, Reads, Reserve, Score, SortKey, Victim, View,
};
pub(crate) use points::{PostFilter, PreBind};
pub use registry::{Enabled, Extension, RegistryError};
pub use slots::{KeptSlots, Slots};
