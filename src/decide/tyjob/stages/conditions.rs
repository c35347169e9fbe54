//! Conditions of a job: set once, kept while nothing changes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::contract::tyjob::TyJobStatus;

/// Longest message of a condition, in bytes.
const MAX_MESSAGE: usize = 1024;

/// Sets a condition. The time of transition is kept unless the status changes. Answers whether the status changed.
pub fn set(status: &mut TyJobStatus, kind: &str, holds: bool, reason: &str, message: &str, now: Timestamp) -> bool {
    let word = if holds { "True" } else { "False" };
    let message = &message[..message.floor_char_boundary(MAX_MESSAGE)];
    if let Some(found) = status.conditions.iter_mut().find(|condition| condition.type_ == kind) {
        let turned = found.status != word;
        if turned {
            word.clone_into(&mut found.status);
            found.last_transition_time = Time(now);
        }
        reason.clone_into(&mut found.reason);
        message.clone_into(&mut found.message);
        return turned;
    }
    status.conditions.push(Condition {
        type_: kind.to_owned(),
        status: word.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    });
    true
}

/// Turns a condition that holds to `False`; one that was never set stays unset.
pub fn clear(status: &mut TyJobStatus, kind: &str, reason: &str, message: &str, now: Timestamp) {
    if status.holds(kind) {
        set(status, kind, false, reason, message, now);
    }
}
