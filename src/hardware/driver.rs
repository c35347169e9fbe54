//! The driver's user-space files below the driver root: where NVML may be, and what a container needs mounted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::tree::Tree;

/// Directories below a driver root that hold the driver's libraries, in the order searched.
pub const LIBRARY_DIRECTORIES: [&str; 9] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/local/nvidia/lib64",
];

const BINARY_DIRECTORIES: [&str; 3] = ["usr/bin", "bin", "usr/local/nvidia/bin"];

/// Where a container has the libraries: the loaders of Fedora, RHEL and SUSE search the first by themselves, those of Debian and
/// Ubuntu the second. The image of a pod is often of another distribution than its node, and without a hook there is no `ldconfig`
/// that would add a directory to the loader's cache.
const IN_CONTAINERS: [&str; 2] = [
    "/usr/lib64",
    if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" },
];

/// Libraries that compute containers load; matched by the part before `.so`.
const LIBRARIES: [&str; 15] = [
    "libcuda",
    "libcudadebugger",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-encode",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-opencl",
    "libnvidia-opticalflow",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
];

const BINARIES: [&str; 5] =
    ["nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// One file to mount read-only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverFile {
    /// The file on the host, without links.
    pub host: PathBuf,
    /// Where a container expects it, `/usr/lib64/libcuda.so.1`: links become mounts of their own, so no hook is needed.
    pub container: PathBuf,
}

/// The driver's libraries and programs below `root`, by container path. A name found in several directories counts once,
/// in the first. Links are followed as in the root's own system: absolute ones, as Debian's alternatives are, stay below it.
pub fn files(root: &Tree) -> Vec<DriverFile> {
    let libraries = named(root, &LIBRARY_DIRECTORIES, is_library).into_iter().flat_map(|(name, host)| {
        IN_CONTAINERS.map(|directory| DriverFile { host: host.clone(), container: Path::new(directory).join(&name) })
    });
    let binaries = named(root, &BINARY_DIRECTORIES, is_binary)
        .into_iter()
        .map(|(name, host)| DriverFile { host, container: Path::new("/usr/bin").join(name) });
    let mut files: Vec<DriverFile> = libraries.chain(binaries).collect();
    files.sort_by(|a, b| a.container.cmp(&b.container));
    files
}

/// Files with a wanted name: where each is, without links. An empty one counts only where there is no other.
fn named(root: &Tree, directories: &[&str], wanted: fn(&str) -> bool) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for directory in directories {
        for name in root.names(directory).unwrap_or_default().into_iter().filter(|name| wanted(name)) {
            let Ok(resolved) = root.resolve_as_root(Path::new(directory).join(&name)) else { continue };
            let host = root.root().join(resolved);
            let better = |first: &PathBuf| holds_something(&host) && !holds_something(first);
            if host.is_file() && found.get(&name).is_none_or(better) {
                found.insert(name, host);
            }
        }
    }
    found
}

/// A file that is not empty. Container runtimes make empty ones, or directories, where a mount has no place or no source.
pub(crate) fn holds_something(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0)
}

/// `libcuda.so.1` and `libcuda.so.570.133.20`, not the link for linking (`libcuda.so`).
fn is_library(name: &str) -> bool {
    name.split_once(".so.").is_some_and(|(stem, version)| LIBRARIES.contains(&stem) && !version.is_empty())
}

fn is_binary(name: &str) -> bool {
    BINARIES.contains(&name)
}
