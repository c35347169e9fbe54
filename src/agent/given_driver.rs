//! What containers get of the driver. Its packages may be updated while pods run: then the libraries are the next driver's, the kernel has
//! the one of before until the node boots, and CUDA starts with no container that gets the new libraries.

use super::cdi::CdiFiles;
use super::options::AgentOptions;
use super::scan;
use baton_hardware::driver::{DriverFile, DriverMismatch};

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenDriver {
    /// Its files, as the host names them.
    pub files: Vec<DriverFile>,
    /// What is wrong where the libraries that are there are of another driver than the kernel has.
    pub differs: Option<Box<str>>,
}

impl GivenDriver {
    /// By the files that a scan `found`. Libraries of another driver than the kernel has do not take the place of those that the CDI spec
    /// names: a container that starts again gets the ones that it had, as far as they are still there.
    pub fn of(
        found: Vec<DriverFile>,
        mismatch: Option<&DriverMismatch>,
        cdi: &CdiFiles,
        options: &AgentOptions,
    ) -> Self {
        let found = scan::on_host(found, &options.paths);
        let Some(DriverMismatch { libraries, loaded }) = mismatch.filter(|_| options.gives_driver()) else {
            return Self { files: found, differs: None };
        };
        let root = options.paths.driver_root.display();
        let mut differs = format!("libcuda below {root} is of driver {libraries}, and the kernel has {loaded} loaded");
        let named = cdi.driver();
        let libcuda = named.iter().find(|file| file.is_libcuda()).map(|file| options.paths.of_host(&file.host));
        if libcuda.as_ref().is_some_and(|file| !file.exists()) {
            differs += "; the CDI spec names files that are gone, so that no container with a GPU starts again";
        }
        // Where no spec names a driver there is nothing to keep.
        let files = if libcuda.is_some() { named } else { found };
        Self { files, differs: Some(differs.into()) }
    }
}
