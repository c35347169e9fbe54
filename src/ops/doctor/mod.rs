//! `baton doctor`: checks one node as the node daemon would, and prints for everything that must hold whether it does, what was
//! found, and what to do. It only reads and queries (NVML, the kubelet's pod-resources, access reviews).

mod access;
mod admission;
mod agreement;
mod args;
mod bypass;
mod cdi;
mod containerd;
mod kubelet;
mod machine;
mod objects;
mod offered;
mod report;
mod runtime_files;
mod shares;
mod slices;
mod state;

pub use args::{arguments, run};
