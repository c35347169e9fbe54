//! The way back: what bound pods hold, read from their annotations, counted into the pool. A bound pod's assignment is a fact:
//! it is counted even where it does not fit, and what does not fit is reported.

use super::exclusive::closure;
use super::grant::{Grant, Part};
use super::held::{Held, HeldDevice};
use super::place::{Slot, bit};
use super::pool::{NodePool, PoolError};
use super::wishes::Exclusive;
use baton_contract::{DeviceId, DeviceType, key};

/// Something in a bound pod's assignment that this node's inventory does not bear out. Counted all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// The inventory lists no such device. It is kept as unhealthy, until the inventory lists it.
    #[error("{kind} {id} is assigned but not in the node's inventory")]
    Unknown {
        /// Device type.
        kind: DeviceType,
        /// Id.
        id: DeviceId,
    },
    /// The inventory lists no device of that minor; nothing can be counted.
    #[error("{kind} of minor {minor} is held but not in the node's inventory")]
    UnknownMinor {
        /// Device type.
        kind: DeviceType,
        /// Minor.
        minor: i32,
    },
    /// Assigned above what was free, or closed.
    #[error("assigned although {0}")]
    Over(#[from] PoolError),
    /// The NIC has no such virtual function.
    #[error("virtual function {bus_id} of NIC {nic} is assigned but not in the node's inventory")]
    UnknownVf {
        /// NIC.
        nic: DeviceId,
        /// Address of the function.
        bus_id: DeviceId,
    },
    /// More devices than a node can have; this one cannot be counted.
    #[error("{kind} {id} cannot be counted: the node has too many devices")]
    TooMany {
        /// Device type.
        kind: DeviceType,
        /// Id.
        id: DeviceId,
    },
}

impl NodePool {
    /// Counts what a bound pod holds.
    pub fn take_held(&mut self, held: &Held, exclusive: Exclusive) -> (Grant, Vec<Misfit>) {
        let (mut parts, mut misfits) = (Vec::new(), Vec::new());
        for kind in [DeviceType::Gpu, DeviceType::Rdma] {
            for entry in held.of_kind(&kind) {
                parts.extend(self.part_of(&kind, entry, &mut misfits));
            }
        }
        (self.settle(parts, exclusive, &mut misfits), misfits)
    }

    /// Counts whole devices that a pod holds by the Device object's `status.allocations`.
    pub fn take_minors(&mut self, kind: &DeviceType, minors: &[i32]) -> (Grant, Vec<Misfit>) {
        let (mut parts, mut misfits) = (Vec::new(), Vec::new());
        for minor in minors {
            let before = parts.len();
            let devices = self.devices();
            match kind {
                DeviceType::Gpu => {
                    let gpus = (0u8..).zip(&devices.gpus).filter(|(_, gpu)| gpu.common.minor == *minor && gpu.core > 0);
                    parts.extend(gpus.map(|(at, gpu)| Part::Gpu { gpu: at, core: gpu.core, memory: gpu.memory }));
                    // A GPU that is cut up has no capacity of its own: which instance is held is not stated, so all are.
                    let migs = (0u8..).zip(&devices.migs).filter(|(_, mig)| mig.common.minor == *minor);
                    parts.extend(migs.map(|(at, _)| Part::Mig { mig: at }));
                }
                DeviceType::Rdma => {
                    let nics = (0u8..).zip(&devices.nics).filter(|(_, nic)| nic.common.minor == *minor);
                    parts.extend(nics.map(|(at, nic)| Part::Nic { nic: at, percent: nic.percent, vfs: 0 }));
                }
                DeviceType::Other(_) => {}
            }
            if parts.len() == before {
                misfits.push(Misfit::UnknownMinor { kind: kind.clone(), minor: *minor });
            }
        }
        (self.settle(parts, Exclusive::default(), &mut misfits), misfits)
    }

    fn settle(&mut self, mut parts: Vec<Part>, exclusive: Exclusive, misfits: &mut Vec<Misfit>) -> Grant {
        parts.sort_unstable_by_key(|part| part.slot());
        parts.dedup_by(|a, b| a.slot() == b.slot());
        let listed = parts.iter().filter(|part| !self.devices().is_stranger(part.slot()));
        misfits.extend(listed.filter_map(|part| self.admits(*part).err().map(Misfit::Over)));
        let closed = closure(self, &parts, exclusive);
        let grant = Grant { parts: parts.into(), closed };
        self.count(&grant);
        grant
    }

    fn part_of(&mut self, kind: &DeviceType, entry: &HeldDevice, misfits: &mut Vec<Misfit>) -> Option<Part> {
        let devices = self.devices();
        let known = match kind {
            DeviceType::Gpu => {
                let gpu = devices.gpu_by_id(&entry.id).map(Slot::Gpu);
                gpu.or_else(|| devices.mig_by_id(&entry.id).map(Slot::Mig))
            }
            _ => devices.nic_by_id(&entry.id).map(Slot::Nic),
        };
        let (unknown, id) = (kind.clone(), entry.id.clone());
        match known {
            Some(slot) if devices.is_stranger(slot) => misfits.push(Misfit::Unknown { kind: unknown, id }),
            Some(_) => {}
            None if self.devices_mut().stranger(kind, &entry.id, entry.minor) => {
                self.grow();
                misfits.push(Misfit::Unknown { kind: unknown, id });
            }
            None => misfits.push(Misfit::TooMany { kind: unknown, id }),
        }
        let devices = self.devices();
        let percent = |amount: i64| amount.clamp(0, i64::from(u16::MAX)) as u16;
        if *kind == DeviceType::Gpu {
            if let Some(mig) = devices.mig_by_id(&entry.id) {
                return Some(Part::Mig { mig });
            }
            let at = devices.gpu_by_id(&entry.id)?;
            let gpu = &devices.gpus[usize::from(at)];
            let ratio = i128::from(entry.amount(key::GPU_MEMORY_RATIO));
            // Of a GPU of unknown size the bytes are counted as written, so that they are right when it is listed.
            let of_ratio = (i128::from(gpu.memory) * ratio / 100) as i64;
            let memory = match entry.amount(key::GPU_MEMORY) {
                // Where both are written and differ by more than rounding, the lesser was asked for: the other is no amount of ours.
                bytes @ 1.. if gpu.memory > 0 && ratio > 0 && bytes > of_ratio.saturating_add(gpu.memory / 100) => {
                    of_ratio
                }
                bytes @ 1.. if gpu.bytes_known || gpu.memory == 0 => bytes,
                _ => of_ratio,
            };
            return Some(Part::Gpu { gpu: at, core: percent(entry.amount(key::GPU_CORE)), memory });
        }
        let nic = devices.nic_by_id(&entry.id)?;
        let mut vfs = 0;
        for bus_id in &entry.vfs {
            match devices.nics[usize::from(nic)].vfs.iter().position(|slot| slot.bus_id == *bus_id) {
                Some(at) => vfs |= bit(at as u8),
                None => misfits.push(Misfit::UnknownVf { nic: entry.id.clone(), bus_id: bus_id.clone() }),
            }
        }
        Some(Part::Nic { nic, percent: percent(entry.amount(key::RDMA)), vfs })
    }
}
