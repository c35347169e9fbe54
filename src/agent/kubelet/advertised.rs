//! What one resource name offers: the list that ListAndWatch sends, kept by device and spelled out, id by id, only for the stream.

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
        Self { units, devices: Vec::new() }
    }

    /// The message of ListAndWatch: always every id.
    pub fn list(&self) -> ListAndWatchResponse {
        self.list_with(|device| if device.healthy { "Healthy" } else { "Unhealthy" })
    }

    fn list_with(&self, health: impl Fn(&AdvertisedDevice) -> &str) -> ListAndWatchResponse {
        let named = |device: &AdvertisedDevice, id| Device {
            id,
            health: health(device).to_owned(),
            topology: device.numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] }),
        };
        let mut devices = Vec::with_capacity(self.counts().1);
        for device in &self.devices {
            match self.units {
                IdUnits::Whole => devices.push(named(device, device.id.to_string())),
                IdUnits::Shares(count) => devices.extend((0..count).map(|unit| named(device, device.id.unit(unit)))),
            }
        }
        ListAndWatchResponse { devices }
    }

    /// Encoded bytes that the message has at most, whatever becomes of its devices' health.
    fn largest(&self) -> usize {
        self.list_with(|_| "Unhealthy").encoded_len()
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

    fn of(units: IdUnits, count: usize) -> Advertised {
        let device = |n| AdvertisedDevice {
            id: DeviceId::parse(&format!("GPU-5f1c2a90-0000-4000-8000-{n:012}")).unwrap(),
            healthy: n != 1,
            numa: (n == 0).then_some(0),
        };
        Advertised { units, devices: (0..count).map(device).collect() }
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
