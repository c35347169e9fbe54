//! `baton audit`: checks that the invariants of a cluster hold now. Everything is read from cluster objects; nothing is written.

mod args;
mod read;

pub use args::{AuditArgs, SchedulersArgs, run};
pub(super) use args::{found, json};
pub use read::{AuditReport, AuditRules, ClusterObjects, NotedPods, read, report};
