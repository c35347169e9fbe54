//! The node daemon.

pub mod answer;
pub mod cdi;
pub mod choice;
pub mod daemon;
pub mod devices;
pub mod error;
pub mod grant;
pub mod handoff;
pub mod health;
mod health_file;
pub mod inventory;
pub mod keeper;
pub mod kubelet;
pub mod links;
pub mod look;
mod looks;
pub mod metrics;
pub mod nic_reads;
pub mod offer;
pub mod options;
pub mod probes;
pub mod reporting;
pub mod seam;
pub mod wiring;

pub use error::AgentError;
pub use grant::{AnswerError, Answerer, Grant};
pub use options::{Options, OptionsError, Periods, Places, XidOptions};
