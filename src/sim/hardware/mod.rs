//! A virtual machine's hardware: a library with NVML's C ABI, and trees in the shape of `/sys`, `/proc`, `/dev` and a
//! driver root. The daemons load and read them as they do the real ones.
//!
//! ```text
//! <dir>/sys  …/devices/pci0000:3a/…      <dir>/driver/usr/lib64/libnvidia-ml.so.1   one copy per machine: its globals
//! <dir>/proc …/driver/nvidia-caps        <dir>/driver/usr/lib64/nvml.state          are this machine's
//! <dir>/dev  nvidia0, infiniband/…                      ▲ faults and events are written here, call counts read
//! ```

mod files;
mod layout;
mod library;
mod mig;
mod node;
mod plan;
mod rdma;
mod spec;
mod sysfs;

pub use library::{Library, NvmlReturn};
pub use node::{GpuValue, VirtualNode};
pub use plan::{Address, Level};
pub use spec::{GpuSpec, NodeSpec, NvLink, Shape};
