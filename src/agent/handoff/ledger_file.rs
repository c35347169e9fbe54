//! The ledger on disk, and the lock that makes this the node's only agent.
//!
//! One file, `ledger.json`: a header line with version, boot id, length and checksum, then the entries as JSON, then perhaps the
//! end of an older and longer ledger, which counts for nothing. It is written to a temporary file that takes its place in one
//! step; not synced: after a power loss the boot id differs, and the ledger is rebuilt anyway.
//!
//! A write lies between the kubelet's call and its answer, so it costs as little as that promise allows. The two files stay open
//! and take turns: the one that is not the ledger is written over and exchanged with the one that is. Nothing is created,
//! truncated or removed, none of which the promise needs and each of which ext4 answers with a journal entry, or with writing
//! the file out (`auto_da_alloc`, 2 to 8 ms). And only entries that changed are spelled out again.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use baton_contract::Shared;
use baton_decide::handoff::{EntryKey, Ledger, LedgerEntry};

/// The only version there is.
const VERSION: u32 = 3;
/// No ledger of a real node is near this.
const MAX_FILE: u64 = 64 << 20;
const FILE: &str = "ledger.json";
const TEMPORARY: &str = "ledger.json.new";
const LOCK: &str = "lock";
const TORN: &str = "it is torn: length or checksum differ";
/// How often a reader without the lock tries to read a ledger that may be being written.
const READS: usize = 20;
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
        let mut logged = false;
        loop {
            if let Some(held) = Self::try_acquire(dir)? {
                return Ok(held);
            }
            if !logged {
                logged = true;
                tracing::warn!(dir = %dir.display(), "another node daemon holds the state directory; waiting until it ends");
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
pub enum LoadedLedger {
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
    path: PathBuf,
    temporary: PathBuf,
    text: LedgerText,
    files: OpenFiles,
}

/// The files that are open.
#[derive(Debug, Default)]
struct OpenFiles {
    /// At the ledger's name.
    ledger: Option<File>,
    /// At the temporary name.
    spare: Option<File>,
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
        let (path, temporary) = (state.dir.join(FILE), state.dir.join(TEMPORARY));
        let (text, files) = (LedgerText::default(), OpenFiles::default());
        Self { state, boot_id: boot_id.trim().into(), path, temporary, text, files }
    }

    /// Reads it. Whatever is wrong with the file makes it lost, never an error.
    pub fn load(&self) -> LoadedLedger {
        load(&self.state.dir, &self.boot_id)
    }

    /// Replaces it.
    pub fn save(&mut self, ledger: &Ledger) -> io::Result<()> {
        self.text.spell(ledger, &self.boot_id)?;
        match self.exchange() {
            Ok(true) => Ok(()),
            // The first two writes, or the files were changed from outside.
            Ok(false) | Err(_) => self.renew(),
        }
    }

    /// Writes over the spare file and exchanges the two. `false` when there is none that is still at its place.
    fn exchange(&mut self) -> io::Result<bool> {
        let Some(spare) = &self.files.spare else { return Ok(false) };
        if spare.metadata()?.nlink() == 0 {
            return Ok(false);
        }
        spare.write_all_at(&self.text.whole, 0)?;
        exchange(&self.temporary, &self.path)?;
        std::mem::swap(&mut self.files.spare, &mut self.files.ledger);
        Ok(true)
    }

    /// Writes a new file. What was the ledger becomes the spare one.
    fn renew(&mut self) -> io::Result<()> {
        self.files.spare = None;
        remove(&self.temporary)?;
        let file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&self.temporary)?;
        file.write_all_at(&self.text.whole, 0)?;
        match exchange(&self.temporary, &self.path) {
            // An older ledger of another writer is at the temporary name now, and is renewed next time.
            Ok(()) => self.files.spare = self.files.ledger.take(),
            // There is no old one yet, or a file system (or kernel) without exchange.
            Err(_) => std::fs::rename(&self.temporary, &self.path)?,
        }
        self.files.ledger = Some(file);
        Ok(())
    }
}

