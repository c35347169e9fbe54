//! What a rule's answers about a pod depend on: it decides whether they can be kept from one pod to the next.

/// What a rule reads, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Nothing: the rule does not concern this pod. Its Filter would say fit of every node, its Score would rate every node 0,
    /// PreScore does nothing, and nothing is left in the slots. They need not be asked.
    Nothing,
    /// Of the pod, no more than [`PodShape`](crate::decide::scheduler::PodShape) keeps; of the world, no more than the one node's
    /// object, agent, devices, requests and number of pods. Not the time, not other pods, not the lock. PreScore does nothing.
    /// Such an answer stays true until that node changes.
    Node,
    /// Besides, the typical mix of requests: such an answer stays true until the node changes or
    /// [`Mix::epoch`](crate::decide::world::Mix::epoch) rises.
    Mix,
    /// Anything. Every node is judged afresh for every pod.
    World,
}
