//! Whether devices have room: Σ core ≤ 100, Σ memory ≤ total, whole excludes share, over what is served to live pods.

use std::collections::BTreeMap;
use std::fmt;

use super::inventory::NodeInventory;
use super::ledger::ContainerSlot;
use baton_contract::{DeviceEntry, DeviceId, DeviceType, PodUid, Quantity, key};

/// How much of one device is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceLoad {
    /// Holders of the whole device.
    pub whole: i64,
    /// Holders of a share of it.
    pub shares: i64,
    /// Holders of a part that is a device of its own (MIG device, virtual function).
    pub parts: i64,
    /// Percent of compute.
    pub core: i64,
    /// Percent of memory.
    pub ratio: i64,
    /// Bytes of memory.
    pub memory: i64,
    /// Percent of a NIC.
    pub rdma: i64,
}

impl DeviceLoad {
    fn merge(self, other: Self, with: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            whole: with(self.whole, other.whole),
            shares: with(self.shares, other.shares),
            parts: with(self.parts, other.parts),
            core: with(self.core, other.core),
            ratio: with(self.ratio, other.ratio),
            memory: with(self.memory, other.memory),
            rdma: with(self.rdma, other.rdma),
        }
    }

    fn plus(self, other: Self) -> Self {
        self.merge(other, i64::saturating_add)
    }

    /// Both hold the same virtual function for one pod, which has it once for all its containers.
    fn joined(self, other: Self) -> Self {
        Self { whole: self.whole.max(other.whole), ..self.plus(other) }
    }

    fn peak(self, other: Self) -> Self {
        self.merge(other, i64::max)
    }

    /// The other is no more than this in anything.
    pub fn covers(self, other: Self) -> bool {
        self.peak(other) == self
    }
}

/// Load of many devices.
pub type DeviceLoads = BTreeMap<DeviceId, DeviceLoad>;

/// One container's hold on one device.
#[derive(Debug, Clone, Copy)]
pub struct DeviceClaim<'a> {
    /// When the container runs.
    pub slot: ContainerSlot,
    /// Type of the entry.
    pub kind: &'a DeviceType,
    /// The entry.
    pub entry: &'a DeviceEntry,
}

/// `true` when the entry takes its device for itself.
pub fn is_whole(kind: &DeviceType, entry: &DeviceEntry) -> bool {
    if *kind == DeviceType::Rdma {
        return entry.resources.is_empty() || entry.amount(key::RDMA) >= key::WHOLE;
    }
    let share = entry.amount(key::GPU_CORE) < key::WHOLE || entry.amount(key::GPU_MEMORY_RATIO) < key::WHOLE;
    let names_share = [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_MEMORY]
        .into_iter()
        .any(|name| entry.resources.contains_key(name));
    !(names_share && share)
}

/// Makes the entry take its device for itself, with amounts that say so.
pub fn make_whole(kind: &DeviceType, entry: &mut DeviceEntry) {
    let names: &[&str] = if *kind == DeviceType::Rdma { &[key::RDMA] } else { &[key::GPU_CORE, key::GPU_MEMORY_RATIO] };
    entry.resources = names.iter().map(|name| ((*name).to_owned(), Quantity::units(key::WHOLE))).collect();
}

/// What one claim loads of one device.
struct ClaimedLoad {
    device: DeviceId,
    load: DeviceLoad,
    /// A virtual function that goes with a NIC: the pod's containers hold it together.
    with_nic: bool,
}

