//! The exact search: for a small group that no order of offering satisfies, every way of placing its members is tried.

use std::collections::BTreeSet;

use crate::decide::cycle::choose::{Choice, choose};
use crate::decide::cycle::engine::Engine;
use crate::decide::cycle::settings::Moment;
use crate::decide::framework::View;
use crate::decide::gang::GroupId;
use crate::decide::world::{NodeId, PodId, Stock};

use super::alike::Kind;
use super::offer::{Aim, Offer};

/// Members that are searched over. Larger groups of identical members need no search: their order does not matter.
const MEMBERS: usize = 8;
/// Nodes that are searched over. A group of eight that fits on so many nodes is found without a search.
const NODES: usize = 64;
/// Placements that are tried.
const STEPS: usize = 20_000;

/// A member that may be placed, and the gang that counts it.
struct Candidate {
    pod: PodId,
    gang: usize,
    nodes: Vec<NodeId>,
}

impl Engine {
    /// Places what the group needs, whichever members and nodes that takes. The members stay held; `None` leaves nothing held.
    pub(super) fn search(&mut self, group: &GroupId, aim: Aim, now: Moment) -> Option<Vec<PodId>> {
        let offer = Offer::of(&self.world, group, &[], aim);
        let mut kinds: Vec<Kind> = Vec::new();
        for id in offer.all() {
            let pod = self.world.pod(id)?;
            if !kinds.iter().any(|kind| kind.is_of(pod)) {
                kinds.push(Kind::of(pod));
            }
        }
        let members = offer.all().count();
        if members == 0 || members > MEMBERS || kinds.len() < 2 {
            return None;
        }
        let mut candidates = Vec::new();
        for (at, gang) in offer.gangs.iter().enumerate() {
            for id in &gang.pending {
                candidates.push(Candidate { pod: *id, gang: at, nodes: self.nodes_for(*id, now) });
            }
        }
        // Whoever has the fewest choices first.
        candidates.sort_by_key(|candidate| candidate.nodes.len());
        let mut needed: Vec<usize> = offer.gangs.iter().map(|gang| gang.needed).collect();
        let mut left: Vec<usize> = offer.gangs.iter().map(|gang| gang.pending.len()).collect();
        let mut held = Vec::new();
        let mut steps = STEPS;
        self.place_rest(&candidates, &mut needed, &mut left, &mut held, &mut steps, now).then_some(held)
    }

    fn nodes_for(&self, id: PodId, now: Moment) -> Vec<NodeId> {
        let Some(pod) = self.world.pod(id) else { return Vec::new() };
        let view = View { world: &self.world, now: now.mono };
        let mut found = Vec::new();
        for (node, _) in self.world.nodes() {
            if found.len() >= NODES {
                break;
            }
            if matches!(choose(view, &self.plugins, pod, Some(node)).0, Choice::Node(..)) {
                found.push(node);
            }
        }
        found
    }

    fn place_rest(
        &mut self,
        rest: &[Candidate],
        needed: &mut [usize],
        left: &mut [usize],
        held: &mut Vec<PodId>,
        steps: &mut usize,
        now: Moment,
    ) -> bool {
        if needed.iter().all(|needed| *needed == 0) {
            return true;
        }
        let Some((first, rest)) = rest.split_first() else { return false };
        if *steps == 0 || needed.iter().zip(left.iter()).any(|(needed, left)| needed > left) {
            return false;
        }
        left[first.gang] -= 1;
        if needed[first.gang] > 0 {
            let mut seen: BTreeSet<String> = BTreeSet::new();
            for node in &first.nodes {
                // Nodes that look the same are one choice.
                if !seen.insert(self.look_of(*node, rest)) {
                    continue;
                }
                *steps = steps.saturating_sub(1);
                if !self.hold_on(first.pod, *node, now) {
                    continue;
                }
                held.push(first.pod);
                needed[first.gang] -= 1;
                if self.place_rest(rest, needed, left, held, steps, now) {
                    return true;
                }
                needed[first.gang] += 1;
                held.pop();
                self.undo(&[first.pod]);
            }
        }
        let without = self.place_rest(rest, needed, left, held, steps, now);
        left[first.gang] += 1;
        without
    }

    /// Everything that tells nodes apart for placement of what is left, but their names.
    fn look_of(&self, id: NodeId, rest: &[Candidate]) -> String {
        let Some(node) = self.world.node(id) else { return String::new() };
        let Some(facts) = &node.facts else { return String::new() };
        let labels = facts.labels.iter().filter(|(key, _)| *key != "kubernetes.io/hostname");
        let labels: Vec<_> = labels.collect();
        // What is free on each device, whichever device it is.
        let rooms = node.stock.as_ref().map(Stock::describe).unwrap_or_default();
        let mut free: Vec<(bool, &str)> = rooms.iter().map(|room| (room.healthy, &*room.free)).collect();
        free.sort_unstable();
        let wanted: Vec<bool> = rest.iter().map(|other| other.nodes.contains(&id)).collect();
        let (allocatable, taints, pods) = (&facts.allocatable, &facts.taints, node.pods.len());
        format!("{allocatable:?} {:?} {taints:?} {labels:?} {free:?} {pods} {wanted:?}", node.used)
    }

    fn hold_on(&mut self, id: PodId, node: NodeId, now: Moment) -> bool {
        let Some(pod) = self.world.pod(id) else { return false };
        let view = View { world: &self.world, now: now.mono };
        match choose(view, &self.plugins, pod, Some(node)).0 {
            Choice::Node(node, slots) => self.hold(id, node, *slots, now),
            _ => false,
        }
    }
}
