//! Brings what the hardware says to the decisions about health, and what they decide to the list of devices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use serde::{Deserialize, Serialize};

use super::devices::FoundFault;
use super::inventory::to_seconds;
use super::nic_reads::NicReadError;
use super::options::AgentOptions;
use super::options::MigStrategy;
use baton_contract::{ConditionReason, DeviceId, HealthReason, inventory};
use baton_decide::health::{
    Ailment, Blame, DeviceCondition, GpuHealth, GpuStatus, LinkFault, NicHealth, Observation, Outage, PortPolicy,
    RecoveryRule, ServeOutcome, SuspectRule, Suspicion, XidAction, XidPolicy,
};
use baton_hardware::gpu::{Fault, MigMode};
use baton_hardware::nic::{NicFault, PciFunction, Port, PortState};
use baton_hardware::provider::Recovery;
use baton_hardware::{Bdf, EventKind, GpuEvent, Machine, NicInfo, NvmlError, Probe};
use baton_runtime::clock::Now;
use baton_runtime::options::OptionError;

/// Between two probes of one GPU that ignored events led to.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Clean probes that bring a GPU back.
const PROBES: u32 = 3;
/// Pods that the machine fails until it is suspect.
const FAILURES: usize = 3;
/// Reason of a NIC whose ports do not carry traffic, or do not say.
const LINK_DOWN: HealthReason = HealthReason::LinkDown;

/// The clock of suspicions starts so long before this process: what an earlier one saw has a time on it.
const BEFORE: Duration = Duration::from_secs(24 * 3600);

/// A device or node that failed pods and has served none since, for the agent after this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KnownOutage {
    /// What is to blame.
    pub blame: Blame,
    /// How often it was out.
    pub outages: u32,
    /// While it is out: since when, until when, and why.
    pub out: Option<(jiff::Timestamp, jiff::Timestamp, Box<str>)>,
}

/// Health of every device of the node.
pub struct HealthBook {
    gpus: GpuHealth,
    nics: NicHealth,
    /// The ports of each NIC, as they were when its health was last judged by them.
    shown: BTreeMap<Bdf, Vec<Port>>,
    ports: PortPolicy,
    /// Instances of split GPUs are handed out on their own.
    split: bool,
    /// GPUs that deliver no events.
    polled: BTreeSet<String>,
    /// When an ignored event last led to a probe of a GPU, monotonic.
    suspected: BTreeMap<String, Duration>,
    /// Pods that this machine has failed.
    suspicion: Suspicion,
    /// What that comes to for the node, in words and wall time. Worded when it changes: the two clocks are not read at one moment.
    node_condition: Option<Condition>,
    /// The same for devices.
    suspects: BTreeMap<DeviceId, FoundFault>,
    /// And for the agent after this one.
    outages: Vec<KnownOutage>,
    /// What the agent before this one knew of GPUs that were not seen yet.
    recalled: Vec<Ailment>,
}

/// What an event asks of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventOutcome {
    /// The XID and the action it was judged to, for metrics and logs.
    pub xid: Option<(u64, XidAction)>,
    /// Something changed.
    pub changed: bool,
    /// UUIDs of the GPUs that have to be probed now.
    pub probe: Vec<String>,
    /// A device that stays in service, and the XID that its pods are to know of.
    pub noted: Option<(DeviceId, u64)>,
}

impl HealthBook {
    /// Rules by `options`; nothing known yet.
    pub fn new(options: &AgentOptions) -> Result<Self, OptionError> {
        let given = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
        let (disable, enable) = (given(&options.xid.disable), given(&options.xid.enable));
        let policy = XidPolicy::new(options.xid.table()?, disable.as_deref(), enable.as_deref());
        let rule = RecoveryRule { probes: PROBES, span: options.periods.recovery_window };
        Ok(Self {
            gpus: GpuHealth::new(policy, rule),
            nics: NicHealth::new(options.timings.link_down),
            shown: BTreeMap::new(),
            ports: options.rdma_port_policy,
            split: options.mig_strategy != MigStrategy::None,
            polled: BTreeSet::new(),
            suspected: BTreeMap::new(),
            suspicion: Suspicion::new(SuspectRule {
                failures: FAILURES,
                window: options.timings.suspect_window,
                shortest: options.periods.suspect_min,
                longest: options.timings.suspect_max.max(options.periods.suspect_min),
            }),
            node_condition: None,
            suspects: BTreeMap::new(),
            outages: Vec::new(),
            recalled: Vec::new(),
        })
    }

