//! How full a node is in one resource, for the ratings of packing, spreading and balance.

use crate::contract::key;
use crate::decide::world::{Node, Pod, Stock};

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

/// Weights by resource name, checked. `nvidia.com/gpu` stands for a node's GPUs under whatever name they are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights(Box<[(Box<str>, i64)]>);

impl Weights {
    /// Each weight is 1 to 100, each name is there once.
    pub fn new(weights: impl IntoIterator<Item = (String, i64)>) -> Result<Self, WeightError> {
        let mut checked: Vec<(Box<str>, i64)> = Vec::new();
        for (name, weight) in weights {
            if !(1..=100).contains(&weight) {
                return Err(WeightError::Range(name, weight));
            }
            if checked.iter().any(|(known, _)| **known == *name) {
                return Err(WeightError::Twice(name));
            }
            checked.push((name.into(), weight));
        }
        Ok(Self(checked.into()))
    }

    /// CPU and memory alike: kube-scheduler's default.
    pub fn cpu_and_memory() -> Self {
        Self([("cpu".into(), 1), ("memory".into(), 1)].into())
    }

    /// GPUs weigh 4, CPU and memory 1.
    pub fn gpus_first() -> Self {
        Self([(key::NVIDIA_GPU.into(), 4), ("cpu".into(), 1), ("memory".into(), 1)].into())
    }

    /// Names and weights, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, weight)| (&**name, *weight))
    }
}

/// Which requests are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Those that are named.
    Requests,
    /// Of CPU and memory, also what kube-scheduler assumes for containers that name none.
    Rated,
}

/// Amounts of one resource, all in the same unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// What the pod asks for.
    pub wanted: i64,
    /// What pods on the node hold.
    pub used: i64,
    /// What the node has.
    pub total: i64,
}

impl Usage {
    /// Of one resource. GPUs are counted in percent where the node's devices are known.
    pub fn of(name: &str, counted: Counted, pod: &Pod, node: &Node) -> Self {
        let Some(facts) = &node.facts else { return Self::default() };
        let (spec, used, total) = (&pod.facts.spec, &node.used, &facts.allocatable);
        let (wanted, used, total) = match (name, counted) {
            ("cpu", Counted::Requests) => (spec.requests.milli_cpu, used.milli_cpu, total.milli_cpu),
            ("cpu", Counted::Rated) => (spec.rated.milli_cpu, node.rated.milli_cpu, total.milli_cpu),
            ("memory", Counted::Requests) => (spec.requests.memory, used.memory, total.memory),
            ("memory", Counted::Rated) => (spec.rated.memory, node.rated.memory, total.memory),
            ("ephemeral-storage", _) => (spec.requests.ephemeral, used.ephemeral, total.ephemeral),
            (key::NVIDIA_GPU, _) if node.stock.is_some() => {
                let (used, total) = node.stock.as_ref().map_or((0, 0), Stock::gpu_percent);
                let bytes = spec.requests.scalar(key::GPU_MEMORY);
                let memory = node.stock.as_ref().map_or(0, |stock| stock.memory_percent(bytes));
                (wanted_gpu_percent(pod, memory), used, total)
            }
            (name, _) => (spec.requests.scalar(name), used.scalar(name), total.scalar(name)),
        };
        Self { wanted, used, total }
    }

    /// The same, but of no total where the pod does not ask for an extended resource: it is left out of the rating then.
    pub fn if_concerned(name: &str, counted: Counted, pod: &Pod, node: &Node) -> Self {
        let usage = Self::of(name, counted, pod, node);
        let always = matches!(name, "cpu" | "memory" | "ephemeral-storage");
        if usage.wanted == 0 && !always { Self::default() } else { usage }
    }
}

/// Percent of GPUs that the pod asks for, whatever name it uses; `memory` is what its bytes are in percent.
fn wanted_gpu_percent(pod: &Pod, memory: i64) -> i64 {
    let wanted = &pod.facts.spec.requests;
    let share = wanted.scalar(key::GPU_CORE).max(wanted.scalar(key::GPU_MEMORY_RATIO)).max(memory);
    wanted.scalar(key::NVIDIA_GPU) * key::WHOLE + wanted.scalar(key::GPU) + share
}
