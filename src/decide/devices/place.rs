//! Devices of a node by number: sets of them as bit masks, and where each is plugged in as dense group numbers.

use std::ops::{BitAnd, BitOr, BitOrAssign, Not};

/// A device of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// GPU of that number.
    Gpu(u8),
    /// MIG device of that number.
    Mig(u8),
    /// NIC of that number.
    Nic(u8),
}

/// A set of devices, as bit masks over device numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct DeviceSet {
    /// GPUs.
    pub gpus: u128,
    /// NICs.
    pub nics: u128,
    /// MIG devices.
    pub migs: u128,
}

impl DeviceSet {
    /// Every device.
    pub const ALL: Self = Self { gpus: u128::MAX, nics: u128::MAX, migs: u128::MAX };

    /// One device.
    pub fn of(slot: Slot) -> Self {
        let mut set = Self::default();
        match slot {
            Slot::Gpu(at) => set.gpus = bit(at),
            Slot::Mig(at) => set.migs = bit(at),
            Slot::Nic(at) => set.nics = bit(at),
        }
        set
    }

    /// `true` without devices.
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Its devices.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        let (gpus, migs) = (bits(self.gpus).map(Slot::Gpu), bits(self.migs).map(Slot::Mig));
        gpus.chain(migs).chain(bits(self.nics).map(Slot::Nic))
    }
}

impl FromIterator<Slot> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        slots.into_iter().fold(Self::default(), |set, slot| set | Self::of(slot))
    }
}

impl BitOr for DeviceSet {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self { gpus: self.gpus | other.gpus, nics: self.nics | other.nics, migs: self.migs | other.migs }
    }
}

impl BitOrAssign for DeviceSet {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

impl BitAnd for DeviceSet {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self { gpus: self.gpus & other.gpus, nics: self.nics & other.nics, migs: self.migs & other.migs }
    }
}

impl Not for DeviceSet {
    type Output = Self;
    fn not(self) -> Self {
        Self { gpus: !self.gpus, nics: !self.nics, migs: !self.migs }
    }
}

/// The numbers of the set bits, lowest first.
pub fn bits(mut mask: u128) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let at = mask.trailing_zeros() as u8;
        mask &= mask - 1;
        Some(at)
    })
}

/// The mask with only `at` set.
pub const fn bit(at: u8) -> u128 {
    1 << at
}

/// The mask of these numbers.
pub(super) fn mask(numbers: impl IntoIterator<Item = u8>) -> u128 {
    numbers.into_iter().fold(0, |mask, at| mask | bit(at))
}

/// Group number of a device whose place is not known: near nothing, not even to another such device.
pub const NOWHERE: u8 = u8::MAX;

/// Group numbers of one device. Numbers are dense per level and mean nothing outside their pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePlace {
    /// PCIe switch; the root complex where the device names no switch.
    pub switch: u8,
    /// PCIe root complex.
    pub root: u8,
    /// NUMA node.
    pub numa: u8,
    /// NVLink domain.
    pub nvlink: u8,
}

impl DevicePlace {
    /// A device of unknown place.
    pub const UNKNOWN: Self = Self { switch: NOWHERE, root: NOWHERE, numa: NOWHERE, nvlink: NOWHERE };

    /// The group at `level`.
    pub fn at(self, level: Level) -> u8 {
        match level {
            Level::Switch => self.switch,
            Level::Root => self.root,
            Level::Numa => self.numa,
            Level::Nvlink => self.nvlink,
        }
    }

    /// Steps between two devices over PCIe: 0 below one switch, 1 below one root complex, 2 on one NUMA node, 3 farther.
    pub fn distance(self, other: Self) -> u32 {
        let same = |level| self.at(level) != NOWHERE && self.at(level) == other.at(level);
        [Level::Switch, Level::Root, Level::Numa].into_iter().position(same).unwrap_or(3) as u32
    }
}

/// Levels that devices are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// PCIe switch.
    Switch,
    /// PCIe root complex.
    Root,
    /// NUMA node.
    Numa,
    /// NVLink domain.
    Nvlink,
}

impl Level {
    /// Every level.
    pub const ALL: [Self; 4] = [Self::Switch, Self::Root, Self::Numa, Self::Nvlink];
}

/// Names of the groups of one level, numbered in the order of their first appearance. Numbers never change.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupNames(Vec<Box<str>>);

impl GroupNames {
    /// Number of `name`, [`NOWHERE`] for an empty name or when there are too many.
    pub fn number(&mut self, name: &str) -> u8 {
        if name.is_empty() {
            return NOWHERE;
        }
        if let Some(at) = self.0.iter().position(|known| **known == *name) {
            return at as u8;
        }
        if self.0.len() >= usize::from(NOWHERE) {
            return NOWHERE;
        }
        self.0.push(name.into());
        (self.0.len() - 1) as u8
    }
}
