//! The machine: NVML, GPUs, device nodes, driver files, NICs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::report::Finding;
use crate::say::amount;
use baton_agent::answer::DeviceTable;
use baton_agent::devices::{self, NodeDevice};
use baton_agent::nic_reads::NicReads;
use baton_agent::options::MigStrategy;
use baton_agent::scan::{self, MachineScan};
use baton_agent::{AgentOptions, daemon};
use baton_hardware::gpu::MigMode;
use baton_hardware::nic::PortState;
use baton_hardware::nvml::candidates;
use baton_hardware::{GpuInfo, GpuProvider, Machine, NicInfo, NvmlProvider, RecordedProvider};
use baton_runtime::clock;

/// The machine as the daemon would know it.
pub struct MachineView {
    /// The devices that the daemon would list.
    pub devices: Vec<NodeDevice>,
    /// The table behind its answers and CDI files.
    pub table: DeviceTable,
    /// The machine could be read at all.
    pub complete: bool,
    boot_id: Option<String>,
}

impl MachineView {
    /// The kernel's boot id.
    pub fn boot_id(&self) -> &str {
        self.boot_id.as_deref().unwrap_or_default()
    }
}

/// Reads everything. Blocks as long as NVML does.
pub fn look(options: &AgentOptions) -> (MachineView, Vec<Finding>) {
    let roots = daemon::roots(options);
    // Without a receiver: a single read needs no events.
    let nvml = Arc::new(NvmlProvider::new(daemon::nvml_options(options), Arc::new(|_| {})));
    let recording = options.paths.gpu_recording.as_ref().map(RecordedProvider::new);
    let provider: &dyn GpuProvider = match &recording {
        Some(recording) => recording,
        None => &*nvml,
    };
    let scan = scan::scan(&roots, provider, &NicReads::new(options.periods.nic_deadline));
    let mut findings = vec![library(options, &scan, &nvml)];
    let mut seen = MachineView {
        devices: Vec::new(),
        table: DeviceTable::default(),
        complete: scan.nvml.is_none(),
        boot_id: None,
    };
    let machine = match &scan.machine {
        Ok(machine) => machine,
        Err(error) => {
            let advice = "the daemon does not start like this; mount the directory, or correct the flag";
            findings.push(Finding::fail("device-nodes", error.to_string(), advice));
            seen.complete = false;
            return (seen, findings);
        }
    };
    seen.boot_id.clone_from(&machine.boot_id);
    seen.devices = devices::list(machine, options, &BTreeMap::new(), clock::wall());
    let driver = scan::on_host(scan.driver.clone(), &options.paths);
    seen.table = DeviceTable::build(&seen.devices, roots.dev_tree().ok().as_ref(), driver);
    findings.extend(machine.gpus.gpus.iter().map(|found| gpu(options, found, provider)));
    findings.extend(machine.gpus.faults.iter().map(|fault| {
        let what = fault.uuid.clone().or_else(|| fault.index.map(|index| format!("number {index}")));
        let what = what.unwrap_or_else(|| "of unknown name".to_owned());
        let advice = "the GPU takes no pods until it answers; nvidia-smi and the kernel log (XID) say more";
        Finding::fail("gpu", format!("{what}: {}", fault.fault), advice)
    }));
    findings.extend(nodes(options, &seen));
    findings.extend(driver_files(options, &scan, machine));
    findings.extend(nics(options, machine));
    (seen, findings)
}

fn library(options: &AgentOptions, scan: &MachineScan, nvml: &NvmlProvider) -> Finding {
    if let Some(error) = &scan.nvml {
        let (what, advice) = match error.to_string().rsplit_once('\n') {
            Some((what, advice)) => (what.to_owned(), advice.to_owned()),
            None => (error.to_string(), "no GPU is offered on this node until NVML can be used".to_owned()),
        };
        // Without a library most nodes have no GPU.
        return Finding::bad(options.fail_on_init_error || !error.is_absence(), "nvml", what, advice);
    }
    if let Some(recording) = &options.paths.gpu_recording {
        let advice = "a recording is for reproducing a report; leave --gpu-recording out on a node that serves pods";
        return Finding::warn("nvml", format!("read from the recording {}", recording.display()), advice);
    }
    let Ok(machine) = &scan.machine else {
        return Finding::warn("nvml", "not reached: the machine's files cannot be read", "see the line device-nodes");
    };
    let gpus = &machine.gpus;
    let place = nvml.library().or_else(|| candidates(&daemon::nvml_options(options)).into_iter().next());
    let place = place.map(|path| path.display().to_string()).unwrap_or_default();
    let found = format!(
        "{place}: NVML {}, driver {}, {}",
        gpus.nvml_version,
        gpus.driver_version,
        amount(gpus.gpus.len() + gpus.faults.len(), "GPU")
    );
    Finding::ok("nvml", found)
}

