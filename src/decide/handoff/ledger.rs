//! The table of calls: what this node has handed out, which makes a grant happen once, and how far its kubelet is.
//!
//! | call (pod, container, resource) | moved by | its devices |
//! | --- | --- | --- |
//! | expected: no entry | the kubelet asks: answered, before the answer leaves | are promised by the pod's annotation |
//! | [held](CallState::Held): the ledger was lost, and nothing proves that the kubelet has asked | the call, as a first one: answered; the pod's progress or the kubelet's list: listed | are held |
//! | [answered](CallState::Answered) | PodResources lists the ids, or the kubelet goes on to another call of the pod: listed | are held, also where the answer never arrived |
//! | [listed](CallState::Listed) | the kubelet has lost its state and asks again: answered; the pod leaves: leaving | are held |
//! | [leaving](CallState::Leaving) | the pod is back: listed; its processes have gone: no entry ([`super::leaving`]) | are held |
//!
//! These go to the ledger's file. Beside them stands, from one start of the kubelet to the next, which of them it may have lost
//! ([`Ledger::may_repeat`]) and which pods it has done with ([`Admission`]).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::inventory::NodeInventory;
use super::listing::{EntryKey, PodResources};
use super::pods::{LastSeen, NodePods};
use crate::lock::HolderProgress;
use crate::pod::{ContainerKind, HandoffPod, PodContainer};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, LeavingPod, PodRef, PodUid, Shared};

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallState {
    /// It may have been made before the ledger was lost.
    Held,
    /// Written before the answer left.
    Answered,
    /// The kubelet has the answer.
    Listed,
    /// The pod has left the API server, or ended there. Its processes may run on.
    Leaving(Leaving),
}

/// Why the kubelet has done with a pod, as long as it does not start again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    /// Another pod has called while it was listed: the kubelet admits one at a time.
    Over,
    /// A call of it has failed: it is rejected.
    Refused,
    /// So it is, for its own assignment: no lock will serve it.
    Unusable,
}

/// An entry whose pod has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Since when, for people.
    pub at: Timestamp,
    /// The same on the monotonic clock of this process; its start, where the ledger was read from its file.
    #[serde(skip)]
    pub since: Duration,
    /// By the pod's last object.
    pub last: LastSeen,
}

/// When a container runs; decides which containers can hold a device at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerSlot {
    /// Index among the pod's containers, in the kubelet's order.
    pub order: u16,
    /// A plain init container.
    pub init: bool,
    /// An init container that stays.
    pub sidecar: bool,
}

impl ContainerSlot {
    /// The slot of `container` in `pod`; after all others when the pod does not have it.
    pub fn of(pod: &HandoffPod, container: &str) -> Self {
        let at = pod.containers.iter().position(|c| &*c.name == container);
        let kind = at.map(|at| pod.containers[at].kind);
        Self {
            order: at.map_or(u16::MAX, |at| at as u16),
            init: kind == Some(ContainerKind::Init),
            sidecar: kind == Some(ContainerKind::Sidecar),
        }
    }

    /// Both run at some moment together.
    pub fn meets(self, other: Self) -> bool {
        match (self.init, other.init) {
            (false, false) => true,
            (true, true) => false,
            (true, false) => other.sidecar && other.order < self.order,
            (false, true) => other.meets(self),
        }
    }
}

/// Virtual functions that containers have as parts of their NICs.
pub fn functions_in_use<'a>(entries: impl IntoIterator<Item = &'a LedgerEntry>) -> BTreeSet<DeviceId> {
    let (mut named, mut devices) = (BTreeSet::new(), BTreeSet::new());
    for entry in entries {
        named.extend(entry.named().cloned());
        devices.extend(entry.devices().cloned());
    }
    &named - &devices
}

