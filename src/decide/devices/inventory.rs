//! The devices of one node as the Device object lists them: what does not change when pods come and go.

use std::collections::BTreeMap;

use super::held::HeldAmounts;
use super::partition::PartitionTable;
use super::place::{DevicePlace, DeviceSet, GroupNames, Level, NOWHERE, Slot};
use baton_contract::inventory::{Device, DeviceInfo, DeviceLocation};
use baton_contract::{DeviceId, DeviceType, Shared, key};

/// Most devices of one type on a node, and most virtual functions below one NIC.
pub const MAX_DEVICES: usize = 128;

/// An entry of a Device object that is not used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("device {id}: {problem}")]
pub struct Skipped {
    /// The entry's id.
    pub id: DeviceId,
    /// What is wrong with it.
    pub problem: String,
}

/// Labels of an object, a device or a virtual function.
pub type Labels = BTreeMap<String, String>;

/// What devices of all types have, but for their identities.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceCommon {
    /// Small number on the node: of a MIG device, its parent's; of a NIC, its rank by PCI address.
    pub minor: i32,
    /// Where it is; a MIG device is where its parent is.
    pub place: DevicePlace,
    /// Listed and healthy.
    pub healthy: bool,
    /// Taken out of use by people.
    pub cordoned: bool,
    labels: Shared<Labels>,
    /// What the inventory lists; `None` when it does not list the device.
    capacity: Option<Shared<HeldAmounts>>,
}

impl DeviceCommon {
    /// Healthy, and not taken out of use.
    pub(super) fn is_in_use(&self) -> bool {
        self.healthy && !self.cordoned
    }
}

/// A physical GPU.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// UUID.
    pub id: DeviceId,
    /// What every device has.
    pub common: DeviceCommon,
    /// Percent of compute; 0 for a GPU that is cut into MIG devices.
    pub core: u16,
    /// Bytes of memory; 100 (percent) where `bytes_known` is false.
    pub memory: i64,
    /// The inventory names the memory in bytes.
    pub bytes_known: bool,
}

/// A MIG device.
#[derive(Debug, Clone, PartialEq)]
pub struct Mig {
    /// MIG UUID.
    pub id: DeviceId,
    /// What every device has.
    pub common: DeviceCommon,
    /// E.g. `1g.10gb`.
    pub profile: Box<str>,
    /// UUID of the parent.
    pub parent: Box<str>,
}

/// An RDMA NIC (a physical function).
#[derive(Debug, Clone, PartialEq)]
pub struct Nic {
    /// PCI address.
    pub id: DeviceId,
    /// What every device has.
    pub common: DeviceCommon,
    /// Percent; 100 unless the inventory says less.
    pub percent: u16,
    /// Virtual functions, lowest address first.
    pub vfs: Box<[VfSlot]>,
}

/// A virtual function of a NIC.
#[derive(Debug, Clone, PartialEq)]
pub struct VfSlot {
    /// Number below its physical function.
    pub minor: i32,
    /// PCI address.
    pub bus_id: DeviceId,
    /// The inventory lists it.
    pub listed: bool,
    pub(super) labels: Shared<Labels>,
}

/// Every device of a node. Numbers of devices never change while the node is known: a device that leaves the inventory stays
/// as an unhealthy one, because a pod may still hold it.
#[derive(Debug, Clone, Default)]
pub struct Devices {
    /// GPUs by number.
    pub gpus: Vec<Gpu>,
    /// MIG devices by number.
    pub migs: Vec<Mig>,
    /// NICs by number.
    pub nics: Vec<Nic>,
    /// The partition table, where the Device object carries one.
    pub partitions: Option<PartitionTable>,
    /// Those that no inventory has listed: annotations of pods have named them.
    strangers: DeviceSet,
    groups: [Vec<DeviceSet>; 4],
    names: [GroupNames; 4],
    /// Follows every change of the above.
    layout: Shared<Layout>,
}

impl Devices {
    /// The devices of a group; none for [`NOWHERE`].
    pub fn group(&self, level: Level, number: u8) -> DeviceSet {
        self.groups[level as usize].get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Every group of a level.
    pub fn groups(&self, level: Level) -> &[DeviceSet] {
        &self.groups[level as usize]
    }

    /// Every device: GPUs, MIG devices, NICs.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let count = |devices: usize| 0..devices as u8;
        let (gpus, migs) = (count(self.gpus.len()).map(Slot::Gpu), count(self.migs.len()).map(Slot::Mig));
        gpus.chain(migs).chain(count(self.nics.len()).map(Slot::Nic))
    }

