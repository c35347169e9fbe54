//! Which devices of a node a pod gets: pure, on dense numbers and bit masks.
//!
//! [`NodePool`] holds one node's devices and what of them is taken; [`PodDeviceRequest`] what a pod asks for; [`pick()`] answers
//! with an [`Assignment`] or a [`Reason`], [`together()`] for several pods at once. `pick` changes nothing: take the assignment's
//! grant to hold it. A pool is counted again when a pod leaves; [`NodePool::take_held`] counts what bound pods hold.
//!
//! Whole GPUs are chosen as a set by [`objective()`], shares by [`Fit`], NICs by nearness to the GPUs. The pod's *set*
//! is the assignment; the split per container is a plan, because the kubelet reuses a finished init container's devices.

mod accounts;
mod assignment;
mod exclusive;
mod gpu;
mod grant;
mod held;
mod inventory;
mod nic;
mod objective;
mod partition;
mod phases;
mod pick;
mod place;
mod pool;
mod reason;
mod request;
mod restore;
pub mod score;
mod share;
mod solve;
mod splits;
mod state;
mod together;
mod whole;
mod wishes;

pub use accounts::FreeSummary;
pub use assignment::{Assignment, Portion};
pub use grant::{Grant, Part};
pub use held::{Held, HeldAmounts, HeldDevice};
pub use inventory::{DeviceCommon, Devices, Gpu, Labels, Layout, MAX_DEVICES, Mig, Nic, Skipped, VfSlot};
pub use objective::{Dispersion, Fit, Objective, objective, worth};
pub use partition::{Partition, PartitionTable};
pub use phases::{merge, overlap, peak, split};
pub use pick::{pick, pick_counting};
pub use place::{DevicePlace, DeviceSet, Level, NOWHERE, Slot, bit, bits};
pub use pool::{NodePool, PoolError};
pub use reason::{Reason, ShareMemory};
pub use request::{ContainerDeviceRequest, PodDeviceRequest, RequestProblem, Shape};
pub use restore::Misfit;
pub use state::{AfterGrant, PoolState};
pub use together::together;
pub use whole::{Best, MAX_SETS, best};
pub use wishes::{Exclusive, Joint, Wishes};
