//! The keys of the central scheduler that concern gangs.

use super::log::{Daemon, by_from_str, field};
use crate::contract::gang::{MatchPolicy, key};
use crate::decide::gang::{OnBindFailure, TimeoutClock};
use crate::ops::config::{Setting, Value};
use crate::scheduler::Options;

by_from_str!(TimeoutClock, OnBindFailure);

impl Value for MatchPolicy {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(key::MATCH_POLICY, text).map_err(|bad| format!("{text:?} {}", bad.rule))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

pub(super) fn gangs() -> Vec<Setting<Daemon<Options>>> {
    vec![
        field!(
            "gang-waiting-time",
            "DURATION",
            "How long reserved members of a gang wait for the others, where the gang does not say; up to 7 days",
            options.gangs.waiting_time
        ),
        field!(
            "gang-match-policy",
            "POLICY",
            "Which members count for a gang that does not say: only-waiting, waiting-and-running, waiting-running-succeed or \
             once-satisfied",
            options.gangs.match_policy
        ),
        field!(
            "timeout-clock",
            "holding|pending",
            "A gang's wait begins when a member is reserved, or with the first failed attempt of a complete gang",
            options.gangs.timeout_clock
        ),
        field!(
            "on-bind-failure",
            "solo|evictGang",
            "A member that cannot be bound for good: it alone is tried again, or the others are deleted",
            options.gangs.on_bind_failure
        ),
        field!(
            "auto-create-pod-group",
            "BOOL",
            "Make the PodGroup of a gang that is named by pod-group.scheduling.sigs.k8s.io/name",
            options.gangs.auto_create_pod_group
        ),
        field!(
            "scheduling-group",
            "BOOL",
            "Read spec.schedulingGroup of pods and the PodGroups of scheduling.k8s.io",
            options.gangs.scheduling_group
        ),
        field!(
            "gang-condition-pause",
            "DURATION",
            "A gang member's condition whose reason stays is rewritten at most this often",
            options.gangs.condition_pause
        ),
    ]
}
