//! One pod of a job: which node its policy prefers, and the room there.

use std::collections::BTreeMap;

use crate::contract::PodKey;
use crate::contract::tyjob::BasicPolicy;
use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::preemption::Preemption;
use crate::decide::scheduler::rules::plugins::device_fit;
use crate::decide::scheduler::rules::{Plugins, Reads, Text, View};
use crate::decide::scheduler::select::choose::{Choice, judge, prepare};
use crate::decide::scheduler::select::shape::PodShape;
use crate::decide::world::{NodeId, Place, Pod, PodFacts, PodId, World};

use super::TyJobs;
use super::placement::{Guests, JobFacts, JobSpec, KnownRooms, Metric, Rank, Seat, Weights, room_for};
use super::table::{Entry, Table, filters_read};

/// Stands for a pod that is judged and not there yet.
pub const NOBODY: PodId = PodId(u64::MAX);

/// What of its job a pod's rating depends on.
pub struct Company<'a> {
    /// Policy of the job.
    pub policy: BasicPolicy,
    /// Pods of the job by node.
    pub here: &'a BTreeMap<NodeId, i64>,
    /// The pods without a place, this one included.
    pub missing: &'a [Guests],
    /// What nodes say to pods of other parts than that of the one that is placed.
    pub others: &'a [Other],
}

/// What nodes say to one shape of pods.
pub struct Other {
    /// Parts whose pods have the shape.
    parts: Vec<usize>,
    /// To be kept for the next time, if it can be.
    table: Box<Table>,
    kept: bool,
}

/// Asks the nodes about pods of the other parts that have none, each shape once. `take` gives the table to begin with, one that
/// is kept where `true` is said.
pub fn ask_others(
    view: View<'_>,
    (plugins, weights): (&Plugins, &Weights),
    (job, spec): (&JobFacts, &JobSpec),
    (seat, placed): (&Seat, &Pod),
    missing: &[Guests],
    mut take: impl FnMut(&Pod, Metric, bool) -> Box<Table>,
) -> Vec<Other> {
    let own = PodShape::of(placed);
    let mut others: Vec<Other> = Vec::new();
    for ask in missing.iter().filter(|ask| ask.part != seat.part) {
        let Some(part) = spec.parts.get(ask.part) else { continue };
        let pod = imagined(part.pod_of(&job.job, seat));
        // A node that takes the one takes the other.
        if own.is_of(&pod) {
            continue;
        }
        if let Some(same) = others.iter_mut().find(|other| other.table.is_of(&pod)) {
            same.parts.push(ask.part);
            continue;
        }
        let metric = Metric::of(spec.basic, part.role);
        let Ok(mut slots) = prepare(view, plugins, &pod) else {
            // No node takes it.
            others.push(Other { parts: vec![ask.part], table: Table::new(&pod, metric), kept: false });
            continue;
        };
        let kept = filters_read(plugins, &pod, &slots) <= Reads::Node;
        let mut table = take(&pod, metric, kept);
        // One that cannot be asked about is found out when it is placed.
        if table.catch_up(view, plugins, &pod, &mut slots, weights).is_ok() {
            others.push(Other { parts: vec![ask.part], table, kept });
        }
    }
    others
}

