//! Telling the pod's owner: the condition carries the changing detail, the event only the change of state.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::decide::world::PodId;

use super::effect::{Effect, Effects};
use super::engine::{Engine, Timer};
use super::gang::Route;
use super::settings::Moment;

/// What was last written for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) at: Duration,
    /// Rules that refused at the last try.
    pub(super) rules: Box<[&'static str]>,
    /// A newer message that waits for the pause to end.
    pub(super) pending: Option<String>,
}

impl Engine {
    /// Says why a pod waits: at once when the reason is new, else at most once per pause.
    pub(super) fn tell(&mut self, id: PodId, reason: &'static str, message: String, now: Moment, out: &mut Effects) {
        let Some(found) = self.world.pod(id) else { return };
        let member = found.facts.spec.gang.is_some();
        let pause = if member { self.config.gangs.condition_pause } else { self.config.condition_pause };
        let pod = found.facts.handoff.pod.clone();
        if let Some(told) = self.told.get_mut(&id).filter(|told| told.reason == reason) {
            if told.message == message {
                told.pending = None;
                return;
            }
            if now.mono < told.at + pause {
                told.pending = Some(message);
                self.timers.insert((told.at + pause, Timer::Tell(id)));
                return;
            }
        } else {
            let text = message.clone();
            // A pod with a bad name is no member of anything: nobody else tells of it.
            let lost = member && reason == "InvalidGang" && self.world.gangs().gang_of(id).is_none();
            let event = if lost { reason } else { "FailedScheduling" };
            // Of a gang one event says it for all.
            if lost || self.route(found) == Route::Alone {
                out.push(Effect::Notice { pod: pod.clone(), warning: true, reason: event, message: text });
            }
        }
        let before = self.told.remove(&id);
        let first = before.is_none();
        let rules = before.map(|told| told.rules).unwrap_or_default();
        self.told.insert(id, Told { reason, message: message.clone(), at: now.mono, rules, pending: None });
        out.push(Effect::Condition { pod, reason, message, first });
    }

    /// Keeps which rules refused, for whoever asks, until the pod is on its way.
    pub(super) fn note_rules(&mut self, id: PodId, rules: impl IntoIterator<Item = &'static str>) {
        if let Some(told) = self.told.get_mut(&id) {
            told.rules = BTreeSet::from_iter(rules).into_iter().collect();
        }
    }

    pub(super) fn tell_pending(&mut self, id: PodId, now: Moment, out: &mut Effects) {
        let Some(told) = self.told.get_mut(&id) else { return };
        let reason = told.reason;
        if let Some(message) = told.pending.take() {
            self.tell(id, reason, message, now, out);
        }
    }
}
