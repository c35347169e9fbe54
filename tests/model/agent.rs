//! What a node's agent does: answer Allocate, take the lock away, forget what ended, come back after a crash. The order of steps is
//! `decide::node`'s, every decision is `decide::handoff`'s.

use std::time::Duration;

use baton::contract::LockRead;
use baton::decide::handoff::identify::{Caller, IdentifiedBy};
use baton::decide::handoff::rebuild::rebuild;
use baton::decide::handoff::{
    Admission, AllocateCall, AllocateContext, AllocateOutcome, AllocateRefusal, AllocateRule, EntryKey, LedgerEntry,
    PodResources, decide, validate,
};
use baton::decide::lock::{GoneReason, LockMatch, ReleaseReason, names};
use baton::decide::node::{
    Allocating, CallEffect, CallReport, Facts, HandOff, NodeSeen, Preferring, ServedCall, Time, Wish,
};
use baton::decide::pod::{HandoffPod, Phase};
use jiff::Timestamp;

use super::coverage::Branch;
use super::machine::Handoff;
use super::properties::Broken;
use super::setup::{DEVICE_NAMES, GPU, NODE_NAMES, container};
use super::state::{Book, Lock, PODS, State};
use super::view::{bit, name};

/// Any time after the lists have settled.
pub const NOW: Duration = Duration::from_secs(3600);

/// What the agent of a node knows while a call is in hand.
pub struct AgentBooks {
    pub seen: NodeSeen,
    pub hand_off: HandOff,
}

impl Handoff {
    /// Between calls.
    pub fn books(&self, state: &State, node: usize) -> AgentBooks {
        let seen = NodeSeen {
            pods: self.node_pods(state, node),
            lock: self.lock_read(state.nodes[node].lock),
            pods_synced: true,
            node_synced: true,
            pods_watching: true,
            node_watching: true,
            ..NodeSeen::default()
        };
        AgentBooks { seen, hand_off: HandOff::resume(self.ledger(state, node)) }
    }

