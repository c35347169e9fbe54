//! What people read of a cluster: one snapshot of its objects, and one set of rows made of them, which tables, JSON, the page,
//! explanations and the demo print. What is free, who holds it and what is wrong is decided here and nowhere else.

mod daemons;
mod devices;
mod follow;
mod gangs;
mod jobs;
mod locks;
mod namespaces;
mod nodes;
mod pods;
mod queue;
mod snapshot;
mod table;
mod usage;

pub use daemons::AgentRow;
pub(super) use daemons::agent as agent_row;
pub use devices::{DeviceRow, ShownHealth};
pub(super) use follow::Follower;
pub(super) use gangs::{GangItems, gangs};
pub use jobs::JobRow;
pub(super) use jobs::{read as read_jobs, rows as job_rows};
pub(super) use locks::rows as lock_rows;
pub use locks::{LockRow, LockState};
pub(super) use namespaces::rows as namespace_rows;
pub use nodes::{NodeRow, NodesView};
pub(super) use pods::{faults as device_faults, rows as pod_rows};
pub(super) use queue::{kind as queue_kind, queued, report_soon};
#[cfg(test)]
pub(super) use snapshot::tests as snapshot_tests;
pub use snapshot::{Rules, Snapshot};
pub(super) use snapshot::{name_of, read as read_snapshot, read_node};
#[cfg(feature = "sim")]
pub(super) use table::table;
pub(super) use table::{Columns, Look, age, fitted, plain, say_left_out, shorten};
pub use table::{Row, RowId};
pub use usage::DeviceHolder;
pub(super) use usage::{DeviceHolders, entries_of, percent};
