//! What one resource name offers: the full list that ListAndWatch sends, kept compact and spelled out only while sending.
//!
//! A list has hundreds of ids and goes out once for each name whenever a device's health changes; the kubelet shall know
//! within milliseconds. So a list is written in one pass and without a message in between (eight GPUs with a hundred shares each
//! would be two thousand small allocations), and once: names that offer the same share one list, and every stream of it takes
//! the bytes that the first one had written.

use std::sync::OnceLock;

use prost::bytes::BufMut;
use prost::{Message, encode_length_delimiter, length_delimiter_len};

use baton_contract::DeviceId;
use baton_contract::deviceplugin::{Device, NumaNode, TopologyInfo};

/// Most bytes of one list. The kubelet receives at most 4 MiB; the rest is head-room for growth without a restart.
pub const MAX_LIST: usize = 3 << 20;

/// The devices of one resource name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// How many ids one device has.
    pub units: IdUnits,
    /// The devices in stable order. A device that is in use stays in the list, healthy or not.
    pub devices: Vec<AdvertisedDevice>,
    written: EncodedList,
}

/// The message, from its first use on. It follows from the list, so it counts neither for equality nor for copies.
#[derive(Debug, Default)]
struct EncodedList(OnceLock<Vec<u8>>);

impl Clone for EncodedList {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for EncodedList {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EncodedList {}

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

/// Between a device's id and the number of its share, as [`DeviceId::unit`] has it.
const UNIT: &[u8] = b"::";
/// Tags of `ListAndWatchResponse.devices` and of `Device.ID`: field 1, length-delimited.
const FIELD_1: u8 = 1 << 3 | 2;

/// What every id of one device has in common: the bytes of `Device` behind its id.
fn rest_of_device(healthy: bool, numa: Option<u32>) -> Vec<u8> {
    let health = if healthy { "Healthy" } else { "Unhealthy" }.to_owned();
    let topology = numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] });
    Device { id: String::new(), health, topology }.encode_to_vec()
}

/// Bytes of a length-delimited field whose tag takes one.
fn field_len(content: usize) -> usize {
    1 + length_delimiter_len(content) + content
}

/// Tag and length of a field number 1.
fn put_head(buffer: &mut impl BufMut, content: usize) {
    buffer.put_u8(FIELD_1);
    encode_length_delimiter(content, buffer).expect("the buffer was reserved for the whole message");
}

impl Advertised {
    /// Offers these devices.
    pub fn new(units: IdUnits, devices: Vec<AdvertisedDevice>) -> Self {
        Self { units, devices, written: EncodedList::default() }
    }

    /// Offers nothing.
    pub fn none(units: IdUnits) -> Self {
        Self::new(units, Vec::new())
    }

    /// The encoded `ListAndWatchResponse`. From the first time on, the list is as it is.
    pub fn message(&self) -> &[u8] {
        self.written.0.get_or_init(|| {
            let mut bytes = Vec::new();
            self.encode(&mut bytes, Vec::reserve_exact);
            bytes
        })
    }

    /// Hands `put` the parts of every id and its device's number, in order.
    fn each(&self, mut put: impl FnMut(usize, &str, &[u8], &[u8])) {
        for (number, device) in self.devices.iter().enumerate() {
            match self.units {
                IdUnits::Whole => put(number, device.id.as_str(), b"", b""),
                IdUnits::Shares(count) => {
                    (0..count).for_each(|unit| {
                        put(number, device.id.as_str(), UNIT, itoa::Buffer::new().format(unit).as_bytes());
                    });
                }
            }
        }
    }

    /// Length of the message where the device number `n` has `rest(n)` bytes behind each id.
    fn len_with(&self, rest: impl Fn(usize) -> usize) -> usize {
        let mut len = 0;
        self.each(|number, id, mark, unit| {
            len += field_len(field_len(id.len() + mark.len() + unit.len()) + rest(number));
        });
        len
    }

    /// Writes the `ListAndWatchResponse`, always with every id. Reserves once, by `reserve`.
    pub fn encode<B: BufMut>(&self, buffer: &mut B, reserve: impl FnOnce(&mut B, usize)) {
        let rests: Vec<Vec<u8>> = self.devices.iter().map(|d| rest_of_device(d.healthy, d.numa)).collect();
        reserve(buffer, self.len_with(|number| rests[number].len()));
        self.each(|number, id, mark, unit| {
            let id_len = id.len() + mark.len() + unit.len();
            let rest = &rests[number];
            put_head(buffer, field_len(id_len) + rest.len());
            put_head(buffer, id_len);
            [id.as_bytes(), mark, unit, rest].into_iter().for_each(|part| buffer.put_slice(part));
        });
    }

