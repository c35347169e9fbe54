//! Decisions for pods of a shape that was seen before: what every node answers to the shape, the fitting nodes in order. Only nodes
//! that have changed since are judged again.
//!
//! Promise: the index chooses exactly what [`choose`](super::choose::choose()) chooses by asking every node. It serves pods of
//! which no enabled rule says [`Reads::World`]; all others, and pods pinned to a node, are decided by that scan. A decision costs
//! one judgement per node that changed since this shape was last asked for, each `O(log nodes)` to enter. Kept per shape and node:
//! about 70 bytes; at most [`SHAPES`] shapes and [`ANSWERS`] in all, the longest unused shape goes first. TYJobs keep [`Tables`] of
//! their own, in another order.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::rules::{KeptSlots, Outcome, Plugins, Reads, Refusal, Slots, Text, View};
use crate::pod::PodContainer;
use crate::world::{Confinement, Dense, Node, NodeId, Pod, PodSpec, World};
use baton_contract::Shared;

use super::choose::{Diagnosis, NodeChoice, prepare_in, scan};
use super::concern::{Concern, NodeJudge};
use super::free::FreeGpus;
use super::ranks::{Ranking, Ranks};
use super::shape::PodShape;

/// Answers to the shapes that were asked for lately. It belongs to one world and one set of plugins.
#[derive(Default)]
pub struct Index {
    tables: Tables<Ranks, ()>,
    /// The same of the nodes to which a gang in hand is confined.
    confined: Option<(Arc<Confinement>, Tables<Ranks, ()>)>,
    free: FreeGpus,
}

impl Index {
    /// Percent of all GPUs that is free: what needs more fits nowhere.
    pub fn free_gpus(&mut self, world: &World) -> i64 {
        self.free.total(world)
    }

    /// Chooses as [`choose`](super::choose::choose()) does. Also returns how many nodes were judged.
    pub fn choose(&mut self, view: View<'_>, plugins: &Plugins, pod: &Pod, only: Option<NodeId>) -> (NodeChoice, u64) {
        let mut known = self.tables.take(pod, &());
        let mut slots = Slots::with(known.as_mut().map(|table| std::mem::take(&mut table.kept)).unwrap_or_default());
        let prepared = prepare_in(view, plugins, pod, &mut slots);
        let rules = Concern::of(view, plugins, pod, &slots);
        let within = slots.within().cloned();
        let narrow = within.as_ref().is_some_and(|within| within.looked_up().is_empty());
        if prepared.is_err() || only.is_some() || rules.reads == Reads::World || narrow {
            if let Some(mut table) = known {
                table.kept = slots.take_kept();
                self.tables.keep(table);
            }
            return match prepared {
                Err(end) => (end, 0),
                Ok(()) => scan(view, plugins, pod, only, slots),
            };
        }
        let epoch = (rules.reads == Reads::Mix).then(|| view.world.mix().epoch());
        if let Some(within) = &within {
            if let Some(mut table) = known.take() {
                table.kept = slots.take_kept();
                self.tables.keep(table);
            }
            if self.confined.as_ref().is_none_or(|(of, _)| !Arc::ptr_eq(of, within)) {
                self.confined = Some((Arc::clone(within), Tables::default()));
            }
            known = self.confined.as_mut().and_then(|(_, tables)| tables.take(pod, &()));
            if let Some(table) = &mut known {
                slots.keep(std::mem::take(&mut table.kept));
            }
        }
        let mut table = known.unwrap_or_else(|| Table::new(pod, ()));
        let basis = (epoch, rules.scores);
        let Ok(asked) = table.update(view.world, &rules, &mut slots, basis, within.as_deref()) else {
            // A rule failed: the scan finds which fault comes first.
            return scan(view, plugins, pod, only, slots);
        };
        let mut judged = asked.len() as u64;
        let chosen = table.ranking().best(&rules);
        let diagnosis = chosen.is_none().then(|| table.diagnosis().with_outside(view.world, &slots));
        if let Some((id, node)) =
            chosen.filter(|id| asked.binary_search(id).is_err()).and_then(|id| Some((id, view.world.node(id)?)))
        {
            // The verdict stands; this is for what filters leave in the slots about the chosen node.
            judged += 1;
            rules.judge((id, node), &mut slots);
        }
        table.kept = slots.take_kept();
        match self.confined.as_mut().filter(|_| within.is_some()) {
            Some((_, tables)) => tables.keep(table),
            None => self.tables.keep(table),
        }
        let Some(id) = chosen else { return (NodeChoice::Nowhere(diagnosis.unwrap_or_default()), judged) };
        (NodeChoice::Node(id, Box::new(slots)), judged)
    }
}

