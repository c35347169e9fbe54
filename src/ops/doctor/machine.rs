//! The machine: NVML, GPUs, device nodes, driver files, NICs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::report::Finding;
use crate::say::amount;
use baton_agent::answer::DeviceTable;
use baton_agent::cdi::CdiFiles;
use baton_agent::devices::{self, DeviceFindings};
use baton_agent::given_driver::GivenDriver;
use baton_agent::handoff::ledger_file::{self, LoadedLedger};
use baton_agent::health::HealthBook;
use baton_agent::health_file::HealthFile;
use baton_agent::nic_reads::NicReads;
use baton_agent::node_device::{DeviceBody, NodeDevice};
use baton_agent::scan::{self, MachineScan};
use baton_agent::which_nics::WhichNics;
use baton_agent::{AgentOptions, daemon};
use baton_contract::{DeviceType, HealthReason};
use baton_decide::handoff::functions_in_use;
use baton_decide::health::{ConditionEffect, DeviceCondition};
use baton_hardware::gpu::MigMode;
use baton_hardware::nvml::candidates;
use baton_hardware::{Bdf, GpuFault, GpuProvider, Machine, NicInfo, NvmlError, NvmlProvider, RecordedProvider, Roots};
use baton_runtime::clock;
use baton_runtime::options::OptionError;

/// The machine as the daemon would know it.
#[derive(Default)]
pub struct MachineView {
    /// The devices that the daemon would list.
    pub devices: Vec<NodeDevice>,
    /// The table behind its answers and CDI files.
    pub table: DeviceTable,
    /// The machine could be read at all.
    pub complete: bool,
    /// The kernel's; empty where it is not known.
    pub boot_id: String,
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
    let scan = scan::scan(&roots, provider, &NicReads::new(options.timings.nic_deadline));
    let mut findings = vec![library(options, &scan, &nvml)];
    let mut seen = MachineView { complete: scan.nvml.is_none(), ..MachineView::default() };
    let machine = match scan.machine {
        Ok(machine) => machine,
        Err(error) => {
            let advice = "the daemon does not start like this; mount the directory, or correct the flag";
            findings.push(Finding::fail("device-nodes", error.to_string(), advice));
            seen.complete = false;
            return (seen, findings);
        }
    };
    seen.boot_id = machine.boot_id.clone().unwrap_or_default();
    let driver = GivenDriver::of(scan.driver, scan.mismatch.as_ref(), &CdiFiles::open(options), options);
    match judge(options, &roots, machine, scan.nvml.as_ref(), &driver) {
        Ok((machine, which, table, devices)) => {
            (seen.table, seen.devices) = (table, devices);
            findings.extend(self::devices(&seen).into_iter().filter(|line| options.rdma || line.check != "rdma"));
            findings.extend(machine.gpus.faults.iter().map(fault));
            findings.extend(nodes(options, &seen));
            findings.extend(driver_files(options, &seen));
            findings.extend(nics(options, &machine, &which, &seen));
        }
        Err(error) => findings.push(Finding::fail("gpu", error.to_string(), "correct the option")),
    }
    (seen, findings)
}

/// The devices as the daemon judges them after its first look at the machine, with what the daemon that ran here last left to it.
fn judge(
    options: &AgentOptions,
    roots: &Roots,
    mut machine: Machine,
    nvml: Option<&NvmlError>,
    driver: &GivenDriver,
) -> Result<(Machine, WhichNics, DeviceTable, Vec<NodeDevice>), OptionError> {
    let now = clock::now();
    let mut book = HealthBook::new(options)?;
    let (mut used, mut held_functions) = (BTreeSet::new(), BTreeSet::new());
    if let Some(boot_id) = &machine.boot_id {
        let (_, earlier) = HealthFile::open(&options.paths.state_dir, boot_id);
        book.recall(earlier.ailments);
        book.recall_outages(earlier.outages, now);
        machine.gpus.name_faults(&earlier.seen);
        if let LoadedLedger::Ledger(ledger) = ledger_file::load(&options.paths.state_dir, boot_id) {
            used.extend(ledger.iter().flat_map(|entry| entry.named().chain(entry.devices())).cloned());
            if !options.rdma_vf_resource.is_empty() {
                held_functions = functions_in_use(ledger.iter());
            }
        }
    }
    book.scanned(&machine, nvml, now);
    let which = WhichNics::of(&machine, options, |bdf| book.is_proven(bdf));
    let mut findings = DeviceFindings {
        faults: book.faults(&machine, now),
        table: None,
        held_functions,
        unselected: which.unselected(),
        driver_differs: driver.differs.as_deref(),
    };
    let list = |findings: &DeviceFindings<'_>| {
        let mut devices = devices::list(&machine, options, findings, now.wall);
        devices::without_unselected(&mut devices, &used);
        devices
    };
    let table = DeviceTable::build(&list(&findings), roots.dev_tree().ok().as_ref(), driver.files.clone());
    findings.table = Some(&table);
    let devices = list(&findings);
    Ok((machine, which, table, devices))
}

