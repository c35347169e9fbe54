//! The round over all waiting jobs, in their order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::core::agenda::{Agenda, NEW_POD, Scene};
use crate::core::context::Context;
use crate::core::queue::{Item, QueueState};
use crate::core::rules::Queued;
use crate::core::rules::plugins::inter_pod_affinity::keep_apart;
use crate::core::select::free::percent;
use crate::core::select::index::Index;
use crate::core::timers::Timer;
use crate::devices::PodDeviceRequest;
use crate::world::devices::request_of;
use crate::world::spec::HostPort;
use crate::world::{Confinement, DeviceTotals, Node, NodeId, Pod, PodId, Resources, Stock, Wake, World};
use baton_contract::tyjob::{BasicPolicy, JobQueuePolicy, ScheduleState, WorkerEnd};
use baton_contract::{ConditionReason, PodKey, key};

use super::allowance::present;
use super::gather::{JobAsk, JobAttempt, asked};
use super::place::{JobContext, leader_created, template_pod};
use super::placement::{
    Folded, GPU_PERCENT, GpuSize, Guests, JobClass, JobFacts, JobPart, JobSpec, NodeOffer, PartDemand, PlacedPods,
    Ranked, Seat, Share, dominant_share, is_plain, order, unfit, verdict,
};
use super::start_limit::PodProgress;
use super::{JobPlace, JobRecord, JobRound, TyJobs};

impl TyJobs {
    /// A change of the cluster may let a refused job fit.
    pub fn room_changed(&mut self, scene: Scene<'_>, agenda: &mut Agenda, wake: Wake) {
        if wake.is_none() || self.records.is_empty() {
            return;
        }
        self.placeable_changed = true;
        if wake.meets(Wake::NODE) {
            let unfit = self.records.iter_mut().filter(|(_, record)| record.judged.class == JobClass::Unfit);
            let unfit: Vec<PodKey> = unfit
                .map(|(key, record)| {
                    record.judged.nodes_changed = true;
                    key.clone()
                })
                .collect();
            self.changed.extend(unfit);
        }
        if agenda.queue.state(Item::Jobs).is_some() {
            self.schedule_round(scene, agenda);
        }
    }

    /// A round begins, or begins again: a job that was tried already may fit now, and goes before the others.
    pub(super) fn schedule_round(&mut self, scene: Scene<'_>, agenda: &mut Agenda) {
        self.drop_round();
        if !matches!(agenda.queue.state(Item::Jobs), Some(QueueState::Active | QueueState::Taken)) {
            self.queue_next(scene, agenda, scene.terms.now.mono);
        }
    }

    /// The next round begins at its first job. Those that this one has not tried are still to be tried.
    pub(super) fn drop_round(&mut self) {
        self.placeable_changed |= self.round.take().is_some_and(|round| round.begun && !round.rest.is_empty());
    }

    /// Gives a queued round that begins the place of its first job.
    pub fn rekey_round(&mut self, scene: Scene<'_>, agenda: &mut Agenda) {
        if self.round.is_none() && agenda.queue.state(Item::Jobs) == Some(&QueueState::Active) {
            self.queue_next(scene, agenda, scene.terms.now.mono);
        }
    }

    /// Queues the round for the time `at`, in the place of the job that is tried next: it goes before and behind pods and groups as a pod
    /// of its priority and age does.
    fn queue_next(&mut self, scene: Scene<'_>, agenda: &mut Agenda, at: Duration) {
        let round = self.next_round(scene.world);
        let Some((key, job)) = round.rest.front().and_then(|key| Some((key, scene.world.job(key)?))) else {
            return agenda.queue.remove(Item::Jobs);
        };
        let queued = Queued {
            priority: job.spec.as_ref().map_or(0, JobSpec::pod_priority),
            sub_priority: 0,
            created: job.created,
            class: 0,
            id: key.to_string().into(),
        };
        self.round = Some(round);
        agenda.queue.add(Item::Jobs, &queued, scene.terms.rules.queue_sort(), scene.terms.now.mono);
        if at > scene.terms.now.mono {
            agenda.queue.wait_until(Item::Jobs, at);
        }
    }

    fn next_round(&mut self, world: &World) -> JobRound {
        let begun = self.round.take();
        begun.unwrap_or_else(|| JobRound { rest: self.in_order(world).into(), begun: false })
    }