/// The devices that one claim loads: the device itself, or a part and its parent.
fn loads_of(claim: &DeviceClaim<'_>, inventory: &NodeInventory) -> Vec<ClaimedLoad> {
    let (entry, nic) = (claim.entry, *claim.kind == DeviceType::Rdma);
    let part = DeviceLoad { parts: 1, ..DeviceLoad::default() };
    let whole = DeviceLoad { whole: 1, rdma: if nic { key::WHOLE } else { 0 }, ..DeviceLoad::default() };
    let is_whole = is_whole(claim.kind, entry);
    if !entry.vfs().is_empty() {
        let load = if is_whole {
            whole
        } else {
            DeviceLoad { whole: 1, rdma: entry.amount(key::RDMA), ..DeviceLoad::default() }
        };
        let vfs = entry.vfs().iter().map(|vf| ClaimedLoad { device: vf.bus_id.clone(), load, with_nic: true });
        return vfs.chain([ClaimedLoad { device: entry.id.clone(), load: part, with_nic: false }]).collect();
    }
    let mut loads = Vec::new();
    if let Some(parent) = inventory.devices.get(&entry.id).and_then(|device| device.parent.clone()) {
        loads.push(ClaimedLoad { device: parent, load: part, with_nic: false });
    }
    let share = DeviceLoad {
        shares: 1,
        core: entry.amount(key::GPU_CORE),
        ratio: entry.amount(key::GPU_MEMORY_RATIO),
        memory: entry.amount(key::GPU_MEMORY),
        rdma: entry.amount(key::RDMA),
        ..DeviceLoad::default()
    };
    loads.push(ClaimedLoad { device: entry.id.clone(), load: if is_whole { whole } else { share }, with_nic: false });
    loads
}

/// The loads of one pod in each phase of its life: each plain init container beside the sidecars before it, then all that
/// stay.
pub fn phases(claims: &[DeviceClaim<'_>], inventory: &NodeInventory) -> Vec<DeviceLoads> {
    let sum = |members: &mut dyn Iterator<Item = &DeviceClaim<'_>>| {
        let mut loads = DeviceLoads::new();
        for ClaimedLoad { device, load, with_nic } in members.flat_map(|claim| loads_of(claim, inventory)) {
            let slot = loads.entry(device).or_default();
            *slot = if with_nic { slot.joined(load) } else { slot.plus(load) };
        }
        loads
    };
    let mut inits: Vec<ContainerSlot> = claims.iter().map(|claim| claim.slot).filter(|slot| slot.init).collect();
    inits.dedup();
    let mut phases: Vec<DeviceLoads> = inits
        .into_iter()
        .map(|init| sum(&mut claims.iter().filter(|c| c.slot == init || (c.slot.meets(init) && !c.slot.init))))
        .collect();
    phases.push(sum(&mut claims.iter().filter(|c| !c.slot.init)));
    phases
}

/// The most that one pod ever uses of each device.
pub fn peak(claims: &[DeviceClaim<'_>], inventory: &NodeInventory) -> DeviceLoads {
    let mut most = DeviceLoads::new();
    for (device, load) in phases(claims, inventory).into_iter().flatten() {
        let slot = most.entry(device).or_default();
        *slot = slot.peak(load);
    }
    most
}

/// A device that would hold too much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full {
    /// The device.
    pub device: DeviceId,
    /// What does not fit.
    pub why: String,
    /// Other pods that use it.
    pub users: Vec<PodUid>,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} has no room: {}", self.device, self.why)
    }
}

/// Claims by pod.
pub type ByPod<'a> = BTreeMap<PodUid, Vec<DeviceClaim<'a>>>;

