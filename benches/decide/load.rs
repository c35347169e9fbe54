//! The largest world: 20,000 nodes, 160,000 GPUs, 200,000 pods that others bound, one event at a time.

use baton::contract::key;
use baton::decide::pod::{AssignmentText, Phase};
use baton::decide::scheduler::NodeSearch;
use baton::decide::world::{PodFacts, WorldEvent};
use baton::runtime::clock;

use crate::cluster::{Ask, Cluster, GPUS, node_name};
use crate::counting::held;
use crate::values::pod;

pub const PODS_PER_NODE: usize = 10;
const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1"), ("cpu", "8"), ("memory", "64Gi")];
const SHARE: &[(&str, &str)] = &[(key::GPU_CORE, "25"), (key::GPU_MEMORY_RATIO, "25"), ("cpu", "2"), ("memory", "8Gi")];

/// What the world costs.
pub struct Load {
    pub cluster: Cluster,
    pub seconds: f64,
    pub bytes_per_node: f64,
    pub bytes_per_pod: f64,
}

pub fn load(nodes: usize) -> Load {
    let (before, started) = (held(), clock::now().mono);
    let mut cluster = Cluster::new(nodes, NodeSearch::Indexed);
    let (with_nodes, nodes_done) = (held(), clock::now().mono);
    for at in 0..nodes * PODS_PER_NODE {
        let facts = bound(at);
        cluster.apply(WorldEvent::Pod(Box::new(facts)));
    }
    let with_pods = held();
    let done = clock::now().mono;
    println!(
        "  nodes, devices and agents in {:.2} s, pods in {:.2} s",
        nodes_done.saturating_sub(started).as_secs_f64(),
        done.saturating_sub(nodes_done).as_secs_f64()
    );
    cluster.percent = (nodes as u64) * 700;
    cluster.lead();
    Load {
        cluster,
        seconds: done.saturating_sub(started).as_secs_f64(),
        bytes_per_node: (with_nodes - before) as f64 / nodes as f64,
        bytes_per_pod: (with_pods - with_nodes) as f64 / (nodes * PODS_PER_NODE) as f64,
    }
}

/// Six pods with one GPU each and four with a quarter of the seventh.
fn bound(at: usize) -> PodFacts {
    let (node, place) = (node_name(at / PODS_PER_NODE), at % PODS_PER_NODE);
    let (limits, minor, percent) = if place < 6 { (ONE, place, 100) } else { (SHARE, 6, 25) };
    let mut facts = pod(&format!("worker-{at:06}"), limits, std::time::Duration::from_secs(10));
    facts.spec.labels = [("app", "train"), ("team", "vision")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let (core, memory, ratio) = (key::GPU_CORE, key::GPU_MEMORY, key::GPU_MEMORY_RATIO);
    let bytes = (80u64 << 30) * percent / 100;
    let allocated = format!(
        r#"{{"gpu":[{{"minor":{minor},"id":"GPU-{node}-{minor}","resources":{{"{core}":"{percent}","{memory}":"{bytes}","{ratio}":"{percent}"}}}}]}}"#
    );
    facts.handoff.node = Some(node.into());
    facts.handoff.phase = Phase::Running;
    facts.handoff.scheduled_condition = true;
    facts.handoff.assignment = AssignmentText {
        device_allocated: Some(allocated.into()),
        container_devices: Some(format!("1;main:gpu:{minor}").into()),
        bind_timestamp: Some(format!("{}", 1_700_000_000_000_000_000 + at as u64).into()),
        joint: false,
        ..AssignmentText::default()
    };
    facts
}

/// The GPUs of the world.
pub fn gpus(nodes: usize) -> usize {
    nodes * GPUS as usize
}

/// One more pod with one GPU.
pub const NEXT: Ask = Ask { limits: ONE, percent: 100 };
