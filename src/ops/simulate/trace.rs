//! What is replayed: machines, and pods by what they ask for.

use std::collections::BTreeMap;

use baton_contract::gang::TopologySpec;

/// A machine, empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TraceMachine {
    /// Unique.
    pub name: String,
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Number of GPUs.
    pub gpus: u32,
    /// Their model; empty where none is known.
    pub model: String,
    /// Labels, of which those of layers count.
    pub labels: BTreeMap<String, String>,
}

/// What a pod asks for, or each pod of a gang.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TraceAsk {
    /// Thousandths of a CPU.
    pub milli_cpu: i64,
    /// Bytes.
    pub memory: i64,
    /// Number of GPUs.
    pub gpus: u32,
    /// Thousandths of each, 1 to 1000; 0 without GPUs.
    pub milli: i64,
    /// Models that will do; empty for any.
    pub models: Vec<String>,
    /// A gang of such pods; `None` for a single one.
    pub gang: Option<TraceGang>,
}

/// Pods that start together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceGang {
    /// How many.
    pub members: u32,
    /// Where they are gathered.
    pub topology: TopologySpec,
}

impl TraceAsk {
    /// Pods that start together.
    pub fn members(&self) -> u32 {
        self.gang.as_ref().map_or(1, |gang| gang.members)
    }

    /// Thousandths of GPUs in all.
    pub fn demand(&self) -> i64 {
        i64::from(self.members()) * i64::from(self.gpus) * self.milli
    }

    /// Whether GPUs of this model will do.
    pub fn accepts(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|accepted| accepted == model)
    }

    /// How results call its size: `share`, or the number of GPUs; of a gang with its members, as `4x8`.
    pub fn size(&self) -> String {
        let each = if self.gpus == 1 && self.milli < WHOLE { "share".to_owned() } else { self.gpus.to_string() };
        self.gang.as_ref().map_or(each.clone(), |gang| format!("{}x{each}", gang.members))
    }
}

/// Thousandths of a GPU.
pub const WHOLE: i64 = 1000;

/// When a pod came and went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// It came.
    pub arrive: f64,
    /// It went; `None` when it stays.
    pub end: Option<f64>,
}

/// A pod or a gang of the trace.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TracePod {
    /// Its place in [`Trace::asks`].
    pub ask: usize,
    /// `None` where the trace has no times.
    pub span: Option<Span>,
}

/// A cluster and the pods that want to run on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// For the output.
    pub name: String,
    /// Machines.
    pub machines: Vec<TraceMachine>,
    /// Everything that pods ask for, each once.
    pub asks: Vec<TraceAsk>,
    /// Pods.
    pub pods: Vec<TracePod>,
    /// What a reader of the results has to know of the input.
    pub notes: Vec<String>,
    /// Places in `asks`.
    known: BTreeMap<TraceAsk, usize>,
}

/// A trace that there is nothing to learn from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// No GPU in the cluster.
    #[error("{0}: none of the nodes has a GPU, so there is nothing to hand out; give --nodes of a cluster with GPUs")]
    NoGpus(String),
    /// No pod asks for a GPU.
    #[error("{0}: none of the pods asks for a GPU, so there is nothing to compare; give pods with gpus above 0")]
    NoDemand(String),
}

impl Trace {
    /// Machines without pods.
    pub fn of(name: String, machines: Vec<TraceMachine>) -> Self {
        Self { name, machines, ..Self::default() }
    }

    /// Adds pods that ask for the same.
    pub fn add(&mut self, ask: TraceAsk, span: Option<Span>, count: usize) {
        let ask = *self.known.entry(ask).or_insert_with_key(|ask| {
            self.asks.push(ask.clone());
            self.asks.len() - 1
        });
        self.pods.extend(std::iter::repeat_n(TracePod { ask, span }, count));
    }

    /// Notes the models of GPUs that pods name and no machine has.
    pub fn note_models(&mut self) {
        let has = |model: &str| self.machines.iter().any(|machine| machine.gpus > 0 && machine.model == model);
        let mut missing = BTreeMap::<&str, usize>::new();
        for model in self.pods.iter().flat_map(|pod| &self.asks[pod.ask].models) {
            *missing.entry(model).or_default() += 1;
        }
        missing.retain(|model, _| !has(model));
        let note = |(model, pods)| format!("no node has GPUs of the model {model:?}, which {pods} pods name");
        self.notes.extend(missing.into_iter().map(note));
    }

    /// Thousandths of all GPUs.
    pub fn capacity(&self) -> i64 {
        self.machines.iter().map(|machine| i64::from(machine.gpus) * WHOLE).sum()
    }

    /// Checks that a run of it means something.
    pub fn check(&self) -> Result<(), TraceError> {
        if self.capacity() == 0 {
            return Err(TraceError::NoGpus(self.name.clone()));
        }
        if self.pods.iter().all(|pod| self.asks[pod.ask].demand() == 0) {
            return Err(TraceError::NoDemand(self.name.clone()));
        }
        Ok(())
    }
}
