//! The index against the scan: the same cluster, the same stream, the same effects; and fewer nodes judged.

use baton::contract::image::ImageName;
use baton::decide::lock::LockMode;
use baton::decide::scheduler::NodeSearch;
use baton::decide::world::Rated;
use baton::decide::world::spec::HostPort;
use proptest::prelude::*;

use super::scores::sets;
use crate::prelude::*;

const NAMES: [&str; 6] = [key::NVIDIA_GPU, key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_SHARED, "cpu"];
const REQUESTS: [&[(&str, &str)]; 7] = [
    &[(key::NVIDIA_GPU, "1")],
    &[(key::NVIDIA_GPU, "2")],
    &[(key::NVIDIA_GPU, "4")],
    &[(key::NVIDIA_GPU, "8")],
    &[(key::GPU, "50")],
    &[(key::GPU_CORE, "30"), (key::GPU_MEMORY, "20Gi")],
    &[("cpu", "4")],
];

#[derive(Debug, Clone)]
enum Step {
    Pod { request: usize, trait_of_pod: usize },
    Finish(usize),
    Delete(usize),
    Label(usize, usize),
    Taint(usize, usize),
    Cordon(usize),
    Shrink(usize),
    Sicken(usize, usize),
    NodeGone(usize),
    NodeBack(usize),
    Silence(u64),
    NoDevices(usize),
    Images(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<usize>;
    prop_oneof![
        16 => (0..REQUESTS.len(), 0..32usize).prop_map(|(request, trait_of_pod)| Step::Pod { request, trait_of_pod }),
        3 => any().prop_map(Step::Finish),
        3 => any().prop_map(Step::Delete),
        2 => (any(), 0..3usize).prop_map(|(node, zone)| Step::Label(node, zone)),
        2 => (any(), 0..4usize).prop_map(|(node, taint)| Step::Taint(node, taint)),
        1 => any().prop_map(Step::Cordon),
        1 => any().prop_map(Step::Shrink),
        2 => (any(), 0..8usize).prop_map(|(node, gpu)| Step::Sicken(node, gpu)),
        1 => any().prop_map(Step::NodeGone),
        2 => any().prop_map(Step::NodeBack),
        1 => (1..100u64).prop_map(Step::Silence),
        1 => any().prop_map(Step::NoDevices),
        3 => (any(), 0..8usize).prop_map(|(node, images)| Step::Images(node, images)),
    ]
}

fn cluster(search: NodeSearch) -> TestScheduler {
    env_of(search, DefaultSet::default())
}

fn env_of(search: NodeSearch, set: DefaultSet) -> TestScheduler {
    let config = Config { search, lock_mode: LockMode::Auto, ..Config::default() };
    TestScheduler::with(config, set)
}

fn node(cluster: &mut TestScheduler, name: &str) {
    cluster.node(name, 8).beat(name, Identity::Exact, &NAMES);
}

/// Most pods have none of these; the last ones look at other pods and take the scan in both.
fn with_trait(mut facts: PodFacts, which: usize) -> PodFacts {
    let zone = |values: &[&str]| among("zone", values);
    let near = near("x", "zone");
    let spec = &mut facts.spec;
    spec.rated = Rated::from(&spec.requests);
    spec.labels.insert("app".into(), if which.is_multiple_of(3) { "x" } else { "y" }.into());
    match which {
        0 => spec.node_preferred = vec![(10, zone(&["z0"])), (3, zone(&["z0", "z1"]))],
        1 => spec.node_required = Some(vec![zone(&["z1", "z2"])]),
        2 => spec.node_selector = labels_of("zone", "z2"),
        3 => spec.tolerations = vec![Toleration { key: "soft".into(), ..Toleration::default() }],
        4 => spec.priority = 7,
        5 => spec.host_ports = vec![HostPort { ip: "0.0.0.0".into(), protocol: "TCP".into(), port: 80 }],
        6 => spec.anti_affinity = vec![near],
        7 => spec.affinity = vec![near],
        11 => spec.pods_preferred = vec![(7, near)],
        12 => spec.pods_preferred = vec![(-7, near)],
        8 | 13 => {
            spec.spread = vec![Spread { required: which == 8, ..spread("x", "zone") }];
        }
        9 => spec.gates = vec!["wait".into()],
        10 => spec.wishes.hint = Some(r#"{"gpu":{"requiredTopologyScope":"PCIe"}}"#.into()),
        14..=17 => spec.images = [image(which % 3)].into(),
        18..=19 => spec.images = [image(which % 3), image(2)].into(),
        _ => {}
    }
    facts
}

fn image(which: usize) -> ImageName {
    ImageName::asked(&format!("image-{which}"))
}

fn play_one(cluster: &mut TestScheduler, at: usize, step: &Step) {
    let nodes: Vec<String> = cluster.nodes.keys().cloned().collect();
    let at_node = |n: usize| nodes[n % nodes.len()].clone();
    let pods: Vec<String> = cluster.pods.keys().map(|key| key.name.to_string()).collect();
    match step {
        Step::Pod { request, trait_of_pod } => {
            let facts = pod(&format!("p{at:03}"), REQUESTS[*request], cluster.now);
            cluster.submit(with_trait(facts, *trait_of_pod));
        }
        Step::Finish(n) if !pods.is_empty() => {
            let name = &pods[n % pods.len()];
            if cluster.node_of(name).is_some() {
                cluster.finish(name);
            }
        }
        Step::Delete(n) if !pods.is_empty() => _ = cluster.delete(&pods[n % pods.len()]),
        Step::Finish(_) | Step::Delete(_) => {}
        Step::Label(n, zone) => {
            cluster.change_node(&at_node(*n), |facts| _ = facts.labels.insert("zone".into(), format!("z{zone}")));
        }
        Step::Taint(n, which) => {
            let taint = |key: &str, effect| vec![Taint { key: key.into(), value: String::new(), effect }];
            let taints = match which {
                0 => taint("soft", TaintEffect::PreferNoSchedule),
                1 => taint("other", TaintEffect::PreferNoSchedule),
                2 => taint("hard", TaintEffect::NoSchedule),
                _ => vec![],
            };
            cluster.change_node(&at_node(*n), |facts| facts.taints = taints);
        }
        Step::Cordon(n) => _ = cluster.change_node(&at_node(*n), |facts| facts.unschedulable = !facts.unschedulable),
        Step::Shrink(n) => _ = cluster.change_node(&at_node(*n), |facts| facts.allocatable.milli_cpu /= 2),
        Step::Sicken(n, gpu) => {
            let name = at_node(*n);
            cluster.device(&name, 8, |device| device.spec.devices[*gpu].health = false);
        }
        Step::NodeGone(n) => _ = cluster.event(WorldEvent::NodeGone(at_node(*n).as_str().into())),
        Step::NodeBack(n) => node(cluster, &at_node(*n)),
        Step::Silence(seconds) => cluster.now += std::time::Duration::from_secs(*seconds),
        Step::Images(n, which) => {
            cluster.change_node(&at_node(*n), |facts| {
                let has = |at: &usize| which & (1 << at) != 0;
                let mut images: Vec<_> = (0..3).filter(has).map(|at| (image(at), (1 + at as i64) << 30)).collect();
                images.sort_unstable();
                facts.images = images.into();
            });
        }
        Step::NoDevices(n) => _ = cluster.event(WorldEvent::DevicesGone(at_node(*n).as_str().into())),
    }
    cluster.settle();
}

/// Everything that the cluster shows: assignments with devices and times, conditions, events.
fn digest(cluster: &TestScheduler) -> String {
    let pods: Vec<_> =
        cluster.pods.iter().map(|(key, pod)| (key, &pod.handoff.node, &pod.handoff.assignment)).collect();
    format!("{pods:?} {:?} {:?} {} {}", cluster.conditions, cluster.notices, cluster.binds, cluster.lock_writes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn the_index_chooses_the_nodes_and_devices_that_the_scan_chooses(
        which in 0..5usize, steps in proptest::collection::vec(step(), 1..80)
    ) {
        let [mut indexed, mut scanning] =
            [NodeSearch::Indexed, NodeSearch::Scanning].map(|search| env_of(search, sets().swap_remove(which)));
        for name in ["a", "b", "c", "d", "e"] {
            node(&mut indexed, name);
            node(&mut scanning, name);
        }
        for (at, step) in steps.iter().enumerate() {
            play_one(&mut indexed, at, step);
            play_one(&mut scanning, at, step);
            prop_assert_eq!(digest(&indexed), digest(&scanning), "after step {} {:?}", at, step);
        }
        prop_assert_eq!(indexed.stats().attempts, scanning.stats().attempts);
    }
}

/// Plays the same with both; returns how many nodes each judged.
fn both(nodes: usize, play: impl Fn(&mut TestScheduler)) -> (u64, u64) {
    let [indexed, scanning] = [NodeSearch::Indexed, NodeSearch::Scanning].map(|search| {
        let mut cluster = cluster(search);
        (0..nodes).for_each(|at| node(&mut cluster, &format!("n{at:03}")));
        play(&mut cluster);
        cluster
    });
    assert_eq!(digest(&indexed), digest(&scanning));
    assert_eq!(indexed.stats().attempts, scanning.stats().attempts);
    (indexed.stats().judged, scanning.stats().judged)
}

#[test]
fn a_repeated_shape_costs_the_nodes_that_changed_and_not_all_nodes() {
    let (indexed, scanning) = both(40, |cluster| {
        (0..60).for_each(|at| _ = cluster.comes(&format!("p{at:02}"), REQUESTS[at % 3]));
    });
    println!("60 pods of 3 shapes on 40 nodes: {indexed} nodes judged with the index, {scanning} without");
    assert_eq!(scanning, 60 * 40);
    // Each shape sees every node once; then at most the three nodes that the pods since its last turn went to, and the chosen.
    assert!(indexed <= 3 * 40 + 60 * 4, "{indexed}");
}

#[test]
fn shapes_beyond_the_limit_are_forgotten_and_learnt_again() {
    let (indexed, scanning) = both(3, |cluster| {
        for at in 0..600 {
            let milli = format!("{}m", 10 + at % 300);
            cluster.comes(&format!("p{at:03}"), &[("cpu", &milli)]);
        }
    });
    assert!(indexed >= scanning, "300 shapes in turn never meet a kept one: {indexed} and {scanning}");
}

#[test]
fn a_shape_that_was_not_asked_for_during_very_many_changes_is_learnt_again() {
    both(4, |cluster| {
        cluster.comes("first", REQUESTS[2]);
        for at in 0..600 {
            let name = format!("p{at:03}");
            cluster.comes(&name, REQUESTS[0]).delete(&name);
        }
        cluster.change_node("n000", |facts| facts.unschedulable = true).comes("last", REQUESTS[2]);
        assert!(cluster.node_of("last").is_some_and(|node| node != "n000"));
    });
}
