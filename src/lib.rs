//! Baton hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the central scheduler chose it for.
//!
//! The folders of `src/` are the architecture, each a package of its own; Cargo holds the arrows to one way:
//!
//! * [`contract`]: words on any wire, parsed into values that are valid if they exist.
//! * [`runtime`]: process plumbing without a domain word; the only clock.
//! * [`decide`]: every decision, pure: the world reports events, `decide` answers with effects.
//! * [`hardware`]: what is in this machine (NVML, RDMA sysfs, PCI topology).
//! * [`cluster`]: the Kubernetes adapter; the only writer of cluster objects.
//! * [`agent`], [`scheduler`] and [`tyjob`]: the daemons. They never call each other; they meet in cluster objects.
//! * `sim`: a simulated cluster that speaks the same wires as a real one.
//! * [`ops`]: what an operator touches; the only place that wires everything.
//!
//! This package holds the programs and shows all of them under one name, for tests and for schedulers with rules of their own.

pub use baton_agent as agent;
pub use baton_cluster as cluster;
pub use baton_contract as contract;
pub use baton_decide as decide;
pub use baton_hardware as hardware;
pub use baton_ops as ops;
pub use baton_runtime as runtime;
pub use baton_scheduler as scheduler;
#[cfg(feature = "sim")]
pub use baton_sim as sim;
pub use baton_tyjob as tyjob;
