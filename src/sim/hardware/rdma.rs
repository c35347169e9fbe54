//! mlx5-like NICs in a virtual `/sys`, with their character devices in a virtual `/dev`.

use std::fs;
use std::io;
use std::path::Path;

use super::plan::Address;
use super::sysfs::Sysfs;

/// One function with an RDMA device on it.
#[derive(Clone, Debug)]
pub struct RdmaFunction {
    /// Its directory below `/sys`.
    pub directory: String,
    pub at: Address,
    /// Name, such as `mlx5_0`.
    pub ibdev: String,
    /// Number of its character devices.
    pub number: u32,
    pub guid: u64,
}

impl RdmaFunction {
    /// Writes the device, its port (up), its character devices.
    pub fn write(&self, sysfs: &Sysfs, dev: &Path) -> io::Result<()> {
        self.write_class(sysfs)?;
        for (class, name, port) in self.chars() {
            let entry = format!("{}/{class}/{name}", self.directory);
            sysfs.write(&format!("{entry}/ibdev"), &format!("{}\n", self.ibdev))?;
            if port {
                sysfs.write(&format!("{entry}/port"), "1\n")?;
            }
            sysfs.link(&format!("class/{class}/{name}"), &format!("../../{entry}"))?;
            fs::write(dev.join("infiniband").join(&name), "")?;
        }
        sysfs.directory(&format!("{}/net/{}", self.directory, self.interface()))
    }

    /// Its character devices: class, name, and whether it is a port's.
    fn chars(&self) -> [(&'static str, String, bool); 3] {
        let number = self.number;
        [
            ("infiniband_verbs", format!("uverbs{number}"), false),
            ("infiniband_mad", format!("umad{number}"), true),
            ("infiniband_mad", format!("issm{number}"), true),
        ]
    }

    /// The RDMA device dies, as by a reset that fails: its class entries and device nodes go, the PCI function stays.
    pub fn unregister(&self, sysfs: &Sysfs, dev: &Path) -> io::Result<()> {
        self.remove_class(sysfs)?;
        for (class, name, _) in self.chars() {
            fs::remove_file(sysfs.root().join("class").join(class).join(&name))?;
            fs::remove_dir_all(sysfs.root().join(&self.directory).join(class).join(&name))?;
            fs::remove_file(dev.join("infiniband").join(&name))?;
        }
        Ok(())
    }

    /// Its network interface.
    pub fn interface(&self) -> String {
        format!("ibs{}", self.number)
    }

    fn write_class(&self, sysfs: &Sysfs) -> io::Result<()> {
        let entry = format!("{}/infiniband/{}", self.directory, self.ibdev);
        let guid = format!("{:016x}", self.guid);
        let guid = [&guid[0..4], &guid[4..8], &guid[8..12], &guid[12..16]].join(":");
        sysfs.write(&format!("{entry}/node_guid"), &format!("{guid}\n"))?;
        sysfs.write(&format!("{entry}/sys_image_guid"), &format!("{guid}\n"))?;
        sysfs.write(&format!("{entry}/fw_ver"), "28.39.1002\n")?;
        sysfs.write(&format!("{entry}/node_type"), "1: CA\n")?;
        sysfs.write(&format!("{entry}/hca_type"), "MT4129\n")?;
        sysfs.write(&format!("{entry}/ports/1/link_layer"), "InfiniBand\n")?;
        sysfs.write(&format!("{entry}/ports/1/rate"), "400 Gb/sec (4X NDR)\n")?;
        self.port_up(sysfs)?;
        sysfs.link(&format!("{entry}/device"), &format!("../../../{}", self.at))?;
        sysfs.link(&format!("class/infiniband/{}", self.ibdev), &format!("../../{entry}"))
    }

    /// Takes the link of port 1 up.
    pub fn port_up(&self, sysfs: &Sysfs) -> io::Result<()> {
        self.write_port(sysfs, "4: ACTIVE", "5: LinkUp")
    }

    /// Takes it down.
    pub fn port_down(&self, sysfs: &Sysfs) -> io::Result<()> {
        self.write_port(sysfs, "1: DOWN", "3: Disabled")
    }

    fn write_port(&self, sysfs: &Sysfs, state: &str, phys: &str) -> io::Result<()> {
        let port = format!("{}/infiniband/{}/ports/1", self.directory, self.ibdev);
        sysfs.write(&format!("{port}/state"), &format!("{state}\n"))?;
        sysfs.write(&format!("{port}/phys_state"), &format!("{phys}\n"))
    }

    /// Gives the device another name, as udev does at boot.
    pub fn rename(&mut self, sysfs: &Sysfs, name: &str) -> io::Result<()> {
        self.remove_class(sysfs)?;
        name.clone_into(&mut self.ibdev);
        self.write_class(sysfs)?;
        for class in [format!("infiniband_verbs/uverbs{}", self.number), format!("infiniband_mad/umad{}", self.number)]
        {
            sysfs.write(&format!("{}/{class}/ibdev", self.directory), &format!("{name}\n"))?;
        }
        sysfs.write(&format!("{}/infiniband_mad/issm{}/ibdev", self.directory, self.number), &format!("{name}\n"))
    }

    /// Takes the RDMA device out of this view, as a move to another network namespace does.
    pub fn remove_class(&self, sysfs: &Sysfs) -> io::Result<()> {
        fs::remove_file(sysfs.root().join("class/infiniband").join(&self.ibdev))?;
        fs::remove_dir_all(sysfs.root().join(&self.directory).join("infiniband").join(&self.ibdev))
    }

    /// Brings it back.
    pub fn restore_class(&self, sysfs: &Sysfs) -> io::Result<()> {
        self.write_class(sysfs)
    }
}
