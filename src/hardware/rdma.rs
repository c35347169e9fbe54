//! Finds RDMA NICs in sysfs and their character devices below the dev root.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bdf::Bdf;
use super::nic::{CharDevices, NicFault, NicInfo, PciFunction, Port, PortState};
use super::pci::{self, PciPlace};
use super::tree::{Tree, TreeError, is_name};

/// No function has more ports of its own.
const MAX_PORTS: usize = 2;

/// An entry of the class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaEntry {
    /// Its name.
    pub ibdev: String,
    /// Its PCI address, where its links lead to it.
    pub bdf: Option<Bdf>,
}

impl RdmaEntry {
    /// It could not be read.
    pub fn fault(&self, reason: String) -> NicFault {
        NicFault { ibdev: self.ibdev.clone(), bdf: self.bdf, reason, hangs: false }
    }
}

/// Reads one entry; `None` for a device without hardware (rxe, siw) and for a part of a NIC. May hang in the NIC's firmware.
pub type ReadRdmaEntry = Arc<dyn Fn(&RdmaEntry) -> Result<Option<NicInfo>, NicFault> + Send + Sync>;

/// NICs by PCI address, and the entries that could not be read. A machine without the class has none.
pub fn scan(sysfs: &Tree, dev: Option<&Tree>) -> (Vec<NicInfo>, Vec<NicFault>) {
    scan_by(sysfs, dev, |entries, read| entries.iter().map(|entry| read(entry)).collect())
}

/// [`scan`] with another way to have the entries read, one answer for each.
pub fn scan_by(
    sysfs: &Tree,
    dev: Option<&Tree>,
    read_all: impl FnOnce(&[RdmaEntry], &ReadRdmaEntry) -> Vec<Result<Option<NicInfo>, NicFault>>,
) -> (Vec<NicInfo>, Vec<NicFault>) {
    let (mut nics, mut faults) = (Vec::<NicInfo>::new(), Vec::new());
    let names = match sysfs.names("class/infiniband") {
        Ok(names) => names,
        Err(absent) if absent.is_absent() => return (nics, faults),
        Err(error) => {
            faults.push(NicFault { ibdev: String::new(), bdf: None, reason: error.to_string(), hangs: false });
            return (nics, faults);
        }
    };
    if names.is_empty() {
        return (nics, faults);
    }
    let entry = |ibdev: String| {
        let bdf = device(sysfs, &ibdev).ok().and_then(|device| address(sysfs, &device));
        RdmaEntry { ibdev, bdf }
    };
    let entries: Vec<RdmaEntry> = names.into_iter().map(entry).collect();
    let (tree, chars) = (sysfs.clone(), char_devices(sysfs, dev));
    let read: ReadRdmaEntry = Arc::new(move |entry| {
        let fault = |(bdf, reason)| NicFault { ibdev: entry.ibdev.clone(), bdf, reason, hangs: false };
        read(&tree, &entry.ibdev, &chars).map_err(fault)
    });
    for (entry, answer) in entries.iter().zip(read_all(&entries, &read)) {
        match answer {
            Ok(Some(nic)) => match nics.iter().find(|other| other.bdf == nic.bdf) {
                None => nics.push(nic),
                Some(other) => faults.push(NicFault {
                    reason: format!("shares PCI address {} with {}; only that one is served", nic.bdf, other.ibdev),
                    ibdev: entry.ibdev.clone(),
                    bdf: Some(nic.bdf),
                    hangs: false,
                }),
            },
            Ok(None) => {}
            Err(fault) => faults.push(fault),
        }
    }
    nics.sort_by_key(|nic| nic.bdf);
    (nics, faults)
}

/// Ports of one NIC by its PCI address, whatever its name is now; for health polls.
pub fn ports(sysfs: &Tree, bdf: Bdf) -> Result<Vec<Port>, TreeError> {
    let directory = format!("bus/pci/devices/{bdf}/infiniband");
    if let Some(name) = sysfs.names(&directory).unwrap_or_default().into_iter().next() {
        return read_ports(sysfs, Path::new(&directory).join(name));
    }
    // Not every tree (a container's, a recording) has the bus; the class always says whose its entries are.
    let mut names = sysfs.names("class/infiniband")?.into_iter();
    let is_it = |name: &String| device(sysfs, name).is_ok_and(|device| address(sysfs, &device) == Some(bdf));
    let absent = || TreeError::Io(directory.clone().into(), std::io::ErrorKind::NotFound.into());
    read_ports(sysfs, class(&names.find(is_it).ok_or_else(absent)?))
}

fn class(name: &str) -> PathBuf {
    PathBuf::from("class/infiniband").join(name)
}

