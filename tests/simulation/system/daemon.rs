//! A node daemon as a process: watches, ledger and unlocker, as `agent::handoff` has them, around the decisions that ship.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::agent::AgentTimings;
use baton::agent::handoff::ledger_file;
use baton::contract::{AgentStatus, LockRead, PodUid};
use baton::decide::handoff::rebuild::rebuild;
use baton::decide::handoff::{Ledger, PodListing, PodResources};
use baton::decide::lock::ReleaseReason;
use baton::decide::node::following::GATHER;
use baton::decide::node::publishing::PAUSE;
use baton::decide::node::unlocking::RETRY_MIN;
use baton::decide::node::{CallEvent, Comparing, Facts, HandOff, NodeSeen, UnlockEffect, UnlockReport, Unlocking};
use baton::decide::pod::HandoffPod;
use baton::decide::scheduler::LockResult;
use baton::runtime::Backoff;

use super::housekeeping::left_at;
use super::machine::{Machine, since_boot};
use super::store::{Change, NODES, PODS, Swap, Watches};
use super::{Fault, Happening, Mutant, Reader, START, System};
use crate::harness::wall;

/// What a node daemon keeps in memory.
pub struct Daemon {
    /// By its watches.
    pub seen: NodeSeen,
    watches: Watches,
    /// `None` until it is known what was handed out.
    pub hand_off: Option<HandOff>,
    /// For the judges: pods whose processes have ended, and since when that can be seen.
    pub overdue: BTreeMap<PodUid, Duration>,
    /// For the judges: the lock of a holder that is served, and since when.
    pub lock_due: Option<(Box<str>, Duration)>,
    /// Of an adapter that is wrong: the list before.
    pub listed_before: Option<PodResources>,
    /// Its comparisons with the kubelet.
    pub comparing: Comparing,
    /// Its work on the lock.
    pub unlocking: Unlocking,
    backoff: Backoff,
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

impl Daemon {
    fn new(now: Duration) -> Self {
        let pace = AgentTimings::default().unlock_retry;
        Self {
            seen: NodeSeen::default(),
            watches: Watches::default(),
            hand_off: None,
            overdue: BTreeMap::new(),
            lock_due: None,
            listed_before: None,
            comparing: Comparing::default(),
            unlocking: Unlocking::new(pace, now),
            backoff: Backoff::new(RETRY_MIN, pace),
            releasing: false,
            said: None,
            due: BTreeMap::new(),
        }
    }