    /// Tries the next waiting job. A round tries every one once, if something has changed since the last round.
    pub fn round(&mut self, cx: &mut Context<'_>) {
        self.reconcile(cx);
        cx.agenda.queue.remove(Item::Jobs);
        let mut round = self.next_round(cx.world);
        if !round.begun {
            round.begun = true;
            if self.placeable_changed || self.journal_mark != Some(cx.world.journal().mark()) {
                cx.agenda.stats.jobs.rounds += 1;
            } else {
                round.rest.clear();
            }
            self.allowances.clear();
            self.placeable_changed = false;
        }
        match round.rest.pop_front() {
            Some(key) if !self.is_out_of_reach(cx.world, cx.index, &key) => self.try_job(cx, &key),
            // The next one that is in reach may stand behind other pods and groups.
            _ => while round.rest.pop_front_if(|key| self.is_out_of_reach(cx.world, cx.index, key)).is_some() {},
        }
        if self.placeable_changed {
            // A job has released places: jobs that were tried before it may fit there.
            return self.schedule_round(cx.terms.scene(cx.world), cx.agenda);
        }
        if !round.rest.is_empty() {
            self.round = Some(round);
            return self.queue_next(cx.terms.scene(cx.world), cx.agenda, cx.terms.now.mono);
        }
        self.fail_unfit(cx.terms.scene(cx.world), cx.agenda);
        self.journal_mark = Some(cx.world.journal().mark());
        self.queue_next(cx.terms.scene(cx.world), cx.agenda, cx.terms.now.mono + cx.terms.config.jobs.period);
    }

    /// Waiting jobs in the order in which they are tried: by the priority of their pods, as pods and groups go, then in their own.
    pub fn in_order(&self, world: &World) -> Vec<PodKey> {
        order(self.ranked(world)).into_iter().map(|job| job.key).collect()
    }

    /// Waiting jobs with what their order depends on.
    fn ranked(&self, world: &World) -> Vec<Ranked> {
        let waiting = || {
            let waiting = self.records.iter().filter(|(_, record)| record.judged.class == JobClass::Waiting);
            waiting.filter_map(|(key, _)| world.job(key).map(|job| (key, job)))
        };
        let fair = |job: &JobFacts| job.spec.as_ref().is_ok_and(|spec| spec.queue == JobQueuePolicy::Drf);
        // Only jobs of policy DRF are ordered by their share.
        let (total, size) = if waiting().any(|(_, job)| fair(job)) { cluster_total(world) } else { Default::default() };
        let ranked = waiting().filter_map(|(key, job)| {
            let spec = job.spec.as_ref().ok()?;
            let share = if fair(job) { dominant_share(&demand_of(spec, size), &total).0 } else { Share::NONE };
            let (priority, created, queue) = (spec.priority, job.created, spec.queue);
            let pod_priority = spec.pod_priority();
            Some(Ranked { key: key.clone(), pod_priority, priority, created, queue, share })
        });
        ranked.collect()
    }

    /// Fewer GPUs are free in all than a job needs at least that has found no place before.
    fn is_out_of_reach(&self, world: &World, index: &mut Index, key: &PodKey) -> bool {
        let (Some(job), Some(record)) = (world.job(key), self.records.get(key)) else { return false };
        let Ok(spec) = &job.spec else { return false };
        let is_known = record.state == Some(ScheduleState::Unscheduled) && record.places.is_empty();
        if !is_known || record.judged.unfit.is_some() || leader_created(world, job) {
            return false;
        }
        let of = |part: &JobPart| percent(&part.pod.spec.requests);
        let needed = if spec.basic == BasicPolicy::Gang { spec.workers() } else { spec.min_workers };
        let worker = spec.parts.iter().skip(1).map(of).min().unwrap_or(0);
        let least = spec.parts.first().map_or(0, of).saturating_add(needed.max(0).saturating_mul(worker));
        index.free_gpus(world) < least
    }

