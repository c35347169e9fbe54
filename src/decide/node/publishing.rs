//! What schedulers have to know of this node's pods: where it is not as annotations and lock say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::seen::Facts;
use super::unlocking::ServedLock;
use crate::handoff::LedgerEntry;
use crate::handoff::exceptions::exceptions;
use crate::handoff::leaving::leaving;
use baton_contract::{Exceptions, LeavingPod, PodKey, PodUid, Shared};

/// Between two looks: what comes in a burst is looked at once.
pub const PAUSE: Duration = Duration::from_millis(50);
/// Between two looks while a pod leaves.
pub const LEAVING_AGAIN: Duration = Duration::from_secs(1);

/// What is not as pods' annotations and the node's lock let schedulers believe. Empty in normal operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HandoffStatus {
    /// Pods that hold other devices than their annotations say.
    pub exceptions: Exceptions,
    /// Those of them that have left, and whose processes have not.
    pub leaving: BTreeMap<PodUid, LeavingPod>,
    /// The lock of a served holder that could not be removed.
    pub unreleased: Option<Box<str>>,
}

/// Why the Lease names no exceptions: the node takes no pods with devices meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotKnown {
    /// Pods or lock have not been read since the start.
    Yet,
    /// Nothing tells what this pod has: no ledger, annotation, answer or listed id. It passes when the pod has ended.
    Pod(PodKey),
}

impl HandoffStatus {
    /// By the ledger's `entries`, the pods that are proven to run `unserved`, and what was said of the `lock` of a served holder.
    pub fn of<'a>(
        entries: impl Iterator<Item = &'a Shared<LedgerEntry>> + Clone,
        unserved: &BTreeSet<PodUid>,
        lock: Option<&ServedLock>,
        facts: &Facts<'_>,
    ) -> Result<Self, NotKnown> {
        let lock = lock.filter(|_| facts.seen.is_synced()).ok_or(NotKnown::Yet)?;
        let entries = entries.map(|entry| &**entry);
        let mut left = leaving(entries.clone(), facts.mono);
        let exceptions = exceptions(facts.node, &facts.seen.pods, entries, &left, unserved, facts.inventory)
            .map_err(NotKnown::Pod)?;
        // One that the API server shows running again is no exception.
        left.retain(|uid, _| exceptions.contains_key(uid));
        Ok(Self { exceptions, leaving: left, unreleased: lock.clone().raw() })
    }
}
