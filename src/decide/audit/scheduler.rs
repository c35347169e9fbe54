//! Whether a scheduler has lost or doubled a pod. It ships although only tests and the simulation ask: a program with rules of its own
//! judges its scheduler by it too.

use std::collections::BTreeSet;

use super::violation::Violation;
use super::world::check;
use crate::scheduler::Scheduler;
use crate::world::Place;

/// Checks a scheduler: its world, and that every pod of ours is exactly one of queued, reserved, being bound, bound and ended,
/// and in one commit of its gang at most.
pub fn check_scheduler(scheduler: &Scheduler, scheduler_name: &str) -> Vec<Violation> {
    let mut found = check(scheduler.world());
    for pod in scheduler.world().pods() {
        let handoff = &pod.facts.handoff;
        let ours = *handoff.scheduler_name == *scheduler_name;
        let binding = scheduler.binder().attempts().contains_key(&pod.id);
        let mut states = Vec::new();
        if binding {
            states.push("in flight");
        }
        match pod.place {
            Place::Waiting if scheduler.is_queued(pod) && !binding => states.push("queued"),
            Place::Assumed(_) if scheduler.reservations().get(pod.id).is_some() => states.push("held"),
            // Assumed without a bind attempt: bound by us, the watch is yet to show it.
            Place::Bound(_) | Place::Assumed(_) if !binding => states.push("bound"),
            Place::Ended if !binding => states.push("ended"),
            _ => {}
        }
        if ours && scheduler.is_leading() && handoff.deleting.is_none() && states.len() != 1 {
            found.push(Violation::States { pod: pod.key().to_string(), states });
        }
    }
    let mut committed = BTreeSet::new();
    for id in scheduler.gangs().committed() {
        if !committed.insert(id) {
            let pod = scheduler.world().pod(id).map_or_else(|| format!("{id:?}"), |pod| pod.key().to_string());
            found.push(Violation::CommittedTwice { pod });
        }
    }
    for (node, queue) in scheduler.binder().queues() {
        let here = |id| scheduler.binder().attempts().get(id).is_some_and(|attempt| attempt.node == *node);
        let sound = queue.waiting.iter().all(|(_, _, id)| here(id)) && queue.head.as_ref().is_none_or(here);
        let once = queue.head.is_none_or(|head| queue.waiting.iter().all(|(_, _, id)| *id != head));
        if !sound || !once {
            found.push(Violation::Line { node: format!("{node:?}") });
        }
    }
    found
}