    /// Places the pods of a job that have no place, and judges whether the result is kept.
    fn try_job(&mut self, cx: &mut Context<'_>, key: &PodKey) {
        let Some(job) = cx.world.job(key).cloned() else { return };
        let (Ok(spec), Some(record)) = (&job.spec, self.records.get(key)) else { return };
        let open = job.open_seats();
        let missing: Vec<Seat> = open.iter().filter(|seat| !record.places.contains_key(&seat.pod)).cloned().collect();
        let here = pods_by_node(cx.world, &job, Some(record));
        let namespace = &key.namespace;
        let known = self.allowances.get(namespace).cloned();
        let allowance = known.unwrap_or_else(|| self.allowance(cx.world, namespace, cx.terms.now.wall));
        let ask = JobAsk { job: &job, spec, missing: &missing, here: &here, allowance: &allowance };
        let found = self.place_gathered(cx, &ask);
        cx.earmarks.close(cx.world);
        if self.settle_job(cx, key, &job, found.taken, found.refusal) {
            self.allowances.insert(namespace.clone(), found.allowance);
        } else {
            // The places that the job had before are given back, too.
            self.allowances.remove(namespace);
        }
    }

    /// Reserves places for the missing pods of a job, as many as it finds. What is kept for less stays open.
    pub(super) fn place_missing(
        &mut self,
        cx: &mut Context<'_>,
        ask: &JobAsk<'_>,
        within: Option<&Confinement>,
    ) -> JobAttempt {
        let JobAsk { job, spec, missing, .. } = *ask;
        let (mut here, mut allowance) = (ask.here.clone(), ask.allowance.clone());
        let (started, namespace) = (leader_created(cx.world, job), &job.job.key.namespace);
        let mut counts = missing_by_part(spec, missing);
        let mut taken: Vec<(Box<str>, NodeId, PodId)> = Vec::new();
        // Parts for whose pods no node has room, and parts for whose pods that are not there yet the quotas leave none.
        let (mut failed, mut beyond): (BTreeSet<usize>, BTreeSet<usize>) = Default::default();
        let mut refusal: Option<String> = None;
        let mut over = false;
        let charges: Vec<_> = spec.parts.iter().map(|part| allowance.charge(cx.world, namespace, part)).collect();
        // Nominated room is closed to pods of the same or a lower priority: pods of one priority are placed together.
        let priority = |seat: &Seat| spec.parts.get(seat.part).map(|part| part.pod.spec.priority);
        for seats in missing.chunk_by(|one, other| priority(one) == priority(other)) {
            let Some(priority) = seats.first().and_then(priority).filter(|_| !over) else { continue };
            cx.earmarks.open_for(cx.terms, cx.world, &Item::Jobs, priority, None);
            cx.placing().with_nominated(priority, NEW_POD, |placing| {
                for seat in seats {
                    let Some(whole) = charges.get(seat.part) else { continue };
                    // Quotas count what a pod that is there already asks for.
                    let beside = present(placing.world, job, &seat.pod, placing.terms.now.wall)
                        .map(|present| whole.beside(present));
                    if failed.contains(&seat.part) || beside.is_none() && beyond.contains(&seat.part) {
                        continue;
                    }
                    let unplaced = if spec.basic == BasicPolicy::JobAffinity {
                        unplaced_guests(placing.world, (job, spec), seat.part, &counts)
                    } else {
                        Vec::new()
                    };
                    let context =
                        JobContext { policy: spec.basic, here: &here, missing: &unplaced, within, others: &[] };
                    let charge = beside.as_ref().unwrap_or(whole);
                    let found = match allowance.excess(charge) {
                        Some(excess) => {
                            if beside.is_none() {
                                beyond.insert(seat.part);
                            }
                            Err(excess)
                        }
                        None => self.place_seat(placing, job, spec, seat, &context).inspect_err(|_| {
                            failed.insert(seat.part);
                        }),
                    };
                    match found {
                        Ok((node, reservation)) => {
                            allowance.reserve(charge, 1);
                            *here.entry(node).or_insert(0) += 1;
                            taken.push((seat.pod.clone(), node, reservation));
                            if let Some(count) = counts.get_mut(seat.part) {
                                *count -= 1;
                            }
                        }
                        Err(why) => {
                            refusal.get_or_insert_with(|| format!("{}: {why}", seat.pod));
                            if !started && (seat.is_leader() || spec.basic == BasicPolicy::Gang) {
                                over = true;
                                break;
                            }
                        }
                    }
                }
            });
        }
        JobAttempt { taken, refusal, allowance }
    }

