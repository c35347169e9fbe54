//! `NodePool`: the devices of one node and what of them is taken. Dense numbers and masks only; cloning copies a few hundred
//! bytes, so plans and dry runs work on clones.

use std::sync::Arc;

use super::accounts::{Accounts, FreeSummary, Used, share_of};
use super::grant::{Grant, Part};
use super::held::HeldAmounts;
use super::inventory::{Devices, Labels, Layout, Skipped};
use super::place::Slot;
use baton_contract::inventory::Device;
use baton_contract::{DeviceId, DeviceType, Shared, key};

/// Why a grant cannot be taken. Nothing has changed then.
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
}

/// The devices of one node and what of them is taken.
#[derive(Debug, Clone, Default)]
pub struct NodePool {
    devices: Arc<Devices>,
    accounts: Shared<Accounts>,
}

/// Two pools are equal when they hold the same devices and the same of them is taken.
impl PartialEq for NodePool {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&self.devices, &other.devices);
        (Arc::ptr_eq(a, b) || (a.gpus == b.gpus && a.migs == b.migs && a.nics == b.nics))
            && self.accounts == other.accounts
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

    /// The same devices, nothing taken and all in service.
    #[must_use]
    pub fn as_new(&self) -> Self {
        let mut pool = self.without_accounts();
        pool.devices_mut().mend();
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

    /// Cordons exactly the devices of which `of` says so, by id and the id of the GPU that a MIG device is a part of.
    pub fn cordon(&mut self, of: impl Fn(&str, Option<&str>) -> bool) {
        self.devices_mut().cordon(of);
        self.change(|_, _| {});
    }

    /// `true` when both say the same of their devices, and the same is taken.
    pub fn is_like(&self, other: &Self) -> bool {
        self == other && self.devices.partitions == other.devices.partitions
    }

    /// Lets equal labels, amounts and layouts of devices be stored once, over all nodes.
    pub fn share(
        &mut self,
        labels: impl FnMut(&mut Shared<Labels>),
        amounts: impl FnMut(&mut Shared<HeldAmounts>),
        layouts: impl FnMut(&mut Shared<Layout>),
    ) {
        Arc::make_mut(&mut self.devices).share(labels, amounts, layouts);
    }

    /// Keeps the layout of an earlier count where it says the same: a state is recognised by it, and devices that no inventory
    /// lists make a new one each time.
    pub fn keep_layout(&mut self, earlier: &Self) {
        let (layout, earlier) = (self.devices.layout(), earlier.devices.layout());
        if !layout.is_same(earlier) && *layout == *earlier {
            self.devices_mut().set_layout(earlier.clone());
        }
    }

    pub(super) fn accounts(&self) -> &Shared<Accounts> {
        &self.accounts
    }

    /// Takes over what another pool of this layout has come to.
    pub(super) fn set_accounts(&mut self, accounts: Shared<Accounts>) {
        self.accounts = accounts;
    }

    pub(super) fn devices_mut(&mut self) -> &mut Devices {
        Arc::make_mut(&mut self.devices)
    }

    /// Gives every device an account; call it after devices were added.
    pub(super) fn grow(&mut self) {
        self.change(Accounts::grow);
    }

    /// The one way in which what is taken changes: what it comes to follows.
    fn change(&mut self, change: impl FnOnce(&mut Accounts, &Devices)) {
        let accounts = &mut *self.accounts;
        change(accounts, &self.devices);
        accounts.sum_up(&self.devices);
    }

    /// Equal for pools on which the same is taken; different for most others. Kept up to date, free to read.
    pub fn fingerprint(&self) -> u64 {
        self.accounts.fingerprint
    }

    /// What the node has.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// What is free, in a few numbers; kept up to date, free to read.
    pub fn summary(&self) -> &FreeSummary {
        &self.accounts.summary
    }

    pub(super) fn used_gpu(&self, at: u8) -> &Used {
        &self.accounts.gpus[usize::from(at)]
    }
    pub(super) fn used_nic(&self, at: u8) -> &Used {
        &self.accounts.nics[usize::from(at)]
    }
    pub(super) fn used(&self, slot: Slot) -> Option<&Used> {
        self.accounts.used(slot)
    }

    /// Free compute (percent) and memory (the GPU's unit) of a GPU; never negative.
    pub fn gpu_room(&self, at: u8) -> (u16, i64) {
        self.accounts.gpu_room(&self.devices, at)
    }

    /// Free percent of a NIC.
    pub fn nic_room(&self, at: u8) -> u16 {
        self.accounts.nic_room(&self.devices, at)
    }

    /// Percent of a device that pods hold, of compute or memory, whichever is more; all of a MIG device.
    pub fn held_percent(&self, slot: Slot) -> i64 {
        let free = match slot {
            _ if self.used(slot).is_none_or(|used| used.holders == 0) => return 0,
            Slot::Gpu(at) => {
                let (core, memory) = self.gpu_room(at);
                core.min(share_of(memory, self.devices.gpus[usize::from(at)].memory))
            }
            Slot::Mig(_) => 0,
            Slot::Nic(at) => self.nic_room(at),
        };
        (key::WHOLE - i64::from(free)).clamp(1, key::WHOLE)
    }

    /// A pod holds a device that is out of service: a NIC, or a GPU or its part.
    pub fn holds_unhealthy(&self, kind: &DeviceType) -> bool {
        let Accounts { gpus, migs, nics, .. } = &*self.accounts;
        let of_kind = |slot: Slot| matches!(slot, Slot::Nic(_)) == (*kind == DeviceType::Rdma);
        let used = self.devices.health().zip([gpus, migs, nics].into_iter().flatten());
        // Most often none is out of service.
        !self.devices.layout().all_healthy
            && self
                .devices
                .slots()
                .zip(used)
                .any(|(slot, (healthy, used))| of_kind(slot) && !healthy && used.holders > 0)
    }

    /// Takes `grant`, all or nothing: never above a device's capacity, never a device that is closed.
    pub fn take(&mut self, grant: &Grant) -> Result<(), PoolError> {
        grant.parts.iter().try_for_each(|part| self.admits(*part))?;
        for slot in grant.closed.slots() {
            if self.used(slot).is_some_and(|used| used.holders > 0) {
                return Err(PoolError::Closed { device: self.id(slot).clone() });
            }
        }
        self.count(grant);
        Ok(())
    }

    /// Takes `grant` without asking for room: what a bound pod holds is a fact.
    pub(super) fn count(&mut self, grant: &Grant) {
        self.change(|accounts, _| accounts.count(grant));
    }

    /// Whether one part has room.
    pub(super) fn admits(&self, part: Part) -> Result<(), PoolError> {
        let slot = part.slot();
        let used = self.accounts.used(slot).ok_or(PoolError::NoDevice(slot))?;
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
        self.devices.id(slot)
    }
}
