//! What pods on a node hold, where their annotations are not the truth.

use std::collections::{BTreeMap, BTreeSet};

use super::pod::Pod;
use super::resources::Scalars;
use crate::devices::Held;
use baton_contract::allocation::Entries;
use baton_contract::{AgentStatus, ContainerRequest, DeviceAllocation, PodUid};

/// What the node's daemon says of pods whose annotation is not the truth, by its latest word, also while it is stale.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeExceptions {
    /// By uid. `None` for a daemon that says nothing of it, and without a daemon.
    pods: Option<BTreeMap<PodUid, Held>>,
    /// Held by pods that are not on the node any more, as far as the API server shows.
    departed: Vec<Held>,
}

impl NodeExceptions {
    /// Reads the daemon's word.
    pub(super) fn of(status: Option<&AgentStatus>) -> Self {
        let read = |(uid, devices): (&PodUid, &Entries)| {
            let allocation = DeviceAllocation { devices: devices.clone(), ..DeviceAllocation::default() };
            (uid.clone(), Held::of(&allocation))
        };
        let said = status.and_then(|status| status.exceptions.as_ref());
        Self { pods: said.map(|all| all.iter().map(read).collect()), departed: Vec::new() }
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

    /// Takes note of which pods are on the node.
    pub fn note_pods<'a>(&mut self, on: impl Iterator<Item = &'a PodUid>) {
        let on: BTreeSet<&PodUid> = on.collect();
        self.departed = self.iter().filter(|(uid, _)| !on.contains(uid)).map(|(_, held)| held.clone()).collect();
    }

    /// Devices that no pod on the node accounts for.
    pub fn departed(&self) -> &[Held] {
        &self.departed
    }
}

/// What decides what pods on a node hold: what the daemon says; else the annotation, or the scheduler's own choice, for names that
/// some daemon there has registered.
#[derive(Debug, Clone, Copy)]
pub struct Holders<'a> {
    pub(super) exceptions: &'a NodeExceptions,
    /// By the daemon's latest word.
    pub(super) registered: Option<&'a [String]>,
    /// By the Node's allocatable, zeros included.
    pub(super) offered: Option<&'a Scalars>,
}

impl<'a> Holders<'a> {
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
