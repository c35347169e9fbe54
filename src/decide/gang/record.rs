//! What the scheduler keeps of a group between attempts, and how it treats groups.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::contract::gang::{Committed, GangId, MatchPolicy, Mode};
use crate::decide::world::gangs::{Gang, GangProgress, Hold, Warning};
use crate::decide::world::{PodId, Resources};

use super::alike::Kind;
use super::pod_groups::Written;
use super::view::RootCause;

/// When a group's wait begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeoutClock {
    /// With the first member that is reserved and waits for others.
    #[default]
    Holding,
    /// With the first failed attempt of a complete group.
    Pending,
}

/// What becomes of the others when one member cannot be bound for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnBindFailure {
    /// Nothing: that pod alone is tried again.
    #[default]
    Solo,
    /// They are deleted, so that their controller starts the gang anew.
    EvictGang,
}

/// How groups are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangPolicy {
    /// When a group's wait begins.
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

/// One group.
#[derive(Debug, Clone, Default)]
pub(crate) struct GroupRecord {
    /// What people see.
    pub progress: GangProgress,
    /// Why it was held when it was last looked at: reason and message.
    pub held: Option<(&'static str, String)>,
    /// The same as each of its gangs has it.
    pub holds: Vec<Hold>,
    /// Monotonic time of the first reservation that waits for others.
    pub holding: Option<Duration>,
    /// Monotonic time since which the wait runs.
    pub clock: Option<Duration>,
    /// Reason of the last event about why the group waits.
    pub told: Option<&'static str>,
    /// Kinds of members that failed since the last useful event; they are offered last.
    pub failed: Vec<Kind>,
    /// What the gangs looked like at the last attempt that failed.
    pub tried: Option<Vec<Look>>,
    /// The member that found no place at the last attempt.
    pub root_cause: Option<RootCause>,
    /// What was last written to the PodGroups.
    pub written: BTreeMap<GangId, Written>,
    /// When a PodGroup that was made is made again, should nobody show it.
    pub made: BTreeMap<GangId, Duration>,
    /// What was told to be wrong with the declarations.
    pub warned: BTreeSet<(GangId, Warning)>,
    /// Wall time of the latest commit that this process has decided.
    pub attempt: Option<Timestamp>,
    /// The latest commit that was seen whole: what its members come to later does not break it.
    pub whole: Option<Committed>,
    /// Its latest commit was taken back, or nobody of it lives any more: what a PodGroup says of having been satisfied is of
    /// another generation, whatever the whole seconds of its time may suggest.
    pub outlived: bool,
    /// Members that are to be marked as timed out and are not yet.
    pub marking: BTreeSet<PodId>,
    /// Bindings of its members that were refused one after the other.
    pub bind_failures: u32,
    /// Monotonic time before which it is not tried, after a Binding that was refused.
    pub rest_until: Option<Duration>,
}

/// What of a gang makes another attempt worthwhile when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    min: Option<u32>,
    policy: MatchPolicy,
    mode: Mode,
    /// What its PodGroup asks for in all.
    resources: Option<Resources>,
    pending: u32,
    /// Members that count without being offered.
    counted: u32,
}

impl Look {
    /// The gang as it stands.
    pub fn of(gang: &Gang) -> Self {
        let (config, counts) = (gang.config(), gang.counts());
        let counted = crate::decide::world::gangs::rule::weight(config.policy, counts);
        let resources = gang.pod_group().filter(|object| !object.min_resources.is_zero());
        Self {
            min: config.min,
            policy: config.policy,
            mode: config.mode,
            resources: resources.map(|object| object.min_resources.clone()),
            pending: counts.pending,
            counted,
        }
    }
}
