//! The scheduler: one value that routes events, time and results to the owners of its state, and returns the effects that they
//! decide. It decides nothing itself.
//!
//! | Owner | Owns |
//! |---|---|
//! | `World` | facts from watches, and accounts: which pod holds what on which node |
//! | `Queue` | single pods, groups of gangs and the round of TYJobs that wait to be tried |
//! | `Index` | verdicts on nodes, kept by pod shape |
//! | `Timers` | what happens at a later time |
//! | `Reporter` | conditions and events of pods that wait |
//! | `Reservations` | room of pods that have a node and are not being bound yet |
//! | `Preemption` | nominated pods and their victims |
//! | `Earmarks` | nodes that are kept for a group or pod that has waited long |
//! | `OtherSchedulers` | pods that name another scheduler and want something of ours |
//! | `Binder` | bind attempts, lock queues, releases of locks, binds for other schedulers |
//! | `Gangs` | progress of groups of gangs, commits |
//! | `TyJobs` | records and places of TYJobs |
//!
//! The first eight are the `LentOwners`, lent to every call in a `Context`; queue and timers are part of its `Agenda`. `Binder`,
//! `Gangs` and `TyJobs` stand above them and never see each other: an owner does not call back. What one of them means for another is a
//! `Step`, which `Scheduler::route` performs when the owner has returned. Steps run depth first: the steps that a step leaves run before
//! its next sibling, so that effects come in the order of the calls that steps stand for. Then come the next timer, pod or event.

mod schedule_one;
mod served;

pub use crate::bind::{BindAnswer, BindAttempt, BindVerdict, RequestId};
pub use crate::core::{
    BindResult, Config, DeviceFits, Effect, EffectResult, Effects, LockResult, Moment, NodeSearch, NodeVictims,
    OTHER_SCHEDULER_AFTER, PodGroupWrite, PodShape, Stats, Ticket, controller_of, other_scheduler_text,
    wants_of_another,
};

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::gang::{Gangs, Route};
use crate::tyjob::TyJobs;
use crate::world::gangs::{NamedBy, Warning, read_sub_priority};
use crate::world::{Changes, NodeId, Place, Pod, PodFacts, PodId, Wake, World, WorldEvent};
use baton_contract::gang::key;
use baton_contract::{ConditionReason, EventReason, PodRef, PodUid};

use self::schedule_one::schedule_one;
use crate::bind::{Binder, Cancel};
use crate::core::agenda::{BindEvent, NEW_POD, Scene, Step, Terms};
use crate::core::context::{Context, LentOwners};
use crate::core::earmarks::Earmarks;
use crate::core::preemption::Preemption;
use crate::core::queue::{Item, Queue};
use crate::core::reporter::{Reporter, WaitsFor};
use crate::core::reservations::Reservations;
use crate::core::rules::plugins::{gpu_patience, image_locality};
use crate::core::rules::{Plugins, Queued};
use crate::core::timers::Timer;
use crate::core::{OtherSchedulers, extend};

/// Agents are checked for staleness, and cordons for their end, this often: each check costs a step per node.
const AGE: Duration = Duration::from_millis(500);

/// A call that has cost so much, in [`Stats::work`], decides no more: about a tenth of a second, in which no event is applied.
const RUN: u64 = 20_000;

/// The owners of all scheduling state. Each has its own file and private fields.
pub struct Scheduler {
    config: Config,
    rules: Plugins,
    lent: LentOwners,
    other_schedulers: OtherSchedulers,
    binder: Binder,
    gangs: Gangs,
    tyjobs: TyJobs,
    leading: bool,
    /// When agents and cordons are checked next.
    age_at: Duration,
}

impl Scheduler {
    /// A scheduler that follows until [`Scheduler::lead`] is called.
    pub fn new(mut config: Config, rules: Plugins) -> Self {
        config.world.learns = rules.enabled().score.iter().any(|(rule, _)| rule.name() == gpu_patience::NAME);
        config.world.images = rules.enabled().score.iter().any(|(rule, _)| rule.name() == image_locality::NAME);
        Self {
            lent: LentOwners::new(&config),
            rules,
            config,
            other_schedulers: OtherSchedulers::default(),
            binder: Binder::default(),
            gangs: Gangs::default(),
            tyjobs: TyJobs::default(),
            leading: false,
            age_at: Duration::ZERO,
        }
    }

