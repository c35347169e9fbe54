//! What a node daemon does beside calls, as `agent::handoff` has it: it follows the pods and the processes of those that have left, keeps
//! container starts waiting for them, compares with the kubelet, and says in its Lease what pods hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{AgentStatus, Identity, LockFormat, LockWord, PodKey, PodRef, PodUid, key};
use baton::decide::handoff::exceptions::exceptions;
use baton::decide::handoff::leaving::{add_leaving, held_start, leaving, vacated};
use baton::decide::handoff::listing::{EntryKey, StoredAnswer};
use baton::decide::handoff::rebuild::adopt;
use baton::decide::handoff::verify::{ADMITTED_WITHOUT_DEVICES, verify};
use baton::decide::handoff::{
    CgroupLook, GrantState, Hold, LastSeen, Leaving, Ledger, LedgerEntry, NodePods, PodResources, Processes,
};
use baton::decide::pod::HandoffPod;

use super::daemon::{Daemon, Task};
use super::machine::since_boot;
use super::{Mutant, Reader, START, System};
use crate::harness::wall;

/// Between two looks at pods that have left.
const LOOK_OFTEN: Duration = Duration::from_millis(200);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);
/// The entry of a pod that has left goes within this time once its processes have ended: where they were seen, and where not.
const GOES: Duration = Duration::from_secs(6);
const GOES_UNSEEN: Duration = Duration::from_secs(100);

/// What a daemon answers before a container starts.
pub enum Gate {
    Open,
    NotReady,
    /// Processes of these pods may use the devices.
    Held(Vec<PodUid>),
}

/// Entries that were read from a file have left at the start of the process that reads them.
pub fn left_at(ledger: &mut Ledger, now: Duration) {
    let left: Vec<LedgerEntry> = ledger.iter().filter(|entry| entry.leaving().is_some()).cloned().collect();
    for mut entry in left {
        if let GrantState::Leaving(state) = &mut entry.state {
            state.since = now;
        }
        ledger.restore(entry);
    }
}

impl System {
    /// PreStartContainer: what has to wait is asked for again in a moment.
    pub fn gate(&mut self, node: usize, resource: &str, ids: &[String]) -> Gate {
        let now = self.now;
        let asks = !self.is(Mutant::GateAsksNothing);
        let hidden = |system: &Self, uid: &PodUid| system.look_at(node, uid);
        let machine = &mut self.machines[node];
        let Some(daemon) = machine.daemon.as_mut().filter(|_| machine.kubelet.is_registered) else {
            return Gate::NotReady;
        };
        let Some(hand_off) = &mut daemon.hand_off else { return Gate::NotReady };
        let (ledger, mut processes) = (hand_off.ledger().clone(), std::mem::take(hand_off.parts().1));
        let mut looked = BTreeSet::new();
        let inventory = self.machines[node].inventory.clone();
        let answer = loop {
            let gone = |entry: &LedgerEntry| processes.hold(entry, now) != Hold::Held;
            let is_found = |uid: &PodUid| processes.is_found(uid);
            let held = held_start(resource, ids, &ledger, &inventory, gone, is_found);
            let Some(held) = held.filter(|_| asks) else {
                break Gate::Open;
            };
            let new: Vec<PodUid> = held.users.iter().filter(|uid| looked.insert((*uid).clone())).cloned().collect();
            for uid in &new {
                processes.saw(uid, hidden(self, uid), false, now);
            }
            if new.is_empty() {
                break Gate::Held(held.users);
            }
        };
        self.freed_unseen(&ledger, &processes);
        if let Some(Daemon { hand_off: Some(hand_off), .. }) = &mut self.machines[node].daemon {
            *hand_off.parts().1 = processes;
        }
        answer
    }

    /// Pods that a daemon takes for gone without proof.
    fn freed_unseen(&mut self, ledger: &Ledger, processes: &Processes) {
        let unseen = vacated(ledger, processes, self.now).filter(|(_, hold)| *hold == Hold::Unseen);
        let unseen: Vec<PodUid> = unseen.map(|(entry, _)| entry.pod.uid.clone()).collect();
        for uid in unseen {
            if self.judges.unseen.insert(uid) {
                self.history.sometimes("devices are freed unseen");
            }
        }
    }

