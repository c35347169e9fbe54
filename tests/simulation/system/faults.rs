//! What breaks, when, and for how long. Every fault is counted by its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{DeviceId, DeviceType, PodRef};
use baton::decide::pod::Phase;
use jiff::SignedDuration;

use super::{Candidate, Happening, Mutant, Reader, START, STORM, System};
use crate::harness::wall;

macro_rules! faults {
    ($($name:ident = $words:literal, $per_mille:literal;)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault { $($name),* }

        impl Fault {
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            pub fn words(self) -> &'static str {
                match self { $(Self::$name => $words),* }
            }

            /// How often it hits a request or call; those of zero happen by themselves.
            fn per_mille(self) -> u32 {
                match self { $(Self::$name => $per_mille),* }
            }
        }
    };
}

faults! {
    LateRequest = "a request is late", 15;
    LostRequest = "a request is lost", 8;
    LateAnswer = "an answer is late", 10;
    LostAnswer = "an answer is lost", 12;
    ServerError = "500", 15;
    TooManyRequests = "429", 10;
    Forbidden = "403 for a Binding or a pod of a TYJob", 6;
    Conflict = "409 for a Binding or a TYJob's status", 6;
    Unprocessable = "422 for a lock", 6;
    SchedulerKilledUnanswered = "a scheduler is killed between its request and the answer", 2;
    ControllerKilledUnanswered = "a controller is killed between its request and the answer", 10;
    DaemonKilledUnanswered = "a node daemon is killed between its release and the answer", 4;
    Throttled = "PodResources is throttled", 15;
    PreferenceIgnored = "the kubelet ignores the preference", 100;
    KilledBeforeWriting = "a node daemon is killed in Allocate, before it writes", 12;
    KilledBeforeAnswering = "a node daemon is killed in Allocate, before it answers", 12;
    KubeletKilledInCall = "a kubelet is killed in Allocate", 8;
    DiskFull = "the ledger cannot be written", 8;
    EndsLate = "processes need the whole grace to end", 150;
    SchedulerKilled = "a scheduler is killed", 0;
    SchedulerPaused = "a scheduler is paused", 0;
    SchedulerCut = "a scheduler is cut off", 0;
    SchedulerMute = "a scheduler's requests do not arrive", 0;
    SchedulerUnanswered = "a scheduler's answers and watches do not arrive", 0;
    LeaseDeleted = "the schedulers' Lease is deleted", 0;
    SchedulerDeaf = "a scheduler's watches are late", 0;
    SchedulerLists = "a scheduler's watches expire", 0;
    ControllerKilled = "a controller is killed", 0;
    ControllerPaused = "a controller is paused", 0;
    ControllerCut = "a controller is cut off", 0;
    ControllerDeaf = "a controller's watches are late", 0;
    ControllerLists = "a controller's watches expire", 0;
    DaemonKilled = "a node daemon is killed", 0;
    DaemonCut = "a node daemon is cut off", 0;
    DaemonDeaf = "a node daemon's watches are late", 0;
    DaemonLists = "a node daemon lists again, late", 0;
    DaemonMute = "a node daemon's Lease is not renewed", 0;
    KubeletRestarted = "a kubelet restarts", 0;
    KubeletCut = "a kubelet is cut off", 0;
    KubeletHangs = "a kubelet hangs for minutes", 0;
    KubeletDeaf = "a kubelet's watch is late", 0;
    KubeletSlow = "a kubelet takes what its watch sent bit by bit", 300;
    CheckpointLost = "a kubelet loses its checkpoint", 0;
    ContainerEnds = "a container ends, and starts again", 0;
    Resized = "a pod is resized", 0;
    ListingSilent = "PodResources does not answer", 0;
    LedgerLost = "a ledger is lost", 0;
    LedgerTorn = "a ledger is torn", 0;
    BothLost = "ledger and checkpoint are lost", 0;
    Reboot = "a node reboots", 0;
    NodeLost = "a node is lost, and joins again", 0;
    GpuFails = "a GPU or a part of one fails", 0;
    NicFails = "a NIC fails", 0;
    ClockSkew = "a clock jumps", 0;
    ForceDeleted = "a pod is deleted by force", 0;
    DeletedThenForced = "a pod is deleted, and then by force", 0;
    PhaseWritten = "another client writes that a pod has failed", 0;
    Unkillable = "a process cannot be killed for minutes", 0;
    NodeCut = "a node is cut off, and its pods are deleted by force", 0;
    RuntimeDown = "a container runtime is down", 0;
    CgroupsHidden = "a node daemon does not see cgroups", 0;
}

