//! When a pod that has left gives its devices back: once the processes that used them have gone.
//!
//! The kubelet gives a pod's ids to the next pod as soon as the API server deletes the pod, or any client writes that it has ended.
//! The containers run on: for two seconds after a deletion by force, for the whole grace period on a node that was cut off, without
//! end where a process cannot be killed. So an entry of the ledger outlives its pod:
//!
//! ```text
//!            the kubelet goes on         the pod has left              its processes have gone
//!   Answered ───────────────────▶ Listed ────────────────▶ Leaving ───────────────────────────▶ (dropped)
//!                                     ▲                      │
//!                                     └── the pod is back ───┘
//! ```
//!
//! Proof is the pod's cgroup, absent or without processes. Where the node's cgroups cannot be read, or are not where this pod runs
//! (a virtual machine's), the grace period and a minute more must do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::assignment::kind_of;
use super::inventory::NodeInventory;
use super::ledger::{CallState, ContainerSlot, Leaving, Ledger, LedgerEntry};
use super::listing::{EntryKey, StoredAnswer};
use super::pods::{LastSeen, NodePods};
use super::rebuild::{self, devices_of, whole_devices};
use super::room::{self, ByPod, DeviceClaim};
use baton_contract::{DeviceId, LeavingPod, PodRef, PodUid};

/// A container may be about to start in an empty cgroup.
const EMPTY: Duration = Duration::from_secs(2);
/// Looks that are farther apart say nothing of the time between them.
const IN_A_ROW: Duration = Duration::from_secs(5);
/// A cgroup that was never looked at while its pod ran counts as left once it has had no process for so long.
const UNSEEN: Duration = Duration::from_secs(10);
/// Without proof: beyond the grace period.
const MARGIN: Duration = Duration::from_secs(60);
/// Pods that end as usual have gone by then, and cost no write. Those that do not have been written into the Lease by then.
const PUBLISHED: Duration = Duration::from_secs(1);

/// What a look at the cgroup of a pod shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupLook {
    /// A process is in it.
    Occupied,
    /// It is there, without a process.
    Empty,
    /// There is none.
    Absent,
    /// Cgroups of pods cannot be seen now.
    Unknown,
    /// The pod has no uid that could name one: it was rebuilt from a list without uids.
    Nameless,
}

/// What looks have shown of one pod.
#[derive(Debug, Clone, Copy)]
struct Seen {
    look: CgroupLook,
    at: Duration,
    /// The first of the looks in a row that have found no process.
    vacant: Duration,
    /// Whether processes were found where the API server showed a container running; `None` where it was never looked at then.
    is_there: Option<bool>,
}

/// Where the processes of this node's pods are, by looks at their cgroups. In memory: it is learned again after a start.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    seen: BTreeMap<PodUid, Seen>,
    /// Cgroups could be read: while they cannot, that is a moment, and no property of the node.
    readable: bool,
}

/// Whether an entry holds its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Processes of its pod may use them.
    Held,
    /// They have gone.
    Gone,
    /// They have had the time to go; nothing proves it.
    Unseen,
}

impl Processes {
    /// Takes in a look. `runs`: the API server shows a container of the pod running.
    pub fn saw(&mut self, uid: &PodUid, look: CgroupLook, runs: bool, now: Duration) {
        let seen = self.seen.entry(uid.clone()).or_insert(Seen { look, at: now, vacant: now, is_there: None });
        if !matches!(seen.look, CgroupLook::Empty | CgroupLook::Absent) || now.saturating_sub(seen.at) > IN_A_ROW {
            seen.vacant = now;
        }
        match look {
            CgroupLook::Occupied => seen.is_there = Some(true),
            _ if runs => seen.is_there = seen.is_there.or(Some(false)),
            _ => {}
        }
        (seen.look, seen.at) = (look, now);
        self.readable |= !matches!(look, CgroupLook::Unknown | CgroupLook::Nameless);
    }

    /// Its processes were found: what is seen of its cgroup counts.
    pub fn is_found(&self, uid: &PodUid) -> bool {
        self.seen.get(uid).is_some_and(|seen| seen.is_there == Some(true))
    }

