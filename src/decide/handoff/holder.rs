//! The pod that a lock names, as the node sees it.

use crate::contract::{LockRead, LockValue, PodKey};
use crate::decide::lock::{Named, names};
use crate::decide::pod::HandoffPod;

/// The lock is this pod's, of whichever bind.
pub fn is_of(lock: &LockRead, pod: &HandoffPod) -> bool {
    matches!(lock, LockRead::Held { value, .. } if names(value, pod) != Named::No)
}

/// Key of the pod that the lock names, where the format has one.
pub fn key(lock: &LockRead) -> Option<&PodKey> {
    match lock {
        LockRead::Held { value: LockValue { holder: Some(holder), .. }, .. } => Some(&holder.pod),
        _ => None,
    }
}