/// One answered call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// The pod.
    pub pod: PodRef,
    /// Its container.
    pub container: Box<str>,
    /// Resource name.
    pub resource: Box<str>,
    /// When the container runs.
    pub slot: ContainerSlot,
    /// The kubelet's ids of the latest call, sorted.
    pub ids: Vec<Box<str>>,
    /// The devices that the container holds. Empty for names that only accompany the delivering one.
    pub served: Vec<(DeviceType, DeviceEntry)>,
    /// Those of them that its answer does not name. In a rebuilt entry the kubelet's word and the annotation may differ: both hold.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unnamed: BTreeSet<DeviceId>,
    /// The encoded answer; `None` in an entry that was rebuilt.
    #[serde(default, with = "hex")]
    pub answer: Option<Vec<u8>>,
    /// Settled or not.
    pub state: CallState,
    /// How often the kubelet asked.
    pub asked: u32,
    /// Place in the order of grants. Those that were rebuilt share places before all others: [`Ledger::rebuilt`].
    pub seq: u64,
    /// `false` when the kubelet chose and no scheduler did (`--unassigned-pods=serve`).
    pub assigned: bool,
    /// The pod's `terminationGracePeriodSeconds`.
    #[serde(default = "default_grace")]
    pub grace_seconds: u32,
}

/// As the API server sets it.
const fn default_grace() -> u32 {
    30
}

impl LedgerEntry {
    /// A first call for `container` of `pod` that named `ids` (sorted), before the ledger gives it its place.
    pub fn new(
        pod: &PodRef,
        container: &str,
        resource: &str,
        slot: ContainerSlot,
        ids: Vec<Box<str>>,
        served: Vec<(DeviceType, DeviceEntry)>,
        state: CallState,
    ) -> Self {
        let (pod, container, resource) = (pod.clone(), container.into(), resource.into());
        let grace_seconds = default_grace();
        Self {
            pod,
            container,
            resource,
            slot,
            ids,
            served,
            unnamed: BTreeSet::new(),
            answer: None,
            state,
            asked: 1,
            seq: 0,
            assigned: true,
            grace_seconds,
        }
    }

    /// Its key.
    pub fn key(&self) -> EntryKey {
        EntryKey::new(&self.pod.uid, &self.container, &self.resource)
    }

    /// Since when its pod has left; `None` while it has not.
    pub const fn leaving(&self) -> Option<&Leaving> {
        match &self.state {
            CallState::Leaving(leaving) => Some(leaving),
            CallState::Held | CallState::Answered | CallState::Listed => None,
        }
    }

    /// The pod, if it has left.
    pub fn left(&self) -> Option<LeavingPod> {
        let (key, since) = (&self.pod.key, self.leaving()?.at);
        Some(LeavingPod { namespace: key.namespace.clone(), name: key.name.clone(), since })
    }

    /// The kubelet is known to have asked.
    pub const fn was_asked(&self) -> bool {
        !matches!(self.state, CallState::Held)
    }

    /// What its answer names.
    pub fn to_answer(&self) -> impl Iterator<Item = &(DeviceType, DeviceEntry)> {
        self.served.iter().filter(|(_, entry)| !self.unnamed.contains(&entry.id))
    }

    /// What its processes may use: what its answer names, where that is known, else all that it holds.
    pub fn in_use(&self) -> impl Iterator<Item = &(DeviceType, DeviceEntry)> {
        self.served.iter().filter(|(_, entry)| self.answer.is_none() || !self.unnamed.contains(&entry.id))
    }

    /// Ids of everything that the container holds: the served devices, and the virtual functions that stand for them.
    pub fn named(&self) -> impl Iterator<Item = &DeviceId> {
        self.served.iter().flat_map(|(_, entry)| entry.named())
    }

    /// Ids of the served devices.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.served.iter().map(|(_, entry)| &entry.id)
    }
}

/// The whole ledger. An entry that has not changed is the same shared value in every copy, so that a writer or reader has to process
/// changed entries only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    entries: BTreeMap<EntryKey, Shared<LedgerEntry>>,
    /// The place of the latest grant.
    last: u64,
    /// The same when the kubelet last started, or this daemon did.
    started: u64,
    /// When the kubelet that runs took this daemon's registration, by the clock of the node.
    registered: Option<Timestamp>,
    admissions: BTreeMap<PodUid, Admission>,
}