fn gpu(options: &AgentOptions, gpu: &GpuInfo, provider: &dyn GpuProvider) -> Finding {
    let split = gpu.mig.mode == MigMode::Enabled;
    let parts = if split { format!(", split into {} MIG devices", gpu.mig.instances.len()) } else { String::new() };
    let found = format!("{} minor {} at {}: {}{parts}", gpu.uuid, gpu.minor, gpu.bdf, gpu.model);
    let wrong = match provider.probe(&gpu.uuid) {
        Err(error) => Some(error.to_string()),
        Ok(probe) => match probe.outcome {
            Err(fault) => Some(fault.to_string()),
            Ok(recovery) => recovery.wanted(),
        },
    };
    if let Some(wrong) = wrong {
        let advice = "it takes no new pods until it is healthy again; pods that run on it are left alone";
        return Finding::fail("gpu", format!("{found}: {wrong}"), advice);
    }
    if split && options.mig_strategy == MigStrategy::None {
        let advice = "work on a whole split GPU fails: use --mig-strategy=mixed or single, or switch MIG off (nvidia-smi -mig 0)";
        return Finding::fail("gpu", format!("{found}, and --mig-strategy=none offers it whole"), advice);
    }
    Finding::ok("gpu", found)
}

fn nodes(options: &AgentOptions, seen: &MachineView) -> Option<Finding> {
    let gpus: Vec<_> = seen.table.of(&baton_contract::DeviceType::Gpu).collect();
    if gpus.is_empty() {
        return None;
    }
    let without: Vec<&str> = gpus.iter().filter(|(_, p)| p.nodes.is_empty()).map(|(id, _)| id.as_str()).collect();
    let root = options.paths.dev_root.display();
    let has = |name: &&str| seen.table.control.iter().any(|path| path.ends_with(name));
    // CUDA needs both; the others serve profilers and displays.
    let control: Vec<&str> = ["nvidiactl", "nvidia-uvm"].into_iter().filter(|name| !has(name)).collect();
    if without.is_empty() && control.is_empty() {
        return Some(Finding::ok(
            "device-nodes",
            format!("{} and the control nodes below {root}", amount(gpus.len(), "GPU")),
        ));
    }
    let mut missing: Vec<String> = without.iter().map(|id| format!("the node of {id}")).collect();
    missing.extend(control.iter().map(|name| (*name).to_owned()));
    let found = format!("missing below {root}: {}", missing.join(", "));
    let advice =
        "run nvidia-modprobe -u -c=0 or nvidia-smi once on the host, or nvidia-persistenced at boot; check --dev-root";
    Some(Finding::bad(options.names_gpu_nodes(), "device-nodes", found, advice))
}

fn driver_files(options: &AgentOptions, scan: &MachineScan, machine: &Machine) -> Option<Finding> {
    if machine.gpus.gpus.is_empty() || options.foreign_cdi() || !options.by_cdi() {
        return None;
    }
    let root = options.paths.driver_root.display();
    let cuda = scan.driver.iter().any(|file| file.container.to_string_lossy().contains("/libcuda.so."));
    if cuda {
        let files: BTreeSet<_> = scan.driver.iter().map(|file| file.container.file_name()).collect();
        return Some(Finding::ok("driver-files", format!("{} files below {root} for containers", files.len())));
    }
    let advice = "containers get no libcuda.so.1: say where the driver's libraries are (--driver-root, /run/nvidia/driver with the driver container)";
    Some(Finding::fail("driver-files", format!("no libcuda below {root}"), advice))
}

fn nics(options: &AgentOptions, machine: &Machine) -> Vec<Finding> {
    if !options.rdma {
        return vec![Finding::ok("rdma", "not offered (--rdma=false)")];
    }
    let mut findings: Vec<Finding> = machine.nics.iter().map(|found| nic(options, found)).collect();
    findings.extend(machine.nic_faults.iter().map(|fault| {
        let advice = "the NIC is not offered; the other ones are";
        Finding::fail("rdma", format!("{}: {}", fault.ibdev, fault.reason), advice)
    }));
    if findings.is_empty() {
        let place = options.paths.sysfs_root.join("class/infiniband");
        findings.push(Finding::ok("rdma", format!("no RDMA device in {}", place.display())));
    }
    findings
}

fn nic(options: &AgentOptions, nic: &NicInfo) -> Finding {
    let ports: Vec<String> = nic.ports.iter().map(|port| format!("port {} {:?}", port.number, port.state)).collect();
    let found = format!("{} at {}: {}", nic.ibdev, nic.bdf, ports.join(", "));
    let missing = nic.chars.missing();
    if !missing.is_empty() {
        let advice = "load ib_uverbs and rdma_ucm on this node (modprobe), and check --dev-root";
        return Finding::fail("rdma", format!("{found}; device nodes missing: {}", missing.join(", ")), advice);
    }
    if options.rdma_port_policy.is_up(nic.ports.iter().map(|port| port.state == PortState::Active)) {
        return Finding::ok("rdma", found);
    }
    let advice = format!(
        "it takes no pods under --rdma-port-policy={}: look at cable, switch port and subnet manager",
        options.rdma_port_policy
    );
    Finding::warn("rdma", found, advice)
}
