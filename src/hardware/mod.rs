//! What is in this machine: NVML, RDMA sysfs, PCI topology. Blocking reads, injected roots.
//!
//! [`machine::scan`] makes one [`Machine`] of a [`GpuProvider`]'s answer and the kernel's files below [`Roots`]. Faults
//! stay with their device: what works is always reported beside what does not.

pub mod bdf;
pub mod driver;
pub mod gpu;
pub mod machine;
pub mod nic;
pub mod nodes;
pub mod nvml;
pub mod pci;
pub mod provider;
pub mod question;
pub mod rdma;
pub mod routes;
pub mod tree;

pub use bdf::Bdf;
pub use gpu::{GpuFault, GpuInfo, GpuScan};
pub use machine::{Machine, Roots, ScanError};
pub use nic::{NicFault, NicInfo};
pub use nvml::{NvmlOptions, NvmlProvider};
pub use pci::PciPlace;
pub use provider::{EventKind, EventSink, GpuEvent, GpuProvider, NullProvider, NvmlError, Probe, RecordedProvider};
pub use question::{FailedQuestion, Question};
pub use tree::Tree;
