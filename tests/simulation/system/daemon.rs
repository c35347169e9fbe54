//! A node daemon as a process: watches, ledger and unlocker, as `agent::handoff` has them, around the decisions that ship.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::agent::handoff::ledger_file;
use baton::contract::{AgentStatus, DeviceId, Identity, LockFormat, LockRead, LockWord, PodKey, PodUid, key};
use baton::decide::handoff::exceptions::exceptions;
use baton::decide::handoff::prefer::{Preference, pick, preference};
use baton::decide::handoff::rebuild::{adopt, learn, rebuild};
use baton::decide::handoff::verify::{ADMITTED_WITHOUT_DEVICES, verify};
use baton::decide::handoff::{
    AllocateCall, AllocateContext, AllocateOutcome, AllocateRule, EntryKey, LIST_SETTLES, Ledger, LiveReads, NodePods,
    PodResources, Processes, decide, passed_by,
};
use baton::decide::lock::{HolderProgress, LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
use baton::decide::pod::HandoffPod;
use baton::decide::scheduler::LockResult;

use super::housekeeping::left_at;
use super::leader::{AGAIN, TRIES};
use super::machine::{Answer, Machine, encoded, since_boot};
use super::store::{Change, Swap};
use super::{Fault, Happening, Mutant, Reader, START, System};
use crate::harness::wall;

/// A call that is not looked at in time.
pub const NO_PERMIT: &str = "DeadlineExceeded";
/// Decisions that may ask for live reads one after another.
const ROUNDS: usize = 6;
/// As `handoff::unlocker` has it.
const ASK_AGAIN: Duration = Duration::from_secs(3);
const BIND_FOLLOWS: Duration = Duration::from_secs(1);
const PACE: Duration = Duration::from_secs(10);
/// Of the Lease, and of the comparison with the kubelet.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Changes are gathered for this long.
const GATHER: Duration = Duration::from_millis(200);

/// What a node daemon keeps in memory.
pub struct Daemon {
    pub pods: NodePods,
    lock: LockRead,
    cursor: usize,
    pub is_synced: bool,
    listed: Duration,
    /// When the call of an unknown pod failed last.
    failed: Duration,
    /// `None` until it is known what was handed out.
    pub ledger: Option<Ledger>,
    /// Where the processes of pods are.
    pub processes: Processes,
    /// For the judges: pods whose processes have ended before this, and since when their cgroups can be seen.
    pub overdue: BTreeMap<PodUid, (Duration, Duration)>,
    pub passed: BTreeSet<PodUid>,
    pub may_repeat: BTreeSet<PodUid>,
    pub unusable: BTreeSet<PodUid>,
    pub unserved: BTreeSet<PodUid>,
    last: Option<(String, BTreeSet<String>, EntryKey, PodResources, Duration)>,
    /// The lock of a served holder that stands, once the lock was looked at.
    pub unreleased: Option<Option<Box<str>>>,
    asked: Option<(Box<str>, Duration, Option<HandoffPod>)>,
    strange: Option<(Box<str>, Duration)>,
    releasing: bool,
    pub said: Option<AgentStatus>,
    /// What is due, and when.
    due: BTreeMap<Task, Duration>,
}

/// What it does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// Looks at the lock.
    Unlock,
    /// Looks at pods that have left.
    Follow,
    /// Compares with the kubelet, and renews its Lease.
    Beat,
    /// Says what is new.
    Publish,
}

/// Where a call ends when the process is killed in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    BeforeWriting,
    BeforeAnswering,
}

impl Daemon {
    fn new() -> Self {
        Self {
            pods: NodePods::default(),
            lock: LockRead::Free,
            cursor: 0,
            is_synced: false,
            listed: Duration::ZERO,
            failed: Duration::ZERO,
            ledger: None,
            processes: Processes::default(),
            overdue: BTreeMap::new(),
            passed: BTreeSet::new(),
            may_repeat: BTreeSet::new(),
            unusable: BTreeSet::new(),
            unserved: BTreeSet::new(),
            last: None,
            unreleased: None,
            asked: None,
            strange: None,
            releasing: false,
            said: None,
            due: BTreeMap::new(),
        }
    }
}