#[derive(Clone)]
enum Answer<R> {
    Fits(R),
    Refuses(RefusalId),
}

/// The nodes' answers to one shape of pod. `B`: what else tables of one shape differ in.
pub struct Table<R: Ranking, B> {
    shape: PodShape,
    by: B,
    /// The parts of the latest pod that make its shape, all but the node: pods of one template share them.
    latest: (Shared<PodSpec>, Shared<Vec<PodContainer>>),
    /// What plugins keep for this shape.
    pub kept: KeptSlots,
    answers: Dense<NodeId, Answer<R::Rank>>,
    ranking: R,
    refusals: Refusals,
    basis: R::Basis,
    /// Position in the world's journal up to which this is true; `None` when every node must be judged.
    mark: Option<u64>,
}

impl<R: Ranking, B: PartialEq> Table<R, B> {
    /// A table without answers.
    pub fn new(pod: &Pod, by: B) -> Box<Self> {
        Box::new(Self {
            shape: PodShape::of(pod),
            by,
            latest: (pod.facts.spec.clone(), pod.facts.handoff.containers.clone()),
            kept: KeptSlots::default(),
            answers: Dense::default(),
            ranking: R::default(),
            refusals: Refusals::default(),
            basis: R::Basis::default(),
            mark: None,
        })
    }

    /// Nodes answer this pod as they answer the table's.
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.is_like_latest(pod) && self.shape.node() == pod.facts.handoff.node.as_deref() || self.shape.is_of(pod)
    }

    fn is_like_latest(&self, pod: &Pod) -> bool {
        let (spec, containers) = &self.latest;
        spec.is_same(&pod.facts.spec) && containers.is_same(&pod.facts.handoff.containers)
    }

    /// What tables of one shape differ in.
    pub fn by(&self) -> &B {
        &self.by
    }

    /// The fitting nodes.
    pub fn ranking(&self) -> &R {
        &self.ranking
    }

    /// The rank of a node, if it fits.
    pub fn rank(&self, id: NodeId) -> Option<&R::Rank> {
        match self.answers.get(id)? {
            Answer::Fits(rank) => Some(rank),
            Answer::Refuses(_) => None,
        }
    }

    /// Why a node does not fit.
    pub fn refusal(&self, id: NodeId) -> Option<&Refusal> {
        match self.answers.get(id)? {
            Answer::Fits(_) => None,
            Answer::Refuses(refusal) => Some(self.refusals.get(*refusal)),
        }
    }

    /// Why no node fits.
    pub fn diagnosis(&self) -> Diagnosis {
        Diagnosis::of(self.answers.len(), self.refusals.counted())
    }

    /// Judges the nodes that have changed since the last call, or all nodes on another basis, or those `within`. Returns them in order.
    /// After a fault of a rule, the next call judges all nodes.
    pub fn update(
        &mut self,
        world: &World,
        judge: &impl NodeJudge,
        slots: &mut Slots,
        basis: R::Basis,
        within: Option<&Confinement>,
    ) -> Result<Vec<NodeId>, Text> {
        let journal = world.journal();
        let mark = self.mark.take().filter(|_| self.basis == basis);
        let inside = |id: &NodeId| within.is_none_or(|within| world.node(*id).is_some_and(|node| within.has(node)));
        let changed = mark.and_then(|mark| {
            let changed = journal.since(mark)?;
            // A filter hides how many there may be.
            let mut all = Vec::with_capacity(changed.size_hint().0);
            all.extend(changed.filter(inside));
            Some(all)
        });
        let mut stale: Vec<NodeId> = changed.unwrap_or_else(|| {
            (self.answers, self.ranking, self.refusals) = (Dense::default(), R::default(), Refusals::default());
            self.basis = basis;
            match within {
                Some(within) => world.nodes_in(Some(within)).map(|(id, _)| id).collect(),
                None => world.nodes().map(|(id, _)| id).collect(),
            }
        });
        stale.sort_unstable();
        stale.dedup();
        // Few rules rate a node against the others: their ratings fit without growing.
        let mut relative = Vec::with_capacity(4);
        for id in &stale {
            let Some(node) = world.node(*id).filter(|node| node.facts.is_some()) else {
                self.leave(*id);
                continue;
            };
            match judge.judge((*id, node), slots) {
                Outcome::Fit => {
                    relative.clear();
                    let rating = judge.rate((*id, node), slots, &mut relative);
                    self.fits((*id, node), rating, &relative);
                }
                Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => self.refuses(*id, no),
                Outcome::Fault(text) => return Err(text),
            }
        }
        self.mark = Some(journal.mark());
        Ok(stale)
    }

    fn fits(&mut self, node: (NodeId, &Node), rating: i64, relative: &[i64]) {
        if let Some(Answer::Fits(rank)) = self.answers.get_mut(node.0) {
            return self.ranking.change(rank, node, rating, relative);
        }
        self.leave(node.0);
        let rank = self.ranking.enter(node, rating, relative);
        self.answers.insert(node.0, Answer::Fits(rank));
    }

    fn refuses(&mut self, id: NodeId, refusal: Refusal) {
        if let Some(Answer::Refuses(known)) = self.answers.get(id)
            && *self.refusals.get(*known) == refusal
        {
            return;
        }
        self.leave(id);
        let refusal = self.refusals.enter(refusal);
        self.answers.insert(id, Answer::Refuses(refusal));
    }

    fn leave(&mut self, id: NodeId) {
        match self.answers.remove(id) {
            None => {}
            Some(Answer::Fits(rank)) => self.ranking.leave(id, &rank),
            Some(Answer::Refuses(refusal)) => self.refusals.leave(refusal),
        }
    }
}

