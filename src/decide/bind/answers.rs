//! What the answers to a bind attempt's requests mean: the write of the lock, the Binding, and the read of a pod whose Binding's answer
//! was lost.

use std::time::Duration;

use crate::core::agenda::{Agenda, Step, Terms};
use crate::core::context::Context;
use crate::core::effect::{BindResult, Effect, LockResult, Ticket};
use crate::core::timers::Timer;
use crate::world::PodId;
use baton_contract::{LockRead, PodKey, PodUid, print_bind_timestamp};

use super::Binder;
use super::attempt::{BindAttempt, BindPhase, Cancel, Trouble};

impl Binder {
    /// The answer to a write of a lock.
    pub fn lock_answered(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: LockResult) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        let node = attempt.node;
        let BindPhase::Lock { since, .. } = attempt.phase else { return };
        // Unless it gets further, it waits for the lock as before.
        attempt.phase = BindPhase::Queue { since, not_before: Duration::ZERO };
        let again = |not_before| BindPhase::Queue { since, not_before };
        match result {
            LockResult::Done => {
                let value = attempt.lock_value.clone();
                attempt.trouble = Trouble::default();
                self.lock_waits.push(cx.terms.now.mono.saturating_sub(since));
                cx.world.observe_lock(node, LockRead::parse(value.as_deref()), cx.terms.now.mono);
                // The write may have been late: locks of another leader may have come and gone since it was decided.
                if let Some(attempt) = self.attempts.get_mut(&id)
                    && let Some(why) = attempt.outdated(cx.terms.scene(cx.world))
                {
                    attempt.cancelled.get_or_insert(Cancel::Requeue(why));
                }
                if !self.ended_by_cancel(cx, id) {
                    self.bind(cx.agenda, id);
                }
            }
            LockResult::Contended(read) => {
                cx.agenda.stats.binds.contended += 1;
                if read.raw() != attempt.lock_value.as_deref() {
                    attempt.lock_value = None;
                }
                let free = read == LockRead::Free;
                cx.world.observe_lock(node, read, cx.terms.now.mono);
                if self.ended_by_cancel(cx, id) {
                    return;
                }
                // The other lock is gone already: a pause avoids a loop of conflicts.
                let paused = free && self.pause(cx.terms, cx.agenda, id, None, again);
                self.queue_again(cx.terms, cx.agenda, id);
                if !paused {
                    self.advance(cx, node);
                }
            }
            LockResult::NodeGone => {
                attempt.lock_value = None;
                if !self.ended_by_cancel(cx, id) {
                    self.give_up(cx, id, "the node is gone".to_owned());
                }
            }
            LockResult::Failed(why, after) => {
                self.note_trouble(id, &why);
                if self.ended_by_cancel(cx, id) {
                    return;
                }
                if self.pause(cx.terms, cx.agenda, id, after, again) {
                    self.queue_again(cx.terms, cx.agenda, id);
                } else {
                    self.give_up(cx, id, why);
                }
            }
        }
    }

    /// The answer to a Binding.
    pub fn bind_answered(&mut self, cx: &mut Context<'_>, ticket: Ticket, result: BindResult) {
        let Some(id) = self.tickets.remove(&ticket) else { return };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match result {
            BindResult::Done => self.bound(cx, id),
            BindResult::NotFound => {
                self.end(cx, id);
                // Usually the deletion is on its way; if the watch still shows the pod later, it is tried again.
                cx.agenda.steps.push(Step::Fail(id));
            }
            BindResult::Conflict(_) => self.read(cx.agenda, id, None),
            BindResult::Refused(why) if attempt.may_arrive.is_some() => self.read(cx.agenda, id, Some(why)),
            BindResult::Refused(why) => {
                if !self.ended_by_cancel(cx, id) {
                    self.give_up(cx, id, why);
                }
            }
            BindResult::Unknown(why, after) => {
                let gone = attempt.cancelled.is_some();
                attempt.may_arrive = Some(cx.terms.now.mono + cx.terms.config.abandoned);
                self.note_trouble(id, &why);
                // The pod may be bound although the answer is lost: posting again cannot bind it twice, and a read shows it in the end.
                if gone || !self.pause(cx.terms, cx.agenda, id, after, BindPhase::PostAgain) {
                    self.read(cx.agenda, id, None);
                }
            }
        }
    }

    pub(super) fn read(&mut self, agenda: &mut Agenda, id: PodId, refused: Option<String>) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.phase = BindPhase::Confirm(refused);
        agenda.effects.push(Effect::ReadPod { pod: attempt.pod.key.clone() });
    }

    fn reading(&self, key: &PodKey) -> Option<PodId> {
        let reading = |(_, attempt): &(&PodId, &BindAttempt)| {
            attempt.pod.key == *key && matches!(attempt.phase, BindPhase::Confirm(_))
        };
        self.attempts.iter().find(reading).map(|(id, _)| *id)
    }

    /// A pod could not be read: it may be bound, so neither lock nor room is released.
    pub fn read_failed(&mut self, terms: Terms<'_>, agenda: &mut Agenda, key: &PodKey) {
        let Some(id) = self.reading(key) else { return };
        if let Some(attempt) = self.attempts.get_mut(&id)
            && let BindPhase::Confirm(refused) = &mut attempt.phase
        {
            let again = terms.now.mono + Duration::from_secs(1);
            attempt.phase = BindPhase::ConfirmAgain(again, refused.take());
            agenda.timers.set(again, Timer::BindAttempt(id));
        }
    }

    /// A live read of `key` found no pod, or one with this uid, `true` when it is being deleted. What was read is in the world already:
    /// of a pod that is bound, `seen_bound` has ended the attempt.
    pub fn read_done(&mut self, cx: &mut Context<'_>, key: &PodKey, found: Option<(&PodUid, bool)>) {
        let reading = self.reading(key);
        self.prove(cx, key, found.map(|(uid, _)| uid));
        let Some((id, attempt)) = reading.and_then(|id| Some((id, self.attempts.get_mut(&id)?))) else { return };
        let BindPhase::Confirm(refused) = &mut attempt.phase else { return };
        let refused = refused.take();
        if !found.is_some_and(|(uid, deleting)| attempt.pod.uid == *uid && !deleting) {
            attempt.cancelled = Some(Cancel::PodGone);
        }
        if self.ended_by_cancel(cx, id) {
            return;
        }
        if let Some(why) = refused {
            self.give_up(cx, id, why);
        } else if !self.pause(cx.terms, cx.agenda, id, None, BindPhase::PostAgain) {
            self.give_up(cx, id, "the Binding was not made in time".to_owned());
        }
    }

    /// The API shows the pod bound, by us or by another scheduler.
    pub fn seen_bound(&mut self, cx: &mut Context<'_>, id: PodId) {
        let (Some(attempt), Some(pod)) = (self.attempts.get(&id), cx.world.pod(id)) else { return };
        let stamp = pod.facts.handoff.assignment.bind_timestamp.as_deref();
        let ours = pod.node() == Some(attempt.node) && stamp == Some(print_bind_timestamp(attempt.time).as_str());
        if ours {
            self.bound(cx, id);
        } else {
            // Another scheduler was faster; its Binding counts.
            self.fail_request(id, "another scheduler has bound the pod");
            self.end(cx, id);
        }
    }

    fn ended_by_cancel(&mut self, cx: &mut Context<'_>, id: PodId) -> bool {
        let Some(why) = self.attempts.get_mut(&id).and_then(|attempt| attempt.cancelled.take()) else { return false };
        self.end_by(cx, id, why);
        true
    }

    /// Pauses an attempt after a transient failure, in this phase. `false` when failures have lasted too long.
    fn pause(
        &mut self,
        terms: Terms<'_>,
        agenda: &mut Agenda,
        id: PodId,
        at_least: Option<Duration>,
        phase: impl FnOnce(Duration) -> BindPhase,
    ) -> bool {
        let Some(attempt) = self.attempts.get_mut(&id) else { return false };
        let Some(until) = attempt.trouble.pause(terms.now.mono, terms.config.retry, at_least) else {
            return false;
        };
        attempt.phase = phase(until);
        agenda.timers.set(until, Timer::BindAttempt(id));
        true
    }

    fn queue_again(&mut self, terms: Terms<'_>, agenda: &mut Agenda, id: PodId) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let queue = self.queues.entry(attempt.node).or_default();
        queue.head = None;
        queue.waiting.insert(attempt.turn);
        self.watch_queue(terms, agenda, attempt.node);
    }
}
