//! What the hand-off needs to know of a pod: the same small record for the agent and the scheduler.

use std::collections::BTreeMap;

use crate::shares::ShareTerms;
use baton_contract::gang::Committed;
use baton_contract::hint::{Count, Counting};
use baton_contract::{ContainerRequest, DeviceAllocation, DeviceType, GpuRequest, PodRef, RequestError, Shared, key};

/// One pod, as the hand-off sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandoffPod {
    /// Key and uid.
    pub pod: PodRef,
    /// `spec.nodeName`, once bound.
    pub node: Option<Box<str>>,
    /// `spec.schedulerName`.
    pub scheduler_name: Box<str>,
    /// `status.phase`.
    pub phase: Phase,
    /// When a deletion was asked for, by the API server's clock, and the grace in seconds.
    pub deleting: Option<Deletion>,
    /// `spec.terminationGracePeriodSeconds`: how long its kubelet lets a container end by itself.
    pub grace_seconds: u32,
    /// Condition `PodScheduled` is True.
    pub scheduled_condition: bool,
    /// Its kubelet may still have to do what the spec asks for since CPU or memory was changed.
    pub resizing: bool,
    /// `metadata.creationTimestamp`.
    pub created: jiff::Timestamp,
    /// Init containers and sidecars in spec order, then app containers in spec order.
    pub containers: Shared<Vec<PodContainer>>,
    /// The assignment's annotations, as they stand.
    pub assignment: AssignmentText,
}

/// The annotations that a Binding writes, `None` where a key is absent, and what the pod's author said that they follow from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AssignmentText {
    /// `device-allocated`.
    pub device_allocated: Option<Box<str>>,
    /// `container-devices`.
    pub container_devices: Option<Box<str>>,
    /// `bind-timestamp`.
    pub bind_timestamp: Option<Box<str>>,
    /// `device-joint-allocate` is there: a container's GPUs and NICs were chosen for each other.
    pub joint: bool,
    /// How many GPUs an amount stands for, by `device-allocate-hint`.
    pub gpus: Counting,
    /// How many NICs.
    pub nics: Counting,
    /// The commit of its group that bound the pod.
    pub committed: Option<Committed>,
    /// What the pod says about the limits of its GPU shares, where it says something.
    pub shares: Option<Box<ShareTerms>>,
}

/// A deletion under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deletion {
    /// `metadata.deletionTimestamp`: when the grace period ends.
    pub at: jiff::Timestamp,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace_seconds: i64,
}

/// `status.phase`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Not all containers have been created.
    #[default]
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well.
    Succeeded,
    /// All containers ended, one badly; or the kubelet refused the pod.
    Failed,
    /// Lost contact.
    Unknown,
}

impl Phase {
    /// From the word in `status.phase`; an absent word is Pending, a strange one Unknown.
    pub fn of(word: Option<&str>) -> Self {
        match word {
            None | Some("" | "Pending") => Self::Pending,
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some(_) => Self::Unknown,
        }
    }

    /// Succeeded or Failed. Its kubelet writes that when nothing runs any more, other clients at any time.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// One container, of any kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodContainer {
    /// Name, unique in the pod.
    pub name: Box<str>,
    /// When it runs.
    pub kind: ContainerKind,
    /// Its device limits, judged; the rule it breaks otherwise.
    pub request: Result<ContainerRequest, RequestError>,
    /// `status.containerStatuses[].state.running` is there.
    pub running: bool,
    /// It runs, has run, or has been restarted.
    pub started: bool,
    /// It could not be made or started with its devices, and has not run since.
    pub lacks_devices: bool,
    /// When it last ended, by the clock of its node, in whole seconds.
    pub ended: Option<jiff::Timestamp>,
    /// Resource names that a DRA claim serves instead of a device plugin (`status.extendedResourceClaimStatus`).
    pub dra_backed: Vec<Box<str>>,
}

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContainerKind {
    /// Ends before the next one starts; its devices are free again for the pod's next containers.
    Init,
    /// An init container with `restartPolicy: Always`: stays.
    Sidecar,
    /// An ordinary container.
    App,
}

impl HandoffPod {
    /// Bound, not ended: holds its devices.
    pub fn is_live(&self) -> bool {
        self.node.is_some() && !self.phase.is_terminal()
    }

    /// A container runs, by its status.
    pub fn any_runs(&self) -> bool {
        self.containers.iter().any(|container| container.running)
    }

