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
    let mut found: BTreeMap<String, DriverFile> = BTreeMap::new();
    let libraries = LIBRARY_DIRECTORIES.iter().map(|dir| (*dir, is_library as fn(&str) -> bool));
    let binaries = BINARY_DIRECTORIES.iter().map(|dir| (*dir, is_binary as fn(&str) -> bool));
    for (directory, wanted) in libraries.chain(binaries) {
        for name in root.names(directory).unwrap_or_default().into_iter().filter(|name| wanted(name)) {
            let Ok(resolved) = root.resolve_as_root(Path::new(directory).join(&name)) else { continue };
            let host = root.root().join(resolved);
            if host.is_file() {
                let container = Path::new("/").join(in_container(directory)).join(&name);
                found.entry(name).or_insert(DriverFile { host, container });
            }
        }
    }
    let mut files: Vec<DriverFile> = found.into_values().collect();
    files.sort_by(|a, b| a.container.cmp(&b.container));
    files
}

/// The directory in a container for what lies in `directory` on the host: loaders do not search below `nvidia/current`, and
/// there is no hook that would make them.
fn in_container(directory: &str) -> &str {
    directory.strip_suffix("/nvidia/current").unwrap_or(directory)
}

/// `libcuda.so.1` and `libcuda.so.570.133.20`, not the link for linking (`libcuda.so`).
fn is_library(name: &str) -> bool {
    name.split_once(".so.").is_some_and(|(stem, version)| LIBRARIES.contains(&stem) && !version.is_empty())
}

fn is_binary(name: &str) -> bool {
    BINARIES.contains(&name)
}