    /// Adds to a rebuilt ledger what pods that have left still use.
    pub fn add_left(
        &mut self,
        node: usize,
        rebuilt: &mut Ledger,
        pods: &NodePods,
        answers: &BTreeMap<EntryKey, StoredAnswer>,
    ) {
        let state = Leaving { at: wall(self.now), since: self.now, last: LastSeen::Running };
        // What is not seen is not known to be gone.
        let occupied = |uid: &PodUid| matches!(self.look_at(node, uid), CgroupLook::Occupied | CgroupLook::Unknown);
        add_leaving(rebuilt, pods, answers, &self.machines[node].inventory, occupied, state);
        if rebuilt.iter().any(|entry| entry.leaving().is_some()) {
            self.history.sometimes("a ledger is rebuilt with a leaving pod");
        }
    }

    /// Looks at the cgroups of pods that have left, and of each other pod until its processes are found.
    fn look(&mut self, node: usize) {
        let now = self.now;
        let Some(Daemon { hand_off: Some(hand_off), seen, .. }) = &self.machines[node].daemon else { return };
        let (ledger, processes, pods) = (hand_off.ledger(), hand_off.processes(), &seen.pods);
        let uids: BTreeMap<&PodUid, bool> =
            ledger.iter().map(|entry| (&entry.pod.uid, entry.leaving().is_some())).collect();
        let mut looks = Vec::new();
        for (uid, leaving) in uids {
            let runs = pods.by_uid(uid).is_some_and(HandoffPod::any_runs);
            if leaving || pods.has_left(uid) || !processes.is_found(uid) {
                looks.push((uid.clone(), self.look_at(node, uid), runs));
            }
        }
        let Some(Daemon { hand_off: Some(hand_off), .. }) = &mut self.machines[node].daemon else { return };
        let (ledger, processes) = hand_off.parts();
        for (uid, look, runs) in &looks {
            processes.saw(uid, *look, *runs, now);
            if *look == CgroupLook::Occupied {
                ledger.runs(uid);
            }
        }
    }

    /// Lets entries of pods that have left go once their processes have.
    pub fn follow(&mut self, node: usize) {
        let pause = self.follow_once(node);
        if let Some(pause) = pause {
            self.later(node, pause, Task::Follow);
        }
    }

