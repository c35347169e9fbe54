//! Every annotation, label, resource and object name that Baton reads or writes, once.

use crate::gang;

/// Largest value that is read from one annotation, in bytes. A larger value is refused whole.
pub const MAX_ANNOTATION: usize = 64 * 1024;
/// Largest annotations of an object, keys and values together, in bytes: a Binding may exceed it, and after that no write of the
/// pod's status is accepted.
pub const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Largest object, in bytes: what etcd stores of one.
pub const MAX_OBJECT: usize = 3 << 19;

/// Pod annotation: the devices of the pod, merged over its containers (written in the Binding).
pub const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";
/// Pod annotation: the same devices, split per container (written in the Binding).
pub const CONTAINER_DEVICES: &str = "baton.io/container-devices";
/// Pod annotation: decimal Unix nanoseconds, equal to the time in the node lock of the same bind.
pub const BIND_TIMESTAMP: &str = "scheduling.koordinator.sh/bind-timestamp";
/// Pod annotation: comma list of GPU minors.
pub const GPU_MINORS: &str = "scheduling.koordinator.sh/gpu-minors";
/// Pod annotation, by the user: selectors, scope and exclusivity per device type.
pub const DEVICE_ALLOCATE_HINT: &str = "scheduling.koordinator.sh/device-allocate-hint";
/// Pod annotation, by the user: device types that must lie near each other.
pub const DEVICE_JOINT_ALLOCATE: &str = "scheduling.koordinator.sh/device-joint-allocate";
/// Pod annotation, by the user: GPU partition policy.
pub const GPU_PARTITION_SPEC: &str = "scheduling.koordinator.sh/gpu-partition-spec";
/// Pod annotation on gang members: `<attempt>.<group>/<members>`, in the Binding.
pub const GANG_COMMITTED: &str = "baton.io/committed";

/// Every pod annotation that belongs to the scheduler: each Binding writes all of them (empty ones too), so that a value
/// forged by the pod's author is overwritten.
pub const SCHEDULER_KEYS: [&str; 5] = [DEVICE_ALLOCATED, CONTAINER_DEVICES, BIND_TIMESTAMP, GPU_MINORS, GANG_COMMITTED];

/// Keys that Koordinator's own scheduler writes: they ask for nothing.
const KOORDINATOR_RESULTS: [&str; 4] = [
    "scheduling.koordinator.sh/resource-status",
    "scheduling.koordinator.sh/reservation-allocated",
    "scheduling.koordinator.sh/bind-gang-group-id",
    "scheduling.koordinator.sh/bind-gang-member-count",
];

/// `true` for a label or an annotation of a pod that asks a scheduler of Koordinator, or one for its gangs, for something that Baton
/// does not do: a key in their domains that Baton neither reads nor writes.
pub fn is_unsupported(key: &str) -> bool {
    let Some((domain, _)) = key.split_once('/') else { return false };
    let asks = match domain.strip_suffix("scheduling.koordinator.sh") {
        Some(before) => before.is_empty() || before.ends_with('.') && before != "internal.",
        None => domain == gang::key::POD_GROUP,
    };
    let read = [DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE, GPU_PARTITION_SPEC, gang::key::TIMEOUT];
    let known = || read.iter().chain(&SCHEDULER_KEYS).chain(&KOORDINATOR_RESULTS).any(|known| *known == key);
    asks && !known() && gang::key::POD_KEYS.iter().all(|known| known.key != key)
}

/// Every key of Baton's own, which Koordinator does not have.
pub const OWN: [&str; 18] = [
    CONTAINER_DEVICES,
    GANG_COMMITTED,
    gang::key::TIMEOUT_CLOCK,
    gang::key::REQUIRED_TOPOLOGY,
    gang::key::PREFERRED_TOPOLOGY,
    AGENT,
    SCHEDULER,
    CORDONED,
    UUID,
    PARENT,
    MIG_PROFILE,
    MODEL,
    PCIE_SWITCH,
    NVLINK_DOMAIN,
    INTERFACE,
    LINK_LAYER,
    RATE,
    PORT_STATE,
];

/// The key that is read instead of `key`, where builds before the first release had one of [`OWN`] in a domain of Koordinator's.
pub fn moved(key: &str) -> Option<&'static str> {
    let name = key.strip_prefix("gang.").unwrap_or(key).strip_prefix("scheduling.koordinator.sh/")?;
    OWN.into_iter().find(|own| own.split_once('/').is_some_and(|(_, of)| of == name))
}

/// Default node annotation that holds the node lock.
pub const NODE_LOCK: &str = "scheduling.koordinator.sh/node-lock";
/// Annotation of the agent's Lease: version, registered resource names, identification method.
pub const AGENT: &str = "baton.io/agent";
/// Annotation of the leading scheduler's Lease: how it locks nodes.
pub const SCHEDULER: &str = "baton.io/scheduler";

