//! The driver's user-space files below the driver root: where NVML may be, and what a container needs mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::tree::Tree;

/// Directories below a driver root that hold the driver's libraries, in the order searched.
pub const LIBRARY_DIRECTORIES: [&str; 14] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/local/nvidia/lib64",
    "usr/lib",
    "usr/local/lib",
    // Bottlerocket's.
    "usr/lib/nvidia/tesla",
    "x86_64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
    "aarch64-bottlerocket-linux-gnu/sys-root/usr/lib/nvidia/tesla",
];

const BINARY_DIRECTORIES: [&str; 3] = ["usr/bin", "bin", "usr/local/nvidia/bin"];

/// Where a container has the libraries: the loaders of Fedora, RHEL and SUSE search the first by themselves, those of Debian and
/// Ubuntu the second. The image of a pod is often of another distribution than its node, and without a hook there is no `ldconfig`
/// that would add a directory to the loader's cache.
const IN_CONTAINERS: [&str; 3] = [
    "/usr/lib64",
    if cfg!(target_arch = "aarch64") { "/usr/lib/aarch64-linux-gnu" } else { "/usr/lib/x86_64-linux-gnu" },
    NAMED_DIRECTORY,
];

/// Images of CUDA have this directory in `LD_LIBRARY_PATH`, which the loader searches before its cache: a cache that was made with the
/// image may name a `libcuda` of the image's own. It is the same in every image, so a variable can name it.
pub const NAMED_DIRECTORY: &str = "/usr/local/nvidia/lib64";

/// Libraries of a driver whose file names do not end in its version, by the part before `.so`; those of a driver without versions.
const UNVERSIONED: [&str; 4] = ["libcuda", "libnvidia-ml", "libnvidia-nvvm70", "libnvidia-ptxjitcompiler"];

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

/// Libraries of one driver beside another one in the kernel: CUDA does not start with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverMismatch {
    /// Version of the libraries.
    pub libraries: String,
    /// Version of the driver in the kernel.
    pub loaded: String,
}

/// The driver's libraries and programs below `root`, by container path. A name found in several directories counts once,
/// in the first. Links are followed as in the root's own system: absolute ones, as Debian's alternatives are, stay below it.
pub fn files(root: &Tree) -> Vec<DriverFile> {
    let libraries = libraries(root).into_iter().flat_map(|(name, host)| {
        IN_CONTAINERS.map(|directory| DriverFile { host: host.clone(), container: Path::new(directory).join(&name) })
    });
    let binaries = named(root, &BINARY_DIRECTORIES, is_binary)
        .into_iter()
        .map(|(name, host)| DriverFile { host, container: Path::new("/usr/bin").join(name) });
    let mut files: Vec<DriverFile> = libraries.chain(binaries).collect();
    files.sort_by(|a, b| a.container.cmp(&b.container));
    files
}

/// Every library that has a file of the driver's version, by all names that loaders ask for: a driver newer than this program has
/// libraries that it does not know. Those for graphics come along, since OptiX needs them and a mount copies nothing; the files that
/// announce them to Vulkan and EGL are the image's.
fn libraries(root: &Tree) -> BTreeMap<String, PathBuf> {
    let ending = version(root).map(|version| format!(".so.{version}"));
    let names = LIBRARY_DIRECTORIES.iter().flat_map(|directory| root.names(directory).unwrap_or_default());
    let versioned = names.filter_map(|name| Some(name.strip_suffix(ending.as_deref()?)?.to_owned()));
    let stems: BTreeSet<String> = versioned.chain(UNVERSIONED.map(str::to_owned)).collect();
    let is_library = |name: &str| name.split_once(".so.").is_some_and(|(stem, _)| stems.contains(stem));
    let mut found = named(root, &LIBRARY_DIRECTORIES, is_library);
    // The one library that programs also load by the name for linking.
    if let Some(cuda) = found.get("libcuda.so.1").cloned() {
        found.insert("libcuda.so".to_owned(), cuda);
    }
    found
}

/// Whether `files` are of another driver than the kernel has: the driver's packages were updated, and it is not loaded yet. `None` also
/// where one of the two versions is not known for certain.
pub fn mismatch(files: &[DriverFile], sysfs: &Tree) -> Option<DriverMismatch> {
    let libcuda = files.iter().find(|file| file.is_libcuda())?;
    let libraries = version_of(&libcuda.host)?.to_owned();
    // A container of NVIDIA's runtime has a copy of `/proc/driver/nvidia` from its own start, and what NVML says is kept while it fails.
    let loaded = sysfs.text("module/nvidia/version").ok()?;
    let is_plain = |version: &str| version.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let are_known = is_drivers(&loaded) && is_plain(&loaded) && is_plain(&libraries);
    (are_known && libraries != loaded).then_some(DriverMismatch { libraries, loaded })
}

impl DriverFile {
    /// It is what CUDA programs load.
    pub fn is_libcuda(&self) -> bool {
        self.container.ends_with("libcuda.so.1")
    }
}

/// The driver's version: `570.133.20` of the file that `libcuda.so.1` is a link to.
fn version(root: &Tree) -> Option<String> {
    LIBRARY_DIRECTORIES.iter().find_map(|directory| {
        let file = root.resolve_as_root(Path::new(directory).join("libcuda.so.1")).ok()?;
        version_of(&file).map(str::to_owned)
    })
}

/// The driver's version by the name of its `libcuda`, where it has one.
fn version_of(libcuda: &Path) -> Option<&str> {
    libcuda.file_name()?.to_str()?.strip_prefix("libcuda.so.").filter(|version| is_drivers(version))
}

/// `1` and `1.1` are versions of other libraries too.
fn is_drivers(version: &str) -> bool {
    version.split_once('.').is_some_and(|(major, _)| major.len() > 2)
}

/// Files with a wanted name: where each is, without links. An empty one counts only where there is no other.
fn named(root: &Tree, directories: &[&str], wanted: impl Fn(&str) -> bool) -> BTreeMap<String, PathBuf> {
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

fn is_binary(name: &str) -> bool {
    BINARIES.contains(&name)
}
