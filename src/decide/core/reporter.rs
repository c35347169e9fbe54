//! Reports why a pod waits: its condition carries the changing detail, an event only the change of the reason.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::world::gangs::Warning;
use crate::world::{PodId, World};
use baton_contract::{ConditionReason, EventReason, PodUid};

use super::agenda::{Agenda, Scene, Step};
use super::effect::Effect;
use super::timers::Timer;

/// First and longest pause before a lost condition is written again.
const REWRITE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was last written for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reported {
    /// `None` while the pod is being bound.
    reason: Option<ConditionReason>,
    message: Arc<str>,
    /// When; `None` where the next message is written at once.
    at: Option<Duration>,
    /// Rules that refused the last attempt.
    rules: Box<[&'static str]>,
    /// A newer message that waits for the end of the pause, or a lost one that is written again.
    pending: Option<Arc<str>>,
    /// The last write made the condition False, as far as is known.
    first: bool,
    /// The last write failed.
    lost: bool,
    /// Failed writes in a row.
    failures: u32,
}

/// For whose place a pod waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitsFor {
    /// For its own.
    Itself,
    /// For those of its gang, which is reported on as a whole.
    Gang,
}

/// What was reported of each pod that waits.
#[derive(Debug, Clone, Default)]
pub struct Reporter {
    reported: BTreeMap<PodId, Reported>,
    /// What pods were warned of that they say of themselves.
    warned: BTreeMap<PodId, BTreeSet<Warning>>,
}

impl Reporter {
    /// Reports why a pod waits: a new reason at once, and as an event; another message of the same reason at most once per pause.
    pub fn report(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: PodId,
        reason: ConditionReason,
        message: &Arc<str>,
        waits: WaitsFor,
    ) {
        let Some(found) = scene.world.pod(id) else { return };
        if self.reason(id) != Some(reason) {
            let member = found.facts.spec.gang.is_some();
            // A pod with a bad name is a member of no gang, so no gang reports for it.
            let invalid = member && reason == ConditionReason::InvalidGang && scene.world.gangs().gang_of(id).is_none();
            let event = if invalid { EventReason::InvalidGang } else { EventReason::FailedScheduling };
            let defaults = scene.world.gangs().defaults();
            let declared =
                found.facts.spec.gang.iter().filter(|_| invalid).flat_map(|gang| gang.all_warnings(defaults));
            let names = declared.filter(|warning| matches!(&**warning, Warning::TwoNames { .. }));
            let warnings: Vec<Warning> = names.map(std::borrow::Cow::into_owned).collect();
            for warning in warnings {
                agenda.warning(scene.world, id, warning.reason(), warning.to_string());
            }
            if invalid || waits == WaitsFor::Itself {
                agenda.warning(scene.world, id, event, message.as_ref().to_owned());
                return self.condition(scene, agenda, id, reason, message);
            }
        }
        match waits {
            WaitsFor::Itself => self.condition(scene, agenda, id, reason, message),
            WaitsFor::Gang => self.member(scene, agenda, id, reason, message),
        }
    }

    /// The condition of a member that waits with its gang, and an event where the state of the gang has changed, not the words alone.
    fn member(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: PodId,
        reason: ConditionReason,
        message: &Arc<str>,
    ) {
        let news = |before: &Reported| {
            before.reason != Some(reason) || before.at.is_none() && before.message != *message && !before.lost
        };
        // The timeout was reported when it came, before the marks could be written.
        let reported = reason == ConditionReason::GangTimeout;
        if !reported && self.reported.get(&id).is_none_or(news) {
            agenda.warning(scene.world, id, event_of(reason), message.as_ref().to_owned());
        }
        self.condition(scene, agenda, id, reason, message);
    }

