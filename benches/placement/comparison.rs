//! The policies side by side on one trace: the scheduler with its profiles, and the published ones.

use baton::decide::core::rules::plugins::{DefaultSet, Profile, default_plugins};
use baton::decide::world::WorldPolicy;
use baton::ops::simulate::cluster::OnFailure;
use baton::ops::simulate::engine::Engine;
use baton::ops::simulate::experiment::RunFigures;
use baton::ops::simulate::runs::{ArrivalStream, Decider, Replay};
use baton::ops::simulate::stream::{filling, recorded};
use baton::ops::simulate::summary::SimulationSummary;
use baton::ops::simulate::trace::Trace;
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::published::{Policy, PublishedPolicy};
use super::steady::steady;

/// What decides where pods go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// This scheduler as it is without configuration.
    Binpack,
    /// This scheduler with that profile.
    Utilization,
    /// Published: any node with room.
    Random,
    /// Published: the node whose rest points least in the direction of the request.
    DotProduct,
    /// Published: nodes with pods of the same size.
    GpuClustering,
    /// Published: GPUs in use first, then nodes in use.
    GpuPacking,
    /// Published: the node with the least left.
    BestFit,
    /// Published: fragmentation gradient descent.
    Fgd,
}

impl PolicyName {
    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn decider(self, trace: &Trace, on_failure: OnFailure) -> Decider<'_> {
        let engine = |profile| -> Decider<'_> {
            let mut set = DefaultSet::default();
            set.choice.lists = set.choice.lists.of_profile(profile);
            let plugins = default_plugins(&set).expect("the profiles are whole");
            Box::new(move |order, _| {
                Box::new(Engine::new(trace, order, plugins.clone(), WorldPolicy::default(), on_failure))
            })
        };
        let published = |policy| -> Decider<'_> {
            Box::new(move |order, random| Box::new(PublishedPolicy::new(policy, trace, order, on_failure, random)))
        };
        match self {
            Self::Binpack => engine(Profile::Binpack),
            Self::Utilization => engine(Profile::Utilization),
            Self::Random => published(Policy::Random),
            Self::DotProduct => published(Policy::DotProduct),
            Self::GpuClustering => published(Policy::GpuClustering),
            Self::GpuPacking => published(Policy::GpuPacking),
            Self::BestFit => published(Policy::BestFit),
            Self::Fgd => published(Policy::Fgd),
        }
    }
}

/// What is compared, and how.
#[derive(Debug, Clone, Args)]
pub struct Comparison {
    /// What decides.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "binpack,best-fit,fgd,utilization")]
    pub policy: Vec<PolicyName>,
    /// Demand in parts of all GPUs (1.3); with --departures, the offered load (0.95).
    #[arg(long)]
    pub load: Option<f64>,
    /// Runs of each policy, with other orders of pods and nodes.
    #[arg(long, default_value_t = 10)]
    pub seeds: u64,
    /// Seed of the first run.
    #[arg(long, default_value_t = 42)]
    pub first_seed: u64,
    /// Pods end. With times in the trace and without --load, it is replayed as it happened; else pods come at random.
    #[arg(long)]
    pub departures: bool,
    /// What becomes of a pod for which there is no room.
    #[arg(long, value_enum, default_value = "drop")]
    pub on_failure: OnFailure,
}

impl Comparison {
    /// Whether the pods come as they did.
    fn as_recorded(&self, trace: &Trace) -> bool {
        self.departures && self.load.is_none() && trace.pods.iter().all(|pod| pod.span.is_some())
    }

    fn arrivals(&self, trace: &Trace, load: f64, random: &mut fastrand::Rng) -> ArrivalStream {
        if self.as_recorded(trace) {
            return (recorded(trace), Some(0.0..f64::INFINITY));
        }
        if !self.departures {
            return (filling(trace, load, random), None);
        }
        let (arrivals, measured) = steady(trace, load, random);
        (arrivals, Some(measured))
    }

    /// Runs all of it.
    pub fn run(&self, trace: &Trace) -> (SimulationSummary, Vec<Vec<RunFigures>>) {
        let load = self.load.unwrap_or(if self.departures { 0.95 } else { 1.3 });
        let replay = Replay {
            trace,
            on_failure: self.on_failure,
            seeds: (0..self.seeds).map(|at| self.first_seed.wrapping_add(at)).collect(),
            arrivals: &|random| self.arrivals(trace, load, random),
        };
        let deciders: Vec<_> = self.policy.iter().map(|policy| policy.decider(trace, self.on_failure)).collect();
        let runs = replay.run(&deciders, &CancellationToken::new());
        let (names, load) =
            (self.policy.iter().map(|policy| policy.name()), (!self.as_recorded(trace)).then_some(load));
        (SimulationSummary::of(&replay, load, names, &runs), runs)
    }
}
