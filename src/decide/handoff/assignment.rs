//! The devices that a scheduler gave to a pod, split per container.

use std::collections::BTreeMap;

use super::inventory::NodeInventory;
use crate::pod::{ContainerKind, ExpectedCall, HandoffPod};
use baton_contract::allocation::Entries;
use baton_contract::hint::Count;
use baton_contract::{
    AllocationError, ContainerDevices, ContainerRequest, DeviceAllocation, DeviceEntry, DeviceId, DeviceType,
    GpuRequest, Quantity, key,
};

/// Why a pod's annotations give no usable assignment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AssignmentError {
    /// One annotation is refused whole.
    #[error(transparent)]
    Annotation(#[from] AllocationError),
    /// `device-allocated`, the only annotation there is, does not hold enough for a container.
    #[error(
        "annotation {} gives container {container} {found} of the {wanted} {kind} devices that it asks for",
        key::DEVICE_ALLOCATED
    )]
    TooFew {
        /// The container.
        container: Box<str>,
        /// `gpu` or `rdma`.
        kind: DeviceType,
        /// Devices asked for.
        wanted: usize,
        /// Devices found.
        found: usize,
    },
}

/// The plan: which container gets which devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodAssignment {
    /// The node that the scheduler chose the devices on; `None` where its annotation does not say.
    pub node: Option<Box<str>>,
    /// Entries by container and type.
    pub containers: BTreeMap<Box<str>, Entries>,
}

impl PodAssignment {
    /// Reads the pod's annotations; `None` when no scheduler assigned anything. `container-devices` counts where it is there;
    /// else `device-allocated` is split by the containers' counts.
    pub fn read(pod: &HandoffPod, inventory: &NodeInventory) -> Result<Option<Self>, AssignmentError> {
        let text = &pod.assignment;
        if let Some(split) = text.container_devices.as_deref().map(ContainerDevices::parse).transpose()?.flatten() {
            return Ok(Some(Self { node: Some(split.node), containers: split.containers }));
        }
        let Some(allocated) = text.device_allocated.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let allocated = DeviceAllocation::parse(allocated)?;
        if allocated.devices.values().all(Vec::is_empty) {
            return Ok(None);
        }
        Ok(Some(Self { node: None, containers: split(pod, &allocated, inventory)? }))
    }

    /// Entries of one type in one container.
    pub fn of(&self, container: &str, kind: &DeviceType) -> &[DeviceEntry] {
        self.containers.get(container).and_then(|types| types.get(kind)).map_or(&[], Vec::as_slice)
    }

    /// Every device of the pod, of one type, in the order of the containers; each once.
    pub fn pod_set(&self, pod: &HandoffPod, kind: &DeviceType) -> Vec<DeviceId> {
        let mut set = Vec::new();
        for container in &pod.containers {
            for entry in self.of(&container.name, kind) {
                if !set.contains(&entry.id) {
                    set.push(entry.id.clone());
                }
            }
        }
        set
    }

    /// Every device that is named anywhere, virtual functions too.
    pub fn named(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.values().flat_map(BTreeMap::values).flatten().flat_map(DeviceEntry::named)
    }
}

/// Type of the devices that `resource` stands for.
pub fn kind_of(resource: &str) -> DeviceType {
    if resource == key::RDMA { DeviceType::Rdma } else { DeviceType::Gpu }
}

/// `false` for the GPU names of a container that only accompany the one that delivers: their calls are answered empty.
pub fn delivers(call: &ExpectedCall<'_>) -> bool {
    call.resource == key::RDMA
        || call.container.request.as_ref().is_ok_and(|request| request.delivering_gpu_name() == Some(call.resource))
}

/// What is left of one device.
struct DeviceRemainder<'a> {
    entry: &'a DeviceEntry,
    taken: bool,
    /// Percent or bytes already given, by resource name.
    used: BTreeMap<&'static str, i64>,
}