    /// The machine was looked at: devices that came start healthy, those that did not answer are at fault.
    pub fn scanned(&mut self, machine: &Machine, nvml: Option<&NvmlError>, now: Now) {
        self.gpus.retain(machine.gpus.gpus.iter().map(|gpu| gpu.uuid.as_str()));
        self.polled.retain(|uuid| machine.gpus.gpu(uuid).is_some());
        self.suspected.retain(|uuid, _| machine.gpus.gpu(uuid).is_some());
        let recalled = std::mem::take(&mut self.recalled).into_iter();
        let (seen, unseen): (Vec<_>, _) = recalled.partition(|known| machine.gpus.gpu(&known.uuid).is_some());
        self.recalled = unseen;
        self.gpus.recall(&seen, now.mono);
        self.gpus.retain_instances(|gpu, mig| {
            let gpu = machine.gpus.gpu(gpu);
            gpu.is_some_and(|gpu| gpu.mig.instances.iter().any(|part| part.uuid == mig))
        });
        if let Some(error) = nvml {
            let bad = Observation::Bad { reason: HealthReason::NvmlUnavailable, message: error.to_string() };
            for gpu in &machine.gpus.gpus {
                self.gpus.observe(&gpu.uuid, &bad, now.mono);
            }
        }
        for gpu in &machine.gpus.gpus {
            if let Some(lacks) = &gpu.fabric {
                self.gpus.observe(&gpu.uuid, &bad(&Fault::Fabric(lacks.clone())), now.mono);
            }
            if let Some(wanted) = &gpu.wants {
                self.gpus.observe(&gpu.uuid, &Observation::Wants(wanted.clone()), now.mono);
            }
        }
        for fault in &machine.gpus.faults {
            if let Some(uuid) = &fault.uuid {
                self.gpus.observe(uuid, &bad(&fault.fault), now.mono);
            }
        }
        let present: BTreeSet<String> = machine.nics.iter().map(|nic| nic.bdf.to_string()).collect();
        self.nics.retain(|id| present.contains(id));
        self.shown.retain(|bdf, _| present.contains(&bdf.to_string()));
        let blind = |nic: &NicInfo| {
            let of_it = |fault: &NicFault| fault.bdf == Some(nic.bdf) && (fault.hangs || nic.ports.is_empty());
            machine.nic_faults.iter().any(of_it)
        };
        // A function is its pod's alone: nothing of it is left to give.
        let is_part = |nic: &NicInfo| match nic.function {
            PciFunction::Virtual { pf } => present.contains(&pf.to_string()),
            PciFunction::Physical { .. } => false,
        };
        for nic in machine.nics.iter().filter(|nic| !blind(nic)) {
            if !nic.ports.is_empty() {
                self.polled_ports(nic.bdf, Ok(&nic.ports), now);
            } else if !is_part(nic) {
                let message = "another network namespace has the NIC".to_owned();
                let away = LinkFault { reason: HealthReason::NicAway, message };
                self.nics.poll(&nic.bdf.to_string(), Err(away), now.mono);
            }
        }
        for fault in &machine.nic_faults {
            if let Some(bdf) = fault.bdf {
                let trouble = if fault.hangs { NicReadError::Hangs } else { NicReadError::Unreadable };
                self.polled_ports(bdf, Err(trouble(fault.reason.clone())), now);
            }
        }
    }

    /// What an agent after this one has to know of GPUs, in order.
    pub fn ailments(&self) -> Vec<Ailment> {
        let mut all = self.gpus.ailments();
        all.extend(self.recalled.iter().cloned());
        all.sort_unstable();
        all
    }

    /// What the agent before this one knew: it counts as soon as a scan shows the GPU.
    pub fn recall(&mut self, ailments: Vec<Ailment>) {
        self.recalled = ailments;
    }

