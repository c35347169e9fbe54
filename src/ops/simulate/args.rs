//! The command line of `baton simulate`: from the trace to what is printed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};

use crate::say::{UsageError, remark, say};
use crate::{config, daemon, settings};
use baton_decide::core::rules::plugins::{DefaultSet, Profile, default_plugins};
use baton_decide::world::WorldPolicy;
use baton_runtime::shutdown;
use baton_scheduler::SchedulerOptions;

use super::cluster::OnFailure;
use super::engine::Engine;
use super::experiment::RunFigures;
use super::report::{SimulateOutput, print};
use super::runs::{ArrivalStream, Decider, Replay};
use super::stream::{filling, recorded};
use super::summary::SimulationSummary;
use super::trace::Trace;
use super::{dump, own, plot};

/// What decides where pods go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComparedProfile {
    /// This scheduler with the configuration given, or its default.
    Current,
    /// This scheduler with the profile `utilization`.
    Patience,
}

impl ComparedProfile {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn decider<'a>(self, trace: &'a Trace, args: &SimulateArgs) -> anyhow::Result<Decider<'a>> {
        let options = configured(args.config_file.as_deref())?;
        let set = match self {
            Self::Current => options.plugin_set()?,
            Self::Patience => {
                let mut set = DefaultSet::default();
                set.choice.lists = set.choice.lists.of_profile(Profile::Utilization);
                set
            }
        };
        let (plugins, on_failure) = (default_plugins(&set)?, args.on_failure);
        let gangs = options.gangs.defaults();
        let world = WorldPolicy { mix: options.plugins.patience, gangs, ..WorldPolicy::default() };
        Ok(Box::new(move |order, _| Box::new(Engine::new(trace, order, plugins.clone(), world.clone(), on_failure))))
    }
}

#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// A cluster as JSON or YAML (`kubectl get nodes,pods,devices -A -o json`), pods as CSV, or a directory with nodes.csv and pods.csv.
    pub trace: Option<PathBuf>,
    /// Nodes as CSV: sn,cpu_milli,memory_mib,gpu,model; else those of the cluster, or nodes.csv beside the pods.
    #[arg(long, value_name = "FILE")]
    pub nodes: Option<PathBuf>,
    /// Pods as CSV, in place of TRACE.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub pods: Option<PathBuf>,
    /// What decides, one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "current,patience")]
    pub policy: Vec<ComparedProfile>,
    /// Demand in parts of all GPUs, at which the replay ends.
    #[arg(long, value_parser = load, default_value_t = LOAD, conflicts_with = "departures")]
    pub load: f64,
    /// Runs of each policy, with other orders of pods and nodes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub seeds: u64,
    /// Pods come and end as they did.
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
    /// Write a plot of the GPUs in use by arrived demand to this SVG file.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// 130 % of all GPUs: a cluster that has no room for all.
const LOAD: f64 = 1.3;
/// Seed of the first run.
const FIRST_SEED: u64 = 42;

fn load(text: &str) -> Result<f64, String> {
    let load = text.parse().ok().filter(|load| (0.01..=10.0).contains(load));
    load.ok_or_else(|| "expected a number from 0.01 to 10, such as 1.3 for 130 % of all GPUs".to_owned())
}

/// Reads the trace, runs every policy, prints. At the first Ctrl-C, prints the runs that are done.
pub fn run(args: SimulateArgs) -> anyhow::Result<ExitCode> {
    let trace = read(&args)?;
    trace.check()?;
    trace.notes.iter().for_each(|note| remark(format_args!("note: {note}")));
    let deciders =
        args.policy.iter().map(|policy| policy.decider(&trace, &args)).collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stop = runtime.block_on(async { shutdown::on_signals() })?;
    let arrivals = |random: &mut fastrand::Rng| -> ArrivalStream {
        if args.departures {
            (recorded(&trace), Some(0.0..f64::INFINITY))
        } else {
            (filling(&trace, args.load, random), None)
        }
    };
    let replay = Replay {
        trace: &trace,
        on_failure: args.on_failure,
        seeds: (FIRST_SEED..).take(args.seeds as usize).collect(),
        arrivals: &arrivals,
    };
    let runs = replay.run(&deciders, &stop);
    let (names, runs): (Vec<String>, Vec<Vec<RunFigures>>) =
        args.policy.iter().map(|policy| policy.name()).zip(runs).filter(|(_, runs)| !runs.is_empty()).unzip();
    if runs.is_empty() {
        remark("baton: stopped before the first run was done");
        return Ok(ExitCode::from(130));
    }
    let summary = SimulationSummary::of(&replay, (!args.departures).then_some(args.load), names, &runs);
    say(print(&summary, args.output)?)?;
    if let Some(path) = &args.plot {
        plot::write(path, &summary, &runs)?;
        remark(format_args!("plot: {}", path.display()));
    }
    Ok(if stop.is_cancelled() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

fn read(args: &SimulateArgs) -> anyhow::Result<Trace> {
    let wanted = args.pods.as_deref().or(args.trace.as_deref());
    let Some(path) = wanted else {
        let text = "no trace: give the JSON of `kubectl get nodes,pods,devices -A -o json`, pods as CSV with --nodes, or a directory with nodes.csv and pods.csv";
        return Err(UsageError(text.to_owned()).into());
    };
    let (pods, beside) = if path.is_dir() {
        (path.join("pods.csv"), path)
    } else {
        (path.to_owned(), path.parent().unwrap_or(Path::new(".")))
    };
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let dumped = ["json", "yaml", "yml"].map(OsStr::new).contains(&pods.extension().unwrap_or_default());
    let mut trace = if dumped { dump::read(&pods, name)? } else { own::pods(&pods, name)? };
    let nodes = args.nodes.clone().or_else(|| (!dumped).then(|| beside.join("nodes.csv")));
    if let Some(nodes) = nodes {
        trace.machines = own::machines(&nodes)?;
    }
    trace.note_models();
    Ok(trace)
}

/// The scheduler's options by its configuration file.
fn configured(file: Option<&Path>) -> anyhow::Result<SchedulerOptions> {
    let Some(file) = file else { return Ok(SchedulerOptions::default()) };
    let command = config::arguments(Command::new("scheduler"), &settings::scheduler());
    let words = ["scheduler".as_ref(), "--config-file".as_ref(), file.as_os_str()];
    daemon::scheduler_options(&command.try_get_matches_from(words)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(no_binary_name = true)]
    struct Line {
        #[command(flatten)]
        simulate: SimulateArgs,
    }

    #[test]
    fn a_model_that_no_node_has_is_noted_once() {
        let dir = tempfile::tempdir().unwrap();
        let pods = "0,,1,1Gi,1,,A10O\n0,,1,1Gi,2,,A10O|T4\n0,,1,1Gi,1,,T4\n0,,1,1Gi,1,,A10O\n";
        let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
        write("nodes.csv", "sn,cpu_milli,memory_mib,gpu,model\na,1,1,1,T4\nb,1,1,0,A10O\n".to_owned());
        write("pods.csv", format!("arrive,end,cpu,memory,gpus,share,model\n{pods}"));
        let line = Line::try_parse_from([dir.path()]).unwrap();
        let notes = read(&line.simulate).unwrap().notes;
        assert_eq!(notes, ["no node has GPUs of the model \"A10O\", which 3 pods name"]);
    }
}
