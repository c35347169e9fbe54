//! The ledger on disk, and the lock that makes this the node's only agent.
//!
//! One file, `ledger.json`: a header line with version, boot id, length and checksum, then the entries as JSON. It is written
//! to a temporary file that takes its place in one step; not synced: after a power loss the boot id differs, and the ledger is rebuilt anyway.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::decide::handoff::{Entry, Ledger};

/// The only version there is.
const VERSION: u32 = 1;
/// No ledger of a real node is near this.
const MAX_FILE: u64 = 64 << 20;
const FILE: &str = "ledger.json";
const TEMPORARY: &str = "ledger.json.new";
const LOCK: &str = "lock";
/// How often a waiting instance tries to become the only one.
const RETRY: Duration = Duration::from_millis(500);

/// The state directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state directory {dir}: {what}: {source}; --state-dir must be writable and on a local file system")]
pub struct StateError {
    dir: PathBuf,
    what: &'static str,
    source: io::Error,
}

/// The state directory, held by this process alone until it is dropped.
#[derive(Debug)]
pub struct StateDir {
    dir: PathBuf,
    _lock: File,
}

impl StateDir {
    /// Waits until no other process holds `dir`. Cancel-safe.
    pub async fn acquire(dir: &Path) -> Result<Self, StateError> {
        let mut told = false;
        loop {
            if let Some(held) = Self::try_acquire(dir)? {
                return Ok(held);
            }
            if !told {
                told = true;
                tracing::warn!(dir = %dir.display(), "another agent holds the state directory; waiting until it ends");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// `None` while another process holds it.
    pub fn try_acquire(dir: &Path) -> Result<Option<Self>, StateError> {
        let failed = |what| move |source| StateError { dir: dir.to_owned(), what, source };
        std::fs::create_dir_all(dir).map_err(failed("cannot be created"))?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(dir.join(LOCK)).map_err(failed("its lock file cannot be opened"))?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { dir: dir.to_owned(), _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed("its lock file cannot be locked")(errno.into())),
        }
    }
}

/// What was found on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loaded {
    /// A ledger of this boot.
    Ledger(Ledger),
    /// None that can be used, and why: it must be rebuilt.
    Lost(String),
}

/// The file.
#[derive(Debug)]
pub struct LedgerFile {
    state: StateDir,
    boot_id: Box<str>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    boot_id: Box<str>,
    bytes: usize,
    checksum: String,
}

impl LedgerFile {
    /// In `state`, for the boot `boot_id` (`/proc/sys/kernel/random/boot_id`).
    pub fn new(state: StateDir, boot_id: &str) -> Self {
        Self { state, boot_id: boot_id.trim().into() }
    }

    fn path(&self) -> PathBuf {
        self.state.dir.join(FILE)
    }

    /// Reads it. Whatever is wrong with the file makes it lost, never an error.
    pub fn load(&self) -> Loaded {
        load(&self.state.dir, &self.boot_id)
    }

    /// Replaces it.
    pub fn save(&self, ledger: &Ledger) -> io::Result<()> {
        let text = print(ledger, &self.boot_id)?;
        let temporary = self.state.dir.join(TEMPORARY);
        remove(&temporary)?;
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        replace(&temporary, &self.path())
    }
}

/// Puts `new` in the place of `old` in one step.
///
/// By an exchange where the file system can: ext4 starts to write a file out to disk when a rename puts it in another one's
/// place (`auto_da_alloc`), which takes 2 to 8 ms of every Allocate, for a promise that the ledger does not need. For the same
/// reason the temporary file is always a new one: truncating has that effect too.
fn replace(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        // What is left behind by a crash in between is the older ledger under the temporary name, which nobody reads.
        Ok(()) => remove(new),
        // There is no old one yet, or a file system (or kernel) without exchange.
        Err(_) => std::fs::rename(new, old),
    }
}

/// Removes a file that may be absent.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the ledger in the state directory `dir`, without holding that, as of the boot `boot_id`. Whatever is wrong with the
/// file makes it lost.
pub fn load(dir: &Path, boot_id: &str) -> Loaded {
    let read = File::open(dir.join(FILE)).and_then(|file| {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE), &mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) => parse(&bytes, boot_id.trim()).map_or_else(Loaded::Lost, Loaded::Ledger),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Loaded::Lost("there is none yet".to_owned()),
        Err(error) => Loaded::Lost(error.to_string()),
    }
}

/// Whether a daemon holds the state directory `dir` now; creates nothing.
pub fn is_held(dir: &Path) -> io::Result<bool> {
    let lock = File::open(dir.join(LOCK))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// The file's bytes.
fn print(ledger: &Ledger, boot_id: &str) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(&ledger.iter().collect::<Vec<_>>())?;
    let checksum = checksum(&body);
    let header = Header { version: VERSION, boot_id: boot_id.into(), bytes: body.len(), checksum };
    let mut text = serde_json::to_vec(&header)?;
    text.push(b'\n');
    text.extend(body);
    Ok(text)
}