    /// Judges what the driver reported about `machine`.
    pub fn apply_event(&mut self, event: &GpuEvent, machine: &Machine, now: Now) -> EventOutcome {
        let uuid = event.uuid.as_deref();
        let instance = self.instance(event, machine);
        let xid = match &event.kind {
            EventKind::Xid(xid) => *xid,
            EventKind::Lost => {
                let probe = machine.gpus.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
                return EventOutcome { probe, ..EventOutcome::default() };
            }
            EventKind::Silent(why) => {
                tracing::info!(gpu = uuid, why, "this GPU delivers no events; it is polled");
                self.polled.extend(event.uuid.clone());
                return EventOutcome::default();
            }
            EventKind::Listening => {
                uuid.map(|uuid| self.polled.remove(uuid));
                return EventOutcome::default();
            }
        };
        let seen = self.gpus.event(uuid, instance.as_deref(), xid, now.mono);
        if seen.action >= XidAction::Warn {
            tracing::warn!(gpu = uuid, xid, action = %seen.action, "the driver reports an XID");
        }
        let changed = !seen.changes.is_empty();
        let probe = if changed { Vec::new() } else { self.due_probes(uuid, machine, now.mono) };
        let about = instance.as_deref().or(uuid).filter(|_| !probe.is_empty());
        let noted = about.and_then(|id| Some((DeviceId::parse(id).ok()?, xid)));
        EventOutcome { xid: Some((xid, seen.action)), changed, probe, noted }
    }

    /// The GPUs to probe after an ignored event, every one where it names none: the driver puts the number of the last error on
    /// all that happen together, so an ignored error may hide another one. An application that faults in a loop makes hundreds
    /// of events a second: each GPU is due once in a [`PROBE_PAUSE`].
    fn due_probes(&mut self, uuid: Option<&str>, machine: &Machine, now: Duration) -> Vec<String> {
        let about = machine.gpus.gpus.iter().filter(|gpu| uuid.is_none_or(|uuid| gpu.uuid == uuid));
        let due = about.filter(|gpu| self.suspected.get(&gpu.uuid).is_none_or(|last| now >= *last + PROBE_PAUSE));
        let due: Vec<String> = due.map(|gpu| gpu.uuid.clone()).collect();
        self.suspected.extend(due.iter().map(|uuid| (uuid.clone(), now)));
        due
    }

    /// The instance that an event is about. Libraries fill the instance ids of a GPU that is not split in different ways, with
    /// "none" or with zeros: they mean something only where an instance of these ids is handed out on its own. Everything
    /// else is about the whole GPU.
    fn instance(&self, event: &GpuEvent, machine: &Machine) -> Option<String> {
        let (gpu, instance) = (machine.gpus.gpu(event.uuid.as_deref()?)?, event.mig?);
        let mut parts = gpu.mig.instances.iter().filter(|_| self.split && gpu.mig.mode == MigMode::Enabled);
        let part = parts.find(|part| (part.gpu_instance, part.compute_instance) == instance)?;
        Some(part.uuid.clone())
    }

    /// A GPU was asked how it is. `true` when that changed anything.
    pub fn probed(&mut self, uuid: &str, probe: &Result<Probe, NvmlError>, now: Now) -> bool {
        let observation = match probe {
            Ok(Probe { outcome: Ok(recovery) }) => match recovery.wanted() {
                None => Observation::Clean { stated: *recovery == Recovery::None },
                Some(wanted) => Observation::Wants(wanted),
            },
            Ok(Probe { outcome: Err(fault) }) => bad(fault),
            Err(error) => Observation::Bad { reason: HealthReason::NvmlUnavailable, message: error.to_string() },
        };
        let changes = self.gpus.observe(uuid, &observation, now.mono);
        !changes.is_empty()
    }

    /// The ports of a NIC were looked at. `true` when that changed its health.
    pub fn polled_ports(&mut self, bdf: Bdf, ports: Result<&[Port], NicReadError>, now: Now) -> bool {
        let (id, seen) = (bdf.to_string(), ports.as_ref().ok().map(|ports| ports.to_vec()));
        let ports = ports.map_err(|trouble| match trouble {
            NicReadError::Unreadable(message) => LinkFault { reason: LINK_DOWN, message },
            NicReadError::Hangs(message) => LinkFault { reason: HealthReason::NicTimeout, message },
        });
        let down = |message| Err(LinkFault { reason: LINK_DOWN, message });
        let up = ports.and_then(|ports| {
            let up = self.ports.is_up(ports.iter().map(|port| port.state == PortState::Active));
            let states: Vec<String> =
                ports.iter().map(|port| format!("port {} is {:?}", port.number, port.state)).collect();
            if up {
                Ok(())
            } else if states.is_empty() {
                down("it has no port".to_owned())
            } else {
                down(states.join(", "))
            }
        });
        let is_up = up.is_ok();
        let changed = self.nics.poll(&id, up, now.mono).is_some();
        // What is shown agrees with the judgement: a link that is away for a moment is not shown as down.
        if let Some(seen) = seen.filter(|_| is_up == self.nics.fault(&id).is_none()) {
            self.shown.insert(bdf, seen);
        }
        changed
    }

