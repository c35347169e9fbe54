//! The operator's choices that the hand-off follows.

use serde::{Deserialize, Serialize};

/// `--node-lock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockMode {
    /// A pod is served only under its lock.
    #[default]
    Always,
    /// A pod is served without a lock when a known scheduler placed it.
    Auto,
}

/// `--unassigned-pods`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unassigned {
    /// Refuse pods that no scheduler gave devices to.
    #[default]
    Deny,
    /// Serve them what the kubelet chose, where that is free.
    Serve,
}

/// `--id-mismatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdMismatch {
    /// The answer follows the assignment; a metric and an event tell.
    #[default]
    ServeAssignment,
    /// The call is refused.
    Reject,
}

/// All of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// `--node-lock`.
    pub lock: LockMode,
    /// `--scheduler-names`: whose assignments count under `auto`.
    pub scheduler_names: Vec<Box<str>>,
    /// `--unassigned-pods`.
    pub unassigned: Unassigned,
    /// `--id-mismatch`.
    pub id_mismatch: IdMismatch,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lock: LockMode::default(),
            scheduler_names: vec!["baton-scheduler".into()],
            unassigned: Unassigned::default(),
            id_mismatch: IdMismatch::default(),
        }
    }
}
