//! The TYJob controller's daemon: watches show TYJobs, pods and nodes. Each TYJob that may need a change is reconciled: one step,
//! whose status is written and whose effects are performed.

pub mod cache; // the simulation of the whole system drives it too
mod daemon;
mod event_loop;
mod metrics;
mod options;
mod reconcile;

pub use daemon::{Controller, ControllerError};
pub use options::{ControllerOptions, ControllerTimings};
