//! Baton hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the central scheduler chose it for.
//!
//! The folders are the architecture; arrows go one way (`tests/layers.rs` holds them to it):
//!
//! * [`contract`]: words on any wire, parsed into values that are valid if they exist.
//! * [`runtime`]: process plumbing without a domain word; the only clock.
//! * [`decide`]: every decision, pure: the world tells events, `decide` answers with effects.
//! * [`hardware`]: what is in this machine (NVML, RDMA sysfs, PCI topology).
//! * [`cluster`]: the Kubernetes adapter; the only writer of cluster objects.
//! * [`agent`], [`scheduler`] and [`tyjob`]: the daemons. They never call each other; they meet in cluster objects.
//! * `sim`: a simulated cluster that speaks the same wires as a real one.
//! * [`ops`]: what an operator touches; the only place that wires everything.

pub mod agent;
pub mod cluster;
pub mod contract;
pub mod decide;
pub mod hardware;

pub mod ops;
pub mod runtime;
pub mod scheduler;
#[cfg(feature = "sim")]
pub mod sim;
pub mod tyjob;