    /// Whether its cgroup is there, by the latest look. A kubelet makes it before the first container starts; where it was not there while
    /// one ran, it has another name. `None` where that cannot be said.
    pub fn has_cgroup(&self, uid: &PodUid) -> Option<bool> {
        let seen = self.seen.get(uid)?;
        match seen.look {
            CgroupLook::Occupied | CgroupLook::Empty => Some(true),
            CgroupLook::Absent if seen.is_there != Some(false) => Some(false),
            CgroupLook::Absent | CgroupLook::Unknown | CgroupLook::Nameless => None,
        }
    }

    /// Forgets pods that `asked_for` does not accept.
    pub fn retain(&mut self, asked_for: impl Fn(&PodUid) -> bool) {
        self.seen.retain(|uid, _| asked_for(uid));
    }

    /// Whether the pod of `entry` still uses its devices, as far as was seen. A pod that has not left holds them unless its cgroup proves
    /// that nothing of it runs.
    pub fn hold(&self, entry: &LedgerEntry, now: Duration) -> Hold {
        let Some(seen) = self.seen.get(&entry.pod.uid) else { return Hold::Held };
        let leaving = entry.leaving();
        // The time since the last look proves nothing.
        let vacant = seen.at.saturating_sub(seen.vacant);
        let grace = Duration::from_secs(u64::from(entry.grace_seconds)) + MARGIN;
        let is_proven = match (seen.look, seen.is_there) {
            (CgroupLook::Occupied, _) => return Hold::Held,
            (CgroupLook::Unknown, _) if self.readable => return Hold::Held,
            // Its kubelet says that it has ended, and nothing contradicts it. It may be the word of another client about a container that
            // starts again, so where cgroups are read they are looked at.
            _ if leaving.is_some_and(|of| of.last == LastSeen::Ended) => true,
            (CgroupLook::Absent, Some(true)) => true,
            (CgroupLook::Empty, Some(true)) => vacant >= EMPTY,
            (CgroupLook::Absent | CgroupLook::Empty, None) => vacant >= UNSEEN,
            (CgroupLook::Unknown | CgroupLook::Nameless, _) | (_, Some(false)) => false,
        };
        match leaving {
            _ if is_proven => Hold::Gone,
            Some(of) if now.saturating_sub(of.since) >= grace => Hold::Unseen,
            _ => Hold::Held,
        }
    }
}

/// Entries whose pods have left, and no process of them uses their devices any more; and whether that is proven. One of a pod that ran at
/// the last stays for as long as its publication takes: schedulers keep its devices until they have read of it.
pub fn vacated<'a>(
    ledger: &'a Ledger,
    processes: &'a Processes,
    now: Duration,
) -> impl Iterator<Item = (&'a LedgerEntry, Hold)> {
    let is_due = move |of: &Leaving| of.last != LastSeen::Running || now.saturating_sub(of.since) >= PUBLISHED;
    let left = ledger.iter().filter(move |entry| entry.leaving().is_some_and(is_due));
    left.map(move |entry| (entry, processes.hold(entry, now))).filter(|(_, hold)| *hold != Hold::Held)
}

/// Pods that have left and are said to use their devices still: at once where a container ran at the last, else where processes must have
/// been seen, because nothing else keeps an ended one for so long.
pub fn leaving<'a>(entries: impl Iterator<Item = &'a LedgerEntry>, now: Duration) -> BTreeMap<PodUid, LeavingPod> {
    // An entry that names no device holds none, and to publish it would mean that the pod runs without its devices.
    let has_devices = entries.filter(|entry| !entry.served.is_empty());
    let is_late = |of: &Leaving| {
        let usual = match of.last {
            LastSeen::Running => Duration::ZERO,
            LastSeen::Ended => PUBLISHED,
            // Once a process is found it is one that runs.
            LastSeen::Waiting => Duration::MAX,
        };
        now.saturating_sub(of.since) >= usual
    };
    let late = has_devices.filter(|entry| entry.leaving().is_some_and(is_late));
    late.filter_map(|entry| Some((entry.pod.uid.clone(), entry.left()?))).collect()
}

