//! One machine's copy of the virtual NVML library and the state it reads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::layout::{self, device};

/// The library, as `build.rs` made it.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libnvidia-ml.so.1"));

/// NVML's return codes that tests inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmlReturn {
    /// No error.
    Success = 0,
    /// The library is not started.
    Uninitialized = 1,
    /// The arguments cannot be.
    InvalidArgument = 2,
    /// Not on this device.
    NotSupported = 3,
    /// The caller may not.
    NoPermission = 4,
    /// The answer does not fit.
    InsufficientSize = 7,
    /// There is no kernel driver.
    DriverNotLoaded = 9,
    /// The GPU fell off the bus.
    GpuIsLost = 15,
    /// The GPU needs a reset.
    ResetRequired = 16,
    /// Library and kernel driver differ.
    LibRmVersionMismatch = 18,
    /// Anything else.
    Unknown = 999,
}

/// The files of one copy.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    state: File,
}

impl Library {
    /// Writes a copy into `directory` under the driver's file names, with an empty state.
    pub fn install(directory: &Path, driver_version: &str) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let versioned = format!("libnvidia-ml.so.{driver_version}");
        std::fs::write(directory.join(&versioned), LIBRARY)?;
        std::fs::set_permissions(directory.join(&versioned), std::fs::Permissions::from_mode(0o755))?;
        let path = directory.join("libnvidia-ml.so.1");
        symlink(&versioned, &path)?;
        let state = directory.join("nvml.state");
        let state = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(state)?;
        state.set_len(layout::SIZE as u64)?;
        let library = Self { path, state };
        let names = layout::FUNCTIONS.iter().chain(&layout::EVENT_FUNCTIONS);
        let mut counters = Vec::new();
        for name in names {
            counters.extend_from_slice(name.as_bytes());
            counters.resize(counters.len().next_multiple_of(layout::COUNTER_SIZE as usize), 0);
        }
        library.state.write_all_at(&counters, layout::COUNTERS)?;
        library.u32(4, layout::VERSION)?;
        library.u32(0, layout::MAGIC)?;
        Ok(library)
    }

    /// What to give to `dlopen`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls by function since the library was installed, functions never called left out.
    pub fn calls(&self) -> io::Result<BTreeMap<String, u64>> {
        let mut calls = BTreeMap::new();
        for (at, name) in layout::FUNCTIONS.iter().chain(&layout::EVENT_FUNCTIONS).enumerate() {
            let mut count = [0; 8];
            let offset = layout::COUNTERS + at as u64 * layout::COUNTER_SIZE + layout::COUNTER_NAME as u64;
            self.state.read_exact_at(&mut count, offset)?;
            let count = u64::from_ne_bytes(count);
            if count > 0 {
                calls.insert((*name).to_owned(), count);
            }
        }
        Ok(calls)
    }

    /// Appends an event; a process waiting in `nvmlEventSetWait_v2` wakes up.
    pub fn event(&self, kind: u64, data: u64, slot: u32, mig: Option<(u32, u32)>) -> io::Result<()> {
        let mut head = [0; 8];
        self.state.read_exact_at(&mut head, layout::EVENT_HEAD)?;
        let head = u64::from_ne_bytes(head);
        let (gi, ci) = mig.unwrap_or((u32::MAX, u32::MAX));
        let at = layout::EVENTS + (head % layout::MAX_EVENTS) * layout::EVENT_SIZE;
        self.u64(at, kind)?;
        self.u64(at + 8, data)?;
        [slot, gi, ci].iter().zip([16, 20, 24]).try_for_each(|(value, offset)| self.u32(at + offset, *value))?;
        // Last: the library reads an event only below the head.
        self.u64(layout::EVENT_HEAD, head + 1)
    }

    pub(super) fn u32(&self, offset: u64, value: u32) -> io::Result<()> {
        self.state.write_all_at(&value.to_ne_bytes(), offset)
    }

    pub(super) fn u64(&self, offset: u64, value: u64) -> io::Result<()> {
        self.state.write_all_at(&value.to_ne_bytes(), offset)
    }

    /// Writes `text` and zeroes up to `room`; longer text is cut.
    pub(super) fn text(&self, offset: u64, room: usize, text: &str) -> io::Result<()> {
        let mut bytes = vec![0; room];
        let length = text.len().min(room - 1);
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.state.write_all_at(&bytes, offset)
    }

    /// Offset of a field of the device in `slot`.
    pub(super) fn field(slot: usize, field: u64) -> u64 {
        layout::DEVICE + slot as u64 * layout::DEVICE_SIZE + field
    }

    pub(super) fn bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.state.write_all_at(bytes, offset)
    }

    /// The active NVLinks of a device, each as (NVML's device type, domain, bus, device) of its far end.
    pub(super) fn links(&self, slot: usize, links: &[(u32, u32, u8, u8)]) -> io::Result<()> {
        let far_end = |(kind, domain, bus, number): &(u32, u32, u8, u8)| {
            [1, *kind, *domain, u32::from(*bus) << 8 | u32::from(*number)]
        };
        let table: Vec<u8> = links.iter().flat_map(far_end).flat_map(u32::to_ne_bytes).collect();
        self.bytes(Self::field(slot, device::LINKS), &table)?;
        self.u32(Self::field(slot, device::LINK_COUNT), links.len() as u32)
    }
}