    /// Gives the NICs of `machine` the ports that their health was judged by.
    pub fn settle(&self, machine: &mut Machine) {
        for nic in &mut machine.nics {
            if let Some(ports) = self.shown.get(&nic.bdf) {
                nic.ports.clone_from(ports);
            }
        }
    }

    /// The NIC was up at some look.
    pub fn is_proven(&self, bdf: Bdf) -> bool {
        self.nics.is_proven(&bdf.to_string())
    }

    /// What became of a pod. `true` when the node, or a device, is suspect by it or is not any more.
    pub fn served(&mut self, outcome: ServeOutcome, now: Now) -> bool {
        let changed = self.suspicion.note(outcome, now.mono + BEFORE);
        // What is on trial no more is news, too: for the agent after this one.
        let changed = changed || self.suspicion.outages().count() != self.outages.len();
        if changed {
            self.word_suspicion(now);
        }
        changed
    }

    /// Time has passed. `true` when an outage ended.
    pub fn age_suspicion(&mut self, now: Now) -> bool {
        let changed = self.suspicion.age(now.mono + BEFORE);
        if changed {
            self.word_suspicion(now);
        }
        changed
    }

    /// When the next outage ends, monotonic.
    pub fn next_outage_end(&self) -> Option<Duration> {
        self.suspicion.next_end().map(|end| end.saturating_sub(BEFORE))
    }

    /// What an agent after this one has to know of suspicions.
    pub fn outages(&self) -> &[KnownOutage] {
        &self.outages
    }

    /// What the agent before this one knew of them.
    pub fn recall_outages(&mut self, known: Vec<KnownOutage>, now: Now) {
        let moment = |at: jiff::Timestamp| {
            let ahead = at.duration_since(now.wall);
            let (past, off) = (ahead.is_negative(), ahead.unsigned_abs());
            let now = now.mono + BEFORE;
            if past { now.saturating_sub(off) } else { now.saturating_add(off) }
        };
        for KnownOutage { blame, outages, out } in known {
            let out = out.map(|(since, until, why)| Outage { since: moment(since), until: moment(until), why });
            self.suspicion.recall(blame, outages, out, now.mono + BEFORE);
        }
        self.word_suspicion(now);
    }

    /// The condition of the node, while it is suspect.
    pub fn node_condition(&self) -> Option<&Condition> {
        self.node_condition.as_ref()
    }

    fn word_suspicion(&mut self, now: Now) {
        let now = Now { mono: now.mono + BEFORE, ..now };
        let until = |out: &Outage| {
            let lasts = jiff::SignedDuration::try_from(out.until.saturating_sub(now.mono)).unwrap_or_default();
            now.wall.checked_add(lasts).unwrap_or(now.wall)
        };
        let message = |out: &Outage| {
            let until = to_seconds(until(out));
            format!("pods failed here because of the machine, last: {}; no new pods before {until}", out.why)
        };
        self.node_condition = self.suspicion.node().map(|out| Condition {
            type_: inventory::DeviceStatus::SUSPECT.to_owned(),
            status: "True".to_owned(),
            reason: ConditionReason::MachineFailedPods.word().to_owned(),
            message: message(out),
            last_transition_time: Time(to_seconds(at(out.since, now))),
            observed_generation: None,
        });
        let fault = |out| fault(HealthReason::DeviceSuspect, message(out), at(out.since, now));
        self.suspects = self.suspicion.devices().map(|(id, out)| (id.clone(), fault(out))).collect();
        let known = |(blame, outages, out): (&Blame, u32, Option<&Outage>)| KnownOutage {
            blame: blame.clone(),
            outages,
            out: out.map(|out| (at(out.since, now), until(out), out.why.clone())),
        };
        self.outages = self.suspicion.outages().map(known).collect();
    }

    /// GPUs to probe because something of them is out of service.
    pub fn ailing(&self) -> Vec<String> {
        self.gpus.ailing().map(str::to_owned).collect()
    }

    /// GPUs to probe because they deliver no events.
    pub fn silent(&self) -> Vec<String> {
        self.polled.iter().cloned().collect()
    }

