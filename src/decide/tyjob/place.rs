//! One pod of a job: the node that its policy prefers, and the room that is reserved there.

use std::collections::BTreeMap;

use crate::core::agenda::{Agenda, NEW_POD};
use crate::core::placing::Placing;
use crate::core::rules::plugins::device_fit;
use crate::core::rules::{Plugins, Reads, Text, View};
use crate::core::select::choose::{NodeChoice, judge, prepare};
use crate::core::select::shape::PodShape;
use crate::world::{Confinement, NodeId, Place, Pod, PodFacts, PodId, World};
use baton_contract::PodKey;
use baton_contract::tyjob::BasicPolicy;

use super::{JobPlace, TyJobs};
use crate::core::MetricWeights;

use super::placement::{Guests, JobFacts, JobSpec, KnownRooms, Metric, Rank, Seat, room_for};
use super::table::{JobTable, RankedNode, filters_read};

/// What a pod's rating depends on beside the node: the policy and the other pods of its job.
pub struct JobContext<'a> {
    /// Policy of the job.
    pub policy: BasicPolicy,
    /// Number of the job's pods by node.
    pub here: &'a BTreeMap<NodeId, i64>,
    /// Pods without a place, the one to be placed included.
    pub missing: &'a [Guests],
    /// The nodes that the pods of the job may use; `None` for all.
    pub within: Option<&'a Confinement>,
    /// Tables of the parts to which the pod to be placed does not belong.
    pub others: &'a [PartTable],
}

/// The nodes' verdicts on one pod shape of other parts.
pub struct PartTable {
    /// Parts whose pods have the shape.
    parts: Vec<usize>,
    table: Box<JobTable>,
    /// No filter reads more than the node, so the table is kept for the next pod.
    kept: bool,
}

/// Judges the nodes for the pods of other parts that have no place, each shape once. `take` returns the table to start from; with
/// `true` it may be a kept one.
pub fn judge_other_parts(
    view: View<'_>,
    (plugins, weights): (&Plugins, &MetricWeights),
    (job, spec): (&JobFacts, &JobSpec),
    (seat, placed): (&Seat, &Pod),
    missing: &[Guests],
    mut take: impl FnMut(&Pod, Metric, bool) -> Box<JobTable>,
) -> Vec<PartTable> {
    let own = PodShape::of(placed);
    let mut others: Vec<PartTable> = Vec::new();
    for guests in missing.iter().filter(|guests| guests.part != seat.part) {
        let Some(part) = spec.parts.get(guests.part) else { continue };
        let pod = template_pod(part.pod_of(&job.job, seat));
        // Both pods have the same shape: a node that fits one fits the other.
        if own.is_of(&pod) {
            continue;
        }
        if let Some(same) = others.iter_mut().find(|other| other.table.is_of(&pod)) {
            same.parts.push(guests.part);
            continue;
        }
        let metric = Metric::of(spec.basic, part.role);
        let Ok(mut slots) = prepare(view, plugins, &pod) else {
            // It fits no node.
            others.push(PartTable { parts: vec![guests.part], table: JobTable::new(&pod, metric), kept: false });
            continue;
        };
        let kept = filters_read(plugins, &pod, &slots) <= Reads::Node;
        let mut table = take(&pod, metric, kept);
        // A fault is reported when the pod itself is placed.
        if table.catch_up(view, plugins, &pod, &mut slots, weights).is_ok() {
            others.push(PartTable { parts: vec![guests.part], table, kept });
        }
    }
    others
}

