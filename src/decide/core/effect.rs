//! Effects: requests to the cluster that the scheduler decides, and their results.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::ReleaseReason;
use crate::patience::{Sample, WorthTables};
use crate::world::PodFacts;
use crate::world::gangs::Owner;
use crate::world::tyjob_facts::{JobIdentity, ScheduledCondition};
use baton_contract::gang::{GangId, PodGroupApi, PodGroupStatus};
use baton_contract::tyjob::{Allocation, ScheduleState};
use baton_contract::{ConditionReason, EventReason, LockRead, PodKey, PodRef, PodUid, Shared};

use super::rules::Annotations;

/// Identifies one request; its result carries the same ticket. A result whose ticket is not waited for is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Effects in the order of their decisions.
pub type Effects = Vec<Effect>;

/// One request to the cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Set the node lock to `new` where there is none, or replace exactly `old`. Answer: [`EffectResult::Lock`].
    Lock {
        /// Returned with the result.
        ticket: Ticket,
        /// Node.
        node: Box<str>,
        /// Value to replace; `None` where there must be none.
        old: Option<Box<str>>,
        /// New value.
        new: Box<str>,
    },
    /// Remove exactly `old` from the node. Answer: [`EffectResult::Release`].
    Release {
        /// Node.
        node: Box<str>,
        /// The value.
        old: Box<str>,
        /// Why, for the log.
        reason: ReleaseReason,
    },
    /// POST a Binding with the pod's uid as precondition. Answer: [`EffectResult::Bind`].
    Bind {
        /// Returned with the result.
        ticket: Ticket,
        /// Pod.
        pod: Arc<PodRef>,
        /// Node.
        node: Arc<str>,
        /// All of the scheduler's keys.
        annotations: Shared<Annotations>,
    },
    /// GET the pod. Answer: [`EffectResult::PodRead`].
    ReadPod {
        /// Pod.
        pod: PodKey,
    },
    /// DELETE the pod with its uid as precondition, and set its condition `DisruptionTarget`. No answer needed: while its room is
    /// needed, the eviction is repeated.
    Evict {
        /// Pod.
        pod: PodRef,
        /// For condition `DisruptionTarget`.
        message: String,
    },
    /// Set an annotation to `"true"`: the waiting time of the pod's gang is over. No answer needed: it is written again unless the
    /// watch shows it.
    MarkTimedOut {
        /// Pod.
        pod: PodRef,
        /// Annotation.
        key: &'static str,
    },
    /// Write the status of a PodGroup, if it has not changed since it was read. Answer: [`EffectResult::PodGroup`].
    PodGroupStatus(Box<PodGroupWrite>),
    /// Create the PodGroup of a gang; an existing one is left alone. No answer needed: it is created again unless the watch shows it.
    MakePodGroup {
        /// The gang.
        gang: GangId,
        /// `spec.minMember`.
        min: u32,
        /// Controllers of the pods.
        owners: Vec<Owner>,
    },
    /// Delete a PodGroup that the scheduler made, if it has not changed since it was read. No answer needed: it is deleted again
    /// until the watch shows that it is gone.
    RemovePodGroup {
        /// The gang.
        gang: GangId,
        /// `metadata.uid` of the object.
        uid: Box<str>,
        /// Its resourceVersion.
        version: Box<str>,
    },
    /// Annotate a claim with the node for which its provisioner creates the volume, unless the claim has changed. No answer needed:
    /// it is written again unless the watch shows it.
    SelectNode {
        /// Claim.
        claim: PodKey,
        /// resourceVersion that was judged.
        version: Box<str>,
        /// Node.
        node: Box<str>,
    },
    /// Set the `claimRef` of a volume, unless the volume has changed. No answer needed, as above.
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
    /// Write `status.nominatedNodeName`. Answer when it was not written: [`EffectResult::NominationLost`].
    Nominate {
        /// Pod.
        pod: PodRef,
        /// Node; `None` clears the field.
        node: Option<Box<str>>,
    },
    /// Set condition `PodScheduled` to False. Answer when it was not written: [`EffectResult::ConditionLost`].
    Condition {
        /// Pod.
        pod: PodRef,
        /// Condition reason.
        reason: ConditionReason,
        /// Condition message; members of one gang share it.
        message: Arc<str>,
        /// The condition becomes False with this write, as far as is known.
        first: bool,
    },
    /// Set condition `baton.io/DevicesServed` of a pod that runs without its devices to False, or back to True. No answer needed: it is
    /// written again with the next version of the Lease of the node's daemon.
    Served {
        /// Pod.
        pod: PodRef,
        /// Its node.
        node: Box<str>,
        /// It has its devices.
        served: bool,
    },
    /// Write the scheduler's part of a TYJob's status. Answer: [`EffectResult::JobWritten`].
    WriteJob {
        /// The job; another one of that name is left alone.
        job: JobIdentity,
        /// Precondition: the resourceVersion on which this was decided; 0 when it is not known.
        version: u64,
        /// Its content.
        status: Box<JobScheduleStatus>,
    },
    /// Make the tables of a sample ([`Sample::tables`]): a millisecond of work. Answer: [`EffectResult::Tables`].
    RateMix(Box<Sample>),
    /// Write an Event about a TYJob.
    JobNotice {
        /// The job.
        job: JobIdentity,
        /// `Warning` or `Normal`.
        warning: bool,
        /// Reason.
        reason: EventReason,
        /// Text.
        message: String,
    },
    /// Write an Event about a node.
    NodeNotice {
        /// Its name.
        node: Box<str>,
        /// `Warning` or `Normal`.
        warning: bool,
        /// Reason.
        reason: EventReason,
        /// Text.
        message: String,
    },
    /// Write an Event about a pod.
    Notice {
        /// Pod.
        pod: PodRef,
        /// `Warning` or `Normal`.
        warning: bool,
        /// Reason.
        reason: EventReason,
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
    /// The whole status.
    pub status: PodGroupStatus,
}

