//! The keys of each daemon: one table per daemon, over its options struct.

mod agent;
mod controller;
mod gang;
mod log;
mod plugins;
#[cfg(test)]
mod plugins_tests;
mod print;
mod scheduler;
#[cfg(test)]
mod tests;
mod tyjob;

pub use agent::agent;
pub use controller::controller;
pub use log::{Daemon, LogOptions};
pub use plugins::{SECTIONS as SCHEDULER_SECTIONS, print as print_plugins};
pub use print::print;
pub use scheduler::scheduler;
