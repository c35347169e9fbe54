//! The PCI side of a virtual `/sys`: directories per function, links by address and by driver, NUMA nodes.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::plan::{Address, Function, Kind};

/// A virtual `/sys`.
#[derive(Debug)]
pub struct Sysfs {
    root: PathBuf,
    config_space: bool,
}

impl Sysfs {
    pub fn create(root: PathBuf, config_space: bool) -> io::Result<Self> {
        for directory in ["bus/pci/devices", "bus/pci/drivers/nvidia", "bus/pci/drivers/mlx5_core"] {
            fs::create_dir_all(root.join(directory))?;
        }
        for class in ["infiniband", "infiniband_verbs", "infiniband_mad", "infiniband_cm"] {
            fs::create_dir_all(root.join("class").join(class))?;
        }
        Ok(Self { root, config_space })
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// NUMA nodes with eight CPUs each, one CPU package per node.
    pub fn numa(&self, nodes: u32) -> io::Result<()> {
        for node in 0..nodes {
            self.write(
                &format!("devices/system/node/node{node}/cpulist"),
                &format!("{}-{}\n", node * 8, node * 8 + 7),
            )?;
            for cpu in node * 8..node * 8 + 8 {
                let package = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
                self.write(&package, &format!("{node}\n"))?;
            }
        }
        Ok(())
    }

    /// Writes one function's directory and its links.
    pub fn function(&self, function: &Function) -> io::Result<()> {
        let (class, vendor, device, driver) = match function.kind {
            Kind::Gpu => ("0x030200", "0x10de", "0x2330", Some("nvidia")),
            Kind::Nic => ("0x020000", "0x15b3", "0x1021", Some("mlx5_core")),
            Kind::RootPort => ("0x060400", "0x8086", "0x352a", None),
            Kind::Upstream | Kind::Downstream => ("0x060400", "0x1000", "0xc030", None),
        };
        let directory = function.directory();
        self.write(&format!("{directory}/class"), &format!("{class}\n"))?;
        self.write(&format!("{directory}/vendor"), &format!("{vendor}\n"))?;
        self.write(&format!("{directory}/device"), &format!("{device}\n"))?;
        self.write(&format!("{directory}/numa_node"), &format!("{}\n", function.numa))?;
        if self.config_space {
            fs::write(self.root.join(&directory).join("config"), config(function.kind))?;
        }
        self.by_address(&directory, function.at)?;
        driver.map_or(Ok(()), |driver| self.bind(&directory, function.at, driver))
    }

    /// The links that make a directory findable by its address.
    pub fn by_address(&self, directory: &str, at: Address) -> io::Result<()> {
        link(&self.root.join(format!("bus/pci/devices/{at}")), &format!("../../../{directory}"))
    }

    /// Binds a function to a driver.
    pub fn bind(&self, directory: &str, at: Address, driver: &str) -> io::Result<()> {
        link(&self.root.join(format!("bus/pci/drivers/{driver}/{at}")), &format!("../../../../{directory}"))
    }

    /// Takes a function out of the machine.
    pub fn remove(&self, function: &Function, driver: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(format!("bus/pci/drivers/{driver}/{}", function.at)))?;
        fs::remove_file(self.root.join(format!("bus/pci/devices/{}", function.at)))?;
        fs::remove_dir_all(self.root.join(function.directory()))
    }

    /// Writes a file and the directories above it.
    pub fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let full = self.root.join(path);
        with_directory(&full, |full| fs::write(full, text))
    }

    pub fn directory(&self, path: &str) -> io::Result<()> {
        fs::create_dir_all(self.root.join(path))
    }

    pub fn link(&self, path: &str, target: &str) -> io::Result<()> {
        link(&self.root.join(path), target)
    }
}

fn link(path: &Path, target: &str) -> io::Result<()> {
    with_directory(path, |path| symlink(target, path))
}

/// Makes `path`, with the directories above it where they are missing: most exist, and a machine has hundreds of files.
fn with_directory(path: &Path, make: impl Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    match make(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            make(path)
        }
        made => made,
    }
}

/// Configuration space with a power-management capability before the PCI Express one, as devices have it.
fn config(kind: Kind) -> Vec<u8> {
    let mut space = vec![0u8; 256];
    space[0x06] = 0x10; // status: capability list
    space[0x34] = 0x40;
    space[0x40] = 0x01; // power management
    space[0x41] = 0x60;
    space[0x60] = 0x10; // PCI Express
    let port_type = if kind == Kind::Nic { 0 } else { kind as u8 };
    space[0x62] = port_type << 4 | 2;
    space
}
