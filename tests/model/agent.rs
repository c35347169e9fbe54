//! What a node's agent does: answer Allocate, take the lock away, forget what ended, come back after a crash. The order of
//! steps is `agent::handoff`'s; every decision is `decide::handoff`'s.

use std::collections::BTreeSet;

use baton::decide::handoff::identify::{Caller, How};
use baton::decide::handoff::prefer::{Preference, pick, preference};
use baton::decide::handoff::rebuild::rebuild;
use baton::decide::handoff::{
    Call, EntryKey, Fresh, Ledger, Outcome, PodResources, Refusal, Rule, Sight, decide, passed_by, validate,
};
use baton::decide::lock::{GoneReason, ReleaseReason};
use baton::decide::pod::Phase;

use super::coverage::Branch;
use super::machine::Handoff;
use super::properties::Broken;
use super::setup::{DEVICE_NAMES, GPU, NODE_NAMES, container};
use super::state::{Book, Lock, PODS, State};
use super::view::name;

/// Decisions that may ask for live reads one after another.
const ROUNDS: usize = 6;

/// What the agent looks at during one call, owned.
struct Desk {
    node: usize,
    pods: baton::decide::handoff::NodePods,
    lock: baton::contract::LockRead,
    resources: PodResources,
    ledger: Ledger,
    passed: BTreeSet<baton::contract::PodUid>,
    may_repeat: BTreeSet<baton::contract::PodUid>,
}

impl Handoff {
    fn desk(&self, state: &State, node: usize, throttled: bool) -> Desk {
        let marked = |mark: fn(&Book) -> bool| {
            let here = (0..PODS).filter(|pod| state.pods[*pod].on(node) && mark(&state.books[*pod]));
            here.map(|pod| self.setup.table.pods[pod].pod.uid.clone()).collect()
        };
        let resources = if throttled { PodResources::Throttled } else { self.resources(state, node) };
        let mut ledger = self.ledger(state, node);
        ledger.settle(&resources);
        Desk {
            node,
            pods: self.node_pods(state, node),
            lock: self.lock_read(state.nodes[node].lock),
            resources,
            ledger,
            passed: marked(|book| book.passed),
            may_repeat: marked(|book| book.may_repeat),
        }
    }