/// The ledger as text; knows what it spelled out before.
#[derive(Debug, Default)]
struct LedgerText {
    entries: BTreeMap<EntryKey, (Shared<LedgerEntry>, Box<[u8]>)>,
    body: Vec<u8>,
    whole: Vec<u8>,
    /// Entries that were spelled out, over all.
    spelled: usize,
}

impl LedgerText {
    /// Makes `whole` the file's bytes for `ledger`.
    fn spell(&mut self, ledger: &Ledger, boot_id: &str) -> io::Result<()> {
        let stored = ledger.stored();
        self.entries.retain(|key, (entry, _)| stored.get(key).is_some_and(|now| now.is_same(entry)));
        self.body.clear();
        for (key, entry) in stored {
            if !self.entries.contains_key(key) {
                self.spelled += 1;
                let text = serde_json::to_vec(&**entry)?.into_boxed_slice();
                self.entries.insert(key.clone(), (entry.clone(), text));
            }
            self.body.push(if self.body.is_empty() { b'[' } else { b',' });
            self.body.extend_from_slice(self.entries.get(key).map_or(b"", |(_, text)| text));
        }
        self.body.extend_from_slice(if self.body.is_empty() { b"[]" } else { b"]" });
        let header = Header {
            version: VERSION,
            boot_id: boot_id.into(),
            bytes: self.body.len(),
            checksum: checksum(&self.body),
        };
        self.whole.clear();
        serde_json::to_writer(&mut self.whole, &header)?;
        self.whole.push(b'\n');
        self.whole.extend_from_slice(&self.body);
        Ok(())
    }
}

/// Exchanges two files in one step.
fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

/// Removes a file that may be absent.
fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Reads the ledger in the state directory `dir`, without holding that, as of the boot `boot_id`. Whatever is wrong with the
/// file makes it lost. A daemon may be writing: the file that was opened may be the spare one by the time that it is read.
pub fn load(dir: &Path, boot_id: &str) -> LoadedLedger {
    let mut reads = (0..READS).map(|_| load_once(dir, boot_id));
    reads.by_ref().find(|loaded| matches!(loaded, LoadedLedger::Ledger(_))).unwrap_or_else(|| load_once(dir, boot_id))
}

