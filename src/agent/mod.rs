//! The node daemon.

pub mod admin;
pub mod answer;
pub mod cdi;
pub mod cgroups;
pub mod daemon;
pub mod devices;
mod directory_watch;
pub mod error;
mod functions;
pub mod given_driver;
pub mod handoff;
pub mod health;
pub mod health_file;
pub mod inventory;
pub mod kubelet;
pub mod metrics;
pub mod nic_reads;
pub mod node_device;
pub mod node_handoff;
pub mod offer;
pub mod options;
pub mod reconciler;
mod removal;
pub mod reporting;
pub mod scan;
pub mod shares;
pub mod which_nics;

pub use answer::{AnswerError, Answerer, ContainerGrant};
pub use error::AgentError;
pub use options::{AgentOptions, AgentPaths, AgentPeriods, AgentTimings, XidOptions};
