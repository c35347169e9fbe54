//! Whether a scheduler has lost or doubled a pod.

use super::violation::Violation;
use super::world::check;
use crate::decide::scheduler::Engine;
use crate::decide::world::Place;

/// Checks an engine: its world, and that every pod of ours is exactly one of queued, held, in flight, bound and ended.
pub fn check_engine(engine: &Engine, scheduler_name: &str) -> Vec<Violation> {
    let mut found = check(engine.world());
    for pod in engine.world().pods() {
        let handoff = &pod.facts.handoff;
        let ours = *handoff.scheduler_name == *scheduler_name;
        let flying = engine.flights().contains_key(&pod.id);
        let mut states = Vec::new();
        if flying {
            states.push("in flight");
        }
        match pod.place {
            Place::Waiting if engine.is_queued(pod) && !flying => states.push("queued"),
            Place::Assumed(_) if engine.holds().contains_key(&pod.id) => states.push("held"),
            // Assumed without a flight: bound by us, the watch is yet to show it.
            Place::Bound(_) | Place::Assumed(_) if !flying => states.push("bound"),
            Place::Ended if !flying => states.push("ended"),
            _ => {}
        }
        if ours && engine.is_leading() && handoff.deleting.is_none() && states.len() != 1 {
            found.push(Violation::States { pod: pod.key().to_string(), states });
        }
    }
    for (node, line) in engine.lines() {
        let here = |id| engine.flights().get(id).is_some_and(|flight| flight.node == *node);
        let sound = line.waiting.iter().all(|(_, _, id)| here(id)) && line.head.as_ref().is_none_or(here);
        let once = line.head.is_none_or(|head| line.waiting.iter().all(|(_, _, id)| *id != head));
        if !sound || !once {
            found.push(Violation::Line { node: format!("{node:?}") });
        }
    }
    found
}
