//! Baton hands every GPU and RDMA NIC of a Kubernetes cluster to exactly the pod that the central scheduler chose it for.
//!
//! The folders of `src/` are the architecture. Each is a package, so Cargo makes imports go one way:
//!
//! * [`contract`]: everything that crosses a wire, parsed into values that are valid if they exist.
//! * [`runtime`]: process plumbing that knows nothing of pods and devices; the only clock.
//! * [`decide`]: every decision, as pure functions: events go in, effects come out.
//! * [`hardware`]: what is in this machine (NVML, RDMA sysfs, PCI topology).
//! * [`cluster`]: the Kubernetes adapter; the only writer of cluster objects.
//! * [`agent`], [`scheduler`] and [`tyjob`]: the daemons. They never call each other; they communicate through cluster objects.
//! * `sim`: a simulated cluster that speaks the same protocols as a real one.
//! * [`ops`]: what an operator uses; the only place that puts all parts together.
//!
//! This package holds the programs, and re-exports all folders under one name for tests and for schedulers with rules of their own.

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
