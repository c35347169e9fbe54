//! The central scheduler's daemon: watches feed one engine, its effects are performed and reported back.

mod admin;
mod ahead;
pub mod choice;
mod daemon;
mod executor;
pub mod extender;
pub mod gang;
mod in_turn;
mod manifest;
mod metrics;
pub mod options;
pub mod tyjob;

pub use daemon::{Scheduler, SchedulerError};
pub use options::{Options, OptionsError, Periods};