/// Device label: PCI address of the nearest PCIe switch.
pub const PCIE_SWITCH: &str = "baton.io/pcie-switch";
/// Device label: GPUs with the same value reach each other over NVLink.
pub const NVLINK_DOMAIN: &str = "baton.io/nvlink-domain";
/// Annotation of a pod: whether its gang is evicted with it when its device fails, under `--evict-on-fault`.
pub const EVICT_ON_FAULT: &str = "baton.io/evict-on-fault";
/// Condition of a pod: `False` while it runs without its devices.
pub const DEVICES_SERVED: &str = "baton.io/DevicesServed";
/// Device label: model name.
pub const MODEL: &str = "baton.io/model";
/// Device label of a NIC: its network interface.
pub const INTERFACE: &str = "baton.io/interface";
/// Device label of a NIC: `InfiniBand` or `Ethernet`.
pub const LINK_LAYER: &str = "baton.io/link-layer";
/// Device label of a NIC: rate of its port, `400Gbps`.
pub const RATE: &str = "baton.io/rate";
/// Device label of a NIC: state of its port as the kernel names it, `ACTIVE`.
pub const PORT_STATE: &str = "baton.io/port-state";
/// Device object annotation: the sets of GPUs that the fabric can isolate, by size:
/// `{"2":[{"minors":[0,1],"ringBusBandwidth":"200G","allocationScore":1}]}`.
pub const GPU_PARTITIONS: &str = "scheduling.koordinator.sh/gpu-partitions";

/// Device label: UUID of a GPU or MIG device, which is its id.
pub const UUID: &str = "baton.io/uuid";

/// Device object annotation: which devices people have taken out of use. The node daemon never writes it.
pub const CORDONED: &str = "baton.io/cordoned";

/// Device label: MIG profile, e.g. `1g.10gb`.
pub const MIG_PROFILE: &str = "baton.io/mig-profile";
/// Device label: UUID of the GPU that a MIG device is part of.
pub const PARENT: &str = "baton.io/parent";

/// Pod label, by the user: what must hold the pod's GPU shares to their limits, `HAMi-core` or `MPS`. Label of the Device object: what
/// does so on the node, or `none`.
pub const GPU_ISOLATION_PROVIDER: &str = "koordinator.sh/gpu-isolation-provider";

/// Node label: `nvidia`.
pub const NODE_GPU_VENDOR: &str = "node.koordinator.sh/gpu-vendor";
/// Node label: model, blanks written as `-`.
pub const NODE_GPU_MODEL: &str = "node.koordinator.sh/gpu-model";
/// Node label: driver version.
pub const NODE_GPU_DRIVER: &str = "node.koordinator.sh/gpu-driver-version";

/// Extended resource: whole GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// Extended resource: percent of a GPU (core and memory).
pub const GPU: &str = "koordinator.sh/gpu";
/// Extended resource: percent of a GPU's compute.
pub const GPU_CORE: &str = "koordinator.sh/gpu-core";
/// Extended resource: percent of a GPU's memory.
pub const GPU_MEMORY_RATIO: &str = "koordinator.sh/gpu-memory-ratio";
/// Extended resource: bytes of GPU memory.
pub const GPU_MEMORY: &str = "koordinator.sh/gpu-memory";
/// Extended resource: number of GPUs that a share is spread over.
pub const GPU_SHARED: &str = "koordinator.sh/gpu.shared";
/// Extended resource: percent of an RDMA NIC.
pub const RDMA: &str = "koordinator.sh/rdma";
/// Prefix of the extended resources of MIG profiles, e.g. `nvidia.com/mig-1g.10gb`.
pub const MIG_PREFIX: &str = "nvidia.com/mig-";

/// In a container with several GPU names, the first of these delivers the devices; the others answer empty.
pub const GPU_DELIVERY_ORDER: [&str; 5] = [NVIDIA_GPU, GPU, GPU_CORE, GPU_MEMORY_RATIO, GPU_SHARED];

/// Every extended resource of a device, MIG profiles aside.
pub const DEVICE_NAMES: [&str; 7] = [NVIDIA_GPU, GPU, GPU_CORE, GPU_MEMORY_RATIO, GPU_MEMORY, GPU_SHARED, RDMA];

/// Share units in one whole device.
pub const WHOLE: i64 = 100;

/// `true` for a device resource name of Baton's.
pub fn is_device_resource(name: &str) -> bool {
    DEVICE_NAMES.contains(&name) || name.starts_with(MIG_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_our_own_is_in_our_domain_and_was_moved_there() {
        let before = |domain: &str, key: &str| moved(&key.replace("baton.io/", domain));
        for key in OWN {
            assert!(key.starts_with("baton.io/"), "{key}");
            for domain in ["scheduling.koordinator.sh/", "gang.scheduling.koordinator.sh/"] {
                assert_eq!(before(domain, key), Some(key));
            }
            // Koordinator has `parent` here.
            assert_eq!(before("quota.scheduling.koordinator.sh/", key), None);
        }
        for theirs in [DEVICE_ALLOCATED, NODE_LOCK, gang::key::TIMEOUT, CORDONED, "cordoned"] {
            assert_eq!(moved(theirs), None, "{theirs}");
        }
    }
}
