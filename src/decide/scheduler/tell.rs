//! Telling the pod's owner: the condition carries the changing detail, the event only the change of state.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::PodUid;
use crate::decide::world::PodId;
use crate::decide::world::gangs::Warning;

use super::effect::{Effect, Effects};
use super::engine::{Engine, Timer};
use super::settings::Moment;
use crate::decide::gang::Route;

/// First and longest pause before a condition that was lost is written again.
const REWRITE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What was last written for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub(in crate::decide) reason: &'static str,
    pub(in crate::decide) message: Arc<str>,
    pub(in crate::decide) at: Duration,
    /// Rules that refused at the last try.
    pub(in crate::decide) rules: Box<[&'static str]>,
    /// A newer message that waits for the pause to end, or one that was lost and is written again.
    pub(in crate::decide) pending: Option<Arc<str>>,
    /// The last write made the condition False, as far as we know.
    first: bool,
    /// The last write did not come about.
    lost: bool,
    /// Writes that did not, in a row.
    failures: u32,
}

impl Engine {
    /// Says why a pod waits: at once when the reason is new, else at most once per pause.
    pub(in crate::decide) fn tell(
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
            let flag = self.world.gangs().defaults().scheduling_groups;
            let declared = found.facts.spec.gang.iter().filter(|_| lost).flat_map(|said| said.all_warnings(flag));
            let names = declared.filter(|warning| matches!(&**warning, Warning::TwoNames { .. }));
            for warning in names.map(Cow::into_owned).collect::<Vec<_>>() {
                self.notice(id, true, warning.reason(), warning.to_string(), out);
            }
            // Of a gang one event says it for all.
            if lost || self.route(found) == Route::Alone {
                self.notice(id, true, event, message.as_ref().to_owned(), out);
            }
        }
        self.tell_quietly(id, reason, &message, now, out);
    }

    /// Says why members of one gang wait: the same to all, and the gang's event has said it to people.
    pub(in crate::decide) fn tell_members(
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
    pub(in crate::decide) fn tell_quietly(
        &mut self,
        id: PodId,
        reason: &'static str,
        message: &Arc<str>,
        now: Moment,
        out: &mut Effects,
    ) {
        let Some(found) = self.world.pod(id) else { return };
        let member = found.facts.spec.gang.is_some();
        let pause = if member { self.config.gangs.condition_pause } else { self.config.condition_pause };
        let pod = found.facts.handoff.pod.clone();
        let first = match self.told.entry(id) {
            Entry::Vacant(entry) => {
                let message = Arc::clone(message);
                let (rules, at, first) = (Box::default(), now.mono, true);
                entry.insert(Told { reason, message, at, rules, pending: None, first, lost: false, failures: 0 });
                true
            }
            Entry::Occupied(mut entry) => {
                let told = entry.get_mut();
                if told.reason == reason && told.lost {
                    // It is written again when its time comes, with the latest text.
                    told.pending = Some(Arc::clone(message));
                    return;
                }
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
                // What never arrived was not the first.
                told.first &= told.lost;
                (told.lost, told.failures) = (false, 0);
                told.first
            }
        };
        out.push(Effect::Condition { pod, reason, message: Arc::clone(message), first });
    }

    /// Keeps which rules refused, for whoever asks, until the pod is on its way.
    pub(in crate::decide) fn note_rules(&mut self, id: PodId, rules: impl IntoIterator<Item = &'static str>) {
        if let Some(told) = self.told.get_mut(&id) {
            told.rules = BTreeSet::from_iter(rules).into_iter().collect();
        }
    }

    /// A pod goes on its way: what it was told does not hold any more, though its condition stays False until it is bound.
    pub(in crate::decide) fn told_before(&mut self, id: PodId) {
        let Some(told) = self.told.get_mut(&id) else { return };
        if told.lost {
            // What is written there nobody knows.
            self.told.remove(&id);
            return;
        }
        (told.reason, told.message, told.rules, told.pending) = ("", "".into(), Box::default(), None);
    }

    pub(in crate::decide) fn tell_pending(&mut self, id: PodId, now: Moment, out: &mut Effects) {
        if self.has_left_line(id) {
            self.told.remove(&id);
            return;
        }
        let Some(told) = self.told.get_mut(&id) else { return };
        let Some(message) = told.pending.take() else { return };
        let reason = told.reason;
        if !told.lost {
            return self.tell(id, reason, message, now, out);
        }
        (told.message, told.at, told.lost) = (Arc::clone(&message), now.mono, false);
        let first = told.first;
        if let Some(pod) = self.world.pod(id) {
            out.push(Effect::Condition { pod: pod.facts.handoff.pod.clone(), reason, message, first });
        }
    }

    /// A condition was not written: it is tried again, later each time, for as long as the pod waits.
    pub(in crate::decide) fn condition_lost(&mut self, pod: &PodUid, now: Moment) {
        let Some(id) = self.world.pod_id(pod) else { return };
        let Some(told) = self.told.get_mut(&id) else { return };
        if told.reason.is_empty() {
            self.told.remove(&id);
            return;
        }
        told.lost = true;
        if told.pending.is_none() {
            told.pending = Some(Arc::clone(&told.message));
        }
        let pause = REWRITE.0.saturating_mul(1 << told.failures.min(6)).min(REWRITE.1);
        told.failures += 1;
        self.timers.insert((now.mono + pause, Timer::Tell(id)));
    }
}