impl Company<'_> {
    /// How the policy ranks a node that fits.
    pub fn rank(&self, world: &World, id: NodeId, metric: i64) -> Rank {
        let here = self.here.get(&id).copied().unwrap_or(0);
        Rank::of(self.policy, metric, here, || self.room(world, id))
    }

    fn room(&self, world: &World, id: NodeId) -> i64 {
        let Some(node) = world.node(id) else { return 0 };
        room_for(node, self.missing.iter().filter(|ask| self.is_welcome(ask, id)))
    }

    /// No rule keeps pods of this shape from the node.
    fn is_welcome(&self, ask: &Guests, id: NodeId) -> bool {
        let other = self.others.iter().find(|other| other.parts.contains(&ask.part));
        other.is_none_or(|other| other.table.rank(id).is_some())
    }

    /// The fitting node with the highest rank, the first by name among equals.
    pub fn best(&self, world: &World, table: &Table) -> Option<NodeId> {
        match self.policy {
            BasicPolicy::JobAffinity => {
                let known = self.here.iter().filter(|(_, count)| **count > 0).filter_map(|(id, _)| table.rank(*id));
                let near = self.first(world, known);
                near.or_else(|| self.roomiest(world, table))
            }
            BasicPolicy::JobAntiAffinity => {
                let here = |id: &NodeId| self.here.get(id).copied().unwrap_or(0);
                let lonely = table.fitting().find(|(_, _, id)| here(id) == 0);
                lonely.map(|(_, _, id)| *id).or_else(|| self.first(world, table.fitting()))
            }
            _ => table.fitting().next().map(|(_, _, id)| *id),
        }
    }

    fn first<'t>(&self, world: &World, entries: impl Iterator<Item = &'t Entry>) -> Option<NodeId> {
        let ranked = entries.map(|(metric, name, id)| (self.rank(world, *id, metric.0), std::cmp::Reverse(name), *id));
        ranked.max_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1))).map(|(_, _, id)| id)
    }

    /// No pod of the job is anywhere near: where most of them fit. Nodes come by metric and name, so the first of the roomiest
    /// is meant, and nobody beats one that takes all. Where devices have to be picked to know, [`KnownRooms::MOST`] nodes that
    /// differ are asked.
    fn roomiest(&self, world: &World, table: &Table) -> Option<NodeId> {
        let all: i64 = self.missing.iter().map(|ask| ask.count).sum();
        let mut rooms = KnownRooms::new(self.missing);
        let mut best: Option<(i64, NodeId)> = None;
        for (_, _, id) in table.fitting() {
            let Some(node) = world.node(*id) else { continue };
            let Some(room) = rooms.room(node, |ask| self.is_welcome(ask, *id)) else { continue };
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

/// A pod that is not there yet, to be judged.
pub fn imagined(facts: PodFacts) -> Pod {
    Pod::unplaced(NOBODY, facts)
}

impl TyJobs {
    /// Finds the node that the policy prefers for a seat and keeps its room there. The error says why there is none.
    pub(super) fn place_seat(
        &mut self,
        cx: &mut Context<'_>,
        job: &JobFacts,
        spec: &JobSpec,
        seat: &Seat,
        company: &Company<'_>,
    ) -> Result<(NodeId, PodId), String> {
        let Some(part) = spec.parts.get(seat.part) else { return Err("the job has no such part".to_owned()) };
        let facts = pod_to_place(cx.world, job, spec, seat).unwrap_or_else(|| part.pod_of(&job.job, seat));
        let pod = imagined(facts);
        let view = View { world: &*cx.world, now: cx.now.mono };
        cx.stats.attempts += 1;
        let mut slots = prepare(view, cx.rules, &pod).map_err(reason)?;
        let metric = Metric::of(spec.basic, part.role);
        let kept = filters_read(cx.rules, &pod, &slots) <= Reads::Node;
        let (tables, weights) = (&mut self.tables, &cx.config.jobs.weights);
        let mut take = |pod: &Pod, metric, kept: bool| {
            let known = if kept { tables.take(pod, &metric) } else { None };
            known.unwrap_or_else(|| Table::new(pod, metric))
        };
        let settings = (cx.rules, weights);
        let others = ask_others(view, settings, (job, spec), (seat, &pod), company.missing, &mut take);
        let company = Company { policy: company.policy, here: company.here, missing: company.missing, others: &others };
        let mut table = take(&pod, metric, kept);
        let asked = table.catch_up(view, cx.rules, &pod, &mut slots, weights);
        let found = asked.map_err(Text::into_owned).and_then(|asked| {
            cx.stats.judged += asked.len() as u64;
            let best = company.best(cx.world, &table);
            best.map(|id| (id, asked.binary_search(&id).is_ok())).ok_or_else(|| table.diagnosis().message())
        });
        for other in others.into_iter().filter(|other| other.kept) {
            self.tables.keep(other.table);
        }
        if kept {
            self.tables.keep(table);
        }
        let (id, fresh) = found?;
        let Some(node) = cx.world.node(id) else { return Err("the node is gone".to_owned()) };
        if !fresh {
            // The verdict stands; this is for what filters leave in the slots about the chosen node.
            judge(view, cx.rules, &pod, (id, node), &mut slots);
        }
        let devices = device_fit::plan(&slots, (id, node)).map(|plan| plan.held());
        let facts = pod.facts;
        Ok((id, cx.world.reserve_place(facts, id, devices)))
    }
}

/// Why a pod fits nowhere, before any node was asked.
pub fn reason(end: Choice) -> String {
    match end {
        Choice::Nowhere(diagnosis) => diagnosis.message(),
        Choice::WaitUntil(_, refusal) => refusal.text.into_owned(),
        Choice::Fault(text) => text.into_owned(),
        Choice::Node(..) => String::new(),
    }
}

/// What is to be placed for a seat: the pod that waits for it, which admission may have changed, or else the template's.
pub(super) fn pod_to_place(world: &World, job: &JobFacts, spec: &JobSpec, seat: &Seat) -> Option<PodFacts> {
    let mut facts = spec.parts.get(seat.part)?.pod_of(&job.job, seat);
    let made = world.pod_by_key(&PodKey::new(&job.job.key.namespace, &seat.pod));
    let made = made.filter(|pod| pod.place == Place::Waiting && pod.facts.handoff.deleting.is_none());
    let claim = |pod: &Pod| pod.facts.spec.job.as_ref().map(|claim| (claim.uid.clone(), claim.attempt));
    if let Some(made) = made.filter(|pod| claim(pod) == Some((job.job.uid.clone(), Some(job.attempt)))) {
        // Its identity stays the template's, so that the job's pods are counted once each.
        facts.handoff.containers = made.facts.handoff.containers.clone();
        let mut asked = (*made.facts.spec).clone();
        (asked.job, asked.gang, asked.nominated, asked.refused) = (None, None, None, false);
        facts.spec = asked.into();
    }
    Some(facts)
}

/// Reserves room for a seat on a node that was chosen before. `None` when the seat does not fit there any more, or the room is
/// made for other pods; `except` is the seat's own pod. `again`: an earlier leader kept it there, beside the room of pods that
/// still wait for others to leave.
pub(super) fn reserve_at(
    cx: &mut Context<'_>,
    facts: PodFacts,
    id: NodeId,
    (except, again): (PodId, bool),
) -> Option<PodId> {
    let pod = imagined(facts);
    let priority = pod.facts.spec.priority;
    let judge = |cx: &mut Context<'_>| {
        let mut slots = prepare(cx.view(), cx.rules, &pod).ok()?;
        let node = cx.world.node(id).filter(|node| node.facts.is_some())?;
        let fits = judge(cx.view(), cx.rules, &pod, (id, node), &mut slots).is_fit();
        fits.then(|| device_fit::plan(&slots, (id, node)).map(|plan| plan.held()))
    };
    let devices = if again {
        Preemption::with_nominated_placed(cx, priority, except, judge)
    } else {
        Preemption::with_nominated(cx, priority, except, judge)
    }?;
    Some(cx.world.reserve_place(pod.facts, id, devices))
}
