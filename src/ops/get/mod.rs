//! `baton get`: which devices are free, which pod has which, which pod holds a node's lock, and what to do about it. Everything
//! is read from cluster objects; nothing is written.

mod args;
mod gangs;
mod jobs;
mod locks;
mod nodes;
mod output;
mod pods;
mod queue;
mod snapshot;

pub use args::{GetArgs, Output, Resource, run};
pub use jobs::JobRow;
pub use locks::{LockRow, LockState};
pub(super) use nodes::agent as agent_row;
pub use nodes::{AgentRow, DeviceCount, NodeRow};
pub(super) use output::{age, plain};
pub use pods::PodRow;
pub use snapshot::Snapshot;
