//! What is looked at in every device, what it does to the device, and what people are told: one table, [`CONDITIONS`]. The node daemon
//! takes devices out of service by it, `baton doctor` reports by it, events quote it, and `docs/commands.md` prints it.

use std::fmt::{self, Write as _};

use baton_contract::HealthReason;
use baton_contract::word::word_enum;

word_enum! {
    /// Which MIG devices are offered.
    MigStrategy {
        /// GPUs are offered whole; GPUs in MIG mode are not offered.
        None = "none",
        /// All GPUs are split alike; their MIG devices are offered as `nvidia.com/gpu`.
        Single = "single",
        /// MIG devices are offered under the name of their profile, `nvidia.com/mig-1g.10gb`.
        Mixed = "mixed",
    }
}

word_enum! {
    /// What a device is to the table.
    DeviceClass {
        /// A physical GPU.
        Gpu = "GPU",
        /// A part of one.
        MigDevice = "MIG device",
        /// A physical RDMA function.
        Nic = "NIC",
        /// A virtual one.
        Function = "virtual function",
    }
}

word_enum! {
    /// What a condition does to its device; worse comes first.
    ConditionEffect {
        /// No new pod gets the device, and a person has to act.
        OutOfService = "out of service",
        /// No new pod gets the device, which may be as it is meant.
        SetAside = "set aside",
        /// The device stays in service without what is not known of it.
        Limited = "limited",
    }
}

/// How the GPUs of a node are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeSplit {
    /// None of them is.
    #[default]
    None,
    /// Into MIG devices of one profile.
    Alike,
    /// Into several profiles.
    Mixed,
}

/// One condition of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCondition {
    /// Its row of the table.
    pub reason: HealthReason,
    /// What was seen.
    pub seen: Box<str>,
}

/// What is known of one device. Whatever is not known is as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// What it is.
    pub class: DeviceClass,
    /// What events, probes, scans and polls found of it, or of the device that it is a part of.
    pub found: Vec<DeviceCondition>,
    /// Whether MIG is on; `None` where the GPU cannot say. A GPU that cannot be split has it off.
    pub mig: Option<bool>,
    /// Which MIG devices are offered.
    pub strategy: MigStrategy,
    /// How the GPUs of this node are split.
    pub node_split: NodeSplit,
    /// Why its device nodes are of no use, where the node daemon gives them to containers.
    pub nodes_missing: Vec<Box<str>>,
    /// Why containers get no driver, where the node daemon gives it to them.
    pub driver_missing: Option<Box<str>>,
    /// How the libraries that containers would get differ from the driver in the kernel.
    pub driver_differs: Option<Box<str>>,
    /// A pod has it as a part of its NIC.
    pub held_as_part: bool,
    /// Why it is not among the NICs that are handed out.
    pub unselected: Option<Box<str>>,
    /// Pods get its virtual functions, and none of them can be handed out.
    pub functions_out: bool,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct ConditionRule {
    /// Its name.
    pub reason: HealthReason,
    /// The devices that it is about; the same fact says nothing of others.
    pub of: &'static [DeviceClass],
    /// What is looked at.
    pub looks_at: &'static str,
    /// What it does to the device.
    pub effect: ConditionEffect,
    /// What it is.
    pub words: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// What is seen where it holds.
    holds: fn(&DeviceFacts, HealthReason) -> Option<Box<str>>,
}

impl DeviceFacts {
    /// Nothing is known.
    pub fn new(class: DeviceClass) -> Self {
        Self {
            class,
            found: Vec::new(),
            mig: Some(false),
            strategy: MigStrategy::None,
            node_split: NodeSplit::None,
            nodes_missing: Vec::new(),
            driver_missing: None,
            driver_differs: None,
            held_as_part: false,
            unselected: None,
            functions_out: false,
        }
    }

    /// The conditions that hold, in the order of the table: the first says whether the device is in service.
    pub fn judge(&self) -> Vec<DeviceCondition> {
        let of_class = CONDITIONS.iter().filter(|rule| rule.of.contains(&self.class));
        let holds = |rule: &ConditionRule| Some(DeviceCondition::new(rule.reason, (rule.holds)(self, rule.reason)?));
        of_class.filter_map(holds).collect()
    }
}

impl DeviceCondition {
    /// A condition and what was seen of it.
    pub fn new(reason: HealthReason, seen: impl Into<Box<str>>) -> Self {
        Self { reason, seen: seen.into() }
    }

