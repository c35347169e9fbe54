//! What is in this machine: NVML, RDMA sysfs, PCI topology. Blocking reads, injected roots.
