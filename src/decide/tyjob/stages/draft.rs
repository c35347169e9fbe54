//! A step under way: its input, and the status and effects as far as they are decided.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::effect::JobEffect;
use super::view::{JobView, PodView};
use baton_contract::tyjob::{Allocation, Stage, TyJobSpec, TyJobStatus};
use baton_contract::{ConditionReason, EventReason};

/// Nodes that `status.nodes` names; the rest are counted.
const NODES_SHOWN: usize = 8;

pub(super) struct Draft<'a> {
    pub view: &'a JobView<'a>,
    pub pods: &'a [PodView],
    pub now: Timestamp,
    pub name: &'a str,
    /// The spec in force.
    pub spec: TyJobSpec,
    pub status: TyJobStatus,
    /// Uids of pods with restarts of containers that this step counts.
    pub restarted: BTreeSet<&'a str>,
    pub effects: Vec<JobEffect>,
}

impl<'a> Draft<'a> {
    pub fn new(view: &'a JobView<'a>, pods: &'a [PodView], now: Timestamp) -> Self {
        Self {
            view,
            pods,
            now,
            name: view.job.metadata.name.as_deref().unwrap_or_default(),
            spec: view.job.spec.clone(),
            status: view.job.status.clone().unwrap_or_default(),
            restarted: BTreeSet::new(),
            effects: Vec::new(),
        }
    }

    /// Pods of the present attempt, by name.
    pub fn pods_by_name(&self) -> BTreeMap<&'a str, &'a PodView> {
        let attempt = self.status.attempt;
        let present = self.pods.iter().filter(|pod| pod.attempt == Some(attempt));
        present.map(|pod| (pod.name.as_str(), pod)).collect()
    }

    /// The pod of a name, of any attempt.
    pub fn holder(&self, name: &str) -> Option<&'a PodView> {
        self.pods.iter().find(|pod| pod.name == name)
    }

    /// The place of a pod in the present attempt.
    pub fn allocation(&self, pod: &str) -> Option<&Allocation> {
        let attempt = self.status.attempt;
        self.status.allocations.iter().find(|place| place.pod == pod && place.attempt == attempt)
    }

    /// Writes an event of type `Normal`.
    pub fn event(&mut self, reason: EventReason, message: String) {
        self.effects.push(JobEffect::Event { warning: false, reason, message });
    }

    /// Writes an event of type `Warning`.
    pub fn warning(&mut self, reason: EventReason, message: String) {
        self.effects.push(JobEffect::Event { warning: true, reason, message });
    }

    /// Ends the job. Its pods go by the clean-up policy, in this step and all later ones.
    pub fn end(&mut self, stage: Stage, message: String) {
        self.status.stage = Some(stage);
        self.status.completion_time = Some(Time(self.now));
        self.status.message = Some(message);
    }

    /// Fills in what is derived from the rest.
    pub fn summarize(&mut self) {
        let status = &mut self.status;
        status.observed_generation = self.view.job.metadata.generation;
        status.total_workers = i32::try_from(self.spec.total_workers()).unwrap_or(i32::MAX);
        status.ready = Some(format!("{}/{}", status.ready_workers, status.total_workers));
        status.total_restarts = status.sum_of_restarts();
        let attempt = status.attempt;
        let places = status.allocations.iter().filter(|place| place.attempt == attempt);
        let nodes: BTreeSet<&str> = places.map(|place| place.node.as_str()).collect();
        let shown: Vec<&str> = nodes.iter().copied().take(NODES_SHOWN).collect();
        let more = nodes.len() - shown.len();
        let shown = shown.join(",");
        let text = if more > 0 { format!("{shown} +{more}") } else { shown };
        status.nodes = (!text.is_empty()).then_some(text);
        if let Some(message) = &mut status.message {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        }
    }
}

/// Longest message of a condition or a status, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Turns a condition to `True`. Returns whether it was not before.
pub fn set(status: &mut TyJobStatus, kind: &str, reason: ConditionReason, message: &str, now: Timestamp) -> bool {
    write(status, (kind, "True"), reason, message, now)
}

/// Writes a condition, by its type and status. The time of transition is kept unless the status changes. Returns whether it changed.
fn write(
    status: &mut TyJobStatus,
    (kind, word): (&str, &str),
    reason: ConditionReason,
    message: &str,
    now: Timestamp,
) -> bool {
    let message = &message[..message.floor_char_boundary(MAX_MESSAGE)];
    if let Some(found) = status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
        let turned = found.status != word;
        if turned {
            word.clone_into(&mut found.status);
            found.last_transition_time = Time(now);
        }
        reason.word().clone_into(&mut found.reason);
        message.clone_into(&mut found.message);
        return turned;
    }
    status.conditions.push(Condition {
        type_: kind.to_owned(),
        status: word.to_owned(),
        reason: reason.word().to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    true
}

/// Turns a condition that holds to `False`; one that was never set stays unset.
pub fn clear(status: &mut TyJobStatus, kind: &str, reason: ConditionReason, message: &str, now: Timestamp) {
    if status.holds(kind) {
        write(status, (kind, "False"), reason, message, now);
    }
}
