//! What a node's agent does: answer Allocate, take the lock away, forget what ended, come back after a crash. The order of
//! steps is `agent::handoff`'s; every decision is `decide::handoff`'s.

use std::collections::BTreeSet;
use std::time::Duration;

use baton::contract::LockRead;
use baton::decide::handoff::identify::{Caller, IdentifiedBy};
use baton::decide::handoff::prefer::{Preference, pick, preference};
use baton::decide::handoff::rebuild::{learn, rebuild};
use baton::decide::handoff::{
    AllocateCall, AllocateContext, AllocateOutcome, AllocateRefusal, AllocateRule, EntryKey, Ledger, LedgerEntry,
    LiveReads, PodResources, decide, passed_by, validate,
};
use baton::decide::lock::{GoneReason, LockMatch, ReleaseReason, names};
use baton::decide::pod::{HandoffPod, Phase};
use jiff::Timestamp;

use super::coverage::Branch;
use super::machine::Handoff;
use super::properties::Broken;
use super::setup::{DEVICE_NAMES, GPU, NODE_NAMES, container};
use super::state::{Book, Lock, PODS, State};
use super::view::{bit, name};

/// Decisions that may ask for live reads one after another.
const ROUNDS: usize = 6;

/// What the agent looks at during one call, owned.
struct AgentBooks {
    node: usize,
    pods: baton::decide::handoff::NodePods,
    lock: baton::contract::LockRead,
    resources: PodResources,
    ledger: Ledger,
    passed: BTreeSet<baton::contract::PodUid>,
    may_repeat: BTreeSet<baton::contract::PodUid>,
}

impl Handoff {
    fn books(&self, state: &State, node: usize, throttled: bool) -> AgentBooks {
        let marked = |mark: fn(&Book) -> bool| {
            let here = (0..PODS).filter(|pod| state.pods[*pod].on(node) && mark(&state.books[*pod]));
            here.map(|pod| self.setup.table.pods[pod].pod.uid.clone()).collect()
        };
        let resources = if throttled { PodResources::Throttled } else { self.resources(state, node) };
        let mut ledger = self.ledger(state, node);
        ledger.settle(&resources);
        let pods = self.node_pods(state, node);
        if let Some(listing) = resources.listing()
            && learn(&mut ledger, NODE_NAMES[node], &pods, listing, &self.setup.table.inventory[node])
        {
            self.hit(Branch::Learned);
        }
        AgentBooks {
            node,
            pods,
            lock: self.lock_read(state.nodes[node].lock),
            resources,
            ledger,
            passed: marked(|book| book.passed),
            may_repeat: marked(|book| book.may_repeat),
        }
    }