    /// What explanations read, as it is now: to be asked while the scheduler itself goes on. Nodes and pods are shared with it until it
    /// changes them.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            config: self.config.clone(),
            rules: self.rules.clone(),
            lent: self.lent.snapshot(),
            other_schedulers: OtherSchedulers::default(),
            binder: self.binder.clone(),
            gangs: self.gangs.clone(),
            tyjobs: self.tyjobs.snapshot(),
            leading: self.leading,
            age_at: Duration::ZERO,
        }
    }

    /// Settings.
    pub const fn config(&self) -> &Config {
        &self.config
    }
    /// Enabled rules.
    pub const fn rules(&self) -> &Plugins {
        &self.rules
    }
    /// Facts from watches, and accounts.
    pub const fn world(&self) -> &World {
        &self.lent.world
    }
    /// Items that wait to be tried.
    pub const fn queue(&self) -> &Queue {
        &self.lent.agenda.queue
    }
    /// What was reported of pods that wait.
    pub const fn reporter(&self) -> &Reporter {
        &self.lent.reporter
    }
    /// Room of pods that are not being bound yet.
    pub const fn reservations(&self) -> &Reservations {
        &self.lent.reservations
    }
    /// Nominated pods and their victims.
    pub const fn preemption(&self) -> &Preemption {
        &self.lent.preemption
    }
    /// Nodes that are kept for a group or pod.
    pub const fn earmarks(&self) -> &Earmarks {
        &self.lent.earmarks
    }
    /// Pods that are being bound.
    pub const fn binder(&self) -> &Binder {
        &self.binder
    }
    /// Progress of groups of gangs.
    pub const fn gangs(&self) -> &Gangs {
        &self.gangs
    }
    /// Records of TYJobs.
    pub const fn tyjobs(&self) -> &TyJobs {
        &self.tyjobs
    }
    /// Counters.
    pub const fn stats(&self) -> Stats {
        self.lent.agenda.stats
    }
    /// `true` while effects are produced.
    pub const fn is_leading(&self) -> bool {
        self.leading
    }
    /// Waiting times of the groups that were satisfied since the last call.
    pub fn take_group_waits(&mut self) -> Vec<Duration> {
        self.gangs.take_waits()
    }
    /// Waiting times of the pods that were bound since the last call.
    pub fn take_pod_waits(&mut self) -> Vec<Duration> {
        self.binder.take_pod_waits()
    }
    /// Waiting times of the bind attempts that got their node's lock since the last call.
    pub fn take_lock_waits(&mut self) -> Vec<Duration> {
        self.binder.take_lock_waits()
    }

    /// What a decision would read.
    pub(crate) fn scene(&self, now: Moment) -> Scene<'_> {
        Terms { now, leading: self.leading, config: &self.config, rules: &self.rules }.scene(&self.lent.world)
    }

    fn split(&mut self, now: Moment) -> (Context<'_>, &mut Binder, &mut Gangs, &mut TyJobs, &mut OtherSchedulers) {
        self.lent.agenda.stats.work.begin();
        let terms = Terms { now, leading: self.leading, config: &self.config, rules: &self.rules };
        (self.lent.context(terms), &mut self.binder, &mut self.gangs, &mut self.tyjobs, &mut self.other_schedulers)
    }

    /// The requests to the cluster that a call has added.
    fn effects(&mut self) -> Effects {
        std::mem::take(&mut self.lent.agenda.effects)
    }

    /// Starts or stops leading. A scheduler that leads produces effects; start only with a synced world, since "not found" counts as
    /// proof. One that stops forgets every bind attempt; the next leader resumes them from the cluster.
    pub fn lead(&mut self, leading: bool, now: Moment) -> Effects {
        if leading == self.leading {
            return Effects::new();
        }
        self.leading = leading;
        let (mut cx, binder, gangs, tyjobs, others) = self.split(now);
        binder.clear(&mut cx.rooms());
        cx.reservations.clear(cx.terms, cx.world, cx.agenda);
        gangs.clear();
        tyjobs.clear(cx.world, cx.reservations, cx.agenda);
        cx.earmarks.clear(cx.world, cx.agenda);
        *cx.earmarks = Earmarks::default();
        // Items taken for bind attempts must not stay in the queue, and another leader may have written other conditions.
        cx.agenda.queue = Queue::new(cx.terms.config.queue);
        (cx.agenda.timers, cx.agenda.silent, *cx.reporter, *cx.preemption, *others) = Default::default();
        cx.agenda.steps.clear();
        if !leading {
            return self.effects();
        }
        cx.world.learn_again();
        // Before jobs reserve their places again: nominated room is closed to them.
        cx.preemption.adopt(cx.terms.scene(cx.world), cx.agenda);
        tyjobs.lead(&mut cx);
        self.route(now);
        let (mut cx, _, gangs, ..) = self.split(now);
        let all: Vec<PodId> = cx.world.pods().map(|pod| pod.id).collect();
        gangs.lead(&mut cx);
        self.route(now);
        for id in all {
            self.enqueue(id, now);
            let (cx, .., others) = self.split(now);
            others.observe(cx.terms, cx.world, cx.agenda, id);
        }
        let (mut cx, binder, ..) = self.split(now);
        binder.sweep_all(&mut cx);
        self.route(now);
        self.effects()
    }

    /// Applies an event of a watch.
    pub fn event(&mut self, event: WorldEvent, now: Moment) -> Effects {
        let spoke = match &event {
            WorldEvent::Agent { node, .. } if self.leading => Some(node.clone()),
            _ => None,
        };
        let changes = self.lent.world.apply(event, now.mono, now.wall);
        self.react(&changes, now);
        if self.leading {
            self.lent.agenda.report_late(&self.lent.world, &changes.served);
        }
        self.lent.agenda.effects.extend(spoke.iter().flat_map(|node| served::conditions(&self.lent.world, node)));
        self.reconcile(now);
        self.effects()
    }

    /// Fires due timers and tries up to [`Config::batch`] queued items; fewer where these cost much, the others at the next call.
    pub fn run(&mut self, now: Moment) -> Effects {
        self.step(now, self.config.batch)
    }

    /// Fires due timers only: the executor is behind with its effects.
    pub fn pass(&mut self, now: Moment) -> Effects {
        self.step(now, 0)
    }

    /// When [`Scheduler::run`] has something to do; zero means at once.
    pub fn next(&self) -> Option<Duration> {
        if !self.leading {
            return None;
        }
        [self.next_timer(), self.lent.agenda.queue.next()].into_iter().flatten().min()
    }

    /// When [`Scheduler::pass`] has something to do.
    pub fn next_timer(&self) -> Option<Duration> {
        self.lent.agenda.timers.next().filter(|_| self.leading)
    }

    fn step(&mut self, now: Moment, decisions: usize) -> Effects {
        if now.mono >= self.age_at {
            self.age_at = now.mono + AGE;
            let changes = self.lent.world.age(now.mono, now.wall);
            self.react(&changes, now);
        }
        if !self.leading {
            return self.effects();
        }
        while let Some(timer) = self.lent.agenda.timers.pop(now.mono) {
            self.fire(timer, now);
            self.route(now);
        }
        self.lent.agenda.queue.tick(now.mono);
        let until = self.lent.agenda.stats.work.done() + RUN;
        for _ in 0..decisions {
            if self.lent.agenda.stats.work.done() >= until {
                break;
            }
            // A released place is assigned again before the next decision.
            self.reconcile_jobs(now);
            let (mut cx, _, gangs, tyjobs, _) = self.split(now);
            tyjobs.rekey_round(cx.terms.scene(cx.world), cx.agenda);
            match cx.agenda.queue.pop() {
                Some(Item::Jobs) => tyjobs.round(&mut cx),
                Some(Item::Pod(id)) => schedule_one(&mut cx, gangs, tyjobs, id),
                Some(Item::Group(group)) => gangs.attempt_group(&mut cx, &group),
                None => break,
            }
            self.route(now);
            self.lent.world.count_decision();
        }
        self.reconcile(now);
        self.effects()
    }

    /// Applies the result of an effect.
    pub fn report(&mut self, report: EffectResult, now: Moment) -> Effects {
        if let EffectResult::PodRead { pod, result: Ok(Some(facts)) } = report {
            let (uid, deleting) = (facts.handoff.pod.uid.clone(), facts.handoff.deleting.is_some());
            let changes = self.lent.world.apply(WorldEvent::PodRead(facts), now.mono, now.wall);
            self.react(&changes, now);
            let (mut cx, binder, ..) = self.split(now);
            binder.read_done(&mut cx, &pod, Some((&uid, deleting)));
        } else {
            self.report_to_owner(report, now);
        }
        self.route(now);
        self.reconcile(now);
        self.effects()
    }

    fn report_to_owner(&mut self, report: EffectResult, now: Moment) {
        let (mut cx, binder, gangs, tyjobs, _) = self.split(now);
        match report {
            EffectResult::Lock { ticket, result } => binder.lock_answered(&mut cx, ticket, result),
            EffectResult::Bind { ticket, result } => binder.bind_answered(&mut cx, ticket, result),
            EffectResult::Release { node, old, result } => binder.release_answered(&mut cx, &node, &old, result),
            EffectResult::PodRead { pod, result: Err(_) } => binder.read_failed(cx.terms, cx.agenda, &pod),
            EffectResult::PodRead { pod, .. } => binder.read_done(&mut cx, &pod, None),
            EffectResult::JobWritten { job, result } => {
                tyjobs.written(cx.terms.scene(cx.world), cx.agenda, &job, result);
            }
            EffectResult::Tables(tables) => cx.world.rate_by(*tables),
            EffectResult::ConditionLost { pod } => {
                cx.reporter.condition_lost(cx.terms.scene(cx.world), cx.agenda, &pod);
            }
            EffectResult::NominationLost { pod } => {
                cx.preemption.nomination_lost(cx.terms.scene(cx.world), cx.agenda, &pod);
            }
            EffectResult::PodGroup { gang, result } => {
                gangs.pod_group_answered(cx.terms.scene(cx.world), cx.agenda, &gang, result.map(|stored| *stored));
            }
        }
    }

    fn fire(&mut self, timer: Timer, now: Moment) {
        let (mut cx, binder, gangs, tyjobs, others) = self.split(now);
        let cx = &mut cx;
        match timer {
            Timer::BindAttempt(id) => binder.resume(cx, id),
            Timer::Node(id) => {
                binder.sweep(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
                binder.advance(cx, id);
            }
            Timer::LockQueue(id) => binder.report_waits(cx.terms.scene(cx.world), cx.reporter, cx.agenda, id),
            Timer::Release(node, raw) => binder.release_again(cx.world, cx.agenda, node, &raw),
            Timer::BindRequest(id) => binder.request_due(cx, id),
            Timer::Sweep => binder.sweep_all(cx),
            Timer::Nomination(id) => cx.preemption.due(cx.terms.scene(cx.world), cx.agenda, id),
            Timer::WriteNomination(id) => cx.preemption.write_again(cx.world, cx.agenda, id),
            Timer::GroupWait(group) => gangs.wait_due(&mut cx.rooms(), &group),
            Timer::ReportGroup(group) => {
                gangs.report_group(cx.terms.scene(cx.world), cx.reservations, cx.reporter, cx.agenda, &group);
            }
            Timer::MarkTimedOut(group) => gangs.mark(cx.terms.scene(cx.world), cx.agenda, &group),
            Timer::PodGroups(group) => gangs.report_pod_groups(cx.terms.scene(cx.world), cx.agenda, &group),
            Timer::EvictMember(id) => gangs.evict_again(cx.terms.scene(cx.world), cx.agenda, id),
            Timer::Permit(id) => cx.agenda.steps.push(Step::Permit(id)),
            Timer::Earmark => cx.earmarks.check(cx.terms, cx.world, cx.agenda),
            Timer::OtherScheduler(id) => others.due(cx.terms, cx.world, cx.agenda, id),
            Timer::Report(id) if binder.has_left_queue(id) => cx.reporter.forget(id),
            Timer::Report(id) => cx.reporter.due(cx.terms.scene(cx.world), cx.agenda, id),
            Timer::TyJob(key) => tyjobs.due(cx, &key),
            Timer::Quotas(namespace) => tyjobs.quotas_due(cx, &namespace),
        }
    }

    /// Performs the steps that owners left, depth first: those that a step leaves run before its next sibling.
    fn route(&mut self, now: Moment) {
        for step in std::mem::take(&mut self.lent.agenda.steps) {
            self.perform(step, now);
            self.route(now);
        }
    }

    fn perform(&mut self, step: Step, now: Moment) {
        let (mut cx, binder, gangs, tyjobs, _) = self.split(now);
        let cx = &mut cx;
        match step {
            Step::Enqueue(id) => self.enqueue(id, now),
            Step::Retry(id) => {
                self.enqueue(id, now);
                let (cx, _, gangs, ..) = self.split(now);
                cx.agenda.queue.activate(id);
                gangs.member_changed(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
            }
            Step::Fail(id) => {
                self.enqueue(id, now);
                self.lent.agenda.queue.fail(id, now.mono);
            }
            Step::Permit(id) => {
                if cx.reservations.permit(cx.terms, cx.world, cx.agenda, id) {
                    binder.start(cx, id);
                }
            }
            Step::Report(id, reason, message) => {
                let waits = gangs.waits_for(cx.world, cx.reservations, id);
                cx.report(id, reason, message, waits);
            }
            Step::RoomFreed => tyjobs.room_changed(cx.terms.scene(cx.world), cx.agenda, Wake::POD_FREED),
            Step::RestateCommit(pods, committed) => binder.restate_commit(&pods, &committed),
            Step::Proceed(pods) => pods.into_iter().for_each(|id| binder.proceed(cx, id)),
            Step::Withdraw(pods) => pods.into_iter().for_each(|id| binder.take_back(cx, id)),
            Step::AfterAttempt(group) => gangs.after_attempt(cx, &group),
            Step::BindRefused(id) => gangs.bind_refused(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id),
            Step::HalfBound(node, id, raw) => {
                let free = cx.world.pod(id).is_some_and(|pod| {
                    let route = gangs.route(cx.world, cx.reservations, pod);
                    route == Route::Alone || gangs.is_rest(cx.world, cx.reservations, pod)
                });
                binder.resume_or_release(cx.terms.scene(cx.world), cx.reservations, cx.agenda, (node, &raw), id, free);
            }
            Step::Bind(BindEvent::Prepared(pod, commit)) => gangs.member_prepared(cx.world, cx.agenda, commit, pod),
            Step::Bind(BindEvent::Requested(pod, commit)) => gangs.member_requested(commit, pod),
            Step::Bind(BindEvent::Bound(pod, commit)) => gangs.member_bound(cx.world, cx.agenda, commit, pod),
            Step::Bind(BindEvent::Ended(pod, commit)) => {
                gangs.member_lost(&mut cx.rooms(), commit, pod);
            }
            Step::Bind(BindEvent::Failed { pod, commit, why, requested }) => {
                if let Some(commit) = commit {
                    gangs.member_failed(cx.terms.scene(cx.world), cx.agenda, commit, pod, &why);
                    gangs.member_lost(&mut cx.rooms(), commit, pod);
                    self.route(now);
                }
                self.enqueue(pod, now);
                let (cx, _, gangs, ..) = self.split(now);
                cx.agenda.queue.fail(pod, now.mono);
                gangs.bind_refused(cx.terms.scene(cx.world), cx.reservations, cx.agenda, pod);
                if !requested {
                    cx.agenda.warning(cx.world, pod, EventReason::FailedBinding, why.clone());
                    cx.agenda.steps.push(Step::Report(pod, ConditionReason::SchedulerError, why.into()));
                }
            }
        }
    }

    /// Lets gangs and jobs react to what changed.
    fn reconcile(&mut self, now: Moment) {
        let (mut cx, _, gangs, ..) = self.split(now);
        gangs.settle_lost(&mut cx.rooms());
        self.route(now);
        let (mut cx, _, gangs, ..) = self.split(now);
        gangs.reconcile(&mut cx);
        self.route(now);
        self.reconcile_jobs(now);
        if self.leading {
            self.lent
                .agenda
                .effects
                .extend(self.lent.world.take_sample().map(|sample| Effect::RateMix(Box::new(sample))));
        }
    }

    fn reconcile_jobs(&mut self, now: Moment) {
        let (mut cx, _, _, tyjobs, _) = self.split(now);
        tyjobs.reconcile(&mut cx);
        self.route(now);
    }

    fn react(&mut self, changes: &Changes, now: Moment) {
        let (mut cx, binder, .., others) = self.split(now);
        if !changes.gone.is_empty() {
            binder.prove_deleted(cx.world);
        }
        for uid in &changes.left {
            cx.preemption.victim_gone(cx.terms, cx.agenda, uid);
        }
        for id in &changes.gone {
            cx.agenda.queue.remove(*id);
            cx.reporter.forget(*id);
            others.gone(*id);
            cx.reservations.unpin(*id);
            cx.preemption.gone(cx.agenda, *id);
            cx.reservations.release(cx.terms, cx.world, cx.agenda, *id);
            binder.cancel(&mut cx, *id, Cancel::PodGone);
        }
        self.route(now);
        for id in &changes.pods {
            self.pod_changed(*id, now);
            self.route(now);
        }
        for id in &changes.ended {
            let (cx, binder, gangs, ..) = self.split(now);
            gangs.member_refused(cx.terms.scene(cx.world), cx.agenda, binder, *id);
            self.route(now);
        }
        if !self.leading {
            return;
        }
        let (mut cx, binder, _, tyjobs, _) = self.split(now);
        cx.agenda.effects.extend(cx.agenda.silent.report(cx.world, changes, now));
        tyjobs.observe(cx.terms.scene(cx.world), cx.agenda, changes);
        cx.agenda.queue.wake(changes.wake);
        if changes.wake.meets(Wake::VOLUME) {
            binder.prepare_all(&mut cx);
        }
        let mut nodes: BTreeSet<NodeId> = changes.nodes.iter().copied().collect();
        // A pod that ended or is gone may have held a lock; a bound one may show the outcome of another scheduler's bind.
        if !changes.gone.is_empty() {
            nodes.extend(cx.world.locked());
        }
        for pod in changes.pods.iter().filter_map(|id| cx.world.pod(*id)).filter(|pod| pod.place != Place::Waiting) {
            nodes.extend(cx.world.locked_for(pod.key()));
        }
        self.route(now);
        for id in nodes {
            self.fire(Timer::Node(id), now);
            self.route(now);
            let (mut cx, binder, ..) = self.split(now);
            let gone = cx.world.node(id).is_none_or(|node| node.facts.is_none());
            if gone || changes.wake.meets(Wake::NODE_CHANGED) {
                binder.requeue_outdated(&mut cx, id);
                self.route(now);
            }
        }
    }

    fn pod_changed(&mut self, id: PodId, now: Moment) {
        let (mut cx, binder, gangs, tyjobs, others) = self.split(now);
        let cx = &mut cx;
        others.observe(cx.terms, cx.world, cx.agenda, id);
        let Some(pod) = cx.world.pod(id) else { return };
        let deleting = pod.facts.handoff.deleting.is_some();
        match pod.place {
            Place::Ended => {
                cx.agenda.queue.remove(id);
                cx.reservations.release(cx.terms, cx.world, cx.agenda, id);
                binder.cancel(cx, id, Cancel::PodGone);
            }
            Place::Bound(node) => {
                cx.agenda.queue.remove(id);
                cx.reporter.forget(id);
                cx.preemption.forget(cx.agenda, id);
                cx.reservations.release(cx.terms, cx.world, cx.agenda, id);
                binder.seen_bound(cx, id);
                if cx.terms.leading && cx.world.contested_device(id).is_some() {
                    // Another leader has bound it, or this one before. Pods that wait here for a lock, or for others, and places
                    // cannot have its devices.
                    cx.reservations.release_contested(cx.terms, cx.world, cx.agenda, node);
                    tyjobs.release_contested(cx.world, cx.agenda, node);
                    binder.requeue_outdated(cx, node);
                }
            }
            Place::Waiting | Place::Assumed(_) if deleting => {
                cx.agenda.queue.remove(id);
                cx.preemption.forget(cx.agenda, id);
                cx.reservations.release(cx.terms, cx.world, cx.agenda, id);
                binder.cancel(cx, id, Cancel::PodGone);
            }
            Place::Waiting => {
                self.enqueue(id, now);
                let (cx, _, gangs, ..) = self.split(now);
                gangs.member_changed(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
            }
            Place::Assumed(_) => gangs.member_moved(&mut cx.rooms(), id),
        }
    }

    /// Queues a pod that is ours and waits: by itself, or with its group.
    fn enqueue(&mut self, id: PodId, now: Moment) {
        let (mut cx, binder, gangs, ..) = self.split(now);
        let Some(pod) = cx.world.pod(id).filter(|pod| pod.place == Place::Waiting) else { return };
        let handoff = &pod.facts.handoff;
        if !cx.terms.leading
            || handoff.deleting.is_some()
            || binder.attempts().contains_key(&id)
            || !cx.terms.is_ours(pod)
        {
            return;
        }
        let (sub_priority, beyond) = sub_priority_of(pod);
        let unsupported = pod.facts.spec.unsupported.clone().map(Warning::NotSupported);
        let queued = Queued {
            priority: pod.facts.spec.priority,
            sub_priority,
            created: handoff.created,
            class: pod.facts.spec.qos as u8,
            id: handoff.pod.key.to_string().into(),
        };
        let route = gangs.route(cx.world, cx.reservations, pod);
        beyond
            .into_iter()
            .chain(unsupported)
            .for_each(|warning| cx.reporter.warn_once(cx.world, cx.agenda, id, warning));
        match route {
            Route::Alone => cx.agenda.queue.add(id, &queued, cx.terms.rules.queue_sort(), now.mono),
            Route::Group(_) => cx.agenda.queue.remove(id),
            Route::NotReady(why) => {
                // Only a change of its own or of its gang helps.
                cx.agenda.queue.add(id, &queued, cx.terms.rules.queue_sort(), now.mono);
                cx.agenda.queue.park(id, Wake::NONE, now.mono);
                cx.report(id, why.reason(), why.to_string(), WaitsFor::Gang);
            }
        }
    }

    /// The gang or TYJob without which a pod does not start, in words; `None` for a pod of its own.
    pub fn together_with(&self, facts: &PodFacts) -> Option<String> {
        if let Some(job) = &facts.spec.job {
            return Some(format!("TYJob {}", job.name));
        }
        let book = self.lent.world.gangs();
        let named = facts.spec.gang.as_ref()?.named(book.defaults())?;
        let gang = named.gang.as_ref().ok().and_then(|id| book.gang(id));
        // A PodGroup without a gang rule leaves each pod alone.
        let free = gang.is_some_and(|gang| gang.config().min == Some(0) && gang.group().is_alone());
        (!free).then(|| match named.by {
            NamedBy::Nothing => "keys of a gang, without its name".to_owned(),
            by => format!("{}={}", by.key(), named.name()),
        })
    }

    /// Judges the devices of each of `nodes` for a pod that another scheduler places.
    pub fn fit_devices(&mut self, facts: &PodFacts, nodes: &[String], now: Moment) -> DeviceFits {
        let (mut cx, ..) = self.split(now);
        let id = cx.world.pod_id(&facts.handoff.pod.uid);
        let going = id.and_then(|id| cx.world.node(cx.world.pod(id)?.node()?)).map(|node| node.name.clone());
        cx.open_for(id, facts);
        let fits = cx.placing().with_nominated(facts.spec.priority, id.unwrap_or(NEW_POD), |placing| {
            extend::fit_devices(placing.terms.scene(placing.world), facts, nodes, going.as_deref())
        });
        cx.earmarks.close(cx.world);
        fits
    }

    /// Rates each of `nodes`, 0..=100, by what kube-scheduler does not see; see `extend::rate_devices`.
    pub fn rate_devices(&mut self, facts: &PodFacts, nodes: &[String], now: Moment) -> Vec<(String, i64)> {
        let (mut cx, ..) = self.split(now);
        cx.open_for(None, facts);
        let rated = extend::rate_devices(cx.terms.view(cx.world), cx.terms.rules, facts, nodes);
        cx.earmarks.close(cx.world);
        rated
    }

    /// Which victims make room for the pod's devices on each node; see `extend::make_room`.
    pub fn make_room(
        &mut self,
        facts: &PodFacts,
        proposed: &BTreeMap<String, Vec<PodUid>>,
        now: Moment,
    ) -> BTreeMap<String, NodeVictims> {
        let (mut cx, ..) = self.split(now);
        let id = cx.world.pod_id(&facts.handoff.pod.uid);
        if id.is_some_and(|id| cx.world.pod(id).is_some_and(|pod| pod.node().is_some())) {
            return BTreeMap::new();
        }
        cx.open_for(None, facts);
        let room = cx.placing().with_nominated(facts.spec.priority, id.unwrap_or(NEW_POD), |placing| {
            extend::make_room(placing.view(), placing.terms.rules, facts, proposed)
        });
        cx.earmarks.close(cx.world);
        room
    }

    /// Binds `pod` to `node` for another scheduler; see `Binder::request_bind`.
    pub fn request_bind(&mut self, id: RequestId, pod: &PodRef, node: &str, wait: Duration, now: Moment) -> Effects {
        let (mut cx, binder, ..) = self.split(now);
        binder.request_bind(&mut cx, id, pod, node, wait);
        self.route(now);
        self.effects()
    }

    /// The scheduler that requested a bind has left; see `Binder::cancel_request`.
    pub fn cancel_request(&mut self, id: RequestId, now: Moment) -> Effects {
        let (mut cx, binder, ..) = self.split(now);
        binder.cancel_request(&mut cx, id);
        self.route(now);
        self.effects()
    }

    /// Answers to bind requests since the last call.
    pub fn take_answers(&mut self) -> Vec<BindAnswer> {
        self.binder.take_answers()
    }
}

/// The pod's order within its priority, of a gang member that of its gang; and what is wrong with that of a pod of no gang.
fn sub_priority_of(pod: &Pod) -> (i64, Option<Warning>) {
    match &pod.facts.spec.gang {
        Some(declared) => (declared.sub_priority, None),
        None => read_sub_priority(pod.facts.spec.labels.get(key::SUB_PRIORITY).map(String::as_str)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::effect::Effect;
    use crate::pod::{AssignmentText, HandoffPod, Phase};
    use crate::world::spec::PodSpec;
    use baton_contract::{PodKey, Shared};

    const NOW: Moment = Moment { mono: Duration::from_secs(1), wall: jiff::Timestamp::UNIX_EPOCH };

    fn add_pod(scheduler: &mut Scheduler, name: &str) -> PodId {
        let handoff = HandoffPod {
            pod: PodRef::new("ml", name, name),
            node: None,
            scheduler_name: "baton-scheduler".into(),
            phase: Phase::Pending,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: false,
            resizing: false,
            created: NOW.wall,
            containers: Shared::default(),
            assignment: AssignmentText::default(),
        };
        scheduler
            .event(WorldEvent::Pod(Box::new(PodFacts { handoff, spec: PodSpec::default().into(), rank: None })), NOW);
        scheduler.lent.world.pod_by_key(&PodKey::new("ml", name)).unwrap().id
    }

    #[test]
    fn the_steps_that_a_step_leaves_run_before_its_next_sibling() {
        let mut scheduler = Scheduler::new(Config::default(), Plugins::default());
        let [first, second] = ["first", "second"].map(|name| add_pod(&mut scheduler, name));
        // A failed bind leaves a report of its pod.
        let failed = BindEvent::Failed { pod: first, commit: None, why: "refused".to_owned(), requested: false };
        scheduler.lent.agenda.steps =
            vec![Step::Bind(failed), Step::Report(second, ConditionReason::Unschedulable, "no room".into())];
        scheduler.route(NOW);
        let effects = scheduler.effects();
        let conditions = effects.iter().filter_map(|effect| match effect {
            Effect::Condition { pod, reason, .. } => Some((&*pod.key.name, *reason)),
            _ => None,
        });
        assert_eq!(
            conditions.collect::<Vec<_>>(),
            [("first", ConditionReason::SchedulerError), ("second", ConditionReason::Unschedulable)]
        );
        assert!(scheduler.lent.agenda.steps.is_empty());
    }
}
