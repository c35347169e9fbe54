//! How many devices a node's kubelet offers: none as soon as the device plugin's socket is gone.

use baton_contract::{DeviceType, key};

/// Devices of that type in `allocatable`, by whatever names they are offered; those of shares count as the devices that they
/// are parts of.
pub fn offered<'a>(allocatable: impl Iterator<Item = (&'a str, i64)>, kind: &DeviceType) -> i64 {
    let (mut whole, mut parts) = (0, 0);
    for (name, amount) in allocatable {
        match (kind, name) {
            (DeviceType::Gpu, key::NVIDIA_GPU) => whole = whole.max(amount),
            (DeviceType::Gpu, key::GPU | key::GPU_CORE | key::GPU_MEMORY_RATIO) | (DeviceType::Rdma, key::RDMA) => {
                whole = whole.max(amount / key::WHOLE);
            }
            (DeviceType::Gpu, name) if name.starts_with(key::MIG_PREFIX) => parts += amount,
            _ => {}
        }
    }
    whole + parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_counts_devices() {
        let gpus = |amounts: &[(&'static str, i64)]| offered(amounts.iter().copied(), &DeviceType::Gpu);
        assert_eq!(gpus(&[("cpu", 64), (key::RDMA, 400)]), 0);
        assert_eq!(gpus(&[(key::NVIDIA_GPU, 8), (key::GPU_CORE, 800), (key::GPU, 800)]), 8);
        assert_eq!(gpus(&[(key::NVIDIA_GPU, 0), (key::GPU_CORE, 600), ("nvidia.com/mig-1g.10gb", 14)]), 20);
        assert_eq!(offered([(key::RDMA, 400)].into_iter(), &DeviceType::Rdma), 4);
    }
}
