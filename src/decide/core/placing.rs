//! What placing pods and giving room back may change, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::world::{NodeId, Pod, PodId, World};

use super::agenda::{Agenda, Terms};
use super::cost::LOOKS;
use super::extend;
use super::preemption::{Preemption, candidates};
use super::reservations::Reservations;
use super::rules::{PreemptionCandidate, View};
use super::select::choose::{NodeChoice, choose};
use super::select::index::Index;
use super::settings::{NodeSearch, Stats};

/// Comparing pods with so many terms costs as much.
const COMPARED: usize = 128;
/// What giving room back changes: the accounts, and what follows from it.
pub struct Rooms<'a> {
    /// Time, settings and rules.
    pub terms: Terms<'a>,
    /// Facts from watches, and accounts.
    pub world: &'a mut World,
    /// Room of pods that are not being bound yet.
    pub reservations: &'a mut Reservations,
    /// What is to be done.
    pub agenda: &'a mut Agenda,
}

/// What placing pods may change: rooms are taken and given back in the world, and nothing is queued, woken, reported or asked of the
/// cluster. What is tried in here can be undone.
pub struct Placing<'a> {
    /// Time, settings and rules.
    pub terms: Terms<'a>,
    /// Facts from watches, and accounts.
    pub world: &'a mut World,
    /// Verdicts on nodes by pod shape.
    pub index: &'a mut Index,
    /// Room of pods that are not being bound yet.
    pub reservations: &'a mut Reservations,
    /// Nominated pods and their victims.
    pub preemption: &'a Preemption,
    /// Counters.
    pub stats: &'a mut Stats,
}

impl Placing<'_> {
    /// What rules read.
    pub fn view(&self) -> View<'_> {
        self.terms.view(self.world)
    }

    /// Chooses a node for a pod of the world, or judges `only` that node; also returns the number of judged nodes.
    pub fn choose(&mut self, id: PodId, only: Option<NodeId>) -> Option<(NodeChoice, u64)> {
        let pod = self.world.pod(id)?;
        let view = self.terms.view(self.world);
        let (choice, judged) = match self.terms.config.search {
            NodeSearch::Indexed => self.index.choose(view, self.terms.rules, pod, only),
            NodeSearch::Scanning => choose(view, self.terms.rules, pod, only),
        };
        self.stats.work.add(1 + compared(self.world, pod) + judged / LOOKS);
        Some((choice, judged))
    }

    /// The same, and first beside other members of the pod's gang where it prefers that.
    pub fn choose_gathered(&mut self, id: PodId, only: Option<NodeId>) -> Option<(NodeChoice, u64)> {
        for (group, place) in self.world.preferred_places(id) {
            self.world.confine(&group, Arc::new(place));
            let found = self.choose(id, only);
            self.world.unconfine();
            if found.as_ref().is_some_and(|(choice, _)| matches!(choice, NodeChoice::Node(..))) {
                return found;
            }
        }
        self.choose(id, only)
    }

    /// Runs `decide` for `except`, a pod of this priority, while nominated pods of equal or higher priority count as reserved on
    /// their nodes: a node must fit with them and, where rules read other pods, also without any of them. Room that is made for
    /// the group of `except` is open to it. Where devices of a nominated pod are not free yet, the node is closed for such devices.
    pub fn with_nominated<T>(&mut self, priority: i32, except: PodId, decide: impl FnOnce(&mut Self) -> T) -> T {
        let entered = self.enter_nominated(priority, except);
        let decided = decide(self);
        entered.into_iter().rev().for_each(|id| _ = self.world.forget(id));
        decided
    }

    /// [`Placing::with_nominated`] without pods whose devices are not free yet: these close the node to new pods, not to a
    /// reservation that an earlier leader made.
    pub fn with_nominated_placed<T>(&mut self, priority: i32, except: PodId, decide: impl FnOnce(&mut Self) -> T) -> T {
        let entered = self.enter_nominated(priority, except);
        let waits = |pod: &Pod| pod.asks_for_devices() && pod.devices.is_none();
        let (waiting, placed): (Vec<PodId>, Vec<PodId>) =
            entered.into_iter().partition(|id| self.world.pod(*id).is_some_and(waits));
        waiting.into_iter().rev().for_each(|id| _ = self.world.forget(id));
        let decided = decide(self);
        placed.into_iter().rev().for_each(|id| _ = self.world.forget(id));
        decided
    }

    fn enter_nominated(&mut self, priority: i32, except: PodId) -> Vec<PodId> {
        enter_nominated(self.preemption, self.world, self.terms, (priority, except))
    }
}

/// What PreFilter rules compare before any node is judged, in [`PlacingCost`](super::cost::PlacingCost): the pod with every term of placed pods, and every placed
/// pod with each required term of its own.
pub fn compared(world: &World, pod: &Pod) -> u64 {
    let spec = &pod.facts.spec;
    let spread = spec.spread.iter().filter(|spread| spread.required).count();
    let own = spec.affinity.len() + spec.anti_affinity.len() + spread;
    ((own * world.placed_pods() + world.placed_terms()) / COMPARED) as u64
}

/// Enters nominated pods of this priority or a higher one into the accounts of their nodes, but for `except`: those that are nominated
/// here, and those that other schedulers have nominated. Returns the entered pods.
pub fn enter_nominated(
    preemption: &Preemption,
    world: &mut World,
    terms: Terms<'_>,
    (priority, except): (i32, PodId),
) -> Vec<PodId> {
    let mut entered = preemption.enter_own(world, terms, (priority, except));
    entered.extend(extend::enter_foreign(world, terms, (priority, except)));
    entered
}

/// The victims for a pod that fits no node, as the PostFilter rules choose them. `None` when no victims make room. `gone`: pods
/// that are victims already.
pub fn pick(placing: &mut Placing<'_>, pod: &Pod, gone: &BTreeSet<PodId>) -> Option<PreemptionCandidate> {
    let found = placing.with_nominated(pod.facts.spec.priority, pod.id, |placing| {
        candidates(placing.world, placing.terms.rules, pod, gone, placing.terms.now)
    });
    placing.terms.rules.enabled().post_filter().iter().find_map(|rule| rule.pick(&found)).cloned()
}