/// The PCI directory of a class entry: where its `device` link leads, and without one the function that its own path goes
/// through.
fn device(sysfs: &Tree, name: &str) -> Result<PathBuf, TreeError> {
    let class = class(name);
    sysfs.resolve(class.join("device")).or_else(|error| {
        let is_function = |path: &&Path| path.file_name().and_then(|name| name.to_str()?.parse::<Bdf>().ok()).is_some();
        let own = sysfs.resolve(&class).ok().filter(|_| error.is_absent());
        own.and_then(|own| own.ancestors().find(is_function).map(Path::to_owned)).ok_or(error)
    })
}

/// Where a device sits, by the bus and by its own directory: whichever shows the fabric. Copied trees have one of them.
fn place(sysfs: &Tree, bdf: Bdf, device: &Path) -> PciPlace {
    let by_bus = pci::place(sysfs, bdf).ok();
    by_bus.filter(|place| place.root_complex.is_some()).unwrap_or_else(|| pci::place_at(sysfs, device))
}

/// What is known of a NIC by its PCI function alone. That stays when another network namespace has taken the RDMA device along, and so do
/// its character devices, whose classes no namespace hides; where the RDMA device has died, they went with it. It has no ports, because
/// they cannot be read. `None` when the function is not there either.
pub fn by_function(sysfs: &Tree, dev: Option<&Tree>, bdf: Bdf) -> Option<NicInfo> {
    let device = sysfs.resolve(format!("bus/pci/devices/{bdf}")).ok()?;
    let mut chars = CharDevices::default();
    for class in CLASSES {
        for name in sysfs.names(device.join(class)).unwrap_or_default() {
            chars.add(&name, node(dev?, &name));
        }
    }
    chars.rdma_cm = node(dev?, "rdma_cm");
    Some(NicInfo {
        bdf,
        ibdev: String::new(),
        node_guid: None,
        firmware: None,
        pci_id: pci_id(sysfs, &device),
        driver: linked(sysfs, &device, "driver"),
        ports: Vec::new(),
        function: function(sysfs, &device).ok()?,
        chars,
        netdevs: Vec::new(),
        carries: None,
        place: place(sysfs, bdf, &device),
    })
}

