//! The scheduling cycle of one pod that belongs to no gang: choose a node and reserve it, or report why there is none.

use crate::gang::{Gangs, Route};
use crate::tyjob::{PlaceRoute, TyJobs};
use crate::world::{NodeId, Place, Pod, PodId, Wake};

use crate::core::agenda::Step;
use crate::core::context::Context;
use crate::core::queue::Item;
use crate::core::reporter::WaitsFor;
use crate::core::rules::plugins::scheduling_gates;
use crate::core::select::choose::{Diagnosis, NodeChoice};
use baton_contract::ConditionReason;

/// Rule of pods that their TYJob holds back.
const JOB: &str = "TYJob";

/// Schedules one pod that was popped from the queue.
pub fn schedule_one(cx: &mut Context<'_>, gangs: &mut Gangs, tyjobs: &mut TyJobs, id: PodId) {
    let now = cx.terms.now.mono;
    let pinned = cx.reservations.pinned(id);
    let Some(pod) = cx.world.pod(id).filter(|pod| pod.place == Place::Waiting) else {
        return cx.agenda.queue.remove(id);
    };
    match tyjobs.route(cx.world, pod) {
        PlaceRoute::None => {}
        PlaceRoute::Place(job) => return tyjobs.take_place(cx, id, &job),
        PlaceRoute::Waits(why) => {
            // The job wakes it.
            cx.agenda.queue.park(id, Wake::NONE, now);
            let waits = gangs.waits_for(cx.world, cx.reservations, id);
            cx.report(id, ConditionReason::Unschedulable, why, waits);
            return cx.reporter.note_rules(id, [JOB]);
        }
    }
    if gangs.route(cx.world, cx.reservations, pod) != Route::Alone {
        // It has become a gang member meanwhile.
        return cx.agenda.enqueue(id);
    }
    cx.agenda.stats.attempts += 1;
    let (priority, deadline) = (pod.facts.spec.priority, pod.facts.spec.deadline);
    cx.earmarks.open_for(cx.terms, cx.world, &Item::Pod(id), priority, deadline);
    schedule_alone(cx, gangs, id, priority, pinned);
    cx.earmarks.close(cx.world);
}

/// Places a pod of no gang and no TYJob, or reports why it fits nowhere; nodes that are kept for others of lower priority are open.
fn schedule_alone(cx: &mut Context<'_>, gangs: &mut Gangs, id: PodId, priority: i32, pinned: Option<NodeId>) {
    let (now, item) = (cx.terms.now.mono, Item::Pod(id));
    let found = cx.placing().with_nominated(priority, id, |placing| placing.choose_gathered(id, pinned));
    let Some((choice, judged)) = found else { return };
    cx.agenda.stats.judged += judged;
    if pinned.is_some() && !matches!(choice, NodeChoice::Node(..)) {
        // Its bind cannot be resumed under its lock: it may go anywhere, and the lock is released after a while.
        cx.reservations.unpin(id);
        return cx.agenda.queue.activate(id);
    }
    match choice {
        NodeChoice::Node(node, slots) => {
            if cx.reservations.reserve(cx.terms, cx.world, id, node, *slots) {
                cx.agenda.queue.placed(&item);
                cx.preemption.placed(cx.agenda, id, node);
                cx.earmarks.end(cx.world, cx.agenda, &item);
                gangs.commit_alone(cx.terms.scene(cx.world), cx.reservations, cx.agenda, id);
                cx.agenda.steps.push(Step::Permit(id));
            } else {
                cx.agenda.queue.fail(id, now);
            }
        }
        NodeChoice::Nowhere(diagnosis) => fits_nowhere(cx, gangs, id, &diagnosis),
        NodeChoice::WaitUntil(at, refusal) => {
            cx.agenda.queue.wait_until(id, at);
            cx.report(id, ConditionReason::Unschedulable, refusal.text.into_owned(), WaitsFor::Itself);
            cx.reporter.note_rules(id, [refusal.rule]);
        }
        NodeChoice::Fault(text) => {
            cx.agenda.queue.fail(id, now);
            cx.report(id, ConditionReason::SchedulerError, text.into_owned(), WaitsFor::Itself);
        }
    }
}

/// No node fits a pod: others give way, victims are found, or it waits for the changes that may help it.
fn fits_nowhere(cx: &mut Context<'_>, gangs: &mut Gangs, id: PodId, diagnosis: &Diagnosis) {
    let (now, item) = (cx.terms.now.mono, Item::Pod(id));
    if diagnosis.pod.as_ref().is_some_and(|refusal| refusal.rule == scheduling_gates::NAME) {
        // The API server writes the gate into the condition; an autoscaler that reads ConditionReason::Unschedulable would add nodes.
        return cx.agenda.queue.park(id, diagnosis.wake, now);
    }
    cx.agenda.stats.unschedulable += 1;
    if !diagnosis.is_final() && gangs.resolve_for_pod(cx, id) {
        return;
    }
    let (reason, mut message) = (diagnosis.reason(), diagnosis.message());
    if !diagnosis.is_final()
        && let Some(way) = gangs.preempt_for_pod(cx, id)
    {
        message = format!("{message}; {way}");
    }
    // One for which room is made sees more of it than others.
    match cx.world.pod(id).filter(|_| cx.preemption.get(id).is_none()).map(Pod::alike) {
        Some(alike) => cx.agenda.queue.park_in_line(id, diagnosis.wake, alike, now),
        None => cx.agenda.queue.park(id, diagnosis.wake, now),
    }
    let name = cx.world.pod(id).map(|pod| format!("pod {}", pod.key())).unwrap_or_default();
    if !diagnosis.is_final()
        && let Some(kept) = cx.earmarks.consider(cx.terms, cx.world, cx.agenda, &item, &name, &[id])
    {
        message = format!("{message}; {kept}");
    }
    if cx.earmarks.all().iter().any(|earmark| *earmark.item() == item) {
        // So does one for which nodes are kept, since now or before.
        cx.agenda.queue.park(id, diagnosis.wake, now);
    }
    cx.report(id, reason, message, WaitsFor::Itself);
    cx.reporter.note_rules(id, diagnosis.rules());
}
