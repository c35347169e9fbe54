//! What one resource name offers: the list that ListAndWatch sends, kept by device and spelled out, id by id, only for the stream.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use baton_contract::DeviceId;
use baton_contract::deviceplugin::{Device, ListAndWatchResponse, NumaNode, TopologyInfo};

/// Most bytes of one list. The kubelet receives at most 4 MiB; the rest is head-room for growth without a restart.
pub const MAX_LIST: usize = 3 << 20;

/// The devices of one resource name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// How many ids one device has.
    pub units: IdUnits,
    /// The devices in stable order. A device that is in use stays in the list, healthy or not.
    pub devices: Vec<AdvertisedDevice>,
    /// Ids that are as healthy as their device is not: [`Self::exchange`].
    exchanged: BTreeSet<String>,
}

/// Ids of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdUnits {
    /// Its own id.
    Whole,
    /// So many shares, `<id>::0` and up.
    Shares(u32),
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdvertisedDevice {
    /// Physical identity.
    pub id: DeviceId,
    /// Whether the kubelet may hand it out.
    pub healthy: bool,
    /// NUMA node; set only when the kubelet's topology manager shall see it.
    pub numa: Option<u32>,
}

/// More ids than the kubelet can receive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{resource}: {ids} ids of {devices} devices make a list of {bytes} bytes; the kubelet receives 4 MiB at most and the \
     limit here is {MAX_LIST}: offer fewer shares (--gpu-sharing=false) or fewer devices"
)]
pub struct TooMany {
    /// Resource name.
    pub resource: String,
    /// Ids in the list.
    pub ids: usize,
    /// Devices behind them.
    pub devices: usize,
    /// Largest encoded size that it can have.
    pub bytes: usize,
}

impl IdUnits {
    fn count(self) -> usize {
        match self {
            Self::Whole => 1,
            Self::Shares(count) => count as usize,
        }
    }
}

impl Advertised {
    /// Offers nothing.
    pub fn none(units: IdUnits) -> Self {
        Self { units, devices: Vec::new(), exchanged: BTreeSet::new() }
    }

    /// An id that a container has is as healthy as the device `behind` it, and of the free ids as many are as healthy devices have
    /// room for. Else a GPU that fails behind another one's id would take two from what the kubelet gives away, and the scheduler, which
    /// counts GPUs, would send it pods that it refuses.
    pub fn exchange(&mut self, behind: &BTreeMap<Box<str>, DeviceId>) {
        self.exchanged.clear();
        let health: BTreeMap<&DeviceId, bool> =
            self.devices.iter().map(|device| (&device.id, device.healthy)).collect();
        let is_unlike = |own: &AdvertisedDevice, id: &str| {
            let given = behind.get(id).and_then(|device| health.get(device));
            given.is_some_and(|given| *given != own.healthy)
        };
        let unlike = self.ids().filter(|(own, id)| is_unlike(own, id));
        let (failed, well): (Vec<_>, Vec<_>) = unlike.partition(|(own, _)| own.healthy);
        let (short, healthy) = (failed.len().abs_diff(well.len()), failed.len() < well.len());
        // First those of the devices that others' ids stand for.
        let given: BTreeSet<&DeviceId> = failed.iter().chain(&well).map(|(_, id)| &behind[&**id]).collect();
        let mut free: Vec<_> =
            self.ids().filter(|(own, id)| own.healthy == healthy && !behind.contains_key(&**id)).collect();
        free.sort_by_key(|(own, _)| !given.contains(&own.id));
        let exchanged = failed.into_iter().chain(well).chain(free.into_iter().take(short));
        self.exchanged = exchanged.map(|(_, id)| id).collect();
    }

    fn ids(&self) -> impl Iterator<Item = (&AdvertisedDevice, String)> {
        let of = |device: &AdvertisedDevice, unit| match self.units {
            IdUnits::Whole => device.id.to_string(),
            IdUnits::Shares(_) => device.id.unit(unit),
        };
        self.devices
            .iter()
            .flat_map(move |device| (0..self.units.count() as u32).map(move |unit| (device, of(device, unit))))
    }

    /// The message of ListAndWatch: always every id.
    pub fn list(&self) -> ListAndWatchResponse {
        self.list_with(|device, id| if device.healthy == self.exchanged.contains(id) { "Unhealthy" } else { "Healthy" })
    }