/// What works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    Candidate(Candidate),
    Daemon(usize),
    /// A node that was lost.
    Node(usize),
    /// A device of it.
    Device(usize),
    /// The daemon's plugins, at the kubelet of this life.
    Registration {
        node: usize,
        life: u64,
    },
    Cordon(usize),
    DeviceCordon(usize),
    /// All clocks agree again.
    Clocks,
}

/// What is broken now, and what has been.
#[derive(Debug, Default)]
pub struct Faults {
    pub counts: BTreeMap<Fault, u64>,
    used: u32,
    /// When the schedulers' Lease was deleted last.
    pub lease_deleted: Option<Duration>,
    /// When a scheduler took the deleted Lease last that had never seen it: the one before may lead beside it.
    pub two_lead: Option<Duration>,
    /// Until when what a process sends does not arrive, and what is sent to it.
    mute: BTreeMap<Reader, Duration>,
    unanswered: BTreeMap<Reader, Duration>,
    deaf: BTreeMap<Reader, Duration>,
    lists: BTreeSet<Reader>,
    paused: BTreeMap<Candidate, Duration>,
    silent: BTreeMap<usize, Duration>,
    /// Until when a node's PodResources does not answer.
    unlisted: BTreeMap<usize, Duration>,
}

impl Faults {
    fn cut(&mut self, reader: Reader, until: Duration) {
        self.mute.insert(reader, until);
        self.unanswered.insert(reader, until);
    }

    pub fn cannot_send(&self, reader: Reader, now: Duration) -> bool {
        self.mute.get(&reader).is_some_and(|until| now < *until)
    }

    pub fn cannot_hear(&self, reader: Reader, now: Duration) -> bool {
        self.unanswered.get(&reader).is_some_and(|until| now < *until)
    }

    /// No request of it succeeds.
    pub fn is_cut(&self, reader: Reader, now: Duration) -> bool {
        self.cannot_send(reader, now) || self.cannot_hear(reader, now)
    }

    /// Until when a reader hears nothing, where it does not now.
    pub fn deaf_until(&self, reader: Reader, now: Duration) -> Option<Duration> {
        let until = self.unanswered.get(&reader).max(self.deaf.get(&reader)).copied();
        until.filter(|until| now < *until)
    }

    pub fn lists_again(&mut self, reader: Reader) -> bool {
        self.lists.remove(&reader)
    }

    pub fn paused_until(&self, who: Candidate, now: Duration) -> Option<Duration> {
        self.paused.get(&who).copied().filter(|until| now < *until)
    }

    /// Whether a node's PodResources does not answer.
    pub fn lists_nothing(&self, node: usize, now: Duration) -> bool {
        self.unlisted.get(&node).is_some_and(|until| now < *until)
    }

    /// Whether a node daemon's Lease is not renewed.
    pub fn is_silent(&self, node: usize, now: Duration) -> bool {
        self.silent.get(&node).is_some_and(|until| now < *until)
    }
}

impl System {
    fn may_break(&self, fault: Fault) -> bool {
        self.now < START + STORM && self.faults.used < self.plan.faults && !self.plan.spared.contains(&fault)
    }

    fn breaks(&mut self, fault: Fault) {
        self.faults.used += 1;
        *self.faults.counts.entry(fault).or_default() += 1;
        self.note(|| format!("fault: {}", fault.words()));
    }

    /// Whether this fault hits now.
    pub fn strikes(&mut self, fault: Fault) -> bool {
        let hit = self.fate.below(1000) < fault.per_mille() && self.may_break(fault);
        if hit {
            self.breaks(fault);
        }
        hit
    }

