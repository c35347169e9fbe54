//! `Held`: the devices that one pod holds, small enough to keep for every pod of a cluster.

use baton_contract::{DeviceAllocation, DeviceEntry, DeviceId, DeviceType, Shared, key};

/// Amounts by resource name, sorted by name. Pods that ask for the same hold the same.
pub type HeldAmounts = Box<[(Box<str>, i64)]>;

/// One device, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldDevice {
    /// Identity.
    pub id: DeviceId,
    /// How much of it.
    pub amounts: Shared<HeldAmounts>,
    /// Addresses of virtual functions of a NIC.
    pub vfs: Box<[DeviceId]>,
    /// Small number on the node.
    pub minor: i32,
}

/// What one pod holds: GPUs and MIG devices, and NICs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// GPUs and MIG devices first.
    devices: Box<[HeldDevice]>,
    gpus: u32,
}

impl HeldDevice {
    fn of(entry: &DeviceEntry) -> Self {
        let amounts: HeldAmounts =
            entry.resources.iter().map(|(name, amount)| (name.as_str().into(), amount.value())).collect();
        let vfs = entry.vfs().iter().map(|vf| vf.bus_id.clone());
        Self { id: entry.id.clone(), amounts: amounts.into(), vfs: vfs.collect(), minor: entry.minor }
    }

    /// The part of the device; one without a known amount (MIG) is held whole.
    pub fn percent(&self) -> i64 {
        let part = [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::RDMA].map(|name| self.amount(name)).into_iter().max();
        part.filter(|part| *part > 0).unwrap_or(key::WHOLE)
    }

    /// Amount of `resource`; zero when not named.
    pub fn amount(&self, resource: &str) -> i64 {
        self.amounts.iter().find(|(name, _)| **name == *resource).map_or(0, |(_, amount)| *amount)
    }
}

impl Held {
    /// What `device-allocated` says; device types that are not ours to count are left out.
    pub fn of(allocation: &DeviceAllocation) -> Self {
        let (gpus, nics) = (allocation.of(&DeviceType::Gpu), allocation.of(&DeviceType::Rdma));
        Self { devices: gpus.iter().chain(nics).map(HeldDevice::of).collect(), gpus: gpus.len() as u32 }
    }

    /// Devices in the order that [`Held::of`] gives them: GPUs and MIG devices first.
    pub(super) fn from_ordered(devices: impl Iterator<Item = (DeviceType, HeldDevice)>) -> Self {
        let mut gpus = 0;
        let devices = devices.map(|(kind, device)| {
            gpus += u32::from(kind == DeviceType::Gpu);
            device
        });
        let devices = devices.collect();
        Self { devices, gpus }
    }

    /// The devices of one type.
    pub fn of_kind(&self, kind: &DeviceType) -> &[HeldDevice] {
        let (gpus, nics) = self.devices.split_at(self.gpus as usize);
        match kind {
            DeviceType::Gpu => gpus,
            DeviceType::Rdma => nics,
            DeviceType::Other(_) => &[],
        }
    }

    /// Every device.
    pub fn devices(&self) -> &[HeldDevice] {
        &self.devices
    }

    /// Lets equal amounts be stored once.
    pub fn share(&mut self, mut intern: impl FnMut(&mut Shared<HeldAmounts>)) {
        // Most often all devices of a pod share theirs already.
        let mut last: Option<(Shared<HeldAmounts>, Shared<HeldAmounts>)> = None;
        for device in &mut self.devices {
            match &last {
                Some((own, stored)) if own.is_same(&device.amounts) => device.amounts = stored.clone(),
                _ => {
                    let own = device.amounts.clone();
                    intern(&mut device.amounts);
                    last = Some((own, device.amounts.clone()));
                }
            }
        }
    }
}
