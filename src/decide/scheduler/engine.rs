//! The engine: the world, the queue, the flights and the timers in one value. Events and reports go in, effects come out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::gang::{GangId, key, parse_sub_priority};
use crate::contract::{PodKey, PodUid};
use crate::decide::scheduler::queue::{Item, Queue};
use crate::decide::scheduler::rules::plugins::image_locality;
use crate::decide::scheduler::rules::{Plugins, Queued};
use crate::decide::world::gangs::{GangProgress, GroupId};
use crate::decide::world::{Changes, NodeId, Place, Pod, PodId, Wake, World, WorldEvent};

use super::effect::{Effect, Effects, Ticket};
use super::errand::{BindAnswer, Errand};
use super::flight::{Cancel, Flight, Line};
use super::hold::Hold;
use super::preemption::Nomination;
use super::select::index::Index;
use super::settings::{EngineConfig, Moment, Stats};
use super::tell::Told;
use crate::decide::gang::{Commit, GroupRecord, Route};
use crate::decide::lock::ReleaseReason;
use crate::decide::tyjob::JobDesk;

/// Agents are looked over for staleness this often: each look costs a step per node.
const AGE: Duration = Duration::from_millis(500);

/// What a timer is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::decide) enum Timer {
    Flight(PodId),
    Permit(PodId),
    GroupWait(GroupId),
    TellGroup(GroupId),
    Mark(GroupId),
    PodGroups(GroupId),
    Nomination(PodId),
    Nominate(PodId),
    Node(NodeId),
    Line(NodeId),
    Release(NodeId, Box<str>),
    Tell(PodId),
    SentAway(PodId),
    Errand(PodId),
    Job(PodKey),
    Sweep,
}

/// The engine.
pub struct Engine {
    pub(in crate::decide) world: World,
    pub(in crate::decide) queue: Queue,
    pub(in crate::decide) plugins: Plugins,
    pub(in crate::decide) index: Index,
    pub(in crate::decide) config: EngineConfig,
    pub(in crate::decide) flights: BTreeMap<PodId, Flight>,
    pub(in crate::decide) lines: BTreeMap<NodeId, Line>,
    /// Pods whose room is held and that are not on their way yet.
    pub(in crate::decide) holds: BTreeMap<PodId, Hold>,
    /// Groups of gangs.
    pub(in crate::decide) groups: BTreeMap<GroupId, GroupRecord>,
    /// The group of each gang when it was last looked at.
    pub(in crate::decide) group_of: BTreeMap<GangId, GroupId>,
    /// From creation to satisfaction, of groups since somebody took these.
    pub(in crate::decide) group_waits: Vec<Duration>,
    /// From creation to bind, of pods since somebody took these.
    pub(in crate::decide) pod_waits: Vec<Duration>,
    /// From the line to the lock, of flights since somebody took these.
    pub(in crate::decide) lock_waits: Vec<Duration>,
    /// Groups on their way.
    pub(in crate::decide) commits: BTreeMap<u64, Commit>,
    /// Pods that were deleted with their gang, and why.
    pub(in crate::decide) sent_away: BTreeMap<PodId, String>,
    /// Members of a commit that were let go before they were on their way.
    pub(in crate::decide) strays: Vec<(u64, PodId)>,
    /// Pods for which others make room.
    pub(in crate::decide) nominations: BTreeMap<PodId, Nomination>,
    /// Nominations that are not written as they are, and how often in a row that has failed.
    pub(in crate::decide) unwritten: BTreeMap<PodId, u32>,
    /// Flights whose volumes, or whatever else comes before the lock, are being prepared.
    pub(in crate::decide) preparing: BTreeSet<PodId>,
    pub(in crate::decide) tickets: BTreeMap<Ticket, PodId>,
    pub(in crate::decide) timers: BTreeSet<(Duration, Timer)>,
    /// Lock values being removed; `true` while the request is under way.
    pub(in crate::decide) releases: BTreeMap<(NodeId, Box<str>), (ReleaseReason, bool)>,
    /// Lock values whose holder is proven gone.
    pub(in crate::decide) proven: BTreeSet<Box<str>>,
    /// Lock values whose holder is being read.
    pub(in crate::decide) asked: BTreeMap<Box<str>, Duration>,
    /// Lock values under which a bind was resumed once.
    pub(in crate::decide) resumed: BTreeSet<Box<str>>,
    /// Pods that may go to one node only: they are resumed under their lock.
    pub(in crate::decide) pinned: BTreeMap<PodId, NodeId>,
    pub(in crate::decide) fenced: BTreeMap<PodUid, Duration>,
    pub(in crate::decide) told: BTreeMap<PodId, Told>,
    /// Binds that somebody waits for.
    pub(in crate::decide) errands: BTreeMap<PodId, Errand>,
    pub(in crate::decide) answers: Vec<BindAnswer>,
    /// TYJobs.
    pub(in crate::decide) jobs: JobDesk,
    pub(in crate::decide) stats: Stats,
    pub(in crate::decide) leading: bool,
    /// When agents are looked over next.
    age_at: Duration,
    pub(in crate::decide) last_stamp: Timestamp,
    pub(in crate::decide) serial: u64,
}

