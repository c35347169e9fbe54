//! The devices of this node as one flat list, made of a machine scan and the judgement of its health. Everything that leaves
//! the daemon (lists, Device object, answers, CDI files) is made of this list, so it cannot disagree with itself.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::answer::DeviceTable;
use super::node_device::{DeviceBody, DeviceHealth, NodeDevice};
use super::options::{AgentOptions, MigStrategy};
use baton_contract::{DeviceId, HealthReason};
use baton_decide::health::{DeviceClass, DeviceCondition, DeviceFacts, NodeSplit};
use baton_hardware::gpu::MigMode;
use baton_hardware::nic::PciFunction;
use baton_hardware::{Bdf, GpuInfo, Machine, NicInfo};

/// What events, probes, scans and polls found of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundFault {
    /// The fault.
    pub condition: DeviceCondition,
    /// Since when.
    pub since: Timestamp,
}

/// What is known of the devices beside the machine itself.
#[derive(Debug, Clone, Default)]
pub struct DeviceFindings<'a> {
    /// Faults of GPUs, MIG devices and NICs.
    pub faults: BTreeMap<DeviceId, FoundFault>,
    /// Their device nodes, once they have been looked up.
    pub table: Option<&'a DeviceTable>,
    /// Virtual functions that pods have as parts of their NICs.
    pub held_functions: BTreeSet<DeviceId>,
    /// NICs and virtual functions that are not handed out, and why.
    pub unselected: BTreeMap<DeviceId, Box<str>>,
    /// How the driver's libraries differ from the driver in the kernel.
    pub driver_differs: Option<&'a str>,
}

impl DeviceFindings<'_> {
    /// Adds to `facts` what is known of the device `id`, which is a part of `of`, and judges it.
    fn judge(
        &self,
        mut facts: DeviceFacts,
        id: &DeviceId,
        of: Option<&DeviceId>,
        options: &AgentOptions,
        now: Timestamp,
    ) -> DeviceHealth {
        // A function under a name of its own gets its link from the CNI.
        let apart = facts.class == DeviceClass::Function && !options.rdma_vf_resource.is_empty();
        let own = self.faults.get(id).filter(|own| !(apart && own.condition.reason == HealthReason::LinkDown));
        let found = || of.and_then(|of| self.faults.get(of)).into_iter().chain(own);
        facts.found.extend(found().map(|fault| fault.condition.clone()));
        let table = self.table.filter(|table| table.devices.contains_key(id));
        if let Some(table) = table.filter(|_| matches!(facts.class, DeviceClass::Gpu | DeviceClass::MigDevice)) {
            if options.names_gpu_nodes() {
                facts.nodes_missing = table.missing(id);
            }
            if options.gives_driver() && !table.has_driver() {
                let root = options.paths.driver_root.display();
                facts.driver_missing = Some(format!("no libcuda below {root}").into());
            }
            facts.driver_differs = self.driver_differs.map(Box::from);
        }
        facts.held_as_part = self.held_functions.contains(id);
        facts.unselected = self.unselected.get(id).cloned();
        let conditions = facts.judge();
        let first = conditions.first().and_then(|first| found().find(|fault| fault.condition.reason == first.reason));
        DeviceHealth::of(conditions, first.map_or(now, |fault| fault.since))
    }
}