    /// When to look again, while a pod is leaving.
    fn follow_once(&mut self, node: usize) -> Option<Duration> {
        let (now, mutant) = (self.now, self.plan.mutant);
        let cut = self.faults.is_cut(Reader::Daemon(node), now);
        let daemon = self.machines[node].daemon.as_mut()?;
        if cut || daemon.hand_off.is_none() || !daemon.seen.is_synced() {
            daemon.overdue.clear();
            return Some(LOOK_SELDOM);
        }
        if mutant == Some(Mutant::NeverExpires) {
            return None;
        }
        let ledger = daemon.hand_off.as_ref()?.ledger();
        daemon.seen.pods.forget_gone(|uid| ledger.holds(uid));
        self.look(node);
        let daemon = self.machines[node].daemon.as_mut()?;
        let hand_off = daemon.hand_off.as_ref()?;
        let (ledger, pods) = (hand_off.ledger(), &daemon.seen.pods);
        let new = ledger.iter().filter(|entry| pods.has_left(&entry.pod.uid) != entry.leaving().is_some());
        let new: Vec<_> = new.collect();
        let gone = new.iter().filter(|entry| pods.by_uid(&entry.pod.uid).is_none() && !pods.is_deleted(&entry.pod.uid));
        let absent: BTreeSet<PodKey> = gone.map(|entry| entry.pod.key.clone()).collect();
        let has_ended = !new.is_empty() || vacated(ledger, hand_off.processes(), now).next().is_some();
        let machine = &mut self.machines[node];
        for key in absent {
            let found = self.store.handoff(&key).map(|pod| since_boot(&machine.ran_before, pod));
            if found.as_ref().is_none_or(|pod| pod.node.as_deref() == Some(&*machine.name)) {
                machine.daemon.as_mut()?.seen.pods.apply_live(&key, found);
            }
        }
        let resources = has_ended.then(|| self.listed(node));
        let machine = &mut self.machines[node];
        let daemon = machine.daemon.as_mut()?;
        let hand_off = daemon.hand_off.as_mut()?;
        hand_off.forget_marks(&daemon.seen);
        let mut changed = adopt(hand_off.parts().0, &machine.name, &daemon.seen.pods);
        let is_freed = |entry: &LedgerEntry, pods: &NodePods| match mutant {
            Some(Mutant::FreedAtDeletion) => pods.by_uid(&entry.pod.uid).is_none(),
            Some(Mutant::FreedAtPhase) => pods.by_uid(&entry.pod.uid).is_some_and(|pod| pod.phase.is_terminal()),
            _ => false,
        };
        let mut dropped: Vec<EntryKey> = Vec::new();
        if let Some(resources) = &resources {
            changed |= hand_off.parts().0.follow(&daemon.seen.pods, resources, (now, wall(now)));
            self.look(node);
            let daemon = self.machines[node].daemon.as_ref()?;
            let hand_off = daemon.hand_off.as_ref()?;
            let ledger = hand_off.ledger();
            if *resources != PodResources::Throttled {
                dropped.extend(vacated(ledger, hand_off.processes(), now).map(|(entry, _)| entry.key()));
            }
            dropped.extend(ledger.iter().filter(|entry| is_freed(entry, &daemon.seen.pods)).map(LedgerEntry::key));
        }
        let hand_off = self.machines[node].daemon.as_ref()?.hand_off.clone()?;
        self.freed_unseen(hand_off.ledger(), hand_off.processes());
        let (ledger, processes) = self.machines[node].daemon.as_mut()?.hand_off.as_mut()?.parts();
        dropped.iter().for_each(|key| ledger.forget(key));
        processes.retain(|uid| ledger.holds(uid));
        let ledger = ledger.clone();
        let is_throttled = resources == Some(PodResources::Throttled);
        if changed || !dropped.is_empty() {
            self.save(node, &ledger);
        }
        let latest = ledger.iter().filter_map(|entry| Some(entry.leaving()?.since)).max();
        self.judge_left(node, is_throttled);
        if changed || !dropped.is_empty() || latest.is_some() {
            self.later(node, Duration::from_millis(50), Task::Publish);
        }
        let latest = latest?;
        Some(if now < latest + SOON { LOOK_OFTEN } else { LOOK_SELDOM })
    }

    /// An entry goes soon after the processes of its pod.
    fn judge_left(&mut self, node: usize, is_throttled: bool) {
        let now = self.now;
        let machine = &mut self.machines[node];
        let Some(Daemon { hand_off: Some(hand_off), overdue, .. }) = &mut machine.daemon else { return };
        let (ledger, processes) = (hand_off.ledger(), hand_off.processes());
        let is_hidden = now < machine.cgroups_hidden;
        let gone = ledger.iter().filter(|entry| {
            entry.leaving().is_some() && !machine.kubelet.runtime.contains_key(&entry.pod.uid) && !is_throttled
        });
        let gone: BTreeMap<&PodUid, &PodRef> = gone.map(|entry| (&entry.pod.uid, &entry.pod)).collect();
        overdue.retain(|uid, _| gone.contains_key(uid));
        for (uid, pod) in gone {
            let is_seen = !is_hidden && processes.is_found(uid);
            let since = overdue.entry(uid.clone()).or_insert((now, now));
            if is_hidden {
                since.1 = now;
            }
            let most = if is_seen { since.1 + GOES } else { since.0 + GOES_UNSEEN };
            if now > most {
                let what =
                    format!("n{node}: {} still has its devices {:?} after its processes", pod.key, now - since.0);
                self.violation.get_or_insert(super::Violation {
                    judge: "the devices of a pod that has left are free soon after its processes",
                    what,
                    step: self.history.steps,
                });
                return;
            }
        }
    }

