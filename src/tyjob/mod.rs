//! The TYJob controller's daemon: watches show TYJobs, pods and nodes to the controller that decides, and its requests are performed.

mod daemon;
mod event_loop;
mod metrics;
mod options;

pub use daemon::{Controller, ControllerError};
pub use options::{ControllerOptions, ControllerTimings};