/// The place of what was rebuilt and is not known to run. What runs is before it.
const REBUILT: u64 = 1;

impl Ledger {
    /// A ledger of these entries.
    pub fn of(entries: impl IntoIterator<Item = LedgerEntry>) -> Self {
        let entries: BTreeMap<_, Shared<LedgerEntry>> =
            entries.into_iter().map(|entry| (entry.key(), entry.into())).collect();
        let last = entries.values().map(|entry| entry.seq).max().unwrap_or(0);
        Self { entries, last, ..Self::default() }
    }

    /// The kubelet has started again, or this daemon has, which does not know what the kubelet did before: it admits its pods again.
    pub fn kubelet_starts(&mut self) {
        self.started = self.last;
        self.registered = None;
        self.admissions.clear();
    }

    /// A kubelet has taken a registration. The first one since it has started may not be the first try: another kubelet may have taken
    /// that one without a word, and called.
    pub fn registered(&mut self, at: Timestamp) {
        if self.registered.is_none() {
            self.kubelet_starts();
        }
        self.registered = Some(at);
    }

    /// The container has ended since the kubelet that runs took a registration: its pod's admission was over before, since a kubelet looks
    /// which containers run before it takes one, and asks for none of these (`containerRunningSet` of its device manager, since 1.28).
    pub fn has_run(&self, container: &PodContainer, now: Timestamp) -> bool {
        let is_since = |since: Timestamp| container.ended.is_some_and(|ended| since < ended && ended <= now);
        self.registered.is_some_and(is_since)
    }

    /// The kubelet may ask once more: what the pod was given before the kubelet started may be lost.
    pub fn may_repeat(&self, uid: &PodUid) -> bool {
        self.of_pod(uid).any(|entry| entry.seq <= self.started.max(REBUILT))
    }

    /// The kubelet has done with these pods.
    pub fn ends(&mut self, pods: impl IntoIterator<Item = PodUid>, how: Admission) {
        for uid in pods {
            let known = self.admissions.entry(uid).or_insert(how);
            *known = how.max(*known);
        }
    }

    /// Why the kubelet has done with this pod. Then what calls by its name may be its successor.
    pub fn admission(&self, uid: &PodUid) -> Option<Admission> {
        self.admissions.get(uid).copied()
    }

    /// The kubelet has done with this pod.
    pub fn is_over(&self, uid: &PodUid) -> bool {
        self.admissions.contains_key(uid)
    }

    /// Forgets the admissions of pods that are gone.
    pub fn forget_admissions(&mut self, pods: &NodePods) {
        let entries = &self.entries;
        let is_known = |uid: &PodUid| pods.by_uid(uid).is_some() || entries.keys().any(|key| key.uid == *uid);
        self.admissions.retain(|uid, _| is_known(uid));
    }

    /// All entries, by key.
    pub fn iter(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.entries.values().map(|entry| &**entry)
    }

