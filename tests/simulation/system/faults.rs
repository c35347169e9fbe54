//! What breaks, when, and for how long. Every fault is counted by its kind.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::SignedDuration;

use super::{Happening, Mutant, Reader, START, STORM, System};

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
    LateRequest = "a request is late", 6;
    LateAnswer = "an answer is late", 6;
    LostAnswer = "an answer is lost", 12;
    ServerError = "500", 15;
    TooManyRequests = "429", 10;
    Forbidden = "403 for a Binding", 6;
    Throttled = "PodResources is throttled", 15;
    PreferenceIgnored = "the kubelet ignores the preference", 100;
    KilledBeforeWriting = "a node daemon is killed in Allocate, before it writes", 12;
    KilledBeforeAnswering = "a node daemon is killed in Allocate, before it answers", 12;
    KubeletKilledInCall = "a kubelet is killed in Allocate", 8;
    DiskFull = "the ledger cannot be written", 8;
    SchedulerKilled = "a scheduler is killed", 0;
    SchedulerPaused = "a scheduler is paused", 0;
    SchedulerCut = "a scheduler is cut off", 0;
    SchedulerDeaf = "a scheduler's watches are late", 0;
    SchedulerLists = "a scheduler's watches expire", 0;
    DaemonKilled = "a node daemon is killed", 0;
    DaemonCut = "a node daemon is cut off", 0;
    DaemonDeaf = "a node daemon's watches are late", 0;
    DaemonLists = "a node daemon lists again, perhaps an old state", 0;
    DaemonMute = "a node daemon's Lease is not renewed", 0;
    KubeletRestarted = "a kubelet restarts", 0;
    KubeletCut = "a kubelet is cut off", 0;
    KubeletDeaf = "a kubelet's watch is late", 0;
    CheckpointLost = "a kubelet loses its checkpoint", 0;
    LedgerLost = "a ledger is lost", 0;
    LedgerTorn = "a ledger is torn", 0;
    BothLost = "ledger and checkpoint are lost", 0;
    Reboot = "a node reboots", 0;
    ClockSkew = "a scheduler's clock jumps", 0;
}

/// What works again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mend {
    Scheduler(usize),
    Daemon(usize),
    /// The daemon's plugins, at the kubelet of this life.
    Registration {
        node: usize,
        life: u64,
    },
    Cordon(usize),
    /// All clocks agree again.
    Clocks,
}

/// What is broken now, and what has been.
#[derive(Debug, Default)]
pub struct Faults {
    pub counts: BTreeMap<Fault, u64>,
    used: u32,
    cut: BTreeMap<Reader, Duration>,
    deaf: BTreeMap<Reader, Duration>,
    lists: BTreeSet<Reader>,
    paused: BTreeMap<usize, Duration>,
    mute: BTreeMap<usize, Duration>,
}

impl Faults {
    pub fn is_cut(&self, reader: Reader, now: Duration) -> bool {
        self.cut.get(&reader).is_some_and(|until| now < *until)
    }

    /// Until when a reader hears nothing, where it does not now.
    pub fn deaf_until(&self, reader: Reader, now: Duration) -> Option<Duration> {
        let until = self.cut.get(&reader).max(self.deaf.get(&reader)).copied();
        until.filter(|until| now < *until)
    }

    pub fn lists_again(&mut self, reader: Reader) -> bool {
        self.lists.remove(&reader)
    }

    pub fn paused_until(&self, scheduler: usize, now: Duration) -> Option<Duration> {
        self.paused.get(&scheduler).copied().filter(|until| now < *until)
    }

    pub fn is_mute(&self, node: usize, now: Duration) -> bool {
        self.mute.get(&node).is_some_and(|until| now < *until)
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
        match fault {
            Fault::SchedulerKilled if self.schedulers[at].is_up => {
                self.stop_scheduler(at);
                self.after(mend, Happening::Mend(Mend::Scheduler(at)));
            }
            Fault::SchedulerPaused => {
                self.faults.paused.insert(at, long);
            }
            Fault::SchedulerCut => {
                self.faults.cut.insert(Reader::Scheduler(at), long);
            }
            Fault::SchedulerDeaf => {
                self.faults.deaf.insert(Reader::Scheduler(at), brief);
            }
            Fault::SchedulerLists => {
                self.faults.lists.insert(Reader::Scheduler(at));
            }
            Fault::DaemonCut => {
                self.faults.cut.insert(Reader::Daemon(node), long);
            }
            Fault::DaemonDeaf => {
                self.faults.deaf.insert(Reader::Daemon(node), brief);
            }
            Fault::DaemonLists => {
                self.faults.lists.insert(Reader::Daemon(node));
            }
            Fault::DaemonMute => {
                let until = long + Duration::from_secs(90);
                self.faults.mute.insert(node, until);
            }
            Fault::KubeletRestarted => self.restart_kubelet(node, false),
            Fault::KubeletCut => {
                self.faults.cut.insert(Reader::Kubelet(node), long);
            }
            Fault::KubeletDeaf => {
                self.faults.deaf.insert(Reader::Kubelet(node), brief);
            }
            Fault::CheckpointLost => self.restart_kubelet(node, true),
            Fault::ClockSkew => {
                let minutes = i64::from(self.fate.below(31)) - 15;
                self.schedulers[at].skew = SignedDuration::from_mins(minutes);
            }
            Fault::DaemonKilled | Fault::LedgerLost | Fault::LedgerTorn | Fault::BothLost | Fault::Reboot => {
                self.machine_breaks(node, fault, mend);
            }
            _ => {}
        }
    }

    fn machine_breaks(&mut self, node: usize, fault: Fault, mend: Duration) {
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
                self.machines[node].kubelet.runtime.clear();
                self.machines[node].boot += u64::from(!self.is(Mutant::OldBootBelieved));
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
            Mend::Scheduler(at) if !self.schedulers[at].is_up => self.start_scheduler(at),
            Mend::Daemon(node) if self.machines[node].daemon.is_none() => self.start_daemon(node),
            Mend::Registration { node, life } if self.machines[node].kubelet_life == life => self.registers(node),
            Mend::Cordon(node) => {
                let name = self.machines[node].name.clone();
                self.store.change_node(&name, |facts| facts.unschedulable = false);
            }
            Mend::Clocks => self.schedulers.iter_mut().for_each(|of| of.skew = SignedDuration::ZERO),
            _ => {}
        }
    }
}
