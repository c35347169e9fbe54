//! A virtual `/dev`, `/proc` and driver root.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Minor of the first MIG capability, and how many each GPU has: 15 GPU instances with 8 compute instances each.
const FIRST_CAP: u32 = 3;
const CAPS_PER_GPU: u32 = 15 * 9;
/// GPUs that the driver lists, present or not.
const LISTED_GPUS: u32 = 32;

/// Device nodes of the driver as a whole and of the RDMA stack.
pub fn dev(root: &Path) -> io::Result<()> {
    fs::create_dir_all(root.join("infiniband"))?;
    fs::create_dir_all(root.join("nvidia-caps"))?;
    let names = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "infiniband/rdma_cm"];
    names.iter().try_for_each(|name| fs::write(root.join(name), ""))
}

/// Minor of a MIG instance's capability, as `mig-minors` lists it.
pub fn cap(gpu_minor: u32, gpu_instance: u32, compute_instance: Option<u32>) -> u32 {
    FIRST_CAP + gpu_minor * CAPS_PER_GPU + gpu_instance * 9 + compute_instance.map_or(0, |ci| ci + 1)
}

/// The driver's and the kernel's files below `/proc`.
pub fn proc(root: &Path, driver_version: &str, boot_id: &str) -> io::Result<()> {
    fs::create_dir_all(root.join("driver/nvidia-caps"))?;
    fs::create_dir_all(root.join("driver/nvidia"))?;
    let version = format!("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver_version}  Release Build\n");
    fs::write(root.join("driver/nvidia/version"), version)?;
    fs::write(root.join("driver/nvidia-caps/mig-minors"), mig_minors())?;
    set_boot_id(root, boot_id)
}

/// The host's network: interfaces, and a default route over one that is no RDMA NIC's.
pub fn net<'a>(proc: &Path, interfaces: impl Iterator<Item = &'a str>) -> io::Result<()> {
    let net = proc.join("1/net");
    fs::create_dir_all(&net)?;
    let mut list = "Inter-|   Receive\n face |bytes\n".to_owned();
    for name in interfaces.chain(["lo", "eth0"]) {
        list.extend([name, ": 0 0\n"]);
    }
    fs::write(net.join("dev"), list)?;
    let heads = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT";
    fs::write(net.join("route"), format!("{heads}\neth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"))
}

/// A new boot.
pub fn set_boot_id(root: &Path, boot_id: &str) -> io::Result<()> {
    fs::create_dir_all(root.join("sys/kernel/random"))?;
    fs::write(root.join("sys/kernel/random/boot_id"), format!("{boot_id}\n"))
}

fn mig_minors() -> String {
    let mut text = String::from("config 1\nmonitor 2\n");
    for gpu in 0..LISTED_GPUS {
        for gi in 0..15 {
            // Writing to a String does not fail.
            let _ = writeln!(text, "gpu{gpu}/gi{gi}/access {}", cap(gpu, gi, None));
            for ci in 0..8 {
                let _ = writeln!(text, "gpu{gpu}/gi{gi}/ci{ci}/access {}", cap(gpu, gi, Some(ci)));
            }
        }
    }
    text
}

/// Driver libraries and programs beside NVML, as empty files with the driver's names and links.
pub fn driver(root: &Path, driver_version: &str) -> io::Result<()> {
    fs::create_dir_all(root.join("usr/lib64"))?;
    libraries(root, driver_version)?;
    fs::create_dir_all(root.join("usr/bin"))?;
    ["nvidia-smi", "nvidia-cuda-mps-control"].iter().try_for_each(|name| fs::write(root.join("usr/bin").join(name), ""))
}

/// The libraries alone. Others stay beside them, and each link leads from one to the other at once, as package managers make it.
pub fn libraries(root: &Path, driver_version: &str) -> io::Result<()> {
    let directory = root.join("usr/lib64");
    for name in ["libcuda.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so", "libnvidia-cfg.so"] {
        let (file, link) = (format!("{name}.{driver_version}"), directory.join(format!(".{name}")));
        fs::write(directory.join(&file), "")?;
        symlink(&file, &link)?;
        fs::rename(link, directory.join(format!("{name}.1")))?;
    }
    Ok(())
}
