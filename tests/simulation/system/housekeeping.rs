//! What a node daemon does beside calls, as `agent::handoff` has it: it follows the pods and the processes of those that have left, keeps
//! container starts waiting for them, compares with the kubelet, and says in its Lease what pods hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{AgentStatus, Identity, LockFormat, LockRead, LockWord, PodRef, PodUid, key};
use baton::decide::handoff::leaving::{add_leaving, vacated};
use baton::decide::handoff::listing::{EntryKey, StoredAnswer};
use baton::decide::handoff::{
    CallState, CgroupLook, Hold, LastSeen, Leaving, Ledger, LedgerEntry, NodePods, PodResources,
};
use baton::decide::lock::{LockMatch, names};
use baton::decide::node::following::LOOK_SELDOM;
use baton::decide::node::publishing::PAUSE;
use baton::decide::node::{
    CompareEffect, FollowEffect, FollowReport, Following, HandOff, HandoffStatus, StartEffect, Starting,
};
use baton::decide::pod::HandoffPod;

use super::daemon::{Daemon, Task};
use super::{Mutant, Reader, START, System};
use crate::harness::wall;

/// The entry of a pod that has left goes within this time once its processes have ended: where they were seen, and where not.
const GOES: Duration = Duration::from_secs(6);
const GOES_UNSEEN: Duration = Duration::from_secs(100);
/// A lock goes within this time once its holder is served: some tries may fail.
const LOCK_GOES: Duration = Duration::from_secs(20);

/// What a daemon answers before a container starts.
pub enum Gate {
    Open,
    /// It is tried again.
    NotReady,
    /// Processes of these pods may use the devices: look again after this time.
    Held(Vec<PodUid>, Duration),
}

/// Entries that were read from a file have left at the start of the process that reads them.
pub fn left_at(ledger: &mut Ledger, now: Duration) {
    let left: Vec<LedgerEntry> = ledger.iter().filter(|entry| entry.leaving().is_some()).cloned().collect();
    for mut entry in left {
        if let CallState::Leaving(state) = &mut entry.state {
            state.since = now;
        }
        ledger.restore(entry);
    }
}

impl System {
    /// PreStartContainer, kept since then.
    pub fn gate(&mut self, node: usize, resource: &str, ids: &[String], since: Duration) -> Gate {
        let machine = &self.machines[node];
        if !machine.kubelet.is_registered || machine.daemon.as_ref().is_none_or(|daemon| daemon.hand_off.is_none()) {
            return Gate::NotReady;
        }
        if self.is(Mutant::GateAsksNothing) {
            return Gate::Open;
        }
        let mut starting = Starting::new(resource, ids.to_vec(), since);
        let begun = self.with_hand_off(node, self.now, |of, facts| starting.look(Some(of), facts));
        let mut effects = begun.unwrap_or_default();
        let answer = loop {
            let mut looks = None;
            let mut answer = None;
            for effect in std::mem::take(&mut effects) {
                match effect {
                    StartEffect::Look(uids) => looks = Some(self.looks(node, uids)),
                    StartEffect::Waits { .. } => {}
                    StartEffect::Start => answer = Some(Gate::Open),
                    StartEffect::Wait(pause) => answer = Some(Gate::Held(starting.users().to_vec(), pause)),
                    StartEffect::Refuse(_) => answer = Some(Gate::NotReady),
                }
            }
            let Some(looks) = looks else { break answer.unwrap_or(Gate::NotReady) };
            let next = self.with_hand_off(node, self.now, |of, facts| starting.looked(&looks, of, facts));
            effects = next.unwrap_or_default();
        };
        self.freed_unseen(node);
        answer
    }

    fn looks(&self, node: usize, uids: Vec<PodUid>) -> Vec<(PodUid, CgroupLook)> {
        uids.into_iter().map(|uid| (uid.clone(), self.look_at(node, &uid))).collect()
    }

    /// Pods that a daemon takes for gone without proof.
    fn freed_unseen(&mut self, node: usize) {
        let hand_off = self.machines[node].daemon.as_ref().and_then(|daemon| daemon.hand_off.as_ref());
        let Some(hand_off) = hand_off else { return };
        let unseen = vacated(hand_off.ledger(), hand_off.processes(), self.now);
        let unseen = unseen.filter(|(_, hold)| *hold == Hold::Unseen).map(|(entry, _)| entry.pod.uid.clone());
        for uid in unseen.collect::<Vec<_>>() {
            self.goes_unseen(uid);
        }
    }