    /// Its row; `None` for [`HealthReason::Healthy`] alone.
    fn rule(&self) -> Option<&'static ConditionRule> {
        CONDITIONS.iter().find(|rule| rule.reason == self.reason)
    }

    /// What it does to its device.
    pub fn effect(&self) -> ConditionEffect {
        self.rule().map_or(ConditionEffect::Limited, |rule| rule.effect)
    }

    /// What to do.
    pub fn remedy(&self) -> &'static str {
        self.rule().map_or("", |rule| rule.remedy)
    }
}

/// What was seen, and what to do.
impl fmt::Display for DeviceCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.seen, self.remedy())
    }
}

/// The table in Markdown, as documentation and `baton doctor --conditions` have it.
pub fn condition_table() -> String {
    let mut text = "| condition | of | looked at | effect | what it is | what to do |\n".to_owned();
    text += "| --- | --- | --- | --- | --- | --- |\n";
    for ConditionRule { reason, of, looks_at, effect, words, remedy, .. } in CONDITIONS {
        let of: Vec<&str> = of.iter().map(|class| class.word()).collect();
        let of = of.join(", ");
        // Writing to a String does not fail.
        let _ = writeln!(text, "| `{reason}` | {of} | {looks_at} | {effect} | {words} | {remedy} |");
    }
    text
}

/// Events, probes, scans or polls say so.
fn stated(facts: &DeviceFacts, reason: HealthReason) -> Option<Box<str>> {
    let mut seen: Vec<&str> =
        facts.found.iter().filter(|found| found.reason == reason).map(|found| &*found.seen).collect();
    seen.dedup();
    (!seen.is_empty()).then(|| seen.join(", ").into())
}

fn when(holds: bool, seen: &str) -> Option<Box<str>> {
    holds.then(|| seen.into())
}

/// NVML did not say whether MIG is on.
fn mig_unknown(facts: &DeviceFacts, reason: HealthReason) -> Option<Box<str>> {
    let unknown = || "it is not known whether MIG is on".into();
    stated(facts, reason).or_else(|| facts.mig.is_none().then(unknown))
}

/// A link says so, or there is no function that has one.
fn link_down(facts: &DeviceFacts, reason: HealthReason) -> Option<Box<str>> {
    stated(facts, reason).or_else(|| when(facts.functions_out, "none of its virtual functions can be handed out"))
}

const GPUS: &[DeviceClass] = &[DeviceClass::Gpu, DeviceClass::MigDevice];
const GPU: &[DeviceClass] = &[DeviceClass::Gpu];
const MIG: &[DeviceClass] = &[DeviceClass::MigDevice];
const NICS: &[DeviceClass] = &[DeviceClass::Nic, DeviceClass::Function];
const ALL: &[DeviceClass] = DeviceClass::ALL;

