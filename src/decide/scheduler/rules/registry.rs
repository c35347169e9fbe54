//! Which plugins are enabled, in which order and with which weights.

use std::sync::Arc;

use super::points::{Filter, Permit, PostFilter, PreBind, PreFilter, PreScore, QueueSort, Reserve, Score};

/// Why a set of plugins cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two orders contradict each other.
    #[error("exactly one QueueSort plugin may be enabled, found {}: keep one", .0.join(" and "))]
    QueueSorts(Vec<&'static str>),
    /// No order at all.
    #[error("no QueueSort plugin is enabled: enable PrioritySort")]
    NoQueueSort,
    /// The same rule twice at one extension point.
    #[error("plugin {name} is enabled twice at {point}: keep one")]
    Twice {
        /// Plugin.
        name: &'static str,
        /// Extension point.
        point: &'static str,
    },
    /// A rule whose work at one extension point is half of it without another one.
    #[error(
        "plugin {name} is enabled at {point} and not at {other}, the other half of it: enable it at both, or at neither"
    )]
    Apart {
        /// Plugin.
        name: &'static str,
        /// Where it is enabled.
        point: &'static str,
        /// Where it is not.
        other: &'static str,
    },
    /// Nobody chooses devices.
    #[error(
        "plugin DeviceFit is not enabled at filter: pods would be bound without devices; enable it (nodesWithoutAgent: plain counts nodes without an agent as kube-scheduler does)"
    )]
    NoDevices,
    /// A weight that means nothing.
    #[error("plugin {name} has the weight {weight}: a score's weight is 1 to 100")]
    Weight {
        /// Plugin.
        name: &'static str,
        /// Weight found.
        weight: i64,
    },
}

/// Plugins by extension point, in the order in which they run.
#[derive(Default, Clone)]
pub struct Enabled {
    /// Orders of the queue; exactly one.
    pub queue_sort: Vec<Arc<dyn QueueSort>>,
    /// Before filtering.
    pub pre_filter: Vec<Arc<dyn PreFilter>>,
    /// Filters; cheap ones first.
    pub filter: Vec<Arc<dyn Filter>>,
    /// When nothing fits.
    pub post_filter: Vec<Arc<dyn PostFilter>>,
    /// Before scoring.
    pub pre_score: Vec<Arc<dyn PreScore>>,
    /// Scores with weights.
    pub score: Vec<(Arc<dyn Score>, i64)>,
    /// Reservations.
    pub reserve: Vec<Arc<dyn Reserve>>,
    /// Gatekeepers.
    pub permit: Vec<Arc<dyn Permit>>,
    /// Before the lock.
    pub pre_bind: Vec<Arc<dyn PreBind>>,
}

/// A set of plugins that can work.
#[derive(Clone)]
pub struct Plugins {
    enabled: Enabled,
}

impl Plugins {
    /// Checks the set.
    pub fn new(enabled: Enabled) -> Result<Self, RegistryError> {
        match enabled.queue_sort.as_slice() {
            [] => return Err(RegistryError::NoQueueSort),
            [_] => {}
            several => return Err(RegistryError::QueueSorts(several.iter().map(|plugin| plugin.name()).collect())),
        }
        once("PreFilter", enabled.pre_filter.iter().map(|p| p.name()))?;
        once("Filter", enabled.filter.iter().map(|p| p.name()))?;
        once("PostFilter", enabled.post_filter.iter().map(|p| p.name()))?;
        once("PreScore", enabled.pre_score.iter().map(|p| p.name()))?;
        once("Score", enabled.score.iter().map(|(p, _)| p.name()))?;
        once("Reserve", enabled.reserve.iter().map(|p| p.name()))?;
        once("Permit", enabled.permit.iter().map(|p| p.name()))?;
        once("PreBind", enabled.pre_bind.iter().map(|p| p.name()))?;
        if let Some((plugin, weight)) = enabled.score.iter().find(|(_, weight)| !(1..=100).contains(weight)) {
            return Err(RegistryError::Weight { name: plugin.name(), weight: *weight });
        }
        Ok(Self { enabled })
    }

    /// The order of the queue.
    pub fn queue_sort(&self) -> &dyn QueueSort {
        &*self.enabled.queue_sort[0]
    }

    /// Every plugin by extension point.
    pub fn enabled(&self) -> &Enabled {
        &self.enabled
    }
}

fn once(point: &'static str, names: impl Iterator<Item = &'static str>) -> Result<(), RegistryError> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(RegistryError::Twice { name, point });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::scheduler::rules::plugins::priority_sort::PrioritySort;
    use crate::decide::scheduler::rules::plugins::taints::TaintToleration;

    fn error(enabled: Enabled) -> RegistryError {
        Plugins::new(enabled).err().expect("a set that cannot work")
    }

    #[test]
    fn two_orders_of_the_queue_are_a_start_up_error_and_so_is_none() {
        let sorts: Vec<Arc<dyn QueueSort>> = vec![Arc::new(PrioritySort), Arc::new(PrioritySort)];
        let two = error(Enabled { queue_sort: sorts, ..Enabled::default() });
        assert!(two.to_string().contains("exactly one QueueSort"), "{two}");
        assert_eq!(error(Enabled::default()), RegistryError::NoQueueSort);
    }

    #[test]
    fn a_rule_twice_or_a_weight_out_of_range_is_named() {
        let one = || Enabled { queue_sort: vec![Arc::new(PrioritySort)], ..Enabled::default() };
        let filter: Vec<Arc<dyn Filter>> = vec![Arc::new(TaintToleration), Arc::new(TaintToleration)];
        let twice = error(Enabled { filter, ..one() });
        assert_eq!(twice, RegistryError::Twice { name: "TaintToleration", point: "Filter" });
        let score: Vec<(Arc<dyn Score>, i64)> = vec![(Arc::new(TaintToleration), 0)];
        assert_eq!(error(Enabled { score, ..one() }), RegistryError::Weight { name: "TaintToleration", weight: 0 });
    }
}
