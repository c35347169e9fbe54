//! Which containers of a pod run at the same time, and what that means for devices.
//!
//! Containers come in the kubelet's order: init containers and sidecars as they start, then apps. A plain init container ends
//! before the next container starts, so its devices are free again for the pod's later containers; a sidecar stays.

use std::collections::BTreeMap;

use super::grant::Part;
use super::place::Slot;
use crate::pod::ContainerKind;

/// Whether containers `a` and `b` (positions in the kubelet's order) ever run at the same time.
pub fn overlap(kinds: &[ContainerKind], a: usize, b: usize) -> bool {
    let first = a.min(b);
    match kinds[first] {
        ContainerKind::Init => a == b,
        // A sidecar stays, and only apps follow apps.
        ContainerKind::Sidecar | ContainerKind::App => true,
    }
}

/// Most devices held at one time, when container `i` holds `counts[i]`.
pub fn peak(kinds: &[ContainerKind], counts: &[u32]) -> u32 {
    let (mut staying, mut most) = (0u32, 0u32);
    for (kind, count) in kinds.iter().zip(counts) {
        most = most.max(staying.saturating_add(*count));
        if *kind != ContainerKind::Init {
            staying = staying.saturating_add(*count);
        }
    }
    most
}

/// Splits `devices` (at least [`peak`] many) over the containers: each takes the first ones that no container holds that runs
/// at the same time.
pub fn split(kinds: &[ContainerKind], counts: &[u32], devices: &[u8]) -> Vec<Vec<u8>> {
    let mut split: Vec<Vec<u8>> = Vec::with_capacity(counts.len());
    for (at, count) in counts.iter().enumerate() {
        let free = |device: &u8| {
            split.iter().enumerate().all(|(other, held)| !overlap(kinds, other, at) || !held.contains(device))
        };
        let own = devices.iter().copied().filter(free).take(*count as usize).collect();
        split.push(own);
    }
    split
}

/// One merged part per device: the most that is held of it at one time. Sorted by device.
pub fn merge(kinds: &[ContainerKind], containers: &[Vec<Part>]) -> Vec<Part> {
    let mut staying: BTreeMap<Slot, Part> = BTreeMap::new();
    let mut most: BTreeMap<Slot, Part> = BTreeMap::new();
    for (kind, parts) in kinds.iter().zip(containers) {
        for part in parts {
            let now = staying.get(&part.slot()).map_or(*part, |held| held.plus(*part));
            most.entry(part.slot()).and_modify(|peak| *peak = peak.peak(now)).or_insert(now);
            if *kind != ContainerKind::Init {
                staying.insert(part.slot(), now);
            }
        }
    }
    most.into_values().collect()
}
