//! What the controller is shown, what it wants done, and the answers to that.

use std::sync::Arc;

use crate::tyjob::stages::{CreateFailure, NodeReachability, PodEffect, PodView};
use baton_contract::EventReason;
use baton_contract::tyjob::{InvalidField, TyJob, TyJobStatus};

/// A TYJob as it was read.
#[derive(Debug, Clone)]
pub struct ShownJob {
    /// The object.
    pub job: TyJob,
    /// The part of its spec that does not fit the type.
    pub unreadable: Option<InvalidField>,
}

/// A pod and the job that controls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPod {
    /// Uid of the controlling TYJob; `None` for a pod that only carries the label.
    pub job_uid: Option<String>,
    /// The controller's record; the reachability of its node is filled in later.
    pub view: PodView,
}

/// What the watches report to the controller.
#[derive(Debug)]
pub enum ControllerEvent {
    /// A TYJob, new or changed.
    Job(Box<ShownJob>),
    /// A TYJob is gone: namespace and name.
    JobGone(String, String),
    /// A pod that carries the label of a TYJob, new or changed.
    Pod(Box<OwnedPod>),
    /// A pod is gone, by uid.
    PodGone(String),
    /// A node, new or changed.
    Node(String, NodeReachability),
    /// A node is gone.
    NodeGone(String),
}

/// Identifies one request; its report carries it too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EffectId(pub u64);

/// One thing to do.
#[derive(Debug)]
pub enum ControllerEffect {
    /// A request, which is answered by a report.
    Request {
        /// Returned with the report.
        id: EffectId,
        /// The job as it was read last.
        job: Arc<TyJob>,
        /// What is asked for.
        request: JobRequest,
    },
    /// An event on the job. It is not answered.
    Event {
        /// The job.
        job: Arc<TyJob>,
        /// Needs attention.
        warning: bool,
        /// Reason.
        reason: EventReason,
        /// What happened, to which pod, why.
        message: String,
    },
}

/// One request for a job. Each is harmless when repeated.
#[derive(Debug, Clone)]
pub enum JobRequest {
    /// Whether there is a node of this name.
    ReadNode(String),
    /// The job's pod of this name.
    ReadPod(String),
    /// Write the controller's half of the status, if the job is still as it was read.
    WriteStatus(Box<TyJobStatus>),
    /// Put the finalizer on the job, if it is still as it was read.
    AddFinalizer,
    /// The pods that the job controls.
    ListPods,
    /// Take the finalizer off, if the job is still as it was read.
    RemoveFinalizer,
    /// Make or change a pod.
    Pod(PodEffect),
}

impl JobRequest {
    /// The node or pod that its report is about.
    pub(super) fn subject(&self) -> Option<&String> {
        match self {
            Self::ReadNode(name) | Self::ReadPod(name) | Self::Pod(PodEffect::Create { name, .. }) => Some(name),
            _ => None,
        }
    }
}

/// The answer to a request.
#[derive(Debug)]
pub enum ControllerReport {
    /// Whether the node is there.
    NodeRead(bool),
    /// The job's pod of that name.
    PodRead(Option<Box<OwnedPod>>),
    /// The job's pods.
    PodsListed(Vec<OwnedPod>),
    /// The TYJob is as wanted; as it is now.
    Written(Box<ShownJob>),
    /// The TYJob is gone.
    Gone,
    /// No pod has this uid any more, whatever the watch has shown: one that was made and deleted while it was broken is never shown.
    PodGone(String),
    /// The pod is there and is the job's, made now or before.
    Made(Box<OwnedPod>),
    /// A pod of the TYJob has the name, of another attempt or being deleted: the controller waits for its end.
    Held(Box<OwnedPod>),
    /// The pod cannot be made.
    NotMade(CreateFailure),
    /// The pod goes, or is gone.
    Deleted,
    /// The place is written, or the pod is gone.
    Reserved,
    /// Another client has written meanwhile, or the name was taken a moment ago and is free now: reconcile again.
    Conflict,
    /// It was not done, as far as is known.
    Failed(RequestFailure),
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestFailure {
    /// It is not known whether it was done.
    Unknown,
    /// The API server rejects it as invalid.
    Invalid,
    /// The API server cannot store so large an object.
    TooLarge,
}

/// What has happened so often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerCounts {
    /// Steps.
    pub steps: u64,
    /// Statuses that were stored.
    pub status_writes: u64,
    /// Statuses that were out of date.
    pub conflicts: u64,
    /// Pods that were made, or found made.
    pub pods_made: u64,
    /// Pods that were deleted.
    pub pods_deleted: u64,
    /// Reconciliations that ended with a failed request.
    pub failures: u64,
}