    /// Keeps the places that an attempt found or releases all places of the job, and reports the result. `true` when they are kept.
    fn settle_job(
        &mut self,
        cx: &mut Context<'_>,
        key: &PodKey,
        job: &JobFacts,
        taken: Vec<(Box<str>, NodeId, PodId)>,
        refusal: Option<String>,
    ) -> bool {
        let started = leader_created(cx.world, job);
        let (Ok(spec), Some(record)) = (&job.spec, self.records.get_mut(key)) else { return false };
        let news = !taken.is_empty();
        let found: BTreeSet<&str> = taken.iter().map(|(pod, ..)| &**pod).collect();
        let placed = |seat: &Seat| record.places.contains_key(&seat.pod) || found.contains(&*seat.pod);
        let tally = tally(job, spec, placed);
        let judged = verdict(spec.basic, spec.min_workers, started, tally);
        let refusal = refusal.map(|refusal| format!("; {refusal}")).unwrap_or_default();
        if judged.keep {
            record.judged.unfit = None;
            for (pod, node, reservation) in taken {
                let node = cx.world.node(node).map(|node| node.name.clone()).unwrap_or_default();
                record.start.note(&pod, PodProgress::Awaited, (cx.terms.now.mono, cx.terms.now.mono));
                record.places.insert(pod, JobPlace { node, reservation: Some(reservation), since: cx.terms.now.mono });
            }
            let places = &record.places;
            record.start.keep(|pod| places.contains_key(pod));
            let (reason, text) = placed_text(judged.state, tally, spec, &refusal);
            if news {
                cx.agenda.stats.jobs.placed += 1;
                // Places found on the same nodes change no status, so no event would bring a review: a timer does.
                cx.agenda
                    .timers
                    .set(cx.terms.now.mono + cx.terms.config.jobs.reservation_timeout, Timer::TyJob(key.clone()));
                self.enqueue_pods(cx.world, cx.agenda, key);
            }
            self.report(cx.terms.scene(cx.world), cx.agenda, key, judged.state, reason, text);
            return true;
        }
        let needed = if spec.basic == BasicPolicy::Gang { spec.workers() } else { spec.min_workers };
        let text = unplaced_text(tally, spec, &refusal);
        // What this attempt reserved was never visible and wakes nothing; releasing earlier places does.
        taken.into_iter().for_each(|(.., reservation)| _ = cx.world.cancel_place(reservation));
        self.release_places(cx.world, cx.agenda, key);
        let why = never_fits(cx.world, spec, job, needed);
        let Some(record) = self.records.get_mut(key) else { return false };
        record.judged.unfit =
            why.map(|why| (record.judged.unfit.as_ref().map_or(cx.terms.now.mono, |(since, _)| *since), why));
        self.report(
            cx.terms.scene(cx.world),
            cx.agenda,
            key,
            ScheduleState::Unscheduled,
            ConditionReason::Unschedulable,
            text,
        );
        false
    }

    /// Fails the jobs that fitted nowhere for the whole grace period.
    fn fail_unfit(&mut self, scene: Scene<'_>, agenda: &mut Agenda) {
        let grace = scene.terms.config.jobs.unfit_grace;
        let due = self.records.iter().filter_map(|(key, record)| {
            let (since, why) = record.judged.unfit.as_ref().filter(|_| record.judged.class == JobClass::Waiting)?;
            (scene.terms.now.mono >= *since + grace).then(|| (key.clone(), why.clone()))
        });
        for (key, why) in due.collect::<Vec<_>>() {
            if let Some(record) = self.records.get_mut(&key) {
                (record.judged.unfit, record.judged.nodes_changed) = (None, false);
                record.judged.class = JobClass::Unfit;
            }
            self.report(scene, agenda, &key, ScheduleState::ScheduledFailed, ConditionReason::Unfit, why);
        }
    }
}

/// The sum of the requests of all pods of a job, on GPUs of this size.
pub fn demand_of(spec: &JobSpec, size: GpuSize) -> Folded {
    let mut sum = Folded::default();
    for part in &spec.parts {
        sum.add(&Folded::wanted_by(&part.pod.spec.requests, i64::from(part.counts.max(0)), size), 1);
    }
    sum
}