    /// Writes only the condition.
    pub fn condition(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: PodId,
        reason: ConditionReason,
        message: &Arc<str>,
    ) {
        let Some(found) = scene.world.pod(id) else { return };
        let member = found.facts.spec.gang.is_some();
        let pause = if member { scene.terms.config.gangs.condition_pause } else { scene.terms.config.condition_pause };
        let pod = found.facts.handoff.pod.clone();
        let now = scene.terms.now.mono;
        let first = match self.reported.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(Reported {
                    reason: Some(reason),
                    message: Arc::clone(message),
                    at: Some(now),
                    rules: Box::default(),
                    pending: None,
                    first: true,
                    lost: false,
                    failures: 0,
                });
                true
            }
            Entry::Occupied(mut entry) => {
                let reported = entry.get_mut();
                if reported.reason == Some(reason) && reported.lost {
                    // The repeated write takes the latest message.
                    reported.pending = Some(Arc::clone(message));
                    return;
                }
                if reported.reason == Some(reason) && reported.message == *message {
                    reported.pending = None;
                    return;
                }
                let open =
                    reported.at.map(|at| at + pause).filter(|open| reported.reason == Some(reason) && now < *open);
                if let Some(open) = open {
                    reported.pending = Some(Arc::clone(message));
                    agenda.timers.set(open, Timer::Report(id));
                    return;
                }
                (reported.reason, reported.message, reported.at, reported.pending) =
                    (Some(reason), Arc::clone(message), Some(now), None);
                // If the first write was lost, this one is the first.
                reported.first &= reported.lost;
                (reported.lost, reported.failures) = (false, 0);
                reported.first
            }
        };
        agenda.effects.push(Effect::Condition { pod, reason, message: Arc::clone(message), first });
    }

    /// Reports to the members of one gang that wait with it, with one message.
    pub fn conditions(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        members: Vec<PodId>,
        reason: ConditionReason,
        message: impl Into<Arc<str>>,
    ) {
        let message = message.into();
        members.into_iter().for_each(|id| self.member(scene, agenda, id, reason, &message));
    }

    /// What is reported next of the pod is written at once: what is written says something wrong.
    pub fn end_pause(&mut self, id: PodId) {
        if let Some(reported) = self.reported.get_mut(&id) {
            reported.at = None;
        }
    }

    /// Reason of the last condition.
    pub fn reason(&self, id: PodId) -> Option<ConditionReason> {
        self.reported.get(&id).and_then(|reported| reported.reason)
    }

    /// The latest message about a waiting pod, and the rules that refused.
    pub fn latest(&self, id: PodId) -> Option<(&str, &[&'static str])> {
        let reported = self.reported.get(&id).filter(|reported| !reported.message.is_empty())?;
        Some((reported.pending.as_ref().unwrap_or(&reported.message), &reported.rules))
    }

    /// Stores which rules refused, for explanations, until the pod is being bound.
    pub fn note_rules(&mut self, id: PodId, rules: impl IntoIterator<Item = &'static str>) {
        if let Some(reported) = self.reported.get_mut(&id) {
            reported.rules = BTreeSet::from_iter(rules).into_iter().collect();
        }
    }

    /// The pod is being bound: the report is void, though the condition stays False until the pod is bound.
    pub fn binding(&mut self, id: PodId) {
        let Some(reported) = self.reported.get_mut(&id) else { return };
        if reported.lost {
            // The content of the condition is unknown.
            self.reported.remove(&id);
            return;
        }
        (reported.reason, reported.message, reported.rules, reported.pending) = (None, "".into(), Box::default(), None);
    }

    /// Forgets a pod that is bound or gone.
    pub fn forget(&mut self, id: PodId) {
        self.reported.remove(&id);
        self.warned.remove(&id);
    }

    /// Says once what is wrong with what a waiting pod says of itself, where no gang reports for it.
    pub fn warn_once(&mut self, world: &World, agenda: &mut Agenda, id: PodId, warning: Warning) {
        let (reason, text) = (warning.reason(), warning.to_string());
        if self.warned.entry(id).or_default().insert(warning) {
            agenda.warning(world, id, reason, text);
        }
    }

    /// Writes the pending message.
    pub fn due(&mut self, scene: Scene<'_>, agenda: &mut Agenda, id: PodId) {
        let Some(reported) = self.reported.get_mut(&id) else { return };
        let (Some(reason), Some(message)) = (reported.reason, reported.pending.take()) else { return };
        if !reported.lost {
            return agenda.steps.push(Step::Report(id, reason, message));
        }
        (reported.message, reported.at, reported.lost) = (Arc::clone(&message), Some(scene.terms.now.mono), false);
        let first = reported.first;
        if let Some(pod) = scene.world.pod(id) {
            agenda.effects.push(Effect::Condition { pod: pod.facts.handoff.pod.clone(), reason, message, first });
        }
    }

    /// The write of a condition failed: it is repeated at growing intervals while the pod waits.
    pub fn condition_lost(&mut self, scene: Scene<'_>, agenda: &mut Agenda, pod: &PodUid) {
        let Some(id) = scene.world.pod_id(pod) else { return };
        let Some(reported) = self.reported.get_mut(&id) else { return };
        if reported.reason.is_none() {
            return self.forget(id);
        }
        reported.lost = true;
        if reported.pending.is_none() {
            reported.pending = Some(Arc::clone(&reported.message));
        }
        let pause = REWRITE.0.saturating_mul(1 << reported.failures.min(6)).min(REWRITE.1);
        reported.failures += 1;
        agenda.timers.set(scene.terms.now.mono + pause, Timer::Report(id));
    }
}

/// The event that goes with the condition of a gang's member.
const fn event_of(reason: ConditionReason) -> EventReason {
    match reason {
        ConditionReason::GangIncomplete => EventReason::GangIncomplete,
        ConditionReason::GangGroupMismatch => EventReason::GangGroupMismatch,
        ConditionReason::WaitingForPodGroup => EventReason::WaitingForPodGroup,
        ConditionReason::InvalidGang => EventReason::InvalidGang,
        _ => EventReason::Unschedulable,
    }
}
