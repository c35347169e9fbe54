//! `baton doctor`: looks at one node as the node daemon would, and says of everything that must hold whether it does, what
//! was found, and what to do. It reads; the only things it asks others to do are questions (NVML, the kubelet's
//! pod-resources, access reviews).

mod access;
mod args;
mod cdi;
mod containerd;
mod kubelet;
mod machine;
mod objects;
mod offered;
mod report;
mod state;

pub use args::{arguments, run};
pub use report::{CHECKS, Finding, Level, Report};