    /// All entries as they are stored, by key.
    pub fn stored(&self) -> &BTreeMap<EntryKey, Shared<LedgerEntry>> {
        &self.entries
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing is handed out.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entry of one call.
    pub fn get(&self, key: &EntryKey) -> Option<&LedgerEntry> {
        self.entries.get(key).map(|entry| &**entry)
    }

    /// How often the kubelet has asked for this container and resource; 0 when not served yet.
    pub fn asked(&self, uid: &PodUid, container: &str, resource: &str) -> u32 {
        let entry = self.get(&EntryKey::new(uid, container, resource));
        entry.filter(|entry| entry.was_asked()).map_or(0, |entry| entry.asked)
    }

    /// Entries of one pod.
    pub fn of_pod<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a LedgerEntry> {
        let behind = self.entries.range(EntryKey::new(uid, "", "")..);
        behind.take_while(move |(key, _)| key.uid == *uid).map(|(_, entry)| &**entry)
    }

    /// Devices of the pod whose ids the kubelet may give to the container in `slot` whatever it is assigned, under that resource name:
    /// all, where a plain init container before it had ids of that name. The kubelet hands these on, and what it adds may be
    /// what others were to have.
    pub fn handed_on(&self, uid: &PodUid, resource: &str, slot: ContainerSlot) -> BTreeSet<DeviceId> {
        let is_left =
            |entry: &LedgerEntry| *entry.resource == *resource && entry.slot.init && entry.slot.order < slot.order;
        // Under a name that only accompanied the delivering one, the init container has no devices, and ids all the same.
        let all = self.of_pod(uid).any(is_left).then(|| self.of_pod(uid).flat_map(LedgerEntry::devices).cloned());
        all.into_iter().flatten().collect()
    }

    /// Some call of this pod was served, or may have been.
    pub fn holds(&self, uid: &PodUid) -> bool {
        self.of_pod(uid).next().is_some()
    }

    /// Records a grant before its answer leaves. Earlier grants of the same pod are thereby settled: the kubelet goes on to
    /// a container only when it has the one before.
    pub fn record(&mut self, mut entry: LedgerEntry) {
        self.last = self.last.max(REBUILT) + 1;
        entry.seq = self.last;
        self.went_on(&entry.pod.uid);
        self.entries.insert(entry.key(), entry.into());
    }

    /// Adds what was granted before this ledger was begun. Nothing shows in which order; only what `runs` has its devices already.
    pub fn rebuilt(&mut self, mut entry: LedgerEntry, runs: bool) {
        entry.seq = if runs { 0 } else { REBUILT };
        self.entries.insert(entry.key(), entry.into());
    }

    /// The kubelet calls for this pod once more: the answers before have arrived.
    fn went_on(&mut self, uid: &PodUid) {
        let own = |earlier: &&mut Shared<LedgerEntry>| {
            earlier.pod.uid == *uid && !matches!(earlier.state, CallState::Listed | CallState::Held)
        };
        for earlier in self.entries.values_mut().filter(own) {
            earlier.state = CallState::Listed;
        }
    }

    /// Takes back a grant whose answer never left.
    pub fn forget(&mut self, key: &EntryKey) {
        self.entries.remove(key);
    }

    /// Puts an entry back as it was.
    pub fn restore(&mut self, entry: LedgerEntry) {
        self.entries.insert(entry.key(), entry.into());
    }

    /// The kubelet asked again, perhaps with other ids.
    pub fn repeat(&mut self, key: &EntryKey, mut ids: Vec<Box<str>>) {
        ids.sort();
        self.went_on(&key.uid);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.ids = ids;
            entry.asked += 1;
            entry.state = CallState::Answered;
        }
    }

    /// The kubelet has asked for what is held of these pods, as it turns out. `true` when there was anything. What a pod without an
    /// assignment was answered is not known.
    pub fn proves(&mut self, has_asked: impl Fn(&PodUid) -> bool) -> bool {
        let is_held = |entry: &LedgerEntry| !entry.was_asked() && entry.assigned;
        let held = self.entries.values_mut().filter(|entry| is_held(entry) && has_asked(&entry.pod.uid));
        held.map(|entry| entry.state = CallState::Answered).count() > 0
    }

    /// Some call of this pod is known to have been served.
    pub fn has_served(&self, uid: &PodUid) -> bool {
        self.of_pod(uid).any(LedgerEntry::was_asked)
    }

    /// Keeps the answer that a rebuilt entry was given.
    pub fn set_answer(&mut self, key: &EntryKey, answer: Vec<u8>) {
        if let Some(entry) = self.entries.get_mut(key).filter(|entry| entry.answer.as_ref() != Some(&answer)) {
            entry.answer = Some(answer);
        }
    }

