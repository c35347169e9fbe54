//! Telling the pod's owner: the condition carries the changing detail, the event only the change of state.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::Arc;
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
    pub(super) message: Arc<str>,
    pub(super) at: Duration,
    /// Rules that refused at the last try.
    pub(super) rules: Box<[&'static str]>,
    /// A newer message that waits for the pause to end.
    pub(super) pending: Option<Arc<str>>,
}

impl Engine {
    /// Says why a pod waits: at once when the reason is new, else at most once per pause.
    pub(super) fn tell(
        &mut self,
        id: PodId,
        reason: &'static str,
        message: impl Into<Arc<str>>,
        now: Moment,
        out: &mut Effects,
    ) {
        let message = message.into();
        let Some(found) = self.world.pod(id) else { return };
        if self.told.get(&id).is_none_or(|told| told.reason != reason) {
            let member = found.facts.spec.gang.is_some();
            // A pod with a bad name is no member of anything: nobody else tells of it.
            let lost = member && reason == "InvalidGang" && self.world.gangs().gang_of(id).is_none();
            let event = if lost { reason } else { "FailedScheduling" };
            // Of a gang one event says it for all.
            if lost || self.route(found) == Route::Alone {
                self.notice(id, true, event, message.as_ref().to_owned(), out);
            }
        }
        self.tell_quietly(id, reason, &message, now, out);
    }

    /// Says why members of one gang wait: the same to all, and the gang's event has said it to people.
    pub(super) fn tell_members(
        &mut self,
        members: Vec<PodId>,
        reason: &'static str,
        message: impl Into<Arc<str>>,
        now: Moment,
        out: &mut Effects,
    ) {
        let message = message.into();
        members.into_iter().for_each(|id| self.tell_quietly(id, reason, &message, now, out));
    }

    /// The condition alone.
    fn tell_quietly(&mut self, id: PodId, reason: &'static str, message: &Arc<str>, now: Moment, out: &mut Effects) {
        let Some(found) = self.world.pod(id) else { return };
        let member = found.facts.spec.gang.is_some();
        let pause = if member { self.config.gangs.condition_pause } else { self.config.condition_pause };
        let pod = found.facts.handoff.pod.clone();
        let first = match self.told.entry(id) {
            Entry::Vacant(entry) => {
                let message = Arc::clone(message);
                entry.insert(Told { reason, message, at: now.mono, rules: Box::default(), pending: None });
                true
            }
            Entry::Occupied(mut entry) => {
                let told = entry.get_mut();
                if told.reason == reason && told.message == *message {
                    told.pending = None;
                    return;
                }
                if told.reason == reason && now.mono < told.at + pause {
                    told.pending = Some(Arc::clone(message));
                    self.timers.insert((told.at + pause, Timer::Tell(id)));
                    return;
                }
                (told.reason, told.message, told.at, told.pending) = (reason, Arc::clone(message), now.mono, None);
                false
            }
        };
        out.push(Effect::Condition { pod, reason, message: Arc::clone(message), first });
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
