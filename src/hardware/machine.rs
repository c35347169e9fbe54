//! One snapshot of the whole machine: GPUs, NICs, and what of them could not be read.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::gpu::{GpuFault, GpuScan};
use super::nic::{NicFault, NicInfo};
use super::nodes::{self, MigMinors};
use super::pci;
use super::provider::{GpuProvider, NvmlError};
use super::rdma;
use super::routes;
use super::tree::{Tree, TreeError};

/// Where this machine's files are. Tests and containers give other roots; nothing outside them is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// Sysfs, `/sys`.
    pub sysfs: PathBuf,
    /// Procfs, `/proc`.
    pub proc: PathBuf,
    /// Device nodes, `/dev`.
    pub dev: PathBuf,
    /// Root of the driver's user-space files, `/` or `/run/nvidia/driver`.
    pub driver: PathBuf,
    /// The host's network in procfs; `None` where the host's procfs is below `proc`.
    pub net: Option<PathBuf>,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), proc: "/proc".into(), dev: "/dev".into(), driver: "/".into(), net: None }
    }
}

/// What is in this machine. Order is stable: GPUs and NICs by PCI address, so two snapshots of an unchanged machine are
/// equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// GPUs with their places, and the GPUs that did not answer.
    pub gpus: GpuScan,
    /// RDMA NICs.
    pub nics: Vec<NicInfo>,
    /// RDMA entries that could not be read.
    pub nic_faults: Vec<NicFault>,
    /// Why it is not known over which NIC the host's default route goes.
    #[serde(default)]
    pub routes_unknown: Option<String>,
    /// The kernel's boot id; changes with every boot.
    pub boot_id: Option<String>,
}

/// A whole machine could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The GPU provider as a whole failed.
    #[error(transparent)]
    Gpus(#[from] NvmlError),
    /// A root cannot be opened.
    #[error("cannot open the root given by {flag}: {source}")]
    Root {
        /// The flag that names it.
        flag: &'static str,
        /// What failed.
        source: TreeError,
    },
}

impl Roots {
    /// Opens the sysfs root.
    pub fn sysfs_tree(&self) -> Result<Tree, ScanError> {
        Tree::open(&self.sysfs).map_err(|source| ScanError::Root { flag: "--sysfs-root", source })
    }

    /// Opens the proc root.
    pub fn proc_tree(&self) -> Result<Tree, ScanError> {
        Tree::open(&self.proc).map_err(|source| ScanError::Root { flag: "--proc-root", source })
    }

    /// Opens the host's network: that of the first process.
    pub fn net_tree(&self) -> Result<Tree, TreeError> {
        match &self.net {
            Some(net) => Tree::open(net),
            None => Tree::open(&self.proc.join("1/net"))
                .or_else(|error| Tree::open(&self.proc.join("net")).map_err(|_| error)),
        }
    }

    /// Opens the dev root.
    pub fn dev_tree(&self) -> Result<Tree, ScanError> {
        Tree::open(&self.dev).map_err(|source| ScanError::Root { flag: "--dev-root", source })
    }
}

/// Looks at the whole machine. Blocks as long as the provider does; one bad device never hides the others.
pub fn scan(roots: &Roots, provider: &dyn GpuProvider) -> Result<Machine, ScanError> {
    scan_by(roots, provider, |sysfs, dev| rdma::scan(sysfs, Some(dev)))
}

/// [`scan`] with another way to look at the NICs.
pub fn scan_by(
    roots: &Roots,
    provider: &dyn GpuProvider,
    nics: impl FnOnce(&Tree, &Tree) -> (Vec<NicInfo>, Vec<NicFault>),
) -> Result<Machine, ScanError> {
    let (sysfs, proc, dev) = (roots.sysfs_tree()?, roots.proc_tree()?, roots.dev_tree()?);
    let mut gpus = provider.scan()?;
    let minors: Vec<u32> = gpus.gpus.iter().filter(|g| !g.mig.instances.is_empty()).filter_map(|g| g.minor).collect();
    let caps = if minors.is_empty() { MigMinors::new() } else { caps(&proc, &minors) };
    for gpu in &mut gpus.gpus {
        gpu.place = gpu.bdf.and_then(|bdf| pci::place(&sysfs, bdf).ok()).unwrap_or_default();
        let Some(minor) = gpu.minor else { continue };
        for instance in &mut gpu.mig.instances {
            let (gi, ci) = (instance.gpu_instance, instance.compute_instance);
            instance.gpu_instance_cap = caps.get(&(minor, gi, None)).copied();
            instance.compute_instance_cap = caps.get(&(minor, gi, Some(ci))).copied();
        }
    }
    gpus.gpus.sort_by_key(|gpu| gpu.bdf);
    let (mut nics, nic_faults) = nics(&sysfs, &dev);
    let routes_unknown = routes::mark(&sysfs, roots.net_tree(), &mut nics).err().map(|error| error.to_string());
    Ok(Machine { gpus, nics, nic_faults, routes_unknown, boot_id: nodes::boot_id(&proc) })
}

/// An unreadable table costs the instances their capability nodes, not the scan its other answers.
fn caps(proc: &Tree, minors: &[u32]) -> MigMinors {
    nodes::mig_minors(proc, |minor| minors.contains(&minor)).unwrap_or_default()
}

impl Machine {
    /// Puts GPUs of an `earlier` snapshot that are known and did not answer this time back among the GPUs, as they were
    /// then, and returns their faults. They are unhealthy, not gone: what runs on them must stay accounted. A GPU that is
    /// neither listed nor at fault any more has left the machine.
    pub fn keep_silent(&mut self, earlier: &Machine) -> Vec<GpuFault> {
        self.gpus.name_faults(&earlier.gpus);
        let mut kept = Vec::new();
        for fault in &self.gpus.faults {
            let known = fault.uuid.as_deref().and_then(|uuid| earlier.gpus.gpu(uuid));
            if let Some(gpu) = known.filter(|gpu| self.gpus.gpu(&gpu.uuid).is_none()) {
                self.gpus.gpus.push(gpu.clone());
                kept.push(fault.clone());
            }
        }
        for pair in &earlier.gpus.pairs {
            let present = self.gpus.gpu(&pair.a).is_some() && self.gpus.gpu(&pair.b).is_some();
            if present && self.gpus.level(&pair.a, &pair.b).is_none() {
                self.gpus.pairs.push(pair.clone());
            }
        }
        self.gpus.gpus.sort_by_key(|gpu| gpu.bdf);
        kept
    }

    /// Puts NICs among the others that are known by their PCI functions alone, with what an `earlier` snapshot knew of them beside: names
    /// stay, while ports and device nodes are those of now.
    pub fn add_unseen(&mut self, earlier: &Machine, unseen: impl IntoIterator<Item = NicInfo>) {
        for now in unseen {
            if self.nics.iter().all(|seen| seen.bdf != now.bdf) {
                let known = earlier.nics.iter().find(|known| known.bdf == now.bdf);
                self.nics.push(match known {
                    Some(known) => {
                        NicInfo { ports: now.ports, chars: now.chars, function: now.function, ..known.clone() }
                    }
                    None => now,
                });
            }
        }
        self.nics.sort_by_key(|nic| nic.bdf);
    }
}
