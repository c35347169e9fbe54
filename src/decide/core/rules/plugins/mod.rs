//! The rules, one file each: what the rule looks at, its trait implementations, its pure function.

pub mod balanced_allocation;
mod catalogue;
pub mod default_preemption;
pub mod device_fit;
pub mod device_topology;
pub mod dynamic_resources;
pub mod gpu_patience;
pub mod host_ports;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod queue_sort;
pub mod requested_to_capacity_ratio;
pub mod resources_fit;
pub mod scheduling_gates;
pub mod taints;
pub mod topology_spread;
pub mod unschedulable;
mod usage;
pub mod volumes;

pub use super::registry::Point;
pub use catalogue::{
    DefaultSet, Disabled, Listed, PluginChoice, PluginLists, Plugins, Profile, advice, default_plugins, is_stock,
    names_at, points_of,
};
pub use device_fit::NodesWithoutAgent;
pub use inter_pod_affinity::InterPodAffinity;
pub use requested_to_capacity_ratio::{RatioConfig, RatioError};
pub use resources_fit::Strategy;
pub use usage::{WeightError, Weights};
