//! Finds and starts the NVML library by its options, and says in full what was tried when there is none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError as Wrapped;

use crate::driver::{LIBRARY_DIRECTORIES, holds_something};
use crate::provider::{LoadAttempt, NvmlError};
use crate::tree::Tree;

/// The name that the loader searches for.
const SONAME: &str = "libnvidia-ml.so.1";

/// Where NVML is and how long it may take.
#[derive(Clone, Debug)]
pub struct NvmlOptions {
    /// The one library to load (`--nvml-library`); without it the loader's path and the driver root are searched.
    pub library: Option<PathBuf>,
    /// Root of the driver's files.
    pub driver_root: PathBuf,
    /// Sysfs, to notice GPUs that came or went since NVML started; `None` to trust NVML's list.
    pub sysfs: Option<PathBuf>,
    /// Longest time for one question about one GPU.
    pub deadline: Duration,
    /// Longest time for starting NVML: without persistence mode it wakes every GPU.
    pub init_deadline: Duration,
    /// Longest single wait for events; bounds how long a restart of NVML takes.
    pub event_wait: Duration,
    /// Monotonic time, to notice a library that does not wait for events; `None` to trust it.
    pub clock: Option<fn() -> Duration>,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            library: None,
            driver_root: "/".into(),
            sysfs: Some("/sys".into()),
            deadline: Duration::from_secs(2),
            init_deadline: Duration::from_secs(60),
            event_wait: Duration::from_secs(2),
            clock: None,
        }
    }
}

/// Paths to try, in order: the explicit one alone, else the loader's own search, then the driver root's directories.
pub fn candidates(options: &NvmlOptions) -> Vec<PathBuf> {
    if let Some(explicit) = &options.library {
        return vec![explicit.clone()];
    }
    let root = Tree::open(&options.driver_root).ok();
    let below = LIBRARY_DIRECTORIES.iter().map(|directory| {
        // The loader would follow an absolute link out of the driver root, into this process's own.
        let place = root.as_ref().and_then(|root| root.resolve_as_root(Path::new(directory).join(SONAME)).ok());
        options.driver_root.join(place.unwrap_or_else(|| Path::new(directory).join(SONAME)))
    });
    std::iter::once(PathBuf::from(SONAME)).chain(below).collect()
}

/// Loads the first library that the loader accepts and starts it. A library that loads and does not start ends the
/// search: another copy would meet the same driver.
pub(super) fn open(options: &NvmlOptions) -> Result<(Nvml, PathBuf), NvmlError> {
    let mut tried = Vec::new();
    for path in candidates(options) {
        match Nvml::builder().lib_path(path.as_os_str()).init() {
            Ok(nvml) => return Ok((nvml, path)),
            Err(Wrapped::LibloadingError(error)) => {
                let error = loader_words(&error, &path);
                // The loader searches for a bare name; it names the file that is missing, which may be another one.
                let there = if path.components().count() > 1 {
                    holds_something(&path)
                } else {
                    !error.starts_with("cannot open")
                };
                tried.push(LoadAttempt { path, error, there });
            }
            // A library without nvmlInit_v2 is some other library.
            Err(Wrapped::FailedToLoadSymbol(error)) => tried.push(LoadAttempt { path, error, there: true }),
            Err(error) => return Err(refusal(&error, &path)),
        }
    }
    Err(NvmlError::NoLibrary { tried, bound: 0 })
}

/// What a loaded library's refusal means for the operator.
pub(super) fn refusal(error: &Wrapped, path: &Path) -> NvmlError {
    let path = path.to_owned();
    match error {
        Wrapped::LibRmVersionMismatch => NvmlError::VersionMismatch(path),
        Wrapped::NoPermission => NvmlError::NoPermission(path),
        Wrapped::DriverNotLoaded => NvmlError::DriverNotLoaded(path),
        other => NvmlError::Failed { path, what: other.to_string() },
    }
}

/// The loader's own message; it repeats the path, which the list already names.
fn loader_words(error: &dyn std::error::Error, path: &Path) -> String {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_owned()
}