/// A GPU that could not be read: it is no device of the daemon's, or an unhealthy one.
fn fault(fault: &GpuFault) -> Finding {
    let what = fault.uuid.clone().or_else(|| fault.index.map(|index| format!("number {index}")));
    let what = what.unwrap_or_else(|| "of unknown name".to_owned());
    let at = fault.bdf.map(|bdf| format!(" at {bdf}")).unwrap_or_default();
    let condition = DeviceCondition::new(fault.fault.reason(), fault.fault.to_string());
    let found = format!("{what}{at}: takes no new pods: {}: {}", condition.reason, condition.seen);
    Finding::fail("gpu", found, condition.remedy())
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
    let found =
        format!("{place}: NVML {}, driver {}, {}", gpus.nvml_version, gpus.driver_version, amount(gpus.count(), "GPU"));
    Finding::ok("nvml", found)
}

/// Every device as the node daemon judges it, by the same table. A part says what its whole does not say.
fn devices(seen: &MachineView) -> Vec<Finding> {
    let is_said = |device: &NodeDevice| {
        let whole = device.parent().and_then(|id| seen.devices.iter().find(|whole| whole.id == *id));
        let conditions = &device.health.conditions;
        whole.is_some_and(|whole| conditions.iter().all(|one| whole.health.conditions.contains(one)))
    };
    let is_line = |device: &&NodeDevice| !matches!(device.body, DeviceBody::Mig { .. }) || !is_said(device);
    seen.devices.iter().filter(is_line).map(device).collect()
}

fn device(device: &NodeDevice) -> Finding {
    let (check, mut found) = describe(device);
    let conditions = &device.health.conditions;
    let Some(worst) = conditions.first() else { return Finding::ok(check, found) };
    found += if device.health.healthy { ": not everything is known: " } else { ": takes no new pods: " };
    let told = |condition: &DeviceCondition| format!("{}: {}", condition.reason, condition.seen);
    found += &conditions.iter().map(told).collect::<Vec<_>>().join("; ");
    let mut advice: Vec<&str> = conditions.iter().map(DeviceCondition::remedy).collect();
    advice.dedup();
    Finding::bad(worst.effect() == ConditionEffect::OutOfService, check, found, advice.join("\n"))
}

/// The check that a device belongs to, and what it is.
fn describe(device: &NodeDevice) -> (&'static str, String) {
    let unknown = || "unknown".to_owned();
    let at = device.bdf.map_or_else(|| "an unknown address".to_owned(), |bdf| bdf.to_string());
    match &device.body {
        DeviceBody::Gpu { gpu, .. } => {
            let split = gpu.mig.mode == MigMode::Enabled;
            let parts =
                if split { format!(", split into {} MIG devices", gpu.mig.instances.len()) } else { String::new() };
            let minor = gpu.minor.map_or_else(unknown, |minor| minor.to_string());
            let model = gpu.model.as_deref().unwrap_or("unknown model");
            ("gpu", format!("{} minor {minor} at {at}: {model}{parts}", gpu.uuid))
        }
        DeviceBody::Mig { parent, instance, .. } => ("gpu", format!("{} of {parent}: {}", device.id, instance.profile)),
        DeviceBody::Nic { nic, .. } | DeviceBody::Vf { nic, .. } => ("rdma", described(nic)),
    }
}

