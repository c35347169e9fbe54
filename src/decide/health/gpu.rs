//! Health of GPUs and of their MIG instances. Shares follow the GPU they are of.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::xid::{XidAction, XidPolicy, xid_words};
use baton_contract::HealthReason;

/// When an unhealthy GPU is healthy again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryRule {
    /// Clean probes in a row.
    pub probes: u32,
    /// The first and the last of them are at least this far apart.
    pub span: Duration,
}

impl Default for RecoveryRule {
    fn default() -> Self {
        Self { probes: 3, span: Duration::from_secs(60) }
    }
}

/// What asking a GPU came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// It answered, is itself, and the driver wants nothing done. `stated`: the driver said so; an older one cannot say.
    Clean {
        /// Whether the driver reports recovery actions.
        stated: bool,
    },
    /// The driver wants something done with it; the text says what.
    Wants(String),
    /// It did not answer as it should; the text says how.
    Bad {
        /// Reason.
        reason: HealthReason,
        /// What happened.
        message: String,
    },
}

/// Why a GPU or an instance is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultCause {
    /// A critical error.
    Xid {
        /// Its number.
        xid: u64,
        /// What it leads to.
        action: XidAction,
    },
    /// A probe or scan.
    Probe {
        /// Reason.
        reason: HealthReason,
        /// What happened.
        message: String,
    },
}

impl FaultCause {
    /// Reason of the condition.
    pub fn reason(&self) -> HealthReason {
        match self {
            Self::Xid { action: XidAction::NeedsReset, .. } => HealthReason::XidNeedsReset,
            Self::Xid { action: XidAction::NeedsReboot, .. } => HealthReason::XidNeedsReboot,
            Self::Xid { .. } => HealthReason::Xid,
            Self::Probe { reason, .. } => *reason,
        }
    }

    /// The XID, where one is the cause.
    pub fn xid(&self) -> Option<u64> {
        match self {
            Self::Xid { xid, .. } => Some(*xid),
            Self::Probe { .. } => None,
        }
    }

    fn severity(&self) -> XidAction {
        match self {
            Self::Xid { action, .. } => *action,
            Self::Probe { .. } => XidAction::Unhealthy,
        }
    }
}

impl fmt::Display for FaultCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xid { xid, action: XidAction::NeedsReset } => write!(f, "{}; the GPU needs a reset", xid_words(*xid)),
            Self::Xid { xid, action: XidAction::NeedsReboot } => {
                write!(f, "{}; the node needs a reboot", xid_words(*xid))
            }
            Self::Xid { xid, .. } => f.write_str(&xid_words(*xid)),
            Self::Probe { message, .. } => f.write_str(message),
        }
    }
}

/// Health of one GPU or MIG device now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuStatus {
    /// May be handed out.
    Healthy,
    /// May not.
    Unhealthy {
        /// Why.
        cause: FaultCause,
        /// Since when, on the clock that the decisions were given.
        since: Duration,
    },
}

impl GpuStatus {
    /// May be handed out.
    pub fn is_healthy(&self) -> bool {
        matches!(self, Self::Healthy)
    }
}

/// A device that went out of service or came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthChange {
    /// The GPU.
    pub uuid: String,
    /// UUID of the MIG device, when only that one is concerned; `None` concerns the GPU with all its instances and shares.
    pub instance: Option<String>,
    /// Its status from here on.
    pub status: GpuStatus,
}

/// A critical error that keeps a GPU, or an instance of it, out of service; what a later daemon has to know, because the
/// driver reports it once. A probe finds again what a probe found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Ailment {
    /// The GPU.
    pub uuid: String,
    /// UUID of the MIG device, when only that one is concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The error.
    pub xid: u64,
}

/// What an XID came to: the action to count it under, and what changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventJudgement {
    /// What it leads to.
    pub action: XidAction,
    /// What went out of service by it; empty when it was out already.
    pub changes: Vec<HealthChange>,
}

