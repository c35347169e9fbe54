//! The spec files on disk: written when the machine changed, read back after a restart, compared with the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::rules;
use super::spec::{Device, DeviceNode, Edits, Mount, Spec, VERSION};
use crate::answer::RDMA_KIND;
use crate::answer::{DeviceNodes, DeviceTable};
use crate::directory_watch::is_removed;
use crate::options::{AgentOptions, OWN_GPU_KIND};
use crate::shares::{self, SHARE_KIND};
use baton_contract::{DeviceId, DeviceType, ShareIsolation};
use baton_hardware::driver::{DriverFile, NAMED_DIRECTORY};

/// Largest spec file of ours that is read back.
const MAX_FILE: u64 = 8 << 20;

/// A spec file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("CDI spec {} cannot be written: {source}; check --cdi-root", path.display())]
pub struct CdiError {
    path: PathBuf,
    source: io::Error,
}

impl CdiError {
    /// Only a new start of this process can write there.
    pub fn is_of_removed_directory(&self) -> bool {
        self.path.parent().is_some_and(is_removed)
    }
}

/// The spec files of this node.
#[derive(Debug)]
pub struct CdiFiles {
    root: PathBuf,
    kinds: Vec<(&'static str, DeviceType)>,
    /// What a GPU share needs beside its GPU.
    share: Option<Device>,
    /// What stands in the files.
    written: BTreeMap<&'static str, Spec>,
}

impl CdiFiles {
    /// The files that `options` ask for. What an earlier daemon wrote is read: names in use may be known from there only.
    pub fn open(options: &AgentOptions) -> Self {
        let (root, kinds) = (options.paths.cdi_root.clone(), kinds(options));
        let written = kinds.iter().filter_map(|(kind, _)| Some((*kind, read(&path(&root, kind)).ok()?))).collect();
        Self { root, kinds, share: shares::cdi_device(options), written }
    }

    /// The names in the file of NICs.
    pub fn nics(&self) -> impl Iterator<Item = &str> {
        self.written.get(RDMA_KIND).into_iter().flat_map(|spec| &spec.devices).map(|device| device.name.as_str())
    }

    /// The driver's files that the file of GPUs names.
    pub fn driver(&self) -> Vec<DriverFile> {
        let mounts = self.written.get(OWN_GPU_KIND).into_iter().flat_map(|spec| &spec.container_edits.mounts);
        let file = |of: &Mount| DriverFile { host: of.host_path.clone(), container: of.container_path.clone() };
        mounts.map(file).collect()
    }

    /// Writes the files of `table` where they differ from what is there. Names of devices in use stay, even when the device
    /// has left: a container that restarts asks for the same name again. Where another device has its node now, the name goes: better
    /// that container does not start. Returns which files could not be written.
    pub fn write(&mut self, table: &DeviceTable, in_use: &BTreeSet<DeviceId>) -> BTreeMap<DeviceType, CdiError> {
        let mut failed = BTreeMap::new();
        for (kind, of) in &self.kinds {
            let path = path(&self.root, kind);
            let spec = spec(kind, of, table, self.share.as_ref(), self.written.get(kind), in_use);
            // Looked at again each time: /run is emptied by a reboot, and by people.
            let done = if spec.devices.is_empty() {
                // A runtime calls a file without devices broken, and complains about it at every container.
                remove(&path).map(|()| drop(self.written.remove(kind)))
            } else if self.written.get(kind) == Some(&spec) && path.exists() {
                Ok(())
            } else {
                replace(&path, &spec).map(|()| {
                    tracing::info!(path = %path.display(), devices = spec.devices.len(), "CDI spec written");
                    self.written.insert(kind, spec);
                })
            };
            if let Err(source) = done {
                failed.insert(of.clone(), CdiError { path, source });
            }
        }
        failed
    }
}

/// The kinds that the daemon writes files of.
fn kinds(options: &AgentOptions) -> Vec<(&'static str, DeviceType)> {
    if !options.by_cdi() {
        return Vec::new();
    }
    let gpus = (!options.foreign_cdi()).then_some((OWN_GPU_KIND, DeviceType::Gpu));
    let shares = (options.share_isolation == ShareIsolation::HamiCore).then_some((SHARE_KIND, DeviceType::Gpu));
    gpus.into_iter().chain([(RDMA_KIND, DeviceType::Rdma)]).chain(shares).collect()
}

/// How a spec file compares with the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpecState {
    /// Names every device of the machine, and a runtime takes it.
    Current(usize),
    /// There is none; so many devices are in the machine.
    Absent(usize),
    /// There is none, because none of these devices has a device node.
    NoNodes(Vec<DeviceId>),
    /// It cannot be read, or a runtime would refuse it.
    Unusable(String),
    /// It is of another state of the machine: what differs.
    Outdated(String),
}

/// The spec files that `options` ask for, compared with `table`. Only reads.
pub fn states(options: &AgentOptions, table: &DeviceTable) -> Vec<(PathBuf, SpecState)> {
    let share = shares::cdi_device(options);
    let of = |(kind, of): &(&'static str, DeviceType)| {
        let path = path(&options.paths.cdi_root, kind);
        let wanted = spec(kind, of, table, share.as_ref(), None, &BTreeSet::new());
        let states = match read(&path) {
            Ok(there) => compare(&there, &wanted),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match wanted.devices.len() {
                0 if table.of(of).next().is_some() => {
                    SpecState::NoNodes(table.of(of).map(|(id, _)| id.clone()).collect())
                }
                devices => SpecState::Absent(devices),
            },
            Err(error) => SpecState::Unusable(error.to_string()),
        };
        (path, states)
    };
    kinds(options).iter().map(of).collect()
}

