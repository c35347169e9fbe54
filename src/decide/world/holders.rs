//! What pods on a node hold, where their annotations are not the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::changes::{Changes, Wake};
use super::pod::Pod;
use super::resources::Scalars;
use crate::devices::Held;
use baton_contract::allocation::Entries;
use baton_contract::{AgentStatus, ContainerRequest, DeviceAllocation, LeavingPod, PodUid};

/// A daemon that has been live for this long since a pod left its node has looked whether processes of the pod are there still.
const LOOKED: Duration = Duration::from_secs(10);

/// What pods hold beside the annotations of those on the node: by the daemon's latest word, also while it is stale, and until it has
/// spoken by our own memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeExceptions {
    /// By uid. `None` before the daemon knows it, and without a daemon.
    pods: Option<BTreeMap<PodUid, Held>>,
    /// Of those, the pods that are not on the node any more, as far as the API server shows.
    departed: Vec<PodUid>,
    /// Pods that left while a container ran, by their last status, and of which the daemon has said nothing yet.
    left: Vec<Left>,
}

/// A pod that has left before its processes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Left {
    uid: PodUid,
    pod: LeavingPod,
    /// Monotonic time at which it left.
    since: Duration,
    held: Held,
}

impl NodeExceptions {
    /// Hears the daemon's word: it counts instead of our memory, and where it is another than before it may free devices.
    pub(super) fn hear(&mut self, status: Option<&AgentStatus>, changes: &mut Changes) {
        let read = |(uid, devices): (&PodUid, &Entries)| {
            let allocation = DeviceAllocation { devices: devices.clone(), ..DeviceAllocation::default() };
            (uid.clone(), Held::of(&allocation))
        };
        let said = status.and_then(|status| status.exceptions.as_ref());
        let (before, departed) = (self.counted(), self.departed().map(|(uid, _)| uid.clone()).collect::<Vec<_>>());
        self.pods = said.map(|all| all.iter().map(read).collect());
        let named = |left: &mut Left| self.pods.as_ref().is_some_and(|pods| pods.contains_key(&left.uid));
        self.departed.extend(self.left.extract_if(.., named).map(|left| left.uid));
        changes.left.extend(departed.into_iter().filter(|uid| !self.holds(uid)));
        if self.counted() != before {
            changes.wake = changes.wake.or(Wake::POD_FREED);
        }
    }

    /// Whether the daemon has spoken, and what counts.
    fn counted(&self) -> (bool, BTreeMap<PodUid, Held>) {
        let all = self.iter().chain(self.unsaid()).map(|(uid, held)| (uid.clone(), held.clone()));
        (self.pods.is_some(), all.collect())
    }

    /// Remembers what a pod holds that leaves the node while a container runs. The daemon may have said so before, and for a moment say
    /// nothing of it.
    pub(super) fn leave(&mut self, uid: &PodUid, pod: LeavingPod, since: Duration, held: Held) {
        self.left.push(Left { uid: uid.clone(), pod, since, held });
    }

    /// What pods hold that left, and of which the daemon says nothing.
    fn unsaid(&self) -> impl Iterator<Item = (&PodUid, &Held)> {
        self.left.iter().map(|left| (&left.uid, &left.held)).filter(|(uid, _)| self.of_pod(uid).is_none())
    }

    /// Forgets those of the pods that left for which `is_over` holds: their devices are free. `true` when there were any.
    fn end(&mut self, is_over: impl Fn(&Left) -> bool, changes: &mut Changes) -> bool {
        let ended = self.left.extract_if(.., |left| is_over(left)).map(|left| left.uid);
        let before = changes.left.len();
        changes.left.extend(ended);
        let any = changes.left.len() > before;
        if any {
            changes.wake = changes.wake.or(Wake::POD_FREED);
        }
        any
    }

    /// Nothing of this pod runs any more, by its kubelet's word.
    pub(super) fn has_ended(&mut self, uid: &PodUid, changes: &mut Changes) -> bool {
        self.end(|left| left.uid == *uid, changes)
    }

    /// The node is gone, or has started again: nothing of what ran there runs any more.
    pub(super) fn restarted(&mut self, changes: &mut Changes) -> bool {
        self.end(|_| true, changes)
    }

    /// The daemon has been live since `live_since`, has spoken at `spoken` last, and says nothing of the pods that left.
    pub(super) fn unnamed(
        &mut self,
        live_since: Duration,
        spoken: Duration,
        now: Duration,
        changes: &mut Changes,
    ) -> bool {
        self.end(|left| spoken > left.since && live_since.max(left.since) + LOOKED <= now, changes)
    }

