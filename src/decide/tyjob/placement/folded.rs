//! Amounts with every name of a GPU folded into one: percent of GPUs.

use std::collections::BTreeMap;

use crate::world::{DeviceTotals, Resources};
use baton_contract::key;

/// The name under which GPUs are counted, in percent.
pub const GPU_PERCENT: &str = "gpu";

/// Names that stand for GPUs and are folded. Bytes of GPU memory are an amount of their own.
const FOLDED: [&str; 5] = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED];

/// Amounts by name: `cpu` in thousandths, `memory` and `ephemeral-storage` in bytes, `gpu` in percent, others in units.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Folded(BTreeMap<Box<str>, i64>);

/// How much memory GPUs have: so many bytes on so many percent of GPUs, both zero where that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuSize {
    bytes: i64,
    percent: i64,
}

impl GpuSize {
    /// Adds the GPUs of a node. Those whose size is not known, and those that are cut into MIG devices, say nothing of it.
    pub fn add(&mut self, listed: &DeviceTotals) {
        if (1..i64::MAX).contains(&listed.gpu_memory) {
            self.bytes = self.bytes.saturating_add(listed.gpu_memory);
            self.percent = self.percent.saturating_add(listed.gpu_percent);
        }
    }

    /// So many bytes in percent of GPUs of this size, rounded up.
    fn percent_of(self, bytes: i64) -> i64 {
        let (bytes, all) = (i128::from(bytes), i128::from(self.bytes.max(1)));
        i64::try_from((bytes * i128::from(self.percent) + all - 1) / all).unwrap_or(i64::MAX)
    }
}

/// Percent of GPUs that a pod asks for: a container uses one of the names, so they add up. Of core and memory ratio the larger
/// counts.
pub fn gpu_percent(requests: &Resources) -> i64 {
    if requests.scalar.is_empty() {
        return 0;
    }
    gpu_percent_of(requests, 1, GpuSize::default())
}

/// The same of so many pods, on GPUs of this size: a container asks for memory in percent or in bytes, so these add up too.
fn gpu_percent_of(requests: &Resources, pods: i64, size: GpuSize) -> i64 {
    let of = |name| requests.scalar(name).saturating_mul(pods);
    let memory = of(key::GPU_MEMORY_RATIO).saturating_add(size.percent_of(of(key::GPU_MEMORY)));
    let shared = of(key::GPU_CORE).max(memory);
    of(key::NVIDIA_GPU).saturating_mul(key::WHOLE).saturating_add(of(key::GPU)).saturating_add(shared)
}

impl Folded {
    /// What a pod asks for; of GPUs, `gpu_percent`.
    pub fn wanted(requests: &Resources) -> Self {
        Self::with(requests, gpu_percent(requests))
    }

    /// What so many pods ask for; bytes of GPU memory count as percent of GPUs of this size, too.
    pub fn wanted_by(requests: &Resources, pods: i64, size: GpuSize) -> Self {
        let mut all = Self::default();
        all.add(&Self::with(requests, 0), pods);
        all.raise(GPU_PERCENT, gpu_percent_of(requests, pods, size));
        all
    }

    /// What a node offers: the names are different words for the same GPUs, so the largest counts.
    pub fn offered(allocatable: &Resources) -> Self {
        let of = |name| allocatable.scalar(name);
        let whole = of(key::NVIDIA_GPU).saturating_mul(key::WHOLE);
        let gpu = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO].map(of).into_iter().fold(whole, i64::max);
        Self::with(allocatable, gpu)
    }

    fn with(amounts: &Resources, gpu: i64) -> Self {
        let own = [
            ("cpu", amounts.milli_cpu),
            ("memory", amounts.memory),
            ("ephemeral-storage", amounts.ephemeral),
            (GPU_PERCENT, gpu),
        ];
        let scalars = amounts.scalar.iter().filter(|(name, _)| !FOLDED.contains(name));
        let all = own.into_iter().chain(scalars).filter(|(_, amount)| *amount != 0);
        Self(all.map(|(name, amount)| (name.into(), amount)).collect())
    }

    /// One amount; zero when not named.
    pub fn get(&self, name: &str) -> i64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Makes one amount at least this much.
    pub fn raise(&mut self, name: &str, amount: i64) {
        if amount > self.get(name) {
            self.0.insert(name.into(), amount);
        }
    }

    /// Adds `times` of the other, saturating.
    pub fn add(&mut self, other: &Self, times: i64) {
        for (name, amount) in &other.0 {
            let mine = self.0.entry(name.clone()).or_insert(0);
            *mine = mine.saturating_add(amount.saturating_mul(times));
        }
    }

    /// Names and amounts, none of them zero unless they have cancelled out.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }
}
