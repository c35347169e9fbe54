//! NICs of machines as people report them: sysfs, device nodes and the host's network, as the kernel lays them out.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// States of a port, as the kernel writes them.
pub const ACTIVE: &str = "4: ACTIVE";
pub const DOWN: &str = "1: DOWN";
pub const INIT: &str = "2: INIT";
/// Link layers.
pub const INFINIBAND: &str = "InfiniBand";
pub const ETHERNET: &str = "Ethernet";

/// The tree: `sys`, `proc` and `dev` below one directory.
pub struct NicTree {
    root: PathBuf,
    count: u32,
}

/// What a PCI function is.
pub struct PciLike {
    pub vendor: &'static str,
    pub device: &'static str,
    pub numa: i32,
    pub driver: Option<&'static str>,
}

/// An mlx5 function of a NUMA node.
pub const fn mlx5(device: &'static str, numa: i32) -> PciLike {
    PciLike { vendor: "0x15b3", device, numa, driver: Some("mlx5_core") }
}

impl NicTree {
    pub fn new(root: &Path) -> Self {
        for directory in ["sys/bus/pci/devices", "sys/class/infiniband", "proc/1/net", "dev/infiniband"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        let tree = Self { root: root.to_owned(), count: 0 };
        tree.write("dev/infiniband/rdma_cm", "");
        tree.write("sys/devices/system/node/node0/cpulist", "0-63");
        tree.write("sys/devices/system/node/node1/cpulist", "64-127");
        tree
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let (path, target) = (self.path(path), self.path(target));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if path.symlink_metadata().is_err() {
            symlink(target, path).unwrap();
        }
    }

    /// A PCI function at a path below the root complexes. Returns its directory.
    pub fn pci(&self, path: &str, like: &PciLike) -> String {
        let at = format!("sys/devices/{path}");
        let address = path.rsplit('/').next().unwrap();
        self.write(&format!("{at}/vendor"), like.vendor);
        self.write(&format!("{at}/device"), like.device);
        self.write(&format!("{at}/numa_node"), &like.numa.to_string());
        self.link(&format!("sys/bus/pci/devices/{address}"), &at);
        if let Some(driver) = like.driver {
            let place = format!("sys/bus/pci/drivers/{driver}");
            self.link(&format!("{place}/{address}"), &at);
            self.link(&format!("{at}/driver"), &place);
        }
        at
    }

    /// An RDMA device with its ports, its interface and its character devices.
    pub fn ib(&mut self, parent: &str, name: &str, ports: &[(&str, &str)], interface: Option<&str>) {
        let (at, number) = (format!("{parent}/infiniband/{name}"), self.count);
        self.count += 1;
        self.write(&format!("{at}/node_guid"), &format!("0c42:a103:00aa:{number:04x}"));
        self.write(&format!("{at}/fw_ver"), "28.39.1002");
        self.link(&format!("{at}/device"), parent);
        for (port, (state, layer)) in (1..).zip(ports) {
            self.write(&format!("{at}/ports/{port}/state"), state);
            self.write(&format!("{at}/ports/{port}/link_layer"), layer);
            self.write(&format!("{at}/ports/{port}/rate"), "400 Gb/sec (4X NDR)");
        }
        self.link(&format!("sys/class/infiniband/{name}"), &at);
        let uverbs = format!("uverbs{number}");
        self.write(&format!("{parent}/infiniband_verbs/{uverbs}/ibdev"), name);
        self.link(&format!("sys/class/infiniband_verbs/{uverbs}"), &format!("{parent}/infiniband_verbs/{uverbs}"));
        self.write(&format!("dev/infiniband/{uverbs}"), "");
        if let Some(interface) = interface {
            self.interface(parent, interface);
        }
    }

    /// The interface of a PCI function, or of none (`sys/devices/virtual`).
    pub fn interface(&self, parent: &str, name: &str) {
        fs::create_dir_all(self.path(&format!("{parent}/net/{name}"))).unwrap();
        self.link(&format!("sys/class/net/{name}"), &format!("{parent}/net/{name}"));
    }

    /// An interface without hardware above others: a bond or bridge is their master, anything else only above them.
    pub fn above(&self, name: &str, is_master: bool, of: &[&str]) {
        self.interface("sys/devices/virtual", name);
        for lower in of {
            let place = format!("sys/class/net/{lower}");
            self.link(&format!("{place}/upper_{name}"), &format!("sys/class/net/{name}"));
            if is_master {
                self.link(&format!("{place}/master"), &format!("sys/class/net/{name}"));
            }
        }
    }

    /// Sets the state of a port.
    pub fn set_port(&self, name: &str, port: u32, state: &str) {
        self.write(&format!("sys/class/infiniband/{name}/ports/{port}/state"), state);
    }

    /// The host's routing tables: the interfaces of its IPv4 and IPv6 default routes, with their metrics.
    pub fn routes(&self, ipv4: &[(&str, u32)], ipv6: &[(&str, u32)]) {
        let names = fs::read_dir(self.path("sys/class/net")).into_iter().flatten().flatten();
        let mut dev = "Inter-|   Receive\n face |bytes".to_owned();
        for name in names.map(|entry| entry.file_name().into_string().unwrap()).chain(["lo".to_owned()]) {
            dev += &format!("\n{name:>6}:       0       0");
        }
        self.write("proc/1/net/dev", &dev);
        let mut text = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT".to_owned();
        for (interface, metric) in ipv4 {
            text += &format!("\n{interface}\t00000000\t0100A8C0\t0003\t0\t0\t{metric}\t00000000\t0\t0\t0   ");
        }
        // One that the kernel refuses, and the network behind an interface of a NIC: neither is a default route.
        text += "\n*\t00000000\t00000000\t0200\t0\t0\t9999\t00000000\t0\t0\t0";
        text += "\nibp0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0";
        self.write("proc/1/net/route", &text);
        let zero = "0".repeat(32);
        let line = |name: &str, metric: u32, flags: u32| {
            format!("{zero} 00 {zero} 00 fe80{} {metric:08x} 00000001 00000000 {flags:08x} {name:>8}", "0".repeat(28))
        };
        let mut lines: Vec<String> = ipv6.iter().map(|(name, metric)| line(name, *metric, 0x3)).collect();
        lines.push(line("lo", u32::MAX, 0x0020_0200));
        self.write("proc/1/net/ipv6_route", &lines.join("\n"));
    }

    /// Eight fabric NICs and everything else that one finds beside them: a bond of the host, an onboard NIC, a scalable function, an
    /// uplink in switchdev mode that is down, a NIC with functions in three hands, one behind VMD, a software device.
    pub fn as_reported(root: &Path) -> Self {
        let mut tree = Self::new(root);
        for i in 0..8 {
            let root = 0x10 + i * 0x10;
            let path = format!("pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{:02x}:00.0", root + 1);
            let parent = tree.pci(&path, &mlx5("0x1021", i / 4));
            tree.ib(&parent, &format!("mlx5_{i}"), &[(ACTIVE, INFINIBAND)], Some(&format!("ibp{i}")));
        }
        let bonded = tree.pci("pci0000:c0/0000:c0:03.0/0000:c1:00.0", &mlx5("0x101d", 0));
        tree.ib(&bonded, "mlx5_bond_0", &[(ACTIVE, ETHERNET)], Some("ens3f0np0"));
        let second = tree.pci("pci0000:c0/0000:c0:03.0/0000:c1:00.1", &mlx5("0x101d", 0));
        tree.interface(&second, "ens3f1np1");
        let ice = PciLike { vendor: "0x8086", device: "0x1593", numa: 0, driver: Some("ice") };
        let onboard = tree.pci("pci0000:c0/0000:c0:04.0/0000:c3:00.0", &ice);
        tree.ib(&onboard, "irdma0", &[(ACTIVE, ETHERNET)], Some("eno1"));
        let scalable = format!("{bonded}/mlx5_core.sf.4");
        tree.link(&format!("{scalable}/subsystem"), "sys/bus/auxiliary");
        tree.ib(&scalable, "mlx5_9", &[(ACTIVE, ETHERNET)], Some("ens3f0s88"));
        let uplink = tree.pci("pci0000:d0/0000:d0:01.0/0000:d1:00.0", &mlx5("0x101e", -1));
        let ports = [&[(DOWN, ETHERNET)][..], &[(ACTIVE, ETHERNET); 19]].concat();
        tree.ib(&uplink, "rdma_uplink", &ports, Some("p0"));
        let whole = tree.pci("pci0000:e0/0000:e0:01.0/0000:e1:00.0", &mlx5("0x101d", -1));
        tree.ib(&whole, "mlx5_20", &[(ACTIVE, ETHERNET)], Some("ens9f0"));
        for (number, driver) in [Some("mlx5_core"), Some("vfio-pci"), None].into_iter().enumerate() {
            let like = PciLike { driver, ..mlx5("0x101e", -1) };
            let function = tree.pci(&format!("pci0000:e0/0000:e0:01.0/0000:e1:00.{}", number + 2), &like);
            tree.link(&format!("{function}/physfn"), &whole);
            tree.link(&format!("{whole}/virtfn{number}"), &function);
            if driver == Some("mlx5_core") {
                tree.ib(&function, "mlx5_21", &[(DOWN, ETHERNET)], Some("ens9f0v0"));
            }
        }
        let behind = "pci0000:f0/0000:f0:05.5/pci10000:00/10000:00:02.0/10000:01:00.0";
        let behind = tree.pci(behind, &mlx5("0x1021", 0));
        tree.ib(&behind, "mlx5_vmd", &[(INIT, INFINIBAND)], None);
        tree.write("sys/devices/virtual/infiniband/rxe0/ports/1/state", ACTIVE);
        tree.link("sys/class/infiniband/rxe0", "sys/devices/virtual/infiniband/rxe0");
        tree
    }
}
