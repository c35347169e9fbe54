//! The keys of each daemon: one table per daemon, over its options struct.

mod agent;
mod controller;
mod log;
mod plugins;
#[cfg(test)]
mod plugins_tests;
mod ports;
mod scheduler;
#[cfg(test)]
mod tests;
mod timings;

pub use agent::agent;
pub use controller::controller;
#[cfg(test)]
pub(super) use log::settings as table;
pub use log::{DaemonSettings, LogOptions};
pub use plugins::{API_VERSION, KIND, KUBE_VERSIONS, SECTIONS as SCHEDULER_SECTIONS, print as print_plugins};
#[cfg(test)]
pub(super) use plugins_tests::options as options_of;
pub use scheduler::scheduler;
pub use timings::{AGENT_SECTIONS, CONTROLLER_SECTIONS, TIMINGS};