    /// Whether each device is in service: GPUs, MIG devices, NICs.
    pub(super) fn health(&self) -> impl Iterator<Item = bool> {
        self.slots().map(move |slot| self.is_healthy(slot))
    }

    fn common(&self, slot: Slot) -> &DeviceCommon {
        match slot {
            Slot::Gpu(at) => &self.gpus[usize::from(at)].common,
            Slot::Mig(at) => &self.migs[usize::from(at)].common,
            Slot::Nic(at) => &self.nics[usize::from(at)].common,
        }
    }

    fn commons_mut(&mut self) -> impl Iterator<Item = &mut DeviceCommon> {
        let gpus = self.gpus.iter_mut().map(|gpu| &mut gpu.common);
        let migs = self.migs.iter_mut().map(|mig| &mut mig.common);
        gpus.chain(migs).chain(self.nics.iter_mut().map(|nic| &mut nic.common))
    }

    /// Identity of a device.
    pub fn id(&self, slot: Slot) -> &DeviceId {
        match slot {
            Slot::Gpu(at) => &self.gpus[usize::from(at)].id,
            Slot::Mig(at) => &self.migs[usize::from(at)].id,
            Slot::Nic(at) => &self.nics[usize::from(at)].id,
        }
    }

    /// Where a device is.
    pub fn place(&self, slot: Slot) -> DevicePlace {
        self.common(slot).place
    }

    /// Small number of a device on the node; of a MIG device, its parent's.
    pub fn minor(&self, slot: Slot) -> i32 {
        self.common(slot).minor
    }

    /// Labels of a device.
    pub fn labels(&self, slot: Slot) -> &Labels {
        &self.common(slot).labels
    }

    /// Listed, healthy and not cordoned, and not without capacity.
    pub fn is_usable(&self, slot: Slot) -> bool {
        let has_capacity = match slot {
            Slot::Gpu(at) => self.gpus[usize::from(at)].core > 0,
            Slot::Mig(_) => true,
            Slot::Nic(at) => self.nics[usize::from(at)].percent > 0,
        };
        has_capacity && self.common(slot).is_in_use()
    }

    /// Taken out of use by people.
    pub fn is_cordoned(&self, slot: Slot) -> bool {
        self.common(slot).cordoned
    }

    /// UUID of a GPU or MIG device; a NIC has none.
    pub fn uuid(&self, slot: Slot) -> Option<&str> {
        (!matches!(slot, Slot::Nic(_))).then(|| self.id(slot).as_str())
    }

    /// Cordons exactly the devices of which `of` says so, by id and the id of the GPU that a MIG device is a part of.
    pub(super) fn cordon(&mut self, of: impl Fn(&str, Option<&str>) -> bool) {
        self.gpus.iter_mut().for_each(|gpu| gpu.common.cordoned = of(gpu.id.as_str(), None));
        self.migs.iter_mut().for_each(|mig| mig.common.cordoned = of(mig.id.as_str(), Some(&mig.parent)));
        self.nics.iter_mut().for_each(|nic| nic.common.cordoned = of(nic.id.as_str(), None));
        self.layout = Layout::of(self).into();
    }

    /// Puts every device in service.
    pub(super) fn mend(&mut self) {
        self.commons_mut().for_each(|device| device.healthy = true);
        self.cordon(|_, _| false);
    }

    pub(super) fn gpu_by_id(&self, id: &DeviceId) -> Option<u8> {
        self.gpus.iter().position(|gpu| gpu.id == *id).map(|at| at as u8)
    }
    pub(super) fn mig_by_id(&self, id: &DeviceId) -> Option<u8> {
        self.migs.iter().position(|mig| mig.id == *id).map(|at| at as u8)
    }
    pub(super) fn nic_by_id(&self, id: &DeviceId) -> Option<u8> {
        self.nics.iter().position(|nic| nic.id == *id).map(|at| at as u8)
    }

    /// What a device has of one resource; `None` when it is not listed or does not say.
    pub fn capacity(&self, id: &DeviceId, resource: &str) -> Option<i64> {
        self.amounts(id)?.iter().find(|(name, _)| **name == *resource).map(|(_, amount)| *amount)
    }

    /// `true` when the inventory lists the device, healthy or not.
    pub fn lists(&self, id: &DeviceId) -> bool {
        self.amounts(id).is_some()
    }

    fn amounts(&self, id: &DeviceId) -> Option<&HeldAmounts> {
        self.common(self.slot(id)?).capacity.as_deref()
    }

    /// The number of a device.
    pub fn slot(&self, id: &DeviceId) -> Option<Slot> {
        let gpu = self.gpu_by_id(id).map(Slot::Gpu);
        gpu.or_else(|| self.mig_by_id(id).map(Slot::Mig)).or_else(|| self.nic_by_id(id).map(Slot::Nic))
    }

