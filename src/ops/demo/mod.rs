//! `baton demo`: the whole hand-off on one machine without Kubernetes and without a GPU.
//!
//! The cluster is simulated (`baton_sim`), the daemons are the ones that ship: child processes of this binary that meet the
//! simulated API server over TLS and the simulated kubelets over Unix sockets. What is printed comes from watches; the
//! verdict compares three independent records of the devices of each pod.

mod args;
mod cluster;
mod fault;
mod gangs;
mod install;
mod jobs;
mod pods;
mod process;
mod report;
mod run;
mod story;
mod table;
mod timeline;

pub(super) use args::DemoArgs;
pub use install::{apply_all, install};
pub(super) use run::run;
