//! `baton get`: which devices are free, which pod has which, which pod holds a node's lock, and what to do about it. Everything
//! is read from cluster objects; nothing is written.

mod args;
mod devices;
mod follow;
mod gangs;
mod jobs;
mod listing;
mod locks;
mod namespaces;
mod nodes;
mod output;
mod pods;
mod queue;
mod run;
mod snapshot;
mod usage;

pub use args::{GetArgs, GetOutput, GetTarget, Resource, RulesArgs};
pub(super) use devices::rows as device_rows;
pub use devices::{DeviceRow, ShownHealth};
pub(super) use follow::Follower;
pub use jobs::JobRow;
pub(super) use jobs::rows as job_rows;
pub(super) use locks::rows as lock_rows;
pub use locks::{LockRow, LockState};
pub use namespaces::NamespaceRow;
pub use nodes::{AgentRow, DeviceCount, NodeRow};
pub(super) use nodes::{agent as agent_row, rows as node_rows};
#[cfg(feature = "sim")]
pub(super) use output::table;
pub(super) use output::{age, plain};
pub use pods::PodRow;
pub use run::run;
pub use snapshot::Snapshot;
#[cfg(feature = "sim")]
pub(super) use snapshot::read as read_snapshot;
pub(super) use snapshot::read_node;
#[cfg(test)]
pub(super) use snapshot::tests as snapshot_tests;
pub(super) use snapshot::{Rules, name_of};
pub use usage::DeviceHolder;
pub(super) use usage::{DeviceHolders, entries_of, percent};