/// The list, in stable order: GPUs by PCI address, each followed by its MIG devices; then NICs, each followed by its virtual
/// functions.
pub fn list(
    machine: &Machine,
    options: &AgentOptions,
    findings: &DeviceFindings<'_>,
    now: Timestamp,
) -> Vec<NodeDevice> {
    let mut devices = Vec::new();
    let strategy = options.mig_strategy;
    let node_split = node_split(machine);
    let numbers = numbers(machine);
    let domains = nvlink_domains(machine, &numbers);
    for (gpu, number) in machine.gpus.gpus.iter().zip(numbers) {
        let Ok(id) = DeviceId::parse(&gpu.uuid) else {
            tracing::warn!(uuid = %gpu.uuid, "a GPU with an unusable UUID is left out");
            continue;
        };
        let facts = |class| DeviceFacts { strategy, node_split, ..facts_of(gpu, class) };
        let split = strategy != MigStrategy::None && gpu.mig.mode == MigMode::Enabled;
        devices.push(NodeDevice {
            id: id.clone(),
            minor: number as i32,
            body: DeviceBody::Gpu {
                gpu: Box::new(gpu.clone()),
                split,
                nvlink: domains.get(gpu.uuid.as_str()).copied(),
            },
            bdf: gpu.bdf,
            place: gpu.place.clone(),
            health: findings.judge(facts(DeviceClass::Gpu), &id, None, options, now),
        });
        for (rank, instance) in gpu.mig.instances.iter().enumerate().filter(|_| split) {
            let Ok(part) = DeviceId::parse(&instance.uuid) else { continue };
            devices.push(NodeDevice {
                health: findings.judge(facts(DeviceClass::MigDevice), &part, Some(&id), options, now),
                id: part,
                minor: number as i32,
                body: DeviceBody::Mig {
                    parent: id.clone(),
                    parent_index: gpu.index,
                    parent_minor: gpu.minor,
                    slot: instance.slot.unwrap_or(rank as u32),
                    model: gpu.model.clone(),
                    instance: instance.clone(),
                },
                bdf: gpu.bdf,
                place: gpu.place.clone(),
            });
        }
    }
    devices.extend(nics(machine, options, findings, now));
    number_nics(&mut devices);
    devices
}

/// What NVML says of a GPU, or did not say; for the GPU itself and for its MIG devices.
fn facts_of(gpu: &GpuInfo, class: DeviceClass) -> DeviceFacts {
    let found = gpu.unanswered.iter().map(|seen| DeviceCondition::new(seen.question.reason(), seen.to_string()));
    DeviceFacts {
        mig: match gpu.mig.mode {
            MigMode::Enabled => Some(true),
            MigMode::Disabled | MigMode::NotSupported => Some(false),
            MigMode::Unknown => None,
        },
        found: found.collect(),
        ..DeviceFacts::new(class)
    }
}

/// Numbers of the GPUs in the Device object: their minors, and for those whose minor is not known the lowest ones that are left.
fn numbers(machine: &Machine) -> Vec<u32> {
    let minors = machine.gpus.gpus.iter().map(|gpu| gpu.minor);
    let known: BTreeSet<u32> = minors.clone().flatten().collect();
    let mut left = (0..).filter(|number| !known.contains(number));
    minors.map(|minor| minor.or_else(|| left.next()).unwrap_or_default()).collect()
}

fn node_split(machine: &Machine) -> NodeSplit {
    let split = || machine.gpus.gpus.iter().filter(|gpu| gpu.mig.mode == MigMode::Enabled);
    let parts = split().flat_map(|gpu| &gpu.mig.instances);
    let profiles: BTreeSet<&str> = parts.map(|instance| instance.profile.as_str()).collect();
    match (split().next(), profiles.len()) {
        (None, _) => NodeSplit::None,
        (Some(_), 0 | 1) => NodeSplit::Alike,
        (Some(_), _) => NodeSplit::Mixed,
    }
}

/// Number of the NVLink neighbourhood of each GPU that has neighbours: the smallest number of a GPU in it.
fn nvlink_domains<'a>(machine: &'a Machine, numbers: &[u32]) -> BTreeMap<&'a str, u32> {
    let groups = machine.gpus.nvlink_domains().into_iter().filter(|group| group.len() > 1);
    let number = |gpu: &GpuInfo| {
        let at = machine.gpus.gpus.iter().position(|other| other.uuid == gpu.uuid);
        at.and_then(|at| numbers.get(at)).copied().unwrap_or_default()
    };
    let numbered = groups.flat_map(|group| {
        let number = group.iter().map(|gpu| number(gpu)).min().unwrap_or_default();
        group.into_iter().map(move |gpu| (gpu.uuid.as_str(), number))
    });
    numbered.collect()
}

/// Of a NIC or function before [`number_nics`].
const UNNUMBERED: i32 = -1;

/// Numbers the NICs of a list by their PCI addresses, those that have left and are kept among them: no two have one number. A virtual
/// function has the number of its NIC: the numbers of the others, which stand in annotations of running pods, stay when functions are
/// made or go. One whose NIC is not seen (a virtual machine got it alone) is a NIC.
fn number_nics(devices: &mut [NodeDevice]) {
    let address = |device: &NodeDevice| match &device.body {
        DeviceBody::Nic { nic, .. } => Some((nic.bdf, device.id.clone())),
        _ => None,
    };
    let listed: BTreeMap<Bdf, DeviceId> = devices.iter().filter_map(address).collect();
    let numbers: BTreeMap<DeviceId, i32> = listed.into_values().zip(0..).collect();
    for device in devices {
        if let Some(number) = numbers.get(device.parent().unwrap_or(&device.id)) {
            device.minor = *number;
        }
    }
}