    fn set_of(&self, id: &DeviceId) -> DeviceSet {
        self.slot(id).into_iter().collect()
    }

    /// `true` when the inventory calls the device healthy.
    pub fn is_healthy(&self, slot: Slot) -> bool {
        self.common(slot).healthy
    }

    /// All that a choice reads, without identities.
    pub(crate) fn layout(&self) -> &Shared<Layout> {
        &self.layout
    }

    pub(super) fn set_layout(&mut self, layout: Shared<Layout>) {
        self.layout = layout;
    }

    /// Lets equal labels, amounts and layouts be stored once, over all nodes. Names of places go: no object is taken over any
    /// more.
    pub(super) fn share(
        &mut self,
        mut labels: impl FnMut(&mut Shared<Labels>),
        mut amounts: impl FnMut(&mut Shared<HeldAmounts>),
        mut layouts: impl FnMut(&mut Shared<Layout>),
    ) {
        self.names = Default::default();
        for device in self.commons_mut() {
            labels(&mut device.labels);
            device.capacity.iter_mut().for_each(&mut amounts);
        }
        for nic in &mut self.nics {
            nic.vfs.iter_mut().for_each(|vf| labels(&mut vf.labels));
        }
        self.layout = Layout::of(self).into();
        layouts(&mut self.layout);
        self.groups.iter_mut().for_each(Vec::shrink_to_fit);
    }

    /// Takes over what `device` lists; what it no longer lists becomes unhealthy.
    pub(super) fn update(&mut self, device: &Device) -> Vec<Skipped> {
        for device in self.commons_mut() {
            (device.healthy, device.capacity) = (false, None);
        }
        let mut skipped = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        // A machine with one NUMA node names none of its devices'. Elsewhere a device whose node is not known is near nothing.
        let names_numa = device.spec.devices.iter().any(|info| numa_of(info).is_some());
        for info in &device.spec.devices {
            let numa = numa_of(info).or((!names_numa).then_some(0));
            let put = if seen.insert(&info.id) { self.put(info, numa) } else { Err("is listed twice".to_owned()) };
            match put {
                Ok(()) => self.strangers = self.strangers & !self.set_of(&info.id),
                Err(problem) => skipped.push(Skipped { id: info.id.clone(), problem }),
            }
        }
        match PartitionTable::of(device) {
            Ok(table) => self.partitions = table,
            Err(problem) => {
                self.partitions = None;
                skipped.extend(device.spec.devices.first().map(|info| Skipped { id: info.id.clone(), problem }));
            }
        }
        self.regroup();
        self.layout = Layout::of(self).into();
        skipped
    }

    fn put(&mut self, info: &DeviceInfo, numa: Option<i32>) -> Result<(), String> {
        if info.minor < 0 {
            return Err(format!("minor {} is negative", info.minor));
        }
        if let Some((name, amount)) = info.resources.iter().find(|(_, amount)| amount.value() < 0) {
            return Err(format!("{name} has the negative capacity {amount}"));
        }
        match &info.kind {
            DeviceType::Gpu => match mig_profile(info) {
                Some(profile) => self.put_mig(info, profile, numa),
                None => self.put_gpu(info, numa),
            },
            DeviceType::Rdma => self.put_nic(info, numa),
            // Types of other systems are theirs to schedule.
            DeviceType::Other(_) => Ok(()),
        }
    }

    fn put_gpu(&mut self, info: &DeviceInfo, numa: Option<i32>) -> Result<(), String> {
        let amount = |name: &str| info.resources.get(name).map(|q| q.value());
        let bytes = amount(key::GPU_MEMORY);
        let names = [amount(key::GPU_CORE), bytes, amount(key::GPU_MEMORY_RATIO)];
        let usable = names.iter().any(Option::is_some) && names.iter().all(|amount| *amount != Some(0));
        let core = if usable { amount(key::GPU_CORE).unwrap_or(key::WHOLE).min(key::WHOLE) as u16 } else { 0 };
        let memory = if usable { bytes.unwrap_or(key::WHOLE) } else { 0 };
        let gpu =
            Gpu { id: info.id.clone(), common: self.common_of(info, numa), core, memory, bytes_known: bytes.is_some() };
        let at = self.gpu_by_id(&info.id);
        put_at(&mut self.gpus, at, gpu, "GPUs")
    }

