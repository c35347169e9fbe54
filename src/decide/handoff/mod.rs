//! The hand-off on the node: which pod is calling, whether its assignment may be served, with which devices, and when the
//! node lock goes. Pure: the agent brings what it has read and performs what is decided.

pub mod inventory;

pub use inventory::{InventoryDevice, NodeInventory};
