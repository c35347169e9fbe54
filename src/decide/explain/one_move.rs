//! One move that would help: a running pod that leaves its node for another one, so that pods that wait for room can start.
//!
//! Only the nodes that lack least are looked at, and only so many moves are tried: a question costs at most [`TRIES`] choices over
//! all nodes, beside one judgement of each.

use crate::core::rules::plugins::device_fit;
use crate::core::rules::{Outcome, View};
use crate::core::select::choose::{NodeChoice, choose, judge, prepare};
use crate::core::select::nearest::nearest_first;
use crate::core::timers::Moment;
use crate::devices::{Held, HeldDevice};
use crate::help::Help;
use crate::scheduler::Scheduler;
use crate::world::gangs::{GroupId, Member, MemberState};
use crate::world::{NodeId, Place, Pod, PodId, World, WorldEvent};
use baton_contract::PodRef;

use super::answer::OneMove;
use super::gang::standing;

/// Nodes that are looked at.
const NODES: usize = 8;
/// Pods for which another node is looked for.
const TRIES: usize = 16;

impl Scheduler {
    /// The move after which all of these pods of a world would start, which is spoilt by the search. Pods of gangs and jobs stay where
    /// they are.
    pub(super) fn one_move(&self, world: &mut World, ids: &[PodId], now: Moment) -> Option<OneMove> {
        let mut found = None;
        for id in ids {
            if self.place(world, *id, None, now).is_none() {
                found = match found {
                    None => Some(self.move_for(world, *id, now)?),
                    Some(_) => return None,
                };
            }
        }
        found
    }

    /// [`Scheduler::one_move`] for a pod, or for what its group lacks, beside nominated pods.
    pub(super) fn move_beside_nominated(&self, id: PodId, group: Option<&GroupId>, now: Moment) -> Option<OneMove> {
        // Where it is gathered, a search in one domain is needed.
        let free = group.filter(|group| self.world().gangs().topology_of(group).is_none());
        let ids = group.map_or_else(|| vec![id], |_| free.map(|group| self.lacking(group)).unwrap_or_default());
        let mut world = self.as_found_by(self.world().pod(id)?, now).into_owned();
        self.one_move(&mut world, &ids, now)
    }

    /// Members that a waiting group lacks.
    pub(super) fn lacking(&self, group: &GroupId) -> Vec<PodId> {
        let once = self.gangs().record(group).is_some_and(|record| record.progress.satisfied_once());
        let of = |gang| {
            let (standing, pending) = (standing(gang, once), |member: &&Member| member.state == MemberState::Pending);
            gang.members().filter(pending).take(standing.needed.saturating_sub(standing.placed) as usize)
        };
        self.world().gangs().of_group(group).flat_map(of).map(|member| member.pod).collect()
    }

    /// Takes the best node for a waiting pod, or `only` this one.
    fn place(&self, world: &mut World, id: PodId, only: Option<NodeId>, now: Moment) -> Option<NodeId> {
        let view = View { world, now: now.mono };
        let NodeChoice::Node(node, slots) = choose(view, self.rules(), world.pod(id)?, only).0 else { return None };
        let held = device_fit::plan(&slots, (node, world.node(node)?)).map(|plan| plan.held());
        world.assume(id, node, held).then_some(node)
    }

    fn move_for(&self, world: &mut World, id: PodId, now: Moment) -> Option<OneMove> {
        let mut tries = 0;
        for node in self.short_nodes(world, id, now) {
            for mover in self.movable(world, node) {
                world.remove_for_dry_run(mover);
                if self.place(world, id, Some(node), now).is_some() {
                    if let Some(found) = self.elsewhere(world, mover, node, now) {
                        return Some(found);
                    }
                    world.forget(id);
                    tries += 1;
                }
                world.restore_after_dry_run(mover);
                if tries == TRIES {
                    return None;
                }
            }
        }
        None
    }

    /// Where a pod that has left its node would start: as the pod that its owner makes in its place.
    fn elsewhere(&self, world: &mut World, mover: PodId, from: NodeId, now: Moment) -> Option<OneMove> {
        let mut facts = world.pod(mover)?.facts.clone();
        let key = facts.handoff.pod.key.clone();
        facts.handoff.pod = PodRef::new(&key.namespace, &format!("{}~", key.name), &format!("moved~{}", mover.0));
        (facts.handoff.node, facts.handoff.assignment.device_allocated) = (None, None);
        (facts.handoff.assignment.container_devices, facts.handoff.phase) = (None, Default::default());
        let again = facts.handoff.pod.clone();
        world.apply(WorldEvent::Pod(Box::new(facts)), now.mono, now.wall);
        let to = world.pod_id(&again.uid).and_then(|id| self.place(world, id, None, now));
        let Some(to) = to else {
            world.apply(WorldEvent::PodGone(again.key, again.uid), now.mono, now.wall);
            return None;
        };
        let spent = |pod| world.budgets_of(pod).find(|(_, budget)| budget.allowed < 1).map(|(key, _)| key.to_string());
        Some(OneMove {
            budget: world.pod(mover).and_then(spent),
            pod: key.to_string(),
            from: world.node(from)?.name.to_string(),
            to: world.node(to)?.name.to_string(),
        })
    }

    /// Nodes that lack room for the pod and nothing else, the nearest first.
    fn short_nodes(&self, world: &World, id: PodId, now: Moment) -> Vec<NodeId> {
        let (view, rules) = (View { world, now: now.mono }, self.rules());
        let Some(pod) = world.pod(id) else { return Vec::new() };
        let Ok(mut slots) = prepare(view, rules, pod) else { return Vec::new() };
        let mut is_short = |node| match judge(view, rules, pod, node, &mut slots) {
            Outcome::Unfit(no) => no.help == Help::Room,
            _ => false,
        };
        let short = world.nodes().filter(|node| is_short(*node)).collect();
        nearest_first(pod, short, NODES)
    }

    /// Pods of a node that leave by themselves, those with the fewest devices first.
    fn movable(&self, world: &World, node: NodeId) -> Vec<PodId> {
        let victims = self.preemption().chosen_victims(world);
        let may_move = |pod: &&Pod| {
            let handoff = &pod.facts.handoff;
            pod.place == Place::Bound(node)
                && pod.devices.is_some()
                && handoff.deleting.is_none()
                && self.config().scheduler_names.contains(&handoff.scheduler_name)
                && pod.facts.spec.job.is_none()
                && world.gangs().gang_of(pod.id).is_none()
                && !victims.contains(&pod.id)
        };
        let pods = world.node(node).into_iter().flat_map(|node| node.pods.iter()).filter_map(|id| world.pod(*id));
        let mut pods: Vec<&Pod> = pods.filter(may_move).collect();
        let percents = |pod: &Pod| -> i64 { pod.devices.iter().flat_map(Held::devices).map(HeldDevice::percent).sum() };
        pods.sort_by_cached_key(|pod| (percents(pod), pod.key().clone()));
        pods.into_iter().map(|pod| pod.id).collect()
    }
}