impl Engine {
    /// An engine that follows until [`Engine::lead`] is called.
    pub fn new(mut config: EngineConfig, plugins: Plugins) -> Self {
        config.world.images = plugins.enabled().score.iter().any(|(plugin, _)| plugin.name() == image_locality::NAME);
        Self {
            world: World::new(config.world),
            queue: Queue::new(config.queue),
            plugins,
            index: Index::default(),
            config,
            flights: BTreeMap::new(),
            lines: BTreeMap::new(),
            holds: BTreeMap::new(),
            groups: BTreeMap::new(),
            group_of: BTreeMap::new(),
            group_waits: Vec::new(),
            pod_waits: Vec::new(),
            lock_waits: Vec::new(),
            commits: BTreeMap::new(),
            sent_away: BTreeMap::new(),
            strays: Vec::new(),
            nominations: BTreeMap::new(),
            unwritten: BTreeMap::new(),
            preparing: BTreeSet::new(),
            tickets: BTreeMap::new(),
            timers: BTreeSet::new(),
            releases: BTreeMap::new(),
            proven: BTreeSet::new(),
            asked: BTreeMap::new(),
            resumed: BTreeSet::new(),
            pinned: BTreeMap::new(),
            fenced: BTreeMap::new(),
            told: BTreeMap::new(),
            errands: BTreeMap::new(),
            answers: Vec::new(),
            jobs: JobDesk::default(),
            stats: Stats::default(),
            leading: false,
            age_at: Duration::ZERO,
            last_stamp: Timestamp::UNIX_EPOCH,
            serial: 0,
        }
    }