    /// Something breaks by itself.
    pub fn next_fault(&mut self) {
        let pause = Duration::from_millis(u64::from(500 + self.fate.below(12_000)));
        if self.now + pause < START + STORM {
            self.after(pause, Happening::Fault);
        }
        let kinds: Vec<Fault> = Fault::ALL.iter().copied().filter(|fault| fault.per_mille() == 0).collect();
        let fault = self.fate.pick(&kinds);
        let node = self.fate.below(self.machines.len() as u32) as usize;
        let at = self.fate.below(self.schedulers.len() as u32) as usize;
        let long = self.now + Duration::from_millis(u64::from(1000 + self.fate.below(40_000)));
        let brief = self.now + Duration::from_millis(u64::from(200 + self.fate.below(6000)));
        if !self.may_break(fault) {
            return;
        }
        self.breaks(fault);
        let mend = self.fate.below(20_000) + 200;
        let mend = Duration::from_millis(u64::from(mend));
        let (scheduler, controller) = (Candidate::Scheduler(at), Candidate::Controller(at));
        match fault {
            Fault::SchedulerKilled => self.kill(scheduler, mend),
            Fault::ControllerKilled => self.kill(controller, mend),
            Fault::SchedulerPaused => drop(self.faults.paused.insert(scheduler, long)),
            Fault::ControllerPaused => drop(self.faults.paused.insert(controller, long)),
            Fault::SchedulerCut => self.faults.cut(Reader::Candidate(scheduler), long),
            Fault::ControllerCut => self.faults.cut(Reader::Candidate(controller), long),
            Fault::SchedulerMute => drop(self.faults.mute.insert(Reader::Candidate(scheduler), long)),
            Fault::SchedulerUnanswered => drop(self.faults.unanswered.insert(Reader::Candidate(scheduler), long)),
            Fault::LeaseDeleted => {
                self.store.leases[0] = None;
                self.faults.lease_deleted = Some(self.now);
            }
            Fault::SchedulerDeaf => drop(self.faults.deaf.insert(Reader::Candidate(scheduler), brief)),
            Fault::ControllerDeaf => drop(self.faults.deaf.insert(Reader::Candidate(controller), brief)),
            Fault::SchedulerLists => drop(self.faults.lists.insert(Reader::Candidate(scheduler))),
            Fault::ControllerLists => drop(self.faults.lists.insert(Reader::Candidate(controller))),
            Fault::DaemonCut => self.faults.cut(Reader::Daemon(node), long),
            Fault::DaemonDeaf => drop(self.faults.deaf.insert(Reader::Daemon(node), brief)),
            Fault::DaemonLists => drop(self.faults.lists.insert(Reader::Daemon(node))),
            Fault::DaemonMute => drop(self.faults.silent.insert(node, long + Duration::from_secs(90))),
            Fault::KubeletRestarted if self.machines[node].lost.is_none() => self.restart_kubelet(node, false),
            Fault::KubeletCut => self.faults.cut(Reader::Kubelet(node), long),
            Fault::KubeletHangs => {
                let until = self.now + Duration::from_millis(u64::from(60_000 + self.fate.below(400_000)));
                self.faults.cut(Reader::Kubelet(node), until.min(START + STORM));
            }
            Fault::KubeletDeaf => drop(self.faults.deaf.insert(Reader::Kubelet(node), brief)),
            Fault::CheckpointLost if self.machines[node].lost.is_none() => self.restart_kubelet(node, true),
            Fault::ContainerEnds => self.container_ends(node),
            Fault::Resized => self.resize(node),
            Fault::ListingSilent => drop(self.faults.unlisted.insert(node, long)),
            Fault::ClockSkew => {
                let who = self.fate.pick(&[scheduler, controller]);
                let minutes = i64::from(self.fate.below(31)) - 15;
                let now = self.now;
                self.process(who).jumps(SignedDuration::from_mins(minutes), now);
            }
            Fault::GpuFails | Fault::NicFails => {
                let kind = if fault == Fault::NicFails { DeviceType::Rdma } else { DeviceType::Gpu };
                self.device_fails(node, &kind);
            }
            Fault::NodeLost => self.lose_node(node),
            Fault::ForceDeleted | Fault::DeletedThenForced | Fault::PhaseWritten | Fault::Unkillable => {
                self.pod_is_hit(node, fault);
            }
            Fault::NodeCut => self.cut_node(node),
            Fault::RuntimeDown => {
                let pause = Duration::from_millis(u64::from(3000 + self.fate.below(30_000)));
                self.machines[node].runtime_down = self.now + pause;
            }
            Fault::CgroupsHidden => {
                let most = if self.fate.below(3) == 0 { 300_000 } else { 30_000 };
                let pause = Duration::from_millis(u64::from(1000 + self.fate.below(most)));
                self.machines[node].cgroups_hidden = self.now + pause;
            }
            Fault::DaemonKilled | Fault::LedgerLost | Fault::LedgerTorn | Fault::BothLost | Fault::Reboot => {
                self.machine_breaks(node, fault, mend);
            }
            _ => {}
        }
    }