    fn put_mig(&mut self, info: &DeviceInfo, profile: &str, numa: Option<i32>) -> Result<(), String> {
        let mig = Mig {
            id: info.id.clone(),
            common: self.common_of(info, numa),
            profile: profile.into(),
            parent: info.labels.get(key::PARENT).map_or("", String::as_str).into(),
        };
        let at = self.mig_by_id(&info.id);
        put_at(&mut self.migs, at, mig, "MIG devices")
    }

    fn put_nic(&mut self, info: &DeviceInfo, numa: Option<i32>) -> Result<(), String> {
        let mut vfs: Vec<VfSlot> = info
            .vf_groups
            .iter()
            .flat_map(|group| {
                let labels = Shared::from(group.labels.clone());
                group.vfs.iter().map(move |vf| VfSlot {
                    minor: vf.minor,
                    bus_id: vf.bus_id.clone(),
                    listed: true,
                    labels: labels.clone(),
                })
            })
            .collect();
        vfs.sort_by(|a, b| a.bus_id.cmp(&b.bus_id));
        vfs.dedup_by(|a, b| a.bus_id == b.bus_id);
        let at = self.nic_by_id(&info.id);
        if let Some(known) = at.map(|at| &self.nics[usize::from(at)]) {
            // Numbers of functions are kept as numbers of devices are: one that is not listed any more keeps its own, for a pod
            // may hold it.
            let former = known.vfs.iter().map(|old| {
                let now = vfs.iter().find(|vf| vf.bus_id == old.bus_id);
                now.cloned().unwrap_or_else(|| VfSlot { listed: false, ..old.clone() })
            });
            let fresh = vfs.iter().filter(|vf| known.vfs.iter().all(|old| old.bus_id != vf.bus_id)).cloned();
            vfs = former.chain(fresh).collect();
        }
        let too_many = vfs.len().saturating_sub(MAX_DEVICES);
        vfs.truncate(MAX_DEVICES);
        let nic = Nic {
            id: info.id.clone(),
            common: self.common_of(info, numa),
            percent: info.resources.get(key::RDMA).map_or(key::WHOLE, |q| q.value().min(key::WHOLE)) as u16,
            vfs: vfs.into(),
        };
        put_at(&mut self.nics, at, nic, "NICs")?;
        if too_many > 0 {
            return Err(format!("{too_many} virtual functions above the limit of {MAX_DEVICES} are not used"));
        }
        Ok(())
    }

    /// No inventory has listed the device; a pod's annotation has named it.
    pub(super) fn is_stranger(&self, slot: Slot) -> bool {
        !(self.strangers & DeviceSet::of(slot)).is_empty()
    }

    /// Keeps a device that a pod holds but that no inventory has listed, as an unhealthy one, so that what is held is not
    /// lost. `false` when the node has too many devices.
    pub(super) fn stranger(&mut self, kind: &DeviceType, id: &DeviceId, minor: i32) -> bool {
        let common = DeviceCommon {
            minor,
            place: DevicePlace::UNKNOWN,
            healthy: false,
            cordoned: false,
            labels: Shared::default(),
            capacity: None,
        };
        let own = id.clone();
        let put = match kind {
            DeviceType::Gpu if id.as_str().starts_with("MIG-") => {
                let mig = Mig { id: own, common, profile: Box::default(), parent: Box::default() };
                put_at(&mut self.migs, None, mig, "MIG devices")
            }
            DeviceType::Gpu => {
                let gpu = Gpu { id: own, common, core: 0, memory: 0, bytes_known: false };
                put_at(&mut self.gpus, None, gpu, "GPUs")
            }
            DeviceType::Rdma => {
                put_at(&mut self.nics, None, Nic { id: own, common, percent: 0, vfs: Box::default() }, "NICs")
            }
            DeviceType::Other(_) => return false,
        };
        self.strangers |= self.set_of(id);
        self.layout = Layout::of(self).into();
        put.is_ok()
    }

    fn common_of(&mut self, info: &DeviceInfo, numa: Option<i32>) -> DeviceCommon {
        DeviceCommon {
            minor: info.minor,
            place: self.place_of(info, numa),
            healthy: info.health,
            cordoned: false,
            labels: labels_of(info),
            capacity: Some(capacity(info)),
        }
    }

    fn place_of(&mut self, info: &DeviceInfo, numa: Option<i32>) -> DevicePlace {
        let nowhere = DeviceLocation::default();
        let topology = info.topology.as_ref().unwrap_or(&nowhere);
        let label = |name: &str| info.labels.get(name).map_or("", String::as_str);
        // A root complex stands in for the switch that a device does not name; no PCI address looks like its name.
        let switch = Some(label(key::PCIE_SWITCH)).filter(|name| !name.is_empty()).unwrap_or(&topology.pcie_id);
        let numa = numa.map(|node| node.to_string()).unwrap_or_default();
        let names = &mut self.names;
        DevicePlace {
            switch: names[Level::Switch as usize].number(switch),
            root: names[Level::Root as usize].number(&topology.pcie_id),
            numa: names[Level::Numa as usize].number(&numa),
            nvlink: names[Level::Nvlink as usize].number(label(key::NVLINK_DOMAIN)),
        }
    }