/// Tables of the shapes that were asked for lately, the latest used last; at most [`SHAPES`] of them. Boxed, because they change places
/// at every decision.
#[allow(clippy::vec_box)]
pub struct Tables<R: Ranking, B>(Vec<Box<Table<R, B>>>);

/// Most tables that are kept. Each node is judged again for every other shape that waits, whenever room comes free.
pub const SHAPES: usize = 256;
/// Most answers that are kept: those to 64 shapes in a cluster of 20,000 nodes.
pub const ANSWERS: usize = 64 * 20_000;

impl<R: Ranking, B> Default for Tables<R, B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<R: Ranking, B: PartialEq> Tables<R, B> {
    /// Takes out the table of the pod's shape.
    pub fn take(&mut self, pod: &Pod, by: &B) -> Option<Box<Table<R, B>>> {
        let at = self.0.iter().rposition(|table| table.by == *by && table.is_of(pod))?;
        let mut table = self.0.remove(at);
        if !table.is_like_latest(pod) {
            table.latest = (pod.facts.spec.clone(), pod.facts.handoff.containers.clone());
        }
        Some(table)
    }

    /// Keeps a table as the latest used, if need be in place of the longest unused.
    pub fn keep(&mut self, table: Box<Table<R, B>>) {
        let most = SHAPES.min(ANSWERS / table.answers.len().max(1));
        let more = (self.0.len() + 1).saturating_sub(most);
        self.0.drain(..more.min(self.0.len()));
        self.0.push(table);
    }
}

/// Refusals of nodes: equal ones are stored once and counted.
#[derive(Debug, Default)]
struct Refusals {
    ids: BTreeMap<Arc<Refusal>, usize>,
    /// By id, with the number of nodes that refuse so; without any, the id is free.
    counts: Vec<(Arc<Refusal>, usize)>,
    free: Vec<usize>,
}

/// Names a refusal as long as a node refuses so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RefusalId(usize);

impl Refusals {
    /// One more node refuses so.
    fn enter(&mut self, refusal: Refusal) -> RefusalId {
        if let Some(id) = self.ids.get(&refusal) {
            self.counts[*id].1 += 1;
            return RefusalId(*id);
        }
        let refusal = Arc::new(refusal);
        let counted = (refusal.clone(), 1);
        let id = if let Some(id) = self.free.pop() {
            self.counts[id] = counted;
            id
        } else {
            self.counts.push(counted);
            self.counts.len() - 1
        };
        self.ids.insert(refusal, id);
        RefusalId(id)
    }

    /// One node less refuses so.
    fn leave(&mut self, id: RefusalId) {
        let (refusal, count) = &mut self.counts[id.0];
        *count -= 1;
        if *count == 0 {
            self.ids.remove(refusal);
            self.free.push(id.0);
        }
    }

    fn get(&self, id: RefusalId) -> &Refusal {
        &self.counts[id.0].0
    }

    fn counted(&self) -> BTreeMap<Arc<Refusal>, usize> {
        self.ids.iter().map(|(refusal, id)| (refusal.clone(), self.counts[*id].1)).collect()
    }
}
