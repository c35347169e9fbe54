//! The hand-off on one node over real wires: a simulated API server over HTTP, a simulated kubelet over Unix sockets, and the
//! service, watches, unlocker and plugins as they ship.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![cfg(feature = "sim")]
// The lint's own exception covers `#[test]` functions and not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "agent_handoff/agent.rs"]
mod agent;
#[path = "agent_handoff/choice.rs"]
mod choice;
#[path = "agent_handoff/cluster.rs"]
mod cluster;
#[path = "agent_handoff/failures.rs"]
mod failures;
#[path = "agent_handoff/pods.rs"]
mod pods;
#[path = "agent_handoff/refusals.rs"]
mod refusals;
#[path = "agent_handoff/served.rs"]
mod served;