    /// The judgement of every GPU, MIG device and NIC that is not healthy.
    pub fn faults(&self, machine: &Machine, now: Now) -> BTreeMap<DeviceId, FoundFault> {
        let mut faults = self.suspects.clone();
        let mut put = |id: &str, fault: Option<FoundFault>| {
            if let (Ok(id), Some(fault)) = (DeviceId::parse(id), fault) {
                faults.insert(id, fault);
            }
        };
        for gpu in &machine.gpus.gpus {
            put(&gpu.uuid, fault_of(&self.gpus.status(&gpu.uuid, None), now));
            for part in &gpu.mig.instances {
                put(&part.uuid, fault_of(&self.gpus.status(&gpu.uuid, Some(&part.uuid)), now));
            }
        }
        for nic in &machine.nics {
            let id = nic.bdf.to_string();
            let found = self.nics.fault(&id);
            put(&id, found.map(|(why, since)| fault(why.reason, why.message.as_str(), at(since, now))));
        }
        faults
    }
}

fn fault_of(status: &GpuStatus, now: Now) -> Option<FoundFault> {
    match status {
        GpuStatus::Healthy => None,
        GpuStatus::Unhealthy { cause, since } => Some(fault(cause.reason(), cause.to_string(), at(*since, now))),
    }
}

fn fault(reason: HealthReason, seen: impl Into<Box<str>>, since: jiff::Timestamp) -> FoundFault {
    FoundFault { condition: DeviceCondition::new(reason, seen), since }
}

/// Wall time of a monotonic moment.
fn at(since: Duration, now: Now) -> jiff::Timestamp {
    let ago = jiff::SignedDuration::try_from(now.mono.saturating_sub(since)).unwrap_or_default();
    now.wall.checked_sub(ago).unwrap_or(now.wall)
}

