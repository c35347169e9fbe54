//! How a bind attempt ends: bound, given up, or void. Its room and its lock go only when no Binding of it can still be made.

use std::time::Duration;

use crate::core::agenda::{Agenda, BindEvent, Step, Terms};
use crate::core::context::Context;
use crate::core::placing::Rooms;
use crate::core::timers::Timer;
use crate::lock::ReleaseReason;
use crate::world::{NodeId, PodId, Wake};
use baton_contract::EventReason;

use super::attempt::{BindAttempt, BindPhase, Cancel, Turn};
use super::{BindVerdict, Binder};

impl Binder {
    /// Completes an attempt whose pod is bound by us.
    pub(super) fn bound(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(attempt) = self.forget(id) else { return };
        cx.reporter.forget(id);
        if let Some(commit) = attempt.commit {
            cx.agenda.steps.push(Step::Bind(BindEvent::Bound(id, commit)));
        }
        cx.agenda.stats.binds.bound += 1;
        cx.agenda.queue.remove(id);
        // The scheduler that requested the bind writes the event itself.
        if !self.answer(id, BindVerdict::Bound) {
            let message = format!("Successfully assigned {} to {}", attempt.pod.key, attempt.node_name);
            cx.agenda.event(cx.world, id, EventReason::Scheduled, message);
        }
        if let Some(pod) = cx.world.pod(id) {
            let waited = cx.terms.now.wall.duration_since(pod.facts.handoff.created);
            self.pod_waits.push(Duration::try_from(waited).unwrap_or_default());
        }
        if let Some(raw) = attempt.lock_value.filter(|_| !attempt.locks) {
            // The kubelet calls for no device of this pod, so the node daemon does not release the lock.
            self.release_lock(cx.world, cx.agenda, attempt.node, &raw, ReleaseReason::NoCall);
        }
        cx.agenda.wake(Wake::POD_PLACED);
        self.advance(cx, attempt.node);
    }

    /// Ends an attempt whose pod cannot be bound by us any more, and releases its lock and its room.
    pub(super) fn end(&mut self, cx: &mut Context<'_>, id: PodId) {
        if let Some(commit) = self.end_quietly(cx, id) {
            cx.agenda.steps.push(Step::Bind(BindEvent::Ended(id, commit)));
        }
    }

    /// [`Binder::end`] without an event; returns the pod's commit.
    fn end_quietly(&mut self, cx: &mut Context<'_>, id: PodId) -> Option<u64> {
        let node = self.attempts.get(&id)?.node;
        self.fail_request(id, "the pod is gone or changed while it was being bound");
        let commit = self.withdraw(&mut cx.rooms(), id);
        self.advance(cx, node);
        commit
    }

    /// Removes an attempt and releases its lock and its room; returns the pod's commit.
    pub fn withdraw(&mut self, rooms: &mut Rooms<'_>, id: PodId) -> Option<u64> {
        let Rooms { terms, world, reservations, agenda } = rooms;
        let attempt = self.forget(id)?;
        if let Some(raw) = attempt.lock_value {
            self.release_lock(world, agenda, attempt.node, &raw, ReleaseReason::BindFailed);
        }
        reservations.free(*terms, world, agenda, id, attempt.node);
        attempt.commit
    }

    /// Ends an attempt whose commit is void; its gang queues the pod again. One whose Binding may still be made goes on by itself.
    pub fn take_back(&mut self, cx: &mut Context<'_>, id: PodId) {
        let now = cx.terms.now.mono;
        match self.attempts.get_mut(&id).filter(|attempt| attempt.may_arrive(now)) {
            Some(attempt) => {
                attempt.commit = None;
                self.cancel(cx, id, Cancel::Requeue("its gang is decided again".to_owned()));
            }
            None => _ = self.withdraw(&mut cx.rooms(), id),
        }
    }