    /// Pods that left while a container ran, and of which the daemon has said nothing yet.
    pub(super) fn left(&self) -> impl Iterator<Item = (&LeavingPod, &Held)> {
        self.left.iter().map(|left| (&left.pod, &left.held))
    }

    /// What the pods on the node hold is what their annotations say, and nothing else is held there.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty() && self.iter().next().is_none()
    }

    /// The daemon says of every pod that is an exception what it holds.
    pub fn are_known(&self) -> bool {
        self.pods.is_some()
    }

    /// Uids of the exceptions and what they hold.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &Held)> {
        self.pods.iter().flatten()
    }

    /// What the daemon says of one pod; `None` where its annotation counts.
    pub fn of_pod(&self, uid: &PodUid) -> Option<&Held> {
        self.pods.as_ref()?.get(uid)
    }

    /// Takes note of which pods are on the node: one that is there has not left.
    pub fn note_pods<'a>(&mut self, on: impl Iterator<Item = &'a PodUid>) {
        let on: BTreeSet<&PodUid> = on.collect();
        self.departed = self.iter().map(|(uid, _)| uid).filter(|uid| !on.contains(uid)).cloned().collect();
        self.left.retain(|left| !on.contains(&left.uid));
    }

    /// Devices that no pod on the node accounts for, and the uids of the pods whose they were.
    pub fn departed(&self) -> impl Iterator<Item = (&PodUid, &Held)> {
        let named = self.departed.iter().filter_map(|uid| Some((uid, self.of_pod(uid)?)));
        named.chain(self.unsaid())
    }

    /// A pod that is not on the node any more holds devices there.
    pub(super) fn holds(&self, uid: &PodUid) -> bool {
        self.departed().any(|(departed, held)| departed == uid && !held.devices().is_empty())
    }
}

/// What decides what pods on a node hold: what the daemon says; else the annotation, or the scheduler's own choice, for names that
/// some daemon there has registered.
#[derive(Debug, Clone, Copy)]
pub struct Holders<'a> {
    exceptions: &'a NodeExceptions,
    /// By the daemon's latest word.
    registered: Option<&'a [String]>,
    /// By the Node's allocatable, zeros included.
    offered: Option<&'a Scalars>,
}

impl<'a> Holders<'a> {
    pub(super) fn new(
        exceptions: &'a NodeExceptions,
        registered: Option<&'a [String]>,
        offered: Option<&'a Scalars>,
    ) -> Self {
        Self { exceptions, registered, offered }
    }

    /// What `pod` holds, if that is known.
    pub fn of(self, pod: &'a Pod) -> Option<&'a Held> {
        if let Some(held) = self.exceptions.of_pod(&pod.facts.handoff.pod.uid) {
            return Some(held);
        }
        let never = || pod.facts.handoff.containers.iter().flat_map(|of| &of.request).all(|of| self.never_calls(of));
        pod.devices.as_ref().filter(|_| !self.exceptions.are_known() || !never())
    }

    /// The kubelet makes no call for this request: nothing has registered its names, now or since the kubelet started.
    fn never_calls(self, request: &ContainerRequest) -> bool {
        request.called_names().all(|(name, _)| {
            self.offered.is_some_and(|all| all.get(name).is_none())
                && self.registered.is_none_or(|all| all.iter().all(|own| own != name))
        })
    }

    /// The exceptions themselves.
    pub fn exceptions(self) -> &'a NodeExceptions {
        self.exceptions
    }
}

/// A pod that has left, in words.
pub fn has_left(pod: &LeavingPod) -> String {
    let LeavingPod { namespace, name, since } = pod;
    format!("{namespace}/{name}, which was deleted or written as ended at {since:.0}")
}

/// A pod that its kubelet admitted without a call for its devices, in the words of every surface. They follow the pod's name.
pub fn without_devices(node: &str) -> String {
    format!("runs without its devices: the kubelet of {node} started it and did not call the node daemon; delete it")
}

/// A pod that holds other devices than its annotation says, in the words of every surface. They follow the pod's name.
pub fn holds_otherwise<'a>(devices: impl Iterator<Item = &'a str>) -> String {
    let held = devices.collect::<Vec<_>>().join(", ");
    format!("holds {held} by its node daemon's word, which its annotation does not say; delete and re-create it")
}

/// Why a device is not free that no pod of the API server holds. It follows the name of the device.
pub fn still_used(pod: &LeavingPod) -> String {
    format!("still used by processes of {}", has_left(pod))
}
