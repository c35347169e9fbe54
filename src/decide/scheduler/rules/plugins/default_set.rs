//! The plugins that are enabled unless the configuration says otherwise, and what of them can be chosen.

use crate::decide::scheduler::rules::{Plugins, RegistryError};

use super::catalogue::Point;
use super::device_fit::NodesWithoutAgent;
use super::inter_pod_affinity::InterPodAffinity;
use super::lists::PluginLists;
use super::requested_to_capacity_ratio::RatioConfig;
use super::resources_fit_score::Strategy;
use super::usage::Weights;
use super::volumes::VolumeBinding;

/// What of the set can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DefaultSet {
    /// For `DeviceFit`.
    pub without_agent: NodesWithoutAgent,
    /// For `RequestedToCapacityRatio`.
    pub ratio: RatioConfig,
    /// Which plugins, and the others' arguments.
    pub choice: PluginChoice,
}

/// Which plugins are enabled, and the arguments of those that have some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginChoice {
    /// The enabled plugins.
    pub lists: PluginLists,
    /// For `NodeResourcesFit`.
    pub strategy: Strategy,
    /// For `NodeResourcesBalancedAllocation`.
    pub balanced: Weights,
    /// For `InterPodAffinity`.
    pub affinity: InterPodAffinity,
    /// For `VolumeBinding`.
    pub volumes: VolumeBinding,
}

impl Default for PluginChoice {
    fn default() -> Self {
        Self {
            lists: PluginLists::default(),
            strategy: Strategy::default(),
            balanced: Weights::cpu_and_memory(),
            affinity: InterPodAffinity::default(),
            volumes: VolumeBinding::default(),
        }
    }
}

/// Names and weights of the default set: cheap filters first, devices last. Scores pack GPUs, then CPU and memory; preferences
/// weigh as in kube-scheduler.
pub(super) const DEFAULTS: &[(Point, &[(&str, i64)])] = &[
    (Point::QueueSort, &[("PrioritySort", 1)]),
    (
        Point::PreFilter,
        &[
            ("SchedulingGates", 1),
            ("DynamicResources", 1),
            ("DeviceFit", 1),
            ("VolumeBinding", 1),
            ("InterPodAffinity", 1),
            ("PodTopologySpread", 1),
        ],
    ),
    (
        Point::Filter,
        &[
            ("NodeUnschedulable", 1),
            ("NodeName", 1),
            ("TaintToleration", 1),
            ("NodeAffinity", 1),
            ("NodePorts", 1),
            ("NodeResourcesFit", 1),
            ("VolumeBinding", 1),
            ("InterPodAffinity", 1),
            ("PodTopologySpread", 1),
            ("DeviceFit", 1),
        ],
    ),
    (Point::PostFilter, &[("DefaultPreemption", 1)]),
    (Point::PreScore, &[("PodTopologySpread", 1), ("InterPodAffinity", 1)]),
    (
        Point::Score,
        &[
            ("RequestedToCapacityRatio", 3),
            ("DeviceTopology", 1),
            ("NodeAffinity", 2),
            ("TaintToleration", 3),
            ("PodTopologySpread", 2),
            ("InterPodAffinity", 2),
        ],
    ),
    (Point::Reserve, &[("DeviceFit", 1), ("VolumeBinding", 1)]),
    (Point::PreBind, &[("VolumeBinding", 1)]),
];

/// The plugins of a set.
pub fn default_plugins(set: &DefaultSet) -> Result<Plugins, RegistryError> {
    set.choice.lists.build(set)
}