    /// Ends an attempt after a final failure, once no Binding of it can still be made; the pod is queued again.
    pub(super) fn give_up(&mut self, cx: &mut Context<'_>, id: PodId, why: String) {
        if self.stays(cx.terms, cx.agenda, id, Some(&why)) {
            return self.note_trouble(id, &why);
        }
        cx.agenda.stats.binds.failed += 1;
        let requested = self.fail_request(id, &why);
        let commit = self.end_quietly(cx, id);
        cx.agenda.steps.push(Step::Bind(BindEvent::Failed { pod: id, commit, why, requested }));
    }

    /// Ends an attempt as soon as no request is under way for it.
    pub fn cancel(&mut self, cx: &mut Context<'_>, id: PodId, why: Cancel) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match attempt.phase.due() {
            None => attempt.cancelled = Some(why),
            Some(_) => self.end_by(cx, id, why),
        }
    }

    pub(super) fn end_by(&mut self, cx: &mut Context<'_>, id: PodId, why: Cancel) {
        match why {
            Cancel::PodGone => self.end(cx, id),
            Cancel::Requeue(why) => {
                self.fail_request(id, &why);
                if self.stays(cx.terms, cx.agenda, id, None) {
                    if let Some(attempt) = self.attempts.get_mut(&id) {
                        attempt.cancelled = Some(Cancel::Requeue(why));
                    }
                    return;
                }
                // The pod is not the cause: it is tried at once.
                self.end(cx, id);
                cx.agenda.steps.push(Step::Retry(id));
            }
        }
    }

    /// `true` while a Binding that was posted may still be made: the attempt keeps lock and room, and the pod is read again.
    fn stays(&mut self, terms: Terms<'_>, agenda: &mut Agenda, id: PodId, refused: Option<&str>) -> bool {
        let now = terms.now.mono;
        let Some(attempt) = self.attempts.get_mut(&id).filter(|attempt| attempt.may_arrive(now)) else { return false };
        let (_, longest) = terms.config.retry.pauses;
        let again = attempt.may_arrive.map_or(now, |until| until.min(now + longest));
        if let Some(queue) = self.queues.get_mut(&attempt.node)
            && queue.waiting.remove(&attempt.turn)
        {
            queue.head = queue.head.or(Some(id));
        }
        attempt.phase = BindPhase::ConfirmAgain(again, refused.map(str::to_owned));
        agenda.timers.set(again, Timer::BindAttempt(id));
        true
    }

    /// Queues the pods again that wait on a node for their volumes or its lock after a decision that is void now, the last in line first:
    /// those before it may have its devices then. A Binding that was posted may still arrive: its pod keeps its lock and its devices.
    pub fn requeue_outdated(&mut self, cx: &mut Context<'_>, node: NodeId) {
        let here = self.attempts.values().filter(|attempt| attempt.node == node);
        let mut turns: Vec<Turn> = here.map(|attempt| attempt.turn).collect();
        turns.sort_unstable();
        for (.., id) in turns.into_iter().rev() {
            if let Some(attempt) = self.attempts.get(&id).filter(|attempt| attempt.may_give_up(cx.world))
                && let Some(why) = attempt.outdated(cx.terms.scene(cx.world))
            {
                self.cancel(cx, id, Cancel::Requeue(why));
            }
        }
    }

    /// Removes an attempt from every table; its room stays taken in the world.
    pub(super) fn forget(&mut self, id: PodId) -> Option<BindAttempt> {
        let attempt = self.attempts.remove(&id)?;
        if let BindPhase::Lock { ticket, .. } | BindPhase::Post(ticket) = attempt.phase {
            self.tickets.remove(&ticket);
        }
        self.preparing.remove(&id);
        if let Some(queue) = self.queues.get_mut(&attempt.node) {
            queue.waiting.remove(&attempt.turn);
            queue.head = queue.head.filter(|head| *head != id);
            if queue.is_empty() {
                self.queues.remove(&attempt.node);
            }
        }
        Some(attempt)
    }
}
