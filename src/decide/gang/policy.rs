//! How groups are treated.

use std::time::Duration;

use baton_contract::gang::TimeoutClock;
use baton_contract::word::word_enum;

word_enum! {
    /// What becomes of the others when one member cannot be bound for good.
    #[derive(Default)]
    OnBindFailure {
        /// Nothing: that pod alone is tried again.
        #[default]
        Solo = "solo",
        /// They are deleted, so that their controller starts the gang again.
        EvictGang = "evictGang",
    }
}

/// How groups are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangPolicy {
    /// When the wait of a group begins that does not say so itself.
    pub clock: TimeoutClock,
    /// What becomes of the others when one member cannot be bound for good.
    pub on_bind_failure: OnBindFailure,
    /// The condition of a member whose reason stays is rewritten at most this often. 60 s.
    pub condition_pause: Duration,
    /// PodGroups are made for gangs that are named by `pod-group.scheduling.sigs.k8s.io/name`.
    pub create_pod_groups: bool,
}

impl Default for GangPolicy {
    fn default() -> Self {
        Self {
            clock: TimeoutClock::default(),
            on_bind_failure: OnBindFailure::default(),
            condition_pause: Duration::from_secs(60),
            create_pod_groups: false,
        }
    }
}
