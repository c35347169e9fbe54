//! The hand-off on the node: which pod is calling, whether its assignment may be served, with which devices, and when the
//! node lock goes. Pure: the agent brings what it has read and performs what is decided.

pub mod allocate;
pub mod assignment;
pub mod behind;
pub mod context;
pub mod exceptions;
pub mod identify;
#[cfg(test)]
mod identify_tests;
pub mod inventory;
pub mod leaving;
#[cfg(test)]
mod leaving_tests;
pub mod ledger;
pub mod listing;
#[cfg(test)]
mod lost_ids_tests;
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
mod test_node;
#[cfg(test)]
pub(crate) mod testing;
pub mod validate;
#[cfg(test)]
mod validate_tests;
pub mod verify;

pub use allocate::{AllocateOutcome, NewGrant, decide, passed_by};
pub use assignment::{AssignmentError, PodAssignment};
pub use behind::{DevicesBehind, devices_behind};
pub use context::{AllocateCall, AllocateContext, LIST_SETTLES, LiveReads};
pub use identify::IdentifiedBy;
pub use inventory::{InventoryDevice, NodeInventory};
pub use leaving::{CgroupLook, Hold, Processes};
pub use ledger::{Admission, CallState, ContainerSlot, Leaving, Ledger, LedgerEntry, functions_in_use};
pub use listing::{EntryKey, ListedContainers, ListedPod, PodListing, PodResources, StoredAnswer};
pub use pods::{LastSeen, NodePods};
pub use policy::{AllocatePolicy, IdMismatch, UnassignedPods};
pub use refusal::{AllocateRefusal, AllocateRule, PodNotice, RefusalCode};