fn nics(machine: &Machine, options: &AgentOptions, findings: &DeviceFindings<'_>, now: Timestamp) -> Vec<NodeDevice> {
    let apart = !options.rdma_vf_resource.is_empty();
    let judge = |facts: DeviceFacts, nic: &NicInfo, id: &DeviceId, of: Option<&DeviceId>| {
        let missing = nic.chars.missing().into_iter().map(|name| format!("{name} is missing").into());
        findings.judge(DeviceFacts { nodes_missing: missing.collect(), ..facts }, id, of, options, now)
    };
    let function = || DeviceFacts::new(DeviceClass::Function);
    let id_of = |bdf: Bdf| DeviceId::parse(&bdf.to_string()).ok();
    let by_bdf: BTreeMap<Bdf, &NicInfo> = machine.nics.iter().map(|nic| (nic.bdf, nic)).collect();
    let mut devices = Vec::new();
    for nic in &machine.nics {
        let listed = match &nic.function {
            PciFunction::Physical { .. } => true,
            PciFunction::Virtual { pf } => !by_bdf.contains_key(pf),
        };
        let (true, Some(id)) = (listed, id_of(nic.bdf)) else { continue };
        let vfs: Vec<(u32, &NicInfo)> = match &nic.function {
            PciFunction::Physical { vfs } => {
                vfs.iter().enumerate().filter_map(|(n, bdf)| Some((n as u32, *by_bdf.get(bdf)?))).collect()
            }
            PciFunction::Virtual { .. } => Vec::new(),
        };
        // Pods get its functions, so one of them has to work.
        let is_out =
            |(_, vf): &(u32, &NicInfo)| id_of(vf.bdf).is_none_or(|id| !judge(function(), vf, &id, None).healthy);
        let functions_out = !apart && !vfs.is_empty() && vfs.iter().all(is_out);
        let facts = DeviceFacts { functions_out, ..DeviceFacts::new(DeviceClass::Nic) };
        devices.push(NodeDevice {
            id: id.clone(),
            minor: UNNUMBERED,
            body: DeviceBody::Nic {
                nic: Box::new(nic.clone()),
                vfs: vfs.iter().filter_map(|(_, vf)| id_of(vf.bdf)).collect(),
                // Those that are out of view count, too: pods have them.
                split: apart && !matches!(&nic.function, PciFunction::Physical { vfs } if vfs.is_empty()),
            },
            bdf: Some(nic.bdf),
            place: nic.place.clone(),
            health: judge(facts, nic, &id, None),
        });
        for (number, vf) in vfs {
            let Some(vf_id) = id_of(vf.bdf) else { continue };
            devices.push(NodeDevice {
                health: judge(function(), vf, &vf_id, Some(&id)),
                id: vf_id,
                minor: UNNUMBERED,
                body: DeviceBody::Vf { parent: id.clone(), number, nic: Box::new(vf.clone()), apart },
                bdf: Some(vf.bdf),
                place: vf.place.clone(),
            });
        }
    }
    devices
}

/// Leaves out NICs that are not handed out, with their functions, unless a pod has one of them.
pub fn without_unselected(devices: &mut Vec<NodeDevice>, used: &BTreeSet<DeviceId>) {
    let left_out: BTreeSet<DeviceId> =
        devices.iter().filter(|device| is_unselected(device)).map(|device| device.id.clone()).collect();
    let held =
        |device: &NodeDevice| used.contains(&device.id) || device.parent().is_some_and(|parent| used.contains(parent));
    let kept: BTreeSet<DeviceId> = devices
        .iter()
        .filter(|device| held(device))
        .flat_map(|device| [Some(&device.id), device.parent()])
        .flatten()
        .cloned()
        .collect();
    devices.retain(|device| !left_out.contains(&device.id) || kept.contains(&device.id));
}

