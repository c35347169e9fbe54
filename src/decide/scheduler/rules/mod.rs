//! Extension points of the scheduling cycle: small traits, what they may answer, and the registry that orders them.
//!
//! QueueSort → PreFilter → Filter → PostFilter → PreScore → Score → NormalizeScore → Reserve → Permit → (binding cycle)
//! PreBind → lock → Binding; Unreserve on any failure after Reserve. Lock and Binding are no extension points: they are what Baton is.

pub mod outcome;
pub mod plugins;
pub mod points;
pub mod reads;
pub mod registry;
pub mod slots;

pub use crate::decide::text::Text;
pub use outcome::{Outcome, Refusal};
pub use points::{
    Claimed, Filter, NodeScore, Permit, Plugin, PostFilter, PreBind, PreFilter, PreScore, QueueSort, Queued, Reserve,
    Score, SortKey, View,
};
pub use reads::Reads;
pub use registry::{Enabled, Plugins, RegistryError};
pub use slots::{Kept, Slots};
