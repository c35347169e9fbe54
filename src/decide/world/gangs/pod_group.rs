//! What a PodGroup object says, in any of its APIs.

use std::time::Duration;

use jiff::Timestamp;

use super::declared::Fields;
use super::warning::Warning;
use crate::contract::gang::{GangId, PodGroupApi, PodGroupStatus};
use crate::decide::world::Resources;

/// One PodGroup object.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroupFacts {
    /// Which API it is of.
    pub api: PodGroupApi,
    /// Namespace and name: the gang.
    pub gang: GangId,
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// `metadata.resourceVersion`: precondition of writes.
    pub version: Box<str>,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// Its labels and annotations: the third level.
    pub annotated: Fields,
    /// Its `spec`: the fourth level. Only minimum and wait.
    pub spec: Fields,
    /// `spec.minResources`.
    pub min_resources: Resources,
    /// `status`, as it stands; what cannot be read is absent.
    pub status: PodGroupStatus,
    /// What is wrong with it.
    pub warnings: Vec<Warning>,
}

impl PodGroupFacts {
    /// An object that says nothing.
    pub fn new(api: PodGroupApi, gang: GangId) -> Self {
        Self {
            api,
            gang,
            uid: Box::default(),
            version: Box::default(),
            created: Timestamp::UNIX_EPOCH,
            annotated: Fields::default(),
            spec: Fields::default(),
            min_resources: Resources::default(),
            status: PodGroupStatus::default(),
            warnings: Vec::new(),
        }
    }

    /// Says the wait in seconds as `spec.scheduleTimeoutSeconds` does: only what is above zero counts.
    pub fn wait_seconds(seconds: i64) -> Option<Duration> {
        u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }
}