    /// Succeeded or Failed by the word of its kubelet, which writes that when nothing runs any more. Other clients write a phase
    /// beside containers that run.
    pub fn has_ended(&self) -> bool {
        self.phase.is_terminal() && !self.any_runs()
    }

    /// The kubelet has admitted the pod: all its calls are made.
    pub fn has_started(&self) -> bool {
        self.phase == Phase::Running || self.containers.iter().any(|container| container.running || container.started)
    }

    /// The container of that name.
    pub fn container(&self, name: &str) -> Option<&PodContainer> {
        self.containers.iter().find(|container| &*container.name == name)
    }

    /// What a bound pod's annotation `device-allocated` promises it: clipped to what its containers ask for.
    /// `None` where there is none or it cannot be read.
    pub fn promise(&self) -> Option<DeviceAllocation> {
        let text = self.assignment.device_allocated.as_deref().filter(|text| !text.is_empty())?;
        let said = DeviceAllocation::parse(text).ok()?;
        let (mut counts, mut most) = (BTreeMap::<DeviceType, usize>::new(), BTreeMap::<&str, i64>::new());
        let mut asks = |kind, count, amounts: &[(&'static str, i64)]| {
            let devices = if let Count::Exactly(count) = count { count as usize } else { usize::MAX };
            let all = counts.entry(kind).or_default();
            *all = all.saturating_add(devices);
            for (name, amount) in amounts {
                let all = most.entry(name).or_default();
                *all = all.saturating_add(*amount);
            }
        };
        for request in self.containers.iter().filter_map(|container| container.request.as_ref().ok()) {
            if let Some(gpu) = &request.gpu {
                let (core, ratio, bytes) = match gpu {
                    // Of a share in bytes the percent follow from the GPU, and the reverse; the bytes are rounded.
                    GpuRequest::Share { core, ratio, memory, .. } => {
                        let bytes = memory.map_or(i64::MAX, |bytes| bytes.saturating_add(bytes / 100));
                        (*core, ratio.unwrap_or(key::WHOLE), bytes)
                    }
                    GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => (key::WHOLE, key::WHOLE, i64::MAX),
                };
                let count = self.assignment.gpus.devices(gpu.count());
                let amounts = [(key::GPU_CORE, core), (key::GPU_MEMORY_RATIO, ratio), (key::GPU_MEMORY, bytes)];
                asks(DeviceType::Gpu, count, &amounts);
            }
            if let Some(nic) = request.rdma {
                let (count, percent) = self.assignment.nics.nics(nic);
                asks(DeviceType::Rdma, count, &[(key::RDMA, percent)]);
            }
        }
        Some(said.clipped(&counts, &most))
    }

    /// `true` when any container asks for a device, validly or not.
    pub fn asks_for_devices(&self) -> bool {
        self.containers.iter().any(|container| container.request.as_ref().map_or(true, |request| !request.is_empty()))
    }

    /// The Allocate calls that the kubelet will make for names for which `is_registered` holds: container, resource name and
    /// number of ids, in the kubelet's container order.
    pub fn expected_calls<'a>(
        &'a self,
        is_registered: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = ExpectedCall<'a>> + 'a {
        let called = self.containers.iter().flat_map(|container| {
            let names = container.request.as_ref().map(ContainerRequest::called_names).into_iter().flatten();
            names.map(move |(resource, count)| ExpectedCall { container, resource, count })
        });
        called.filter(move |ExpectedCall { container, resource, .. }| {
            is_registered(resource) && !container.dra_backed.iter().any(|dra| **dra == **resource)
        })
    }

    /// Most that the containers hold at once, per resource name, for messages: an init container ends before the next one starts,
    /// and its devices are the next one's.
    pub fn wanted(&self) -> BTreeMap<Box<str>, i64> {
        let (mut running, mut most) = (BTreeMap::<Box<str>, i64>::new(), BTreeMap::<Box<str>, i64>::new());
        for container in &*self.containers {
            let Ok(request) = &container.request else { continue };
            for (name, amount) in &request.names {
                let before = running.get(name).copied().unwrap_or_default();
                let top = most.entry(name.clone()).or_default();
                let after = before.saturating_add(*amount);
                *top = (*top).max(after);
                if container.kind != ContainerKind::Init {
                    running.insert(name.clone(), after);
                }
            }
        }
        most
    }
}

/// One Allocate call that the kubelet will make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpectedCall<'a> {
    /// For this container.
    pub container: &'a PodContainer,
    /// On this resource's socket.
    pub resource: &'a str,
    /// With this many ids.
    pub count: i64,
}