    /// Encoded bytes that the message has at most, whatever becomes of its devices' health.
    fn largest(&self) -> usize {
        let rests: Vec<usize> = self.devices.iter().map(|d| rest_of_device(false, d.numa).len()).collect();
        self.len_with(|number| rests[number])
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
    use baton_contract::deviceplugin::ListAndWatchResponse;
    use proptest::prelude::*;

    fn of(units: IdUnits, count: usize) -> Advertised {
        let device = |n| AdvertisedDevice {
            id: DeviceId::parse(&format!("GPU-5f1c2a90-0000-4000-8000-{n:012}")).unwrap(),
            healthy: n != 1,
            numa: (n == 0).then_some(0),
        };
        Advertised::new(units, (0..count).map(device).collect())
    }

    fn bytes(list: &Advertised) -> Vec<u8> {
        let mut bytes = Vec::new();
        list.encode(&mut bytes, Vec::reserve_exact);
        bytes
    }

    fn message(list: &Advertised) -> ListAndWatchResponse {
        ListAndWatchResponse::decode(bytes(list).as_slice()).unwrap()
    }

    /// The message as the generated code would have it.
    fn spelled_out(list: &Advertised) -> ListAndWatchResponse {
        let of_device = |device: &AdvertisedDevice| {
            let (healthy, numa) = (device.healthy, device.numa);
            let named = move |id| Device {
                id,
                health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
                topology: numa.map(|node| TopologyInfo { nodes: vec![NumaNode { id: i64::from(node) }] }),
            };
            let ids = match list.units {
                IdUnits::Whole => vec![device.id.to_string()],
                IdUnits::Shares(count) => (0..count).map(|unit| device.id.unit(unit)).collect(),
            };
            ids.into_iter().map(named).collect::<Vec<_>>()
        };
        ListAndWatchResponse { devices: list.devices.iter().flat_map(of_device).collect() }
    }

    proptest! {
        #[test]
        fn a_list_is_written_as_the_generated_code_would_write_it(
            units in prop_oneof![Just(IdUnits::Whole), (0u32..1200).prop_map(IdUnits::Shares)],
            devices in proptest::collection::vec(("[!-+0-9A-Za-z._-]{1,126}[a-z0-9]", any::<bool>(), proptest::option::of(any::<u32>())), 0..4),
        ) {
            let device = |(id, healthy, numa): (String, _, _)| AdvertisedDevice { id: DeviceId::parse(&id).unwrap(), healthy, numa };
            let list = Advertised::new(units, devices.into_iter().map(device).collect());
            prop_assert_eq!(bytes(&list), spelled_out(&list).encode_to_vec());
            prop_assert_eq!(list.message(), bytes(&list));
            let copy = list.clone();
            prop_assert_eq!(copy.message(), list.message());
        }
    }

    #[test]
    fn a_list_takes_one_buffer_of_its_size_and_never_grows_it() {
        let list = of(IdUnits::Shares(100), 8);
        let mut asked = Vec::new();
        let mut buffer = Vec::new();
        list.encode(&mut buffer, |buffer, len| {
            asked.push(len);
            buffer.reserve_exact(len);
        });
        assert_eq!(asked, [buffer.len()]);
        assert_eq!(buffer.capacity(), buffer.len());
    }

    #[test]
    fn a_whole_device_has_its_own_id_and_a_shared_one_a_hundred() {
        let whole = message(&of(IdUnits::Whole, 2));
        let seen: Vec<_> = whole.devices.iter().map(|d| (&d.id[28..], &*d.health, d.topology.is_some())).collect();
        assert_eq!(seen, [("000000000000", "Healthy", true), ("000000000001", "Unhealthy", false)]);
        let shares = of(IdUnits::Shares(100), 2);
        assert_eq!(shares.counts(), (100, 200));
        assert!(message(&shares).devices[199].id.ends_with("::99"));
    }

    #[test]
    fn the_size_is_judged_by_the_largest_that_the_list_can_become() {
        for (units, count) in
            [(IdUnits::Whole, 0), (IdUnits::Whole, 9), (IdUnits::Shares(100), 3), (IdUnits::Shares(7), 1)]
        {
            let mut list = of(units, count);
            list.devices.iter_mut().for_each(|device| device.healthy = false);
            let largest = list.largest();
            assert_eq!(largest, bytes(&list).len());
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
