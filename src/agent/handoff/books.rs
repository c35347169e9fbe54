//! What is remembered from one call of the kubelet to the next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::ledger_file::LedgerFile;
use crate::contract::PodUid;
use crate::decide::handoff::{EntryKey, Ledger, PodResources};

/// What is only touched while a call is served.
pub(super) struct Books {
    pub ledger: Ledger,
    pub file: LedgerFile,
    pub passed: BTreeSet<PodUid>,
    pub may_repeat: BTreeSet<PodUid>,
    pub unusable: BTreeSet<PodUid>,
    pub preference: Option<Remembered>,
    /// Of `HandoffService::kubelet_starts`: the last that these marks know of.
    pub kubelet_start: u64,
}

impl Books {
    /// The kubelet admits its pods again: nobody's admission is over, and who was served may ask once more.
    pub fn admits_again(&mut self) {
        self.passed.clear();
        self.preference = None;
        self.may_repeat = self.ledger.iter().map(|entry| entry.pod.uid.clone()).collect();
    }
}

/// The last preference call.
pub(super) struct Remembered {
    pub resource: Box<str>,
    pub ids: BTreeSet<String>,
    pub at: Duration,
    pub key: EntryKey,
    pub resources: Arc<PodResources>,
}
