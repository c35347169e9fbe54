//! TYJobs, as far as the scheduler's process is concerned: what an operator chooses.

mod options;

pub use options::JobOptions;