fn is_unselected(device: &NodeDevice) -> bool {
    device.health.conditions.iter().any(|condition| condition.reason == HealthReason::NotSelected)
}

/// Devices that were in `earlier`, are not in `now`, and are still in use: kept, marked as gone.
pub fn keep_used(devices: &mut Vec<NodeDevice>, earlier: &[NodeDevice], in_use: &BTreeSet<DeviceId>, now: Timestamp) {
    let present: BTreeSet<DeviceId> = devices.iter().map(|device| device.id.clone()).collect();
    for device in earlier.iter().filter(|device| !present.contains(&device.id) && in_use.contains(&device.id)) {
        let mut kept = device.clone();
        if kept.health.reason != HealthReason::Gone {
            let left = DeviceCondition::new(HealthReason::Gone, "the device left the machine while a pod holds it");
            kept.health = DeviceHealth::of(vec![left], now);
        }
        devices.push(kept);
    }
    number_nics(devices);
}

/// Conditions keep the time of their last transition while nothing changed.
pub fn keep_since(devices: &mut [NodeDevice], earlier: &[NodeDevice]) {
    for device in devices {
        let before = earlier.iter().find(|before| before.id == device.id).map(|before| &before.health);
        if let Some(before) = before
            && before.healthy == device.health.healthy
            && before.reason == device.health.reason
        {
            device.health.since = before.since;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_hardware::PciPlace;
    use baton_hardware::nic::CharDevices;

    fn at(text: &str) -> Bdf {
        text.parse().unwrap()
    }

    fn nic(bdf: &str, function: PciFunction) -> NicInfo {
        NicInfo {
            bdf: at(bdf),
            ibdev: format!("mlx5_{bdf}"),
            node_guid: None,
            firmware: None,
            pci_id: None,
            driver: None,
            ports: Vec::new(),
            function,
            chars: CharDevices::default(),
            netdevs: Vec::new(),
            carries: None,
            place: PciPlace::default(),
        }
    }

    fn listed(nics: Vec<NicInfo>) -> Vec<NodeDevice> {
        let machine = Machine { nics, ..Machine::default() };
        list(&machine, &AgentOptions::default(), &DeviceFindings::default(), Timestamp::UNIX_EPOCH)
    }

    fn numbers(devices: &[NodeDevice]) -> BTreeMap<&str, i32> {
        devices.iter().map(|device| (device.id.as_str(), device.minor)).collect()
    }

    #[test]
    fn a_nic_that_left_and_is_kept_has_a_number_that_no_other_has() {
        let whole = |bdf: &&str| nic(bdf, PciFunction::Physical { vfs: Vec::new() });
        let [a, b, c, d] = ["0000:1b:00.0", "0000:3c:00.0", "0000:9a:00.0", "10000:01:00.0"];
        let look = |seen: &[&str], before: &[NodeDevice], used: &BTreeSet<DeviceId>| {
            let mut devices = listed(seen.iter().map(whole).collect());
            keep_used(&mut devices, before, used, Timestamp::UNIX_EPOCH);
            devices
        };
        let used = [DeviceId::parse(b).unwrap()].into();
        let all = look(&[b, c, d], &[], &used);
        let left = look(&[c, d], &all, &used);
        assert_eq!(numbers(&left), [(b, 0), (c, 1), (d, 2)].into(), "as before");
        let more = look(&[a, c, d], &left, &used);
        assert_eq!(numbers(&more), [(a, 0), (b, 1), (c, 2), (d, 3)].into());
        assert_eq!(numbers(&look(&[c, d], &left, &BTreeSet::new())), [(c, 0), (d, 1)].into());
    }

    #[test]
    fn a_virtual_function_has_its_nics_number_and_shifts_no_other() {
        let [pf, vf, alone, last] = ["0000:1b:00.0", "0000:1b:00.1", "0000:3c:00.2", "0000:9a:00.0"];
        let of = |pf: &str| PciFunction::Virtual { pf: at(pf) };
        let devices = listed(vec![
            nic(pf, PciFunction::Physical { vfs: vec![at(vf)] }),
            nic(vf, of(pf)),
            nic(alone, of("0000:3c:00.0")),
            nic(last, PciFunction::Physical { vfs: Vec::new() }),
        ]);
        assert_eq!(numbers(&devices), [(pf, 0), (vf, 0), (alone, 1), (last, 2)].into());
    }
}
