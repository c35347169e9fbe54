//! What can be wrong, and its text.

use std::time::Duration;

use serde::Serialize;

use crate::explain::taken_over;
use crate::lock::{DaemonState, LockAge};
use crate::world::{holds_otherwise, without_devices};
use baton_contract::{DeviceId, LockRead, key};

/// Something that must not be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all_fields = "camelCase")]
pub enum Violation {
    /// More of a device is held than there is.
    DeviceTwice {
        /// Node.
        node: Box<str>,
        /// Device.
        device: DeviceId,
        /// Which dimension: compute, memory or bandwidth.
        what: &'static str,
        /// Sum of what pods hold.
        held: i64,
        /// What there is.
        total: i64,
    },
    /// The pool's free amount is not the inventory less what pods hold.
    Pool {
        /// Node.
        node: Box<str>,
        /// Device.
        device: DeviceId,
        /// Free by the pool.
        free: i64,
        /// Total less held.
        expected: i64,
    },
    /// A node's accounts are not the sum of its pods.
    Accounts {
        /// Node.
        node: Box<str>,
    },
    /// A pod is in the accounts of a node where it is not, or missing from those where it is.
    Misplaced {
        /// `namespace/name`.
        pod: String,
    },
    /// The number of pods with devices is not that of the pods.
    DevicePods,
    /// A pod of ours that is not exactly one of queued, held, in flight, bound, ended.
    States {
        /// `namespace/name`.
        pod: String,
        /// Those it is in.
        states: Vec<&'static str>,
    },
    /// A pod is in a node's lock queue without a bind, or twice.
    Line {
        /// Node.
        node: String,
    },
    /// A pod is in two commits of a gang: each would bind it.
    CommittedTwice {
        /// `namespace/name`.
        pod: String,
    },
    /// A bound pod's assignment is not complete.
    Assignment {
        /// `namespace/name`.
        pod: String,
        /// Its node.
        node: Box<str>,
        /// What is wrong with it.
        why: String,
    },
    /// A pod holds other devices than its annotation says: the annotation was written by another than the scheduler, or after the bind.
    HeldOtherwise {
        /// `namespace/name`, or the uid of a pod that the API server does not have.
        pod: String,
        /// Its node.
        node: Box<str>,
        /// What it holds in truth; empty for a pod that runs without devices.
        devices: Vec<DeviceId>,
    },
    /// Another driver hands out the GPUs of a node that a node daemon serves.
    AnotherGpuDriver {
        /// Node.
        node: Box<str>,
        /// The driver.
        driver: Box<str>,
    },
    /// The kubelet offers none of a node's healthy devices: the node daemon has died.
    DaemonGone {
        /// Node.
        node: Box<str>,
        /// In the words of every surface.
        why: String,
    },
    /// The annotation that says which devices are cordoned cannot be read: no device of the node is given to new pods.
    Cordons {
        /// Node.
        node: Box<str>,
        /// Why.
        why: String,
    },
    /// A lock annotation that names neither a time nor a pod: its writer does not follow the protocol.
    MalformedLock {
        /// Node.
        node: Box<str>,
        /// The annotation.
        value: Box<str>,
    },
    /// A lock that nothing ends.
    Lock {
        /// Node.
        node: Box<str>,
        /// The annotation.
        value: Box<str>,
        /// `namespace/name` of the pod that it names.
        holder: Option<String>,
        /// By the time in the value.
        seconds: u64,
        /// What does not answer, and the command that shows more; of a holder that is bound and not served.
        why: Option<String>,
    },
    /// A lock whose time is in the future: for how long it stands is not known.
    LockAhead {
        /// Node.
        node: Box<str>,
        /// The annotation.
        value: Box<str>,
        /// `namespace/name` of the pod that it names.
        holder: Option<String>,
        /// From now until the time in the value.
        seconds: u64,
    },
}

/// What is wrong with the lock of `node`, which is `whose`.
pub(super) fn lock_ahead(node: &str, whose: &str, age: LockAge) -> String {
    format!("node {node} is locked by {whose} {age}: {}; `baton get locks` says what to do", LockAge::AHEAD)
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DeviceTwice { node, device, what, held, total } => write!(
                f,
                "device {device} of node {node}: pods hold {held} of {total} {what}; `baton get pods -A -o wide` shows \
                 which, delete all but one of them"
            ),
            Self::Pool { node, device, free, expected } => {
                write!(f, "device {device} of node {node}: {free} counted as free, {expected} are")
            }
            Self::DaemonGone { node, why } => write!(
                f,
                "{why}, and no new pod gets one; look: {}, or run `baton doctor` on the node",
                DaemonState::Missing.look(node)
            ),
            Self::Cordons { node, why } => write!(
                f,
                "Device object {node}: {why}; no device of the node is given to new pods until it is corrected: `kubectl annotate \
                 device {node} {}-` takes it away, then cordon again with `baton cordon`",
                key::CORDONED
            ),
            Self::Accounts { node } => {
                write!(f, "node {node}: what is counted as requested is not the sum of its pods")
            }
            Self::Misplaced { pod } => write!(f, "pod {pod} is counted on a node where it is not, or not where it is"),
            Self::DevicePods => f.write_str("the number of pods that hold devices is not that of the pods on nodes"),
            Self::States { pod, states } => {
                write!(f, "pod {pod} must be one of queued, held, in flight, bound and ended; it is {states:?}")
            }
            Self::Line { node } => write!(f, "{node}: a pod waits for its lock without a bind, or twice"),
            Self::CommittedTwice { pod } => write!(f, "pod {pod} is in two commits of its gang"),
            Self::Assignment { pod, node, why } => {
                write!(f, "pod {pod} on node {node}: {why}; delete and re-create it")
            }
            Self::HeldOtherwise { pod, node, devices } if devices.is_empty() => {
                write!(f, "pod {pod} {}", without_devices(node))
            }
            Self::HeldOtherwise { pod, node, devices } => {
                write!(f, "pod {pod} on node {node} {}", holds_otherwise(devices.iter().map(DeviceId::as_str)))
            }
            Self::AnotherGpuDriver { node, driver } => write!(
                f,
                "node {node}: {driver} offers its GPUs by ResourceSlices beside the node daemon, so one GPU could go to two pods: take \
                 that driver off the node, or label the node baton.io/device-plugin=off"
            ),
            Self::MalformedLock { node, value } => {
                let whose = LockRead::parse(Some(value)).whose().unwrap_or_default();
                let end = taken_over("unchanged once --node-lock-expiry has passed (5m unless set)");
                write!(f, "node {node} is locked by {whose}; {end}: `baton get locks {node}` says when, and what to do")
            }
            Self::Lock { node, value, holder, seconds, why } => {
                let value = holder.as_deref().map(str::to_owned).or_else(|| LockRead::parse(Some(value)).whose());
                let value = value.unwrap_or_default();
                let why = why.as_deref().unwrap_or("`baton get locks` says what to do");
                write!(f, "node {node} has been locked for {seconds} s by {value}; {why}")
            }
            Self::LockAhead { node, value, holder, seconds } => {
                let whose = holder.clone().or_else(|| LockRead::parse(Some(value)).whose()).unwrap_or_default();
                f.write_str(&lock_ahead(node, &whose, LockAge::Ahead(Duration::from_secs(*seconds))))
            }
        }
    }
}
