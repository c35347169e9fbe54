//! Reports pods that wait for long in a node's lock queue, by conditions and events.

use std::time::Duration;

use jiff::Timestamp;

use crate::core::agenda::{Agenda, Scene, Terms};
use crate::core::reporter::Reporter;
use crate::core::timers::Timer;
use crate::lock::{Delay, Intent, WaitReason};
use crate::world::{Node, NodeId, PodId, without_devices};
use baton_contract::{ConditionReason, EventReason, LockRead};

use super::attempt::BindAttempt;
use super::intent::intent;
use super::{Binder, Outlook, ReportedLock};

/// Period of the check of a lock queue. Shorter waits, and waits for a lock that changed within this time, are not reported: a queue
/// that moves costs no write.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// A longer wait is reported even if the queue moves.
const SLOW_WAIT: Duration = Duration::from_secs(30);

impl Binder {
    /// Sets the timer for the next check of a queue in which pods wait.
    pub(super) fn watch_queue(&mut self, terms: Terms<'_>, agenda: &mut Agenda, node: NodeId) {
        let Some(queue) = self.queues.get_mut(&node).filter(|queue| queue.check_at.is_none()) else { return };
        if queue.waiting.is_empty() {
            return;
        }
        queue.check_at = Some(terms.now.mono + CHECK_PERIOD);
        agenda.timers.set(terms.now.mono + CHECK_PERIOD, Timer::LockQueue(node));
    }

    /// Reports the pods that have waited for long in the queue of a node.
    pub fn report_waits(&mut self, scene: Scene<'_>, reporter: &mut Reporter, agenda: &mut Agenda, node_id: NodeId) {
        let due = |at: Duration| at <= scene.terms.now.mono;
        let Some(queue) = self.queues.get_mut(&node_id).filter(|queue| queue.check_at.is_some_and(due)) else { return };
        queue.check_at = None;
        let waiting: Vec<PodId> = queue.waiting.iter().map(|(.., id)| *id).collect();
        let Some(node) = scene.world.node(node_id) else { return };
        let stands = node.lock.read != LockRead::Free && due(node.lock.first_seen + CHECK_PERIOD);
        let late = |id: &PodId| {
            let after = if stands { CHECK_PERIOD } else { SLOW_WAIT };
            // A scheduler that requested the bind reports itself.
            let since = self.attempts.get(id).and_then(BindAttempt::queued_since);
            since.is_some_and(|since| due(since + after)) && !self.requests.contains_key(id)
        };
        let late: Vec<PodId> = waiting.into_iter().filter(late).collect();
        if let Some(attempt) = late.first().and_then(|id| self.attempts.get(id)) {
            let text = match self.lock_report(scene, node, attempt).filter(|_| stands) {
                Some(reported) => {
                    let text = reported.text.clone();
                    if let Some(queue) = self.queues.get_mut(&node_id) {
                        queue.reported = Some(reported);
                    }
                    text
                }
                None => waits_for_turn(node).into(),
            };
            for id in late {
                if reporter.reason(id) != Some(ConditionReason::WaitingForNodeLock) {
                    agenda.event(scene.world, id, EventReason::WaitingForNodeLock, text.as_ref().to_owned());
                }
                reporter.condition(scene, agenda, id, ConditionReason::WaitingForNodeLock, &text);
            }
        }
        self.watch_queue(scene.terms, agenda, node_id);
    }

    /// Why a bind waits in its node's queue, in the words of its condition, and what keeps the lock's holder.
    pub fn lock_wait(&self, scene: Scene<'_>, attempt: &BindAttempt) -> Option<String> {
        let node = scene.world.node(attempt.node)?;
        let Some(report) = self.lock_report(scene, node, attempt) else { return Some(waits_for_turn(node)) };
        let delay = scene.world.holder_delay(node, scene.terms.now.wall);
        if let Some(holder) = scene.world.bare_holder(node, scene.terms.now.wall) {
            return Some(format!("{}; {} {}", report.text, holder.key(), without_devices(&node.name)));
        }
        Some(match delay.filter(|delay| delay.judge() > Delay::Usual) {
            Some(delay) => format!("{}; {}: {delay}", report.text, delay.holder),
            None => report.text.to_string(),
        })
    }

    /// A report about the present lock: its holder, since when, and how it ends.
    fn lock_report(&self, scene: Scene<'_>, node: &Node, attempt: &BindAttempt) -> Option<ReportedLock> {
        let raw = node.lock.read.raw()?;
        let intended = intent(scene, node, &attempt.claim());
        let (outlook, at) = match &intended {
            Intent::Wait { reason, recheck } => {
                let outlook = match reason {
                    WaitReason::Contended(_) => Outlook::Held,
                    WaitReason::UnknownHolder => Outlook::Unknown,
                    WaitReason::AgentNotSettled(_) => Outlook::AgentAway,
                };
                (outlook, *recheck)
            }
            Intent::Set | Intent::Own { .. } | Intent::TakeOver { .. } => (Outlook::Ending, None),
        };
        let last = self.queues.get(&attempt.node).and_then(|queue| queue.reported.as_ref());
        if let Some(known) = last.filter(|known| known.of.1 == outlook && *known.of.0 == *raw) {
            return Some(known.clone());
        }
        let then =
            at.map_or_else(String::new, |at| second(scene.terms.now.wall + at.saturating_sub(scene.terms.now.mono)));
        let seen = second(scene.terms.now.wall - scene.terms.now.mono.saturating_sub(node.lock.first_seen));
        let whose = match (&node.lock.read, scene.world.lock_pod(node, scene.terms.now.wall)) {
            (LockRead::Held { value, .. }, Some(pod)) => {
                format!("its lock, held by pod {pod} since {}", second(value.time))
            }
            (read, _) => format!("its lock, {}, seen first at {seen}", read.whose()?),
        };
        let end = match outlook {
            Outlook::Held => {
                format!(
                    "it is released when that pod has its devices; if it still stands at {then} and the node daemon \
                     reports, it is taken over"
                )
            }
            Outlook::Unknown => format!("if it still stands at {then}, it is taken over"),
            Outlook::AgentAway => {
                "it has expired, but only the node daemon, which does not report or has just started, \
                                   knows whether that pod was served"
                    .to_owned()
            }
            Outlook::Ending => {
                "that pod needs it no more, and the lock is about to be released or taken over".to_owned()
            }
        };
        let text = format!("goes to node {} and waits for {whose}: {end}", node.name);
        Some(ReportedLock { of: (raw.into(), outlook), text: text.into() })
    }

    /// `true` when the pod has left the lock queue: a pending report of its wait must not be written.
    pub fn has_left_queue(&self, id: PodId) -> bool {
        self.attempts.get(&id).is_some_and(|attempt| attempt.queued_since().is_none())
    }
}

fn waits_for_turn(node: &Node) -> String {
    format!("goes to node {} and waits for its turn there: devices are assigned to one pod after the other", node.name)
}

fn second(at: Timestamp) -> String {
    format!("{at:.0}")
}