fn load_once(dir: &Path, boot_id: &str) -> LoadedLedger {
    let read = File::open(dir.join(FILE)).and_then(|file| {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE), &mut bytes)?;
        Ok(bytes)
    });
    match read {
        Ok(bytes) => parse(&bytes, boot_id.trim()).map_or_else(LoadedLedger::Lost, LoadedLedger::Ledger),
        Err(error) if error.kind() == io::ErrorKind::NotFound => LoadedLedger::Lost("there is none yet".to_owned()),
        Err(error) => LoadedLedger::Lost(error.to_string()),
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

/// The bytes of the file for `ledger`, as of the boot `boot_id`.
pub fn print(ledger: &Ledger, boot_id: &str) -> io::Result<Vec<u8>> {
    let mut text = LedgerText::default();
    text.spell(ledger, boot_id)?;
    Ok(text.whole)
}

/// The ledger in the bytes of a file; why it is lost otherwise.
pub fn parse(bytes: &[u8], boot_id: &str) -> Result<Ledger, String> {
    let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no header line")?;
    let (header, rest) = (&bytes[..end], &bytes[end + 1..]);
    let header: Header = serde_json::from_slice(header).map_err(|error| format!("its header is damaged: {error}"))?;
    if header.version != VERSION {
        return Err(format!("it is of version {}, this node daemon writes {VERSION}", header.version));
    }
    let body = rest.get(..header.bytes).filter(|body| header.checksum == checksum(body)).ok_or(TORN)?;
    if *header.boot_id != *boot_id {
        return Err("the node has rebooted since it was written".to_owned());
    }
    let entries: Vec<LedgerEntry> =
        serde_json::from_slice(body).map_err(|error| format!("its entries are damaged: {error}"))?;
    Ok(Ledger::of(entries))
}

/// FNV-1a over words of 64 bits and the length: finds torn and damaged files in a pass that is eight times as fast as one over
/// bytes. Not meant against forgery (the directory is root's).
fn checksum(bytes: &[u8]) -> String {
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let hash = mix(words.fold(0xcbf2_9ce4_8422_2325, mix), bytes.len() as u64);
    // A product's low bits know nothing of the high ones.
    format!("{:016x}", hash ^ (hash >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::{DeviceEntry, DeviceId, DeviceType, PodRef};
    use baton_decide::handoff::CallState;
    use baton_decide::handoff::ledger::ContainerSlot;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn entry(pod: &str, ids: &[String], answer: Option<Vec<u8>>) -> LedgerEntry {
        let device =
            DeviceEntry { minor: 1, id: DeviceId::parse("GPU-1").unwrap(), resources: [].into(), extension: None };
        LedgerEntry {
            pod: PodRef::new("default", pod, &format!("{pod}-uid")),
            container: "main".into(),
            resource: "nvidia.com/gpu".into(),
            slot: ContainerSlot { order: 1, init: false, sidecar: true },
            ids: ids.iter().map(|id| id.as_str().into()).collect(),
            served: vec![(DeviceType::Gpu, device)],
            unnamed: BTreeSet::from([DeviceId::parse("GPU-2").unwrap()]),
            answer,
            state: CallState::Listed,
            asked: 2,
            seq: 7,
            assigned: true,
            grace_seconds: 30,
        }
    }

    fn file(dir: &Path, boot: &str) -> LedgerFile {
        LedgerFile::new(StateDir::try_acquire(dir).unwrap().unwrap(), boot)
    }

    fn print(ledger: &Ledger, boot_id: &str) -> Vec<u8> {
        super::print(ledger, boot_id).unwrap()
    }

    #[test]
    fn a_ledger_is_read_back_in_the_same_boot_and_lost_in_another() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::of([entry("a", &["GPU-1".to_owned()], Some(vec![0, 255, 10]))]);
        let mut this = file(dir.path(), "boot-1\n");
        assert!(matches!(this.load(), LoadedLedger::Lost(_)));
        this.save(&ledger).unwrap();
        assert_eq!(this.load(), LoadedLedger::Ledger(ledger));
        drop(this);
        assert!(matches!(file(dir.path(), "boot-2").load(), LoadedLedger::Lost(why) if why.contains("rebooted")));
    }

    #[test]
    fn each_save_takes_the_place_of_the_one_before_whatever_a_crash_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let temporary = dir.path().join(TEMPORARY);
        for start in 0..3 {
            std::fs::write(&temporary, "half of a ledg").unwrap();
            let mut this = file(dir.path(), "boot");
            for pod in ["a", "a-much-longer-name", "b", "c", "d"] {
                let ledger = Ledger::of([entry(pod, &[], Some(vec![start]))]);
                this.save(&ledger).unwrap();
                assert_eq!(this.load(), LoadedLedger::Ledger(ledger), "{pod}");
            }
        }
    }

    #[test]
    fn the_ledger_is_never_written_over_where_it_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut this = file(dir.path(), "boot");
        for pod in ["a", "b", "c", "d"] {
            let before = File::open(dir.path().join(FILE)).ok();
            let old = before.as_ref().map(|file| std::io::read_to_string(file).unwrap());
            this.save(&Ledger::of([entry(pod, &[], None)])).unwrap();
            let Some(before) = before else { continue };
            let mut now = vec![0; before.metadata().unwrap().len() as usize];
            before.read_exact_at(&mut now, 0).unwrap();
            assert_eq!(
                Some(String::from_utf8(now).unwrap()),
                old,
                "{pod}: a reader that opened it before reads it whole"
            );
        }
    }

    #[test]
    fn two_files_take_turns_and_only_changed_entries_are_spelled_out() {
        let dir = tempfile::tempdir().unwrap();
        let mut this = file(dir.path(), "boot");
        let mut ledger = Ledger::of((0..50).map(|pod| entry(&format!("pod-{pod}"), &[], None)));
        let inodes = || {
            let of = |name| std::fs::metadata(dir.path().join(name)).map(|meta| meta.ino()).ok();
            [of(FILE), of(TEMPORARY)]
        };
        this.save(&ledger).unwrap();
        ledger.record(entry("new-0", &[], None));
        this.save(&ledger).unwrap();
        let (mut before, spelled) = (inodes(), this.text.spelled);
        assert_eq!(spelled, 51);
        for round in 1..6 {
            ledger.record(entry(&format!("new-{round}"), &[], None));
            this.save(&ledger).unwrap();
            let after = inodes();
            assert_eq!(after, [before[1], before[0]]);
            assert_eq!(this.text.spelled, spelled + round);
            before = after;
        }
        let key = entry("new-1", &[], None).key();
        ledger.repeat(&key, Vec::new());
        ledger.forget(&entry("pod-7", &[], None).key());
        this.save(&ledger).unwrap();
        assert_eq!(this.text.spelled, spelled + 6, "one has changed, one has gone");
        assert_eq!(this.load(), LoadedLedger::Ledger(Ledger::of(ledger.iter().cloned())));
    }

    #[test]
    fn files_that_are_taken_away_or_replaced_are_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut this = file(dir.path(), "boot");
        let remove_both = || [FILE, TEMPORARY].iter().for_each(|name| drop(std::fs::remove_file(path(name))));
        let replace = || {
            std::fs::write(path("other"), "not a ledger").unwrap();
            std::fs::rename(path("other"), path(TEMPORARY)).unwrap();
        };
        let tamper: [&dyn Fn(); 4] = [
            &|| std::fs::remove_file(path(FILE)).unwrap(),
            &|| std::fs::remove_file(path(TEMPORARY)).unwrap(),
            &remove_both,
            &replace,
        ];
        for (round, tamper) in tamper.into_iter().enumerate() {
            for save in 0..4 {
                let ledger = Ledger::of([entry(&format!("{round}-{save}"), &[], None)]);
                this.save(&ledger).unwrap();
                assert_eq!(this.load(), LoadedLedger::Ledger(ledger), "{round} {save}");
            }
            tamper();
        }
        this.save(&Ledger::default()).unwrap();
        assert_eq!(this.load(), LoadedLedger::Ledger(Ledger::default()));
    }

    #[test]
    fn a_reader_beside_a_writer_never_sees_a_torn_ledger() {
        let dir = tempfile::tempdir().unwrap();
        let mut this = file(dir.path(), "boot");
        this.save(&Ledger::default()).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut reads = 0;
                while !done.load(std::sync::atomic::Ordering::Acquire) {
                    let loaded = load(dir.path(), "boot");
                    assert!(matches!(loaded, LoadedLedger::Ledger(_)), "{loaded:?}");
                    reads += 1;
                }
                reads
            });
            for round in 0..500 {
                let pods = (0..round % 7).map(|pod| entry(&format!("{round}-{pod}"), &[], None));
                this.save(&Ledger::of(pods)).unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::Release);
            assert!(reader.join().unwrap() > 0);
        });
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
        let whole = print(&ledger, "boot");
        assert_eq!(parse(&whole, "boot"), Ok(ledger));
        for length in 0..whole.len() {
            assert!(parse(&whole[..length], "boot").is_err(), "torn at {length}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(pods in proptest::collection::btree_set("[a-z]{1,9}", 0..6), ids in proptest::collection::vec("\\PC{0,20}", 0..4), answer in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))) {
            let ledger = Ledger::of(pods.iter().map(|pod| entry(pod, &ids, answer.clone())));
            prop_assert_eq!(parse(&print(&ledger, "boot"), "boot"), Ok(ledger));
        }
        #[test]
        fn no_bytes_panic_and_no_changed_byte_goes_unnoticed(at in any::<proptest::sample::Index>(), to in any::<u8>()) {
            let ledger = Ledger::of([entry("a", &["GPU-1".to_owned()], Some(vec![1]))]);
            let mut bytes = print(&ledger, "boot");
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