/// Why a container must not start yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartHeld {
    /// A device of it that others use.
    pub device: DeviceId,
    /// By these.
    pub users: Vec<PodUid>,
    /// The pod that waits, where that is known.
    pub pod: Option<PodRef>,
}

/// Whether the container that the kubelet is about to start with `ids` must wait, because its devices have no room beside those of other
/// pods that have left, or may have been served before it, and that `gone` does not accept. Two pods wait for each other only where a
/// rebuilt ledger does not know which of them runs.
///
/// The caller is a pod with an entry of these ids that has not left. There may be several, where a kubelet gives ids away once more of a pod
/// that it has heard to have ended: none of them may have to wait. Where there is none, it may be a pod that the ledger does not
/// know; then it waits only for devices of a pod that has left and that no other pod has been given since. Or its kubelet has not heard
/// yet that the pod has left: where one that has left has these ids, nothing starts with them before it has gone or is back.
///
/// PodResources has no uids: what starts may be a predecessor of the same name, whose call was taken for the caller's. `has_cgroup` says
/// whether the caller's is there now: one without starts nothing. Where that is not known, it waits for a predecessor that has left.
pub fn held_start(
    resource: &str,
    ids: &[String],
    ledger: &Ledger,
    inventory: &NodeInventory,
    gone: impl Fn(&LedgerEntry) -> bool,
    has_cgroup: impl Fn(&LedgerEntry) -> Option<bool>,
) -> Option<StartHeld> {
    let asked: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let live = || ledger.iter().filter(|entry| entry.leaving().is_none());
    let is_caller = |entry: &&LedgerEntry| {
        *entry.resource == *resource && entry.ids.iter().map(|id| &**id).collect::<BTreeSet<_>>() == asked
    };
    let mut callers: BTreeMap<&PodUid, &LedgerEntry> = BTreeMap::new();
    for entry in live().filter(&is_caller) {
        let latest = callers.entry(&entry.pod.uid).or_insert(entry);
        if entry.seq > latest.seq {
            *latest = entry;
        }
    }
    if callers.is_empty() {
        let given: BTreeSet<&DeviceId> = live().flat_map(LedgerEntry::named).collect();
        let kind = kind_of(resource);
        let left = ledger.iter().filter(|entry| kind_of(&entry.resource) == kind && entry.leaving().is_some());
        let mut left = left.flat_map(|entry| entry.named().map(move |device| (entry, device)));
        let (entry, device) =
            left.find(|(entry, device)| (is_caller(entry) || !given.contains(device)) && !gone(entry))?;
        return Some(StartHeld { device: device.clone(), users: vec![entry.pod.uid.clone()], pod: None });
    }
    // Most often it is the latest one: what is said, its owner reads.
    let mut callers: Vec<&LedgerEntry> = callers.into_values().collect();
    callers.sort_by_key(|caller| std::cmp::Reverse(caller.seq));
    let latest = callers.first().map(|caller| &caller.pod);
    let (starting, absent): (Vec<&LedgerEntry>, Vec<_>) =
        callers.into_iter().partition(|caller| has_cgroup(caller) != Some(false));
    if starting.is_empty()
        && let Some(device) = absent.iter().flat_map(|caller| caller.devices()).next()
    {
        let users = absent.iter().map(|caller| caller.pod.uid.clone()).collect();
        return Some(StartHeld { device: device.clone(), users, pod: None });
    }
    let held = starting.into_iter().find_map(|caller| {
        let is_known = has_cgroup(caller).is_some();
        let before = (!is_known).then(|| held_by_predecessor(caller, ledger, &gone)).flatten();
        before.or_else(|| held_caller(caller, is_caller, ledger, inventory, &gone))
    })?;
    Some(StartHeld { pod: held.pod.filter(|pod| Some(pod) == latest), ..held })
}

