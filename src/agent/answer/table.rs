//! Device nodes by device, looked up on the file system when the hardware changes and never while a call waits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::node_device::{DeviceBody, NodeDevice};
use baton_contract::{DeviceId, DeviceType, HealthReason};
use baton_hardware::driver::DriverFile;
use baton_hardware::gpu::MigMode;
use baton_hardware::{Bdf, Tree, nodes};

/// Why a GPU whose minor is not known has no node.
const UNNAMED: &str = "the number of its device node is not known";
/// Why a device that has left has none.
const TAKEN: &str = "its device node is another device's now";
/// The node that every NIC has.
pub(super) const SHARED: &str = "rdma_cm";

/// Everything an answer may name. All of it comes from this machine, nothing from a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceTable {
    /// Devices by identity.
    pub devices: BTreeMap<DeviceId, DeviceNodes>,
    /// Nodes of split GPUs: they open nothing without the nodes of a part.
    pub divided: BTreeSet<PathBuf>,
    /// Nodes that every GPU container needs.
    pub control: Vec<PathBuf>,
    /// The driver's user-space files.
    pub driver: Vec<DriverFile>,
    /// Where the nodes lie when that is not `/dev`.
    pub dev_root: Option<PathBuf>,
    /// Types of devices whose CDI spec should say something else than it does, and why it could not be written.
    pub unwritten: BTreeMap<DeviceType, String>,
}

/// What belongs to one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNodes {
    /// GPU or NIC.
    pub kind: DeviceType,
    /// The driver's index of the moment: `3`, or `3:0` for a MIG device. Empty for a NIC.
    pub index: String,
    /// PCI address, where it is known; a MIG device has its GPU's.
    pub bdf: Option<Bdf>,
    /// Device nodes, as paths in the container; [`DeviceTable::on_host`] says where they lie.
    pub nodes: Vec<PathBuf>,
    /// Why a GPU or MIG device has none.
    pub missing: Option<String>,
}

impl DeviceTable {
    /// Looks the nodes of `devices` up below `dev`. A device whose nodes are absent has none, and one that has left is not in the table.
    pub fn build(devices: &[NodeDevice], dev: Option<&Tree>, driver: Vec<DriverFile>) -> Self {
        let below = || dev.ok_or_else(|| "the dev root cannot be read".to_owned());
        let minor = |known: Option<u32>| known.ok_or_else(|| UNNAMED.to_owned());
        let seen = devices.iter().filter(|device| device.health.reason != HealthReason::Gone);
        let mut divided = BTreeSet::new();
        let parts = seen.map(|device| {
            let (index, found) = match &device.body {
                DeviceBody::Gpu { gpu, split, .. } => {
                    let node = below().and_then(|dev| nodes::gpu(dev, minor(gpu.minor)?));
                    // One whose mode is not known for a moment may be divided.
                    let parts = *split || gpu.mig.mode == MigMode::Unknown;
                    divided.extend(node.iter().filter(|_| parts).cloned());
                    (gpu.index.to_string(), node.map(|node| vec![node]))
                }
                DeviceBody::Mig { parent_index, parent_minor, slot, instance, .. } => {
                    let found = below().and_then(|dev| nodes::mig(dev, minor(*parent_minor)?, instance));
                    (format!("{parent_index}:{slot}"), found)
                }
                DeviceBody::Nic { nic, .. } | DeviceBody::Vf { nic, .. } => {
                    (String::new(), Ok(nic.chars.all().cloned().collect()))
                }
            };
            let (nodes, missing) = found.map_or_else(|why| (Vec::new(), Some(why)), |nodes| (nodes, None));
            (device.id.clone(), DeviceNodes { kind: device.kind(), index, bdf: device.bdf, nodes, missing })
        });
        let dev_root = dev.map(|dev| dev.root().to_owned()).filter(|root| root != Path::new("/dev"));
        let control = dev.map(nodes::control).unwrap_or_default();
        Self { devices: parts.collect(), divided, control, driver, dev_root, unwritten: BTreeMap::new() }
    }

    /// Where the node with this path in the container lies on the host.
    pub fn on_host(&self, node: &Path) -> PathBuf {
        match (&self.dev_root, node.strip_prefix("/dev")) {
            (Some(root), Ok(name)) => root.join(name),
            _ => node.to_owned(),
        }
    }

    /// Why the nodes that a container needs of a GPU or MIG device are of no use.
    pub fn missing(&self, id: &DeviceId) -> Vec<Box<str>> {
        let own = self.devices.get(id).and_then(|parts| parts.missing.as_deref()).map(Box::from);
        own.into_iter().chain(self.missing_control()).collect()
    }

    /// Control nodes that CUDA needs and that are not there; the others serve profilers and displays.
    fn missing_control(&self) -> impl Iterator<Item = Box<str>> {
        let has = |name: &&str| self.control.iter().any(|path| path.ends_with(name));
        ["nvidiactl", "nvidia-uvm"]
            .into_iter()
            .filter(move |name| !has(name))
            .map(|name| format!("/dev/{name} is missing").into())
    }

    /// Containers get CUDA's library.
    pub fn has_driver(&self) -> bool {
        self.driver.iter().any(|file| file.container.to_string_lossy().contains("/libcuda.so."))
    }

