//! The rules, one file each: what the rule looks at, its trait implementations, its pure function.

pub mod balanced_allocation;
mod catalogue;
pub mod default_preemption;
mod default_set;
pub mod device_fit;
pub mod device_topology;
pub mod dynamic_resources;
pub mod fragmentation;
pub mod host_ports;
pub mod image_locality;
pub mod inter_pod_affinity;
mod inter_pod_preference;
mod lists;
pub mod node_affinity;
pub mod node_name;
pub mod priority_sort;
pub mod qos_sort;
pub mod requested_to_capacity_ratio;
pub mod resources_fit;
mod resources_fit_score;
pub mod scheduling_gates;
pub mod taints;
pub mod topology_spread;
mod topology_spread_score;
pub mod unschedulable;
mod usage;
pub mod volumes;

pub use catalogue::{Point, names_at, points_of};
pub use default_set::{DefaultSet, PluginChoice, default_plugins};
pub use device_fit::NodesWithoutAgent;
pub use inter_pod_affinity::InterPodAffinity;
pub use lists::{Disabled, Listed, PluginLists};
pub use requested_to_capacity_ratio::{RatioConfig, RatioError};
pub use resources_fit_score::Strategy;
pub use usage::{WeightError, Weights};
