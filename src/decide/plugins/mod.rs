//! The rules, one file each: what the rule looks at, its trait implementations, its pure function.

pub mod default_preemption;
mod default_set;
pub mod device_fit;
pub mod device_topology;
pub mod dynamic_resources;
pub mod host_ports;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod priority_sort;
pub mod requested_to_capacity_ratio;
pub mod resources_fit;
pub mod scheduling_gates;
pub mod taints;
pub mod topology_spread;
pub mod unschedulable;
pub mod volumes;

pub use default_set::{DefaultSet, default_plugins};
pub use device_fit::NodesWithoutAgent;
pub use requested_to_capacity_ratio::{RatioConfig, RatioError};