fn pci_id(sysfs: &Tree, device: &Path) -> Option<(u16, u16)> {
    let hex = |file: &str| {
        let text = sysfs.text(device.join(file)).ok()?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    hex("vendor").zip(hex("device"))
}

/// What a link of a device names: its `driver`, or its bus (`subsystem`).
fn linked(sysfs: &Tree, device: &Path, link: &str) -> Option<String> {
    let target = sysfs.link(device.join(link)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// PCI address of a device directory: its name, or what the kernel says in `uevent` where the directory was copied.
fn address(sysfs: &Tree, device: &Path) -> Option<Bdf> {
    let by_name = device.file_name().and_then(|last| last.to_str()).and_then(|last| last.parse().ok());
    by_name.or_else(|| {
        let uevent = sysfs.text(device.join("uevent")).ok()?;
        uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="))?.trim().parse().ok()
    })
}

/// One entry of the class; `None` for a device without hardware (rxe, siw), and for a scalable function (`mlx5_core.sf.4`): it is a part
/// of its NIC, below that on the auxiliary bus.
fn read(
    sysfs: &Tree,
    name: &str,
    chars: &BTreeMap<String, CharDevices>,
) -> Result<Option<NicInfo>, (Option<Bdf>, String)> {
    let class = class(name);
    let no_address = |error: TreeError| (None, error.to_string());
    let entry = sysfs.resolve(&class).map_err(no_address)?;
    if entry.starts_with("devices/virtual") {
        return Ok(None);
    }
    let device = device(sysfs, name).map_err(no_address)?;
    if linked(sysfs, &device, "subsystem").as_deref() == Some("auxiliary") {
        return Ok(None);
    }
    let last = device.file_name().and_then(|last| last.to_str()).unwrap_or_default();
    let bdf = address(sysfs, &device).ok_or_else(|| (None, format!("its device is {last:?}, not a PCI function")))?;
    let failed = |error: TreeError| (Some(bdf), error.to_string());
    let ports = read_ports(sysfs, class.clone()).map_err(failed)?;
    if ports.is_empty() {
        return Err((Some(bdf), "has no readable port".to_owned()));
    }
    let optional = |file: &str| sysfs.text(class.join(file)).ok().filter(|text| !text.is_empty());
    Ok(Some(NicInfo {
        bdf,
        ibdev: name.to_owned(),
        node_guid: optional("node_guid"),
        firmware: optional("fw_ver"),
        pci_id: pci_id(sysfs, &device),
        driver: linked(sysfs, &device, "driver"),
        ports,
        function: function(sysfs, &device).map_err(failed)?,
        chars: chars.get(name).cloned().unwrap_or_default().with_shared(chars),
        netdevs: sysfs.names(device.join("net")).unwrap_or_default(),
        carries: None,
        place: place(sysfs, bdf, &device),
    }))
}

fn read_ports(sysfs: &Tree, device: PathBuf) -> Result<Vec<Port>, TreeError> {
    let directory = device.join("ports");
    let mut numbers: Vec<u32> = sysfs.names(&directory)?.iter().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    if is_switchdev(sysfs, &device, numbers.len()) {
        numbers.truncate(1);
    }
    let port = |number: &u32| {
        let file = |name: &str| sysfs.text(directory.join(number.to_string()).join(name)).ok();
        Port {
            number: *number,
            state: file("state").map_or(PortState::Unknown, |text| PortState::parse(&text)),
            phys_state: file("phys_state").map(|text| text.rsplit(':').next().unwrap_or_default().trim().to_owned()),
            link_layer: file("link_layer"),
            rate: file("rate"),
        }
    };
    Ok(numbers.iter().map(port).collect())
}

/// In switchdev mode port 1 is the uplink, and the others stand for virtual functions: their links say nothing about the NIC's.
fn is_switchdev(sysfs: &Tree, device: &Path, ports: usize) -> bool {
    let net = device.join("device/net");
    let has_switch = |name: String| sysfs.text(net.join(name).join("phys_switch_id")).is_ok_and(|id| !id.is_empty());
    ports > MAX_PORTS || (ports > 1 && sysfs.names(&net).unwrap_or_default().into_iter().any(has_switch))
}

/// VF iff `physfn` exists; a PF lists `virtfn<i>`.
fn function(sysfs: &Tree, device: &Path) -> Result<PciFunction, TreeError> {
    match sysfs.resolve(device.join("physfn")) {
        Ok(pf) => {
            let last = pf.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let escapes = || TreeError::Escapes(device.join("physfn"), sysfs.root().to_owned());
            Ok(PciFunction::Virtual { pf: last.parse().map_err(|_| escapes())? })
        }
        Err(error) if error.is_absent() => {
            let names = sysfs.names(device)?;
            let mut vfs: Vec<(u32, Bdf)> = names
                .iter()
                .filter_map(|name| {
                    let rank = name.strip_prefix("virtfn")?.parse().ok()?;
                    let vf = sysfs.resolve(device.join(name)).ok()?;
                    Some((rank, vf.file_name()?.to_str()?.parse().ok()?))
                })
                .collect();
            vfs.sort_unstable();
            Ok(PciFunction::Physical { vfs: vfs.into_iter().map(|(_, bdf)| bdf).collect() })
        }
        Err(error) => Err(error),
    }
}

/// Key of the devices that every NIC shares; no device of the class can have this name.
const SHARED: &str = "";

/// Classes of a NIC's own character devices.
const CLASSES: [&str; 3] = ["infiniband_verbs", "infiniband_mad", "infiniband_cm"];

/// The node of a character device as containers see it; `None` where it does not exist.
fn node(dev: &Tree, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from("infiniband").join(name);
    dev.exists(&path).then(|| Path::new("/dev").join(path))
}

impl CharDevices {
    fn add(&mut self, name: &str, node: Option<PathBuf>) {
        let Some(path) = node else { return };
        match name.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "uverbs" => self.uverbs = Some(path),
            "umad" => self.umad.push(path),
            "issm" => self.issm.push(path),
            "ucm" => self.ucm = Some(path),
            _ => {}
        }
    }

    fn with_shared(mut self, all: &BTreeMap<String, Self>) -> Self {
        self.rdma_cm = all.get(SHARED).and_then(|shared| shared.rdma_cm.clone());
        self
    }
}

/// Character devices by NIC name: the class entry's `ibdev` file says whose it is, and the node must exist.
fn char_devices(sysfs: &Tree, dev: Option<&Tree>) -> BTreeMap<String, CharDevices> {
    let mut found: BTreeMap<String, CharDevices> = BTreeMap::new();
    let Some(dev) = dev else { return found };
    found.entry(SHARED.to_owned()).or_default().rdma_cm = node(dev, "rdma_cm");
    for class in CLASSES {
        for name in sysfs.names(format!("class/{class}")).unwrap_or_default() {
            let Ok(owner) = sysfs.text(format!("class/{class}/{name}/ibdev")) else { continue };
            if is_name(&owner) {
                found.entry(owner).or_default().add(&name, node(dev, &name));
            }
        }
    }
    found
}
