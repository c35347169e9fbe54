//! What a rule's answers about a pod depend on: it decides whether they can be kept from one pod to the next.

/// What a rule reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// Of the pod, no more than [`PodShape`](crate::decide::cycle::PodShape) keeps; of the world, no more than the one node's
    /// object, agent, devices, requests and number of pods. Not the time, not other pods, not the lock. PreScore does nothing.
    /// Such an answer stays true until that node changes.
    Node,
    /// Anything. Every node is judged afresh for every pod.
    World,
}