    /// A pod that runs on a node, or on the next where none does.
    fn victim(&mut self, node: usize, may: impl Fn(&Self, &PodRef) -> bool) -> Option<(usize, PodRef)> {
        let count = self.machines.len();
        (node..node + count).map(|at| at % count).find_map(|node| {
            let runtime = &self.machines[node].kubelet.runtime;
            let is_there = |pod: &PodRef| {
                let of = self.store.of(pod).map(|facts| &facts.handoff);
                of.is_some_and(|of| !of.phase.is_terminal() && of.deleting.is_none()) && may(self, pod)
            };
            let all: Vec<PodRef> = runtime.values().map(|runs| runs.pod.clone()).filter(is_there).collect();
            (!all.is_empty()).then(|| (node, all[self.fate.below(all.len() as u32) as usize].clone()))
        })
    }

    fn resize(&mut self, node: usize) {
        let lacks = |system: &Self, pod: &PodRef| system.machines.iter().any(|of| of.kubelet.lacks_ids(&pod.uid));
        let Some((_, pod)) = self.victim(node, lacks).or_else(|| self.victim(node, |_, _| true)) else { return };
        self.note(|| format!("{} is resized", pod.key));
        self.store.change(&pod, |facts| facts.handoff.resizing = true);
    }

    fn pod_is_hit(&mut self, node: usize, fault: Fault) {
        let is_phase = fault == Fault::PhaseWritten;
        let may = |system: &Self, pod: &PodRef| !is_phase || system.jobs.is_alone(pod);
        let Some((node, pod)) = self.victim(node, may) else { return };
        let slow = Duration::from_millis(u64::from(1000 + self.fate.below(40_000)));
        let is_slow = self.fate.below(2) == 0;
        let pause = Duration::from_millis(u64::from(500 + self.fate.below(10_000)));
        let follows = self.fate.below(2) == 0;
        let minutes = Duration::from_millis(u64::from(20_000 + self.fate.below(200_000)));
        let now = self.now;
        if let Some(runs) = self.machines[node].kubelet.runtime.get_mut(&pod.uid) {
            if is_slow && runs.stop.is_none() {
                runs.needs = slow;
            }
            if fault == Fault::Unkillable {
                runs.stuck = now + minutes;
            }
        }
        self.watch_processes(node, &pod.uid);
        match fault {
            Fault::DeletedThenForced => {
                self.note(|| format!("{} is deleted", pod.key));
                self.store.delete(&pod.key, Some(&pod.uid), wall(self.now));
                self.after(pause, Happening::Forced(pod));
            }
            Fault::PhaseWritten => {
                self.phase_written(&pod);
                // Its owner deletes it at once, or leaves it for a while.
                if follows {
                    self.jobs.keep(&pod, now + minutes / 3);
                }
            }
            Fault::Unkillable if follows => self.after(pause, Happening::Forced(pod)),
            Fault::Unkillable => {}
            _ => self.force(&pod),
        }
    }

    /// The API server lets a pod go whatever runs of it.
    pub fn force(&mut self, pod: &PodRef) {
        if self.store.of(pod).is_some() {
            self.note(|| format!("{} is deleted by force", pod.key));
            self.moved();
            self.store.remove(pod);
        }
    }

    fn phase_written(&mut self, pod: &PodRef) {
        self.note(|| format!("another client writes that {} has failed", pod.key));
        self.judges.foreign.insert(pod.uid.clone());
        self.store.change(pod, |facts| facts.handoff.phase = Phase::Failed);
    }

    /// Neither its kubelet nor its daemon reaches the API server, and its pods are given up meanwhile.
    fn cut_node(&mut self, node: usize) {
        let until = self.now + Duration::from_secs(60);
        self.faults.cut(Reader::Kubelet(node), until);
        self.faults.cut(Reader::Daemon(node), until);
        let pause = Duration::from_millis(u64::from(10_000 + self.fate.below(48_000)));
        self.after(pause, Happening::NodeForced(node));
    }

    pub fn force_node(&mut self, node: usize) {
        let name = self.machines[node].name.clone();
        let bound = self.store.pods().map(|facts| &facts.handoff);
        let bound = bound.filter(|pod| pod.node.as_deref() == Some(&*name) && !pod.phase.is_terminal());
        let pods: Vec<PodRef> = bound.map(|pod| pod.pod.clone()).collect();
        for pod in pods {
            if self.fate.below(3) > 0 {
                self.phase_written(&pod);
                self.force(&pod);
            }
        }
    }

