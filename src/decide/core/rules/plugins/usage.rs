//! How full a node is in one resource, for the ratings of packing, spreading and balance.

use crate::world::{Node, Pod, Resources, Stock};
use baton_contract::key;

/// Why a resource's weight means nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Outside its range.
    #[error("weight {1} of {0} is out of range, expected 1 to 100")]
    Range(String, i64),
    /// Named before.
    #[error("resource {0} is named twice, expected once")]
    Twice(String),
}

/// A resource that ratings look at: its name is parsed once, not for every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rateable {
    /// `cpu`.
    Cpu,
    /// `memory`.
    Memory,
    /// `ephemeral-storage`.
    Ephemeral,
    /// `nvidia.com/gpu`: a node's GPUs under whatever name they are asked for.
    Gpu,
    /// Any other.
    Other(Box<str>),
}

impl Rateable {
    /// By its name.
    pub fn of(name: &str) -> Self {
        match name {
            "cpu" => Self::Cpu,
            "memory" => Self::Memory,
            "ephemeral-storage" => Self::Ephemeral,
            key::NVIDIA_GPU => Self::Gpu,
            other => Self::Other(other.into()),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Ephemeral => "ephemeral-storage",
            Self::Gpu => key::NVIDIA_GPU,
            Self::Other(name) => name,
        }
    }
}

/// Weights by resource, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights(Box<[(Rateable, i64)]>);

impl Weights {
    /// Each weight is 1 to 100, each name is there once.
    pub fn new(weights: impl IntoIterator<Item = (String, i64)>) -> Result<Self, WeightError> {
        let mut checked: Vec<(Rateable, i64)> = Vec::new();
        for (name, weight) in weights {
            if !(1..=100).contains(&weight) {
                return Err(WeightError::Range(name, weight));
            }
            let resource = Rateable::of(&name);
            if checked.iter().any(|(known, _)| *known == resource) {
                return Err(WeightError::Twice(name));
            }
            checked.push((resource, weight));
        }
        Ok(Self(checked.into()))
    }

    /// CPU and memory alike: kube-scheduler's default.
    pub fn cpu_and_memory() -> Self {
        Self([(Rateable::Cpu, 1), (Rateable::Memory, 1)].into())
    }

    /// GPUs weigh 4, CPU and memory 1.
    pub fn gpus_first() -> Self {
        Self([(Rateable::Gpu, 4), (Rateable::Cpu, 1), (Rateable::Memory, 1)].into())
    }

    /// Resources and weights, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = (&Rateable, i64)> {
        self.0.iter().map(|(resource, weight)| (resource, *weight))
    }
}

/// Which requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedRequests {
    /// Those that are named.
    Requests,
    /// Of CPU and memory, also what kube-scheduler assumes for containers that name none.
    Rated,
}

/// Amounts of one resource, all in the same unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceUsage {
    /// What the pod asks for.
    pub wanted: i64,
    /// What pods on the node hold.
    pub used: i64,
    /// What the node has.
    pub total: i64,
}

impl ResourceUsage {
    /// Of one resource. GPUs are counted in percent where the node's devices are known.
    pub fn of(resource: &Rateable, counted: CountedRequests, pod: &Pod, node: &Node) -> Self {
        let Some(facts) = &node.facts else { return Self::default() };
        let (spec, used, total) = (&pod.facts.spec, &node.used, &facts.allocatable);
        let (wanted, used, total) = match (resource, counted) {
            (Rateable::Cpu, CountedRequests::Requests) => (spec.requests.milli_cpu, used.milli_cpu, total.milli_cpu),
            (Rateable::Cpu, CountedRequests::Rated) => (spec.rated.milli_cpu, node.rated.milli_cpu, total.milli_cpu),
            (Rateable::Memory, CountedRequests::Requests) => (spec.requests.memory, used.memory, total.memory),
            (Rateable::Memory, CountedRequests::Rated) => (spec.rated.memory, node.rated.memory, total.memory),
            (Rateable::Ephemeral, _) => (spec.requests.ephemeral, used.ephemeral, total.ephemeral),
            (Rateable::Gpu | Rateable::Other(_), _) => match &node.stock {
                Some(stock) if *resource == Rateable::Gpu => of_gpus(&spec.requests, stock),
                _ => {
                    let name = resource.name();
                    (spec.requests.scalar(name), used.scalar(name), total.scalar(name))
                }
            },
        };
        Self { wanted, used, total }
    }

    /// The same, but of no total where the pod does not ask for an extended resource: it is left out of the rating then.
    pub fn if_concerned(resource: &Rateable, counted: CountedRequests, pod: &Pod, node: &Node) -> Self {
        let usage = Self::of(resource, counted, pod, node);
        let always = matches!(resource, Rateable::Cpu | Rateable::Memory | Rateable::Ephemeral);
        if usage.wanted == 0 && !always { Self::default() } else { usage }
    }
}

/// Wanted, used and total percent of a node's GPUs, as far as they concern the pod: for a pod that asks for MIG devices a node is as
/// full as those are, for any other pod as full as its undivided GPUs are. On a node with no other GPUs each MIG device counts as one.
pub fn of_gpus(requests: &Resources, stock: &Stock) -> (i64, i64, i64) {
    let migs = requests.scalar.iter().filter(|(name, _)| name.starts_with(key::MIG_PREFIX));
    let migs: i64 = migs.map(|(_, amount)| amount * key::WHOLE).sum();
    let gpus = wanted_gpu_percent(requests, stock);
    let (used, total) = match (migs, gpus) {
        (0, _) => stock.gpu_percent(),
        (_, 0) => stock.mig_percent(),
        (_, _) if stock.is_cut_whole() => stock.mig_percent(),
        (_, _) => {
            let (gpus, migs) = (stock.gpu_percent(), stock.mig_percent());
            (gpus.0 + migs.0, gpus.1 + migs.1)
        }
    };
    (gpus + migs, used, total)
}

/// Percent of GPUs that the pod asks for, whatever name it uses; MIG devices not counted.
fn wanted_gpu_percent(wanted: &Resources, stock: &Stock) -> i64 {
    let (mut whole, mut share) = (0, 0);
    for (name, amount) in wanted.scalar.iter() {
        match name {
            key::NVIDIA_GPU => whole += amount * key::WHOLE,
            key::GPU => whole += amount,
            key::GPU_CORE | key::GPU_MEMORY_RATIO => share = share.max(amount),
            key::GPU_MEMORY => share = share.max(stock.memory_percent(amount)),
            _ => {}
        }
    }
    whole + share
}
