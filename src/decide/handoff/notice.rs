//! What the hand-off tells people, as Kubernetes events on pods.

use crate::contract::PodRef;

/// One event, about one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The pod it is about.
    pub pod: PodRef,
    /// Reason in CamelCase, as `kubectl describe` shows it.
    pub reason: &'static str,
    /// One sentence; never longer than an event's note may be.
    pub note: String,
}

/// Longest note of an event, in bytes.
const MAX_NOTE: usize = 1000;

impl Notice {
    /// A notice with its note cut to what an event can hold.
    pub fn new(pod: PodRef, reason: &'static str, mut note: String) -> Self {
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        Self { pod, reason, note }
    }

    /// Somebody changed the scheduler's keys after the bind.
    pub fn assignment_edited(pod: PodRef) -> Self {
        let note =
            "the pod's device assignment was edited after the bind; the edit is ignored, the devices stay".to_owned();
        Self::new(pod, "AssignmentEdited", note)
    }
}
