//! The TYJob controller's daemon: watches show jobs, pods and nodes; each job that may need something gets one step, whose
//! status is written and whose effects are performed.

mod admin;
mod attend;
mod daemon;
mod event_loop;
mod metrics;
mod options;
mod sight;

pub use daemon::{Controller, ControllerError};
pub use options::Options;
