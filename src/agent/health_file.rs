//! What the driver told once and an agent after this one has to know: which GPUs a critical error keeps out of service.
//!
//! One file, `health.json`, in the state directory, replaced by a rename; it counts for the boot that it was written in. Not
//! synced: after a power loss the boot is another one. Whatever is wrong with it makes it none: the GPUs start healthy then,
//! as they do without it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::decide::health::Ailment;

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
}

/// The file, and what is in it.
#[derive(Debug)]
pub struct HealthFile {
    dir: PathBuf,
    boot_id: String,
    written: Vec<Ailment>,
}

impl HealthFile {
    /// In the state directory `dir`, for the boot `boot_id`; and what the agent before this one left there.
    pub fn open(dir: &Path, boot_id: &str) -> (Self, Vec<Ailment>) {
        let found = load(&dir.join(FILE)).unwrap_or_else(|why| {
            tracing::warn!(file = %dir.join(FILE).display(), "what was known of sick GPUs is lost: {why}");
            None
        });
        let found = found.filter(|content| content.boot_id == boot_id).map(|content| content.gpus).unwrap_or_default();
        (Self { dir: dir.to_owned(), boot_id: boot_id.to_owned(), written: found.clone() }, found)
    }

    /// Writes it where it says something else.
    pub fn keep(&mut self, gpus: Vec<Ailment>) {
        if gpus == self.written {
            return;
        }
        if let Err(error) = self.write(&gpus) {
            tracing::warn!(
                file = %self.dir.join(FILE).display(),
                "an agent after this one will not know which GPUs are sick: {error}"
            );
        }
        self.written = gpus;
    }

    fn write(&self, gpus: &[Ailment]) -> io::Result<()> {
        let content = Content { version: VERSION, boot_id: self.boot_id.clone(), gpus: gpus.to_vec() };
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

    #[test]
    fn what_was_kept_is_found_in_the_same_boot_and_in_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (mut file, found) = HealthFile::open(dir.path(), "boot-1");
        assert!(found.is_empty());
        file.keep(vec![ailment("GPU-a")]);
        assert_eq!(HealthFile::open(dir.path(), "boot-1").1, [ailment("GPU-a")]);
        assert!(HealthFile::open(dir.path(), "boot-2").1.is_empty());
        file.keep(Vec::new());
        assert!(HealthFile::open(dir.path(), "boot-1").1.is_empty());
    }

    #[test]
    fn a_damaged_file_is_none_and_is_written_anew() {
        let dir = tempfile::tempdir().unwrap();
        for text in
            ["", "{", "[]", r#"{"version":9,"bootId":"b","gpus":[]}"#, r#"{"version":1,"bootId":"b","gpus":[{}]}"#]
        {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            let (mut file, found) = HealthFile::open(dir.path(), "b");
            assert!(found.is_empty(), "{text}");
            file.keep(vec![ailment("GPU-a")]);
            assert_eq!(HealthFile::open(dir.path(), "b").1, [ailment("GPU-a")]);
        }
    }
}
