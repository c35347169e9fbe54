//! The pure scheduler under test: [`TestScheduler`], and verbs for gangs and TYJobs on top of it.

pub mod gangs;
pub mod parts;
pub mod scheduler;
mod steps;
#[path = "../tells.rs"]
pub mod tells;
pub mod tyjobs;
pub mod values;

pub use scheduler::{Fault, TestScheduler};
pub use values::{OURS, gpu_device, pod, wall};
