//! The device request of one container: resource names and amounts, judged into a request that can be served, or refused by a
//! rule.

use std::collections::BTreeMap;

use super::key::{self, WHOLE};
use super::quantity::Quantity;

/// The rule that a container's device request breaks. The text is what the pod's owner reads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum RequestError {
    /// Extended resources come in whole units.
    #[error("{0}: {1} is not a whole, non-negative number")]
    NotWhole(String, Quantity),
    /// `koordinator.sh/gpu-core` without a memory part.
    #[error(
        "koordinator.sh/gpu-core alone is not a share: add koordinator.sh/gpu-memory-ratio or koordinator.sh/gpu-memory"
    )]
    CoreAlone,
    /// `koordinator.sh/gpu-memory` without a name that the kubelet can hand out.
    #[error(
        "koordinator.sh/gpu-memory alone cannot be served, the kubelet cannot hand out bytes: add koordinator.sh/gpu.shared: 1"
    )]
    MemoryAlone,
    /// `koordinator.sh/gpu.shared` says over how many GPUs, not how much.
    #[error(
        "koordinator.sh/gpu.shared alone is not a share: add koordinator.sh/gpu-memory-ratio or koordinator.sh/gpu-memory"
    )]
    SharedAlone,
    /// Two ways to say how much memory.
    #[error("koordinator.sh/gpu-memory and koordinator.sh/gpu-memory-ratio exclude each other: keep one")]
    MemoryTwice,
    /// Names that say the same thing twice.
    #[error("{0} and {1} exclude each other in one container: keep one")]
    Mixed(String, String),
    /// Above one device, only whole devices.
    #[error("{0}: {1} is above 100 and no multiple of 100")]
    NotHundreds(&'static str, i64),
    /// Parts for k GPUs must divide by k and fit on k GPUs: name, percent, k.
    #[error("{0}: {1} must be a multiple of koordinator.sh/gpu.shared ({2}) and at most {2}00")]
    NotSpread(&'static str, i64, i64),
    /// Core and memory ask for different numbers of GPUs: percent of compute, the other name, its amount.
    #[error("koordinator.sh/gpu-core: {0} and {1}: {2} do not divide over the same number of GPUs")]
    Uneven(i64, &'static str, i64),
}

/// Amounts of devices in words: `2 GPUs, 1 NIC`, `50% of a GPU`; nothing for names that are no devices'.
pub fn words<'a>(amounts: impl Iterator<Item = (&'a str, i64)>) -> String {
    let (mut percent, mut shares, mut memory, mut parts) = (0, 0, 0, Vec::new());
    let count = |count: i64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let of_devices = |percent: i64, what: &str| match percent % WHOLE {
        0 => count(percent / WHOLE, what),
        _ => format!("{percent}% of a {what}"),
    };
    for (name, amount) in amounts.filter(|(_, amount)| *amount > 0) {
        match name {
            key::NVIDIA_GPU => percent = percent.max(amount.saturating_mul(WHOLE)),
            key::GPU | key::GPU_CORE | key::GPU_MEMORY_RATIO => percent = percent.max(amount),
            key::GPU_SHARED => shares = amount,
            key::GPU_MEMORY => memory = amount,
            key::RDMA => parts.push(of_devices(amount, "NIC")),
            _ => parts.extend(name.strip_prefix(key::MIG_PREFIX).map(|profile| format!("{amount} MIG {profile}"))),
        }
    }
    let gpus = match (shares, percent, memory) {
        (0, 0, _) => None,
        (0, percent, _) => Some(of_devices(percent, "GPU")),
        (1, 0, memory) => Some(format!("{} of memory of a GPU", Quantity::bytes(memory))),
        (1, percent, _) => Some(format!("{percent}% of a GPU")),
        (shares, ..) => Some(count(shares, "GPU share")),
    };
    parts.splice(0..0, gpus);
    parts.join(", ")
}

/// GPUs of one container.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GpuRequest {
    /// Whole GPUs.
    Whole {
        /// How many, ≥ 1.
        count: u32,
    },
    /// The same part of each of `count` GPUs. Exactly one of `ratio` and `memory` is given.
    Share {
        /// How many GPUs, ≥ 1.
        count: u32,
        /// Percent of compute of each, 0..=100.
        core: i64,
        /// Percent of memory of each, 1..=100.
        ratio: Option<i64>,
        /// Bytes of memory of each.
        memory: Option<i64>,
    },
    /// MIG devices of one profile.
    Mig {
        /// E.g. `1g.10gb`.
        profile: Box<str>,
        /// How many, ≥ 1.
        count: u32,
    },
}