    fn regroup(&mut self) {
        self.groups = Default::default();
        for slot in self.slots() {
            let place = self.place(slot);
            for level in Level::ALL {
                let (groups, number) = (&mut self.groups[level as usize], place.at(level));
                if number == NOWHERE {
                    continue;
                }
                if groups.len() <= usize::from(number) {
                    groups.resize(usize::from(number) + 1, DeviceSet::default());
                }
                groups[usize::from(number)] |= DeviceSet::of(slot);
            }
        }
    }
}

/// The NUMA node of a device, where its inventory names one.
fn numa_of(info: &DeviceInfo) -> Option<i32> {
    info.topology.as_ref().map(|topology| topology.node_id).filter(|node| *node >= 0)
}

/// Its labels without the uuid, which is its id: nodes of one make have equal labels, stored once.
fn labels_of(info: &DeviceInfo) -> Shared<Labels> {
    let mut labels = info.labels.clone();
    labels.remove(key::UUID);
    labels.into()
}

/// What the inventory says a device has, by resource name.
fn capacity(info: &DeviceInfo) -> Shared<HeldAmounts> {
    let amounts = info.resources.iter().map(|(name, amount)| (name.as_str().into(), amount.value()));
    amounts.collect::<HeldAmounts>().into()
}

/// Replaces number `at`, or appends.
fn put_at<T>(list: &mut Vec<T>, at: Option<u8>, value: T, what: &str) -> Result<(), String> {
    match at {
        Some(at) => list[usize::from(at)] = value,
        None if list.len() >= MAX_DEVICES => return Err(format!("a node has at most {MAX_DEVICES} {what}")),
        None => list.push(value),
    }
    Ok(())
}

/// The MIG profile of an entry, by its resource name or else its label.
fn mig_profile(info: &DeviceInfo) -> Option<&str> {
    let by_resource = info.resources.keys().find_map(|name| name.strip_prefix(key::MIG_PREFIX));
    by_resource.or_else(|| info.labels.get(key::MIG_PROFILE).map(String::as_str))
}

/// The devices of a node without their identities: all that a choice reads of them. Nodes of one make have equal layouts, and get
/// equal choices while the same is taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Layout {
    gpus: Box<[GpuLike]>,
    migs: Box<[MigLike]>,
    nics: Box<[NicLike]>,
    partitions: Option<PartitionTable>,
    /// All of them are healthy.
    pub(super) all_healthy: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GpuLike {
    common: DeviceCommon,
    core: u16,
    memory: i64,
    bytes_known: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MigLike {
    common: DeviceCommon,
    profile: Box<str>,
    /// Number of the GPU that it is a part of.
    parent: Option<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NicLike {
    common: DeviceCommon,
    percent: u16,
    /// Number, whether the inventory lists it, labels.
    vfs: Box<[(i32, bool, Shared<Labels>)]>,
}

impl Layout {
    // Every field is named, so that a new one does not compile before it is decided whether a choice reads it. What is common it reads.
    fn of(devices: &Devices) -> Self {
        let gpu = |gpu: &Gpu| {
            let Gpu { id: _, common, core, memory, bytes_known } = gpu.clone();
            GpuLike { common, core, memory, bytes_known }
        };
        let mig = |mig: &Mig| {
            let Mig { id: _, common, profile, parent } = mig.clone();
            let parent = devices.gpus.iter().position(|gpu| *gpu.id.as_str() == *parent).map(|at| at as u8);
            MigLike { common, profile, parent }
        };
        let vf = |vf: &VfSlot| {
            let VfSlot { minor, bus_id: _, listed, labels } = vf.clone();
            (minor, listed, labels)
        };
        let nic = |nic: &Nic| {
            let Nic { id: _, common, percent, vfs } = nic.clone();
            NicLike { common, percent, vfs: vfs.iter().map(vf).collect() }
        };
        Self {
            gpus: devices.gpus.iter().map(gpu).collect(),
            migs: devices.migs.iter().map(mig).collect(),
            nics: devices.nics.iter().map(nic).collect(),
            partitions: devices.partitions.clone(),
            all_healthy: devices.health().all(|healthy| healthy),
        }
    }
}
