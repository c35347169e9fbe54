//! Every plugin by name: how it is made, and at which extension points it can be enabled.

use std::sync::Arc;

use crate::decide::scheduler::rules::{
    Enabled, Filter, Permit, PostFilter, PreBind, PreFilter, PreScore, QueueSort, Reserve, Score,
};

use super::balanced_allocation::NodeResourcesBalancedAllocation;
use super::default_preemption::DefaultPreemption;
use super::default_set::DefaultSet;
use super::device_fit::DeviceFit;
use super::device_topology::DeviceTopology;
use super::dynamic_resources::DynamicResources;
use super::fragmentation::GpuFragmentation;
use super::host_ports::NodePorts;
use super::image_locality::ImageLocality;
use super::node_affinity::NodeAffinity;
use super::node_name::NodeName;
use super::priority_sort::PrioritySort;
use super::qos_sort::QoSSort;
use super::requested_to_capacity_ratio::RequestedToCapacityRatio;
use super::resources_fit::NodeResourcesFit;
use super::scheduling_gates::SchedulingGates;
use super::taints::TaintToleration;
use super::topology_spread::PodTopologySpread;
use super::unschedulable::NodeUnschedulable;

/// An extension point, in the order of the cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // framework::points says what each is
pub enum Point {
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
}

impl Point {
    /// All of them and their keys in the configuration file.
    pub const ALL: [(Self, &'static str); 9] = [
        (Self::QueueSort, "queueSort"),
        (Self::PreFilter, "preFilter"),
        (Self::Filter, "filter"),
        (Self::PostFilter, "postFilter"),
        (Self::PreScore, "preScore"),
        (Self::Score, "score"),
        (Self::Reserve, "reserve"),
        (Self::Permit, "permit"),
        (Self::PreBind, "preBind"),
    ];
}

/// One plugin at each extension point that it has.
#[derive(Default)]
pub(super) struct Made {
    queue_sort: Option<Arc<dyn QueueSort>>,
    pre_filter: Option<Arc<dyn PreFilter>>,
    filter: Option<Arc<dyn Filter>>,
    post_filter: Option<Arc<dyn PostFilter>>,
    pre_score: Option<Arc<dyn PreScore>>,
    score: Option<Arc<dyn Score>>,
    reserve: Option<Arc<dyn Reserve>>,
    permit: Option<Arc<dyn Permit>>,
    pre_bind: Option<Arc<dyn PreBind>>,
}

impl Made {
    pub fn has(&self, point: Point) -> bool {
        match point {
            Point::QueueSort => self.queue_sort.is_some(),
            Point::PreFilter => self.pre_filter.is_some(),
            Point::Filter => self.filter.is_some(),
            Point::PostFilter => self.post_filter.is_some(),
            Point::PreScore => self.pre_score.is_some(),
            Point::Score => self.score.is_some(),
            Point::Reserve => self.reserve.is_some(),
            Point::Permit => self.permit.is_some(),
            Point::PreBind => self.pre_bind.is_some(),
        }
    }

