//! Binds that another scheduler requests: it chooses the node; devices, lock and Binding are ours. Each is a bind attempt like any
//! other, but the caller waits for its end, and only for a short time.

use std::time::Duration;

use crate::core::agenda::Agenda;
use crate::core::context::Context;
use crate::core::extend;
use crate::core::rules::{Outcome, Slots};
use crate::core::select::choose::refused_by;
use crate::core::timers::Timer;
use crate::world::{NodeId, Place, PodFacts, PodId};
use baton_contract::{LockRead, PodRef};

use super::attempt::{BindPhase, Cancel};
use super::{BindAnswer, BindRequest, BindVerdict, Binder, RequestId};

impl Binder {
    /// Binds `pod` to `node` with devices chosen now; its attempt is queued behind those that wait for the same node.
    /// [`Binder::take_answers`] returns the answer soon after `wait` at the latest, unless a Binding is under way then.
    pub fn request_bind(&mut self, cx: &mut Context<'_>, id: RequestId, pod: &PodRef, node: &str, wait: Duration) {
        let request = BindRequest { id, deadline: cx.terms.now.mono + wait, wait, trouble: None };
        if let Err(verdict) = self.start_request(cx, request, pod, node) {
            self.answers.push(BindAnswer { request: id, verdict });
        }
    }

    /// The caller is gone. A bind whose Binding is not posted yet ends; a posted one is completed.
    pub fn cancel_request(&mut self, cx: &mut Context<'_>, request: RequestId) {
        let Some(id) = self.requests.iter().find(|(_, known)| known.id == request).map(|(id, _)| *id) else { return };
        if self.attempts.get(&id).is_some_and(|attempt| attempt.phase.is_before_post()) {
            self.end_request(cx, id, "the scheduler that requested the bind has left".to_owned());
        }
    }

    /// Answers since the last call.
    pub fn take_answers(&mut self) -> Vec<BindAnswer> {
        std::mem::take(&mut self.answers)
    }

    /// Pods whose bind another scheduler waits for, and how long it has waited.
    pub fn requests(&self, now: Duration) -> impl Iterator<Item = (PodId, Duration)> {
        let waited = move |request: &BindRequest| request.wait.saturating_sub(request.deadline.saturating_sub(now));
        self.requests.iter().map(move |(id, request)| (*id, waited(request)))
    }

    fn start_request(
        &mut self,
        cx: &mut Context<'_>,
        request: BindRequest,
        pod: &PodRef,
        node_name: &str,
    ) -> Result<(), BindVerdict> {
        let failed = |why: String| Err(BindVerdict::Failed(why));
        if !cx.terms.leading {
            return failed(
                "this scheduler does not lead, or does not know the whole cluster yet: try again".to_owned(),
            );
        }
        let Some(id) = cx.world.pod_id(&pod.uid) else { return Err(BindVerdict::Unknown) };
        let Some(known) = cx.world.pod(id) else { return Err(BindVerdict::Unknown) };
        if *known.key() != pod.key {
            return failed(format!("uid {} is the pod {}, not {}", pod.uid, known.key(), pod.key));
        }
        let Some((target, _)) = extend::known_node(cx.world, node_name) else {
            return failed(format!("node {node_name} is not known"));
        };
        let name_of = |id: NodeId| cx.world.node(id).map_or("", |node| &node.name);
        match known.place {
            Place::Bound(at) if at == target => return Err(BindVerdict::Bound),
            Place::Bound(at) => return failed(format!("pod {} is bound to node {} already", pod.key, name_of(at))),
            Place::Ended => return failed(format!("pod {} has ended", pod.key)),
            Place::Assumed(at) => {
                let going = self.attempts.get(&id).is_some_and(|attempt| attempt.cancelled.is_none());
                if at != target || !going {
                    return failed(format!("a bind of pod {} to node {} is under way", pod.key, name_of(at)));
                }
                self.answer(id, BindVerdict::Failed("the same bind was requested again".to_owned()));
                self.wait_for(cx.agenda, id, request);
                return Ok(());
            }
            Place::Waiting => {}
        }
        if known.facts.handoff.deleting.is_some() {
            return failed(format!("pod {} is being deleted", pod.key));
        }
        let facts = known.facts.clone();
        let slots = judge_request(cx, (id, &facts), (target, node_name)).map_err(BindVerdict::Failed)?;
        cx.agenda.queue.remove(id);
        self.wait_for(cx.agenda, id, request);
        if cx.reservations.reserve(cx.terms, cx.world, id, target, slots) {
            // The other scheduler has run its own Permit plugins.
            self.start(cx, id);
            Ok(())
        } else {
            self.requests.remove(&id);
            cx.agenda.enqueue(id);
            failed(format!("node {node_name}: a reservation was refused"))
        }
    }