/// What one container wants of each device.
struct ContainerDemand {
    count: Count,
    /// `None`: the whole entry as it stands. Else percent and bytes.
    part: Option<Vec<(&'static str, i64)>>,
    mig_profile: Option<Box<str>>,
}

/// Splits `device-allocated` over the containers, for pods of schedulers that write nothing else: app containers and sidecars take
/// devices in the annotation's order by their counts; plain init containers take from the front.
fn split(
    pod: &HandoffPod,
    allocated: &DeviceAllocation,
    inventory: &NodeInventory,
) -> Result<BTreeMap<Box<str>, Entries>, AssignmentError> {
    let mut containers: BTreeMap<Box<str>, Entries> = BTreeMap::new();
    for kind in [DeviceType::Gpu, DeviceType::Rdma] {
        let fresh =
            || allocated.of(&kind).iter().map(|entry| DeviceRemainder { entry, taken: false, used: BTreeMap::new() });
        let mut long_running: Vec<DeviceRemainder<'_>> = fresh().collect();
        for container in &pod.containers {
            let Some(want) = container.request.as_ref().ok().and_then(|request| want(pod, request, &kind)) else {
                continue;
            };
            let mut front: Vec<DeviceRemainder<'_>>;
            let pool = match container.kind {
                ContainerKind::Init => {
                    front = fresh().collect();
                    &mut front
                }
                ContainerKind::Sidecar | ContainerKind::App => &mut long_running,
            };
            let taken = take(pool, &want, inventory);
            let wanted = match want.count {
                Count::Exactly(count) => count as usize,
                Count::All => 1,
            };
            if taken.len() < wanted {
                return Err(AssignmentError::TooFew {
                    container: container.name.clone(),
                    kind,
                    wanted,
                    found: taken.len(),
                });
            }
            containers.entry(container.name.clone()).or_default().insert(kind.clone(), taken);
        }
    }
    Ok(containers)
}

fn want(pod: &HandoffPod, request: &ContainerRequest, kind: &DeviceType) -> Option<ContainerDemand> {
    if *kind == DeviceType::Rdma {
        let (count, percent) = pod.assignment.nics.nics(request.rdma?);
        let part = (percent < key::WHOLE).then(|| vec![(key::RDMA, percent)]);
        return Some(ContainerDemand { count, part, mig_profile: None });
    }
    let gpu = request.gpu.as_ref()?;
    let count = pod.assignment.gpus.devices(gpu.count());
    Some(match gpu {
        GpuRequest::Whole { .. } => ContainerDemand { count, part: None, mig_profile: None },
        GpuRequest::Mig { profile, count } => {
            ContainerDemand { count: Count::Exactly(*count), part: None, mig_profile: Some(profile.clone()) }
        }
        GpuRequest::Share { core, ratio, memory, .. } => {
            let parts = [(key::GPU_CORE, Some(*core)), (key::GPU_MEMORY_RATIO, *ratio), (key::GPU_MEMORY, *memory)];
            let part = parts.into_iter().filter_map(|(name, amount)| Some((name, amount?))).collect();
            ContainerDemand { count, part: Some(part), mig_profile: None }
        }
    })
}

fn take(pool: &mut [DeviceRemainder<'_>], want: &ContainerDemand, inventory: &NodeInventory) -> Vec<DeviceEntry> {
    let mut taken = Vec::new();
    for left in pool.iter_mut() {
        if matches!(want.count, Count::Exactly(count) if taken.len() == count as usize) {
            break;
        }
        let profile = inventory.devices.get(&left.entry.id).and_then(|device| device.mig_profile.as_ref());
        if left.taken || (want.mig_profile.is_some() && profile != want.mig_profile.as_ref()) {
            continue;
        }
        match &want.part {
            None if left.used.is_empty() => {
                left.taken = true;
                taken.push(left.entry.clone());
            }
            None => {}
            Some(part) => taken.extend(take_part(left, part)),
        }
    }
    taken
}

/// Takes a part where it fits. An entry without amounts is taken whole: its scheduler does not count parts.
fn take_part(left: &mut DeviceRemainder<'_>, part: &[(&'static str, i64)]) -> Option<DeviceEntry> {
    if left.entry.resources.is_empty() {
        left.taken = true;
        return Some(left.entry.clone());
    }
    let fits = |(name, amount): &(&'static str, i64)| {
        left.used.get(name).copied().unwrap_or(0).saturating_add(*amount) <= left.entry.amount(name)
    };
    if !part.iter().all(fits) {
        return None;
    }
    let mut entry = left.entry.clone();
    for (name, amount) in part {
        *left.used.entry(name).or_insert(0) += amount;
        let written = if *name == key::GPU_MEMORY { Quantity::bytes(*amount) } else { Quantity::units(*amount) };
        entry.resources.insert((*name).to_owned(), written);
    }
    fill_in_memory(left.entry, &mut entry, part);
    Some(entry)
}