fn parse(bytes: &[u8], boot_id: &str) -> Result<Ledger, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no header line")?;
    let (header, body) = (&bytes[..end], &bytes[end + 1..]);
    let header: Header = serde_json::from_slice(header).map_err(|error| format!("its header is damaged: {error}"))?;
    if header.version != VERSION {
        return Err(format!("it is of version {}, this agent writes {VERSION}", header.version));
    }
    if header.bytes != body.len() || header.checksum != checksum(body) {
        return Err("it is torn: length or checksum differ".to_owned());
    }
    if *header.boot_id != *boot_id {
        return Err("the node has rebooted since it was written".to_owned());
    }
    let entries: Vec<Entry> =
        serde_json::from_slice(body).map_err(|error| format!("its entries are damaged: {error}"))?;
    Ok(Ledger::of(entries))
}

/// FNV-1a, 64 bits: finds torn and damaged files; not meant against forgery (the directory is root's).
fn checksum(bytes: &[u8]) -> String {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::{DeviceEntry, DeviceId, DeviceType, PodRef};
    use crate::decide::handoff::State;
    use crate::decide::handoff::ledger::Slot;
    use proptest::prelude::*;

    fn entry(pod: &str, ids: &[String], answer: Option<Vec<u8>>) -> Entry {
        let device =
            DeviceEntry { minor: 1, id: DeviceId::parse("GPU-1").unwrap(), resources: [].into(), extension: None };
        Entry {
            pod: PodRef::new("default", pod, &format!("{pod}-uid")),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            slot: Slot { order: 1, init: false, sidecar: true },
            ids: ids.iter().map(|id| id.as_str().into()).collect(),
            served: vec![(DeviceType::Gpu, device)],
            answer,
            state: State::Committed,
            asked: 2,
            seq: 7,
            assigned: true,
        }
    }

    fn file(dir: &Path, boot: &str) -> LedgerFile {
        LedgerFile::new(StateDir::try_acquire(dir).unwrap().unwrap(), boot)
    }

    #[test]
    fn a_ledger_is_read_back_in_the_same_boot_and_lost_in_another() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::of([entry("a", &["GPU-1".to_owned()], Some(vec![0, 255, 10]))]);
        let this = file(dir.path(), "boot-1\n");
        assert!(matches!(this.load(), Loaded::Lost(_)));
        this.save(&ledger).unwrap();
        assert_eq!(this.load(), Loaded::Ledger(ledger));
        drop(this);
        assert!(matches!(file(dir.path(), "boot-2").load(), Loaded::Lost(why) if why.contains("rebooted")));
    }

    #[test]
    fn each_save_takes_the_place_of_the_one_before_whatever_a_crash_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let this = file(dir.path(), "boot");
        for (pod, left_behind) in [("a", false), ("b", false), ("c", true), ("d", true)] {
            if left_behind {
                std::fs::write(dir.path().join(TEMPORARY), "half of a ledg").unwrap();
            }
            let ledger = Ledger::of([entry(pod, &[], None)]);
            this.save(&ledger).unwrap();
            assert_eq!(this.load(), Loaded::Ledger(ledger));
            assert!(!dir.path().join(TEMPORARY).exists(), "after {pod}");
        }
    }

    #[test]
    fn a_second_instance_waits() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::try_acquire(dir.path()).unwrap();
        assert!(first.is_some());
        assert!(StateDir::try_acquire(dir.path()).unwrap().is_none());
        drop(first);
        assert!(StateDir::try_acquire(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_torn_file_is_lost_wherever_it_was_torn() {
        let ledger = Ledger::of([entry("a", &["GPU-1".to_owned()], Some(vec![1])), entry("b", &[], None)]);
        let whole = print(&ledger, "boot").unwrap();
        assert_eq!(parse(&whole, "boot"), Ok(ledger));
        for length in 0..whole.len() {
            assert!(parse(&whole[..length], "boot").is_err(), "torn at {length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(pods in proptest::collection::btree_set("[a-z]{1,9}", 0..6), ids in proptest::collection::vec("\\PC{0,20}", 0..4), answer in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))) {
            let ledger = Ledger::of(pods.iter().map(|pod| entry(pod, &ids, answer.clone())));
            prop_assert_eq!(parse(&print(&ledger, "boot").unwrap(), "boot"), Ok(ledger));
        }
        #[test]
        fn no_bytes_panic_and_no_changed_byte_goes_unnoticed(at in any::<proptest::sample::Index>(), to in any::<u8>()) {
            let ledger = Ledger::of([entry("a", &["GPU-1".to_owned()], Some(vec![1]))]);
            let mut bytes = print(&ledger, "boot").unwrap();
            let at = at.index(bytes.len());
            let changed = bytes[at] != to;
            bytes[at] = to;
            let body = bytes.iter().position(|b| *b == b'\n').unwrap_or(0);
            if changed && at > body {
                prop_assert!(parse(&bytes, "boot").is_err());
            } else {
                let _ = parse(&bytes, "boot");
            }
        }
    }
}