    fn goes_unseen(&mut self, uid: PodUid) {
        if self.judges.unseen.insert(uid) {
            self.history.sometimes("devices are freed unseen");
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

    /// Lets entries of pods that have left go once their processes have.
    pub fn follow(&mut self, node: usize) {
        let pause = self.follow_once(node);
        if let Some(pause) = pause {
            self.later(node, pause, Task::Follow);
        }
    }

    /// When to look again, while a pod is leaving.
    fn follow_once(&mut self, node: usize) -> Option<Duration> {
        let cut = self.faults.is_cut(Reader::Daemon(node), self.now);
        if let Some(daemon) = self.machines[node].daemon.as_mut().filter(|daemon| cut || !daemon.seen.is_synced()) {
            daemon.overdue.clear();
        }
        if self.is(Mutant::NeverExpires) {
            return None;
        }
        let mut following = Following::default();
        let Some(mut effects) = self.with_hand_off(node, self.now, |of, facts| following.begin(Some(of), facts)) else {
            return Some(LOOK_SELDOM);
        };
        let mut resources = None;
        loop {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                match effect {
                    FollowEffect::ForgetGone => {
                        let Daemon { hand_off, seen, .. } = self.machines[node].daemon.as_mut()?;
                        let hand_off = hand_off.as_ref()?;
                        seen.pods.forget_gone(|uid| hand_off.ledger().holds(uid));
                    }
                    FollowEffect::Look(uids) if self.is(Mutant::DropsBeforeLooking) => {
                        let unseen = uids.into_iter().map(|uid| (uid, CgroupLook::Absent));
                        report = Some(FollowReport::Looked(unseen.collect()));
                    }
                    FollowEffect::Look(uids) => report = Some(FollowReport::Looked(self.looks(node, uids))),
                    FollowEffect::Read(keys) => {
                        self.reads(node, &keys, false);
                        report = Some(FollowReport::Read(true));
                    }
                    FollowEffect::List => {
                        let listed = self.listed(node);
                        resources = Some(listed.clone());
                        report = Some(FollowReport::Listed(listed));
                    }
                    FollowEffect::Free(pod, Hold::Unseen) => self.goes_unseen(pod.uid),
                    FollowEffect::Free(..) | FollowEffect::Notice(_) => {}
                    FollowEffect::Write => drop(self.save_ledger(node)),
                    FollowEffect::Publish => self.later(node, PAUSE, Task::Publish),
                    FollowEffect::Rest(pause) if cut => return pause,
                    FollowEffect::Rest(pause) => {
                        self.frees_early(node, resources.is_some());
                        self.judge_left(node, resources == Some(PodResources::Silent));
                        if pause.is_some() {
                            self.later(node, PAUSE, Task::Publish);
                        }
                        return pause;
                    }
                }
            }
            let report = report?;
            effects = self.with_hand_off(node, self.now, |of, facts| following.report(report, of, facts))?;
        }
    }

    /// An adapter that is wrong does not wait for processes.
    fn frees_early(&mut self, node: usize, has_listed: bool) {
        let mutant = self.plan.mutant;
        let Some(Daemon { hand_off, seen, .. }) = self.machines[node].daemon.as_mut().filter(|_| has_listed) else {
            return;
        };
        let is_freed = |entry: &LedgerEntry| match mutant {
            Some(Mutant::FreedAtDeletion) => seen.pods.by_uid(&entry.pod.uid).is_none(),
            Some(Mutant::FreedAtPhase) => seen.pods.by_uid(&entry.pod.uid).is_some_and(|pod| pod.phase.is_terminal()),
            _ => false,
        };
        let Some(of) = hand_off.as_mut().filter(|of| of.ledger().iter().any(&is_freed)) else { return };
        let mut ledger = of.ledger().clone();
        of.ledger().iter().filter(|entry| is_freed(entry)).for_each(|entry| ledger.forget(&entry.key()));
        *of = HandOff::resume(ledger);
        self.save_ledger(node);
    }

    /// Writes what its daemon has handed out.
    pub fn save_ledger(&mut self, node: usize) -> bool {
        let ledger = self.machines[node].daemon.as_ref().and_then(Daemon::ledger).cloned().unwrap_or_default();
        self.save(node, &ledger)
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
            let since = overdue.entry(uid.clone()).or_insert(now);
            if is_hidden {
                *since = now;
            }
            let most = *since + if processes.is_found(uid) { GOES } else { GOES_UNSEEN };
            if now > most {
                let what = format!("n{node}: {} still has its devices {:?} after its processes", pod.key, now - *since);
                self.violation.get_or_insert(super::Violation {
                    judge: "the devices of a pod that has left are free soon after its processes",
                    what,
                    step: self.history.steps,
                });
                return;
            }
        }
    }