    /// What it has handed out, once that is known.
    pub fn ledger(&self) -> Option<&Ledger> {
        self.hand_off.as_ref().map(HandOff::ledger)
    }
}

impl System {
    pub fn start_daemon(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.daemon_life += 1;
        (machine.daemon, machine.daemon_has_news) = (Some(Daemon::new(self.now)), true);
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
            self.later(node, PAUSE, Task::Publish);
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
        let behind = self.one_is_behind(&[NODES, PODS]);
        let mutant = self.plan.mutant;
        let Machine { name, daemon, ran_before, .. } = &mut self.machines[node];
        let name = name.clone();
        let Some(daemon) = daemon else { return };
        if !daemon.seen.is_synced() || again {
            // A list may be an old one: what has changed since comes by the watch that follows.
            let end = self.store.end();
            let from = if again { self.store.listed(self.now) } else { end };
            let late = end - from;
            let (mut pods, mut lock) = (Vec::new(), None);
            for change in self.store.list(from) {
                match change {
                    Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                        pods.push(since_boot(ran_before, mutant, pod.handoff.clone()));
                    }
                    Change::Node(node) if node.name == name => lock.clone_from(&node.lock),
                    _ => {}
                }
            }
            daemon.seen.pods.replace(pods);
            daemon.seen.lock = LockRead::parse(lock.as_deref());
            daemon.watches.listed(from);
            (daemon.seen.pods_synced, daemon.seen.node_synced, daemon.seen.pods_listed) = (true, true, self.now);
            if again {
                self.note(|| format!("daemon of n{node} lists again, {late} changes behind"));
                if late > 0 {
                    self.comes_later(Reader::Daemon(node), life);
                }
            }
        } else {
            for change in daemon.watches.follow(&self.store, None, behind) {
                match change {
                    Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                        daemon.seen.pods.apply(since_boot(ran_before, mutant, pod.handoff.clone()));
                    }
                    Change::PodGone(pod) if pod.handoff.node.as_deref() == Some(&*name) => {
                        daemon.seen.pods.remove(&pod.handoff.pod.uid);
                    }
                    Change::Node(node) if node.name == name => daemon.seen.lock = LockRead::parse(node.lock.as_deref()),
                    _ => {}
                }
            }
            if behind.is_some() {
                self.comes_later(Reader::Daemon(node), life);
            }
        }
        self.open_ledger(node);
        self.later(node, Duration::from_millis(1), Task::Unlock);
        self.later(node, GATHER, Task::Follow);
        self.later(node, PAUSE, Task::Publish);
    }

    /// The ledger of this boot from its file, else rebuilt once the kubelet lists its pods.
    fn open_ledger(&mut self, node: usize) {
        let now = self.now;
        let is_skipped = self.is(Mutant::RebuildSkipped);
        let is_blind = self.is(Mutant::RebuildsBeforeListing);
        let machine = &mut self.machines[node];
        let Some(daemon) =
            machine.daemon.as_ref().filter(|daemon| daemon.hand_off.is_none() && daemon.seen.is_synced())
        else {
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
                let answers = machine.kubelet.stored_answers();
                listing.answers.clone_from(&answers);
                if is_blind {
                    listing = PodListing::default();
                }
                let pods = daemon.seen.pods.clone();
                let mut rebuilt = rebuild(&machine.name, &pods, &listing, &machine.inventory);
                self.add_left(node, &mut rebuilt, &pods, &listing.answers);
                let runtime = &self.machines[node].kubelet.runtime;
                // Of a pod that has left, and of a container of it that the kubelet's checkpoint has not, nothing is known.
                let has_left = |uid: &PodUid| pods.by_uid(uid).is_none_or(|pod| pod.phase.is_terminal());
                let is_stored = |uid: &PodUid, container: &str| {
                    answers.keys().any(|key| key.uid == *uid && *key.container == *container)
                };
                for (uid, runs) in runtime.iter().filter(|(uid, _)| has_left(uid)) {
                    let lost = runs.devices.iter().filter(|(container, ..)| !is_stored(uid, container));
                    self.judges.unknown.extend(lost.map(|(container, ..)| (uid.clone(), container.clone())));
                }
                let lost = runtime.keys().filter(|uid| answers.keys().all(|key| key.uid != **uid));
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
        let is_registered = self.machines[node].kubelet.is_registered;
        let Some(daemon) = &mut self.machines[node].daemon else { return };
        daemon.hand_off = Some(HandOff::begin(ledger));
        if is_registered {
            self.plugin_sees(node, CallEvent::Registered(wall(self.now)));
        }
    }

    pub fn save(&mut self, node: usize, ledger: &Ledger) -> bool {
        if self.strikes(Fault::DiskFull) {
            return false;
        }
        let boot = self.machines[node].boot.to_string();
        self.machines[node].disk = ledger_file::print(ledger, &boot).unwrap();
        true
    }

    /// A plugin that was registered loses its kubelet before another one takes its registration.
    pub fn plugin_sees(&mut self, node: usize, event: CallEvent) {
        if let Some(Daemon { hand_off: Some(hand_off), .. }) = &mut self.machines[node].daemon {
            hand_off.event(event);
        }
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
                self.later(node, AgentTimings::default().heartbeat, Task::Beat);
                self.later(node, Duration::from_millis(10), Task::Unlock);
                self.later(node, GATHER, Task::Follow);
            }
        }
    }

    /// Looks at the lock, unless its removal is under way.
    fn unlock(&mut self, node: usize) {
        if self.machines[node].daemon.as_ref().is_some_and(|daemon| !daemon.releasing) {
            let effects = self.with_unlocking(node, |unlocking, of, facts| unlocking.look(Some(of), facts));
            self.unlocks(node, effects);
        }
    }

    fn with_unlocking<T: Default>(
        &mut self,
        node: usize,
        look: impl FnOnce(&mut Unlocking, &HandOff, &Facts<'_>) -> T,
    ) -> T {
        let Some(daemon) = &mut self.machines[node].daemon else { return T::default() };
        let mut unlocking = daemon.unlocking.clone();
        let first_is_enough = self.is(Mutant::UnlocksAfterFirst);
        let looked = self.with_hand_off(node, self.now, |of, facts| {
            if !first_is_enough {
                return look(&mut unlocking, of, facts);
            }
            let mut seen = facts.seen.clone();
            for pod in facts.seen.pods.iter().filter(|pod| of.ledger().holds(&pod.pod.uid)) {
                let mut pod = pod.clone();
                let has =
                    |container: &str| of.ledger().of_pod(&pod.pod.uid).any(|entry| &*entry.container == container);
                let first = pod.containers.iter().filter(|container| has(&container.name)).cloned().collect();
                pod.containers = first;
                seen.pods.apply(pod);
            }
            look(&mut unlocking, of, &Facts { seen: &seen, ..*facts })
        });
        if let Some(daemon) = &mut self.machines[node].daemon {
            daemon.unlocking = unlocking;
        }
        looked.unwrap_or_default()
    }

    /// Performs what is to be done about the lock.
    fn unlocks(&mut self, node: usize, mut effects: Vec<UnlockEffect>) {
        let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
        while !effects.is_empty() {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                match effect {
                    UnlockEffect::Say(_) => self.later(node, PAUSE, Task::Publish),
                    UnlockEffect::ReadLock => {
                        if !cut {
                            self.reads(node, &BTreeSet::new(), true);
                        }
                        report = Some(UnlockReport::LockRead { read: !cut });
                    }
                    UnlockEffect::ReadHolder(key) => {
                        if !cut {
                            self.history.sometimes("the holder of a lock is read live");
                        }
                        report = Some(UnlockReport::HolderRead((!cut).then(|| self.store.handoff(&key).map(Box::new))));
                    }
                    UnlockEffect::Release { .. } if self.is(Mutant::NeverUnlocks) => return,
                    UnlockEffect::Release { raw, reason } => return self.releases(node, raw, reason),
                    UnlockEffect::Rest(pause) => {
                        if let Some(daemon) = &mut self.machines[node].daemon {
                            daemon.backoff.succeed();
                        }
                        return self.later(node, pause, Task::Unlock);
                    }
                    UnlockEffect::RestAfterFailure => {
                        let Some(daemon) = &mut self.machines[node].daemon else { return };
                        let pause = daemon.backoff.fail(0.0);
                        return self.later(node, pause, Task::Unlock);
                    }
                }
            }
            let Some(report) = report else { return };
            effects = self.with_unlocking(node, |unlocking, of, facts| unlocking.report(report, Some(of), facts));
        }
    }

    fn releases(&mut self, node: usize, raw: Box<str>, reason: ReleaseReason) {
        self.history.sometimes(reason.word());
        let machine = &mut self.machines[node];
        let Some(daemon) = &mut machine.daemon else { return };
        daemon.releasing = true;
        let (life, swap) = (machine.daemon_life, Swap { node: machine.name.clone(), old: Some(raw), new: None });
        let pause = self.soon(1, 15);
        self.after(pause, Happening::Release { node, life, swap });
    }

    /// The release arrives; its answer comes back in no time.
    pub fn release_arrives(&mut self, node: usize, life: u64, swap: Swap) {
        let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
        let mut is_known = false;
        if !(cut || self.strikes(Fault::ServerError)) {
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
            is_known = !self.strikes(Fault::LostAnswer);
            if let Some(Daemon { seen, .. }) = self.machines[node].daemon.as_mut().filter(|_| is_known) {
                match result {
                    LockResult::Contended(now) => seen.lock = now,
                    _ => seen.lock_released(swap.old.as_deref().unwrap_or_default()),
                }
            }
        }
        if self.machines[node].daemon_life != life {
            return;
        }
        if !is_known {
            self.history.sometimes("the release of a lock is tried again");
        }
        let once = self.is(Mutant::ReleaseTriedOnce);
        if let Some(daemon) = &mut self.machines[node].daemon {
            daemon.releasing = once && !is_known;
        }
        let report = UnlockReport::Released(is_known);
        let effects = self.with_unlocking(node, |unlocking, of, facts| unlocking.report(report, Some(of), facts));
        self.unlocks(node, effects);
    }

    /// A pod as the daemon of a node was shown it last.
    pub fn shown_to(&self, node: usize, uid: &PodUid) -> Option<HandoffPod> {
        self.machines[node].daemon.as_ref()?.seen.pods.current(uid)
    }

    /// What the daemon of a node has served, for the judges.
    pub fn served_by(&self, node: usize, uid: &PodUid) -> Option<BTreeSet<String>> {
        let ledger = self.machines[node].daemon.as_ref()?.ledger()?;
        Some(
            ledger.of_pod(uid).flat_map(|entry| entry.devices().map(ToString::to_string).collect::<Vec<_>>()).collect(),
        )
    }
}
