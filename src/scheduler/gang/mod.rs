//! Gangs, as far as the scheduler's process is concerned: what an operator chooses, what it shows.

mod admin;
mod metrics;
mod options;

pub(super) use admin::{GangQuestion, router};
pub(super) use metrics::GangMetrics;
pub use options::GangOptions;