fn bad(fault: &Fault) -> Observation {
    Observation::Bad { reason: fault.reason(), message: fault.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_hardware::NicFault;
    use baton_hardware::gpu::{GpuInfo, GpuScan, MigState, NvLinks};
    use baton_hardware::nic::CharDevices;

    fn gpu(uuid: &str, index: u32) -> GpuInfo {
        GpuInfo {
            uuid: uuid.into(),
            minor: Some(index),
            index,
            bdf: format!("0000:{index:02x}:00.0").parse().ok(),
            model: Some("test".into()),
            memory_bytes: None,
            compute_capability: None,
            mig: MigState::default(),
            nvlink: NvLinks::default(),
            fabric: None,
            wants: None,
            unanswered: Vec::new(),
            place: baton_hardware::pci::PciPlace::default(),
        }
    }

    #[test]
    fn an_ignored_xid_has_its_gpu_probed_once_a_second_whatever_the_others_do() {
        let mut book = HealthBook::new(&AgentOptions::default()).unwrap();
        let gpus = GpuScan { gpus: vec![gpu("GPU-a", 0), gpu("GPU-b", 1)], ..GpuScan::default() };
        let machine = Machine { gpus, ..Machine::default() };
        book.scanned(&machine, None, Now { mono: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH });
        let mut probed_after = |uuid: Option<&str>, xid, millis| {
            let event = GpuEvent { uuid: uuid.map(Into::into), mig: None, kind: EventKind::Xid(xid) };
            let now = Now { mono: Duration::from_millis(millis), wall: jiff::Timestamp::UNIX_EPOCH };
            book.apply_event(&event, &machine, now).probe
        };
        assert_eq!(probed_after(Some("GPU-a"), 45, 0), ["GPU-a"], "another error may hide behind it");
        assert!(probed_after(Some("GPU-a"), 45, 999).is_empty());
        assert_eq!(probed_after(Some("GPU-b"), 45, 999), ["GPU-b"], "a noisy neighbour does not hide it");
        assert_eq!(probed_after(None, 45, 1000), ["GPU-a"], "b was just asked");
        assert!(probed_after(Some("GPU-c"), 45, 5000).is_empty(), "there is no such GPU");
        assert!(probed_after(Some("GPU-a"), 79, 5000).is_empty(), "what takes it out of service needs no proof");
    }

    #[test]
    fn an_ignored_xid_is_noted_once_a_second_and_one_that_ends_service_is_not() {
        let mut book = HealthBook::new(&AgentOptions::default()).unwrap();
        let machine =
            Machine { gpus: GpuScan { gpus: vec![gpu("GPU-a", 0)], ..GpuScan::default() }, ..Machine::default() };
        book.scanned(&machine, None, Now { mono: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH });
        let mut noted = |uuid: Option<&str>, xid, millis| {
            let event = GpuEvent { uuid: uuid.map(Into::into), mig: None, kind: EventKind::Xid(xid) };
            let now = Now { mono: Duration::from_millis(millis), wall: jiff::Timestamp::UNIX_EPOCH };
            book.apply_event(&event, &machine, now).noted.map(|(id, xid)| (id.to_string(), xid))
        };
        let of = |xid| Some(("GPU-a".to_owned(), xid));
        assert_eq!([noted(Some("GPU-a"), 31, 0), noted(Some("GPU-a"), 31, 10)], [of(31), None]);
        assert_eq!([noted(None, 13, 2000), noted(Some("GPU-a"), 79, 4000)], [None, None]);
    }

    #[test]
    fn a_nic_whose_read_hangs_is_out_of_service_until_good_polls_bring_it_back() {
        let bdf: Bdf = "0000:3b:00.0".parse().unwrap();
        let port = Port { number: 1, state: PortState::Active, phys_state: None, link_layer: None, rate: None };
        let nic = NicInfo {
            bdf,
            ibdev: "mlx5_0".into(),
            node_guid: None,
            firmware: None,
            pci_id: None,
            driver: None,
            ports: vec![port.clone()],
            function: PciFunction::Physical { vfs: Vec::new() },
            chars: CharDevices::default(),
            netdevs: Vec::new(),
            carries: None,
            place: baton_hardware::pci::PciPlace::default(),
        };
        let fault = NicFault { ibdev: "mlx5_0".into(), bdf: Some(bdf), reason: "stuck".into(), hangs: true };
        let mut machine = Machine { nics: vec![nic], nic_faults: vec![fault], ..Machine::default() };
        let mut book = HealthBook::new(&AgentOptions::default()).unwrap();
        let now = Now { mono: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH };
        let reason = |book: &HealthBook, machine: &Machine| {
            book.faults(machine, now).into_values().next().map(|fault| fault.condition.reason)
        };
        book.scanned(&machine, None, now);
        assert_eq!(reason(&book, &machine), Some(HealthReason::NicTimeout), "the scan had it from earlier, as it was");
        machine.nic_faults.clear();
        assert!(!book.polled_ports(bdf, Err(NicReadError::Hangs("stuck".into())), now));
        let changes: Vec<bool> = (0..3).map(|_| book.polled_ports(bdf, Ok(std::slice::from_ref(&port)), now)).collect();
        assert_eq!((changes, reason(&book, &machine)), (vec![false, false, true], None));
        let down = Port { state: PortState::Down, ..port };
        assert!(!book.polled_ports(bdf, Ok(std::slice::from_ref(&down)), now), "it may come back in a moment");
        book.settle(&mut machine);
        assert_eq!(machine.nics[0].ports[0].state, PortState::Active);
        let later = Now { mono: Duration::from_secs(10), ..now };
        assert!(book.polled_ports(bdf, Ok(&[down]), later));
        book.settle(&mut machine);
        let shown = machine.nics[0].ports[0].state;
        assert_eq!((reason(&book, &machine), shown), (Some(HealthReason::LinkDown), PortState::Down));
    }

    #[test]
    fn what_the_agent_before_knew_waits_for_its_gpu() {
        let now = Now { mono: Duration::ZERO, wall: jiff::Timestamp::UNIX_EPOCH };
        let ailment = |uuid: &str| Ailment { uuid: uuid.into(), instance: None, xid: 79 };
        let mut book = HealthBook::new(&AgentOptions::default()).unwrap();
        book.recall(vec![ailment("GPU-b"), ailment("GPU-a")]);
        book.scanned(&Machine::default(), None, now);
        assert_eq!(book.ailments(), [ailment("GPU-a"), ailment("GPU-b")], "NVML may be down when the agent starts");
        let gpus = GpuScan { gpus: vec![gpu("GPU-a", 0)], ..GpuScan::default() };
        book.scanned(&Machine { gpus, ..Machine::default() }, None, now);
        assert_eq!(book.ailing(), ["GPU-a"]);
        assert_eq!(book.ailments(), [ailment("GPU-a"), ailment("GPU-b")]);
    }
}