/// The result of an effect.
#[derive(Debug, Clone)]
pub enum EffectResult {
    /// Of [`Effect::Lock`].
    Lock {
        /// Ticket of the effect.
        ticket: Ticket,
        /// The result.
        result: LockResult,
    },
    /// Of [`Effect::Release`].
    Release {
        /// Node.
        node: Box<str>,
        /// The value that was to be removed.
        old: Box<str>,
        /// The result.
        result: LockResult,
    },
    /// Of [`Effect::Bind`].
    Bind {
        /// Ticket of the effect.
        ticket: Ticket,
        /// The result.
        result: BindResult,
    },
    /// Of [`Effect::WriteJob`].
    JobWritten {
        /// The job.
        job: JobIdentity,
        /// The result.
        result: JobWriteResult,
    },
    /// Of [`Effect::ReadPod`].
    PodRead {
        /// Pod.
        pod: PodKey,
        /// The pod, `None` when there is none of that name; the error says why it could not be read.
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
    /// Of [`Effect::RateMix`].
    Tables(Box<WorthTables>),
    /// Of [`Effect::PodGroupStatus`].
    PodGroup {
        /// The gang.
        gang: GangId,
        /// The stored status; `None` when it was not written.
        result: Option<Box<PodGroupStatus>>,
    },
}

/// The result of a write to a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockResult {
    /// Written.
    Done,
    /// Another value stands there.
    Contended(LockRead),
    /// No such node.
    NodeGone,
    /// The outcome is unknown: no answer in time, a broken connection, 429 or 5xx, or a request that was not sent because this process
    /// does not lead any more. The server may have said when to try again.
    Failed(String, Option<Duration>),
}

/// The result of a Binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindResult {
    /// Bound.
    Done,
    /// 409: bound already, another uid, or being deleted. Read the pod to know.
    Conflict(String),
    /// 404.
    NotFound,
    /// Refused for good (400, 403, 405, 413, 415, 422).
    Refused(String),
    /// The outcome is unknown; the server may have said when to try again.
    Unknown(String, Option<Duration>),
}

/// The part of a job's status that the scheduler writes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobScheduleStatus {
    /// `status.scheduleState`.
    pub state: ScheduleState,
    /// Places, the leader's first.
    pub allocations: Vec<Allocation>,
    /// Condition `Scheduled`.
    pub condition: ScheduledCondition,
}

/// The result of a status write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobWriteResult {
    /// Written; the object's resourceVersion after it, 0 when it is not a number.
    Done(u64),
    /// No job of that name and uid.
    Gone,
    /// The object has changed since, or another job has the name now: the decision has to be reviewed.
    Stale,
    /// The API server cannot store so large an object; its words.
    TooLarge(String),
    /// The outcome is unknown.
    Failed(String),
}
