//! The hand-off on the node: which pod is calling, whether its assignment may be served, with which devices, and when the
//! node lock goes. Pure: the agent brings what it has read and performs what is decided.

pub mod assignment;
pub mod call;
mod hex;
pub mod holder;
pub mod identify;
#[cfg(test)]
mod identify_tests;
pub mod inventory;
pub mod ledger;
pub mod listing;
pub mod notice;
pub mod plan;
pub mod pods;
pub mod policy;
pub mod prefer;
pub mod rebuild;
pub mod refusal;
#[cfg(test)]
mod replay_tests;
pub mod room;
#[cfg(test)]
mod scene;
pub mod sight;
mod split;
#[cfg(test)]
pub(crate) mod testing;
mod turn;
mod unassigned;
pub mod validate;
#[cfg(test)]
mod validate_tests;
pub mod verify;

pub use assignment::{Assignment, AssignmentError};
pub use call::{Outcome, Serving, decide, passed_by};
pub use identify::How;
pub use inventory::{InventoryDevice, NodeInventory};
pub use ledger::{Entry, EntryKey, Ledger, State};
pub use listing::{ListedContainers, ListedPod, Listing, PodResources};
pub use notice::Notice;
pub use pods::NodePods;
pub use policy::{IdMismatch, LockMode, Policy, Unassigned};
pub use refusal::{Code, Refusal, Rule};
pub use sight::{Call, Fresh, Sight};
