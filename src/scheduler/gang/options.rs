//! What an operator chooses for gangs.

use std::time::Duration;

use crate::contract::gang::{MAX_WAIT, MatchPolicy};
use crate::contract::word::words;
use crate::decide::scheduler::{GangPolicy, OnBindFailure, TimeoutClock};
use crate::decide::world::gangs::GangDefaults;

words!(TimeoutClock, "holding" => TimeoutClock::Holding, "pending" => TimeoutClock::Pending);
words!(OnBindFailure, "solo" => OnBindFailure::Solo, "evictGang" => OnBindFailure::EvictGang);

/// How gangs are treated where they do not say so themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangOptions {
    /// How long reserved members wait for the others.
    pub waiting_time: Duration,
    /// Which members count.
    pub match_policy: MatchPolicy,
    /// When the wait begins.
    pub timeout_clock: TimeoutClock,
    /// What becomes of the others when one member cannot be bound for good.
    pub on_bind_failure: OnBindFailure,
    /// PodGroups are made for gangs that are named by `pod-group.scheduling.sigs.k8s.io/name`.
    pub auto_create_pod_group: bool,
    /// `spec.schedulingGroup` names gangs, and PodGroups of `scheduling.k8s.io` are read.
    pub scheduling_group: bool,
    /// The condition of a member whose reason stays is rewritten at most this often.
    pub condition_pause: Duration,
}

impl Default for GangOptions {
    fn default() -> Self {
        let (defaults, policy) = (GangDefaults::default(), GangPolicy::default());
        Self {
            waiting_time: defaults.wait,
            match_policy: defaults.policy,
            timeout_clock: policy.clock,
            on_bind_failure: policy.on_bind_failure,
            auto_create_pod_group: policy.create_pod_groups,
            scheduling_group: defaults.scheduling_groups,
            condition_pause: policy.condition_pause,
        }
    }
}

impl GangOptions {
    /// What is wrong, by name of the key; `None` when it can work.
    pub fn problem(&self) -> Option<String> {
        let wait = self.waiting_time;
        (wait.is_zero() || wait > MAX_WAIT)
            .then(|| format!("gang-waiting-time is {wait:?}: give a value above zero and up to 7 days"))
    }

    /// What holds where a gang says nothing.
    pub fn defaults(&self) -> GangDefaults {
        GangDefaults { wait: self.waiting_time, policy: self.match_policy, scheduling_groups: self.scheduling_group }
    }

    /// How groups are treated.
    pub fn policy(&self) -> GangPolicy {
        GangPolicy {
            clock: self.timeout_clock,
            on_bind_failure: self.on_bind_failure,
            condition_pause: self.condition_pause,
            create_pod_groups: self.auto_create_pod_group,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_read_back_and_a_wait_without_end_is_refused() {
        for clock in [TimeoutClock::Holding, TimeoutClock::Pending] {
            assert_eq!(clock.to_string().parse(), Ok(clock));
        }
        for choice in [OnBindFailure::Solo, OnBindFailure::EvictGang] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!(GangOptions::default().problem(), None);
        for wait in [Duration::ZERO, MAX_WAIT + Duration::from_secs(1)] {
            let options = GangOptions { waiting_time: wait, ..GangOptions::default() };
            assert!(options.problem().unwrap().contains("gang-waiting-time"));
        }
    }
}
