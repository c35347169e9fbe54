//! The life of the node daemon beside a kubelet, over real sockets: the daemon as it ships, a simulated kubelet and a virtual
//! machine whose NVML library and sysfs tree the daemon reads as it does the real ones.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![cfg(feature = "sim")]
// The lint's own exception covers `#[test]` functions and not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "agent_life/cdi.rs"]
mod cdi;
#[path = "agent_life/cluster.rs"]
mod cluster;
#[path = "agent_life/health.rs"]
mod health;
#[path = "agent_life/hostile.rs"]
mod hostile;
#[path = "agent_life/kubelet.rs"]
mod kubelet;
#[path = "agent_life/mig.rs"]
mod mig;
#[path = "agent_life/registering.rs"]
mod registering;
#[path = "agent_life/registrar.rs"]
mod registrar;
#[path = "agent_life/rig.rs"]
mod rig;
#[path = "agent_life/running.rs"]
mod running;
#[path = "agent_life/schema.rs"]
mod schema;
#[path = "harness/skip.rs"]
mod skip;
