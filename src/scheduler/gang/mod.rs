//! Gangs, as far as the scheduler's process is concerned: what an operator chooses, what it shows.

mod options;

pub use options::GangOptions;