    /// Settles the intents that PodResources confirms; the ids of a settled entry are what it lists. `true` when anything
    /// changed.
    pub fn settle(&mut self, resources: &PodResources) -> bool {
        let Some(listing) = resources.listing() else { return false };
        let mut changed = false;
        for entry in self.entries.values_mut().filter(|entry| entry.state == CallState::Answered) {
            let listed: BTreeSet<&str> = listing.ids(&entry.pod.key, &entry.container, &entry.resource).collect();
            let ours: BTreeSet<&str> = entry.ids.iter().map(|id| &**id).collect();
            if !listed.is_empty() && listed == ours {
                entry.state = CallState::Listed;
                changed = true;
            }
        }
        changed
    }

    /// Marks the entries whose pods have left, as of `now` by both clocks, and those whose pods are back. `true` when any changed.
    pub fn follow(&mut self, pods: &NodePods, resources: &PodResources, now: (Duration, Timestamp)) -> bool {
        let has_moved = |entry: &&LedgerEntry| self.is_live(entry, pods, resources) != entry.leaving().is_none();
        let moved: Vec<EntryKey> = self.iter().filter(has_moved).map(LedgerEntry::key).collect();
        for key in &moved {
            let Some(entry) = self.entries.get_mut(key) else { continue };
            let last = pods.last_seen(&entry.pod.uid);
            let left = CallState::Leaving(Leaving { at: now.1, since: now.0, last });
            entry.state = if entry.leaving().is_some() { CallState::Listed } else { left };
        }
        !moved.is_empty()
    }

    /// Processes of a pod that has left were found. `true` where it was not known that it had begun to run.
    pub fn runs(&mut self, uid: &PodUid) -> bool {
        let mut news = false;
        for entry in self.entries.values_mut().filter(|entry| entry.pod.uid == *uid) {
            if let CallState::Leaving(leaving) = entry.state
                && leaving.last == LastSeen::Waiting
            {
                entry.state = CallState::Leaving(Leaving { last: LastSeen::Running, ..leaving });
                news = true;
            }
        }
        news
    }

    /// Entries that hold their devices.
    pub fn live<'a>(
        &'a self,
        pods: &'a NodePods,
        resources: &'a PodResources,
    ) -> impl Iterator<Item = &'a LedgerEntry> {
        self.iter().filter(|entry| self.is_live(entry, pods, resources))
    }

    /// In the API with this uid and not ended, or still listed by PodResources: its kubelet wants it. `pods` must be synced with the API
    /// server: absence counts.
    ///
    /// An ended pod that is still listed holds its devices only while the API shows a container of it running: kubelets
    /// before 1.34 list ended pods for as long as they exist.
    pub fn is_live(&self, entry: &LedgerEntry, pods: &NodePods, resources: &PodResources) -> bool {
        match pods.by_uid(&entry.pod.uid) {
            Some(pod) if !pod.phase.is_terminal() => true,
            Some(pod) => pod.containers.iter().any(|c| c.running) && self.is_listed(entry, pods, resources),
            None => self.is_listed(entry, pods, resources),
        }
    }

    /// PodResources shows ids of this entry under its pod's name; for an entry that is never listed itself (an init
    /// container's), those of any other entry of the pod. PodResources has no uids: what a new pod of the name holds
    /// is not its predecessor's, unless the kubelet lists both.
    fn is_listed(&self, entry: &LedgerEntry, pods: &NodePods, resources: &PodResources) -> bool {
        let Some(listing) = resources.listing() else { return false };
        let holds_listed = |of: &LedgerEntry| {
            listing.ids(&of.pod.key, &of.container, &of.resource).any(|id| of.ids.iter().any(|own| **own == *id))
        };
        let alone = listing.of(&entry.pod.key).nth(1).is_none();
        // Of pods of one name the API server has the last one; of those that it has no more, the last one was served last.
        let rank = |of: &LedgerEntry| (pods.by_uid(&of.pod.uid).is_some(), of.seq);
        let inherited = |of: &LedgerEntry| {
            let successor = |other: &LedgerEntry| {
                other.pod.key == of.pod.key
                    && other.pod.uid != of.pod.uid
                    && (&other.container, &other.resource) == (&of.container, &of.resource)
                    && rank(other) > rank(of)
            };
            alone && self.iter().any(|other| successor(other) && holds_listed(other))
        };
        let shown = |of: &LedgerEntry| holds_listed(of) && !inherited(of);
        if entry.slot.init {
            self.of_pod(&entry.pod.uid).any(|other| !other.slot.init && shown(other))
        } else {
            shown(entry)
        }
    }

    /// Every call that the kubelet makes for this pod has been served. `false` for a pod that expects none.
    pub fn fully_served(&self, pod: &HandoffPod, inventory: &NodeInventory) -> bool {
        let mut expected = pod.expected_calls(|name| inventory.registers(name)).peekable();
        expected.peek().is_some()
            && expected.all(|call| self.asked(&pod.pod.uid, &call.container.name, call.resource) > 0)
    }

    /// How far `pod` is served.
    pub fn progress(&self, pod: &HandoffPod, inventory: &NodeInventory) -> HolderProgress {
        if self.fully_served(pod, inventory) {
            HolderProgress::Served
        } else if self.admission(&pod.pod.uid) == Some(Admission::Unusable) {
            HolderProgress::Unusable
        } else {
            HolderProgress::Waiting
        }
    }
}