    /// Devices of one type.
    pub fn of<'a>(&'a self, kind: &'a DeviceType) -> impl Iterator<Item = (&'a DeviceId, &'a DeviceNodes)> {
        self.devices.iter().filter(move |(_, parts)| parts.kind == *kind)
    }

    /// The nodes that one device has alone.
    pub fn owned(&self) -> BTreeSet<PathBuf> {
        let nodes = self.devices.values().flat_map(|parts| &parts.nodes);
        nodes.filter(|node| !node.ends_with(SHARED) && !self.divided.contains(*node)).cloned().collect()
    }

    /// Adds what `earlier` knew of devices that are in use and not here any more, or whose nodes cannot be named now, so that what was
    /// answered stays valid. The kernel gives a number that is free to the next device: a node has one owner, the device that is seen.
    pub fn keep_used(&mut self, earlier: &Self, in_use: &BTreeSet<DeviceId>) {
        let owned = self.owned();
        for (id, parts) in earlier.devices.iter().filter(|(id, _)| in_use.contains(*id)) {
            let mut kept = parts.clone();
            if kept.nodes.iter().any(|node| owned.contains(node)) {
                kept = DeviceNodes { nodes: Vec::new(), missing: Some(TAKEN.to_owned()), ..kept };
            }
            let now = self.devices.entry(id.clone()).or_insert_with(|| kept.clone());
            if now.missing.as_deref() == Some(UNNAMED) {
                now.nodes = kept.nodes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_was_given_stays_named_while_its_number_is_not_known() {
        let id = DeviceId::parse("GPU-1").unwrap();
        let table = |nodes: &[&str], missing: Option<&str>| {
            let nodes = nodes.iter().map(PathBuf::from).collect();
            let missing = missing.map(str::to_owned);
            let parts = DeviceNodes { kind: DeviceType::Gpu, index: "0".into(), bdf: None, nodes, missing };
            DeviceTable { devices: [(id.clone(), parts)].into(), ..DeviceTable::default() }
        };
        let earlier = table(&["/dev/nvidia0"], None);
        let kept = |missing, in_use: &BTreeSet<DeviceId>| {
            let mut now = table(&[], Some(missing));
            now.keep_used(&earlier, in_use);
            assert_eq!(&*now.missing(&id)[0], missing, "no other pod gets it");
            now.devices[&id].nodes.len()
        };
        let used = [id.clone()].into();
        assert_eq!(
            [kept(UNNAMED, &used), kept(UNNAMED, &BTreeSet::new()), kept("/dev/nvidia0 is missing", &used)],
            [1, 0, 0]
        );
    }

    #[test]
    fn a_node_that_another_device_has_now_is_not_named_for_one_that_left() {
        let table = |parts: &[(&str, DeviceType, &[&str])]| {
            let of = |(id, kind, nodes): &(&str, DeviceType, &[&str])| {
                let nodes = nodes.iter().map(PathBuf::from).collect();
                let parts = DeviceNodes { kind: kind.clone(), index: String::new(), bdf: None, nodes, missing: None };
                (DeviceId::parse(id).unwrap(), parts)
            };
            DeviceTable { devices: parts.iter().map(of).collect(), ..DeviceTable::default() }
        };
        let (first, next, cm) = ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm");
        let (a, b) = ("0000:27:00.0", "0000:28:00.0");
        let earlier = table(&[
            (a, DeviceType::Rdma, &[first, cm]),
            (b, DeviceType::Rdma, &[next, cm]),
            ("GPU-0", DeviceType::Gpu, &["/dev/nvidia0"]),
            ("MIG-a", DeviceType::Gpu, &["/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap12"]),
        ]);
        let used: BTreeSet<DeviceId> = earlier.devices.keys().cloned().collect();
        let kept = |seen: &[(&str, DeviceType, &[&str])], id: &str| {
            let mut now = table(seen);
            now.keep_used(&earlier, &used);
            now.devices[&DeviceId::parse(id).unwrap()].nodes.len()
        };
        assert_eq!(kept(&[(b, DeviceType::Rdma, &[next, cm])], a), 2, "the node that all share says nothing");
        assert_eq!(kept(&[(b, DeviceType::Rdma, &[first, cm])], a), 0);
        assert_eq!(kept(&[("GPU-1", DeviceType::Gpu, &["/dev/nvidia0"])], "GPU-0"), 0);
        assert_eq!(kept(&[("GPU-1", DeviceType::Gpu, &["/dev/nvidia1"])], "GPU-0"), 1);
        let whole: (&str, DeviceType, &[&str]) = ("GPU-3", DeviceType::Gpu, &["/dev/nvidia3"]);
        assert_eq!(kept(std::slice::from_ref(&whole), "MIG-a"), 0, "its node opens the whole GPU now");
        let split = |parts: &[(&str, DeviceType, &[&str])]| {
            let mut now = table(parts);
            now.divided.insert("/dev/nvidia3".into());
            now.keep_used(&earlier, &used);
            now.devices[&DeviceId::parse("MIG-a").unwrap()].nodes.len()
        };
        let part = |cap| split(&[whole.clone(), ("MIG-b", DeviceType::Gpu, &["/dev/nvidia3", cap])]);
        let caps = ["/dev/nvidia-caps/nvidia-cap7", "/dev/nvidia-caps/nvidia-cap12"];
        assert_eq!((split(std::slice::from_ref(&whole)), caps.map(part)), (2, [2, 0]));
    }
}