/// One GPU or instance that is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GpuDown {
    cause: FaultCause,
    since: Duration,
    clean: u32,
    first_clean: Duration,
    /// An agent before this one saw it.
    recalled: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GpuTrack {
    whole: Option<GpuDown>,
    instances: BTreeMap<String, GpuDown>,
}

/// Health of every GPU of a node.
#[derive(Clone, Debug, Default)]
pub struct GpuHealth {
    policy: XidPolicy,
    rule: RecoveryRule,
    gpus: BTreeMap<String, GpuTrack>,
}

impl GpuHealth {
    /// Nothing known yet.
    pub fn new(policy: XidPolicy, rule: RecoveryRule) -> Self {
        Self { policy, rule, gpus: BTreeMap::new() }
    }

    /// The GPUs that the machine has now: new ones start healthy, absent ones are forgotten, the others keep their state.
    pub fn retain<'a>(&mut self, uuids: impl IntoIterator<Item = &'a str>) {
        let mut before = std::mem::take(&mut self.gpus);
        let keep = |uuid: &str| (uuid.to_owned(), before.remove(uuid).unwrap_or_default());
        self.gpus = uuids.into_iter().map(keep).collect();
    }

    /// The MIG devices that the machine has now: what is new starts healthy, though it may have the numbers of one that is gone.
    pub fn retain_instances(&mut self, is_there: impl Fn(&str, &str) -> bool) {
        for (uuid, track) in &mut self.gpus {
            track.instances.retain(|instance, _| is_there(uuid, instance));
        }
    }

    /// Status of a GPU, or of an instance, which is out of service with its GPU. An unknown GPU is unhealthy.
    pub fn status(&self, uuid: &str, instance: Option<&str>) -> GpuStatus {
        let Some(track) = self.gpus.get(uuid) else {
            let message = format!("{uuid} is not in this machine");
            return GpuStatus::Unhealthy {
                cause: FaultCause::Probe { reason: HealthReason::Gone, message },
                since: Duration::ZERO,
            };
        };
        let own = instance.and_then(|instance| track.instances.get(instance));
        track.whole.as_ref().or(own).map_or(GpuStatus::Healthy, GpuDown::status)
    }

    /// GPUs with something out of service: those to probe.
    pub fn ailing(&self) -> impl Iterator<Item = &str> {
        let ails = |track: &GpuTrack| track.whole.is_some() || !track.instances.is_empty();
        self.gpus.iter().filter(move |(_, track)| ails(track)).map(|(uuid, _)| uuid.as_str())
    }

    /// What a later daemon has to know.
    pub fn ailments(&self) -> Vec<Ailment> {
        let of_track = |(uuid, track): (&String, &GpuTrack)| {
            let whole = track.whole.iter().map(|down| (None, down));
            let downs = whole.chain(track.instances.iter().map(|(id, down)| (Some(id.clone()), down)));
            let ailment = |(instance, down): (Option<String>, &GpuDown)| {
                Some(Ailment { uuid: uuid.clone(), instance, xid: down.cause.xid()? })
            };
            downs.filter_map(ailment).collect::<Vec<_>>()
        };
        self.gpus.iter().flat_map(of_track).collect()
    }

    /// Takes over what the daemon before knew, under the present policy. A GPU that is not in this machine is forgotten.
    pub fn recall(&mut self, ailments: &[Ailment], now: Duration) -> Vec<HealthChange> {
        let mut changes = Vec::new();
        for Ailment { uuid, instance, xid } in ailments {
            changes.extend(self.event(Some(uuid), instance.as_deref(), *xid, now).changes);
            let track = self.gpus.get_mut(uuid);
            let down = track.and_then(|track| match instance {
                None => track.whole.as_mut(),
                Some(instance) => track.instances.get_mut(instance),
            });
            if let Some(down) = down {
                down.recalled = true;
            }
        }
        changes
    }

    /// Judges an XID. Without a UUID it concerns every GPU; with an instance only that one.
    pub fn event(&mut self, uuid: Option<&str>, instance: Option<&str>, xid: u64, now: Duration) -> EventJudgement {
        let action = self.policy.action(xid);
        let mut changes = Vec::new();
        if action >= XidAction::Unhealthy {
            let concerned = self.gpus.iter_mut().filter(|(known, _)| uuid.is_none_or(|uuid| uuid == known.as_str()));
            for (known, track) in concerned {
                let cause = FaultCause::Xid { xid, action };
                changes.extend(track.fail(known, instance.filter(|_| uuid.is_some()), cause, now));
            }
        }
        EventJudgement { action, changes }
    }

    /// Judges a probe or what a scan said of one GPU. Nothing for a GPU that is not known.
    pub fn observe(&mut self, uuid: &str, observation: &Observation, now: Duration) -> Vec<HealthChange> {
        let rule = self.rule;
        let Some(track) = self.gpus.get_mut(uuid) else { return Vec::new() };
        let (reason, message) = match observation {
            Observation::Clean { stated } => return track.clean(uuid, *stated, rule, now),
            Observation::Wants(message) => (HealthReason::RecoveryActionPending, message),
            Observation::Bad { reason, message } => (*reason, message),
        };
        let cause = FaultCause::Probe { reason, message: message.clone() };
        track.fail(uuid, None, cause, now).into_iter().collect()
    }
}

