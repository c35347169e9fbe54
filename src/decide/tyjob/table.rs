//! The nodes' verdicts on one pod shape of a TYJob, the fitting nodes in the order of a metric. If a filter reads more than the node,
//! the table is built for each pod.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::core::MetricWeights;
use crate::core::rules::{Outcome, Plugins, Reads, Slots, Text, View};
use crate::core::select::choose::judge;
use crate::core::select::concern::NodeJudge;
use crate::core::select::index;
use crate::core::select::ranks::Ranking;
use crate::tyjob::placement::{Metric, Utilisation};
use crate::world::{Node, NodeId, Pod};

/// A fitting node: by rating, the best first, then by name.
pub(super) type RankedNode = (Reverse<i64>, Box<str>, NodeId);

/// The nodes' verdicts on one pod shape under one metric.
pub type JobTable = index::Table<ByMetric, Metric>;

/// Tables of recently used shapes.
pub type JobTables = index::Tables<ByMetric, Metric>;

/// Fitting nodes, the best first.
#[derive(Default)]
pub struct ByMetric(BTreeSet<RankedNode>);

impl Ranking for ByMetric {
    type Rank = RankedNode;
    type Basis = ();

    fn enter(&mut self, (id, node): (NodeId, &Node), rating: i64, _: &[i64]) -> RankedNode {
        let entry = (Reverse(rating), node.name.clone(), id);
        self.0.insert(entry.clone());
        entry
    }

    fn leave(&mut self, _: NodeId, entry: &RankedNode) {
        self.0.remove(entry);
    }
}

/// Judges by the filters and rates by the metric.
struct MetricJudge<'a> {
    view: View<'a>,
    plugins: &'a Plugins,
    pod: &'a Pod,
    metric: Metric,
    weights: &'a MetricWeights,
}

impl NodeJudge for MetricJudge<'_> {
    fn judge(&self, node: (NodeId, &Node), slots: &mut Slots) -> Outcome {
        judge(self.view, self.plugins, self.pod, node, slots)
    }

    fn rate(&self, (_, node): (NodeId, &Node), _: &mut Slots, _: &mut Vec<i64>) -> i64 {
        self.metric.rate(&Utilisation::of(self.view.world, node), &self.pod.facts.spec.requests, self.weights)
    }
}

impl JobTable {
    /// Brings the table up to date; returns the nodes that were judged, in order.
    pub fn catch_up(
        &mut self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        slots: &mut Slots,
        weights: &MetricWeights,
    ) -> Result<Vec<NodeId>, Text> {
        slots.keep(std::mem::take(&mut self.kept));
        let judge = MetricJudge { view, plugins, pod, metric: *self.by(), weights };
        let judged = self.update(view.world, &judge, slots, (), None);
        self.kept = slots.take_kept();
        judged
    }

    /// Fitting nodes, the best first.
    pub fn fitting(&self) -> impl ExactSizeIterator<Item = &RankedNode> {
        self.ranking().0.iter()
    }
}

/// The widest scope that a filter reads for this pod.
pub(super) fn filters_read(plugins: &Plugins, pod: &Pod, slots: &Slots) -> Reads {
    let filters = plugins.enabled().filter.iter().map(|plugin| plugin.reads(pod, slots));
    filters.max().unwrap_or(Reads::Node)
}
