//! TYJobs, as far as the scheduler's process is concerned: what an operator chooses, what it shows.

mod admin;
mod metrics;
mod options;

pub use admin::{JobQuestion, router};
pub use metrics::JobMetrics;
pub use options::JobOptions;