    fn kill(&mut self, who: Candidate, mend: Duration) {
        if self.process(who).is_up {
            self.stop(who);
            self.after(mend, Happening::Mend(Mend::Candidate(who)));
        }
    }

    /// A process that has ended starts again in a while.
    pub fn starts_again(&mut self, who: Candidate) {
        let pause = self.soon(200, 20_000);
        self.after(pause, Happening::Mend(Mend::Candidate(who)));
    }

    fn device_fails(&mut self, node: usize, kind: &DeviceType) {
        let machine = &mut self.machines[node];
        let ids: Vec<DeviceId> =
            machine.whole().into_iter().filter(|id| machine.inventory.devices[id].kind == *kind).collect();
        let id = &ids[self.fate.below(ids.len() as u32) as usize];
        if let Some(device) = machine.inventory.devices.get_mut(id) {
            (device.healthy, device.reason) = (false, Some("XID 79".into()));
        }
        machine.device = None;
        self.note(|| format!("{id} of n{node} fails"));
        let pause = Duration::from_millis(u64::from(5000 + self.fate.below(60_000)));
        self.after(pause, Happening::Mend(Mend::Device(node)));
        self.devices_changed(node);
    }

    /// The machine is switched off and its Node deleted; later it comes back, with what is on its disk.
    fn lose_node(&mut self, node: usize) {
        if self.machines[node].lost.is_some() {
            return;
        }
        self.note(|| format!("n{node} is lost"));
        self.kill_daemon(node);
        let machine = &mut self.machines[node];
        (machine.lost, machine.kubelet.is_up) = (Some(self.now), false);
        machine.kubelet_life += 1;
        machine.goes_down();
        let name = machine.name.clone();
        self.store.remove_node(&name);
        let pause = Duration::from_millis(u64::from(20_000 + self.fate.below(80_000)));
        self.after(pause, Happening::Mend(Mend::Node(node)));
    }

    fn machine_breaks(&mut self, node: usize, fault: Fault, mend: Duration) {
        if self.machines[node].lost.is_some() {
            return;
        }
        let was_up = self.machines[node].daemon.is_some();
        if was_up {
            self.kill_daemon(node);
        }
        let size = self.machines[node].disk.len() as u32;
        match fault {
            Fault::LedgerTorn if size > 0 => {
                let at = self.fate.below(size) as usize;
                self.machines[node].disk.truncate(at);
            }
            Fault::LedgerLost | Fault::BothLost => self.machines[node].disk.clear(),
            Fault::Reboot => {
                self.machines[node].goes_down();
                self.restart_kubelet(node, false);
            }
            _ => {}
        }
        if fault == Fault::BothLost {
            self.restart_kubelet(node, true);
        }
        if was_up {
            self.after(mend, Happening::Mend(Mend::Daemon(node)));
        }
    }

    pub fn mend(&mut self, mend: Mend) {
        match mend {
            Mend::Candidate(who) if !self.process(who).is_up => match who {
                Candidate::Scheduler(at) => self.start_scheduler(at),
                Candidate::Controller(at) => self.start_controller(at),
            },
            Mend::Daemon(node) if self.machines[node].daemon.is_none() && self.machines[node].lost.is_none() => {
                self.start_daemon(node);
            }
            Mend::Node(node) => {
                self.note(|| format!("n{node} joins again"));
                (self.machines[node].lost, self.machines[node].joined) = (None, Some(self.now));
                self.store.node(self.machines[node].facts());
                self.restart_kubelet(node, false);
                self.start_daemon(node);
            }
            Mend::Device(node) => {
                let machine = &mut self.machines[node];
                for id in machine.whole() {
                    if let Some(device) = machine.inventory.devices.get_mut(&id) {
                        (device.healthy, device.reason) = (true, None);
                    }
                }
                machine.device = None;
                self.devices_changed(node);
            }
            Mend::DeviceCordon(node) => {
                let name = self.machines[node].name.clone();
                self.store.cordon_devices(&name, None);
            }
            Mend::Registration { node, life } if self.machines[node].kubelet_life == life => self.registers(node),
            Mend::Cordon(node) => {
                let name = self.machines[node].name.clone();
                self.store.change_node(&name, |facts| facts.unschedulable = false);
            }
            Mend::Clocks => {
                let now = self.now;
                self.schedulers.iter_mut().for_each(|of| of.process.jumps(SignedDuration::ZERO, now));
                self.controllers.iter_mut().for_each(|of| of.process.jumps(SignedDuration::ZERO, now));
            }
            _ => {}
        }
    }
}