    fn sight<'a>(&'a self, desk: &'a Desk, fresh: &'a Fresh) -> Sight<'a> {
        Sight {
            node: NODE_NAMES[desk.node],
            pods: &desk.pods,
            lock: &desk.lock,
            resources: &desk.resources,
            ledger: &desk.ledger,
            inventory: &self.setup.table.inventory[desk.node],
            passed: &desk.passed,
            may_repeat: &desk.may_repeat,
            fresh,
            watching: true,
            policy: &self.setup.table.policy,
        }
    }

    /// GetPreferredAllocation: the id that it steers to, and whom it identified.
    pub fn prefer(&self, state: &State, node: usize, available: &[u8], must: &[u8]) -> Option<(u8, Option<EntryKey>)> {
        let desk = self.desk(state, node, false);
        let call = Call { resource: GPU, count: 1, ids: &[] };
        let text = |ids: &[u8]| -> Vec<String> { ids.iter().map(|id| name(*id).into()).collect() };
        let mut fresh = Fresh::default();
        for _ in 0..ROUNDS {
            match preference(&self.sight(&desk, &fresh), &call) {
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
        let mut desk = self.desk(state, node, throttled);
        let ids = [String::from(name(id))];
        let call = Call { resource: GPU, count: 1, ids: &ids };
        if let Some(answer) = self.replayed(&desk, &ids) {
            self.judge_answer(state, caller, at, answer);
            return Ok(answer);
        }
        let (outcome, passed) = self.decided(&desk, &call, known);
        for uid in passed {
            if let Some(pod) = self.number_of_uid(&uid) {
                state.books[pod].passed = true;
            }
        }
        let key = match outcome {
            Outcome::Serve(serving) => {
                self.hit(match serving.how {
                    How::Both => Branch::ServedBoth,
                    How::PodResources => Branch::ServedListing,
                    How::Lock => Branch::ServedLock,
                    How::Preference => Branch::ServedPreference,
                });
                if serving.mismatch {
                    self.hit(Branch::Mismatch);
                }
                let key = serving.entry.key();
                desk.ledger.record(serving.entry);
                key
            }
            Outcome::Repeat { key, .. } => {
                self.hit(Branch::Repeated);
                desk.ledger.repeat(&key, ids.iter().map(|id| id.as_str().into()).collect());
                key
            }
            Outcome::Refuse(refusal) => {
                self.refused(state, node, &refusal);
                return Err(());
            }
            Outcome::NeedLive(_) => return Err(()),
        };
        let served = desk.ledger.get(&key).and_then(|entry| entry.devices().next()).expect("a grant names a device");
        let answer = DEVICE_NAMES.iter().position(|name| *name == served.as_str()).expect("a known device") as u8;
        self.keep(state, node, &desk.ledger);
        self.judge_answer(state, caller, at, answer);
        Ok(answer)
    }

    fn decided(
        &self,
        desk: &Desk,
        call: &Call<'_>,
        known: Option<&EntryKey>,
    ) -> (Outcome, Vec<baton::contract::PodUid>) {
        let mut fresh = Fresh::default();
        for _ in 0..ROUNDS {
            let sight = self.sight(desk, &fresh);
            let outcome =
                if self.setup.flaws.first_pending { first_pending(&sight, call) } else { decide(&sight, call, known) };
            let caller = match &outcome {
                // Watches and live reads agree here: a read changes only what the decision knows to be fresh.
                Outcome::NeedLive(wanted) => {
                    fresh.add(wanted.clone());
                    continue;
                }
                Outcome::Serve(serving) => Some(&serving.entry.pod.uid),
                Outcome::Repeat { key, .. } => Some(&key.uid),
                Outcome::Refuse(_) => None,
            };
            let passed = caller.map(|uid| passed_by(&sight, uid)).unwrap_or_default();
            return (outcome, passed);
        }
        unreachable!("a decision asks for at most a few live reads")
    }

    /// The unsafe replay: ids that some entry has are answered as that entry was.
    fn replayed(&self, desk: &Desk, ids: &[String]) -> Option<u8> {
        if !self.setup.flaws.replay_by_ids {
            return None;
        }
        let entry = desk.ledger.iter().find(|entry| entry.ids.iter().any(|id| **id == *ids[0]))?;
        let device = entry.devices().next()?;
        DEVICE_NAMES.iter().position(|name| *name == device.as_str()).map(|device| device as u8)
    }

    fn refused(&self, state: &mut State, node: usize, refusal: &Refusal) {
        match refusal.rule {
            Rule::Lock => self.hit(Branch::RefusedLock),
            Rule::NoRoom => self.hit(Branch::RefusedNoRoom),
            Rule::BadAssignment => self.hit(Branch::RefusedBadAssignment),
            Rule::Unidentified => self.hit(Branch::RefusedUnidentified),
            Rule::Ambiguous => self.hit(Branch::RefusedAmbiguous),
            _ => {}
        }
        for of in &refusal.pods {
            let pod = self.number(of);
            if refusal.rule != Rule::Ambiguous {
                state.books[pod].passed = true;
            }
            if refusal.rule.makes_lock_useless() {
                state.books[pod].unusable = true;
            }
        }
        let careless = self.setup.flaws.foreign_release && refusal.rule.makes_lock_useless()
            || self.setup.flaws.blind_release && refusal.rule == Rule::Unidentified;
        if let (true, Some(lock)) = (careless, state.nodes[node].lock) {
            self.judge_removal(state, node, lock, ReleaseReason::Unusable);
            self.remove(state, node, lock);
        }
    }

    /// An answer names a device of the caller that no other running container of it has.
    fn judge_answer(&self, state: &mut State, caller: usize, at: usize, answer: u8) {
        let kinds = self.setup.kinds(caller);
        let planned = state.pods[caller].bound.is_some_and(|bound| bound.devices.contains(&answer));
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
        let dropped = ledger.expire(&self.node_pods(state, node), &self.resources(state, node));
        if !dropped.is_empty() {
            self.hit(Branch::Expired);
            self.keep(state, node, &ledger);
        }
    }

    /// A fresh start: from the file, or rebuilt when that is lost.
    pub fn agent_starts(&self, state: &mut State, node: usize, lost: bool) {
        state.nodes[node].agent_up = true;
        if lost {
            let listing = self.listing(state, node);
            let pods = self.node_pods(state, node);
            let ledger = rebuild(NODE_NAMES[node], &pods, &listing, &self.setup.table.inventory[node]);
            if !ledger.is_empty() {
                self.hit(Branch::Rebuilt);
            }
            self.keep(state, node, &ledger);
        }
        Self::admits_again(state, node);
    }

    /// The agent starts, or sees the kubelet start: whoever was served may ask again.
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

/// The unsafe identification of the proposal: the first Pending pod of this node; then as shipped.
fn first_pending(sight: &Sight<'_>, call: &Call<'_>) -> Outcome {
    let Some(pod) = sight.pods.iter().find(|pod| sight.is_here(pod) && pod.phase == Phase::Pending) else {
        return Outcome::Refuse(Refusal::nobody(Rule::Unidentified, call.resource, "no pending pod"));
    };
    let asked = |at: &usize| sight.ledger.asked(&pod.pod.uid, container(*at), call.resource);
    let at = (0..pod.containers.len()).min_by_key(asked).unwrap_or(0);
    let key = EntryKey::new(&pod.pod.uid, container(at), call.resource);
    if sight.ledger.get(&key).is_some() {
        return Outcome::Repeat { key, how: How::Lock };
    }
    let caller = Caller { pod, container: &pod.containers[at], how: How::Lock };
    match validate::devices(sight, call, &caller) {
        Ok(devices) => Outcome::Serve(Box::new(super::unsafe_parts::serving(call, &caller, devices))),
        Err(refused) => Outcome::Refuse(refused.0),
    }
}
