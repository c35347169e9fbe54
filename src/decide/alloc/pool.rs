//! `NodePool`: the devices of one node and what of them is taken. Dense numbers and masks only; cloning copies a few hundred
//! bytes, so plans and dry runs work on clones.

use std::sync::Arc;

use super::devices::{Devices, Labels, Skipped};
use super::grant::{Grant, Part, Slot};
use super::held::Amounts;
use super::layout::{Layout, PoolState};
use super::place::{bit, bits};
use super::summary::Summary;
use crate::contract::inventory::Device;
use crate::contract::{DeviceId, Shared};

/// What is taken of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Used {
    /// GPU memory in the GPU's own unit.
    pub memory: i64,
    /// Virtual functions.
    pub vfs: u128,
    /// Percent of compute, or of the NIC.
    pub percent: u32,
    /// Pods that hold a part.
    pub holders: u32,
    /// Pods whose exclusivity closes the device to others.
    pub closed: u32,
    /// Pods that hold a part of a NIC itself, and no virtual function of it.
    pub undivided: u32,
}

/// Why a grant cannot be taken or given back. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The pool knows no device of that number: the grant is of another node.
    #[error("no device of number {0:?} on this node: the grant belongs to another pool")]
    NoDevice(Slot),
    /// More than is free.
    #[error("device {device}: {wanted} of {what} wanted, {free} free")]
    Full {
        /// Device.
        device: DeviceId,
        /// Which dimension.
        what: &'static str,
        /// Amount wanted.
        wanted: i64,
        /// Amount free.
        free: i64,
    },
    /// Another pod's exclusivity closes the device, or this pod's closes one that others hold.
    #[error("device {device} is exclusive to another pod")]
    Closed {
        /// Device.
        device: DeviceId,
    },
    /// Less is taken than given back.
    #[error("device {device}: more is given back than is taken")]
    NotTaken {
        /// Device.
        device: DeviceId,
    },
}

/// The devices of one node and what of them is taken.
#[derive(Debug, Clone, Default)]
pub struct NodePool {
    devices: Arc<Devices>,
    gpus: Vec<Used>,
    migs: Vec<Used>,
    nics: Vec<Used>,
    summary: Summary,
    fingerprint: u64,
}

/// Two pools are equal when they hold the same devices and the same of them is taken.
impl PartialEq for NodePool {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.devices, &other.devices);
        (Arc::ptr_eq(a, b) || (a.gpus == b.gpus && a.migs == b.migs && a.nics == b.nics))
            && (&self.gpus, &self.migs, &self.nics) == (&other.gpus, &other.migs, &other.nics)
    }
}

impl NodePool {
    /// All devices of `device`, nothing taken. Entries that cannot be used are skipped aloud.
    pub fn from_device(device: &Device) -> (Self, Vec<Skipped>) {
        let mut pool = Self::default();
        let skipped = pool.update(device);
        (pool, skipped)
    }

    /// The same devices without accounts of what is taken: to be kept beside a pool, not to be asked.
    #[must_use]
    pub fn without_accounts(&self) -> Self {
        Self { devices: self.devices.clone(), ..Self::default() }
    }