impl System {
    pub fn start_daemon(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.daemon_life += 1;
        (machine.daemon, machine.daemon_has_news) = (Some(Daemon::new()), true);
        let life = machine.daemon_life;
        self.note(|| format!("daemon of n{node} starts"));
        let (listed, beat) = (self.soon(20, 300), self.soon(200, 1000));
        self.after(listed, Happening::News(Reader::Daemon(node), life));
        self.later(node, beat, Task::Beat);
        let registers = self.soon(200, 1200);
        let life = self.machines[node].kubelet_life;
        self.after(registers, Happening::Mend(super::faults::Mend::Registration { node, life }));
    }

    /// Its list of devices has changed: the daemon reports it.
    pub fn devices_changed(&mut self, node: usize) {
        if self.machines[node].daemon.is_some() {
            self.later(node, Duration::from_millis(50), Task::Publish);
        }
    }

    pub fn kill_daemon(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.daemon = None;
        machine.daemon_life += 1;
        machine.kubelet.is_registered = false;
        self.note(|| format!("daemon of n{node} is killed"));
    }

    /// What is due sooner sees all that this one would.
    pub fn later(&mut self, node: usize, pause: Duration, task: Task) {
        let (life, at) = (self.machines[node].daemon_life, self.now + pause);
        let Some(daemon) = &mut self.machines[node].daemon else { return };
        if daemon.due.get(&task).is_none_or(|due| at < *due) {
            daemon.due.insert(task, at);
            self.at(at, Happening::Daemon { node, life, task });
        }
    }

