//! Which devices of a node a pod gets: pure, on dense numbers and bit masks.
//!
//! [`NodePool`] holds one node's devices and what of them is taken; [`PodDeviceRequest`] what a pod asks for; [`pick()`] answers
//! with an [`Assignment`] or a [`Reason`], [`together()`] for several pods at once. `pick` changes nothing: take the assignment's grant to hold it, give it back to
//! free it. [`NodePool::take_annotation`] counts what bound pods hold after a restart.
//!
//! Whole GPUs are chosen as a set by [`objective()`], shares by [`share::Fit`], NICs by nearness to the GPUs. The pod's *set*
//! is the assignment; the split per container is a plan, because the kubelet reuses a finished init container's devices.

mod accounts;
mod aftermath;
mod annotate;
mod assignment;
mod devices;
mod exclusive;
mod gpu;
mod grant;
mod held;
mod layout;
mod mig;
mod need;
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
pub mod share;
mod solve;
mod splits;
mod summary;
mod together;
mod whole;
mod wishes;

pub use aftermath::Aftermath;
pub use annotate::Portion;
pub use assignment::Assignment;
pub use devices::{Devices, Gpu, Labels, MAX_DEVICES, Mig, Nic, Skipped, VfSlot};
pub use grant::{Grant, Part, Slot};
pub use held::{Amounts, Held, HeldDevice};
pub use layout::{Layout, PoolState};
pub use objective::{Objective, Spread, objective, worth};
pub use partition::{Partition, PartitionTable};
pub use phases::{merge, overlap, peak, split};
pub use pick::{pick, pick_counting};
pub use place::{Group, Level, NOWHERE, Place, bit, bits};
pub use pool::{NodePool, PoolError};
pub use reason::{Reason, ShareMemory};
pub use request::{PodDeviceRequest, RequestProblem, Shape, Want};
pub use restore::Misfit;
pub use summary::Summary;
pub use together::together;
pub use whole::{Best, MAX_SETS, best};
pub use wishes::{Exclusive, Joint, Wishes};
