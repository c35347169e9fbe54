//! Looks at the hardware, off the runtime's thread: every function here may block.

use std::sync::Arc;

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
    /// NICs whose ports were read. Those that are not in view any more are left out: a scan judges that.
    Ports(Vec<(Bdf, Result<Vec<Port>, String>)>),
}

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

/// Looks at everything. NVML's failure does not hide the NICs.
pub fn scan(roots: &Roots, provider: &dyn GpuProvider) -> Scan {
    let (machine, nvml) = match machine::scan(roots, provider) {
        Err(ScanError::Gpus(error)) => (machine::scan(roots, &NullProvider), Some(error)),
        scanned => (scanned, None),
    };
    let driver = Tree::open(&roots.driver).map(|root| driver::files(&root)).unwrap_or_default();
    Scan { machine, nvml, driver }
}

/// Asks each GPU how it is.
pub fn probe(provider: &Arc<dyn GpuProvider>, uuids: Vec<String>) -> Finding {
    Finding::Probes(
        uuids.into_iter().map(|uuid| (provider.probe(&uuid), uuid)).map(|(probe, uuid)| (uuid, probe)).collect(),
    )
}

/// Reads the ports of each NIC.
pub fn ports(roots: &Roots, nics: &[Bdf]) -> Finding {
    let read = |sysfs: &Tree, bdf: Bdf| match rdma::ports(sysfs, bdf) {
        Ok(ports) => Some((bdf, Ok(ports))),
        Err(error) if error.is_absent() => None,
        Err(error) => Some((bdf, Err(error.to_string()))),
    };
    match roots.sysfs_tree() {
        Ok(sysfs) => Finding::Ports(nics.iter().filter_map(|bdf| read(&sysfs, *bdf)).collect()),
        Err(error) => Finding::Ports(nics.iter().map(|bdf| (*bdf, Err(error.to_string()))).collect()),
    }
}