    fn wait_for(&mut self, agenda: &mut Agenda, id: PodId, request: BindRequest) {
        agenda.timers.set(request.deadline, Timer::BindRequest(id));
        self.requests.insert(id, request);
    }

    /// The deadline of a bind request has passed.
    pub fn request_due(&mut self, cx: &mut Context<'_>, id: PodId) {
        let Some(request) = self.requests.get(&id).filter(|request| request.deadline <= cx.terms.now.mono) else {
            return;
        };
        let Some(attempt) = self.attempts.get(&id) else { return };
        let (node, wait) = (&attempt.node_name, request.wait);
        let mut why = match attempt.phase {
            BindPhase::Volumes { .. } => format!("the pod's volumes were not ready on node {node} within {wait:?}"),
            BindPhase::Queue { .. } => {
                let held = match cx.world.node(attempt.node).map(|node| &node.lock.read) {
                    Some(LockRead::Held { raw, .. } | LockRead::Malformed { raw }) => format!("which {raw:?} holds"),
                    _ => "for which other pods wait".to_owned(),
                };
                format!("waited {wait:?} for the lock of node {node}, {held}")
            }
            BindPhase::Lock { .. } => format!("the lock of node {node} could not be written within {wait:?}"),
            _ => format!("the Binding to node {node} was not made within {wait:?}"),
        };
        if let Some(trouble) = &request.trouble {
            why = format!("{why}: {trouble}");
        }
        self.end_request(cx, id, why);
    }

    /// Ends an attempt as soon as its pod is known not to be bound.
    fn end_request(&mut self, cx: &mut Context<'_>, id: PodId, why: String) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        match attempt.phase {
            // A Binding was posted and its outcome is unknown.
            BindPhase::PostAgain(_) => {
                attempt.cancelled = Some(Cancel::Requeue(why));
                self.read(cx.agenda, id, None);
            }
            BindPhase::ConfirmAgain(..) => attempt.cancelled = Some(Cancel::Requeue(why)),
            _ => self.cancel(cx, id, Cancel::Requeue(why)),
        }
    }

    /// Answers the scheduler that requested this pod's bind. `false` when none did.
    pub(super) fn answer(&mut self, id: PodId, verdict: BindVerdict) -> bool {
        let Some(request) = self.requests.remove(&id) else { return false };
        self.answers.push(BindAnswer { request: request.id, verdict });
        true
    }

    pub(super) fn fail_request(&mut self, id: PodId, why: &str) -> bool {
        self.answer(id, BindVerdict::Failed(why.to_owned()))
    }

    /// Fails all requests: this process starts or stops leading.
    pub(super) fn fail_requests(&mut self) {
        for id in self.requests.keys().copied().collect::<Vec<_>>() {
            self.fail_request(id, "this scheduler does not lead any more");
        }
    }

    /// Remembers a transient failure for the answer.
    pub(super) fn note_trouble(&mut self, id: PodId, trouble: &str) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.trouble = Some(trouble.to_owned());
        }
    }
}

/// Judges the pod by our rules on the node that its scheduler has chosen; nodes that are kept for others of lower priority are open to it.
fn judge_request(
    cx: &mut Context<'_>,
    (id, facts): (PodId, &PodFacts),
    (target, name): (NodeId, &str),
) -> Result<Slots, String> {
    cx.open_for(Some(id), facts);
    let judged = cx.placing().with_nominated(facts.spec.priority, id, |placing| -> Result<(Slots, Outcome), String> {
        let gone = || "the pod or the node is gone".to_owned();
        let (pod, node) = (placing.world.pod(id).ok_or_else(gone)?, placing.world.node(target).ok_or_else(gone)?);
        let mut slots = extend::prepare_ours(placing.view(), placing.terms.rules, pod)?;
        let outcome = extend::judge_ours(placing.view(), placing.terms.rules, pod, (target, node), &mut slots);
        Ok((slots, outcome))
    });
    cx.earmarks.close(cx.world);
    let (slots, outcome) = judged?;
    match outcome {
        Outcome::Fit => Ok(slots),
        Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => Err(refused_by(name, &no.text)),
        Outcome::Fault(text) => Err(format!("node {name}: {text}")),
    }
}
