//! What the cycle wants done, and what it hears back.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::gang::{GangId, PodGroupApi, PodGroupStatus};
use crate::contract::{LockRead, PodKey, PodRef, PodUid, Shared};
use crate::decide::lock::ReleaseReason;
use crate::decide::tyjob::placement::JobIdentity;
use crate::decide::world::PodFacts;
use crate::decide::world::gangs::Owner;

use super::rules::Annotations;
use crate::decide::tyjob::record::{JobHalf, JobWriteResult};

/// Identifies one request; its report carries it back. A report with a ticket that nobody waits for is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Effects in the order in which they were decided.
pub type Effects = Vec<Effect>;

/// One thing to do in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Set the node lock to `new` where there is none, or replace exactly `old`. Answer: [`Report::Lock`].
    Lock {
        /// For the report.
        ticket: Ticket,
        /// Node.
        node: Box<str>,
        /// Value to replace; `None` where there must be none.
        old: Option<Box<str>>,
        /// New value.
        new: Box<str>,
    },
    /// Remove exactly `old` from the node. Answer: [`Report::Release`].
    Release {
        /// Node.
        node: Box<str>,
        /// The value.
        old: Box<str>,
        /// Why, for the log.
        reason: ReleaseReason,
    },
    /// POST a Binding with the pod's uid as precondition. Answer: [`Report::Bind`].
    Bind {
        /// For the report.
        ticket: Ticket,
        /// Pod.
        pod: PodRef,
        /// Node.
        node: Box<str>,
        /// All of the scheduler's keys.
        annotations: Shared<Annotations>,
    },
    /// GET the pod. Answer: [`Report::PodRead`].
    ReadPod {
        /// Pod.
        pod: PodKey,
    },
    /// DELETE the pod with its uid as precondition: it holds an expired lock and was never served. No answer needed.
    Fence {
        /// Pod.
        pod: PodRef,
        /// Node whose lock it holds.
        node: Box<str>,
        /// Age of the lock.
        age: Duration,
    },
    /// DELETE the pod with its uid as precondition, saying in its conditions that it was preempted. No answer needed: whoever
    /// waits for it asks again.
    Evict {
        /// Pod.
        pod: PodRef,
        /// For condition `DisruptionTarget`.
        message: String,
    },
    /// Write an annotation that says `"true"`: the wait of the pod's gang is over. No answer needed: what the watch does not show is
    /// written again.
    MarkTimedOut {
        /// Pod.
        pod: PodRef,
        /// Annotation.
        key: &'static str,
    },
    /// Write the status of a PodGroup, if it is still the one that was read. Answer: [`Report::PodGroup`].
    PodGroupStatus(Box<PodGroupWrite>),
    /// Make the PodGroup of a gang; one that exists is left alone. No answer needed: the watch shows it, or it is made again.
    MakePodGroup {
        /// The gang.
        gang: GangId,
        /// `spec.minMember`.
        min: u32,
        /// Controllers of the pods.
        owners: Vec<Owner>,
    },
    /// Tell the provisioner of a claim for which node its volume is made, unless the claim has changed. No answer needed: what
    /// the watch does not show is written again.
    SelectNode {
        /// Claim.
        claim: PodKey,
        /// resourceVersion that was judged.
        version: Box<str>,
        /// Node.
        node: Box<str>,
    },
    /// Promise a volume to a claim, unless the volume has changed. No answer needed, as above.
    BindVolume {
        /// Volume.
        volume: Box<str>,
        /// resourceVersion that was judged.
        version: Box<str>,
        /// Claim.
        claim: PodKey,
        /// Its uid.
        uid: Box<str>,
    },
    /// Write `status.nominatedNodeName`. Answer when it was not written: [`Report::NominationLost`].
    Nominate {
        /// Pod.
        pod: PodRef,
        /// Node; `None` takes the name away.
        node: Option<Box<str>>,
    },
    /// Set condition `PodScheduled` to False. Answer when it was not written: [`Report::ConditionLost`].
    Condition {
        /// Pod.
        pod: PodRef,
        /// Condition reason.
        reason: &'static str,
        /// Condition message; members of one gang share it.
        message: Arc<str>,
        /// The condition becomes False with this write, as far as we know.
        first: bool,
    },
    /// Write the scheduler's half of a TYJob's status. Answer: [`Report::JobWritten`].
    WriteJob {
        /// The job; another one of that name is left alone.
        job: JobIdentity,
        /// The version of the object that this was decided on: written only while it is that one. 0 when it is not known.
        version: u64,
        /// What it is to say.
        half: Box<JobHalf>,
    },
    /// An event for people, on a TYJob.
    JobNotice {
        /// The job.
        job: JobIdentity,
        /// `Warning` or `Normal`.
        warning: bool,
        /// PascalCase.
        reason: &'static str,
        /// Text.
        message: String,
    },
    /// An event for people.
    Notice {
        /// Pod.
        pod: PodRef,
        /// `Warning` or `Normal`.
        warning: bool,
        /// PascalCase.
        reason: &'static str,
        /// Text.
        message: String,
    },
}

/// A status to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroupWrite {
    /// Which API.
    pub api: PodGroupApi,
    /// Namespace and name.
    pub gang: GangId,
    /// Precondition.
    pub uid: Box<str>,
    /// Precondition.
    pub version: Box<str>,
    /// All of it.
    pub status: PodGroupStatus,
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub enum Report {
    /// Of [`Effect::Lock`].
    Lock {
        /// Of the effect.
        ticket: Ticket,
        /// What came of it.
        result: LockResult,
    },
    /// Of [`Effect::Release`].
    Release {
        /// Node.
        node: Box<str>,
        /// The value that was to be removed.
        old: Box<str>,
        /// What came of it.
        result: LockResult,
    },
    /// Of [`Effect::Bind`].
    Bind {
        /// Of the effect.
        ticket: Ticket,
        /// What came of it.
        result: BindResult,
    },
    /// Of [`Effect::WriteJob`].
    JobWritten {
        /// The job.
        job: JobIdentity,
        /// What came of it.
        result: JobWriteResult,
    },
    /// Of [`Effect::ReadPod`].
    PodRead {
        /// Pod.
        pod: PodKey,
        /// The pod, `None` when there is none of that name, or why it could not be read.
        result: Result<Option<Box<PodFacts>>, String>,
    },
    /// Of [`Effect::Condition`], when it was not written.
    ConditionLost {
        /// Pod.
        pod: PodUid,
    },
    /// Of [`Effect::Nominate`], when it was not written.
    NominationLost {
        /// Pod.
        pod: PodUid,
    },
    /// Of [`Effect::PodGroupStatus`].
    PodGroup {
        /// The gang.
        gang: GangId,
        /// The status as it is stored now; `None` when it was not written.
        result: Option<Box<PodGroupStatus>>,
    },
}

/// What came of a write to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockResult {
    /// It stands as wished.
    Done,
    /// Somebody else's value stands there.
    Contended(LockRead),
    /// No such node.
    NodeGone,
    /// It may or may not have happened; the server may have said when to try again.
    Failed(String, Option<Duration>),
}

/// What came of a Binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindResult {
    /// Bound.
    Done,
    /// 409: bound already, another uid, or being deleted. Read the pod to know.
    Conflict(String),
    /// 404.
    NotFound,
    /// Refused for good (400, 401, 403, 413, 422).
    Refused(String),
    /// May or may not have happened; the server may have said when to try again.
    Retry(String, Option<Duration>),
}
