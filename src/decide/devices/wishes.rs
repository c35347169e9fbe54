//! What a pod's author may ask about the choice of devices, read from the pod's annotations.

use std::hash::{Hash, Hasher};

use baton_contract::hint::{
    DeviceHint, ExclusivePolicy, JointScope, LabelSelector, PartitionSpec, parse_hints, parse_joint, parse_partition,
};
use baton_contract::{AllocationError, DeviceType};

/// GPUs and NICs chosen near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Joint {
    /// If possible.
    Preferred,
    /// The NICs lie below the same PCIe switches as the GPUs, or below the same root complexes; else the pod does not fit.
    SamePcie,
}

/// Every wish of one pod. Equal and hashed by what it says.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// About GPUs.
    pub gpu: DeviceHint,
    /// About NICs.
    pub rdma: DeviceHint,
    /// GPUs and NICs together.
    pub joint: Option<Joint>,
    /// `gpu-partition-spec`.
    pub partition: Option<PartitionSpec>,
    text: Box<str>,
}

impl PartialEq for Wishes {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl Eq for Wishes {}
impl Hash for Wishes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

/// Who else may be near what a pod holds; needed again when a bound pod is read back from its annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exclusive {
    /// For its GPUs.
    pub gpu: Option<ExclusivePolicy>,
    /// For its NICs.
    pub rdma: Option<ExclusivePolicy>,
}

impl Wishes {
    /// Reads the values of `device-allocate-hint`, `device-joint-allocate` and `gpu-partition-spec`; absent and empty are no
    /// wish.
    pub fn parse(hint: Option<&str>, joint: Option<&str>, partition: Option<&str>) -> Result<Self, AllocationError> {
        let given = |text: Option<&str>| text.filter(|text| !text.trim().is_empty()).map(str::to_owned);
        let mut hints = given(hint).map(|text| parse_hints(&text)).transpose()?.unwrap_or_default();
        let gpu = hints.remove(&DeviceType::Gpu).unwrap_or_default();
        let rdma = hints.remove(&DeviceType::Rdma).unwrap_or_default();
        let joint = given(joint).map(|text| parse_joint(&text)).transpose()?.and_then(|joint| {
            let both = [DeviceType::Gpu, DeviceType::Rdma].iter().all(|kind| joint.device_types.contains(kind));
            both.then_some(match joint.required_scope {
                Some(JointScope::SamePcie) => Joint::SamePcie,
                None => Joint::Preferred,
            })
        });
        let partition = given(partition).map(|text| parse_partition(&text)).transpose()?;
        Ok(Self::new(gpu, rdma, joint, partition))
    }

    /// From values already read.
    pub fn new(gpu: DeviceHint, rdma: DeviceHint, joint: Option<Joint>, partition: Option<PartitionSpec>) -> Self {
        let plain = gpu == DeviceHint::default() && rdma == DeviceHint::default();
        let text = match (plain, joint, &partition) {
            (true, None, None) => String::new(),
            _ => serde_json::to_string(&(&gpu, &rdma, joint.map(|joint| joint as u8), &partition)).unwrap_or_default(),
        };
        Self { gpu, rdma, joint, partition, text: text.into() }
    }

    /// No wish at all.
    pub fn is_plain(&self) -> bool {
        self.text.is_empty()
    }

    /// A selector names single devices: nodes and devices that differ in nothing but identity are different to the pod.
    pub fn names_devices(&self) -> bool {
        let mut selectors = [&self.gpu, &self.rdma].into_iter().filter_map(|hint| hint.selector.as_ref());
        !self.is_plain() && selectors.any(LabelSelector::names_devices)
    }

    /// The part that outlives the choice.
    pub fn exclusive(&self) -> Exclusive {
        Exclusive { gpu: self.gpu.exclusive_policy, rdma: self.rdma.exclusive_policy }
    }
}
