//! The pods' part of the machine's cgroup tree, as files: who wants to know whether a pod's processes have gone looks here.
//!
//! ```text
//! V2         <root>/kubepods/{burstable/,besteffort/,}pod<uid>/cgroup.events
//! V2Systemd  <root>/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice/cgroup.events
//! V1         <root>/pids/kubepods/{burstable/,besteffort/,}pod<uid>/pids.current
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::locked;

/// Version and driver of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CgroupLayout {
    /// Version 2, cgroupfs driver.
    #[default]
    V2,
    /// Version 2, systemd driver.
    V2Systemd,
    /// Version 1, cgroupfs driver: the `pids` hierarchy.
    V1,
}

impl CgroupLayout {
    /// A pod's directory below the root. `qos` is empty, `burstable` or `besteffort`.
    fn pod(self, qos: &str, uid: &str) -> PathBuf {
        match self {
            Self::V2 => Path::new("kubepods").join(qos).join(format!("pod{uid}")),
            Self::V1 => Path::new("pids/kubepods").join(qos).join(format!("pod{uid}")),
            Self::V2Systemd => {
                let uid = uid.replace('-', "_");
                let top = Path::new("kubepods.slice");
                if qos.is_empty() {
                    top.join(format!("kubepods-pod{uid}.slice"))
                } else {
                    top.join(format!("kubepods-{qos}.slice")).join(format!("kubepods-{qos}-pod{uid}.slice"))
                }
            }
        }
    }

    /// The file that tells whether anything is inside, and what it says.
    fn file(self, processes: u32) -> (&'static str, String) {
        match self {
            Self::V1 => ("pids.current", format!("{processes}\n")),
            Self::V2 | Self::V2Systemd => ("cgroup.events", format!("populated {}\nfrozen 0\n", processes.min(1))),
        }
    }
}

/// The tree of one machine. Without a root it is nowhere, and every change succeeds.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    root: Option<PathBuf>,
    layout: CgroupLayout,
    made: Mutex<MadeCgroup>,
}

#[derive(Debug, Default)]
struct MadeCgroup {
    /// Directory by pod uid.
    pods: BTreeMap<String, PathBuf>,
    /// Names for what is not in its place yet, or any more.
    count: u64,
}

impl Cgroups {
    pub fn new(root: Option<PathBuf>, layout: CgroupLayout) -> Self {
        Self { root, layout, made: Mutex::default() }
    }

    /// Makes a pod's directory, with nothing inside. `qos_class` is the word of the pod's status.
    pub fn make(&self, uid: &str, qos_class: &str) {
        let Some(root) = &self.root else { return };
        let mut made = locked(&self.made);
        if made.pods.contains_key(uid) {
            return;
        }
        let qos = match qos_class {
            "Guaranteed" => "",
            "BestEffort" => "besteffort",
            _ => "burstable",
        };
        let dir = root.join(self.layout.pod(qos, uid));
        said("make", &dir, self.put(root, made.aside(root), &dir));
        made.pods.insert(uid.to_owned(), dir);
    }

    /// A real directory has its files from its first moment on: it is made aside, then put in its place.
    fn put(&self, root: &Path, aside: PathBuf, dir: &Path) -> io::Result<()> {
        std::fs::create_dir_all(dir.parent().unwrap_or(root))?;
        std::fs::create_dir(&aside)?;
        let (file, content) = self.layout.file(0);
        std::fs::write(aside.join(file), content)?;
        std::fs::rename(aside, dir)
    }

    /// Processes are in a pod's directory.
    pub fn occupy(&self, uid: &str) {
        self.set_processes(uid, 2);
    }

    /// None is any more.
    pub fn vacate(&self, uid: &str) {
        self.set_processes(uid, 0);
    }

    fn set_processes(&self, uid: &str, processes: u32) {
        let made = locked(&self.made);
        let Some(dir) = made.pods.get(uid) else { return };
        let (file, content) = self.layout.file(processes);
        let temporary = dir.join(".writing");
        let written = std::fs::write(&temporary, content).and_then(|()| std::fs::rename(&temporary, dir.join(file)));
        said("write", dir, written);
    }

    /// Removes a pod's directory.
    pub fn remove(&self, uid: &str) {
        let Some(root) = &self.root else { return };
        let mut made = locked(&self.made);
        let Some(dir) = made.pods.remove(uid) else { return };
        let aside = made.aside(root);
        // As with rmdir: it is there whole, or not at all.
        said("remove", &dir, std::fs::rename(&dir, &aside).and_then(|()| std::fs::remove_dir_all(&aside)));
    }

    /// The tree of a machine that was just switched on is empty.
    pub fn clear(&self) {
        for uid in self.uids() {
            self.remove(&uid);
        }
    }

    /// Pods with a directory.
    pub fn uids(&self) -> Vec<String> {
        locked(&self.made).pods.keys().cloned().collect()
    }

    /// A pod's directory.
    pub fn dir(&self, uid: &str) -> Option<PathBuf> {
        locked(&self.made).pods.get(uid).cloned()
    }
}

impl MadeCgroup {
    fn aside(&mut self, root: &Path) -> PathBuf {
        self.count += 1;
        root.join(format!(".aside-{}", self.count))
    }
}

/// A test's folder may be removed before its kubelet: then there is nothing to write.
fn said(doing: &str, dir: &Path, done: io::Result<()>) {
    if let Err(error) = done {
        tracing::warn!(%error, dir = %dir.display(), "cannot {doing} a pod's cgroup");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layout_has_its_names_and_files() {
        let uid = "0ab1-2c";
        let cases = [
            (CgroupLayout::V2, "Guaranteed", "kubepods/pod0ab1-2c", "cgroup.events", "populated 1\nfrozen 0\n"),
            (
                CgroupLayout::V2,
                "Burstable",
                "kubepods/burstable/pod0ab1-2c",
                "cgroup.events",
                "populated 1\nfrozen 0\n",
            ),
            (CgroupLayout::V1, "BestEffort", "pids/kubepods/besteffort/pod0ab1-2c", "pids.current", "2\n"),
            (
                CgroupLayout::V2Systemd,
                "Burstable",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0ab1_2c.slice",
                "cgroup.events",
                "populated 1\nfrozen 0\n",
            ),
            (
                CgroupLayout::V2Systemd,
                "Guaranteed",
                "kubepods.slice/kubepods-pod0ab1_2c.slice",
                "cgroup.events",
                "populated 1\nfrozen 0\n",
            ),
        ];
        for (layout, qos_class, dir, file, content) in cases {
            let root = tempfile::tempdir().unwrap();
            let cgroups = Cgroups::new(Some(root.path().to_owned()), layout);
            cgroups.make(uid, qos_class);
            let file = root.path().join(dir).join(file);
            let empty = std::fs::read_to_string(&file).unwrap();
            assert!(empty.starts_with("populated 0") || empty == "0\n", "{empty}");
            cgroups.occupy(uid);
            assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
            assert_eq!(cgroups.dir(uid), Some(root.path().join(dir)));
            cgroups.remove(uid);
            assert!(!root.path().join(dir).exists());
            assert_eq!(cgroups.uids(), [""; 0]);
        }
    }
}
