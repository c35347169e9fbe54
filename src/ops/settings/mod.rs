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
pub(super) use log::DaemonSettings;
#[cfg(test)]
pub(super) use log::settings as table;
pub use plugins::SECTIONS as SCHEDULER_SECTIONS;
pub(super) use plugins::{API_VERSION, KIND, KUBE_VERSIONS, print as print_plugins};
#[cfg(test)]
pub(super) use plugins_tests::options as options_of;
pub use scheduler::scheduler;
pub(super) use timings::{AGENT_SECTIONS, CONTROLLER_SECTIONS, TIMINGS};