    /// The world.
    pub fn world(&self) -> &World {
        &self.world
    }
    /// The queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
    /// Flights by pod.
    pub fn flights(&self) -> &BTreeMap<PodId, Flight> {
        &self.flights
    }
    /// Pods whose room is held and that are not on their way yet.
    pub fn holds(&self) -> &BTreeMap<PodId, Hold> {
        &self.holds
    }
    /// Pods for which others make room.
    pub fn nominations(&self) -> &BTreeMap<PodId, Nomination> {
        &self.nominations
    }
    /// What attempts of a group have come to.
    pub fn gang_progress(&self, group: &GroupId) -> Option<&GangProgress> {
        self.groups.get(group).map(|record| &record.progress)
    }
    /// How long groups waited that were satisfied since the last call.
    pub fn take_group_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.group_waits)
    }
    /// How long pods waited that were bound since the last call.
    pub fn take_pod_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.pod_waits)
    }
    /// How long flights waited for their node's lock that got it since the last call.
    pub fn take_lock_waits(&mut self) -> Vec<Duration> {
        std::mem::take(&mut self.lock_waits)
    }
    /// Lines by node.
    pub fn lines(&self) -> &BTreeMap<NodeId, Line> {
        &self.lines
    }
    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }
    /// `true` while effects are produced.
    pub fn is_leading(&self) -> bool {
        self.leading
    }

    /// Starts or stops producing effects. Start only on a world that is synced: "not found" counts as proof. Whoever stops
    /// forgets every flight; the next leader resumes them from the cluster.
    pub fn lead(&mut self, leading: bool, now: Moment) -> Effects {
        let mut effects = Effects::new();
        if leading == self.leading {
            return effects;
        }
        self.leading = leading;
        self.fail_errands();
        let flying: Vec<PodId> = self.flights.keys().copied().collect();
        for id in flying {
            self.drop_flight(id);
            self.world.forget(id);
        }
        let held: Vec<PodId> = self.holds.keys().copied().collect();
        for id in held {
            self.let_go(id);
        }
        // Entries of pods that were in flight must not stay behind as taken.
        self.queue = Queue::new(self.config.queue);
        self.lines.clear();
        self.tickets.clear();
        self.timers.clear();
        self.releases.clear();
        self.asked.clear();
        self.resumed.clear();
        self.pinned.clear();
        self.nominations.clear();
        self.unwritten.clear();
        // Whoever led meanwhile may have told something else.
        self.told.clear();
        self.groups.clear();
        self.group_of.clear();
        self.commits.clear();
        self.sent_away.clear();
        self.strays.clear();
        if leading {
            // Before jobs keep room again: what was made for others is not theirs.
            self.nominated_before(now);
        }
        self.lead_jobs(leading, now, &mut effects);
        if leading {
            let waiting: Vec<PodId> = self.world.pods().map(|pod| pod.id).collect();
            let gangs: BTreeSet<GroupId> = self.world.gangs().gangs().map(|gang| gang.group().clone()).collect();
            for gang in self.world.gangs().gangs() {
                self.group_of.insert(gang.id().clone(), gang.group().clone());
            }
            self.world.take_changed_gangs();
            for group in gangs {
                self.review(&group, now, &mut effects);
            }
            for id in waiting {
                self.enqueue(id, now, &mut effects);
            }
            self.sweep_all(now, &mut effects);
        }
        effects
    }

    /// Folds in what a watch told.
    pub fn event(&mut self, event: WorldEvent, now: Moment) -> Effects {
        let mut effects = Effects::new();
        let changes = self.world.apply(event, now.mono, now.wall);
        self.react(&changes, now, &mut effects);
        self.heed_gangs(now, &mut effects);
        self.heed_jobs(now, &mut effects);
        effects
    }

    /// Judges gangs that changed.
    pub(in crate::decide) fn heed_gangs(&mut self, now: Moment, effects: &mut Effects) {
        if self.leading {
            self.settle_strays(now, effects);
            self.gangs_changed(now, effects);
        } else {
            self.world.take_changed_gangs();
        }
    }

    /// Lets time pass and decides up to a batch of pods.
    pub fn run(&mut self, now: Moment) -> Effects {
        self.step(now, self.config.batch)
    }

    /// Lets time pass and decides nothing: whoever performs the effects has enough of them.
    pub fn pass(&mut self, now: Moment) -> Effects {
        self.step(now, 0)
    }

    fn step(&mut self, now: Moment, decisions: usize) -> Effects {
        let mut effects = Effects::new();
        if now.mono >= self.age_at {
            self.age_at = now.mono + AGE;
            let aged = self.world.age(now.mono);
            self.react(&Changes { nodes: aged, ..Changes::default() }, now, &mut effects);
        }
        if !self.leading {
            return effects;
        }
        while let Some((_, timer)) = self.timers.first().cloned().filter(|(at, _)| *at <= now.mono) {
            self.timers.pop_first();
            self.fire(timer, now, &mut effects);
        }
        self.queue.tick(now.mono, self.plugins.queue_sort());
        for _ in 0..decisions {
            // Whoever has given a place back gets it again before anybody else looks.
            self.heed_jobs(now, &mut effects);
            self.key_round(now);
            match self.queue.pop() {
                Some(Item::Jobs) => self.jobs_round(now, &mut effects),
                Some(Item::Pod(id)) => self.attempt(id, now, &mut effects),
                Some(Item::Group(group)) => self.attempt_group(&group, now, &mut effects),
                None => break,
            }
        }
        self.heed_gangs(now, &mut effects);
        self.heed_jobs(now, &mut effects);
        effects
    }

    /// When [`Engine::run`] has something to do; zero when at once.
    pub fn next(&self) -> Option<Duration> {
        if !self.leading {
            return None;
        }
        [self.next_timer(), self.queue.next()].into_iter().flatten().min()
    }

    /// When [`Engine::pass`] has something to do.
    pub fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at).filter(|_| self.leading)
    }

    pub(in crate::decide) fn react(&mut self, changes: &Changes, now: Moment, effects: &mut Effects) {
        if !changes.gone.is_empty() {
            self.prove_deleted();
        }
        for uid in &changes.left {
            self.victim_gone(uid, now);
        }
        for id in &changes.gone {
            self.queue.remove(*id);
            self.told.remove(id);
            self.pinned.remove(id);
            self.unwritten.remove(id);
            self.forget_nomination(*id, now);
            self.let_go(*id);
            self.cancel(*id, Cancel::PodGone, now, effects);
        }
        for id in &changes.pods {
            self.pod_changed(*id, now, effects);
        }
        if !self.leading {
            return;
        }
        self.note_jobs(changes, now);
        if !changes.wake.is_none() {
            self.queue.wake(changes.wake, self.plugins.queue_sort());
        }
        if changes.wake.meets(Wake::VOLUME) {
            self.prepare_all(now, effects);
        }
        let touched = changes.nodes.iter().copied();
        let mut nodes: BTreeSet<NodeId> = touched.collect();
        // A pod that ended or went may have held a lock; a bound one may be somebody's proof.
        if !changes.gone.is_empty() {
            nodes.extend(self.world.locked());
        }
        for pod in changes.pods.iter().filter_map(|id| self.world.pod(*id)).filter(|pod| pod.place != Place::Waiting) {
            nodes.extend(self.world.locked_for(pod.key()));
        }
        for id in nodes {
            self.sweep(id, now, effects);
            self.advance(id, now, effects);
        }
    }

    fn pod_changed(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(pod) = self.world.pod(id) else { return };
        let deleting = pod.facts.handoff.deleting.is_some();
        match pod.place {
            Place::Ended => {
                self.queue.remove(id);
                self.let_go(id);
                self.cancel(id, Cancel::PodGone, now, effects);
                self.member_refused(id, now, effects);
            }
            Place::Bound(_) => {
                self.queue.remove(id);
                self.told.remove(&id);
                self.forget_nomination(id, now);
                self.let_go(id);
                self.seen_bound(id, now, effects);
            }
            Place::Waiting | Place::Assumed(_) if deleting => {
                self.queue.remove(id);
                self.forget_nomination(id, now);
                self.let_go(id);
                self.cancel(id, Cancel::PodGone, now, effects);
            }
            Place::Waiting => {
                self.enqueue(id, now, effects);
                self.member_changed(id, now);
            }
            Place::Assumed(_) => self.member_moved(id, now, effects),
        }
    }

    /// Queues a pod that is ours and waits: by itself, or with its group.
    pub(in crate::decide) fn enqueue(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(pod) = self.world.pod(id).filter(|pod| pod.place == Place::Waiting) else { return };
        let handoff = &pod.facts.handoff;
        if !self.leading
            || handoff.deleting.is_some()
            || self.flights.contains_key(&id)
            || !self.config.scheduler_names.contains(&handoff.scheduler_name)
        {
            return;
        }
        let route = self.route(pod);
        let sub_priority = sub_priority_of(pod);
        let queued = Queued {
            priority: pod.facts.spec.priority,
            sub_priority,
            created: handoff.created,
            failed: None,
            class: pod.facts.spec.qos as u8,
            id: handoff.pod.uid.as_str().into(),
        };
        match route {
            Route::Alone => self.queue.add(id, queued, self.plugins.queue_sort(), now.mono),
            Route::Group(_) | Route::Owed(_) => self.queue.remove(id),
            Route::Held(hold) => {
                // Only a change of its own or of its gang helps.
                self.queue.add(id, queued, self.plugins.queue_sort(), now.mono);
                self.queue.park(id, Wake::NONE, now.mono, now.wall);
                self.tell(id, hold.reason(), hold.to_string(), now, effects);
            }
        }
    }

    fn fire(&mut self, timer: Timer, now: Moment, effects: &mut Effects) {
        match timer {
            Timer::Flight(id) => self.resume_flight(id, now, effects),
            Timer::Nomination(id) => self.nomination_due(id, now, effects),
            Timer::Nominate(id) => self.nominate_again(id, effects),
            Timer::GroupWait(group) => self.group_due(&group, now, effects),
            Timer::TellGroup(group) => self.tell_held(&group, now, effects),
            Timer::Mark(group) => self.mark(&group, now, effects),
            Timer::PodGroups(group) => self.tell_pod_groups(&group, now, effects),
            Timer::Permit(id) => self.permit_again(id, now, effects),
            Timer::Node(id) => {
                self.sweep(id, now, effects);
                self.advance(id, now, effects);
            }
            Timer::Line(id) => self.look_over_line(id, now, effects),
            Timer::Release(node, raw) => self.release_again(node, &raw, effects),
            Timer::SentAway(id) => self.sent_away_due(id, now, effects),
            Timer::Tell(id) => self.tell_pending(id, now, effects),
            Timer::Errand(id) => self.errand_due(id, now, effects),
            Timer::Job(key) => self.job_due(&key, now, effects),
            Timer::Sweep => self.sweep_all(now, effects),
        }
    }

    pub(in crate::decide) fn ticket(&mut self, id: PodId) -> Ticket {
        self.serial += 1;
        let ticket = Ticket(self.serial);
        self.tickets.insert(ticket, id);
        ticket
    }

    /// A wall time that no earlier bind of this process has used.
    pub(in crate::decide) fn stamp(&mut self, now: Moment) -> Timestamp {
        let after = self.last_stamp.checked_add(Duration::from_nanos(1)).unwrap_or(now.wall);
        self.last_stamp = now.wall.max(after);
        self.last_stamp
    }

    pub(in crate::decide) fn notice(
        &self,
        id: PodId,
        warning: bool,
        reason: &'static str,
        message: String,
        out: &mut Effects,
    ) {
        if let Some(pod) = self.world.pod(id) {
            out.push(Effect::Notice { pod: pod.facts.handoff.pod.clone(), warning, reason, message });
        }
    }

    pub(in crate::decide) fn woken(&mut self, wake: Wake) {
        self.queue.wake(wake, self.plugins.queue_sort());
    }
}

/// Order within a priority, as a pod by itself says it.
fn sub_priority_of(pod: &Pod) -> i64 {
    match &pod.facts.spec.gang {
        Some(declared) => declared.sub_priority,
        None => parse_sub_priority(pod.facts.spec.labels.get(key::SUB_PRIORITY).map(String::as_str)),
    }
}
