//! Where a device is plugged in, as dense group numbers, and which devices each group holds.

/// Group number of a device whose place is not known: near nothing, not even to another such device.
pub const NOWHERE: u8 = u8::MAX;

/// Group numbers of one device. Numbers are dense per level and mean nothing outside their pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// PCIe switch; the root complex where the device names no switch.
    pub switch: u8,
    /// PCIe root complex.
    pub root: u8,
    /// NUMA node.
    pub numa: u8,
    /// NVLink domain.
    pub nvlink: u8,
}

impl Place {
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

/// The devices of one group, as bit masks over device numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Group {
    /// GPUs.
    pub gpus: u128,
    /// NICs.
    pub nics: u128,
    /// MIG devices.
    pub migs: u128,
}

/// Names of the groups of one level, numbered in the order of their first appearance. Numbers never change.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Vec<Box<str>>);

impl Names {
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
