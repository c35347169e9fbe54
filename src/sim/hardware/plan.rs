//! Lays the devices of a shape out on PCI buses, as firmware numbers them: depth first.

use std::fmt;

use super::spec::Shape;

/// A PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Domain.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// NVML's topology levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Below one switch.
    Single = 10,
    /// Below several switches of one host bridge.
    Multiple = 20,
    /// At one host bridge.
    HostBridge = 30,
    /// In one NUMA node.
    Node = 40,
    /// Anywhere.
    System = 50,
}

/// What a function is; the numbers are PCI Express device/port types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Root port of a root complex.
    RootPort = 4,
    /// Upstream port of a switch.
    Upstream = 5,
    /// Downstream port of a switch.
    Downstream = 6,
    /// A GPU.
    Gpu = 0,
    /// A NIC.
    Nic = 1,
}

/// One function and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub kind: Kind,
    pub at: Address,
    /// Ports above it, outermost first.
    pub above: Vec<(Kind, Address)>,
    /// Name of its root complex, `pci0000:3a`.
    pub complex: String,
    pub numa: u32,
}

impl Function {
    /// Its directory below the sysfs root.
    pub fn directory(&self) -> String {
        let ports = self.above.iter().map(|(_, port)| port.to_string());
        let names: Vec<String> = ports.chain([self.at.to_string()]).collect();
        format!("devices/{}/{}", self.complex, names.join("/"))
    }

    /// Upstream ports above it, outermost first.
    fn switches(&self) -> Vec<Address> {
        self.above.iter().filter(|(kind, _)| *kind == Kind::Upstream).map(|(_, port)| *port).collect()
    }
}

/// A branch below a port.
enum Branch {
    Switch(Vec<Branch>),
    Gpu,
    Nic,
}

/// Every function of the shape: ports before what is below them, devices in bus order.
pub fn functions(shape: Shape) -> Vec<Function> {
    let leaf = || Branch::Switch(vec![Branch::Gpu, Branch::Gpu, Branch::Nic]);
    let mut out = Vec::new();
    let mut complex = |domain: u32, bus: u8, numa: u32, branches: Vec<Branch>| {
        let name = format!("pci{domain:04x}:{bus:02x}");
        let mut walk = PlanWalk { out: &mut out, domain, next: bus, complex: name, numa };
        for (port, branch) in branches.into_iter().enumerate() {
            walk.port(Kind::RootPort, bus, port as u8 + 1, &[], branch);
        }
    };
    match shape {
        Shape::Hgx => {
            for (bus, i) in [0x18, 0x3a, 0x98, 0xba].into_iter().zip(0..) {
                complex(0, bus, i / 2, vec![leaf()]);
            }
        }
        Shape::WideDomain => {
            for i in 0..4 {
                complex(0x1_0000 + i, 0, i / 2, vec![leaf()]);
            }
        }
        Shape::Nested => {
            for (bus, i) in [0x20, 0x80].into_iter().zip(0..) {
                complex(0, bus, i, vec![Branch::Switch(vec![leaf(), leaf()])]);
            }
        }
        Shape::Quad => {
            for (bus, i) in [0x20, 0x80].into_iter().zip(0..) {
                let gpus = (0..4).map(|_| Branch::Gpu);
                complex(0, bus, i, vec![Branch::Switch(gpus.chain([Branch::Nic, Branch::Nic]).collect())]);
            }
        }
        Shape::Grace => {
            for i in 0..4 {
                complex(i * 8 + 8, 0, i / 2, vec![Branch::Gpu]);
                complex(i * 8 + 2, 0, i / 2, vec![Branch::Nic]);
            }
        }
        Shape::Pairs => {
            for (bus, i) in [0x40, 0x80].into_iter().zip(0..) {
                complex(0, bus, i, vec![Branch::Gpu, Branch::Gpu, Branch::Nic]);
            }
        }
        Shape::Single => complex(0, 0, 0, vec![Branch::Gpu]),
    }
    out
}

struct PlanWalk<'a> {
    out: &'a mut Vec<Function>,
    domain: u32,
    /// Last bus number given away.
    next: u8,
    complex: String,
    numa: u32,
}

impl PlanWalk<'_> {
    fn add(&mut self, kind: Kind, bus: u8, device: u8, above: &[(Kind, Address)]) -> Vec<(Kind, Address)> {
        let at = Address { domain: self.domain, bus, device, function: 0 };
        let (complex, numa) = (self.complex.clone(), self.numa);
        self.out.push(Function { kind, at, above: above.to_vec(), complex, numa });
        above.iter().copied().chain([(kind, at)]).collect()
    }

    /// A port at `bus:device` with a branch on its secondary bus.
    fn port(&mut self, kind: Kind, bus: u8, device: u8, above: &[(Kind, Address)], branch: Branch) {
        let above = self.add(kind, bus, device, above);
        self.next += 1;
        let bus = self.next;
        match branch {
            Branch::Gpu => drop(self.add(Kind::Gpu, bus, 0, &above)),
            Branch::Nic => drop(self.add(Kind::Nic, bus, 0, &above)),
            Branch::Switch(branches) => {
                let above = self.add(Kind::Upstream, bus, 0, &above);
                self.next += 1;
                let inner = self.next;
                for (device, branch) in branches.into_iter().enumerate() {
                    self.port(Kind::Downstream, inner, device as u8, &above, branch);
                }
            }
        }
    }
}

/// How far two functions are from each other, as NVML judges it.
pub fn level(a: &Function, b: &Function) -> Level {
    let (above_a, above_b) = (a.switches(), b.switches());
    if a.complex != b.complex {
        return if a.numa == b.numa { Level::Node } else { Level::System };
    }
    match (above_a.last(), above_b.last()) {
        (Some(x), Some(y)) if x == y => Level::Single,
        _ if above_a.iter().any(|switch| above_b.contains(switch)) => Level::Multiple,
        _ => Level::HostBridge,
    }
}
