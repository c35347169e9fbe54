//! The keys of each daemon: one table per daemon, over its options struct.

mod agent;
mod controller;
mod log;
mod scheduler;
#[cfg(test)]
mod tests;

pub use agent::agent;
pub use controller::controller;
pub use log::{Daemon, LogOptions};
pub use scheduler::scheduler;
