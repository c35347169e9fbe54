//! Decisions on worlds of 1,000 to 20,000 nodes with eight GPUs each: time, nodes judged, growth with the size of the world,
//! and what nodes and pods cost in memory; beside the limits of `expect.toml`.
//!
//! A decision is one `Scheduler::run`: the pod leaves the queue, a node and devices are chosen and held, and the Binding with all
//! its annotations is on its way. The world is half full; before each decision some pod ended, somewhere.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, missing_docs)] // a bench is a test

#[path = "decide/cluster.rs"]
#[allow(dead_code)] // the other bench uses more of it
mod cluster;
#[path = "decide/counting.rs"]
mod counting;
#[allow(dead_code)] // other benches use more of it
mod expect;
#[path = "decide/load.rs"]
mod load;
#[path = "../tests/harness/scheduler/values.rs"]
mod values;

use baton::decide::core::rules::plugins::Profile;
use baton::decide::scheduler::NodeSearch;
use baton::runtime::clock;
use cluster::{Ask, Cluster, Decision, MIXED};
use expect::Expect;

#[global_allocator]
static COUNTED: counting::Counting = counting::Counting;

const DECISIONS: usize = 4000;
const SIZES: [usize; 3] = [1000, 5000, 20_000];

/// Of one stream.
struct Figures {
    p50: f64,
    p99: f64,
    judged: f64,
}

impl Figures {
    fn of(decisions: &[Decision]) -> Self {
        let mut times: Vec<f64> = decisions.iter().map(|decision| decision.took.as_nanos() as f64 / 1000.0).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let judged: u64 = decisions.iter().map(|decision| decision.judged).sum();
        Self { p50: at(0.5), p99: at(0.99), judged: judged as f64 / decisions.len() as f64 }
    }
}

/// Fills half of the GPUs, then times decisions while as many pods end.
fn stream(nodes: usize, asks: &[Ask], search: NodeSearch, decisions: usize) -> Figures {
    stream_by(Profile::Binpack, nodes, asks, search, decisions)
}

/// The same with the scores of a profile.
fn stream_by(profile: Profile, nodes: usize, asks: &[Ask], search: NodeSearch, decisions: usize) -> Figures {
    let mut cluster = Cluster::of_profile(nodes, search, profile);
    cluster.lead();
    let fill = if search == NodeSearch::Indexed { 50 } else { 1 };
    while cluster.full() < fill {
        let at = cluster.random(asks.len());
        cluster.decide(&asks[at]);
    }
    let mut made = Vec::new();
    for _ in 0..decisions {
        cluster.end_one();
        let at = cluster.random(asks.len());
        made.push(cluster.decide(&asks[at]));
    }
    assert!(made.iter().all(|decision| decision.bound), "a pod found no node in a half full world");
    Figures::of(&made)
}

fn show(what: &str, nodes: usize, figures: &Figures) {
    let Figures { p50, p99, judged } = figures;
    println!("  {what:10} {nodes:>6} nodes   p50 {p50:>9.2} us   p99 {p99:>9.2} us   judged {judged:>8.1}");
}

fn main() {
    let mut expect = Expect::load("decide");
    println!("decisions, by what is asked for");
    for (name, ask) in ["1 GPU", "2 GPUs", "4 GPUs", "8 GPUs", "share"].iter().zip(MIXED.chunks(1)) {
        show(name, 5000, &stream(5000, ask, NodeSearch::Indexed, DECISIONS));
    }
    let mixed = SIZES.map(|nodes| {
        let figures = stream(nodes, &MIXED, NodeSearch::Indexed, DECISIONS);
        show("mixed", nodes, &figures);
        figures
    });
    show("by scan", 5000, &stream(5000, &MIXED, NodeSearch::Scanning, 20));
    let roots = (SIZES[2] as f64 / SIZES[0] as f64).sqrt();
    println!("mixed, 5,000 nodes; growth from 1,000 to 20,000 nodes as a part of the growth of the root of nodes");
    expect.at_most("p50_us", mixed[1].p50);
    expect.at_most("p99_us", mixed[1].p99);
    expect.at_most("judged_per_decision", mixed[1].judged);
    expect.at_most("judged_growth_to_root", mixed[2].judged / mixed[0].judged / roots);
    expect.at_most("time_growth_to_root", mixed[2].p50 / mixed[0].p50 / roots);

    let patient = SIZES.map(|nodes| {
        let figures = stream_by(Profile::Utilization, nodes, &MIXED, NodeSearch::Indexed, DECISIONS);
        show("patient", nodes, &figures);
        figures
    });
    println!("the same with the profile utilization");
    expect.at_most("utilization_p50_us", patient[1].p50);
    expect.at_most("utilization_judged_per_decision", patient[1].judged);
    expect.at_most("utilization_time_growth_to_root", patient[2].p50 / patient[0].p50 / roots);

    let nodes = SIZES[2];
    println!("world of {nodes} nodes, {} GPUs, {} pods", load::gpus(nodes), nodes * load::PODS_PER_NODE);
    let mut world = load::load(nodes);
    expect.at_most("load_seconds", world.seconds);
    expect.at_most("bytes_per_node", world.bytes_per_node);
    expect.at_most("bytes_per_pod", world.bytes_per_pod);
    let before = counting::held();
    let first = world.cluster.decide(&load::NEXT);
    assert!(first.bound);
    let kept = (counting::held() - before) as f64 / nodes as f64;
    expect.at_most("bytes_per_node_and_shape", kept);
    expect.at_most("first_of_shape_ms", first.took.as_secs_f64() * 1000.0);
    let later: Vec<Decision> = (0..1000).map(|_| world.cluster.decide(&load::NEXT)).collect();
    show("1 GPU", nodes, &Figures::of(&later));

    let started = clock::now().mono;
    let counted = world.cluster.engine.fleet(world.cluster.moment());
    expect.at_most("fleet_ms", clock::now().mono.saturating_sub(started).as_secs_f64() * 1000.0);
    assert!(counted.devices.values().sum::<u32>() as usize >= load::gpus(nodes));

    println!("an explanation of a pod beside the loop: what the loop does for it, and the rest");
    let (cluster, before) = (&world.cluster, counting::held());
    let started = clock::now().mono;
    let snapshot = cluster.engine.snapshot();
    expect.at_most("snapshot_ms", clock::now().mono.saturating_sub(started).as_secs_f64() * 1000.0);
    expect.at_most("snapshot_bytes_per_pod", (counting::held() - before) as f64 / (nodes * load::PODS_PER_NODE) as f64);
    let started = clock::now().mono;
    let answer = snapshot.what_if(values::pod("another", load::NEXT.limits, cluster.moment().mono), cluster.moment());
    expect.at_most("explanation_ms", clock::now().mono.saturating_sub(started).as_secs_f64() * 1000.0);
    assert!(answer.fits && answer.verdict.nodes.len() == nodes);
    expect.finish();
}