/// The device nodes in one line; each device that lacks one says so in its own.
fn nodes(options: &AgentOptions, seen: &MachineView) -> Option<Finding> {
    let gpus: Vec<_> = seen.table.of(&DeviceType::Gpu).collect();
    let root = options.paths.dev_root.display();
    let missing: BTreeSet<Box<str>> = gpus.iter().flat_map(|(id, _)| seen.table.missing(id)).collect();
    if gpus.is_empty() {
        return None;
    }
    if missing.is_empty() {
        let found = format!("{} and the control nodes below {root}", amount(gpus.len(), "GPU"));
        return Some(Finding::ok("device-nodes", found));
    }
    let missing: Vec<&str> = missing.iter().map(|node| &**node).collect();
    let found = format!("below {root}: {}", missing.join(", "));
    let advice = DeviceCondition::new(HealthReason::DeviceNodesMissing, "").remedy();
    Some(Finding::bad(options.names_gpu_nodes(), "device-nodes", found, advice))
}

fn driver_files(options: &AgentOptions, seen: &MachineView) -> Option<Finding> {
    if seen.table.of(&DeviceType::Gpu).next().is_none() || !options.gives_driver() {
        return None;
    }
    let mut conditions = seen.devices.iter().flat_map(|device| &device.health.conditions);
    if let Some(differs) = conditions.find(|of| of.reason == HealthReason::DriverVersionMismatch) {
        return Some(Finding::fail("driver-files", &*differs.seen, differs.remedy()));
    }
    let root = options.paths.driver_root.display();
    if seen.table.has_driver() {
        let files: BTreeSet<_> = seen.table.driver.iter().map(|file| file.container.file_name()).collect();
        return Some(Finding::ok("driver-files", format!("{} files below {root} for containers", files.len())));
    }
    let advice = DeviceCondition::new(HealthReason::DriverFilesMissing, "").remedy();
    Some(Finding::fail("driver-files", format!("no libcuda below {root}"), advice))
}

/// What the lines of the devices do not say of NICs: those that are not served, and the selection.
fn nics(options: &AgentOptions, machine: &Machine, which: &WhichNics, seen: &MachineView) -> Vec<Finding> {
    if !options.rdma {
        return vec![Finding::ok("rdma", "not offered (--rdma=false)")];
    }
    let is_listed = |bdf: Bdf| seen.devices.iter().any(|device| device.bdf == Some(bdf));
    let unserved = |nic: &NicInfo| {
        let why = which.unserved.get(&nic.bdf).filter(|_| !is_listed(nic.bdf))?;
        Some(Finding::ok("rdma", format!("{}: not served: {why}", described(nic))))
    };
    let mut findings: Vec<Finding> = machine.nics.iter().filter_map(unserved).collect();
    let selection =
        |why: &String| Finding::warn("rdma", why.clone(), "docs/rdma.md says which NICs are served (--rdma-select)");
    findings.extend(which.none_selected.iter().map(|why| selection(&format!("NoDevicesSelected: {why}"))));
    findings.extend(which.warnings.iter().map(selection));
    findings.extend(which.faults.iter().map(|fault| {
        let advice = "the NIC is not offered; the other ones are";
        Finding::fail("rdma", format!("{}: {}", fault.ibdev, fault.reason), advice)
    }));
    if findings.is_empty() && machine.nics.is_empty() {
        let place = options.paths.sysfs_root.join("class/infiniband");
        findings.push(Finding::ok("rdma", format!("no RDMA device in {}", place.display())));
    }
    findings
}

/// As a person tells it from the others, and writes a term that selects it.
fn described(nic: &NicInfo) -> String {
    let ports: Vec<String> = nic.ports.iter().map(|port| format!("port {} {:?}", port.number, port.state)).collect();
    let layer = nic.ports.first().and_then(|port| port.link_layer.clone());
    let about: Vec<String> = nic.netdevs.iter().cloned().chain(layer).chain(nic.driver.clone()).collect();
    let about = if about.is_empty() { String::new() } else { format!(" ({})", about.join(", ")) };
    format!("{} at {}{about}: {}", nic.ibdev, nic.bdf, ports.join(", "))
}