impl GpuRequest {
    /// Number of devices.
    pub fn count(&self) -> u32 {
        match self {
            Self::Whole { count } | Self::Share { count, .. } | Self::Mig { count, .. } => *count,
        }
    }
}

/// RDMA NICs of one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RdmaRequest {
    /// How many NICs, ≥ 1.
    pub count: u32,
    /// Percent of each, 1..=100.
    pub percent: i64,
}

/// Everything one container asks for, and the Allocate calls that will come of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ContainerRequest {
    /// GPUs, if any.
    pub gpu: Option<GpuRequest>,
    /// NICs, if any.
    pub rdma: Option<RdmaRequest>,
    /// Every device resource name with a limit above zero, and its limit: the number of ids of the kubelet's call.
    pub names: BTreeMap<Box<str>, i64>,
}

impl ContainerRequest {
    /// Judges the limits of one container. Names that are no device resources are ignored; zero means "not asked for".
    pub fn judge<'a>(limits: impl IntoIterator<Item = (&'a str, Quantity)>) -> Result<Self, RequestError> {
        let mut names = BTreeMap::new();
        for (name, amount) in limits {
            if !key::is_device_resource(name) || amount == Quantity::ZERO {
                continue;
            }
            if !amount.is_whole() || amount < Quantity::ZERO {
                return Err(RequestError::NotWhole(name.to_owned(), amount));
            }
            names.insert(Box::from(name), amount.value());
        }
        let gpu = gpu(&names)?;
        let rdma = names.get(key::RDMA).map(|amount| percent(key::RDMA, *amount)).transpose()?;
        Ok(Self { gpu, rdma: rdma.map(|(count, percent)| RdmaRequest { count, percent }), names })
    }

    /// `true` when nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The GPU name whose Allocate call delivers the devices; the calls for other GPU names answer empty.
    pub fn delivering_gpu_name(&self) -> Option<&str> {
        delivering(self.names.keys().map(|name| &**name))
    }

    /// Names for which the kubelet makes a call, where a plugin registers them: all but `koordinator.sh/gpu-memory`.
    pub fn called_names(&self) -> impl Iterator<Item = (&str, i64)> {
        self.names.iter().filter(|(name, _)| &***name != key::GPU_MEMORY).map(|(name, amount)| (&**name, *amount))
    }
}

/// Among the device names of one container, the GPU name that delivers.
pub fn delivering<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    key::GPU_DELIVERY_ORDER
        .iter()
        .find_map(|wanted| names.clone().find(|name| name == wanted))
        .or_else(|| names.clone().find(|name| name.starts_with(key::MIG_PREFIX)))
}

/// Splits percent into whole devices (above 100) or one part of a device.
fn percent(name: &'static str, amount: i64) -> Result<(u32, i64), RequestError> {
    match amount {
        ..=WHOLE => Ok((1, amount)),
        _ if amount % WHOLE == 0 => Ok((clamp(amount / WHOLE), WHOLE)),
        _ => Err(RequestError::NotHundreds(name, amount)),
    }
}

