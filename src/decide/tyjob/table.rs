//! What every node says to one shape of pod under one metric, ordered so that the best node is at hand.
//!
//! As for single pods ([`crate::decide::scheduler::Index`]), a node is asked again only when it has changed. Pods of which a
//! filter reads more than the node are asked about everywhere, each time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::decide::scheduler::PodShape;
use crate::decide::scheduler::rules::{Kept, Outcome, Plugins, Reads, Refusal, Slots, Text, View};
use crate::decide::scheduler::select::choose::{Diagnosis, judge};
use crate::decide::scheduler::select::refusals::{Refusals, Said};
use crate::decide::tyjob::placement::{Load, Metric, Weights};
use crate::decide::world::{NodeId, Pod};

/// A fitting node: the better first, then by name.
pub(in crate::decide) type Entry = (Reverse<i64>, Box<str>, NodeId);

enum Verdict {
    Fits(Entry),
    Refuses(Said),
}

/// The nodes' answers to one shape.
#[derive(Default)]
pub(in crate::decide) struct Table {
    verdicts: BTreeMap<NodeId, Verdict>,
    order: BTreeSet<Entry>,
    refusals: Refusals,
    /// Position in the world's journal up to which this is true.
    mark: Option<u64>,
    /// What plugins keep for this shape.
    kept: Kept,
}

impl Table {
    /// Brings the table up to the world; returns the nodes that were asked.
    pub fn catch_up(
        &mut self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        slots: &mut Slots,
        by: (Metric, &Weights),
    ) -> Result<BTreeSet<NodeId>, Text> {
        slots.keep(std::mem::take(&mut self.kept));
        let asked = self.ask_changed(view, plugins, pod, slots, by);
        self.kept = slots.take_kept();
        asked
    }

    fn ask_changed(
        &mut self,
        view: View<'_>,
        plugins: &Plugins,
        pod: &Pod,
        slots: &mut Slots,
        (metric, weights): (Metric, &Weights),
    ) -> Result<BTreeSet<NodeId>, Text> {
        let journal = view.world.journal();
        let changed = self.mark.and_then(|mark| Some(journal.since(mark)?.collect()));
        let stale: BTreeSet<NodeId> = changed.unwrap_or_else(|| {
            *self = Self::default();
            view.world.nodes().map(|(id, _)| id).collect()
        });
        self.mark = None;
        for id in &stale {
            self.leave(*id);
            let Some(node) = view.world.node(*id).filter(|node| node.facts.is_some()) else { continue };
            match judge(view, plugins, pod, (*id, node), slots) {
                Outcome::Fit => {
                    let rating = metric.rate(&Load::of(view.world, node), &pod.facts.spec.requests, weights);
                    let entry = (Reverse(rating), node.name.clone(), *id);
                    self.order.insert(entry.clone());
                    self.verdicts.insert(*id, Verdict::Fits(entry));
                }
                Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                    self.verdicts.insert(*id, Verdict::Refuses(self.refusals.enter(no)));
                }
                Outcome::Fault(text) => return Err(text),
            }
        }
        self.mark = Some(journal.mark());
        Ok(stale)
    }

    /// Fitting nodes, the best first.
    pub fn fitting(&self) -> impl Iterator<Item = &Entry> {
        self.order.iter()
    }

    /// The entry of a node, if it fits.
    pub fn entry(&self, id: NodeId) -> Option<&Entry> {
        match self.verdicts.get(&id)? {
            Verdict::Fits(entry) => Some(entry),
            Verdict::Refuses(_) => None,
        }
    }

    /// What a node that does not fit says.
    pub fn refusal(&self, id: NodeId) -> Option<&Refusal> {
        match self.verdicts.get(&id)? {
            Verdict::Fits(_) => None,
            Verdict::Refuses(said) => Some(self.refusals.get(*said)),
        }
    }

    /// Why no node fits.
    pub fn diagnosis(&self) -> Diagnosis {
        Diagnosis::of(self.verdicts.len(), self.refusals.counted())
    }

    fn leave(&mut self, id: NodeId) {
        match self.verdicts.remove(&id) {
            None => {}
            Some(Verdict::Fits(entry)) => {
                self.order.remove(&entry);
            }
            Some(Verdict::Refuses(said)) => self.refusals.leave(said),
        }
    }
}

/// Tables of the shapes that were asked for lately.
#[derive(Default)]
pub(in crate::decide) struct Tables {
    /// Latest used last.
    kept: Vec<(PodShape, Metric, Table)>,
}

impl Tables {
    /// Most tables that are kept.
    const MOST: usize = 64;

    /// The pod's table, or a fresh one in place of the longest unused. Give it back with [`Tables::keep`].
    pub(in crate::decide) fn take(&mut self, pod: &Pod, metric: Metric) -> (PodShape, Metric, Table) {
        let found = self.kept.iter().rposition(|(shape, by, _)| *by == metric && shape.is_of(pod));
        if let Some(at) = found {
            return self.kept.remove(at);
        }
        if self.kept.len() >= Self::MOST {
            self.kept.remove(0);
        }
        (PodShape::of(pod), metric, Table::default())
    }

    pub(in crate::decide) fn keep(&mut self, table: (PodShape, Metric, Table)) {
        self.kept.push(table);
    }
}

/// The most that any filter reads.
pub(in crate::decide) fn filters_read(plugins: &Plugins, pod: &Pod, slots: &Slots) -> Reads {
    let filters = plugins.enabled().filter.iter().map(|plugin| plugin.reads(pod, slots));
    filters.max().unwrap_or(Reads::Node)
}
