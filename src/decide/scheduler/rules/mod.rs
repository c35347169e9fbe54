//! Extension points of the scheduling cycle: small traits, what they may answer, and the registry that orders them.
//!
//! QueueSort → PreFilter → Filter → PostFilter → PreScore → Score → NormalizeScore → Reserve → Permit → (binding cycle)
//! PreBind → lock → Bind → PostBind; Unreserve on any failure after Reserve.

pub mod outcome;
pub mod plugins;
pub mod points;
pub mod reads;
pub mod registry;
pub mod slots;

pub use crate::decide::text::Text;
pub use outcome::{Outcome, Refusal};
pub use points::{
    Bind, Filter, NodeScore, Permit, Plugin, PostBind, PostFilter, PreBind, PreFilter, PreScore, QueueSort, Queued,
    Reserve, Score, SortKey, View,
};
pub use reads::Reads;
pub use registry::{Enabled, Plugins, RegistryError};
pub use slots::{Kept, Slots};
