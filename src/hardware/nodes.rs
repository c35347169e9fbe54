//! Device nodes of GPUs, as paths a container sees (`/dev/…`), found below an injected dev root.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::gpu::MigInstance;
use super::tree::{Tree, TreeError};

/// Most bytes of `mig-minors` read: the driver lists every possible instance of 32 GPUs, about 100 KiB.
const MAX_MIG_MINORS: u64 = 1024 * 1024;
/// Most bytes of `stat` read: the kernel has a line for each processor, and one with a number for each interrupt.
const MAX_STAT: u64 = 1024 * 1024;
/// Major number of `/dev/nvidia<minor>`: the kernel's list of devices reserves it for the driver.
const NVIDIA: u32 = 195;

/// `/dev/nvidia<minor>`. The error says why it is of no use.
pub fn gpu(dev: &Tree, minor: u32) -> Result<PathBuf, String> {
    let node = node(dev, &format!("nvidia{minor}"))?;
    let shown = node.display();
    let found = dev.resolve(format!("nvidia{minor}")).map_err(|error| format!("{shown}: {error}"))?;
    let meta = std::fs::metadata(dev.root().join(found)).map_err(|error| format!("{shown}: {error}"))?;
    // The driver goes by the number and not by the name. What stands in for a node on a machine without the driver has none of its own.
    let (major, other) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    if meta.file_type().is_char_device() && major == NVIDIA && other != minor {
        return Err(format!("{shown} has the minor number {other} and opens another device"));
    }
    Ok(node)
}

/// Nodes that every GPU container needs, in a fixed order; absent ones are skipped.
pub fn control(dev: &Tree) -> Vec<PathBuf> {
    ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"]
        .iter()
        .filter(|name| dev.exists(name))
        .map(|name| Path::new("/dev").join(name))
        .collect()
}

/// What a container needs of a MIG instance: the node of its GPU, then the capability nodes of the GPU instance and of the
/// compute instance. An error when one of them is of no use: with a part of them CUDA finds no device.
pub fn mig(dev: &Tree, gpu_minor: u32, instance: &MigInstance) -> Result<Vec<PathBuf>, String> {
    let cap = |cap: Option<u32>| {
        let number = cap.ok_or("the driver names no capability for it in /proc/driver/nvidia-caps/mig-minors")?;
        node(dev, &format!("nvidia-caps/nvidia-cap{number}"))
    };
    [gpu(dev, gpu_minor), cap(instance.gpu_instance_cap), cap(instance.compute_instance_cap)].into_iter().collect()
}

fn node(dev: &Tree, name: &str) -> Result<PathBuf, String> {
    let node = Path::new("/dev").join(name);
    if dev.exists(name) { Ok(node) } else { Err(format!("{} is missing", node.display())) }
}

/// What a capability opens: (GPU minor, GPU instance, compute instance or none).
pub type MigKey = (u32, u32, Option<u32>);
/// Minor numbers of `/dev/nvidia-caps`.
pub type MigMinors = BTreeMap<MigKey, u32>;

/// Reads the entries of GPUs that `wanted` accepts from `driver/nvidia-caps/mig-minors` below the proc root. Empty
/// without the file: a driver without MIG.
pub fn mig_minors(proc: &Tree, wanted: impl Fn(u32) -> bool) -> Result<MigMinors, TreeError> {
    let file = match proc.file("driver/nvidia-caps/mig-minors") {
        Ok(file) => file,
        Err(absent) if absent.is_absent() => return Ok(MigMinors::new()),
        Err(error) => return Err(error),
    };
    let mut minors = MigMinors::new();
    for line in BufReader::new(file.take(MAX_MIG_MINORS)).lines() {
        let line = line.map_err(|source| TreeError::Io("driver/nvidia-caps/mig-minors".into(), source))?;
        if let Some((key, minor)) = mig_minor(&line).filter(|(key, _)| wanted(key.0)) {
            minors.insert(key, minor);
        }
    }
    Ok(minors)
}

/// One line: `gpu0/gi1/access 12` or `gpu0/gi1/ci0/access 13`. Other lines (`config 1`, `monitor 2`) are not instances.
pub fn mig_minor(line: &str) -> Option<(MigKey, u32)> {
    let (path, minor) = line.trim().split_once(' ')?;
    let mut parts = path.strip_suffix("/access")?.split('/');
    let mut number = |prefix: &str| -> Option<Option<u32>> {
        match parts.next() {
            None => Some(None),
            Some(part) => part.strip_prefix(prefix)?.parse().ok().map(Some),
        }
    };
    let (gpu, instance, compute) = (number("gpu")??, number("gi")??, number("ci")?);
    if parts.next().is_some() {
        return None;
    }
    Some(((gpu, instance, compute), minor.trim().parse().ok()?))
}

/// When the machine has started, in Unix seconds by its own clock, below the proc root.
pub fn booted(proc: &Tree) -> Option<i64> {
    let mut lines = BufReader::new(proc.file("stat").ok()?.take(MAX_STAT)).lines().map_while(Result::ok);
    lines.find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// The kernel's boot id, below the proc root.
pub fn boot_id(proc: &Tree) -> Option<String> {
    proc.text("sys/kernel/random/boot_id").ok().filter(|text| !text.is_empty() && text.len() <= 64)
}