impl JobContext<'_> {
    /// How the policy ranks a node that fits.
    pub fn rank(&self, world: &World, id: NodeId, metric: i64) -> Rank {
        let here = self.here.get(&id).copied().unwrap_or(0);
        Rank::of(self.policy, metric, here, || self.room(world, id))
    }

    fn room(&self, world: &World, id: NodeId) -> i64 {
        let Some(node) = world.node(id) else { return 0 };
        room_for(node, self.missing.iter().filter(|guests| self.admits(guests, id)))
    }

    /// No filter refuses pods of this shape on the node.
    fn admits(&self, guests: &Guests, id: NodeId) -> bool {
        let other = self.others.iter().find(|other| other.parts.contains(&guests.part));
        other.is_none_or(|other| other.table.rank(id).is_some())
    }

    /// The job's pods may use the node.
    fn is_inside(&self, world: &World, id: NodeId) -> bool {
        self.within.is_none_or(|within| world.node(id).is_some_and(|node| within.has(node)))
    }

    /// Fitting nodes that the job's pods may use, the best first.
    fn fitting<'t>(&'t self, world: &'t World, table: &'t JobTable) -> impl Iterator<Item = &'t RankedNode> {
        // A domain is mostly far smaller than the cluster.
        let near = self.within.map(Confinement::looked_up).filter(|nodes| !nodes.is_empty());
        let mut near: Option<Vec<_>> = near.map(|nodes| nodes.iter().filter_map(|id| table.rank(*id)).collect());
        near.iter_mut().for_each(|ranked| ranked.sort_unstable());
        let all = near.is_none().then(|| table.fitting()).into_iter().flatten();
        near.into_iter().flatten().chain(all).filter(|(_, _, id)| self.is_inside(world, *id))
    }

    /// Why no node is left for the pod.
    fn refusal(&self, table: &JobTable) -> String {
        let text = table.diagnosis().message();
        match (self.within, table.fitting().len()) {
            (Some(within), outside @ 1..) => {
                let comma = if text.contains(':') { "," } else { ":" };
                format!("{text}{comma} {outside} outside {}", within.name())
            }
            _ => text,
        }
    }

    /// The fitting node with the highest rank, the first by name among equals.
    pub fn best(&self, world: &World, table: &JobTable) -> Option<NodeId> {
        match self.policy {
            BasicPolicy::JobAffinity => {
                let here = self.here.iter().filter(|(id, count)| **count > 0 && self.is_inside(world, **id));
                let used = here.filter_map(|(id, _)| table.rank(*id));
                let best = self.first(world, used);
                best.or_else(|| self.with_most_room(world, table))
            }
            BasicPolicy::JobAntiAffinity => {
                let here = |id: &NodeId| self.here.get(id).copied().unwrap_or(0);
                let empty = self.fitting(world, table).find(|(_, _, id)| here(id) == 0);
                empty.map(|(_, _, id)| *id).or_else(|| self.first(world, self.fitting(world, table)))
            }
            _ => self.fitting(world, table).next().map(|(_, _, id)| *id),
        }
    }

    fn first<'t>(&self, world: &World, entries: impl Iterator<Item = &'t RankedNode>) -> Option<NodeId> {
        let ranked = entries.map(|(metric, name, id)| (self.rank(world, *id, metric.0), std::cmp::Reverse(name), *id));
        ranked.max_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1))).map(|(_, _, id)| id)
    }

    /// The node on which most pods of the job fit, used when no node with pods of the job fits. Nodes come by metric and name: of
    /// equal ones the first is chosen, and the search ends at a node that takes all pods. Where devices have to be picked to know
    /// the room, only [`KnownRooms::MOST`] different nodes are tried.
    fn with_most_room(&self, world: &World, table: &JobTable) -> Option<NodeId> {
        let all: i64 = self.missing.iter().map(|guests| guests.count).sum();
        let mut rooms = KnownRooms::new(self.missing);
        let mut best: Option<(i64, NodeId)> = None;
        for (_, _, id) in self.fitting(world, table) {
            let Some(node) = world.node(*id) else { continue };
            let Some(room) = rooms.room(node, |guests| self.admits(guests, *id)) else { continue };
            if best.is_none_or(|(most, _)| room > most) {
                best = Some((room, *id));
            }
            if room >= all {
                break;
            }
        }
        best.map(|(_, id)| id)
    }
}

/// A pod that does not exist yet, as its template describes it.
pub fn template_pod(facts: PodFacts) -> Pod {
    Pod::unplaced(NEW_POD, facts)
}

impl TyJobs {
    /// Finds the node that the policy prefers for a seat and reserves its room there. The error says why there is none.
    pub(super) fn place_seat(
        &mut self,
        placing: &mut Placing<'_>,
        job: &JobFacts,
        spec: &JobSpec,
        seat: &Seat,
        context: &JobContext<'_>,
    ) -> Result<(NodeId, PodId), String> {
        let Some(part) = spec.parts.get(seat.part) else { return Err("the job has no such part".to_owned()) };
        let facts = pod_to_place(placing.world, job, spec, seat).unwrap_or_else(|| part.pod_of(&job.job, seat));
        let pod = template_pod(facts);
        let view = View { world: &*placing.world, now: placing.terms.now.mono };
        placing.stats.attempts += 1;
        let mut slots = prepare(view, placing.terms.rules, &pod).map_err(refusal_text)?;
        let metric = Metric::of(spec.basic, part.role);
        let kept = filters_read(placing.terms.rules, &pod, &slots) <= Reads::Node;
        let (tables, weights) = (&mut self.tables, &placing.terms.config.jobs.weights);
        let mut take = |pod: &Pod, metric, kept: bool| {
            let known = if kept { tables.take(pod, &metric) } else { None };
            known.unwrap_or_else(|| JobTable::new(pod, metric))
        };
        let settings = (placing.terms.rules, weights);
        let others = judge_other_parts(view, settings, (job, spec), (seat, &pod), context.missing, &mut take);
        let context = JobContext {
            policy: context.policy,
            here: context.here,
            missing: context.missing,
            within: context.within,
            others: &others,
        };
        let mut table = take(&pod, metric, kept);
        let judged = table.catch_up(view, placing.terms.rules, &pod, &mut slots, weights);
        let found = judged.map_err(Text::into_owned).and_then(|judged| {
            placing.stats.judged += judged.len() as u64;
            let best = context.best(placing.world, &table);
            best.map(|id| (id, judged.binary_search(&id).is_ok())).ok_or_else(|| context.refusal(&table))
        });
        for other in others.into_iter().filter(|other| other.kept) {
            self.tables.keep(other.table);
        }
        if kept {
            self.tables.keep(table);
        }
        let (id, fresh) = found?;
        let Some(node) = placing.world.node(id) else { return Err("the node is gone".to_owned()) };
        if !fresh {
            // The verdict is known; filters run again to fill the slots for the chosen node.
            judge(view, placing.terms.rules, &pod, (id, node), &mut slots);
        }
        let devices = device_fit::plan(&slots, (id, node)).map(|plan| plan.held());
        let facts = pod.facts;
        Ok((id, placing.world.reserve_place(facts, id, devices)))
    }
}