    /// Both watches, or the lists with which they begin.
    pub fn news_for_daemon(&mut self, node: usize, life: u64) {
        if self.machines[node].daemon_life != life {
            return;
        }
        self.machines[node].daemon_has_news = false;
        let again = self.faults.lists_again(Reader::Daemon(node));
        let Machine { name, daemon, ran_before, .. } = &mut self.machines[node];
        let name = name.clone();
        let Some(daemon) = daemon else { return };
        if !daemon.is_synced || again {
            // A list may be an old one: what has changed since comes by the watch that follows.
            let end = self.store.end();
            let from = if again { self.store.listed(self.now) } else { end };
            let behind = end - from;
            let (mut pods, mut lock) = (Vec::new(), None);
            for change in self.store.list(from) {
                match change {
                    Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                        pods.push(since_boot(ran_before, pod.handoff.clone()));
                    }
                    Change::Node(node) if node.name == name => lock.clone_from(&node.lock),
                    _ => {}
                }
            }
            daemon.pods.replace(pods);
            daemon.lock = LockRead::parse(lock.as_deref());
            (daemon.cursor, daemon.is_synced, daemon.listed) = (from, true, self.now);
            if again {
                self.note(|| format!("daemon of n{node} lists again, {behind} changes behind"));
                if behind > 0 {
                    let life = self.machines[node].daemon_life;
                    let pause = self.soon(5, 2000);
                    self.machines[node].daemon_has_news = true;
                    self.after(pause, Happening::News(Reader::Daemon(node), life));
                }
            }
        } else {
            let changes = self.store.since(daemon.cursor);
            daemon.cursor = self.store.end();
            for change in changes {
                match change {
                    Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                        daemon.pods.apply(since_boot(ran_before, pod.handoff.clone()));
                    }
                    Change::PodGone(pod) if pod.handoff.node.as_deref() == Some(&*name) => {
                        daemon.pods.remove(&pod.handoff.pod.uid);
                    }
                    Change::Node(node) if node.name == name => daemon.lock = LockRead::parse(node.lock.as_deref()),
                    _ => {}
                }
            }
        }
        self.open_ledger(node);
        self.later(node, Duration::from_millis(1), Task::Unlock);
        self.later(node, GATHER, Task::Follow);
        self.later(node, Duration::from_millis(50), Task::Publish);
    }

    /// The ledger of this boot from its file, else rebuilt once the kubelet lists its pods.
    fn open_ledger(&mut self, node: usize) {
        let now = self.now;
        let is_skipped = self.is(Mutant::RebuildSkipped);
        let machine = &mut self.machines[node];
        let Some(daemon) = machine.daemon.as_ref().filter(|daemon| daemon.ledger.is_none() && daemon.is_synced) else {
            return;
        };
        let boot = machine.boot.to_string();
        let ledger = match ledger_file::parse(&machine.disk, &boot) {
            Ok(mut ledger) => {
                left_at(&mut ledger, now);
                ledger
            }
            Err(_) if is_skipped => Ledger::default(),
            Err(why) => {
                let Some(mut listing) = machine.kubelet.listing() else { return };
                listing.answers = machine.kubelet.stored_answers();
                let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
                let lock = Some(self.store.lock(&machine.name)).filter(|_| !cut);
                let pods = daemon.pods.clone();
                let mut rebuilt = rebuild(&machine.name, &pods, &listing, &machine.inventory, lock.as_ref());
                self.add_left(node, &mut rebuilt, &pods, &listing.answers);
                let runtime = &self.machines[node].kubelet.runtime;
                // Of a pod that has left, and of a container of it that the kubelet's checkpoint has not, nothing is known.
                let has_left = |uid: &PodUid| pods.by_uid(uid).is_none_or(|pod| pod.phase.is_terminal());
                let is_stored = |uid: &PodUid, container: &str| {
                    listing.answers.keys().any(|key| key.uid == *uid && *key.container == *container)
                };
                for (uid, runs) in runtime.iter().filter(|(uid, _)| has_left(uid)) {
                    let lost = runs.devices.iter().filter(|(container, ..)| !is_stored(uid, container));
                    self.judges.unknown.extend(lost.map(|(container, ..)| (uid.clone(), container.clone())));
                }
                let lost = runtime.keys().filter(|uid| listing.answers.keys().all(|key| key.uid != **uid));
                let lost: Vec<PodUid> = lost.cloned().collect();
                self.judges.in_any_order.extend(lost);
                self.note(|| format!("n{node}: {why}: the ledger is rebuilt with {} entries", rebuilt.len()));
                if !rebuilt.is_empty() {
                    self.history.sometimes("a ledger with entries is rebuilt");
                }
                self.save(node, &rebuilt);
                rebuilt
            }
        };
        let Some(daemon) = &mut self.machines[node].daemon else { return };
        daemon.may_repeat = ledger.iter().map(|entry| entry.pod.uid.clone()).collect();
        daemon.ledger = Some(ledger);
    }

    pub fn save(&mut self, node: usize, ledger: &Ledger) -> bool {
        if self.strikes(Fault::DiskFull) {
            return false;
        }
        let boot = self.machines[node].boot.to_string();
        self.machines[node].disk = ledger_file::print(ledger, &boot).unwrap();
        true
    }

    /// The kubelet has started again: it admits its pods once more.
    pub fn admits_again(&mut self, node: usize) {
        if let Some(daemon) = &mut self.machines[node].daemon {
            daemon.passed.clear();
            daemon.last = None;
            let entries = daemon.ledger.iter().flat_map(Ledger::iter);
            daemon.may_repeat = entries.map(|entry| entry.pod.uid.clone()).collect();
        }
    }

    /// What the kubelet lists.
    pub fn listed(&mut self, node: usize) -> PodResources {
        let throttled = self.strikes(Fault::Throttled) || self.faults.lists_nothing(node, self.now);
        match self.machines[node].kubelet.listing() {
            Some(_) if throttled => PodResources::Throttled,
            Some(listing) => PodResources::Listed(listing),
            None => PodResources::Unavailable,
        }
    }

    /// The same, and the ledger is brought up to date with it.
    pub fn list(&mut self, node: usize) -> PodResources {
        let resources = self.listed(node);
        let machine = &mut self.machines[node];
        if let Some(Daemon { ledger: Some(ledger), pods, .. }) = &mut machine.daemon {
            ledger.settle(&resources);
            if let Some(listing) = resources.listing()
                && learn(ledger, &machine.name, pods, listing, &machine.inventory)
            {
                self.history.sometimes("devices in use are learned from the kubelet");
            }
        }
        resources
    }

    /// Runs a decision on what is known, as often as it asks for live reads. `Err` with what is to be read when the API server does not answer.
    fn with_context<T>(
        &mut self,
        node: usize,
        resources: &PodResources,
        look: impl Fn(&AllocateContext<'_>) -> Result<T, LiveReads>,
    ) -> Result<T, LiveReads> {
        let mut fresh = LiveReads::default();
        let inventory = self.is(Mutant::HealthIgnored).then(|| {
            let mut inventory = self.machines[node].inventory.clone();
            inventory.devices.values_mut().for_each(|device| device.healthy = true);
            inventory
        });
        for _ in 0..ROUNDS {
            let machine = &self.machines[node];
            let Some(daemon) = &machine.daemon else { break };
            let Some(ledger) = &daemon.ledger else { break };
            let is_cut = self.faults.is_cut(Reader::Daemon(node), self.now);
            let watching = !is_cut && self.now >= daemon.listed.max(daemon.failed) + LIST_SETTLES;
            let wanted = match look(&AllocateContext {
                node: &machine.name,
                pods: &daemon.pods,
                lock: &daemon.lock,
                resources,
                ledger,
                inventory: inventory.as_ref().unwrap_or(&machine.inventory),
                passed: &daemon.passed,
                may_repeat: &daemon.may_repeat,
                live_reads: &fresh,
                watching,
                now: wall(self.now),
                policy: &machine.policy,
            }) {
                Ok(found) => return Ok(found),
                Err(wanted) => wanted,
            };
            if is_cut {
                return Err(wanted);
            }
            self.history.sometimes("a call reads live");
            if !self.is(Mutant::LiveReadsSkipped) {
                for key in &wanted.pods {
                    let Machine { daemon, ran_before, .. } = &mut self.machines[node];
                    if let Some(daemon) = daemon {
                        let found = self.store.handoff(key).map(|pod| since_boot(ran_before, pod));
                        daemon.pods.apply_live(key, found);
                    }
                }
                if wanted.node {
                    let lock = self.store.lock(&self.machines[node].name);
                    if let Some(daemon) = &mut self.machines[node].daemon {
                        daemon.lock = lock;
                    }
                }
            }
            fresh.add(wanted);
        }
        Err(LiveReads::default())
    }

    /// GetPreferredAllocation.
    pub fn prefer(
        &mut self,
        node: usize,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let default = || available.iter().take(size).cloned().collect();
        if self.machines[node].daemon.as_ref().is_none_or(|daemon| daemon.ledger.is_none()) {
            return default();
        }
        let resources = self.list(node);
        let call = AllocateCall { resource, count: size as i64, ids: &[] };
        let found = self.with_context(node, &resources, |context| match preference(context, &call) {
            Preference::Order(order, key) => Ok((order, key)),
            Preference::NeedLive(wanted) => Err(wanted),
        });
        let (order, key) = found.unwrap_or_default();
        let ids = pick(&order, available, must, size);
        if let (Some(key), Some(daemon)) = (key, &mut self.machines[node].daemon) {
            daemon.last = Some((resource.to_owned(), ids.iter().cloned().collect(), key, resources, self.now));
        }
        ids
    }

    /// Allocate: decided, written, answered.
    pub fn allocate(&mut self, node: usize, resource: &str, ids: &[String]) -> Result<Answer, String> {
        let killed = if self.strikes(Fault::KilledBeforeWriting) {
            Some(Killed::BeforeWriting)
        } else {
            self.strikes(Fault::KilledBeforeAnswering).then_some(Killed::BeforeAnswering)
        };
        if self.is(Mutant::GateSharesPermits) && self.waiting_starts(node) > 0 {
            return Err(NO_PERMIT.to_owned());
        }
        let result = self.decide_call(node, resource, ids, killed);
        if killed.is_some() && self.machines[node].daemon.is_some() {
            self.kill_daemon(node);
            let pause = self.soon(500, 20_000);
            self.after(pause, Happening::Mend(super::faults::Mend::Daemon(node)));
            return Err("the daemon was killed".to_owned());
        }
        result
    }

    fn decide_call(
        &mut self,
        node: usize,
        resource: &str,
        ids: &[String],
        killed: Option<Killed>,
    ) -> Result<Answer, String> {
        let ready = self.machines[node].daemon.as_ref().is_some_and(|daemon| daemon.ledger.is_some());
        if !ready {
            return Err("not serving".to_owned());
        }
        let last = self.machines[node].daemon.as_mut().and_then(|daemon| daemon.last.take());
        let last = last.filter(|(name, chosen, _, _, at)| {
            name == resource
                && chosen.len() == ids.len()
                && ids.iter().all(|id| chosen.contains(id))
                && self.now <= *at + BIND_FOLLOWS
        });
        let (known, resources) = match last {
            Some((_, _, key, resources, _)) => (Some(key), resources),
            None => (None, self.list(node)),
        };
        let call = AllocateCall { resource, count: ids.len() as i64, ids };
        let decided = self.with_context(node, &resources, |context| {
            let outcome = decide(context, &call, known.as_ref());
            let passed = match &outcome {
                AllocateOutcome::Serve(serving) => passed_by(context, &serving.entry.pod.uid),
                AllocateOutcome::Repeat { key, .. } => passed_by(context, &key.uid),
                AllocateOutcome::Refuse(_) => Vec::new(),
                AllocateOutcome::NeedLive(wanted) => return Err(wanted.clone()),
            };
            let is_left = matches!(outcome, AllocateOutcome::Refuse(_)) && serves_without_left(context, &call);
            Ok((outcome, passed, is_left))
        });
        let now = self.now;
        let (outcome, passed, is_left) = match decided {
            Ok(decided) => decided,
            Err(wanted) => {
                if let Some(daemon) = &mut self.machines[node].daemon {
                    let pods = wanted.pods.iter().flat_map(|key| daemon.pods.of_key(key));
                    let rejected: Vec<PodUid> = pods.map(|pod| pod.pod.uid.clone()).collect();
                    if rejected.is_empty() {
                        daemon.failed = now;
                    }
                    daemon.passed.extend(rejected);
                }
                return Err("the API server did not answer".to_owned());
            }
        };
        let machine_devices = self.machines[node].inventory.devices.clone();
        let mut unhealthy = None;
        let kubelets = self.is(Mutant::KubeletChooses);
        let Some(daemon) = &mut self.machines[node].daemon else { return Err("not serving".to_owned()) };
        daemon.passed.extend(passed);
        let Some(ledger) = &mut daemon.ledger else { return Err("not serving".to_owned()) };
        let before = ledger.clone();
        let (key, answer) = match outcome {
            AllocateOutcome::Serve(serving) => {
                let mismatch = serving.mismatch;
                let mut entry = serving.entry;
                let key = entry.key();
                let mut served = entry.served.iter().map(|(_, entry)| &entry.id);
                let has_failed = |id: &&DeviceId| machine_devices.get(*id).is_none_or(|of| !of.healthy);
                unhealthy = served.find(has_failed).map(ToString::to_string);
                let mut answer = encoded(entry.to_answer());
                if kubelets && !entry.served.is_empty() {
                    let whole = |id: &String| format!("{}=100", id.split("::").next().unwrap_or_default());
                    let chosen: BTreeSet<String> = ids.iter().map(whole).collect();
                    answer = chosen.into_iter().collect::<Vec<_>>().join(",").into_bytes();
                }
                entry.answer = Some(answer.clone());
                if mismatch {
                    self.history.sometimes("the kubelet chose other ids than the assigned ones");
                }
                ledger.record(entry);
                (key, answer)
            }
            AllocateOutcome::Repeat { key, .. } => {
                self.history.sometimes("a call is repeated");
                let Some(entry) = ledger.get(&key) else { return Err("the entry is gone".to_owned()) };
                let answer = entry.answer.clone().unwrap_or_else(|| encoded(entry.to_answer()));
                ledger.repeat(&key, ids.iter().map(|id| id.as_str().into()).collect());
                ledger.set_answer(&key, answer.clone());
                (key, answer)
            }
            AllocateOutcome::Refuse(refusal) => {
                // Where PodResources does not answer, the call may be that pod's.
                if is_left && refusal.rule != AllocateRule::Ambiguous {
                    let what = format!("n{node}: {}", refusal.text);
                    self.violates("no admission fails because of a pod that has left", what);
                    return Err(refusal.text);
                }
                self.history.sometimes(refused(refusal.rule));
                if refusal.pods.is_empty() || refusal.rule == AllocateRule::Ambiguous {
                    daemon.failed = now;
                }
                for pod in &refusal.pods {
                    if refusal.rule != AllocateRule::Ambiguous {
                        daemon.passed.insert(pod.uid.clone());
                    }
                    if refusal.rule.makes_lock_useless() {
                        daemon.unusable.insert(pod.uid.clone());
                    }
                }
                self.later(node, Duration::from_millis(1), Task::Unlock);
                return Err(refusal.text);
            }
            AllocateOutcome::NeedLive(_) => return Err("not decided".to_owned()),
        };
        if let Some(id) = unhealthy {
            self.violates("no device that has failed is served", format!("n{node}: {id} for {}", key.uid));
            return Err("the run has ended".to_owned());
        }
        if killed == Some(Killed::BeforeWriting) {
            return Err("the daemon was killed".to_owned());
        }
        let ledger = ledger.clone();
        if !self.save(node, &ledger) {
            self.history.sometimes("the ledger cannot be written");
            if let Some(daemon) = &mut self.machines[node].daemon {
                daemon.ledger = Some(before);
                daemon.passed.insert(key.uid.clone());
            }
            return Err("the ledger cannot be written".to_owned());
        }
        let inventory = &self.machines[node].inventory;
        let pod = self.machines[node].daemon.as_ref().and_then(|daemon| daemon.pods.by_uid(&key.uid));
        if pod.is_some_and(|pod| ledger.fully_served(pod, inventory)) {
            self.judges.served.insert(key.uid.clone());
        }
        self.note(|| format!("n{node} serves {} {}: {}", key.uid, key.container, String::from_utf8_lossy(&answer)));
        self.later(node, Duration::from_millis(1), Task::Unlock);
        self.later(node, Duration::from_millis(50), Task::Publish);
        Ok(answer)
    }

    pub fn daemon_works(&mut self, node: usize, life: u64, task: Task) {
        if self.machines[node].daemon_life != life {
            return;
        }
        let Some(daemon) = &mut self.machines[node].daemon else { return };
        if daemon.due.get(&task) == Some(&self.now) {
            daemon.due.remove(&task);
        }
        self.open_ledger(node);
        match task {
            Task::Unlock => self.unlock(node),
            Task::Follow => self.follow(node),
            Task::Publish => self.publish(node, false),
            Task::Beat => {
                self.compare(node);
                self.publish(node, true);
                self.later(node, HEARTBEAT, Task::Beat);
                self.later(node, Duration::from_millis(10), Task::Unlock);
                self.later(node, GATHER, Task::Follow);
            }
        }
    }

    /// The unlocker's step.
    fn unlock(&mut self, node: usize) {
        let never = self.is(Mutant::NeverUnlocks);
        let first_is_enough = self.is(Mutant::UnlocksAfterFirst);
        let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
        for _ in 0..2 {
            let machine = &mut self.machines[node];
            let Some(daemon) = &mut machine.daemon else { return };
            let Some(ledger) = daemon.ledger.as_ref().filter(|_| daemon.is_synced && !daemon.releasing) else { return };
            let raw: Option<Box<str>> = daemon.lock.raw().map(Into::into);
            let read =
                daemon.asked.as_ref().filter(|(of, at, _)| raw.as_ref() == Some(of) && self.now < *at + ASK_AGAIN);
            let live = match read {
                None => LiveHolder::NotRead,
                Some((_, _, None)) => LiveHolder::NotFound,
                Some((_, _, Some(pod))) => LiveHolder::Found(pod),
            };
            let progress = |pod: &HandoffPod| {
                if first_is_enough && ledger.holds(&pod.pod.uid) {
                    return HolderProgress::Served;
                }
                ledger.progress(pod, &machine.inventory, &daemon.unusable)
            };
            let intent = judge_release(&daemon.lock, &machine.name, daemon.pods.iter(), live, progress, wall(self.now));
            match &intent {
                ReleaseIntent::Release { raw, reason: ReleaseReason::Served } => {
                    daemon.unreleased.get_or_insert_with(|| Some(raw.clone()));
                }
                _ => daemon.unreleased = Some(None),
            }
            match intent {
                ReleaseIntent::Keep => {
                    if raw.is_some() {
                        let pause = if daemon.asked.is_some() { ASK_AGAIN } else { PACE };
                        self.later(node, pause, Task::Unlock);
                    }
                    return;
                }
                ReleaseIntent::ReadHolder(key) => {
                    let raw = raw.unwrap_or_default();
                    if daemon.strange.as_ref().is_none_or(|(value, _)| *value != raw) {
                        daemon.strange = Some((raw.clone(), self.now));
                    }
                    let since = daemon.strange.as_ref().map_or(self.now, |(_, since)| *since);
                    if self.now < since + BIND_FOLLOWS || cut {
                        return self.later(node, BIND_FOLLOWS, Task::Unlock);
                    }
                    self.history.sometimes("the holder of a lock is read live");
                    daemon.asked = Some((raw, self.now, self.store.handoff(&key)));
                }
                ReleaseIntent::Release { .. } if never => return,
                ReleaseIntent::Release { raw, reason } => {
                    daemon.releasing = true;
                    self.history.sometimes(reason.word());
                    let (name, life) = (machine.name.clone(), machine.daemon_life);
                    let swap = Swap { node: name, old: Some(raw), new: None };
                    let pause = self.soon(1, 15);
                    return self.after(pause, Happening::Release { node, life, swap, tries: 0 });
                }
            }
        }
    }

    /// The release arrives; its answer comes back in no time.
    pub fn release_arrives(&mut self, node: usize, life: u64, swap: Swap, tries: u32) {
        let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
        let failed = cut || self.strikes(Fault::ServerError);
        if !failed {
            let blind = self.is(Mutant::ReleaseWithoutOwner);
            let result = self.swap(&swap, blind, None, || format!("daemon of n{node}"));
            if self.machines[node].daemon_life == life && self.strikes(Fault::DaemonKilledUnanswered) {
                self.kill_daemon(node);
                let pause = self.soon(500, 20_000);
                self.after(pause, Happening::Mend(super::faults::Mend::Daemon(node)));
            }
            if self.machines[node].daemon_life != life {
                return; // killed between request and answer
            }
            if !self.strikes(Fault::LostAnswer) {
                let Some(daemon) = &mut self.machines[node].daemon else { return };
                daemon.releasing = false;
                match result {
                    LockResult::Contended(now) => daemon.lock = now,
                    _ if daemon.lock.raw() == swap.old.as_deref() => daemon.lock = LockRead::Free,
                    _ => {}
                }
                daemon.unreleased = Some(None);
                return self.later(node, Duration::from_millis(1), Task::Unlock);
            }
        }
        if self.machines[node].daemon_life != life {
            return;
        }
        self.history.sometimes("the release of a lock is tried again");
        if let Some(daemon) = &mut self.machines[node].daemon {
            daemon.unreleased = Some(swap.old.clone());
        }
        if tries == 0 {
            self.later(node, Duration::from_millis(50), Task::Publish);
        }
        if !self.is(Mutant::ReleaseTriedOnce) {
            let pause = AGAIN * 2u32.pow(tries.min(TRIES));
            self.after(pause, Happening::Release { node, life, swap, tries: tries + 1 });
        }
    }

    /// A pod as the daemon of a node was shown it last.
    pub fn shown_to(&self, node: usize, uid: &PodUid) -> Option<HandoffPod> {
        self.machines[node].daemon.as_ref()?.pods.current(uid)
    }

    /// What the daemon of a node has served, for the judges.
    pub fn served_by(&self, node: usize, uid: &PodUid) -> Option<BTreeSet<String>> {
        let ledger = self.machines[node].daemon.as_ref()?.ledger.as_ref()?;
        Some(
            ledger.of_pod(uid).flat_map(|entry| entry.devices().map(ToString::to_string).collect::<Vec<_>>()).collect(),
        )
    }
}

/// The call would be served if the ledger had nothing of pods that have left.
fn serves_without_left(context: &AllocateContext<'_>, call: &AllocateCall<'_>) -> bool {
    let has_left = |entry: &&baton::decide::handoff::LedgerEntry| {
        entry.leaving().is_some() && !context.ledger.is_live(entry, context.pods, context.resources)
    };
    if !context.ledger.iter().any(|entry| has_left(&entry)) {
        return false;
    }
    let ledger = Ledger::of(context.ledger.iter().filter(|entry| !has_left(entry)).cloned());
    let outcome = decide(&AllocateContext { ledger: &ledger, ..*context }, call, None);
    matches!(outcome, AllocateOutcome::Serve(_) | AllocateOutcome::Repeat { .. })
}

/// A refusal, as something that is rarely seen.
fn refused(rule: AllocateRule) -> &'static str {
    match rule {
        AllocateRule::Lock => "a call without the lock is refused",
        AllocateRule::NoRoom => "a call for a device in use is refused",
        AllocateRule::Ambiguous => "a call that two pods could make is refused",
        AllocateRule::Unidentified => "a call that no pod could make is refused",
        _ => "a call is refused for another reason",
    }
}
