//! Gangs on 5,000 nodes with eight GPUs, half of them taken: what one decision of a whole gang costs, gangs beside the same pods
//! without gang, and gangs that can never fit beside gangs that can; with the limits of `expect.toml`.
//!
//! Times are of the engine alone: from a full queue to every Binding on its way, answers and watch included where it says so.
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_precision_loss, missing_docs)] // a bench is a test

#[path = "decide/cluster.rs"]
#[allow(dead_code)] // other benches use more of it
mod cluster;
#[allow(dead_code)] // other benches use more of it
mod expect;
#[path = "decide/gangs.rs"]
mod gangs;
#[path = "../tests/harness/scheduler/values.rs"]
mod values;

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::key;
use baton::decide::scheduler::{Effect, NodeSearch};
use baton::decide::world::{PodFacts, WorldEvent};
use baton::runtime::clock;
use cluster::Cluster;
use expect::Expect;
use gangs::{gathered, members};
use values::wall;

const NODES: usize = 5000;
const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1"), ("cpu", "1")];
/// A whole node.
const EIGHT: &[(&str, &str)] = &[(key::NVIDIA_GPU, "8"), ("cpu", "8")];
const RACK: &str = "example.com/rack";
const SPINE: &str = "example.com/spine";
/// More GPUs than any node has.
const NEVER: &[(&str, &str)] = &[(key::NVIDIA_GPU, "64"), ("cpu", "1")];

fn world() -> Cluster {
    let mut cluster = Cluster::new(NODES, NodeSearch::Indexed);
    cluster.fill_half();
    cluster.lead();
    cluster
}

/// Lets the engine decide until every pod of `pods` has its Binding answered, or nothing is left to do. Returns the time that the
/// engine took and how many were bound.
fn drain(cluster: &mut Cluster, pods: &[PodFacts], until: usize) -> (Duration, usize) {
    let by_name: BTreeMap<&str, &PodFacts> =
        pods.iter().map(|facts| (facts.handoff.pod.key.name.as_ref(), facts)).collect();
    let now = cluster.moment();
    let (mut took, mut bound) = (Duration::ZERO, 0);
    while bound < until && cluster.engine.next().is_some_and(|at| at <= now.mono) {
        let began = clock::now().mono;
        let effects = cluster.engine.run(now);
        for effect in effects {
            let Effect::Bind { ticket, node, pod, annotations, .. } = effect else { continue };
            bound += 1;
            cluster.bind(&mut by_name[pod.key.name.as_ref()].clone(), ticket, &node, annotations);
        }
        took += clock::now().mono.saturating_sub(began);
    }
    (took, bound)
}

fn submit(cluster: &mut Cluster, pods: &[PodFacts]) {
    pods.iter().for_each(|facts| cluster.apply(WorldEvent::Pod(Box::new(facts.clone()))));
}

/// One decision of a gang of this size: the best of five, in milliseconds; the first, which judges every node, is left out.
fn decision(size: usize) -> f64 {
    let mut cluster = world();
    let mut best = f64::MAX;
    for round in 0..6 {
        let pods = members(&format!("gang{round}"), size, true, ONE);
        submit(&mut cluster, &pods);
        let now = cluster.moment();
        let began = clock::now().mono;
        let effects = cluster.engine.run(now);
        let took = clock::now().mono.saturating_sub(began);
        let binds = effects.iter().filter(|effect| matches!(effect, Effect::Bind { .. })).count();
        assert_eq!(binds, size, "the whole gang is on its way");
        for facts in &pods {
            let baton::contract::PodKey { namespace, name } = facts.handoff.pod.key.clone();
            let key = baton::contract::PodKey { namespace, name };
            cluster.apply(WorldEvent::PodGone(key, facts.handoff.pod.uid.clone()));
        }
        if round > 0 {
            best = best.min(took.as_secs_f64() * 1000.0);
        }
    }
    best
}