/// Bytes as hexadecimal text, for the ledger's answers.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::ref_option)] // the signature that serde asks for
    pub fn serialize<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
        match bytes {
            None => serializer.serialize_none(),
            Some(bytes) => serializer.serialize_str(&print(bytes)),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
        let text: Option<String> = Option::deserialize(deserializer)?;
        text.map(|text| parse(&text).ok_or_else(|| D::Error::custom("expected hexadecimal digits in pairs")))
            .transpose()
    }

    fn print(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let pairs = bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]);
        pairs.map(char::from).collect()
    }

    fn parse(text: &str) -> Option<Vec<u8>> {
        let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
        Some(digits.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{container, gpu_pod, grant, granted, inventory, listing, pod, pods, with_assignment};
    use super::*;
    use crate::pod::ContainerKind::{App, Init, Sidecar};
    use crate::pod::Phase;
    use baton_contract::key::{NVIDIA_GPU as GPU, RDMA};

    #[test]
    fn a_grant_settles_the_earlier_ones_of_its_pod_and_no_other() {
        let [a, b] = ["a", "b"].map(|name| with_assignment(gpu_pod(name, 1), &[("main", &["GPU-0"])]));
        let mut ledger = granted(&a, &[("init", &["GPU-0"])]);
        grant(&mut ledger, &b, &[("main", &["GPU-1"])]);
        let intents = |ledger: &Ledger| ledger.iter().filter(|entry| entry.state == CallState::Answered).count();
        for entry in ledger.iter().cloned().collect::<Vec<_>>() {
            ledger.restore(LedgerEntry { state: CallState::Answered, ..entry });
        }
        assert_eq!(intents(&ledger), 2);
        grant(&mut ledger, &a, &[("main", &["GPU-0"])]);
        let state = |container: &str, pod: &HandoffPod| {
            ledger.get(&EntryKey::new(&pod.pod.uid, container, GPU)).map(|entry| entry.state)
        };
        assert_eq!([state("init", &a), state("main", &b)], [Some(CallState::Listed), Some(CallState::Answered)]);
    }

    #[test]
    fn an_entry_ends_with_its_pod_once_the_kubelet_lists_it_no_more() {
        let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let entry = ledger.iter().next().unwrap();
        let unlisted = PodResources::Listed(listing(&[]));
        assert!(ledger.is_live(entry, &pods(&[&pod]), &unlisted));
        pod.phase = Phase::Failed;
        assert!(!ledger.is_live(entry, &pods(&[&pod]), &unlisted));
        let listed = PodResources::Listed(listing(&[("a", "main", GPU, &["GPU-0"])]));
        assert!(!ledger.is_live(entry, &pods(&[&pod]), &listed), "kubelets before 1.34 list ended pods");
        let mut running = pod.clone();
        running.containers[0].running = true;
        assert!(
            ledger.is_live(entry, &pods(&[&running]), &listed) && !ledger.is_live(entry, &pods(&[&running]), &unlisted)
        );
        assert!(!ledger.is_live(entry, &pods(&[]), &unlisted));
        assert!(!ledger.is_live(entry, &pods(&[]), &PodResources::Silent), "its processes decide");
    }

    #[test]
    fn what_is_listed_under_a_name_is_its_latest_pods() {
        let [first, second] = ["first", "second"].map(|uid| {
            let mut pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
            pod.pod.uid = PodUid::new(uid);
            pod
        });
        let mut ledger = granted(&first, &[("main", &["GPU-0"])]);
        grant(&mut ledger, &second, &[("main", &["GPU-0"])]);
        let row = ("a", "main", GPU, &["GPU-0"][..]);
        let live = |pods: &NodePods, rows: &[(&str, &str, &str, &[&str])]| {
            let resources = PodResources::Listed(listing(rows));
            ledger.live(pods, &resources).map(|entry| entry.pod.uid.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(live(&pods(&[&second]), &[row]), ["second"]);
        assert_eq!(live(&pods(&[]), &[row]), ["second"], "its kubelet has not read of its deletion");
        assert_eq!(live(&pods(&[]), &[]), [""; 0]);
        // A rebuilt ledger has its entries in another order.
        let mut rebuilt = granted(&second, &[("main", &["GPU-0"])]);
        grant(&mut rebuilt, &first, &[("main", &["GPU-0"])]);
        let (pods, resources) = (pods(&[&second]), PodResources::Listed(listing(&[row])));
        assert!(rebuilt.live(&pods, &resources).all(|entry| entry.pod == second.pod));
    }

    #[test]
    fn an_answer_is_stored_as_hexadecimal_digits() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let entry = LedgerEntry { answer: Some(vec![0, 0x9f, 0xff]), ..ledger.iter().next().unwrap().clone() };
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.contains(r#""answer":"009fff""#), "{text}");
        assert_eq!(serde_json::from_str::<LedgerEntry>(&text).unwrap(), entry);
        for bad in ["0", "zz"] {
            let bad = text.replace("009fff", bad);
            assert!(serde_json::from_str::<LedgerEntry>(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_grant_has_its_place_behind_the_ones_before() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let ledger = granted(&pod, &[("init", &["GPU-0"]), ("main", &["GPU-0"])]);
        let mut read = Ledger::of(ledger.iter().cloned());
        grant(&mut read, &pod, &[("side", &["GPU-0"])]);
        let places: Vec<_> = read.iter().map(|entry| (&*entry.container, entry.seq)).collect();
        assert_eq!(places, [("init", 2), ("main", 3), ("side", 4)], "behind all that are rebuilt");
    }

    #[test]
    fn a_device_may_go_to_two_containers_of_a_pod_that_never_run_together() {
        let kinds = [("first", Init), ("side", Sidecar), ("second", Init), ("main", App), ("other", App)];
        let pod = pod("a", kinds.map(|(name, kind)| container(name, kind, &[])).to_vec());
        let meets = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|name| ContainerSlot::of(&pod, name));
            assert_eq!(one.meets(other), other.meets(one));
            one.meets(other)
        };
        for (one, other) in [("side", "second"), ("side", "main"), ("main", "other"), ("main", "unknown")] {
            assert!(meets(one, other), "{one} and {other}");
        }
        for (one, other) in [("first", "side"), ("first", "second"), ("first", "main"), ("second", "main")] {
            assert!(!meets(one, other), "{one} and {other}");
        }
    }

    #[test]
    fn a_forgotten_grant_holds_nothing_and_a_rebuilt_one_keeps_its_answer() {
        let [a, b] = ["a", "b"].map(|name| with_assignment(gpu_pod(name, 1), &[("main", &["GPU-0"])]));
        let mut ledger = granted(&a, &[("main", &["GPU-0"])]);
        assert!(!ledger.is_empty() && ledger.holds(&a.pod.uid) && !ledger.holds(&b.pod.uid));
        let key = EntryKey::new(&a.pod.uid, "main", GPU);
        assert_eq!(ledger.stored().keys().collect::<Vec<_>>(), [&key]);
        assert_eq!(ledger.get(&key).unwrap().named().map(DeviceId::as_str).collect::<Vec<_>>(), ["GPU-0"]);
        ledger.restore(LedgerEntry { answer: None, ..ledger.get(&key).unwrap().clone() });
        ledger.set_answer(&key, vec![4]);
        assert_eq!(ledger.get(&key).unwrap().answer, Some(vec![4]));
        ledger.forget(&key);
        assert!(ledger.is_empty() && !ledger.holds(&a.pod.uid));
    }

    #[test]
    fn an_intent_is_settled_when_the_kubelet_lists_its_ids() {
        let pod = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        let mut ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let mut settles = |rows: &[(&str, &str, &str, &[&str])]| ledger.settle(&PodResources::Listed(listing(rows)));
        assert!(!settles(&[]) && !settles(&[("a", "main", GPU, &["GPU-7"])]), "other ids are of an earlier call");
        assert!(settles(&[("a", "main", GPU, &["GPU-0"])]));
        assert!(!settles(&[("a", "main", GPU, &["GPU-0"])]), "it is settled");
        let key = EntryKey::new(&pod.pod.uid, "main", GPU);
        assert_eq!(ledger.get(&key).unwrap().state, CallState::Listed);
        ledger.repeat(&key, vec![]);
        assert!(!ledger.settle(&PodResources::Listed(listing(&[("a", "main", GPU, &[])]))), "nothing proves nothing");
        assert!(!ledger.settle(&PodResources::Silent));
    }

    #[test]
    fn a_pod_that_is_gone_holds_what_the_kubelet_lists_unless_its_successor_does() {
        let gpu = [(GPU, 1)];
        let gone = pod("a", vec![container("init", Init, &gpu), container("main", App, &gpu)]);
        let other = gpu_pod("b", 1);
        let mut ledger = granted(&gone, &[("init", &["GPU-0"]), ("main", &["GPU-0"])]);
        grant(&mut ledger, &other, &[("main", &["GPU-1"])]);
        let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &["GPU-0"]), ("b", "main", GPU, &["GPU-1"])];
        let resources = PodResources::Listed(listing(rows));
        assert_eq!(
            ledger.live(&pods(&[&other]), &resources).count(),
            3,
            "the init container's, while the pod is listed"
        );
        let mut successor = gone.clone();
        successor.pod.uid = PodUid::new("a-second");
        grant(&mut ledger, &successor, &[("main", &["GPU-0"])]);
        let all = pods(&[&other, &successor]);
        let live: Vec<_> = ledger.live(&all, &resources).map(|entry| entry.pod.uid.as_str()).collect();
        assert_eq!(live, ["a-second", "b-uid"]);
    }

    #[test]
    fn a_name_that_the_agent_has_not_registered_is_not_called() {
        let both = container("main", App, &[(GPU, 1), (RDMA, 100)]);
        let pod = with_assignment(pod("a", vec![both]), &[("main", &["GPU-0", "nic-0"])]);
        let ledger = granted(&pod, &[("main", &["GPU-0"])]);
        let mut inventory = inventory(1);
        assert!(!ledger.fully_served(&pod, &inventory), "the call for the NIC is still to come");
        inventory.registered.remove(RDMA);
        assert!(ledger.fully_served(&pod, &inventory));
    }
}