/// Why a pod fits nowhere, before any node is judged.
pub fn refusal_text(end: NodeChoice) -> String {
    match end {
        NodeChoice::Nowhere(diagnosis) => diagnosis.message(),
        NodeChoice::WaitUntil(_, refusal) => refusal.text.into_owned(),
        NodeChoice::Fault(text) => text.into_owned(),
        NodeChoice::Node(..) => String::new(),
    }
}

/// `true` when the pod claims a place of this attempt of the job.
pub(super) fn claims(pod: &Pod, uid: &str, attempt: i32) -> bool {
    pod.facts.spec.job.as_ref().is_some_and(|claim| *claim.uid == *uid && claim.attempt == Some(attempt))
}

/// `true` once the leader pod of the present attempt is created, ended or not: from then on places are kept, even if the status
/// does not show it yet.
pub(super) fn leader_created(world: &World, job: &JobFacts) -> bool {
    let leader = job.spec.as_ref().ok().and_then(|spec| spec.seats(&job.job.key.name).next());
    let pod = leader.and_then(|seat| world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod)));
    let pod = pod.filter(|pod| pod.facts.handoff.deleting.is_none());
    job.leads() || pod.is_some_and(|pod| claims(pod, &job.job.uid, job.attempt))
}

/// The pod to be placed for a seat: the created pod that waits for it, since admission may have changed it, else the template's.
pub fn pod_to_place(world: &World, job: &JobFacts, spec: &JobSpec, seat: &Seat) -> Option<PodFacts> {
    let mut facts = spec.parts.get(seat.part)?.pod_of(&job.job, seat);
    let created = world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod));
    let created = created.filter(|pod| pod.place == Place::Waiting && pod.facts.handoff.deleting.is_none());
    if let Some(created) = created.filter(|pod| claims(pod, &job.job.uid, job.attempt)) {
        // Its identity stays the template's, so that the job's pods are counted once each.
        facts.handoff.containers = created.facts.handoff.containers.clone();
        let mut spec = (*created.facts.spec).clone();
        (spec.job, spec.gang, spec.nominated, spec.refused) = (None, None, None, false);
        facts.spec = spec.into();
    }
    Some(facts)
}

/// Reserves room for a seat on a node that was chosen before. `None` when the seat does not fit there any more, or the room is
/// nominated for other pods; `except` is the seat's own pod. `adopted`: an earlier leader reserved it, so nominated pods whose devices
/// are still in use do not count.
pub(super) fn reserve_at(
    placing: &mut Placing<'_>,
    facts: PodFacts,
    id: NodeId,
    (except, adopted): (PodId, bool),
) -> Option<PodId> {
    let pod = template_pod(facts);
    let priority = pod.facts.spec.priority;
    let judge = |placing: &mut Placing<'_>| {
        let mut slots = prepare(placing.view(), placing.terms.rules, &pod).ok()?;
        let node = placing.world.node(id).filter(|node| node.facts.is_some())?;
        let fits = judge(placing.view(), placing.terms.rules, &pod, (id, node), &mut slots).is_fit();
        fits.then(|| device_fit::plan(&slots, (id, node)).map(|plan| plan.held()))
    };
    let devices = if adopted {
        placing.with_nominated_placed(priority, except, judge)
    } else {
        placing.with_nominated(priority, except, judge)
    }?;
    Some(placing.world.reserve_place(pod.facts, id, devices))
}

/// Releases the room of one place; `true` when some was reserved.
pub(super) fn free_place(world: &mut World, place: &mut JobPlace) -> bool {
    let Some(id) = place.reservation.take() else { return false };
    world.cancel_place(id);
    true
}

/// Releases the room of these places and wakes what waits for room.
pub(super) fn free_places(world: &mut World, agenda: &mut Agenda, places: impl IntoIterator<Item = JobPlace>) {
    let mut freed = false;
    for id in places.into_iter().filter_map(|place| place.reservation) {
        world.cancel_place(id);
        freed = true;
    }
    if freed {
        agenda.room_freed();
    }
}