    fn context<'a>(&'a self, books: &'a AgentBooks, fresh: &'a LiveReads) -> AllocateContext<'a> {
        AllocateContext {
            node: NODE_NAMES[books.node],
            pods: &books.pods,
            lock: &books.lock,
            resources: &books.resources,
            ledger: &books.ledger,
            inventory: &self.setup.table.inventory[books.node],
            passed: &books.passed,
            may_repeat: &books.may_repeat,
            live_reads: fresh,
            watching: true,
            now: match &books.lock {
                LockRead::Held { value, .. } => value.time,
                LockRead::Free | LockRead::Malformed { .. } => Timestamp::UNIX_EPOCH,
            },
            policy: &self.setup.table.policy,
        }
    }

    /// GetPreferredAllocation: the id that it steers to, and whom it identified.
    pub fn prefer(&self, state: &State, node: usize, available: &[u8], must: &[u8]) -> Option<(u8, Option<EntryKey>)> {
        let books = self.books(state, node, false);
        let call = AllocateCall { resource: GPU, count: 1, ids: &[] };
        let text = |ids: &[u8]| -> Vec<String> { ids.iter().map(|id| name(*id).into()).collect() };
        let mut fresh = LiveReads::default();
        for _ in 0..ROUNDS {
            match preference(&self.context(&books, &fresh), &call) {
                Preference::NeedLive(wanted) => fresh.add(wanted),
                Preference::Order(order, key) => {
                    let picked = pick(&order, &text(available), &text(must), 1);
                    let id = DEVICE_NAMES.iter().position(|device| picked.first().is_some_and(|id| id == device))?;
                    return Some((id as u8, key));
                }
            }
        }
        None
    }

    /// One Allocate call that pod `caller` makes for container `at` with `id`. The ledger is written before the answer leaves.
    pub fn allocate(
        &self,
        state: &mut State,
        node: usize,
        (caller, at): (usize, usize),
        id: u8,
        known: Option<&EntryKey>,
        throttled: bool,
    ) -> Result<u8, ()> {
        let mut books = self.books(state, node, throttled);
        let ids = [String::from(name(id))];
        let call = AllocateCall { resource: GPU, count: 1, ids: &ids };
        if let Some(answer) = self.replayed(&books, &ids) {
            self.judge_answer(state, caller, at, answer);
            return Ok(answer);
        }
        let (outcome, passed) = self.decided(&books, &call, known);
        for uid in passed {
            if let Some(pod) = self.number_of_uid(&uid) {
                state.books[pod].passed = true;
            }
        }
        let key = match outcome {
            AllocateOutcome::Serve(serving) => {
                self.hit(match serving.how {
                    IdentifiedBy::Both => Branch::ServedBoth,
                    IdentifiedBy::PodResources => Branch::ServedListing,
                    IdentifiedBy::Lock => Branch::ServedLock,
                    IdentifiedBy::Preference => Branch::ServedPreference,
                });
                if serving.mismatch {
                    self.hit(Branch::Mismatch);
                }
                let key = serving.entry.key();
                books.ledger.record(serving.entry);
                key
            }
            AllocateOutcome::Repeat { key, .. } => {
                self.hit(Branch::Repeated);
                books.ledger.repeat(&key, ids.iter().map(|id| id.as_str().into()).collect());
                key
            }
            AllocateOutcome::Refuse(refusal) => {
                self.refused(state, node, &refusal);
                return Err(());
            }
            AllocateOutcome::NeedLive(_) => return Err(()),
        };
        let entry = books.ledger.get(&key).expect("it was served");
        let number = |id: &str| DEVICE_NAMES.iter().position(|name| *name == id).expect("a known device") as u8;
        let answered: Vec<u8> = match &entry.answer {
            Some(encoded) => vec![encoded[0]],
            None => entry.to_answer().map(|(_, device)| number(device.id.as_str())).collect(),
        };
        let answer = *answered.last().expect("a grant names a device");
        books.ledger.set_answer(&key, vec![answer]);
        self.keep(state, node, &books.ledger);
        answered.into_iter().for_each(|device| self.judge_answer(state, caller, at, device));
        Ok(answer)
    }

    fn decided(
        &self,
        books: &AgentBooks,
        call: &AllocateCall<'_>,
        known: Option<&EntryKey>,
    ) -> (AllocateOutcome, Vec<baton::contract::PodUid>) {
        let mut fresh = LiveReads::default();
        for _ in 0..ROUNDS {
            let context = self.context(books, &fresh);
            let flaws = &self.setup.flaws;
            let pending = |pod: &&HandoffPod| context.may_call(pod) && pod.phase == Phase::Pending;
            let outcome = match context.lock {
                _ if flaws.first_pending => guessed(&context, call, context.pods.iter().find(pending)),
                LockRead::Held { value, .. } if flaws.lock_alone => {
                    let mut pods = context.pods.iter().filter(pending);
                    guessed(&context, call, pods.find(|pod| names(value, pod) == LockMatch::ThisBind))
                }
                _ => decide(&context, call, known),
            };
            let caller = match &outcome {
                // Watches and live reads agree here: a read changes only what the decision knows to be fresh.
                AllocateOutcome::NeedLive(wanted) => {
                    fresh.add(wanted.clone());
                    continue;
                }
                AllocateOutcome::Serve(serving) => Some(&serving.entry.pod.uid),
                AllocateOutcome::Repeat { key, .. } => Some(&key.uid),
                AllocateOutcome::Refuse(_) => None,
            };
            let passed = caller.map(|uid| passed_by(&context, uid)).unwrap_or_default();
            return (outcome, passed);
        }
        unreachable!("a decision asks for at most a few live reads")
    }

    /// The unsafe replay: ids that some entry has are answered as that entry was.
    fn replayed(&self, books: &AgentBooks, ids: &[String]) -> Option<u8> {
        if !self.setup.flaws.replay_by_ids {
            return None;
        }
        let entry = books.ledger.iter().find(|entry| entry.ids.iter().any(|id| **id == *ids[0]))?;
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
        for of in &refusal.pods {
            let pod = self.number(of);
            if refusal.rule != AllocateRule::Ambiguous {
                state.books[pod].passed = true;
            }
            if refusal.rule.makes_lock_useless() {
                state.books[pod].unusable = true;
            }
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
        let own_fault = reason == ReleaseReason::Unusable && state.books[pod].unusable;
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
            let ledger = rebuild(
                NODE_NAMES[node],
                &pods,
                &listing,
                &self.setup.table.inventory[node],
                Some(&self.lock_read(state.nodes[node].lock)),
            );
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
            (book.passed, book.may_repeat) = (false, book.entries.iter().any(Option::is_some));
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
