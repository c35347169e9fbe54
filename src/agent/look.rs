//! Looks at the hardware, off the runtime's thread: every function here may block.

use std::sync::Arc;

use super::nic_reads::{NicReads, Trouble};
use super::options::Places;
use crate::hardware::driver::{self, DriverFile};
use crate::hardware::nic::Port;
use crate::hardware::provider::NullProvider;
use crate::hardware::{Bdf, GpuProvider, Machine, NvmlError, Probe, Roots, ScanError, Tree, machine, rdma};

/// What a look came to.
#[derive(Debug)]
pub enum Finding {
    /// The whole machine.
    Scan(Box<Scan>),
    /// GPUs that were probed.
    Probes(Vec<(String, Result<Probe, NvmlError>)>),
}

/// NICs whose ports were read. Those that are not in view any more are left out: a scan judges that.
pub type Ports = Vec<(Bdf, Result<Vec<Port>, Trouble>)>;

/// The whole machine.
#[derive(Debug)]
pub struct Scan {
    /// What is in it; without GPUs when NVML failed.
    pub machine: Result<Machine, ScanError>,
    /// Why NVML failed as a whole.
    pub nvml: Option<NvmlError>,
    /// The driver's files for containers.
    pub driver: Vec<DriverFile>,
}

/// Looks at everything. NVML's failure does not hide the NICs, nor does a NIC that hangs hide anything.
pub fn scan(roots: &Roots, provider: &dyn GpuProvider, reads: &NicReads) -> Scan {
    let nics = |sysfs: &Tree, dev: &Tree| rdma::scan_by(sysfs, Some(dev), |entries, read| reads.entries(entries, read));
    let (machine, nvml) = match machine::scan_by(roots, provider, nics) {
        Err(ScanError::Gpus(error)) => (machine::scan_by(roots, &NullProvider, nics), Some(error)),
        scanned => (scanned, None),
    };
    let driver = Tree::open(&roots.driver).map(|root| driver::files(&root)).unwrap_or_default();
    Scan { machine, nvml, driver }
}

/// The driver's files as the host names them, where a container shows the driver root under another name: the container runtime
/// mounts by the host's names.
pub fn on_host(files: Vec<DriverFile>, places: &Places) -> Vec<DriverFile> {
    let Some(host_root) = &places.host_driver_root else { return files };
    let seen = places.driver_root.canonicalize().unwrap_or_else(|_| places.driver_root.clone());
    let named = |mut file: DriverFile| {
        if let Ok(below) = file.host.strip_prefix(&seen).or_else(|_| file.host.strip_prefix(&places.driver_root)) {
            file.host = host_root.join(below);
        }
        file
    };
    files.into_iter().map(named).collect()
}

/// Asks each GPU how it is.
pub fn probe(provider: &Arc<dyn GpuProvider>, uuids: Vec<String>) -> Finding {
    Finding::Probes(
        uuids.into_iter().map(|uuid| (provider.probe(&uuid), uuid)).map(|(probe, uuid)| (uuid, probe)).collect(),
    )
}

/// Reads the ports of a NIC; `None` when it is not in view any more.
pub fn ports(roots: &Roots, bdf: Bdf) -> Option<Result<Vec<Port>, String>> {
    match roots.sysfs_tree().map_err(|error| error.to_string()).map(|sysfs| rdma::ports(&sysfs, bdf)) {
        Ok(Err(error)) if error.is_absent() => None,
        Ok(ports) => Some(ports.map_err(|error| error.to_string())),
        Err(error) => Some(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_root_mounted_elsewhere_is_named_as_on_the_host() {
        let file =
            || DriverFile { host: "/host/usr/lib64/libcuda.so.1".into(), container: "/usr/lib64/libcuda.so.1".into() };
        let mut places = Places { driver_root: "/host".into(), ..Places::default() };
        assert_eq!(on_host(vec![file()], &places)[0].host.to_str(), Some("/host/usr/lib64/libcuda.so.1"));
        for (root, host) in
            [("/", "/usr/lib64/libcuda.so.1"), ("/run/nvidia/driver", "/run/nvidia/driver/usr/lib64/libcuda.so.1")]
        {
            places.host_driver_root = Some(root.into());
            let named = on_host(vec![file()], &places).remove(0);
            assert_eq!((named.host.to_str(), named.container.to_str()), (Some(host), Some("/usr/lib64/libcuda.so.1")));
        }
    }
}