/// Names beyond the wanted ones are devices that left while pods hold them.
fn compare(there: &Spec, wanted: &Spec) -> SpecState {
    if let Some(problem) = rules::problems(there).into_iter().next() {
        return SpecState::Unusable(problem);
    }
    let differs = |new: &&Device| there.devices.iter().all(|old| old != *new);
    let names: Vec<&str> = wanted.devices.iter().filter(differs).map(|device| device.name.as_str()).collect();
    let mounts = |spec: &Spec| spec.container_edits.mounts.iter().map(|m| m.host_path.clone()).collect::<BTreeSet<_>>();
    let (old, new) = (mounts(there), mounts(wanted));
    if !names.is_empty() {
        return SpecState::Outdated(format!("these devices are missing in it or differ: {}", names.join(", ")));
    }
    if there.container_edits != wanted.container_edits {
        let gone = old.difference(&new).next().map(|path| format!(", such as {}", path.display())).unwrap_or_default();
        return SpecState::Outdated(format!("it mounts other driver files than there are{gone}"));
    }
    SpecState::Current(there.devices.len())
}

/// The spec of one kind.
fn spec(
    kind: &str,
    of: &DeviceType,
    table: &DeviceTable,
    share: Option<&Device>,
    before: Option<&Spec>,
    in_use: &BTreeSet<DeviceId>,
) -> Spec {
    if kind == SHARE_KIND {
        let (devices, container_edits) = (share.into_iter().cloned().collect(), Edits::default());
        return Spec { cdi_version: VERSION.to_owned(), kind: kind.to_owned(), container_edits, devices };
    }
    let with_nodes = table.of(of).filter(|(_, parts)| !parts.nodes.is_empty());
    let mut devices: Vec<Device> = with_nodes.map(|(id, parts)| device(id, parts, table)).collect();
    let owned = table.owned();
    let kept = before.into_iter().flat_map(|spec| &spec.devices).filter(|old| {
        let used = DeviceId::parse(&old.name).is_ok_and(|id| in_use.contains(&id));
        let is_free = old.container_edits.device_nodes.iter().all(|node| !owned.contains(&node.path));
        used && is_free && devices.iter().all(|new| new.name != old.name)
    });
    let kept: Vec<Device> = kept.cloned().collect();
    devices.extend(kept);
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    let container_edits = if *of == DeviceType::Gpu { common(table) } else { Edits::default() };
    Spec { cdi_version: VERSION.to_owned(), kind: kind.to_owned(), container_edits, devices }
}

fn device(id: &DeviceId, parts: &DeviceNodes, table: &DeviceTable) -> Device {
    let device_nodes = parts.nodes.iter().map(|path| node(path, table)).collect();
    Device { name: id.to_string(), container_edits: Edits { device_nodes, ..Edits::default() } }
}

fn node(path: &Path, table: &DeviceTable) -> DeviceNode {
    let host_path = Some(table.on_host(path)).filter(|host| host != path);
    DeviceNode { path: path.to_owned(), host_path, permissions: "rw".to_owned() }
}

/// What every GPU container gets. `void` keeps an NVIDIA runtime hook from adding all GPUs on top. Triton asks the loader's cache, which
/// nothing renews here, for the directory of `libcuda`, unless the variable names one.
fn common(table: &DeviceTable) -> Edits {
    let triton = table.has_driver().then(|| format!("TRITON_LIBCUDA_PATH={NAMED_DIRECTORY}"));
    Edits {
        env: ["NVIDIA_VISIBLE_DEVICES=void".to_owned()].into_iter().chain(triton).collect(),
        device_nodes: table.control.iter().map(|path| node(path, table)).collect(),
        mounts: table
            .driver
            .iter()
            .map(|file| Mount {
                host_path: file.host.clone(),
                container_path: file.container.clone(),
                options: ["ro", "nosuid", "nodev", "bind"].map(str::to_owned).into(),
            })
            .collect(),
    }
}

/// `koordinator.sh/gpu` is written to `koordinator.sh-gpu.json`.
fn path(root: &Path, kind: &str) -> PathBuf {
    root.join(format!("{}.json", kind.replace('/', "-")))
}

fn read(path: &Path) -> io::Result<Spec> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() || meta.len() > MAX_FILE {
        return Err(io::Error::other(format!("it is no file of at most {MAX_FILE} bytes")));
    }
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => tracing::info!(path = %path.display(), "CDI spec removed: the machine has no such device"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Runtimes watch the directory and read at any moment: they see the old file or the new one, never a part.
fn replace(path: &Path, spec: &Spec) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    // Runtimes read every *.json and *.yaml; this name is neither.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    let written = serde_json::to_vec_pretty(spec).map_err(io::Error::from).and_then(|text| file.write_all(&text));
    let done = written.and_then(|()| std::fs::rename(&temporary, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Cannot be written below `root`, with which answer to whether the directory was removed.
    fn unwritten(root: &Path) -> bool {
        let (container_edits, devices) = (Edits::default(), Vec::new());
        let spec = Spec { cdi_version: VERSION.to_owned(), kind: "a/b".to_owned(), container_edits, devices };
        let path = path(root, "a/b");
        let source = replace(&path, &spec).unwrap_err();
        CdiError { path, source }.is_of_removed_directory()
    }

    #[test]
    fn a_directory_removed_under_its_mount_differs_from_one_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (file, removed) = (dir.path().join("file"), dir.path().join("removed"));
        std::fs::write(&file, "").unwrap();
        assert!(!unwritten(&file), "a file in the place of the directory may go again");
        std::fs::create_dir(&removed).unwrap();
        // As a mount in a container does, this names the directory and not its path.
        let held = File::open(&removed).unwrap();
        let root = PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()));
        std::fs::remove_dir(&removed).unwrap();
        std::fs::create_dir(&removed).unwrap();
        assert!(unwritten(&root));
    }
}