    /// Enables the plugin at `point`; nothing where it does not have it.
    pub fn enable(&self, point: Point, weight: i64, enabled: &mut Enabled) {
        match point {
            Point::QueueSort => enabled.queue_sort.extend(self.queue_sort.clone()),
            Point::PreFilter => enabled.pre_filter.extend(self.pre_filter.clone()),
            Point::Filter => enabled.filter.extend(self.filter.clone()),
            Point::PostFilter => enabled.post_filter.extend(self.post_filter.clone()),
            Point::PreScore => enabled.pre_score.extend(self.pre_score.clone()),
            Point::Score => enabled.score.extend(self.score.clone().map(|plugin| (plugin, weight))),
            Point::Reserve => enabled.reserve.extend(self.reserve.clone()),
            Point::Permit => enabled.permit.extend(self.permit.clone()),
            Point::PreBind => enabled.pre_bind.extend(self.pre_bind.clone()),
        }
    }
}

/// A plugin at the named extension points.
macro_rules! made {
    ($plugin:expr, $($point:ident),+) => {{
        let plugin = Arc::new($plugin);
        Made { $($point: Some(plugin.clone() as _),)+ ..Made::default() }
    }};
}

type Maker = fn(&DefaultSet) -> Made;

/// Every plugin, by the name that [`Plugin::name`](crate::decide::scheduler::rules::Plugin::name) says.
pub(super) const PLUGINS: &[(&str, Maker)] = &[
    ("PrioritySort", |_| made!(PrioritySort, queue_sort)),
    ("QoSSort", |_| made!(QoSSort, queue_sort)),
    ("SchedulingGates", |_| made!(SchedulingGates, pre_filter)),
    ("DynamicResources", |_| made!(DynamicResources, pre_filter)),
    ("NodeUnschedulable", |_| made!(NodeUnschedulable, filter)),
    ("NodeName", |_| made!(NodeName, filter)),
    ("TaintToleration", |_| made!(TaintToleration, filter, score)),
    ("NodeAffinity", |_| made!(NodeAffinity, filter, score)),
    ("NodePorts", |_| made!(NodePorts, filter)),
    ("NodeResourcesFit", |set| made!(NodeResourcesFit { strategy: set.choice.strategy.clone() }, filter, score)),
    ("NodeResourcesBalancedAllocation", |set| {
        made!(NodeResourcesBalancedAllocation(set.choice.balanced.clone()), score)
    }),
    ("VolumeBinding", |set| made!(set.choice.volumes, pre_filter, filter, reserve, pre_bind)),
    ("InterPodAffinity", |set| made!(set.choice.affinity, pre_filter, filter, pre_score, score)),
    ("PodTopologySpread", |_| made!(PodTopologySpread, pre_filter, filter, pre_score, score)),
    ("DeviceFit", |set| made!(DeviceFit { without_agent: set.without_agent }, pre_filter, filter, reserve)),
    ("DefaultPreemption", |_| made!(DefaultPreemption, post_filter)),
    ("RequestedToCapacityRatio", |set| made!(RequestedToCapacityRatio(set.ratio.clone()), score)),
    ("DeviceTopology", |_| made!(DeviceTopology, score)),
    ("ImageLocality", |_| made!(ImageLocality, score)),
    ("GpuFragmentation", |_| made!(GpuFragmentation, score)),
];

/// Names of the plugins that can be enabled at `point`.
pub fn names_at(point: Point) -> impl Iterator<Item = &'static str> {
    let set = DefaultSet::default();
    PLUGINS.iter().filter(move |(_, make)| make(&set).has(point)).map(|(name, _)| *name)
}

/// Extension points of the plugin of that name, by their keys; empty when there is none.
pub fn points_of(name: &str) -> Vec<&'static str> {
    let Some((_, make)) = PLUGINS.iter().find(|(known, _)| *known == name) else { return Vec::new() };
    let made = make(&DefaultSet::default());
    Point::ALL.iter().filter(|(point, _)| made.has(*point)).map(|(_, key)| *key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_calls_itself_by_its_name_in_the_catalogue() {
        for (name, make) in PLUGINS {
            let made = make(&DefaultSet::default());
            let names = [
                made.queue_sort.as_ref().map(|p| p.name()),
                made.pre_filter.as_ref().map(|p| p.name()),
                made.filter.as_ref().map(|p| p.name()),
                made.post_filter.as_ref().map(|p| p.name()),
                made.pre_score.as_ref().map(|p| p.name()),
                made.score.as_ref().map(|p| p.name()),
                made.reserve.as_ref().map(|p| p.name()),
                made.permit.as_ref().map(|p| p.name()),
                made.pre_bind.as_ref().map(|p| p.name()),
            ];
            assert!(names.iter().flatten().count() > 0, "{name} has no extension point");
            assert!(names.iter().flatten().all(|own| own == name), "{name}: {names:?}");
        }
    }
}