    fn list_with(&self, health: impl Fn(&AdvertisedDevice, &str) -> &'static str) -> ListAndWatchResponse {
        let named = |(device, id): (&AdvertisedDevice, String)| Device {
            health: health(device, &id).to_owned(),
            id,
            topology: device.numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] }),
        };
        ListAndWatchResponse { devices: self.ids().map(named).collect() }
    }

    /// Encoded bytes that the message has at most, whatever becomes of its devices' health.
    fn largest(&self) -> usize {
        self.list_with(|_, _| "Unhealthy").encoded_len()
    }

    /// Number of ids, healthy ones first.
    pub fn counts(&self) -> (usize, usize) {
        let healthy = self.devices.iter().filter(|device| device.healthy).count();
        (healthy * self.units.count(), self.devices.len() * self.units.count())
    }

    /// Refuses a list that the kubelet could not receive.
    pub fn check_size(&self, resource: &str) -> Result<(), TooMany> {
        let bytes = self.largest();
        if bytes <= MAX_LIST {
            return Ok(());
        }
        Err(TooMany { resource: resource.to_owned(), ids: self.counts().1, devices: self.devices.len(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(units: IdUnits, count: usize) -> Advertised {
        let device = |n| AdvertisedDevice {
            id: DeviceId::parse(&format!("GPU-5f1c2a90-0000-4000-8000-{n:012}")).unwrap(),
            healthy: n != 1,
            numa: (n == 0).then_some(0),
        };
        Advertised { devices: (0..count).map(device).collect(), ..Advertised::none(units) }
    }

    #[test]
    fn a_whole_device_has_its_own_id_and_a_shared_one_a_hundred() {
        let whole = of(IdUnits::Whole, 2).list();
        let seen: Vec<_> = whole.devices.iter().map(|d| (&d.id[28..], &*d.health, d.topology.is_some())).collect();
        assert_eq!(seen, [("000000000000", "Healthy", true), ("000000000001", "Unhealthy", false)]);
        let shares = of(IdUnits::Shares(100), 2);
        assert_eq!(shares.counts(), (100, 200));
        assert!(shares.list().devices[199].id.ends_with("::99"));
    }

    proptest! {
        /// What the kubelet can still give away is the room on healthy devices, whatever ids it has chosen.
        #[test]
        fn free_healthy_ids_are_as_many_as_healthy_devices_have_room_for(
            health in proptest::collection::vec(any::<bool>(), 1..6),
            shares in 0_u32..4,
            given in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
        ) {
            let units = if shares == 0 { IdUnits::Whole } else { IdUnits::Shares(shares) };
            let mut list = of(units, health.len());
            list.devices.iter_mut().zip(&health).for_each(|(device, healthy)| device.healthy = *healthy);
            let (mut ids, mut rooms): (Vec<String>, Vec<DeviceId>) = list.ids().map(|(own, id)| (id, own.id.clone())).unzip();
            let mut behind = BTreeMap::new();
            for (id, room) in given.iter().take(ids.len()) {
                behind.insert(ids.swap_remove(id.index(ids.len())).into(), rooms.swap_remove(room.index(rooms.len())));
            }
            list.exchange(&behind);
            let is_well = |id: &DeviceId| list.devices.iter().any(|device| device.id == *id && device.healthy);
            let said: BTreeMap<String, bool> = list.list().devices.into_iter().map(|of| (of.id, of.health == "Healthy")).collect();
            for (id, device) in &behind {
                prop_assert_eq!(said[&**id], is_well(device), "{} is {}", id, device);
            }
            let free = said.iter().filter(|(id, well)| **well && !behind.contains_key(id.as_str())).count();
            prop_assert_eq!(free, rooms.iter().filter(|device| is_well(device)).count());
        }
    }

    #[test]
    fn the_size_is_judged_by_the_largest_that_the_list_can_become() {
        for (units, count) in
            [(IdUnits::Whole, 0), (IdUnits::Whole, 9), (IdUnits::Shares(100), 3), (IdUnits::Shares(7), 1)]
        {
            let mut list = of(units, count);
            list.devices.iter_mut().for_each(|device| device.healthy = false);
            let largest = list.largest();
            assert_eq!(largest, list.list().encoded_len());
            list.devices.iter_mut().for_each(|device| device.healthy = true);
            assert_eq!(list.largest(), largest);
        }
    }

    #[test]
    fn a_list_that_the_kubelet_cannot_receive_is_refused_with_the_numbers() {
        assert_eq!(of(IdUnits::Shares(100), 64).check_size("koordinator.sh/gpu"), Ok(()));
        let error = of(IdUnits::Shares(100), 700).check_size("koordinator.sh/gpu").unwrap_err();
        assert!(error.bytes > MAX_LIST && error.ids == 70_000, "{error}");
        assert!(error.to_string().contains("70000 ids of 700 devices"), "{error}");
    }
}
