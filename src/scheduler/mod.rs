//! The central scheduler's daemon: watches feed one scheduler, its effects are performed and reported back.

mod admin;
mod backpressure;
mod daemon;
mod executor;
pub mod extender;
mod fault_evictor;
mod manifest;
mod metrics;
pub mod options;
mod write_order;

pub use daemon::{SchedulerDaemon, SchedulerError, run};
pub use options::{GangOptions, OptionsError, SchedulerOptions, SchedulerTimings};