/// Ratio and bytes say the same thing: the one that the container did not ask for follows from the entry's own proportion.
fn fill_in_memory(whole: &DeviceEntry, entry: &mut DeviceEntry, part: &[(&'static str, i64)]) {
    let (ratio, bytes) = (whole.amount(key::GPU_MEMORY_RATIO), whole.amount(key::GPU_MEMORY));
    if ratio <= 0 || bytes <= 0 {
        return;
    }
    let asked = |wanted: &str| part.iter().find(|(name, _)| *name == wanted).map(|(_, amount)| i128::from(*amount));
    let scaled = |amount: i128, to: i64, from: i64| i64::try_from(amount * i128::from(to) / i128::from(from)).ok();
    match (asked(key::GPU_MEMORY_RATIO), asked(key::GPU_MEMORY)) {
        (Some(amount), None) => {
            if let Some(bytes) = scaled(amount, bytes, ratio) {
                entry.resources.insert(key::GPU_MEMORY.to_owned(), Quantity::bytes(bytes));
            }
        }
        (None, Some(amount)) => {
            if let Some(ratio) = scaled(amount, ratio, bytes) {
                entry.resources.insert(key::GPU_MEMORY_RATIO.to_owned(), Quantity::units(ratio));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{container, inventory, merged, pod, share_of, whole};
    use super::*;

    fn ids(assignment: &PodAssignment, container: &str) -> Vec<String> {
        assignment.of(container, &DeviceType::Gpu).iter().map(|entry| entry.id.to_string()).collect()
    }

    #[test]
    fn apps_and_sidecars_take_in_order_and_init_containers_from_the_front() {
        let mut pod = pod(
            "b",
            vec![
                container("init", ContainerKind::Init, &[("nvidia.com/gpu", 2)]),
                container("side", ContainerKind::Sidecar, &[("nvidia.com/gpu", 1)]),
                container("m1", ContainerKind::App, &[("nvidia.com/gpu", 2)]),
                container("m2", ContainerKind::App, &[("nvidia.com/gpu", 1)]),
            ],
        );
        pod.assignment.device_allocated = Some(merged(&["GPU-4", "GPU-1", "GPU-2", "GPU-0"]).print().into());
        let assignment = PodAssignment::read(&pod, &inventory(8)).unwrap().unwrap();
        assert_eq!(ids(&assignment, "init"), ["GPU-4", "GPU-1"]);
        assert_eq!(ids(&assignment, "side"), ["GPU-4"]);
        assert_eq!(ids(&assignment, "m1"), ["GPU-1", "GPU-2"]);
        assert_eq!(ids(&assignment, "m2"), ["GPU-0"]);
        pod.assignment.device_allocated = Some(merged(&["GPU-4", "GPU-1", "GPU-2"]).print().into());
        let error = PodAssignment::read(&pod, &inventory(8)).unwrap_err().to_string();
        assert!(error.contains("container m2 0 of the 1 gpu"), "{error}");
    }

    #[test]
    fn two_shares_of_one_merged_entry_get_their_own_parts() {
        let half = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 40)];
        let part = [(key::GPU_CORE, 30), (key::GPU_MEMORY_RATIO, 20)];
        let mut pod =
            pod("b", vec![container("m1", ContainerKind::App, &half), container("m2", ContainerKind::App, &part)]);
        let mut allocated = merged(&[]);
        allocated.devices.insert(DeviceType::Gpu, vec![share_of("GPU-3", 80, 60, 60 << 30)]);
        pod.assignment.device_allocated = Some(allocated.print().into());
        let assignment = PodAssignment::read(&pod, &inventory(8)).unwrap().unwrap();
        let m2 = &assignment.of("m2", &DeviceType::Gpu)[0];
        assert_eq!((m2.amount(key::GPU_CORE), m2.amount(key::GPU_MEMORY)), (30, 20 << 30));
        assert_eq!(assignment.of("m1", &DeviceType::Gpu)[0].amount(key::GPU_CORE), 50);
    }

    #[test]
    fn each_container_takes_mig_devices_of_its_profile() {
        let mut inventory = inventory(2);
        for (id, profile) in [("GPU-0", "3g.40gb"), ("GPU-1", "1g.10gb")] {
            inventory.devices.get_mut(&DeviceId::parse(id).unwrap()).unwrap().mig_profile = Some(profile.into());
        }
        let small = container("small", ContainerKind::App, &[("nvidia.com/mig-1g.10gb", 1)]);
        let large = container("large", ContainerKind::App, &[("nvidia.com/mig-3g.40gb", 1)]);
        let mut pod = pod("b", vec![small, large]);
        pod.assignment.device_allocated = Some(merged(&["GPU-0", "GPU-1"]).print().into());
        let assignment = PodAssignment::read(&pod, &inventory).unwrap().unwrap();
        assert_eq!(
            (ids(&assignment, "small"), ids(&assignment, "large")),
            (vec!["GPU-1".into()], vec!["GPU-0".into()])
        );
    }

    #[test]
    fn a_share_by_memory_has_its_ratio_of_the_entry() {
        let share = [(key::GPU_CORE, 50), (key::GPU_MEMORY, 20 << 30)];
        let mut pod = pod("b", vec![container("m1", ContainerKind::App, &share)]);
        let mut allocated = merged(&[]);
        allocated.devices.insert(DeviceType::Gpu, vec![share_of("GPU-3", 50, 50, 40 << 30)]);
        pod.assignment.device_allocated = Some(allocated.print().into());
        let assignment = PodAssignment::read(&pod, &inventory(8)).unwrap().unwrap();
        let entry = &assignment.of("m1", &DeviceType::Gpu)[0];
        assert_eq!((entry.amount(key::GPU_MEMORY), entry.amount(key::GPU_MEMORY_RATIO)), (20 << 30, 25));
        let written = [key::GPU_CORE, key::GPU_MEMORY].map(|name| entry.resources[name].to_string());
        assert_eq!(written, ["50", "20Gi"]);
        let mut plain = share_of("GPU-3", 50, 50, 40 << 30);
        plain.resources.remove(key::GPU_MEMORY_RATIO);
        allocated.devices.insert(DeviceType::Gpu, vec![plain]);
        pod.assignment.device_allocated = Some(allocated.print().into());
        let assignment = PodAssignment::read(&pod, &inventory(8)).unwrap().unwrap();
        let entry = &assignment.of("m1", &DeviceType::Gpu)[0];
        assert!(!entry.resources.contains_key(key::GPU_MEMORY_RATIO), "its scheduler counts in bytes only");
    }

    /// Containers `m1`, `m2`, … with these limits, and what the scheduler allocated to their pod.
    fn allocated(limits: &[&[(&str, i64)]], kind: DeviceType, list: Vec<DeviceEntry>) -> HandoffPod {
        let containers = limits.iter().enumerate();
        let containers = containers.map(|(at, limits)| container(&format!("m{}", at + 1), ContainerKind::App, limits));
        let mut pod = pod("b", containers.collect());
        let mut allocated = merged(&[]);
        allocated.devices.insert(kind, list);
        pod.assignment.device_allocated = Some(allocated.print().into());
        pod
    }

    #[test]
    fn shares_of_one_entry_are_no_more_than_the_entry() {
        let half: &[(&str, i64)] = &[(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 30)];
        let of = |core| allocated(&[half, half], DeviceType::Gpu, vec![share_of("GPU-3", core, 60, 60 << 30)]);
        assert!(PodAssignment::read(&of(100), &inventory(8)).is_ok());
        let error = PodAssignment::read(&of(80), &inventory(8)).unwrap_err().to_string();
        assert!(error.contains("container m2 0 of the 1 gpu"), "{error}");
    }

    #[test]
    fn a_device_with_a_share_in_it_is_not_taken_whole() {
        let half: &[(&str, i64)] = &[(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
        let two = allocated(&[half, &[(key::NVIDIA_GPU, 1)]], DeviceType::Gpu, vec![whole("GPU-0"), whole("GPU-1")]);
        let assignment = PodAssignment::read(&two, &inventory(8)).unwrap().unwrap();
        assert_eq!((ids(&assignment, "m1"), ids(&assignment, "m2")), (vec!["GPU-0".into()], vec!["GPU-1".into()]));
    }

    #[test]
    fn parts_of_a_nic_are_counted_and_a_whole_one_is_taken_as_it_stands() {
        let half: &[(&str, i64)] = &[(key::RDMA, 50)];
        let nic = |percent| {
            let resources = [(key::RDMA.to_owned(), Quantity::units(percent))].into();
            vec![DeviceEntry { resources, ..whole("nic-0") }]
        };
        let halves = allocated(&[half, half], DeviceType::Rdma, nic(100));
        let assignment = PodAssignment::read(&halves, &inventory(8)).unwrap().unwrap();
        for name in ["m1", "m2"] {
            assert_eq!(assignment.of(name, &DeviceType::Rdma)[0].amount(key::RDMA), 50);
        }
        let one = allocated(&[&[(key::RDMA, 100)]], DeviceType::Rdma, nic(1));
        let assignment = PodAssignment::read(&one, &inventory(8)).unwrap().unwrap();
        assert_eq!(assignment.of("m1", &DeviceType::Rdma), nic(1), "other schedulers write a count");
    }
}
