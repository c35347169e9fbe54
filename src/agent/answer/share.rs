//! What the environment tells a container about its share of a GPU. It informs libraries that limit themselves (MPS,
//! HAMi-core); it does not enforce anything.

use std::collections::BTreeMap;
use std::path::Path;

use crate::contract::deviceplugin::{ContainerAllocateResponse, Mount};
use crate::contract::{DeviceEntry, key};

const MIB: i64 = 1 << 20;
/// Where NVIDIA's plugin puts the MPS control daemon's pipe in a container: below `/mps`, by resource name.
const MPS_PIPE: &str = "/mps/nvidia.com/gpu/pipe";

/// Variables of a share over `entries`, in the order of the container's devices: by PCI address, as NVML counts them. CUDA does so
/// only where `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`; by default it puts the fastest first (CUDA programming guide, "CUDA environment
/// variables"). So where the limits differ, and a mistaken number would matter, the order is said too.
pub fn env(entries: &[&DeviceEntry], mps: bool) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    // One number for all devices of the container: the smallest, so that no device is overused.
    let core = entries.iter().map(|entry| entry.amount(key::GPU_CORE)).filter(|core| *core > 0).min();
    let memory: Vec<(usize, i64)> = entries
        .iter()
        .enumerate()
        .map(|(at, entry)| (at, entry.amount(key::GPU_MEMORY) / MIB))
        .filter(|(_, mib)| *mib > 0)
        .collect();
    for (at, mib) in &memory {
        env.insert(format!("CUDA_DEVICE_MEMORY_LIMIT_{at}"), format!("{mib}m"));
    }
    if memory.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        env.insert("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned());
    }
    if let Some(core) = core {
        env.insert("CUDA_DEVICE_SM_LIMIT".to_owned(), core.to_string());
    }
    if mps {
        if let Some(core) = core {
            env.insert("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), core.to_string());
        }
        if !memory.is_empty() {
            let limits: Vec<String> = memory.iter().map(|(at, mib)| format!("{at}={mib}M")).collect();
            env.insert("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), limits.join(","));
        }
    }
    env
}

/// The way to the MPS control daemon whose files lie below `root` on the host, as NVIDIA's plugin gives it: the pipe's
/// directory, named in the environment, and the shared memory that client and server meet in.
pub fn reach_mps(answer: &mut ContainerAllocateResponse, root: &Path) {
    answer.envs.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), MPS_PIPE.to_owned());
    for (container_path, below) in [(MPS_PIPE, "nvidia.com/gpu/pipe"), ("/dev/shm", "shm")] {
        let host_path = root.join(below).to_string_lossy().into_owned();
        answer.mounts.push(Mount { container_path: container_path.to_owned(), host_path, read_only: false });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{DeviceId, Quantity};

    #[test]
    fn a_share_of_two_gpus_names_each_memory_and_the_smaller_compute() {
        let entry = |id: &str, core, gib: i64| DeviceEntry {
            minor: 0,
            id: DeviceId::parse(id).unwrap(),
            resources: [
                (key::GPU_CORE.to_owned(), Quantity::units(core)),
                (key::GPU_MEMORY.to_owned(), Quantity::bytes(gib << 30)),
            ]
            .into(),
            extension: None,
        };
        let (a, b) = (entry("GPU-a", 50, 40), entry("GPU-b", 30, 20));
        let plain = env(&[&a, &b], false);
        let expected = [
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "40960m"),
            ("CUDA_DEVICE_MEMORY_LIMIT_1", "20480m"),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
        ];
        assert_eq!(plain, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let mps = env(&[&a, &b], true);
        assert_eq!(mps["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "30");
        assert_eq!(mps["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=40960M,1=20480M");
        assert!(env(&[&entry("GPU-c", 0, 0)], true).is_empty());
    }
}