    /// One step of the agent at this time.
    pub fn step<T>(
        &self,
        node: usize,
        (mono, wall): (Duration, Timestamp),
        books: &mut AgentBooks,
        look: impl FnOnce(&mut HandOff, &Facts<'_>) -> T,
    ) -> T {
        let AgentBooks { seen, hand_off } = books;
        let (policy, inventory) = (&self.setup.table.policy, &self.setup.table.inventory[node]);
        look(hand_off, &Facts { node: NODE_NAMES[node], policy, seen, version: 0, inventory, mono, wall })
    }

    /// One step of a call: the lock is new.
    fn call_step<T>(&self, node: usize, books: &mut AgentBooks, look: impl FnOnce(&mut HandOff, &Facts<'_>) -> T) -> T {
        let wall = match &books.seen.lock {
            LockRead::Held { value, .. } => value.time,
            LockRead::Free | LockRead::Malformed { .. } => Timestamp::UNIX_EPOCH,
        };
        self.step(node, (NOW, wall), books, look)
    }

    /// What every call may need. Watches and live reads agree here: a read changes only what the decision knows to be fresh.
    fn perform(&self, state: &State, node: usize, effect: &CallEffect, throttled: bool) -> Option<CallReport> {
        match effect {
            CallEffect::List { .. } if throttled => Some(CallReport::Listed(PodResources::Silent)),
            CallEffect::List { .. } => Some(CallReport::Listed(self.resources(state, node))),
            CallEffect::Await { .. } => Some(CallReport::Waited { news: false }),
            CallEffect::Read(_) => Some(CallReport::Read(Ok(()))),
            CallEffect::Learned => {
                self.hit(Branch::Learned);
                None
            }
            _ => None,
        }
    }

    /// GetPreferredAllocation: the id that it steers to, and what the agent remembers of it.
    pub fn prefer(&self, state: &State, node: usize, available: &[u8], must: &[u8]) -> Option<(u8, AgentBooks)> {
        let mut books = self.books(state, node);
        let text = |ids: &[u8]| -> Vec<String> { ids.iter().map(|id| name(*id).into()).collect() };
        let wish = Wish { available: text(available), must: text(must), size: 1 };
        let mut call = Preferring::new(GPU, wish, Time::new(NOW, NOW), true);
        let mut effects = self.call_step(node, &mut books, |_, facts| call.begin(facts));
        loop {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                if let CallEffect::Prefer(ids) = effect {
                    let id = DEVICE_NAMES.iter().position(|device| ids.first().is_some_and(|id| id == device))?;
                    return Some((id as u8, books));
                }
                report = self.perform(state, node, &effect, false);
            }
            let report = report?;
            effects = self.call_step(node, &mut books, |hand_off, facts| call.report(report, hand_off, facts));
        }
    }

    /// One Allocate call that pod `caller` makes for container `at` with `id`.
    pub fn allocate(
        &self,
        state: &mut State,
        node: usize,
        (caller, at): (usize, usize),
        id: u8,
        mut books: AgentBooks,
        throttled: bool,
    ) -> Result<u8, ()> {
        let ids = vec![String::from(name(id))];
        if let Some(answer) = self.replayed(&books, &ids) {
            self.judge_answer(state, caller, at, answer);
            return Ok(answer);
        }
        let mut call = Allocating::new(GPU, ids, Time::new(NOW, NOW));
        if self.setup.flaws.first_pending {
            call = call.decided_by(by_first_pending);
        } else if self.setup.flaws.lock_alone {
            call = call.decided_by(by_lock_alone);
        }
        let mut effects = self.call_step(node, &mut books, |hand_off, facts| call.begin(hand_off, facts));
        let mut answer = Err(());
        while !effects.is_empty() {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                report = self.perform(state, node, &effect, throttled);
                match effect {
                    CallEffect::Build(grant) => {
                        let devices = answered(&grant.entry);
                        devices.iter().for_each(|device| self.judge_answer(state, caller, at, *device));
                        report =
                            Some(CallReport::Built(devices.last().map(|last| vec![*last]).ok_or_else(String::new)));
                    }
                    CallEffect::Write => {
                        self.keep(state, node, books.hand_off.ledger());
                        report = Some(CallReport::Written(Ok(())));
                    }
                    CallEffect::Answer(Ok(built)) => answer = Ok(built.encoded[0]),
                    CallEffect::Answer(Err(refusal)) => self.refused(state, node, &refusal),
                    CallEffect::Log(served) => self.logged(&served),
                    _ => {}
                }
            }
            let Some(report) = report else { break };
            effects = self.call_step(node, &mut books, |hand_off, facts| call.report(report, hand_off, facts));
        }
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            state.books[pod].admission = books.hand_off.ledger().admission(&self.setup.table.pods[pod].pod.uid);
        }
        answer
    }

    fn logged(&self, served: &ServedCall) {
        self.hit(match served.how {
            _ if served.again => Branch::Repeated,
            IdentifiedBy::Both => Branch::ServedBoth,
            IdentifiedBy::PodResources => Branch::ServedListing,
            IdentifiedBy::Lock => Branch::ServedLock,
            IdentifiedBy::Preference => Branch::ServedPreference,
        });
        if served.mismatch {
            self.hit(Branch::Mismatch);
        }
    }

    /// The unsafe replay: ids that some entry has are answered as that entry was.
    fn replayed(&self, books: &AgentBooks, ids: &[String]) -> Option<u8> {
        if !self.setup.flaws.replay_by_ids {
            return None;
        }
        let entry = books.hand_off.ledger().iter().find(|entry| entry.ids.iter().any(|id| **id == *ids[0]))?;
        let device = entry.devices().next()?;
        DEVICE_NAMES.iter().position(|name| *name == device.as_str()).map(|device| device as u8)
    }

    fn refused(&self, state: &mut State, node: usize, refusal: &AllocateRefusal) {
        match refusal.rule {
            AllocateRule::Lock => self.hit(Branch::RefusedLock),
            AllocateRule::NoRoom => self.hit(Branch::RefusedNoRoom),
            AllocateRule::BadAssignment => self.hit(Branch::RefusedBadAssignment),
            AllocateRule::Unidentified => self.hit(Branch::RefusedUnidentified),
            AllocateRule::Ambiguous => self.hit(Branch::RefusedAmbiguous),
            _ => {}
        }
        let careless = self.setup.flaws.foreign_release && refusal.rule.makes_lock_useless()
            || self.setup.flaws.blind_release && refusal.rule == AllocateRule::Unidentified;
        if let (true, Some(lock)) = (careless, state.nodes[node].lock) {
            self.judge_removal(state, node, lock, ReleaseReason::Unusable);
            self.remove(state, node, lock);
        }
    }

    /// An answer names a device of the caller that no other running container of it has.
    fn judge_answer(&self, state: &mut State, caller: usize, at: usize, answer: u8) {
        let kinds = self.setup.kinds(caller);
        let planned = state.pods[caller].bound.is_some_and(|bound| bound.devices.contains(&answer))
            || state.pods[caller].named & bit(answer) != 0;
        let beside = (0..kinds.len())
            .filter(|other| *other != at && kinds[*other] == kinds[at])
            .any(|other| state.kube[caller].answer[other] == Some(answer));
        if !planned || beside || !state.pods[caller].exists() {
            state.broken |= Broken::Answer.bit();
        }
    }

    /// The unlocker looks at the lock.
    pub fn unlock(&self, state: &mut State, node: usize) {
        let Some((lock, reason)) = self.fate(state, node) else { return };
        self.hit(match reason {
            ReleaseReason::Served => Branch::UnlockServed,
            ReleaseReason::Gone(_) => Branch::UnlockGone,
            ReleaseReason::Deleting | ReleaseReason::Unusable => Branch::UnlockDeleting,
            other => unreachable!("a reason of schedulers: {other}"),
        });
        self.judge_removal(state, node, lock, reason);
        state.nodes[node].release = Some(lock);
    }

    /// Only the owner that was served, or proof, or the holder's own fault removes a lock.
    fn judge_removal(&self, state: &mut State, node: usize, lock: Lock, reason: ReleaseReason) {
        let pod = usize::from(lock.pod);
        let own_fault = reason == ReleaseReason::Unusable && state.books[pod].admission == Some(Admission::Unusable);
        let being_deleted = matches!(reason, ReleaseReason::Deleting | ReleaseReason::Gone(GoneReason::PastGrace))
            && state.pods[pod].bound.is_some()
            && state.pods[pod].life != super::state::Life::There;
        let unbound_and_alive = state.pods[pod].waits();
        let ended = self.will_never_be_served(state, node, lock) && !unbound_and_alive;
        if !(ended || self.is_served(state, pod) || own_fault || being_deleted) {
            state.broken |= Broken::Removal.bit();
        }
    }

    /// Would the ledger drop anything?
    pub fn can_expire(&self, state: &State, node: usize) -> bool {
        let here = (0..PODS).filter(|pod| state.pods[*pod].on(node));
        here.into_iter().any(|pod| {
            let dead = !state.pods[pod].exists()
                || state.pods[pod].ended()
                || state.books[pod].entries.iter().flatten().any(|e| e.orphan);
            dead && state.books[pod].entries.iter().any(Option::is_some)
        })
    }

    /// Entries of ended pods go.
    pub fn expire(&self, state: &mut State, node: usize) {
        let mut ledger = self.ledger(state, node);
        let now = (Duration::ZERO, jiff::Timestamp::UNIX_EPOCH);
        ledger.follow(&self.node_pods(state, node), &self.resources(state, node), now);
        // Here the processes of a pod end with it.
        let left: Vec<_> = ledger.iter().filter(|entry| entry.leaving().is_some()).map(LedgerEntry::key).collect();
        left.iter().for_each(|key| ledger.forget(key));
        if !left.is_empty() {
            self.hit(Branch::Expired);
            self.keep(state, node, &ledger);
        }
    }

    /// A fresh start: from the file, or rebuilt when that is lost.
    pub fn agent_starts(&self, state: &mut State, node: usize, lost: bool) {
        state.nodes[node].agent_up = true;
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            state.books[pod].first = state.pods[pod].edited;
        }
        if lost {
            let mut listing = self.listing(state, node);
            listing.answers = self.stored_answers(state, node);
            let pods = self.node_pods(state, node);
            let ledger = rebuild(NODE_NAMES[node], &pods, &listing, &self.setup.table.inventory[node]);
            if !ledger.is_empty() {
                self.hit(Branch::Rebuilt);
            }
            if ledger.iter().any(|entry| entry.devices().count() > 1) {
                self.hit(Branch::Diverged);
            }
            self.keep(state, node, &ledger);
        }
        Self::admits_again(state, node);
    }

    /// The agent starts, or sees the kubelet start: pods that were served may ask again.
    pub fn admits_again(state: &mut State, node: usize) {
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            let book = &mut state.books[pod];
            (book.admission, book.may_repeat) = (None, book.entries.iter().any(Option::is_some));
        }
    }

    /// Memory is lost, the file stays.
    pub fn agent_dies(&self, state: &mut State, node: usize) {
        let is = &mut state.nodes[node];
        (is.agent_up, is.release) = (false, None);
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            let entries = state.books[pod].entries;
            state.books[pod] = Book { entries, ..Book::default() };
        }
    }
}