/// Counts the pods of a job with and without a place.
pub(super) fn tally(job: &JobFacts, spec: &JobSpec, placed: impl Fn(&Seat) -> bool) -> PlacedPods {
    let mut tally = PlacedPods { workers: done_workers(job), ..PlacedPods::default() };
    for seat in spec.seats(&job.job.key.name).filter(|seat| !job.ended.contains_key(&seat.pod)) {
        match (placed(&seat), seat.is_leader()) {
            (true, true) => tally.leader = true,
            (true, false) => tally.workers += 1,
            (false, _) => tally.missing += 1,
        }
    }
    tally
}

/// Number of the job's pods with a place, by node. A pod that has ended does not attract or repel others.
pub fn pods_by_node(world: &World, job: &JobFacts, record: Option<&JobRecord>) -> BTreeMap<NodeId, i64> {
    let mut by_node = BTreeMap::new();
    let places = record.into_iter().flat_map(|record| &record.places);
    let places = places.filter(|(pod, _)| !job.ended.contains_key(*pod));
    for node in places.filter_map(|(_, place)| world.node_id(&place.node)) {
        *by_node.entry(node).or_insert(0) += 1;
    }
    by_node
}

/// Number of workers that have succeeded.
fn done_workers(job: &JobFacts) -> i64 {
    job.ended.values().filter(|end| **end == WorkerEnd::Succeeded).count() as i64
}

/// Number of pods without a place, by part.
pub fn missing_by_part(spec: &JobSpec, missing: &[Seat]) -> Vec<i64> {
    let mut counts = vec![0; spec.parts.len()];
    for seat in missing {
        if let Some(count) = counts.get_mut(seat.part) {
            *count += 1;
        }
    }
    counts
}

/// The pods without a place, those of part `first` before the others.
pub fn unplaced_guests(world: &World, (job, spec): (&JobFacts, &JobSpec), first: usize, counts: &[i64]) -> Vec<Guests> {
    let parts = || spec.parts.iter().zip(counts).enumerate().filter(|(_, (_, count))| **count > 0);
    let imagine = |at: usize, part: &JobPart| {
        let seat = Seat { pod: part.name.clone(), part: at, index: 0 };
        template_pod(part.pod_of(&job.job, &seat))
    };
    let pods: Vec<(usize, Pod, i64)> = parts().map(|(at, (part, count))| (at, imagine(at, part), *count)).collect();
    let requests: Vec<Option<PodDeviceRequest>> = pods.iter().map(|(_, pod, _)| request_of(pod).ok()).collect();
    // Percents and picked devices cannot be counted side by side: if one request is not plain, devices are picked for all.
    let by_name = requests.iter().flatten().any(|request| !is_plain(request));
    let mut all: Vec<Guests> = Vec::with_capacity(pods.len());
    for ((part, pod, count), request) in pods.iter().zip(requests) {
        let apart = pods.iter().flat_map(|(other, theirs, _)| {
            let ports =
                ports_clash(&pod.facts.spec.host_ports, &theirs.facts.spec.host_ports).then_some((*other, None));
            let keys = keep_apart(pod, theirs, world).into_iter().map(|key| (*other, Some(key.into())));
            ports.into_iter().chain(keys)
        });
        all.push(Guests {
            part: *part,
            requests: pod.facts.spec.requests.clone(),
            devices: request.filter(|request| by_name && !request.is_empty()),
            count: *count,
            apart: apart.collect(),
        });
    }
    all.sort_by_key(|guests| guests.part != first);
    all
}

fn ports_clash(ours: &[HostPort], theirs: &[HostPort]) -> bool {
    ours.iter().any(|port| theirs.iter().any(|other| port.conflicts(other)))
}

/// What is reported of a job that keeps its places.
fn placed_text(state: ScheduleState, tally: PlacedPods, spec: &JobSpec, refusal: &str) -> (ConditionReason, String) {
    let (placed, total) = (tally.workers, spec.workers());
    match state {
        ScheduleState::ScheduledSucceed => {
            (ConditionReason::Placed, format!("the leader and {total} workers have a place"))
        }
        _ if tally.leader => {
            let text = format!("the leader and {placed} of {total} workers have a place{refusal}");
            (ConditionReason::PlacedPartly, text)
        }
        _ => (ConditionReason::PlacedPartly, format!("{placed} of {total} workers have a place{refusal}")),
    }
}

