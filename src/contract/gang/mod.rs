//! How a set of pods is declared a gang: keys, their values, names, and the PodGroup objects.
//!
//! Every value is a string in an annotation or a label. A parser answers with a value that is valid or with a [`BadValue`] that
//! names the key, what was written and the rule; which fallback then holds is the scheduler's decision.

mod committed;
mod duration;
mod groups;
pub mod key;
mod name;
pub mod pod_group;
mod value;

pub use super::name::BadName;
pub use committed::Committed;
pub use duration::{GoDuration, MAX_WAIT, parse_go_duration, parse_wait};
pub use groups::{MAX_GROUP, parse_groups};
pub use name::GangId;
pub use pod_group::{PodGroup, PodGroupApi, PodGroupPhase, PodGroupSpec, PodGroupStatus};
pub use value::{BadValue, MatchPolicy, Mode, parse_min, parse_sub_priority, parse_total};
