//! The comparison of README.md: the scheduler with its profiles beside the policies of "Beware of Fragmentation" (Weng et al.,
//! USENIX ATC 2023), on the openb traces.
//!
//! * `cargo bench --bench placement`: the percentage of GPUs in use at 130 % of demand, of 13 traces with ten seeds. It takes about a
//!   quarter of an hour on two cores. `-- --first-seed 52` takes ten others.
//! * `-- --departures --load 0.95 --seeds 2`: pods end; the percentage of the demand that is rejected, in brackets that of pods with
//!   several GPUs.
//! * `-- gpuspec33 --policy fgd,gpu-packing --seeds 1 -o table --plot FILE.svg`: one trace, all that is measured, and plots.
//! * `-- FILE.csv --nodes FILE.csv`: a trace of one's own in a form of openb's.
//! * `-- --gangs`: gangs in one rack, on 32 racks of eight nodes with eight GPUs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_precision_loss, missing_docs)] // a bench is a test
#![cfg_attr(test, allow(dead_code, unused_imports))] // the tests of its modules run in tests/placement.rs

mod comparison;
#[path = "../expect.rs"]
#[allow(dead_code)] // other benches use more of it
mod expect;
mod gathered;
mod openb;
mod plot;
mod published;
mod steady;

use std::path::{Path, PathBuf};

use baton::ops::simulate::own;
use baton::ops::simulate::report::{SimulateOutput, print};
use baton::ops::simulate::summary::{PolicySummary, SimulationSummary};
use baton::ops::simulate::trace::Trace;
use clap::Parser;
use comparison::{Comparison, PolicyName};
use expect::Expect;

/// Compares policies of placement on the openb traces.
#[derive(Debug, Parser)]
struct Arguments {
    /// Lists of pods: `default`, `gpuspec33` … of tests/fixtures/openb, or CSV files; without any, all of openb's.
    traces: Vec<String>,
    /// Nodes as CSV: sn,cpu_milli,memory_mib,gpu,model; else openb's.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    #[command(flatten)]
    comparison: Comparison,
    /// All that is measured of each trace, in place of one row.
    #[arg(short, long, value_enum)]
    output: Option<SimulateOutput>,
    /// Write plots of the last trace to this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// The same jobs with gangs anywhere, preferably in one rack, and in one rack only.
    #[arg(long)]
    gangs: bool,
    /// Cargo gives it.
    #[arg(long, hide = true)]
    bench: bool,
}

const TRACES: [&str; 13] = [
    "default",
    "cpu050",
    "cpu100",
    "cpu250",
    "gpushare40",
    "gpushare60",
    "gpushare100",
    "gpuspec10",
    "gpuspec20",
    "gpuspec33",
    "multigpu20",
    "multigpu30",
    "multigpu50",
];

fn openb() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openb")
}

fn trace(given: &str, nodes: &Path) -> anyhow::Result<Trace> {
    let pods = if Path::new(given).exists() { given.into() } else { openb().join(format!("kinds-{given}.csv")) };
    let stem = pods.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let name = stem.trim_start_matches("kinds-").trim_start_matches("pods-").to_owned();
    let mut trace = Trace::of(name, own::machines(nodes)?);
    openb::pods(&pods, &mut trace)?;
    trace.check()?;
    Ok(trace)
}

/// FGD at 130 %, as its authors publish it.
fn published(trace: &str) -> Option<f64> {
    let table = std::fs::read_to_string(openb().join("published.csv")).ok()?;
    let row = table.lines().find(|row| row.starts_with(&format!("{trace},06-FGD,")))?;
    row.split(',').nth(4)?.parse().ok()
}

fn cell(policy: &PolicySummary) -> String {
    let number = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    match policy.departures {
        Some(ends) => {
            let several = ends.rejected_multi_gpu_share.mean.unwrap_or_default();
            format!("{} ({several:.0})", number(ends.rejected_share.mean))
        }
        None => number(policy.allocation.at_load.mean),
    }
}

/// Utilization's lead over the published FGD.
fn gain(summary: &SimulationSummary, published: Option<f64>) -> Option<f64> {
    let utilization = PolicyName::Utilization.name();
    let own = summary.policies.iter().find(|policy| policy.name == utilization)?;
    Some(own.allocation.at_load.mean? - published?)
}

fn gangs(racks: usize, seeds: u64) {
    let summary = gathered::compare(racks, seeds);
    let mut expect = Expect::load("placement");
    for policy in &summary.policies {
        let [domains, wait, used] = gathered::figures(policy);
        expect.at_most(&format!("{}_domains", policy.name), domains);
        expect.at_most(&format!("{}_wait_seconds", policy.name), wait);
        expect.at_least(&format!("{}_in_use", policy.name), used);
    }
    expect.finish();
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if arguments.gangs {
        gangs(32, arguments.comparison.seeds);
        return Ok(());
    }
    let comparison = &arguments.comparison;
    let nodes = arguments.nodes.clone().unwrap_or_else(|| openb().join("nodes.csv"));
    let as_published = !comparison.departures && comparison.load.is_none() && arguments.nodes.is_none();
    let all = arguments.traces.is_empty();
    let traces = if all { TRACES.map(str::to_owned).to_vec() } else { arguments.traces.clone() };
    let names: Vec<String> = comparison.policy.iter().map(|policy| policy.name()).collect();
    if arguments.output.is_none() {
        let more = if as_published { " FGD, published | gain |" } else { "" };
        println!("| trace | {} |{more}", names.join(" | "));
        println!("|{}", " --- |".repeat(1 + names.len() + if as_published { 2 } else { 0 }));
    }
    let mut gains = Vec::new();
    for given in traces {
        let trace = trace(&given, &nodes)?;
        let (summary, runs) = comparison.run(&trace);
        let fgd = published(&trace.name).filter(|_| as_published);
        let gained = gain(&summary, fgd);
        if let Some(output) = arguments.output {
            print!("{}", print(&summary, output)?);
        } else {
            let cells: Vec<String> = summary.policies.iter().map(cell).collect();
            let figure = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
            let more = if as_published { format!(" {} | {} |", figure(fgd), figure(gained)) } else { String::new() };
            println!("| {} | {} |{more}", trace.name, cells.join(" | "));
        }
        gains.extend(gained);
        if let Some(path) = &arguments.plot {
            plot::write(path, &trace, &summary, &runs)
                .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        }
    }
    if all && !gains.is_empty() {
        let mut expect = Expect::load("placement");
        expect.at_least("gain_to_published", gains.into_iter().fold(f64::MAX, f64::min));
        expect.finish();
    }
    Ok(())
}
