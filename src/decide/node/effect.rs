//! What a call of the kubelet needs done, and what came of it.

use std::time::Duration;

use super::reads::ReadFailure;
use crate::handoff::{AllocateRefusal, IdentifiedBy, LedgerEntry, LiveReads, PodNotice, PodResources};
use crate::health::ServeOutcome;
use baton_contract::Shared;

/// CallEffects in the order in which they are performed. Only the last of them has a report.
pub type CallEffects = Vec<CallEffect>;

/// One thing to do.
#[derive(Debug, Clone)]
pub enum CallEffect {
    /// List the kubelet's pods, until then (monotonic). Report: [`CallReport::Listed`].
    List {
        /// Monotonic.
        until: Duration,
    },
    /// Wait for a version of what is seen other than `since`, at most until then (monotonic). Report: [`CallReport::Waited`].
    Await {
        /// The version that is known.
        since: u64,
        /// Monotonic.
        until: Duration,
    },
    /// Read these from the API server into what is seen. Report: [`CallReport::Read`].
    Read(LiveReads),
    /// Build the answer. Report: [`CallReport::Built`].
    Build(Box<BuildAnswer>),
    /// Write the ledger to its file. Report: [`CallReport::Written`].
    Write,
    /// Answer Allocate: the end of the call. Only effects without a report may follow, and they do not delay the answer.
    Answer(Result<CallAnswer, AllocateRefusal>),
    /// Answer GetPreferredAllocation with these ids.
    Prefer(Vec<String>),
    /// The lock may have to go.
    Unlock,
    /// The ledger is another one.
    Publish,
    /// Devices in use were learned from PodResources.
    Learned,
    /// Count and log a grant.
    Log(Box<ServedCall>),
    /// Say what became of a pod here.
    Outcome(ServeOutcome),
    /// Write an event.
    Notice(PodNotice),
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub enum CallReport {
    /// What the kubelet lists.
    Listed(PodResources),
    /// Whether there are news.
    Waited {
        /// A version other than the known one is seen.
        news: bool,
    },
    /// Whether what was wanted was read.
    Read(Result<(), ReadFailure>),
    /// The encoded answer, or why there is none.
    Built(Result<Vec<u8>, String>),
    /// Whether the file has the ledger; else why not.
    Written(Result<(), String>),
}

/// What an answer is built from.
#[derive(Debug, Clone)]
pub struct BuildAnswer {
    /// The entry; the answer names [`LedgerEntry::to_answer`]. One that was given before and can be read is given again.
    pub entry: LedgerEntry,
    /// Its devices are parts of devices.
    pub shares: bool,
}

/// An answer with devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallAnswer {
    /// As it was built.
    pub encoded: Vec<u8>,
    /// The call was served before.
    pub again: bool,
}

/// A call that was answered with devices.
#[derive(Debug, Clone)]
pub struct ServedCall {
    /// The grant.
    pub entry: Shared<LedgerEntry>,
    /// It was served before.
    pub again: bool,
    /// How the caller was identified.
    pub how: IdentifiedBy,
    /// The kubelet chose other devices.
    pub mismatch: bool,
    /// Entries of the ledger now.
    pub entries: usize,
}
