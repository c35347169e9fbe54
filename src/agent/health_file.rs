//! What is seen once and a later daemon has to know: which GPUs there are, for those that keep silent by then, which of them a critical
//! error keeps out of service, and what failed pods.
//!
//! One file, `health.json`, in the state directory, replaced by a rename; errors count for the boot that it was written in. Not
//! synced: after a power loss the boot is another one. Whatever is wrong with it makes it none: the GPUs that answer start healthy
//! then, as they do without it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::health::KnownOutage;
use baton_decide::health::Ailment;
use baton_hardware::GpuScan;

const FILE: &str = "health.json";
const TEMPORARY: &str = "health.json.new";
/// The only version there is.
const VERSION: u32 = 1;
/// No real one is near this.
const MAX_FILE: u64 = 1 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Content {
    version: u32,
    boot_id: String,
    gpus: Vec<Ailment>,
    /// The GPUs as they answered last.
    seen: GpuScan,
    /// What failed pods.
    outages: Vec<KnownOutage>,
}

/// What an agent left to the one after it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct EarlierHealth {
    /// Errors of this boot.
    pub ailments: Vec<Ailment>,
    /// What failed pods in this boot.
    pub outages: Vec<KnownOutage>,
    /// The GPUs as they answered last.
    pub seen: GpuScan,
    /// They answered before the last boot: what the machine has now may be another thing.
    pub is_of_earlier_boot: bool,
}

/// The file, and what is in it.
#[derive(Debug)]
pub struct HealthFile {
    dir: PathBuf,
    boot_id: String,
    /// `None` where what stands there is not what is known now.
    written: Option<(Vec<Ailment>, Vec<KnownOutage>, GpuScan)>,
}

impl HealthFile {
    /// In the state directory `dir`, for the boot `boot_id`; and what the agent before this one left there.
    pub fn open(dir: &Path, boot_id: &str) -> (Self, EarlierHealth) {
        let found = load(&dir.join(FILE)).unwrap_or_else(|why| {
            tracing::warn!(file = %dir.join(FILE).display(), "what was known of silent and of unhealthy GPUs is lost: {why}");
            None
        });
        let new = |written| Self { dir: dir.to_owned(), boot_id: boot_id.to_owned(), written };
        match found {
            None => (new(None), EarlierHealth::default()),
            Some(Content { boot_id: earlier, seen, .. }) if earlier != boot_id => {
                (new(None), EarlierHealth { seen, is_of_earlier_boot: true, ..EarlierHealth::default() })
            }
            Some(Content { gpus: ailments, seen, outages, .. }) => {
                let written = (ailments.clone(), outages.clone(), seen.clone());
                (new(Some(written)), EarlierHealth { ailments, outages, seen, is_of_earlier_boot: false })
            }
        }
    }

    /// Writes it where it says something else.
    pub fn keep(&mut self, gpus: Vec<Ailment>, outages: &[KnownOutage], seen: &GpuScan) {
        // The next scan says which GPUs keep silent.
        let known = (gpus, outages.to_vec(), GpuScan { faults: Vec::new(), ..seen.clone() });
        if self.written.as_ref() == Some(&known) {
            return;
        }
        match self.write(&known) {
            Ok(()) => self.written = Some(known),
            Err(error) => {
                tracing::warn!(
                    file = %self.dir.join(FILE).display(),
                    "after a restart the node daemon will not know which GPUs are unhealthy or silent: {error}"
                );
                self.written = None;
            }
        }
    }

    fn write(&self, known: &(Vec<Ailment>, Vec<KnownOutage>, GpuScan)) -> io::Result<()> {
        let (gpus, outages, seen) = known.clone();
        let content = Content { version: VERSION, boot_id: self.boot_id.clone(), gpus, outages, seen };
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(self.dir.join(TEMPORARY))?;
        file.write_all(&serde_json::to_vec(&content)?)?;
        std::fs::rename(self.dir.join(TEMPORARY), self.dir.join(FILE))
    }
}

/// `None` where there is none.
fn load(path: &Path) -> Result<Option<Content>, String> {
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| error.to_string())?,
    };
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE), &mut bytes).map_err(|error| error.to_string())?;
    let content: Content = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    match content.version {
        VERSION => Ok(Some(content)),
        other => Err(format!("version {other} is not known, only {VERSION}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ailment(uuid: &str) -> Ailment {
        Ailment { uuid: uuid.into(), instance: Some("MIG-1".into()), xid: 79 }
    }

    fn seen(uuid: &str) -> GpuScan {
        let gpu = serde_json::json!({"uuid": uuid, "minor": 0, "index": 0, "bdf": "00000000:1a:00.0", "model": "H100"});
        let scan = serde_json::json!({"driverVersion": "570", "nvmlVersion": "12.570", "gpus": [gpu]});
        serde_json::from_value(scan).unwrap()
    }

    #[test]
    fn errors_are_found_in_the_same_boot_only_and_gpus_in_any() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, found) = HealthFile::open(dir.path(), "boot-1");
        assert_eq!(found, EarlierHealth::default());
        file.keep(vec![ailment("GPU-a")], &[], &seen("GPU-a"));
        let same = EarlierHealth { ailments: vec![ailment("GPU-a")], seen: seen("GPU-a"), ..EarlierHealth::default() };
        assert_eq!(HealthFile::open(dir.path(), "boot-1").1, same);
        let next = EarlierHealth { seen: seen("GPU-a"), is_of_earlier_boot: true, ..EarlierHealth::default() };
        assert_eq!(HealthFile::open(dir.path(), "boot-2").1, next);
        file.keep(Vec::new(), &[], &seen("GPU-a"));
        assert!(HealthFile::open(dir.path(), "boot-1").1.ailments.is_empty());
    }

    #[test]
    fn a_damaged_file_is_none_and_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        for text in
            ["", "{", "[]", r#"{"version":9,"bootId":"b","gpus":[]}"#, r#"{"version":1,"bootId":"b","gpus":[{}]}"#]
        {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let (mut file, found) = HealthFile::open(dir.path(), "b");
            assert_eq!(found, EarlierHealth::default(), "{text}");
            file.keep(vec![ailment("GPU-a")], &[], &GpuScan::default());
            assert_eq!(HealthFile::open(dir.path(), "b").1.ailments, [ailment("GPU-a")]);
        }
    }

    #[test]
    fn what_could_not_be_written_is_written_when_that_is_possible_again() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (mut file, _) = HealthFile::open(&state, "b");
        file.keep(vec![ailment("GPU-a")], &[], &GpuScan::default());
        std::fs::create_dir(&state).unwrap();
        file.keep(vec![ailment("GPU-a")], &[], &GpuScan::default());
        assert_eq!(HealthFile::open(&state, "b").1.ailments, [ailment("GPU-a")]);
    }
}