/// A row, in the order of the columns.
const fn row(
    reason: HealthReason,
    of: &'static [DeviceClass],
    effect: ConditionEffect,
    [looks_at, words, remedy]: [&'static str; 3],
    holds: fn(&DeviceFacts, HealthReason) -> Option<Box<str>>,
) -> ConditionRule {
    ConditionRule { reason, of, looks_at, effect, words, remedy, holds }
}

use ConditionEffect::{Limited, OutOfService, SetAside};
use HealthReason as Is;

/// Every condition. Where several hold, the first is the reason of the device: hardware before configuration before files, and what
/// takes a device out of service before what only limits it.
#[rustfmt::skip]
pub const CONDITIONS: &[ConditionRule] = &[
    row(Is::XidNeedsReboot, GPUS, OutOfService, ["the driver's events",
        "a critical XID that `--xid-actions` maps to `needs-reboot`; the message has its number",
        "drain the node (kubectl drain), and reboot it"], stated),
    row(Is::XidNeedsReset, GPUS, OutOfService, ["the driver's events",
        "a critical XID that only a reset mends, by the table below or by `--xid-actions`; the message has its number",
        "reset the GPU with the node daemon switched off (nvidia-smi --gpu-reset)"], stated),
    row(Is::Xid, GPUS, OutOfService, ["the driver's events",
        "the driver reported a critical XID; the message has its number",
        "the GPU goes back into service by itself once its probes are clean, unless it is cordoned (baton cordon); the kernel log has more"], stated),
    row(Is::Gone, ALL, OutOfService, ["NVML, sysfs, the list of devices before",
        "the device is no longer in the machine",
        "a pod that holds it keeps it until it ends; look for the device in lspci and in the kernel log"], stated),
    row(Is::Lost, GPUS, OutOfService, ["every answer of NVML",
        "NVML says that the GPU fell off the bus",
        "reset the GPU (nvidia-smi --gpu-reset), or drain the node and reboot it; the kernel log has its XID"], stated),
    row(Is::ResetRequired, GPUS, OutOfService, ["every answer of NVML",
        "NVML says that the GPU must be reset before it can be used",
        "reset the GPU with the node daemon switched off (nvidia-smi --gpu-reset)"], stated),
    row(Is::RecoveryActionPending, GPUS, OutOfService, ["`nvmlDeviceGetFieldValues`: the recovery action",
        "the driver itself asks for a reset, a reboot or a drain",
        "do what the driver asks for, with the node daemon switched off"], stated),
    row(Is::NvmlTimeout, GPUS, OutOfService, ["every question to NVML",
        "a question about this GPU has not returned in time; other GPUs answer",
        "the GPU comes back when the question returns; look for the driver's errors in the kernel log, or reboot the node"], stated),
    row(Is::Unlisted, GPUS, OutOfService, ["`bus/pci/drivers/nvidia` in sysfs",
        "the driver is bound to the GPU and NVML does not list it",
        "look for the driver's errors in the kernel log"], stated),
    row(Is::FabricNotReady, GPUS, OutOfService, ["`nvmlDeviceGetGpuFabricInfo`",
        "the GPU is not registered with the NVSwitch fabric, and no program can use it until it is",
        "look after nvidia-fabricmanager on this node"], stated),
    row(Is::NvmlError, GPUS, OutOfService, ["NVML's handle and UUID of the GPU",
        "NVML answers with an error, or what cannot be, where nothing can be said of the GPU without the answer; the message names the question",
        "ask nvidia-smi on this node, and look for the driver's errors in the kernel log"], stated),
    row(Is::NvmlUnavailable, GPUS, OutOfService, ["the start of NVML, how many GPUs there are",
        "NVML does not answer: the driver is being updated, or hangs",
        "wait for the update of the driver, or look for its errors in the kernel log; where nvidia-smi answers there, restart the node daemon"], stated),
    row(Is::NicTimeout, NICS, OutOfService, ["the read of the NIC's files in sysfs",
        "a read has not returned within 2 s; with eight such NICs no NIC is read any more",
        "the NIC's firmware may be stuck; the NIC comes back when the read returns and three polls succeed"], stated),
    row(Is::DeviceSuspect, ALL, OutOfService, ["which pods fail here",
        "three pods failed because of this device within five minutes; the message has the last failure",
        "look after what the message names; the device is tried again at the time that it says"], stated),
    row(Is::MigUnknown, GPU, OutOfService, ["`nvmlDeviceGetMigMode`",
        "NVML does not say whether MIG is on, and work on a whole GPU with MIG on fails",
        "ask nvidia-smi on this node, and look for the driver's errors in the kernel log"], mig_unknown),
    row(Is::MigEnabled, GPU, OutOfService, ["`nvmlDeviceGetMigMode`, `--mig-strategy`",
        "MIG is on, with or without instances, and `--mig-strategy=none` offers GPUs whole: CUDA fails on it",
        "use --mig-strategy=mixed or single, or switch MIG off (nvidia-smi -mig 0)"],
        |facts, _| when(facts.mig == Some(true) && facts.strategy == MigStrategy::None, "MIG is on and --mig-strategy=none offers the GPU whole")),
    row(Is::MigNotUniform, MIG, OutOfService, ["`--mig-strategy`, the profiles of all GPUs",
        "`--mig-strategy=single` needs one profile on all GPUs of the node and there are several",
        "use --mig-strategy=mixed, or split all GPUs alike"],
        |facts, _| when(facts.strategy == MigStrategy::Single && facts.node_split == NodeSplit::Mixed, "--mig-strategy=single needs one profile on all GPUs of the node and there are several")),
    row(Is::DeviceNodesMissing, ALL, OutOfService, ["device nodes below `--dev-root`, where this daemon gives them to containers (`cdi-cri`, `cdi-annotations`, `--pass-device-specs`; always for NICs)",
        "a node is missing or has another minor number: `nvidiactl`, `nvidia-uvm`, `nvidia<minor>`, those of a MIG device in `nvidia-caps`; `uverbs` and `rdma_cm` of a NIC",
        "GPU: look for the driver's own errors, then make the nodes (nvidia-modprobe -u -c=MINOR, nvidia-smi or nvidia-persistenced); NIC: load ib_uverbs and rdma_ucm; check --dev-root"],
        |facts, _| (!facts.nodes_missing.is_empty()).then(|| facts.nodes_missing.join(", ").into())),
    row(Is::DriverFilesMissing, GPUS, OutOfService, ["the driver's libraries below `--driver-root`, where this daemon writes the CDI spec",
        "there is no `libcuda`, so that containers get no driver",
        "say where the driver's libraries are (--driver-root, /run/nvidia/driver with the driver container)"],
        |facts, _| facts.driver_missing.clone()),
    row(Is::DriverVersionMismatch, GPUS, OutOfService, ["the version of `libcuda` below `--driver-root` and that of the driver in the kernel (`module/nvidia/version` in sysfs), where this daemon writes the CDI spec",
        "the driver's packages were updated and the driver was not loaded since: CUDA fails in every container that gets the new libraries (error 803); the message has both versions",
        "drain the node (kubectl drain) and reboot it, or switch the node daemon off and reload the driver's kernel modules"],
        |facts, _| facts.driver_differs.clone()),
    row(Is::NotSelected, NICS, SetAside, ["`--rdma-select`, the host's default route",
        "the NIC is not one of those that are served on this node, and a pod has it",
        "nothing: it leaves the Device object when the pod that has it has ended"],
        |facts, _| facts.unselected.clone()),
    row(Is::NicAway, NICS, SetAside, ["the NIC's entry in sysfs, and the `infiniband_verbs` of its PCI function",
        "the function has a verbs device and no entry is in view: a pod has the NIC in its network namespace (`rdma system`: exclusive)",
        "nothing: the NIC takes pods again when that pod has ended"], stated),
    row(Is::LinkDown, NICS, SetAside, ["the ports of the NIC in sysfs, and those of its physical function; under `--rdma-vf-resource` a function's own do not count",
        "the ports do not carry traffic (`--rdma-port-policy` says which count; a link that was up is down after 10 s), or the NIC has functions and none can be handed out",
        "look at cable, switch port and subnet manager; an Ethernet function has a link when its interface is up"], link_down),
    row(Is::NotSplit, GPU, SetAside, ["`--mig-strategy`, the split of all GPUs",
        "`--mig-strategy=single` offers MIG devices only, and this GPU is not split while others are",
        "split it like the others, or use --mig-strategy=mixed"],
        |facts, _| when(facts.strategy == MigStrategy::Single && facts.mig == Some(false) && facts.node_split != NodeSplit::None, "--mig-strategy=single offers MIG devices only and this GPU is not split")),
    row(Is::HeldAsPart, &[DeviceClass::Function], SetAside, ["`--rdma-vf-resource`, what pods hold",
        "a pod has the function as a part of its NIC, from before the option was set",
        "nothing: others get it when that pod has ended"],
        |facts, _| when(facts.held_as_part, "a pod has it as a part of its NIC")),
    row(Is::MinorUnknown, GPU, Limited, ["`nvmlDeviceGetMinorNumber`",
        "the number of its device node is not known: NVML does not answer, answers a number beyond 247, or the same for two GPUs",
        "the runtimes that find GPUs by UUID still serve it (--device-list-strategy=envvar)"], stated),
    row(Is::PlaceUnknown, GPUS, Limited, ["`nvmlDeviceGetPciInfo`",
        "its PCI address is not known, so neither its NUMA node nor the NICs beside it",
        "it is given without regard to what is near it"], stated),
    row(Is::LinksUnknown, GPU, Limited, ["`nvmlDeviceGetNvLink…`, `nvmlDeviceGetTopologyCommonAncestor`",
        "some of its links to other GPUs are not known",
        "sets of GPUs are chosen without these links; they are asked for again at every scan"], stated),
    row(Is::ModelUnknown, GPUS, Limited, ["`nvmlDeviceGetName`, `nvmlDeviceGetCudaComputeCapability`",
        "its product name or its compute capability is not known",
        "pods that select a model do not get it"], stated),
    row(Is::MemoryUnknown, GPU, Limited, ["`nvmlDeviceGetMemoryInfo`",
        "how much memory it has is not known, although the driver reports memory",
        "pods that ask for bytes of GPU memory do not get it"], stated),
    row(Is::MigDevicesUnknown, GPU, Limited, ["NVML's answers about MIG devices",
        "some of its MIG devices cannot be read, or two have one UUID",
        "these are not offered, the others are; ask nvidia-smi -L on this node"], stated),
    row(Is::StateUnknown, GPU, Limited, ["`nvmlDeviceGetGpuFabricInfo`, `nvmlDeviceGetFieldValues`",
        "whether the fabric has it, or whether the driver wants it reset, is not known",
        "if programs fail on it, look for the driver's errors in the kernel log"], stated),
];

#[cfg(test)]
#[path = "condition_tests.rs"]
mod tests;