/// What is reported of a job that gets no places.
fn unplaced_text(tally: PlacedPods, spec: &JobSpec, refusal: &str) -> String {
    let (placed, total, needed) = (tally.workers, spec.workers(), spec.min_workers);
    match (tally.leader, spec.basic) {
        (false, _) => format!("the leader has no place{refusal}"),
        (true, BasicPolicy::Gang) => {
            format!("{placed} of {total} workers would have a place, all are needed{refusal}")
        }
        (true, _) => format!("{placed} of {total} workers would have a place, {needed} are needed{refusal}"),
    }
}

/// Why the job cannot be placed even on empty nodes, of one domain where it must be gathered.
fn never_fits(world: &World, spec: &JobSpec, job: &JobFacts, needed: i64) -> Option<String> {
    let done = done_workers(job);
    let demand = |at: usize| {
        let part = spec.parts.get(at)?;
        let amounts = Folded::wanted(&part.pod.spec.requests);
        Some(PartDemand { name: part.name.clone(), amounts, counts: i64::from(part.counts) })
    };
    let workers: Vec<PartDemand> = (1..spec.parts.len()).filter_map(demand).collect();
    let (leader, needed, all) = (demand(0)?, (needed - done).max(0), spec.basic == BasicPolicy::Gang && done == 0);
    let on = |within: Option<&Confinement>| {
        unfit(&leader, &workers, needed, all, &offers(world.nodes_in(within).map(|(_, node)| node)))
    };
    let labels = asked(world, spec).map(|topology| topology.required).unwrap_or_default();
    if labels.is_empty() {
        return on(None);
    }
    let domains = world.domains(std::slice::from_ref(&labels), |_| (0, 0));
    let refused: Option<Vec<String>> = domains.iter().flatten().map(|(domain, _)| on(Some(domain))).collect();
    // A label may be set later: without a domain the job waits.
    let why = refused?.into_iter().next()?;
    Some(format!("the job must be gathered in one {}: {why}", labels.join(" and ")))
}

/// What these nodes offer, cordoned and NotReady ones included. A listed device counts even while its node daemon is away.
fn offers<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<NodeOffer> {
    let mut kinds: BTreeMap<(&Resources, i64, Option<DeviceTotals>), i64> = BTreeMap::new();
    for node in nodes {
        let Some(facts) = &node.facts else { continue };
        let listed = node.stock.as_ref().map(Stock::listed);
        *kinds.entry((&*facts.allocatable, facts.max_pods, listed)).or_insert(0) += 1;
    }
    let offers = kinds.into_iter().map(|((allocatable, pods, listed), nodes)| {
        let mut amounts = Folded::offered(allocatable);
        match listed {
            Some(DeviceTotals { gpu_percent, gpu_memory, nic_percent, migs }) => {
                amounts.raise(GPU_PERCENT, gpu_percent);
                amounts.raise(key::GPU_MEMORY, gpu_memory);
                amounts.raise(key::RDMA, nic_percent);
                migs.into_iter().for_each(|(name, count)| amounts.raise(&name, count));
            }
            // The kubelet does not count GPU memory: until the node's devices are listed, it may offer any amount.
            None if amounts.get(GPU_PERCENT) > 0 => amounts.raise(key::GPU_MEMORY, i64::MAX),
            None => {}
        }
        NodeOffer { amounts, pods, nodes }
    });
    offers.collect()
}

/// The sum of what Ready nodes that are not cordoned offer, and the size of their GPUs: the kubelet counts no bytes of GPU memory.
pub fn cluster_total(world: &World) -> (Folded, GpuSize) {
    let (mut total, mut size) = (Folded::default(), GpuSize::default());
    for (_, node) in world.nodes() {
        let Some(facts) = node.facts.as_ref().filter(|facts| facts.takes_pods() && !facts.not_ready) else {
            continue;
        };
        total.add(&Folded::offered(&facts.allocatable), 1);
        if let Some(stock) = &node.stock {
            size.add(&stock.listed());
        }
    }
    (total, size)
}
