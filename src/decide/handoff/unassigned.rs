//! Pods that no scheduler gave devices to, where the operator lets them be served (`--unassigned-pods=serve`): the
//! kubelet's choice counts, if nobody else has a claim on it.

use std::collections::BTreeMap;

use super::assignment::{Assignment, kind_of};
use super::identify::Caller;
use super::sight::{Call, Sight};
use crate::contract::{DeviceEntry, DeviceId, DeviceType, GpuRequest, Quantity, key};

/// The kubelet's ids as entries; an error says which device another bound pod still waits for, or which id means nothing.
pub(super) fn entries(sight: &Sight<'_>, call: &Call<'_>, caller: &Caller<'_>) -> Result<Vec<DeviceEntry>, String> {
    let kind = kind_of(call.resource);
    let mut units: BTreeMap<DeviceId, i64> = BTreeMap::new();
    for id in call.ids {
        let device = DeviceId::of_kubelet_id(id).map_err(|error| error.to_string())?;
        *units.entry(device).or_insert(0) += 1;
    }
    for device in units.keys() {
        if let Some(waiting) = waits_for(sight, caller, device) {
            return Err(format!(
                "the kubelet chose device {device}, which is assigned to pod {waiting}; create the pod again"
            ));
        }
    }
    let request = caller.container.request.as_ref().map_err(ToString::to_string)?;
    let wanted = match kind {
        DeviceType::Rdma => request.rdma.map_or(0, |rdma| rdma.count),
        _ => request.gpu.as_ref().map_or(0, GpuRequest::count),
    };
    if units.len() != wanted as usize {
        return Err(format!(
            "the kubelet spread it over {} devices and it asks for {wanted}; without a scheduler's assignment only whole \
             devices are sure to be served",
            units.len()
        ));
    }
    Ok(units.into_keys().map(|id| entry(sight, id, &kind, request)).collect())
}

/// A bound pod whose assignment names the device and that has not been served all of it yet.
fn waits_for(sight: &Sight<'_>, caller: &Caller<'_>, device: &DeviceId) -> Option<String> {
    let others =
        sight.pods.iter().filter(|pod| pod.pod.uid != caller.pod.pod.uid && sight.is_here(pod) && pod.is_live());
    let mut unserved = others.filter(|pod| !sight.ledger.fully_served(pod, sight.inventory));
    let waiting = unserved.find(|pod| {
        matches!(Assignment::read(pod, sight.inventory), Ok(Some(plan)) if plan.named().any(|named| named == device))
    })?;
    Some(waiting.pod.key.to_string())
}

fn entry(
    sight: &Sight<'_>,
    id: DeviceId,
    kind: &DeviceType,
    request: &crate::contract::ContainerRequest,
) -> DeviceEntry {
    let device = sight.inventory.devices.get(&id);
    let total = device.and_then(|device| device.memory_bytes);
    let mut resources = BTreeMap::new();
    let mut set = |name: &str, amount| resources.insert(name.to_owned(), amount);
    match (kind, &request.gpu) {
        (DeviceType::Rdma, _) => {
            set(key::RDMA, Quantity::units(request.rdma.map_or(key::WHOLE, |rdma| rdma.percent)));
        }
        (_, Some(GpuRequest::Share { core, ratio, memory, .. })) => {
            set(key::GPU_CORE, Quantity::units(*core));
            let of_total = |percent: i64| total.map(|bytes| bytes / key::WHOLE * percent);
            let of_bytes = |bytes: i64| {
                total.filter(|total| *total > 0).map(|total| {
                    i64::try_from((i128::from(bytes) * 100 + i128::from(total) - 1) / i128::from(total))
                        .unwrap_or(i64::MAX)
                })
            };
            if let Some(ratio) = ratio.or_else(|| memory.and_then(of_bytes)) {
                set(key::GPU_MEMORY_RATIO, Quantity::units(ratio));
            }
            if let Some(bytes) = memory.or_else(|| ratio.and_then(of_total)) {
                set(key::GPU_MEMORY, Quantity::bytes(bytes));
            }
        }
        (_, Some(GpuRequest::Mig { profile, .. })) => {
            set(&format!("{}{profile}", key::MIG_PREFIX), Quantity::units(1));
        }
        _ => {
            set(key::GPU_CORE, Quantity::units(key::WHOLE));
            set(key::GPU_MEMORY_RATIO, Quantity::units(key::WHOLE));
            if let Some(total) = total {
                set(key::GPU_MEMORY, Quantity::bytes(total));
            }
        }
    }
    DeviceEntry { minor: device.map_or(0, |device| device.minor), id, resources, extension: None }
}