/// A pod of the caller's name that has left and has not gone: the container may be its.
fn held_by_predecessor(
    caller: &LedgerEntry,
    ledger: &Ledger,
    gone: &impl Fn(&LedgerEntry) -> bool,
) -> Option<StartHeld> {
    let before = ledger.iter().filter(|entry| entry.leaving().is_some() && entry.pod.key == caller.pod.key);
    let mut devices = before.filter(|entry| !gone(entry)).flat_map(|entry| entry.devices().map(move |id| (entry, id)));
    let (entry, device) = devices.next()?;
    let users = vec![entry.pod.uid.clone(), caller.pod.uid.clone()];
    Some(StartHeld { device: device.clone(), users, pod: None })
}

/// Others that use a device of this caller, or were given it before.
fn held_caller(
    caller: &LedgerEntry,
    is_caller: impl Fn(&&LedgerEntry) -> bool,
    ledger: &Ledger,
    inventory: &NodeInventory,
    gone: &impl Fn(&LedgerEntry) -> bool,
) -> Option<StartHeld> {
    let own = || ledger.of_pod(&caller.pod.uid).filter(|entry| entry.leaving().is_none());
    // The kubelet uses ids of an init container again: it may be any container of the pod that has them.
    let devices: BTreeSet<&DeviceId> = own().filter(&is_caller).flat_map(claims).map(|claim| &claim.entry.id).collect();
    let mut others = ByPod::new();
    let may_be_older = |entry: &&LedgerEntry| {
        entry.pod.uid != caller.pod.uid && (entry.leaving().is_some() || entry.seq <= caller.seq)
    };
    for entry in ledger.iter().filter(may_be_older).filter(|entry| !gone(entry)) {
        others.entry(entry.pod.uid.clone()).or_default().extend(claims(entry));
    }
    // Device by device: containers of one pod that exceed a device are no business of other pods.
    let full = devices.into_iter().filter_map(|device| {
        let own: Vec<DeviceClaim<'_>> = own().flat_map(claims).filter(|claim| claim.entry.id == *device).collect();
        room::fits(&own, &others, inventory).err().filter(|full| !full.users.is_empty())
    });
    let room::Full { device, users, .. } = full.take(1).next()?;
    Some(StartHeld { device, users, pod: Some(caller.pod.clone()) })
}

fn claims(entry: &LedgerEntry) -> impl Iterator<Item = DeviceClaim<'_>> {
    entry.in_use().map(|(kind, device)| DeviceClaim { slot: entry.slot, kind, entry: device })
}

/// Adds to a rebuilt ledger what pods that have left still use: the kubelet's checkpoint has their answers until its next call.
/// `occupied`: of those, the pods with processes.
pub fn add_leaving(
    ledger: &mut Ledger,
    pods: &NodePods,
    answers: &BTreeMap<EntryKey, StoredAnswer>,
    inventory: &NodeInventory,
    occupied: impl Fn(&PodUid) -> bool,
    state: Leaving,
) {
    let has_left = |key: &EntryKey| {
        let is_over = pods.by_uid(&key.uid).is_none_or(|pod| pod.phase.is_terminal());
        is_over && inventory.registers(&key.resource) && !ledger.holds(&key.uid)
    };
    let found: Vec<_> = answers.iter().filter(|(key, _)| has_left(key) && occupied(&key.uid)).collect();
    for (key, answer) in found {
        if let Some(pod) = pods.by_uid(&key.uid) {
            rebuild::add_ended(ledger, pod, (key, answer), CallState::Leaving(state), inventory);
            continue;
        }
        // The checkpoint has no names.
        let pod = PodRef::new("", key.uid.as_str(), key.uid.as_str());
        let slot = ContainerSlot { order: u16::MAX, init: false, sidecar: false };
        let served = if answer.devices.is_empty() { devices_of(&answer.ids) } else { answer.devices.clone() };
        let served = whole_devices(&served, &key.resource, inventory);
        let state = CallState::Leaving(state);
        ledger.restore(LedgerEntry::new(&pod, &key.container, &key.resource, slot, vec![], served, state));
    }
}
