//! Virtual hardware: a library with the C ABI of NVML and a sysfs tree with RDMA NICs.