/// The devices that an answer for this entry names: the one that was given, else the ones that are planned.
fn answered(entry: &LedgerEntry) -> Vec<u8> {
    let number = |id: &str| DEVICE_NAMES.iter().position(|name| *name == id).expect("a known device") as u8;
    match &entry.answer {
        Some(encoded) => vec![encoded[0]],
        None => entry.to_answer().map(|(_, device)| number(device.id.as_str())).collect(),
    }
}

fn is_pending(context: &AllocateContext<'_>, pod: &HandoffPod) -> bool {
    context.may_call(pod) && pod.phase == Phase::Pending
}

/// The first pod that waits, whichever calls.
fn by_first_pending(
    context: &AllocateContext<'_>,
    call: &AllocateCall<'_>,
    _known: Option<&EntryKey>,
) -> AllocateOutcome {
    guessed(context, call, context.pods.iter().find(|pod| is_pending(context, pod)))
}

/// The lock's holder, whichever pod calls.
fn by_lock_alone(context: &AllocateContext<'_>, call: &AllocateCall<'_>, known: Option<&EntryKey>) -> AllocateOutcome {
    let LockRead::Held { value, .. } = context.lock else { return decide(context, call, known) };
    let is_holder = |pod: &&HandoffPod| is_pending(context, pod) && names(value, pod) == LockMatch::ThisBind;
    guessed(context, call, context.pods.iter().find(is_holder))
}

/// Takes this pod for the caller; then as shipped.
fn guessed(context: &AllocateContext<'_>, call: &AllocateCall<'_>, pod: Option<&HandoffPod>) -> AllocateOutcome {
    let Some(pod) = pod else {
        return AllocateOutcome::Refuse(AllocateRefusal::without_pod(
            AllocateRule::Unidentified,
            call.resource,
            "no such pod",
        ));
    };
    let asked = |at: &usize| context.ledger.asked(&pod.pod.uid, container(*at), call.resource);
    let at = (0..pod.containers.len()).min_by_key(asked).unwrap_or(0);
    let key = EntryKey::new(&pod.pod.uid, container(at), call.resource);
    if context.ledger.get(&key).is_some() {
        return AllocateOutcome::Repeat { key, how: IdentifiedBy::Lock };
    }
    let caller = Caller { pod, container: &pod.containers[at], how: IdentifiedBy::Lock };
    match validate::devices(context, call, &caller) {
        Ok(devices) => AllocateOutcome::Serve(Box::new(super::unsafe_parts::serving(call, &caller, devices))),
        Err(refused) => AllocateOutcome::Refuse(refused.0),
    }
}
