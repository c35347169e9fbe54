//! The simulated cluster: speaks wires (HTTP, gRPC over Unix sockets, NVML's C ABI, sysfs), never calls a daemon.

pub mod apiserver;
pub mod hardware;
pub mod kubelet;