fn clamp(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn share(count: u32, core: i64, ratio: Option<i64>, memory: Option<i64>) -> GpuRequest {
    if core == WHOLE && ratio == Some(WHOLE) {
        GpuRequest::Whole { count }
    } else {
        GpuRequest::Share { count, core, ratio, memory }
    }
}

fn gpu(names: &BTreeMap<Box<str>, i64>) -> Result<Option<GpuRequest>, RequestError> {
    let of = |name: &str| names.get(name).copied();
    let mut exclusive = names
        .iter()
        .filter(|(name, _)| matches!(&***name, key::NVIDIA_GPU | key::GPU) || name.starts_with(key::MIG_PREFIX));
    if let Some((name, amount)) = exclusive.next() {
        let shares = [key::GPU_CORE, key::GPU_MEMORY, key::GPU_MEMORY_RATIO, key::GPU_SHARED];
        let second =
            exclusive.next().map(|(second, _)| &**second).or_else(|| shares.into_iter().find(|s| of(s).is_some()));
        if let Some(second) = second {
            return Err(RequestError::Mixed(name.to_string(), second.to_owned()));
        }
        return Ok(Some(match (&**name, name.strip_prefix(key::MIG_PREFIX)) {
            (_, Some(profile)) => GpuRequest::Mig { profile: profile.into(), count: clamp(*amount) },
            (key::NVIDIA_GPU, _) => GpuRequest::Whole { count: clamp(*amount) },
            _ => {
                let (count, part) = percent(key::GPU, *amount)?;
                share(count, part, Some(part), None)
            }
        }));
    }
    let (core, ratio, memory, shared) =
        (of(key::GPU_CORE), of(key::GPU_MEMORY_RATIO), of(key::GPU_MEMORY), of(key::GPU_SHARED));
    match (core, ratio, memory, shared) {
        (None, None, None, None) => Ok(None),
        (_, Some(_), Some(_), _) => Err(RequestError::MemoryTwice),
        (Some(_), None, None, None) => Err(RequestError::CoreAlone),
        (None, None, Some(_), None) => Err(RequestError::MemoryAlone),
        (_, None, None, Some(_)) => Err(RequestError::SharedAlone),
        (core, ratio, memory, Some(count)) => {
            let spread = |name, amount: Option<i64>| match amount {
                Some(a) if a % count != 0 || a / count > WHOLE => Err(RequestError::NotSpread(name, a, count)),
                other => Ok(other.map(|a| a / count)),
            };
            let core = spread(key::GPU_CORE, core)?.unwrap_or(0);
            let ratio = spread(key::GPU_MEMORY_RATIO, ratio)?;
            Ok(Some(share(clamp(count), core, ratio, memory.map(|bytes| ceil_div(bytes, count)))))
        }
        (core, Some(ratio), None, None) => {
            let (count, part) = percent(key::GPU_MEMORY_RATIO, ratio)?;
            let core = core.map(|core| over(core, count, key::GPU_MEMORY_RATIO, ratio)).transpose()?;
            Ok(Some(share(count, core.unwrap_or(0), Some(part), None)))
        }
        (Some(core), None, Some(memory), None) => {
            let (count, part) = percent(key::GPU_CORE, core)?;
            Ok(Some(share(count, part, None, Some(ceil_div(memory, i64::from(count))))))
        }
    }
}

/// Percent of compute on each of `count` GPUs.
fn over(core: i64, count: u32, name: &'static str, amount: i64) -> Result<i64, RequestError> {
    percent(key::GPU_CORE, core)?;
    let count = i64::from(count);
    if core % count != 0 || core / count > WHOLE {
        return Err(RequestError::Uneven(core, name, amount));
    }
    Ok(core / count)
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn judge(limits: &[(&str, &str)]) -> Result<ContainerRequest, RequestError> {
        ContainerRequest::judge(limits.iter().map(|(name, amount)| (*name, amount.parse().unwrap())))
    }

    fn gpu_of(limits: &[(&str, &str)]) -> GpuRequest {
        judge(limits).unwrap().gpu.unwrap()
    }

    const GIB: i64 = 1 << 30;

    #[test]
    fn every_valid_set_is_understood() {
        let share = |count, core, ratio, memory| GpuRequest::Share { count, core, ratio, memory };
        assert_eq!(gpu_of(&[("nvidia.com/gpu", "3")]), GpuRequest::Whole { count: 3 });
        assert_eq!(gpu_of(&[("nvidia.com/mig-1g.10gb", "2")]), GpuRequest::Mig { profile: "1g.10gb".into(), count: 2 });
        assert_eq!(gpu_of(&[(key::GPU, "200")]), GpuRequest::Whole { count: 2 });
        assert_eq!(gpu_of(&[(key::GPU, "50")]), share(1, 50, Some(50), None));
        assert_eq!(gpu_of(&[(key::GPU_MEMORY_RATIO, "25")]), share(1, 0, Some(25), None));
        assert_eq!(gpu_of(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "8Gi")]), share(1, 30, None, Some(8 * GIB)));
        assert_eq!(gpu_of(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY_RATIO, "40")]), share(1, 30, Some(40), None));
        assert_eq!(gpu_of(&[(key::GPU_CORE, "200"), (key::GPU_MEMORY_RATIO, "200")]), GpuRequest::Whole { count: 2 });
        assert_eq!(gpu_of(&[(key::GPU_SHARED, "1"), (key::GPU_MEMORY, "8Gi")]), share(1, 0, None, Some(8 * GIB)));
        assert_eq!(gpu_of(&[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "100")]), share(2, 0, Some(50), None));
        assert_eq!(
            gpu_of(&[(key::GPU_SHARED, "2"), (key::GPU_CORE, "60"), (key::GPU_MEMORY, "8Gi")]),
            share(2, 30, None, Some(4 * GIB))
        );
        assert_eq!(judge(&[(key::RDMA, "200")]).unwrap().rdma, Some(RdmaRequest { count: 2, percent: 100 }));
        assert_eq!(judge(&[(key::RDMA, "30")]).unwrap().rdma, Some(RdmaRequest { count: 1, percent: 30 }));
        assert!(judge(&[("cpu", "500m"), ("nvidia.com/gpu", "0")]).unwrap().is_empty());
    }

    #[test]
    fn every_invalid_set_names_the_rule_it_breaks() {
        for (limits, rule) in [
            (&[(key::GPU_CORE, "50")][..], "gpu-core alone"),
            (&[(key::GPU_MEMORY, "8Gi")], "add koordinator.sh/gpu.shared: 1"),
            (&[(key::GPU_SHARED, "1")], "gpu.shared alone"),
            (&[(key::GPU_SHARED, "1"), (key::GPU_CORE, "50")], "gpu.shared alone"),
            (&[(key::GPU_CORE, "50"), (key::GPU_MEMORY, "8Gi"), (key::GPU_MEMORY_RATIO, "5")], "exclude each other"),
            (&[("nvidia.com/gpu", "1"), (key::GPU_CORE, "50")], "nvidia.com/gpu"),
            (&[("nvidia.com/gpu", "1"), (key::GPU, "50")], "exclude each other"),
            (&[("nvidia.com/gpu", "1"), ("nvidia.com/mig-1g.10gb", "1")], "exclude each other"),
            (&[(key::GPU, "150")], "150 is above 100"),
            (&[(key::RDMA, "120")], "120 is above 100"),
            (&[(key::GPU_MEMORY_RATIO, "150")], "150 is above 100"),
            (&[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "75")], "multiple of"),
            (&[(key::GPU_SHARED, "2"), (key::GPU_MEMORY_RATIO, "202")], "at most 200"),
            (&[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "300")], "same number of GPUs"),
            (&[("nvidia.com/gpu", "500m")], "not a whole"),
        ] {
            let error = judge(limits).unwrap_err().to_string();
            assert!(error.contains(rule), "{limits:?}: {error}");
        }
    }

    #[test]
    fn one_gpu_name_delivers_and_memory_makes_no_call() {
        let request = judge(&[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "8Gi"), (key::RDMA, "10")]).unwrap();
        assert_eq!(request.delivering_gpu_name(), Some(key::GPU_CORE));
        assert_eq!(request.called_names().collect::<Vec<_>>(), [(key::GPU_CORE, 30), (key::RDMA, 10)]);
        assert_eq!(
            judge(&[("nvidia.com/mig-1g.10gb", "1")]).unwrap().delivering_gpu_name(),
            Some("nvidia.com/mig-1g.10gb")
        );
    }

    proptest! {
        #[test]
        fn no_amounts_panic_and_parts_stay_within_one_device(
            core in proptest::option::of(any::<i64>()), ratio in proptest::option::of(0..1000i64),
            memory in proptest::option::of(any::<i64>()), shared in proptest::option::of(0..20i64),
        ) {
            let limits = [(key::GPU_CORE, core), (key::GPU_MEMORY_RATIO, ratio), (key::GPU_MEMORY, memory), (key::GPU_SHARED, shared)];
            let limits = limits.into_iter().filter_map(|(name, amount)| Some((name, Quantity::units(amount?))));
            if let Ok(ContainerRequest { gpu: Some(GpuRequest::Share { count, core, ratio, .. }), .. }) = ContainerRequest::judge(limits) {
                prop_assert!(count >= 1 && (0..=WHOLE).contains(&core) && ratio.is_none_or(|r| (1..=WHOLE).contains(&r)));
            }
        }
    }
}