/// Checks that the claims of `own` fit beside those of the other pods. Only devices that `own` uses are judged.
pub fn fits(own: &[DeviceClaim<'_>], others: &ByPod<'_>, inventory: &NodeInventory) -> Result<(), Full> {
    let mut taken = DeviceLoads::new();
    let mut users: BTreeMap<DeviceId, Vec<PodUid>> = BTreeMap::new();
    for (uid, claims) in others {
        for (device, load) in peak(claims, inventory) {
            let slot = taken.entry(device.clone()).or_default();
            *slot = slot.plus(load);
            users.entry(device).or_default().push(uid.clone());
        }
    }
    for (device, load) in phases(own, inventory).into_iter().flatten() {
        let total = taken.get(&device).copied().unwrap_or_default().plus(load);
        if let Some(why) = overfull(total, inventory.devices.get(&device).and_then(|d| d.memory_bytes)) {
            let users = users.remove(&device).unwrap_or_default();
            return Err(Full { device, why, users });
        }
    }
    Ok(())
}

fn overfull(load: DeviceLoad, memory: Option<i64>) -> Option<String> {
    let percent = |name: &str, sum: i64| {
        (sum > key::WHOLE).then(|| format!("{name} would be {sum} percent, a device has {}", key::WHOLE))
    };
    if load.whole > 1 {
        return Some("it is already given whole to another".to_owned());
    }
    if load.whole == 1 && load.shares + load.parts > 0 {
        return Some("one wants it whole while others hold parts of it".to_owned());
    }
    if load.shares > 0 && load.parts > 0 {
        return Some("it is divided, and cannot be shared at the same time".to_owned());
    }
    percent("compute", load.core)
        .or_else(|| percent("memory", load.ratio))
        .or_else(|| percent("RDMA", load.rdma))
        .or_else(|| {
            memory
                .filter(|total| load.memory > *total)
                .map(|total| format!("memory would be {} bytes, the device has {total}", load.memory))
        })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{inventory, share_of, whole};
    use super::*;
    use baton_contract::allocation::{DeviceExtension, Vf};

    const GPU: DeviceType = DeviceType::Gpu;
    const APP: ContainerSlot = ContainerSlot { order: 5, init: false, sidecar: false };

    fn claim(slot: ContainerSlot, entry: &DeviceEntry) -> DeviceClaim<'_> {
        DeviceClaim { slot, kind: &GPU, entry }
    }

    fn beside(own: &[DeviceClaim<'_>], other: &[DeviceClaim<'_>]) -> Result<(), String> {
        let others = ByPod::from([(PodUid::new("other"), other.to_vec())]);
        fits(own, &others, &inventory(2)).map_err(|full| full.to_string())
    }

    #[test]
    fn an_entry_is_whole_when_none_of_its_amounts_is_a_part() {
        for (core, ratio, whole) in [(100, 100, true), (50, 100, false), (100, 50, false), (50, 50, false)] {
            let mut entry = share_of("GPU-0", core, ratio, 40 << 30);
            assert_eq!(is_whole(&GPU, &entry), whole, "{core} {ratio}");
            make_whole(&GPU, &mut entry);
            assert!(is_whole(&GPU, &entry) && entry.amount(key::GPU_CORE) == key::WHOLE);
        }
        let mut nic = whole("nic-0");
        nic.resources.insert(key::RDMA.to_owned(), Quantity::units(50));
        assert!(!is_whole(&DeviceType::Rdma, &nic));
        make_whole(&DeviceType::Rdma, &mut nic);
        assert_eq!(nic.amount(key::RDMA), key::WHOLE);
    }

    #[test]
    fn a_whole_device_is_held_once_and_excludes_shares() {
        let (a, half) = (whole("GPU-0"), share_of("GPU-0", 50, 50, 40 << 30));
        assert!(beside(&[claim(APP, &a)], &[claim(APP, &a)]).unwrap_err().contains("already given whole"));
        assert!(beside(&[claim(APP, &half)], &[claim(APP, &a)]).unwrap_err().contains("wants it whole"));
        assert_eq!(beside(&[claim(APP, &a)], &[claim(APP, &whole("GPU-1"))]), Ok(()));
    }

    #[test]
    fn shares_add_up_to_one_device_and_its_memory() {
        let half = share_of("GPU-0", 50, 50, 40 << 30);
        let (more, bytes) = (share_of("GPU-0", 60, 20, 1 << 30), share_of("GPU-0", 10, 10, 41 << 30));
        assert_eq!(beside(&[claim(APP, &half)], &[claim(APP, &half)]), Ok(()));
        assert!(beside(&[claim(APP, &more)], &[claim(APP, &half)]).unwrap_err().contains("compute would be 110"));
        assert!(beside(&[claim(APP, &bytes)], &[claim(APP, &half)]).unwrap_err().contains("bytes"));
    }

    #[test]
    fn what_a_finished_init_container_held_is_free_for_the_pods_next_containers() {
        let a = whole("GPU-0");
        let init = ContainerSlot { order: 0, init: true, sidecar: false };
        let side = ContainerSlot { order: 1, init: false, sidecar: true };
        let late = ContainerSlot { order: 2, init: true, sidecar: false };
        assert_eq!(beside(&[claim(init, &a), claim(side, &a)], &[]), Ok(()));
        assert!(beside(&[claim(side, &a), claim(late, &a)], &[]).is_err(), "the sidecar runs beside the later init");
        assert!(beside(&[claim(side, &a), claim(APP, &a)], &[]).is_err());
    }

    #[test]
    fn shares_add_up_to_the_memory_that_their_percentages_say() {
        let (most, some) = (share_of("GPU-0", 10, 60, 1), share_of("GPU-0", 10, 50, 1));
        assert!(
            beside(&[claim(APP, &most)], &[claim(APP, &some)]).unwrap_err().contains("memory would be 110 percent")
        );
    }

    #[test]
    fn a_virtual_function_goes_to_one_pod_and_its_containers_have_it_together() {
        let rdma = DeviceType::Rdma;
        let nic = |percent: i64, vfs: &[&str]| {
            let vfs = vfs.iter().map(|id| Vf { minor: 0, bus_id: DeviceId::parse(id).unwrap() }).collect();
            let resources = [(key::RDMA.to_owned(), Quantity::units(percent))].into();
            DeviceEntry { resources, extension: Some(DeviceExtension { vfs }), ..whole("nic-0") }
        };
        let beside = |own: &[&DeviceEntry], other: &[&DeviceEntry]| {
            let own: Vec<_> = own.iter().map(|entry| DeviceClaim { slot: APP, kind: &rdma, entry }).collect();
            let other: Vec<_> = other.iter().map(|entry| DeviceClaim { slot: APP, kind: &rdma, entry }).collect();
            let others = ByPod::from([(PodUid::new("other"), other)]);
            fits(&own, &others, &inventory(2)).map_err(|full| full.to_string())
        };
        let (half, most) = (nic(50, &["vf-1"]), nic(60, &["vf-1"]));
        assert_eq!(beside(&[&half, &half], &[]), Ok(()));
        assert!(beside(&[&most, &most], &[]).unwrap_err().contains("RDMA would be 120"));
        assert!(beside(&[&half], &[&half]).unwrap_err().contains("vf-1 has no room: it is already given whole"));
        assert_eq!(beside(&[&half], &[&nic(50, &["vf-2"])]), Ok(()));
        assert!(beside(&[&half], &[&nic(100, &[])]).unwrap_err().contains("nic-0 has no room: one wants it whole"));
        let all = nic(100, &["vf-1"]);
        assert!(beside(&[&all, &all], &[]).unwrap_err().contains("RDMA would be 200"), "each asks for a NIC");
        let (part, rest) = (nic(60, &[]), nic(50, &[]));
        assert!(beside(&[&part], &[&rest]).unwrap_err().contains("RDMA would be 110"));
    }

    #[test]
    fn a_divided_gpu_is_not_given_whole_or_shared() {
        let mut inventory = inventory(1);
        let mut mig = inventory.devices.values().next().unwrap().clone();
        mig.parent = Some(DeviceId::parse("GPU-0").unwrap());
        inventory.devices.insert(DeviceId::parse("MIG-0").unwrap(), mig);
        let mut part = whole("MIG-0");
        part.resources.clear();
        let (a, slot) = (whole("GPU-0"), APP);
        let others = ByPod::from([(PodUid::new("o"), vec![DeviceClaim { slot, kind: &GPU, entry: &part }])]);
        assert!(fits(&[claim(slot, &a)], &others, &inventory).is_err());
        assert!(fits(&[claim(slot, &part)], &others, &inventory).is_err());
        let half = share_of("GPU-0", 50, 50, 40 << 30);
        let divided = fits(&[claim(slot, &half)], &others, &inventory).unwrap_err();
        assert!(divided.why.contains("it is divided"), "{divided}");
    }
}