    /// Compares with the kubelet.
    pub fn compare(&mut self, node: usize) {
        let resources = self.listed(node);
        let taken = self.with_hand_off(node, self.now, |hand_off, facts| hand_off.take_in(&resources, facts));
        if taken.is_some_and(|taken| taken.learned) {
            self.history.sometimes("devices in use are learned from the kubelet");
        }
        let PodResources::Listed(listing) = resources else { return };
        let machine = &mut self.machines[node];
        let Some(Daemon { hand_off: Some(hand_off), seen, unserved, .. }) = &mut machine.daemon else { return };
        let ledger = hand_off.ledger();
        let found = verify(&machine.name, &seen.pods, &listing, ledger, &machine.inventory);
        if !found.is_empty() {
            self.history.sometimes("a divergence is reported");
        }
        let reported = found.clone();
        let without = found.into_iter().filter(|notice| notice.reason == ADMITTED_WITHOUT_DEVICES);
        *unserved = without.map(|notice| notice.pod.uid).collect();
        if !unserved.is_empty() {
            self.history.sometimes("a pod runs without its devices, and its daemon says so");
        }
        let ledger = ledger.clone();
        self.save(node, &ledger);
        self.judge_agreement(node, &reported);
    }

    /// The Lease: each half minute, and at once when it says something new.
    pub fn publish(&mut self, node: usize, anyway: bool) {
        if self.faults.is_cut(Reader::Daemon(node), self.now) || self.faults.is_silent(node, self.now) {
            return;
        }
        let mutant = self.plan.mutant;
        let machine = &mut self.machines[node];
        machine.describe();
        self.store.report_devices(&machine.name, machine.device.as_ref().unwrap());
        let Some(daemon) = &mut machine.daemon else { return };
        let left = daemon.ledger().map(|ledger| leaving(ledger.iter(), self.now)).unwrap_or_default();
        let found = daemon.ledger().and_then(|ledger| {
            exceptions(&machine.name, &daemon.seen.pods, ledger.iter(), &left, &daemon.unserved, &machine.inventory)
        });
        let unreleased = daemon.unlocking.said().map(|said| said.clone().raw());
        let found = found.filter(|_| daemon.seen.is_synced()).zip(unreleased);
        let known = found.is_some() && machine.kubelet.is_registered;
        let (exceptions, unreleased) = found.unzip();
        if exceptions.as_ref().is_some_and(|found| found.keys().any(|uid| !left.contains_key(uid))) {
            self.history.sometimes("a pod holds other devices than its annotation says");
        }
        if !left.is_empty() {
            self.history.sometimes("a Lease names a pod that has left");
        }
        let exceptions =
            exceptions.map(|found| if mutant == Some(Mutant::NoExceptions) { Default::default() } else { found });
        let status = AgentStatus {
            version: "1".into(),
            registered: if known {
                machine.inventory.registered.iter().map(ToString::to_string).collect()
            } else {
                Vec::new()
            },
            identity: Identity::Exact,
            lockless: Some(Vec::new()),
            leaving: if exceptions.is_some() { left } else { BTreeMap::new() },
            exceptions,
            lock: Some(LockWord::new(key::NODE_LOCK, LockFormat::Uid)),
            too_many_exceptions: false,
            unreleased: unreleased.flatten(),
        };
        if anyway || daemon.said.as_ref() != Some(&status) {
            daemon.said = Some(status.clone());
            let name = machine.name.clone();
            if !anyway {
                let (names, unreleased) = (status.registered.len(), &status.unreleased);
                let held = status.exceptions.as_ref().map(|of| {
                    of.iter().map(|(uid, held)| format!("{uid}: {} devices", held.len())).collect::<Vec<_>>()
                });
                self.history.note(
                    self.now - START,
                    &format!("{name} says: {names} names, exceptions {held:?}, unreleased {unreleased:?}"),
                );
            }
            let said = status.exceptions.clone();
            self.store.beat(&name, status, wall(self.now));
            if let Some(said) = said {
                self.judge_exceptions(node, &said);
            }
        }
    }

    /// No ledger has anything of pods that are gone, and no process of them runs.
    pub fn nothing_leaves(&self) -> bool {
        self.machines.iter().all(|machine| {
            let ledger = machine.daemon.as_ref().and_then(Daemon::ledger);
            let is_over = |pod: &PodRef| self.store.of(pod).is_none_or(|facts| facts.handoff.phase.is_terminal());
            ledger.into_iter().flat_map(Ledger::iter).all(|entry| !is_over(&entry.pod))
                && machine.kubelet.runtime.is_empty()
        })
    }
}