    /// A daemon removes the lock of a holder that it has served, soon: a scheduler that takes it over would hide that it stands.
    fn judge_lock(&mut self, node: usize) {
        let (now, is_cut) = (self.now, self.faults.is_cut(Reader::Daemon(node), self.now));
        let machine = &mut self.machines[node];
        let Some(daemon) = &mut machine.daemon else { return };
        let before = daemon.lock_due.take();
        let (Some(ledger), LockRead::Held { value, raw }) = (daemon.ledger(), &daemon.seen.lock) else { return };
        let is_served =
            |pod: &HandoffPod| names(value, pod) == LockMatch::ThisBind && ledger.fully_served(pod, &machine.inventory);
        if is_cut || daemon.seen.lock != self.store.lock(&machine.name) || !daemon.seen.pods.iter().any(is_served) {
            return;
        }
        let since = before.filter(|(was, _)| was == raw).map_or(now, |(_, since)| since);
        let what = format!("{}: {raw}, {:?} after its holder", machine.name, now - since);
        daemon.lock_due = Some((raw.clone(), since));
        if now - since > LOCK_GOES {
            self.violates("a daemon removes the lock of a holder that it has served", what);
        }
    }

    /// Compares with the kubelet.
    pub fn compare(&mut self, node: usize) {
        self.judge_lock(node);
        let resources = self.listed(node);
        let Some(daemon) = &self.machines[node].daemon else { return };
        let mut comparing = daemon.comparing.clone();
        let effects = self.with_hand_off(node, self.now, |of, facts| comparing.listed(&resources, of, facts));
        if resources.listing().is_none() {
            return;
        }
        for effect in effects.unwrap_or_default() {
            match effect {
                CompareEffect::Write => drop(self.save_ledger(node)),
                CompareEffect::Publish => self.later(node, PAUSE, Task::Publish),
                CompareEffect::Notice(_) => self.history.sometimes("a divergence is reported"),
            }
        }
        if !comparing.unserved().is_empty() {
            self.history.sometimes("a pod runs without its devices, and its daemon says so");
        }
        let reported: BTreeSet<PodUid> = comparing.reported().cloned().collect();
        if let Some(daemon) = &mut self.machines[node].daemon {
            daemon.comparing = comparing;
        }
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
        let Some(daemon) = &self.machines[node].daemon else { return };
        let (lock, unserved) = (daemon.unlocking.said().cloned(), daemon.comparing.unserved().clone());
        let found = self.with_hand_off(node, self.now, |of, facts| {
            HandoffStatus::of(of.ledger().stored().values(), &unserved, lock.as_ref(), facts).ok()
        });
        let machine = &self.machines[node];
        let found = found.flatten();
        let known = found.is_some() && machine.kubelet.is_registered;
        let (exceptions, left, unreleased) =
            found.map_or((None, BTreeMap::new(), None), |of| (Some(of.exceptions), of.leaving, of.unreleased));
        if exceptions.as_ref().is_some_and(|found| found.keys().any(|uid| !left.contains_key(uid))) {
            self.history.sometimes("a pod holds other devices than its annotation says");
        }
        if !left.is_empty() {
            self.history.sometimes("a Lease names a pod that has left");
        }
        let machine = &mut self.machines[node];
        let Some(daemon) = &mut machine.daemon else { return };
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
            leaving: left,
            exceptions,
            lock: Some(LockWord::new(key::NODE_LOCK, LockFormat::Uid)),
            too_many_exceptions: false,
            ended: false,
            unreleased,
            pod_metrics: false,
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
