//! The comparison of `benches/placement` on a twentieth of openb's nodes: what it measured once it measures again.
#![cfg(feature = "simulate")]
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a test may

#[path = "../benches/placement/comparison.rs"]
mod comparison;
#[path = "../benches/placement/openb.rs"]
mod openb;
#[path = "../benches/placement/plot.rs"]
mod plot;
#[path = "../benches/placement/published.rs"]
mod published;
#[path = "../benches/placement/steady.rs"]
mod steady;

use std::path::Path;

use baton::ops::simulate::own;
use baton::ops::simulate::summary::{PolicySummary, SimulationSummary};
use baton::ops::simulate::trace::Trace;
use clap::Parser;
use comparison::Comparison;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    comparison: Comparison,
}

fn comparison(line: &str) -> Comparison {
    Line::try_parse_from(line.split_whitespace()).unwrap().comparison
}

fn trace() -> Trace {
    let openb = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/openb");
    let machines = own::machines(&openb.join("nodes.csv")).unwrap();
    let mut trace = Trace::of("part".into(), machines.into_iter().step_by(20).collect());
    openb::pods(&openb.join("kinds-gpuspec33.csv"), &mut trace).unwrap();
    trace
}

fn figures<T>(summary: &SimulationSummary, of: impl Fn(&PolicySummary) -> T) -> Vec<(&str, T)> {
    summary.policies.iter().map(|policy| (policy.name.as_str(), of(policy))).collect()
}

#[test]
fn every_policy_hands_out_what_it_did_and_utilization_is_ahead() {
    let all = "binpack,utilization,random,dot-product,gpu-clustering,gpu-packing,best-fit,fgd";
    let trace = trace();
    let (summary, runs) = comparison(&format!("--policy {all} --seeds 2")).run(&trace);
    assert_eq!((summary.nodes, summary.load, &*summary.seeds), (61, Some(1.3), &[42, 43][..]));
    let recorded = [
        ("binpack", Some(93.22)),
        ("utilization", Some(95.18)),
        ("random", Some(83.89)),
        ("dot-product", Some(88.55)),
        ("gpu-clustering", Some(90.61)),
        ("gpu-packing", Some(91.62)),
        ("best-fit", Some(92.28)),
        ("fgd", Some(93.72)),
    ];
    assert_eq!(figures(&summary, |policy| policy.allocation.at_load.mean), recorded);
    for policy in &summary.policies {
        let used = policy.allocation.at_load.mean.unwrap();
        let idle: f64 = policy.idle.values().sum();
        assert!((used + idle - 100.0).abs() < 0.5, "what is not in use lies idle: {policy:?}");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    plot::write(file.path(), &trace, &summary, &runs).unwrap();
    let svg = std::fs::read_to_string(file.path()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("gpu-packing") && svg.contains("restTooSmall"));
}

#[test]
fn where_pods_end_as_much_is_rejected_as_was() {
    let line = "--policy binpack,utilization,best-fit,fgd --departures --load 0.9 --seeds 1";
    let (summary, _) = comparison(line).run(&trace());
    let recorded = [
        ("binpack", (17.14, 27.59)),
        ("utilization", (13.04, 34.48)),
        ("best-fit", (17.85, 27.59)),
        ("fgd", (17.27, 27.59)),
    ];
    let rejected = |policy: &PolicySummary| {
        let ends = policy.departures.unwrap();
        (ends.rejected_share.mean.unwrap(), ends.rejected_multi_gpu_share.mean.unwrap())
    };
    assert_eq!(figures(&summary, rejected), recorded);
}

#[test]
fn the_page_quotes_the_published_figures() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (page, published) = (read("benches/placement/README.md"), read("tests/fixtures/openb/published.csv"));
    let mut rows = 0;
    for row in published.lines().filter(|row| row.contains(",06-FGD,")) {
        let cells: Vec<&str> = row.split(',').collect();
        let line = page.lines().find(|line| line.starts_with(&format!("| {} |", cells[0]))).unwrap();
        let quoted: f64 = line.split(" | ").nth(4).unwrap().parse().unwrap();
        assert!((quoted - cells[4].parse::<f64>().unwrap()).abs() < 0.001, "{line}: {row}");
        rows += 1;
    }
    assert_eq!(rows, 13);
}