impl GpuDown {
    fn status(&self) -> GpuStatus {
        GpuStatus::Unhealthy { cause: self.cause.clone(), since: self.since }
    }

    /// Counts a clean probe; true when the device is healthy again.
    fn clean(&mut self, stated: bool, rule: RecoveryRule, now: Duration) -> bool {
        if self.clean == 0 {
            self.first_clean = now;
        }
        self.clean = self.clean.saturating_add(1);
        // A reset shows as the driver's own "nothing to do". Drivers that cannot say that leave it to the operator, who has to
        // stop the daemon for a reset. A reboot ends this process, and what is kept for the next one.
        let allowed = match self.cause.severity() {
            XidAction::NeedsReboot => false,
            XidAction::NeedsReset => stated || self.recalled,
            _ => true,
        };
        allowed && self.clean >= rule.probes && now.saturating_sub(self.first_clean) >= rule.span
    }
}

impl GpuTrack {
    fn fail(&mut self, uuid: &str, instance: Option<&str>, cause: FaultCause, now: Duration) -> Option<HealthChange> {
        let new = || GpuDown { cause: cause.clone(), since: now, clean: 0, first_clean: now, recalled: false };
        let part = instance.map(str::to_owned);
        let change = |status| Some(HealthChange { uuid: uuid.to_owned(), instance: part, status });
        let down = match instance {
            None => self.whole.as_mut(),
            Some(instance) => self.instances.get_mut(instance),
        };
        if let Some(down) = down {
            down.clean = 0;
            // The first cause stays, unless the new one asks for more or is the driver's own word on what a probe only felt.
            let says_more = cause.xid().is_some() && down.cause.xid().is_none();
            if cause.severity() > down.cause.severity() || says_more && cause.severity() == down.cause.severity() {
                down.cause = cause;
                down.recalled = false;
                return change(down.status());
            }
            return None;
        }
        let status = new().status();
        match instance {
            None => self.whole = Some(new()),
            Some(instance) => drop(self.instances.insert(instance.to_owned(), new())),
        }
        change(status)
    }

    fn clean(&mut self, uuid: &str, stated: bool, rule: RecoveryRule, now: Duration) -> Vec<HealthChange> {
        let mut changes = Vec::new();
        let mut back =
            |instance| changes.push(HealthChange { uuid: uuid.to_owned(), instance, status: GpuStatus::Healthy });
        if self.whole.as_mut().is_some_and(|down| down.clean(stated, rule, now)) {
            self.whole = None;
            back(None);
        }
        self.instances.retain(|instance, down| {
            let recovered = down.clean(stated, rule, now);
            if recovered {
                back(Some(instance.clone()));
            }
            !recovered
        });
        changes
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
