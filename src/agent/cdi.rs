//! CDI spec files: what the container runtime does for each of our names. Device nodes, read-only mounts and one variable;
//! no hooks, so nothing of ours runs when a container starts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::answer::rdma::KIND as RDMA_KIND;
use super::answer::{Parts, Table};
use super::choice::DeviceListStrategy;
use super::options::{OWN_GPU_KIND, Options};
use crate::contract::{DeviceId, DeviceType};

/// The oldest version of the format that has all we use: every runtime that knows CDI reads it.
const VERSION: &str = "0.6.0";
/// Largest spec file of ours that is read back.
const MAX_FILE: u64 = 8 << 20;

/// A CDI spec, as far as we write one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the format.
    pub cdi_version: String,
    /// `vendor/class`.
    pub kind: String,
    /// What every device of the file brings along.
    #[serde(default, skip_serializing_if = "Edits::is_empty")]
    pub container_edits: Edits,
    /// The devices.
    pub devices: Vec<Device>,
}

/// One name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// The part after `=`.
    pub name: String,
    /// What it brings.
    pub container_edits: Edits,
}

/// Changes to a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Bind mounts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path in the container.
    pub path: PathBuf,
    /// Path on the host, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_path: Option<PathBuf>,
    /// Cgroup permissions.
    pub permissions: String,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// On the host.
    pub host_path: PathBuf,
    /// In the container.
    pub container_path: PathBuf,
    /// Mount options.
    pub options: Vec<String>,
}

impl Edits {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A spec file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("CDI spec {} cannot be written: {source}; check --cdi-root", path.display())]
pub struct CdiError {
    path: PathBuf,
    source: std::io::Error,
}

/// The spec files of this node.
#[derive(Debug)]
pub struct CdiFiles {
    root: PathBuf,
    kinds: Vec<(&'static str, DeviceType)>,
    /// What stands in the files.
    written: BTreeMap<&'static str, Spec>,
}

impl CdiFiles {
    /// The files that `options` ask for. What an earlier daemon wrote is read: names in use may be known from there only.
    pub fn open(options: &Options) -> Self {
        let by_cdi =
            |s: &DeviceListStrategy| matches!(s, DeviceListStrategy::CdiCri | DeviceListStrategy::CdiAnnotations);
        let mut kinds = Vec::new();
        if options.device_list_strategy.iter().any(by_cdi) {
            if !options.foreign_cdi() {
                kinds.push((OWN_GPU_KIND, DeviceType::Gpu));
            }
            kinds.push((RDMA_KIND, DeviceType::Rdma));
        }
        let root = options.places.cdi_root.clone();
        let written = kinds.iter().filter_map(|(kind, _)| Some((*kind, read(&path(&root, kind))?))).collect();
        Self { root, kinds, written }
    }

    /// Writes the files of `table` where they differ from what is there. Names of devices in use stay, even when the device
    /// has left: a container that restarts asks for the same name again.
    pub fn write(&mut self, table: &Table, in_use: &BTreeSet<DeviceId>) -> Result<(), CdiError> {
        for (kind, of) in &self.kinds {
            let path = path(&self.root, kind);
            let spec = spec(kind, of, table, self.written.get(kind), in_use);
            // Looked at again each time: /run is emptied by a reboot, and by people.
            if self.written.get(kind) == Some(&spec) && path.exists() {
                continue;
            }
            replace(&path, &spec).map_err(|source| CdiError { path: path.clone(), source })?;
            tracing::info!(path = %path.display(), devices = spec.devices.len(), "CDI spec written");
            self.written.insert(kind, spec);
        }
        Ok(())
    }
}

/// The spec of one kind. Without any device the file has none: a valid file needs at least an empty list.
fn spec(kind: &str, of: &DeviceType, table: &Table, before: Option<&Spec>, in_use: &BTreeSet<DeviceId>) -> Spec {
    let with_nodes = table.of(of).filter(|(_, parts)| !parts.nodes.is_empty());
    let mut devices: Vec<Device> = with_nodes.map(|(id, parts)| device(id, parts, table)).collect();
    let kept = before.into_iter().flat_map(|spec| &spec.devices).filter(|old| {
        let used = DeviceId::parse(&old.name).is_ok_and(|id| in_use.contains(&id));
        used && devices.iter().all(|new| new.name != old.name)
    });
    let kept: Vec<Device> = kept.cloned().collect();
    devices.extend(kept);
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    let container_edits = if *of == DeviceType::Gpu { common(table) } else { Edits::default() };
    Spec { cdi_version: VERSION.to_owned(), kind: kind.to_owned(), container_edits, devices }
}

fn device(id: &DeviceId, parts: &Parts, table: &Table) -> Device {
    let device_nodes = parts.nodes.iter().map(|path| node(path, table)).collect();
    Device { name: id.to_string(), container_edits: Edits { device_nodes, ..Edits::default() } }
}

fn node(path: &Path, table: &Table) -> DeviceNode {
    let host_path = Some(table.on_host(path)).filter(|host| host != path);
    DeviceNode { path: path.to_owned(), host_path, permissions: "rw".to_owned() }
}

/// What every GPU container gets. `void` keeps an NVIDIA runtime hook from adding all GPUs on top.
fn common(table: &Table) -> Edits {
    Edits {
        env: vec!["NVIDIA_VISIBLE_DEVICES=void".to_owned()],
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

fn read(path: &Path) -> Option<Spec> {
    let meta = std::fs::metadata(path).ok().filter(|meta| meta.is_file() && meta.len() <= MAX_FILE)?;
    let _ = meta;
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Runtimes watch the directory and read at any moment: they see the old file or the new one, never a part.
fn replace(path: &Path, spec: &Spec) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(directory)?;
    // Runtimes read every *.json and *.yaml; this name is neither.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    let written = serde_json::to_vec_pretty(spec).map_err(std::io::Error::from).and_then(|text| file.write_all(&text));
    let done = written.and_then(|()| std::fs::rename(&temporary, path));
    if done.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    done
}
