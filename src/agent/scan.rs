//! Looks at the hardware, off the runtime's thread: every function here may block.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::nic_reads::{NicReads, PortReads};
use super::options::AgentPaths;
use baton_hardware::driver::{self, DriverFile, DriverMismatch};
use baton_hardware::nic::Port;
use baton_hardware::provider::NullProvider;
use baton_hardware::{Bdf, GpuProvider, Machine, NvmlError, Probe, Roots, ScanError, Tree, machine, rdma};

/// What a look came to.
#[derive(Debug)]
pub enum ScanResult {
    /// The whole machine.
    Machine(Box<MachineScan>),
    /// GPUs that were probed.
    Probes(Vec<(String, Result<Probe, NvmlError>)>),
    /// The ports of the NICs.
    Ports(PortReads),
}

/// The whole machine.
#[derive(Debug)]
pub struct MachineScan {
    /// What is in it; without GPUs when NVML failed.
    pub machine: Result<Machine, ScanError>,
    /// Why NVML failed as a whole.
    pub nvml: Option<NvmlError>,
    /// The driver's files for containers.
    pub driver: Vec<DriverFile>,
    /// They are of another driver than the kernel has.
    pub mismatch: Option<DriverMismatch>,
}

/// Looks at everything. NVML's failure does not hide the NICs, nor does a NIC that hangs hide anything.
pub fn scan(roots: &Roots, provider: &dyn GpuProvider, reads: &NicReads) -> MachineScan {
    let nics = |sysfs: &Tree, dev: &Tree| rdma::scan_by(sysfs, Some(dev), |entries, read| reads.entries(entries, read));
    let (machine, nvml) = match machine::scan_by(roots, provider, nics) {
        Err(ScanError::Gpus(error)) => (machine::scan_by(roots, &NullProvider, nics), Some(error)),
        scanned => (scanned, None),
    };
    let driver = Tree::open(&roots.driver).map(|root| driver::files(&root)).unwrap_or_default();
    let mismatch = roots.sysfs_tree().ok().and_then(|sysfs| driver::mismatch(&driver, &sysfs));
    MachineScan { machine, nvml, driver, mismatch }
}

/// The driver's files as the host names them, where a container shows the driver root under another name: the container runtime
/// mounts by the host's names.
pub fn on_host(files: Vec<DriverFile>, paths: &AgentPaths) -> Vec<DriverFile> {
    let Some(host_root) = &paths.host_driver_root else { return files };
    let seen = paths.driver_root.canonicalize().unwrap_or_else(|_| paths.driver_root.clone());
    let named = |mut file: DriverFile| {
        if let Ok(below) = file.host.strip_prefix(&seen).or_else(|_| file.host.strip_prefix(&paths.driver_root)) {
            file.host = host_root.join(below);
        }
        file
    };
    files.into_iter().map(named).collect()
}

/// Asks each GPU how it is.
pub fn probe(provider: &Arc<dyn GpuProvider>, uuids: Vec<String>) -> ScanResult {
    ScanResult::Probes(
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

/// Looks at the GPUs that are wanted. One at a time is under way: they wait for each other in NVML anyway, and a thread each
/// is more than the daemon may have.
#[derive(Debug, Default)]
pub struct ScanQueue {
    /// A look is under way.
    pub under_way: bool,
    /// Everything is to be looked at.
    pub scan: bool,
    /// GPUs that are to be probed.
    pub probe: BTreeSet<String>,
    /// The last look was a scan: waiting probes come next, so that neither keeps the other out.
    scanned_last: bool,
}

impl ScanQueue {
    /// The look to take now, if there is one and none is under way.
    pub fn take(&mut self) -> Option<ScanRequest> {
        if self.under_way {
            return None;
        }
        let probe_first = !self.probe.is_empty() && (self.scanned_last || !self.scan);
        let look = if probe_first {
            ScanRequest::Probe(std::mem::take(&mut self.probe).into_iter().collect())
        } else if std::mem::take(&mut self.scan) {
            ScanRequest::Machine
        } else {
            return None;
        };
        (self.under_way, self.scanned_last) = (true, !probe_first);
        Some(look)
    }
}

/// A look at the GPUs.
#[derive(Debug, PartialEq, Eq)]
pub enum ScanRequest {
    /// The whole machine.
    Machine,
    /// These GPUs.
    Probe(Vec<String>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_root_mounted_elsewhere_is_named_as_on_the_host() {
        let file =
            || DriverFile { host: "/host/usr/lib64/libcuda.so.1".into(), container: "/usr/lib64/libcuda.so.1".into() };
        let mut paths = AgentPaths { driver_root: "/host".into(), ..AgentPaths::default() };
        assert_eq!(on_host(vec![file()], &paths)[0].host.to_str(), Some("/host/usr/lib64/libcuda.so.1"));
        for (root, host) in
            [("/", "/usr/lib64/libcuda.so.1"), ("/run/nvidia/driver", "/run/nvidia/driver/usr/lib64/libcuda.so.1")]
        {
            paths.host_driver_root = Some(root.into());
            let named = on_host(vec![file()], &paths).remove(0);
            assert_eq!((named.host.to_str(), named.container.to_str()), (Some(host), Some("/usr/lib64/libcuda.so.1")));
        }
    }

    #[test]
    fn one_look_at_a_time_is_taken_and_neither_kind_keeps_the_other_out() {
        let mut looks = ScanQueue::default();
        let want = |looks: &mut ScanQueue| {
            looks.scan = true;
            looks.probe.extend(["GPU-b".to_owned(), "GPU-a".to_owned(), "GPU-a".to_owned()]);
        };
        assert_eq!(looks.take(), None);
        want(&mut looks);
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(looks.take().unwrap());
            assert_eq!(looks.take(), None, "one is under way");
            want(&mut looks);
            looks.under_way = false;
        }
        let probe = || ScanRequest::Probe(vec!["GPU-a".to_owned(), "GPU-b".to_owned()]);
        assert_eq!(
            taken,
            [ScanRequest::Machine, probe(), ScanRequest::Machine, probe(), ScanRequest::Machine, probe()]
        );
    }
}
