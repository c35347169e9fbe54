//! What it costs to offer room that comes free to pods that wait for it, in a cluster without any room.

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::key;
use baton::decide::scheduler::{Effect, NodeSearch};
use baton::decide::world::{PodFacts, WorldEvent};

use crate::cluster::Cluster;
use crate::gangs::members;
use crate::values::pod;

const NODES: usize = 1000;
pub const FREES: usize = 100;
const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1"), ("cpu", "1")];

/// The name of a figure, and who waits.
type Case = (&'static str, fn() -> Vec<PodFacts>);

/// What is counted. Each GPU that comes free is taken by one of them, but for the gangs: they wait for more.
pub const CASES: [Case; 3] = [
    ("parked_10000_of_one_shape", one_shape),
    ("parked_1000_of_200_shapes", shapes),
    ("parked_100_gangs_of_64", gangs),
];

fn one_shape() -> Vec<PodFacts> {
    members("parked", 10_000, false, ONE)
}

/// Shapes for one, two, four and eight GPUs.
fn shapes() -> Vec<PodFacts> {
    let parked = |at: usize| {
        let (gpus, cpu) = (["8", "4", "2", "1"][at % 4], format!("{}m", 1000 + at % 200));
        let limits: &[(&str, &str)] = &[(key::NVIDIA_GPU, gpus), ("cpu", &cpu)];
        pod(&format!("parked-{at}"), limits, Duration::from_secs(1000))
    };
    (0..1000).map(parked).collect()
}

fn gangs() -> Vec<PodFacts> {
    (0..100).flat_map(|gang| members(&format!("gang{gang:03}"), 64, true, ONE)).collect()
}

/// A pod ends, and the room is offered until the queue is quiet: how many pods were bound.
#[inline(never)]
fn free_one(cluster: &mut Cluster, parked: &BTreeMap<String, PodFacts>) -> usize {
    cluster.end_one();
    offer(cluster, parked)
}

fn offer(cluster: &mut Cluster, parked: &BTreeMap<String, PodFacts>) -> usize {
    let (now, mut bound) = (cluster.moment(), 0);
    while cluster.engine.next().is_some_and(|at| at <= now.mono) {
        for effect in cluster.engine.run(now) {
            let Effect::Bind { ticket, node, pod, annotations, .. } = effect else { continue };
            bound += 1;
            cluster.bind(&mut parked[&*pod.key.name].clone(), ticket, &node, annotations);
        }
    }
    bound
}

/// What is counted, in a process of its own.
pub fn run(case: &str) {
    let parked = CASES.iter().find(|(name, _)| *name == case).unwrap().1();
    let mut cluster = Cluster::new(NODES, NodeSearch::Indexed);
    cluster.fill_whole();
    cluster.lead();
    parked.iter().for_each(|facts| cluster.apply(WorldEvent::Pod(Box::new(facts.clone()))));
    let parked = parked.into_iter().map(|facts| (facts.handoff.pod.key.name.to_string(), facts)).collect();
    assert_eq!(offer(&mut cluster, &parked), 0, "there is no room");
    let mut bound = 0;
    for _ in 0..FREES {
        cluster.pass(Duration::from_millis(10));
        bound += std::hint::black_box(free_one(&mut cluster, &parked));
    }
    println!("{case}: {bound} bound into {FREES} GPUs that came free");
}
