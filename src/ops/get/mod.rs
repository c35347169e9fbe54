//! `baton get`: which devices are free, which pod has which, which pod holds a node's lock, and what to do about it. Everything
//! is read from cluster objects; nothing is written.

mod args;
mod devices;
mod follow;
mod gangs;
mod jobs;
mod listing;
mod locks;
mod nodes;
mod output;
mod pods;
mod queue;
mod snapshot;
mod usage;

pub use args::{GetArgs, Output, Resource, Target, run};
pub(super) use devices::names as device_names;
pub use devices::{DeviceHealth, DeviceRow};
pub use jobs::JobRow;
pub use locks::{LockRow, LockState};
pub(super) use nodes::agent as agent_row;
pub use nodes::{AgentRow, DeviceCount, NodeRow};
pub(super) use output::{age, plain};
pub use pods::PodRow;
pub use snapshot::Snapshot;
pub use usage::DeviceHolder;
pub(super) use usage::Usage;