    /// The same devices, nothing taken.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let mut pool = self.without_accounts();
        pool.grow();
        pool
    }

    /// Takes over a newer Device object. What is taken stays taken and grants stay valid; a device that is no longer listed
    /// becomes unhealthy.
    pub fn update(&mut self, device: &Device) -> Vec<Skipped> {
        let skipped = Arc::make_mut(&mut self.devices).update(device);
        self.grow();
        skipped
    }

    /// `true` when both say the same of their devices, and the same is taken.
    pub fn is_like(&self, other: &Self) -> bool {
        self == other && self.devices.partitions == other.devices.partitions
    }

    /// Lets equal labels, amounts and layouts of devices be stored once, over all nodes.
    pub fn share(
        &mut self,
        labels: impl FnMut(&mut Shared<Labels>),
        amounts: impl FnMut(&mut Shared<Amounts>),
        layouts: impl FnMut(&mut Shared<Layout>),
    ) {
        Arc::make_mut(&mut self.devices).share(labels, amounts, layouts);
    }

    /// Keeps the layout of an earlier count where it says the same: a state is recognised by it, and devices that no inventory
    /// lists make one anew each time.
    pub fn keep_layout(&mut self, earlier: &Self) {
        let (layout, earlier) = (self.devices.layout(), earlier.devices.layout());
        if !layout.is_same(earlier) && *layout == *earlier {
            self.devices_mut().set_layout(earlier.clone());
        }
    }

    /// GPUs, MIG devices, NICs.
    pub(super) fn used_by_kind(&self) -> [&[Used]; 3] {
        [&self.gpus, &self.migs, &self.nics]
    }

    pub(super) fn devices_mut(&mut self) -> &mut Devices {
        Arc::make_mut(&mut self.devices)
    }

    /// Gives every device a record; call after devices were added.
    pub(super) fn grow(&mut self) {
        self.gpus.resize(self.devices.gpus.len(), Used::default());
        self.migs.resize(self.devices.migs.len(), Used::default());
        self.nics.resize(self.devices.nics.len(), Used::default());
        self.sum_up();
    }

    fn sum_up(&mut self) {
        self.summary = Summary::of(self);
        self.fingerprint = PoolState::fingerprint(self);
    }

    /// Equal for pools on which the same is taken; different for most others. Kept up to date, free to read.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// What the node has.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// What is free, in a few numbers; kept up to date, free to read.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    pub(super) fn used_gpu(&self, at: u8) -> &Used {
        &self.gpus[usize::from(at)]
    }
    pub(super) fn used_mig(&self, at: u8) -> &Used {
        &self.migs[usize::from(at)]
    }
    pub(super) fn used_nic(&self, at: u8) -> &Used {
        &self.nics[usize::from(at)]
    }

    /// Free compute (percent) and memory (the GPU's unit) of a GPU; never negative.
    pub fn gpu_room(&self, at: u8) -> (u16, i64) {
        let (gpu, used) = (&self.devices.gpus[usize::from(at)], self.used_gpu(at));
        (u32::from(gpu.core).saturating_sub(used.percent) as u16, (gpu.memory - used.memory).max(0))
    }

    /// Free percent of a NIC.
    pub fn nic_room(&self, at: u8) -> u16 {
        u32::from(self.devices.nics[usize::from(at)].percent).saturating_sub(self.used_nic(at).percent) as u16
    }

    /// Takes `grant`, all or nothing: never above a device's capacity, never a device that is closed.
    pub fn take(&mut self, grant: &Grant) -> Result<(), PoolError> {
        grant.parts.iter().try_for_each(|part| self.admits(*part))?;
        for at in bits(grant.closed_gpus).filter(|at| usize::from(*at) < self.gpus.len()) {
            if self.used_gpu(at).holders > 0 {
                return Err(PoolError::Closed { device: self.devices.gpus[usize::from(at)].id.clone() });
            }
        }
        for at in bits(grant.closed_nics).filter(|at| usize::from(*at) < self.nics.len()) {
            if self.used_nic(at).holders > 0 {
                return Err(PoolError::Closed { device: self.devices.nics[usize::from(at)].id.clone() });
            }
        }
        for at in bits(grant.closed_migs).filter(|at| usize::from(*at) < self.migs.len()) {
            if self.used_mig(at).holders > 0 {
                return Err(PoolError::Closed { device: self.devices.migs[usize::from(at)].id.clone() });
            }
        }
        self.count(grant);
        Ok(())
    }

    /// Takes `grant` without asking for room: what a bound pod holds is a fact.
    pub(super) fn count(&mut self, grant: &Grant) {
        for part in &grant.parts {
            if let Some(used) = self.used_mut(part.slot()) {
                used.holders += 1;
                match *part {
                    Part::Gpu { core, memory, .. } => {
                        used.percent += u32::from(core);
                        used.memory = used.memory.saturating_add(memory);
                    }
                    Part::Mig { .. } => {}
                    Part::Nic { percent, vfs, .. } => {
                        used.percent += u32::from(percent);
                        used.vfs |= vfs;
                        used.undivided += u32::from(vfs == 0);
                    }
                }
            }
        }
        self.close(grant, |closed| *closed += 1);
        self.sum_up();
    }

    /// Gives `grant` back, all or nothing.
    pub fn give_back(&mut self, grant: &Grant) -> Result<(), PoolError> {
        for part in &grant.parts {
            let slot = part.slot();
            let used = *self.used_mut(slot).ok_or(PoolError::NoDevice(slot))?;
            let held = used.holders > 0
                && match *part {
                    Part::Gpu { core, memory, .. } => used.percent >= u32::from(core) && used.memory >= memory,
                    Part::Mig { .. } => true,
                    Part::Nic { percent, .. } => used.percent >= u32::from(percent),
                };
            if !held {
                return Err(PoolError::NotTaken { device: self.id(slot).clone() });
            }
        }
        for part in &grant.parts {
            if let Some(used) = self.used_mut(part.slot()) {
                used.holders -= 1;
                match *part {
                    Part::Gpu { core, memory, .. } => {
                        used.percent -= u32::from(core);
                        used.memory -= memory;
                    }
                    Part::Mig { .. } => {}
                    Part::Nic { percent, vfs, .. } => {
                        used.percent -= u32::from(percent);
                        used.vfs &= !vfs;
                        used.undivided = used.undivided.saturating_sub(u32::from(vfs == 0));
                    }
                }
            }
        }
        self.close(grant, |closed| *closed = closed.saturating_sub(1));
        self.sum_up();
        Ok(())
    }

    /// Whether one part has room.
    pub(super) fn admits(&self, part: Part) -> Result<(), PoolError> {
        let slot = part.slot();
        let used = self.used(slot).ok_or(PoolError::NoDevice(slot))?;
        let device = || self.id(slot).clone();
        if used.closed > 0 {
            return Err(PoolError::Closed { device: device() });
        }
        let full = |what, wanted, free| Err(PoolError::Full { device: device(), what, wanted, free });
        match part {
            Part::Gpu { gpu, core, memory } => {
                let (free_core, free_memory) = self.gpu_room(gpu);
                if core > free_core {
                    return full("compute", core.into(), free_core.into());
                }
                if memory > free_memory {
                    return full("memory", memory, free_memory);
                }
            }
            Part::Mig { .. } if used.holders > 0 => return full("the MIG device", 1, 0),
            Part::Mig { .. } => {}
            Part::Nic { nic, percent, vfs } => {
                let free = self.nic_room(nic);
                if percent > free {
                    return full("bandwidth", percent.into(), free.into());
                }
                if used.vfs & vfs != 0 {
                    return full("the virtual function", 1, 0);
                }
            }
        }
        Ok(())
    }

    /// Identity of a device of this pool.
    pub fn id(&self, slot: Slot) -> &DeviceId {
        match slot {
            Slot::Gpu(at) => &self.devices.gpus[usize::from(at)].id,
            Slot::Mig(at) => &self.devices.migs[usize::from(at)].id,
            Slot::Nic(at) => &self.devices.nics[usize::from(at)].id,
        }
    }

    fn used(&self, slot: Slot) -> Option<&Used> {
        match slot {
            Slot::Gpu(at) => self.gpus.get(usize::from(at)),
            Slot::Mig(at) => self.migs.get(usize::from(at)),
            Slot::Nic(at) => self.nics.get(usize::from(at)),
        }
    }

    fn used_mut(&mut self, slot: Slot) -> Option<&mut Used> {
        match slot {
            Slot::Gpu(at) => self.gpus.get_mut(usize::from(at)),
            Slot::Mig(at) => self.migs.get_mut(usize::from(at)),
            Slot::Nic(at) => self.nics.get_mut(usize::from(at)),
        }
    }

    fn close(&mut self, grant: &Grant, change: impl Fn(&mut u32)) {
        let each = |mask: u128, list: &mut [Used]| {
            for (at, used) in list.iter_mut().enumerate() {
                if mask & bit(at as u8) != 0 {
                    change(&mut used.closed);
                }
            }
        };
        each(grant.closed_gpus, &mut self.gpus);
        each(grant.closed_nics, &mut self.nics);
        each(grant.closed_migs, &mut self.migs);
    }
}
