//! The declaration of a gang: keys, their values, names, and the PodGroup objects.
//!
//! Every value is a string in an annotation or a label. A parser answers with a value that is valid or with a [`BadValue`] that
//! names the key, what was written and the rule; the scheduler decides which fallback then holds.

mod committed;
mod duration;
pub mod key;
mod name;
mod native;
mod network_topology;
pub mod pod_group;
mod topology;
mod value;

pub use super::name::BadName;
pub use committed::Committed;
pub use duration::{MAX_WAIT, parse_go_duration, parse_wait};
pub use name::{GangId, MAX_GROUP, parse_groups};
pub use native::NativeSpec;
pub use network_topology::{NETWORK_TOPOLOGY, layers_of};
pub use pod_group::{PodGroup, PodGroupApi, PodGroupPhase, PodGroupSpec, PodGroupStatus};
pub use topology::{CLUSTER_LAYER, NODE_LAYER, TopologyLayer, TopologySpec, parse_rank};
pub use value::{BadValue, MAX_SUB_PRIORITY, MatchPolicy, Mode, TimeoutClock, parse_members, parse_sub_priority};
