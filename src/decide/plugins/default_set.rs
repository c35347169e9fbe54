//! The plugins that are enabled unless the configuration says otherwise.

use std::sync::Arc;

use crate::decide::framework::{Enabled, Plugins, RegistryError};

use super::default_preemption::DefaultPreemption;
use super::device_fit::{DeviceFit, NodesWithoutAgent};
use super::device_topology::DeviceTopology;
use super::dynamic_resources::DynamicResources;
use super::host_ports::NodePorts;
use super::inter_pod_affinity::InterPodAffinity;
use super::node_affinity::NodeAffinity;
use super::node_name::NodeName;
use super::priority_sort::PrioritySort;
use super::requested_to_capacity_ratio::{RatioConfig, RequestedToCapacityRatio};
use super::resources_fit::NodeResourcesFit;
use super::scheduling_gates::SchedulingGates;
use super::taints::TaintToleration;
use super::topology_spread::PodTopologySpread;
use super::unschedulable::NodeUnschedulable;
use super::volumes::VolumeBinding;

/// What of the default set can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultSet {
    /// For `DeviceFit`.
    pub without_agent: NodesWithoutAgent,
    /// For `RequestedToCapacityRatio`.
    pub ratio: RatioConfig,
}

/// The default set: cheap filters first, devices last.
pub fn default_plugins(set: &DefaultSet) -> Result<Plugins, RegistryError> {
    let device_fit = Arc::new(DeviceFit { without_agent: set.without_agent });
    Plugins::new(Enabled {
        queue_sort: vec![Arc::new(PrioritySort)],
        pre_filter: vec![
            Arc::new(SchedulingGates),
            Arc::new(DynamicResources),
            device_fit.clone(),
            Arc::new(VolumeBinding),
            Arc::new(InterPodAffinity),
            Arc::new(PodTopologySpread),
        ],
        filter: vec![
            Arc::new(NodeUnschedulable),
            Arc::new(NodeName),
            Arc::new(TaintToleration),
            Arc::new(NodeAffinity),
            Arc::new(NodePorts),
            Arc::new(NodeResourcesFit),
            Arc::new(VolumeBinding),
            Arc::new(InterPodAffinity),
            Arc::new(PodTopologySpread),
            device_fit,
        ],
        post_filter: vec![Arc::new(DefaultPreemption)],
        score: vec![
            (Arc::new(RequestedToCapacityRatio(set.ratio.clone())), 3),
            (Arc::new(DeviceTopology), 1),
            (Arc::new(NodeAffinity), 2),
            (Arc::new(TaintToleration), 3),
        ],
        ..Enabled::default()
    })
}
