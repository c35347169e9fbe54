//! `baton config convert`: Baton's configuration from kube-scheduler's, a `KubeSchedulerConfiguration` or a `Policy`.
//!
//! Every field has a decision: it is carried over, or named in a comment above the result, first what changes where pods go.
//! `configuration` and `policy` read the two kinds of file, `plugins` and `arguments` a profile; `converted` is the result.

mod arguments;
mod command;
mod configuration;
mod converted;
mod part;
mod plugins;
mod policy;
#[cfg(test)]
mod tests;

pub use command::{ConfigArgs, run};