/// One decision of a gang of whole nodes that is gathered so, on empty nodes in 320 racks and 20 spines: the median of 20, in
/// milliseconds.
fn gathering(size: usize, more: &[(&str, &str)]) -> f64 {
    let mut cluster = Cluster::new(NODES, NodeSearch::Indexed);
    let mut nodes: Vec<_> = cluster.engine.world().nodes().filter_map(|(_, node)| node.facts.clone()).collect();
    for (at, facts) in nodes.iter_mut().enumerate() {
        facts.labels.insert(RACK.to_owned(), format!("r{:03}", at * 320 / NODES));
        facts.labels.insert(SPINE.to_owned(), format!("s{:02}", at * 20 / NODES));
    }
    nodes.into_iter().for_each(|facts| cluster.apply(WorldEvent::Node(facts)));
    cluster.lead();
    let mut took = Vec::new();
    for round in 0..21 {
        let pods = gathered(&format!("gang{round:02}"), size, EIGHT, more);
        submit(&mut cluster, &pods);
        let now = cluster.moment();
        let began = clock::now().mono;
        let effects = cluster.engine.run(now);
        took.push(clock::now().mono.saturating_sub(began));
        let binds = effects.iter().filter(|effect| matches!(effect, Effect::Bind { .. })).count();
        assert_eq!(binds, size, "the whole gang is on its way");
        for facts in &pods {
            let key = facts.handoff.pod.key.clone();
            cluster.apply(WorldEvent::PodGone(key, facts.handoff.pod.uid.clone()));
        }
    }
    // The first judges every node.
    let mut took = took.split_off(1);
    took.sort_unstable();
    took[took.len() / 2].as_secs_f64() * 1000.0
}

/// 500 × 20 pods, as gangs or by themselves: pods per second.
fn rate(keys: bool) -> f64 {
    let mut cluster = world();
    let pods: Vec<PodFacts> = (0..500).flat_map(|gang| members(&format!("gang{gang:03}"), 20, keys, ONE)).collect();
    submit(&mut cluster, &pods);
    let (took, bound) = drain(&mut cluster, &pods, pods.len());
    assert_eq!(bound, pods.len());
    bound as f64 / took.as_secs_f64()
}

/// 25 gangs of 20 that fit, beside so many gangs of 100 that never do and go first: seconds.
fn beside(infeasible: usize) -> f64 {
    let mut cluster = world();
    let mut pods: Vec<PodFacts> =
        (0..infeasible).flat_map(|gang| members(&format!("a-never{gang:03}"), 100, true, NEVER)).collect();
    let feasible: Vec<PodFacts> =
        (0..25).flat_map(|gang| members(&format!("b-gang{gang:03}"), 20, true, ONE)).collect();
    pods.extend(feasible.iter().cloned());
    submit(&mut cluster, &pods);
    let (took, bound) = drain(&mut cluster, &feasible, feasible.len());
    assert_eq!(bound, feasible.len());
    took.as_secs_f64()
}

fn main() {
    let mut expect = Expect::load("gang");
    println!("one decision of a gang on {NODES} nodes, wall clock of {}", wall(Duration::ZERO));
    for size in [8, 100, 1000] {
        expect.at_most(&format!("decision_{size}_ms"), decision(size));
    }
    let rule = |layer: &str, strategy: &str| format!(r#"{{"layer":"{layer}","strategy":"{strategy}"}}"#);
    let must = format!(r#"{{"gatherStrategy":[{},{}]}}"#, rule(SPINE, "MustGather"), rule(RACK, "PreferGather"));
    let spec = "gang.scheduling.koordinator.sh/network-topology-spec";
    println!("one decision of a gang of whole nodes, in 320 racks of 20 spines");
    expect.at_most("anywhere_64x8_ms", gathering(64, &[]));
    expect.at_most("in_one_spine_64x8_ms", gathering(64, &[(spec, &must)]));
    expect.at_most("in_one_rack_15x8_ms", gathering(15, &[("baton.io/required-topology", RACK)]));
    println!("500 x 20 pods");
    let (gangs, alone) = (rate(true), rate(false));
    println!("  {gangs:.0} pods/s as gangs, {alone:.0} pods/s by themselves");
    expect.at_least("rate_to_pods_alone", gangs / alone);
    println!("500 feasible members, alone and beside 10,000 infeasible ones");
    let (with, without) = (beside(100), beside(0));
    println!("  {:.1} ms, {:.1} ms", without * 1000.0, with * 1000.0);
    expect.at_most("slowed_by_infeasible", with / without);
    expect.finish();
}
