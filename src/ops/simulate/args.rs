//! The command line of `baton simulate`: from the trace to what is printed.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, Command, ValueEnum};
use tokio_util::sync::CancellationToken;

use crate::say::{UsageError, remark, say};
use crate::{config, daemon, settings};
use baton_decide::scheduler::rules::Plugins;
use baton_decide::scheduler::rules::plugins::{DefaultSet, Profile, default_plugins};
use baton_decide::world::MixPolicy;
use baton_runtime::{clock, shutdown};
use baton_scheduler::SchedulerOptions;

use super::cluster::{OnFailure, SimulatedCluster};
use super::engine::Engine;
use super::experiment::{self, RunFigures};
use super::published::{Policy, PublishedPolicy};
use super::report::{SimulateOutput, print};
use super::stream::{self, Arrival};
use super::summary::{PolicySummary, SimulationSummary};
use super::trace::Trace;
use super::{dump, openb, plot};

/// What decides where pods go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// This scheduler with the configuration given, or its default.
    Current,
    /// This scheduler with the profile `utilization`.
    Patience,
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
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Arguments of `baton simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// Pods as CSV, a directory with nodes.csv and pods.csv, or a cluster as JSON or YAML (`kubectl get nodes,pods,devices -A -o json`).
    pub trace: Option<PathBuf>,
    /// Nodes as CSV: sn,cpu_milli,memory_mib,gpu,model; else nodes.csv beside the pods.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Pods as CSV, in place of TRACE.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub pods: Option<PathBuf>,
    /// What decides, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "current,patience,best-fit,fgd")]
    pub policy: Vec<PolicyName>,
    /// Demand in parts of all GPUs (1.3); with --departures, the offered load (0.95).
    #[arg(long, value_parser = load)]
    pub load: Option<f64>,
    /// Runs of each policy, with other orders of pods and nodes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
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
    /// The scheduler's configuration, for `current`.
    #[arg(long, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: SimulateOutput,
    /// Write plots to this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

fn load(text: &str) -> Result<f64, String> {
    let load = text.parse().ok().filter(|load| (0.01..=10.0).contains(load));
    load.ok_or_else(|| "expected a number from 0.01 to 10, such as 1.3 for 130 % of all GPUs".to_owned())
}

/// Reads the trace, runs every policy, prints. At the first Ctrl-C, prints the runs that are done.
pub fn run(args: SimulateArgs) -> anyhow::Result<ExitCode> {
    let trace = read(&args)?;
    trace.check()?;
    trace.notes.iter().for_each(|note| remark(format_args!("note: {note}")));
    let deciders = args.policy.iter().map(|policy| Decider::of(*policy, &args)).collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stop = runtime.block_on(async { shutdown::on_signals() })?;
    let runs = run_all(&trace, &args, &deciders, &stop);
    let seeds: Vec<u64> = (0..args.seeds).map(|at| args.first_seed.wrapping_add(at)).collect();
    let load = args.load.unwrap_or(if args.departures { 0.95 } else { 1.3 });
    let (names, runs): (Vec<PolicyName>, Vec<Vec<RunFigures>>) =
        args.policy.iter().zip(runs).filter(|(_, runs)| !runs.is_empty()).unzip();
    if runs.is_empty() {
        remark("baton: stopped before the first run was done");
        return Ok(ExitCode::from(130));
    }
    let summary = SimulationSummary {
        nodes: trace.machines.len(),
        gpus: trace.machines.iter().map(|machine| i64::from(machine.gpus)).sum(),
        load,
        seeds,
        policies: names.iter().zip(&runs).map(|(name, runs)| PolicySummary::of(&name.name(), runs, load)).collect(),
        trace: trace.name.clone(),
    };
    say(print(&summary, args.output)?)?;
    if let Some(path) = &args.plot {
        plot::write(path, &trace, &summary, &runs)?;
        remark(format_args!("plots: {}", path.display()));
    }
    Ok(if stop.is_cancelled() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

fn read(args: &SimulateArgs) -> anyhow::Result<Trace> {
    let wanted = args.pods.as_deref().or(args.trace.as_deref());
    let Some(path) = wanted else {
        let text = "no trace: give pods as CSV with --nodes, a directory with nodes.csv and pods.csv, or the JSON of `kubectl get nodes,pods,devices -A -o json`";
        return Err(UsageError(text.to_owned()).into());
    };
    let (pods, beside) = if path.is_dir() {
        (path.join("pods.csv"), path)
    } else {
        (path.to_owned(), path.parent().unwrap_or(Path::new(".")))
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = stem.trim_start_matches("kinds-").trim_start_matches("pods-").to_owned();
    if pods.extension().is_some_and(|extension| extension == "json" || extension == "yaml" || extension == "yml") {
        let mut trace = dump::read(&pods, name)?;
        if let Some(nodes) = &args.nodes {
            trace.machines = openb::machines(nodes)?;
        }
        return Ok(trace);
    }
    let nodes = args.nodes.clone().unwrap_or_else(|| beside.join("nodes.csv"));
    let mut trace = Trace::of(name, openb::machines(&nodes)?);
    openb::pods(&pods, &mut trace)?;
    Ok(trace)
}

/// What a run needs to make its cluster.
enum Decider {
    Engine(Box<Plugins>, MixPolicy),
    Published(Policy),
}

impl Decider {
    fn of(policy: PolicyName, args: &SimulateArgs) -> anyhow::Result<Self> {
        Ok(match policy {
            PolicyName::Current => {
                let options = configured(args.config_file.as_deref())?;
                Self::Engine(Box::new(default_plugins(&options.plugin_set()?)?), options.plugins.patience)
            }
            PolicyName::Patience => {
                let mut set = DefaultSet::default();
                set.choice.lists = set.choice.lists.of_profile(Profile::Utilization);
                Self::Engine(
                    Box::new(default_plugins(&set)?),
                    configured(args.config_file.as_deref())?.plugins.patience,
                )
            }
            PolicyName::Random => Self::Published(Policy::Random),
            PolicyName::DotProduct => Self::Published(Policy::DotProduct),
            PolicyName::GpuClustering => Self::Published(Policy::GpuClustering),
            PolicyName::GpuPacking => Self::Published(Policy::GpuPacking),
            PolicyName::BestFit => Self::Published(Policy::BestFit),
            PolicyName::Fgd => Self::Published(Policy::Fgd),
        })
    }

    fn cluster<'a>(
        &self,
        trace: &'a Trace,
        order: &[usize],
        on_failure: OnFailure,
        random: fastrand::Rng,
    ) -> Box<dyn SimulatedCluster + 'a> {
        match self {
            Self::Engine(plugins, mix) => Box::new(Engine::new(trace, order, (**plugins).clone(), *mix, on_failure)),
            Self::Published(policy) => Box::new(PublishedPolicy::new(*policy, trace, order, on_failure, random)),
        }
    }
}

/// The scheduler's options by its configuration file.
fn configured(file: Option<&Path>) -> anyhow::Result<SchedulerOptions> {
    let Some(file) = file else { return Ok(SchedulerOptions::default()) };
    let command = config::arguments(Command::new("scheduler"), &settings::scheduler());
    let words = ["scheduler".as_ref(), "--config-file".as_ref(), file.as_os_str()];
    daemon::scheduler_options(&command.try_get_matches_from(words)?)
}

/// Every run of every policy, on as many threads as there are cores. Runs that were stopped are left out.
fn run_all(trace: &Trace, args: &SimulateArgs, deciders: &[Decider], stop: &CancellationToken) -> Vec<Vec<RunFigures>> {
    let count = deciders.len() * args.seeds as usize;
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, RunFigures)>> = Mutex::new(Vec::new());
    let progress = RunProgress::new(count);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count || stop.is_cancelled() {
                return;
            }
            let seed = args.first_seed.wrapping_add(at as u64 % args.seeds);
            if let Some(run) = run_one(trace, args, &deciders[at / args.seeds as usize], seed, stop)
                && let Ok(mut done) = done.lock()
            {
                done.push((at, run));
                progress.say(done.len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(count);
    std::thread::scope(|scope| (0..threads).for_each(|_| _ = scope.spawn(work)));
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(at, _)| *at);
    let mut runs: Vec<Vec<RunFigures>> = deciders.iter().map(|_| Vec::new()).collect();
    done.into_iter().for_each(|(at, run)| runs[at / args.seeds as usize].push(run));
    runs
}

/// The same arrivals and the same order of nodes for every policy.
fn run_one(
    trace: &Trace,
    args: &SimulateArgs,
    decider: &Decider,
    seed: u64,
    stop: &CancellationToken,
) -> Option<RunFigures> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (arrivals, measured_from): (Vec<Arrival>, Option<f64>) = match (args.departures, args.load) {
        (false, load) => (stream::filling(trace, load.unwrap_or(1.3), &mut random), None),
        (true, None) if trace.has_times() => (stream::recorded(trace), Some(0.0)),
        (true, load) => {
            let (arrivals, from) = stream::steady(trace, load.unwrap_or(0.95), &mut random);
            (arrivals, Some(from))
        }
    };
    let mut order: Vec<usize> = (0..trace.machines.len()).collect();
    random.shuffle(&mut order);
    let mut cluster = decider.cluster(trace, &order, args.on_failure, random.fork());
    experiment::run(trace, &arrivals, measured_from, args.on_failure, &mut *cluster, stop)
}

/// Lines on standard error while it takes longer than a second.
struct RunProgress {
    count: usize,
    started: Duration,
    said: Mutex<Duration>,
}

/// Pause between two lines.
const PAUSE: Duration = Duration::from_secs(2);

impl RunProgress {
    fn new(count: usize) -> Self {
        let started = clock::mono();
        Self { count, started, said: Mutex::new(started) }
    }

    fn say(&self, done: usize) {
        let now = clock::mono();
        let Ok(mut said) = self.said.lock() else { return };
        if now.saturating_sub(*said) >= PAUSE {
            *said = now;
            let seconds = now.saturating_sub(self.started).as_secs();
            remark(format_args!("{done} of {} runs done in {seconds} s", self.count));
        }
    }
}
