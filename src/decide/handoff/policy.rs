//! The operator's choices that the hand-off follows.

use crate::lock::LockMode;
use baton_contract::word::word_enum;

word_enum! {
    /// `--unassigned-pods`: what happens to pods that no scheduler gave devices to.
    #[derive(Default)]
    UnassignedPods {
        /// Refused, with a text that says how to fix it.
        #[default]
        Deny = "deny",
        /// Served with the kubelet's ids where those are free.
        Serve = "serve",
    }
}

word_enum! {
    /// `--id-mismatch`: what happens when the kubelet chose other ids than the assigned ones.
    #[derive(Default)]
    IdMismatch {
        /// The answer follows the assignment; a metric and an event say so.
        #[default]
        ServeAssignment = "serve-assignment",
        /// The call is refused.
        Reject = "reject",
    }
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatePolicy {
    /// `--node-lock`.
    pub lock: LockMode,
    /// `--scheduler-names`: whose assignments count under `auto`.
    pub scheduler_names: Vec<Box<str>>,
    /// `--unassigned-pods`.
    pub unassigned: UnassignedPods,
    /// `--id-mismatch`.
    pub id_mismatch: IdMismatch,
}

impl Default for AllocatePolicy {
    fn default() -> Self {
        Self {
            lock: LockMode::default(),
            scheduler_names: vec!["baton-scheduler".into()],
            unassigned: UnassignedPods::default(),
            id_mismatch: IdMismatch::default(),
        }
    }
}
