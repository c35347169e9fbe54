//! Nodes whose machine fails pods: how many pods they cost, and on how many nodes at one time their daemons' word is heeded.
//!
//! `SUSPECT_SEEDS` sets how many streams of pods are run.

use baton::decide::health::{Blame, ServeOutcome, Suspicion};

use crate::prelude::*;

const ALL: &[(&str, &str)] = &[(key::NVIDIA_GPU, "8")];

impl TestScheduler {
    /// The node's daemon says that it is suspect since then, or is not.
    fn suspect(&mut self, node: &str, suspect: Option<Duration>) -> &mut Self {
        let message = format!("disk of {node} full");
        let conditions: Vec<_> = suspect
            .map(|since| condition(DeviceStatus::SUSPECT, "MachineFailedPods", &message, wall(since)))
            .into_iter()
            .collect();
        self.device(node, 8, |device| device.status = Some(DeviceStatus { conditions, ..DeviceStatus::default() }))
    }
}

fn nodes(count: u32) -> TestScheduler {
    let mut cluster = TestScheduler::new();
    (0..count).for_each(|n| _ = cluster.node(&format!("n{n}"), 8));
    cluster
}

/// Which nodes took one of `count` pods that want a whole node.
fn taken(cluster: &mut TestScheduler, count: u32) -> BTreeSet<String> {
    (0..count).for_each(|n| _ = cluster.pod(&format!("p{n}"), ALL));
    cluster.settle();
    (0..count).filter_map(|n| cluster.node_of(&format!("p{n}")).map(str::to_owned)).collect()
}

#[test]
fn the_earliest_of_many_suspects_are_heeded_up_to_thirty_percent_of_the_nodes() {
    let mut cluster = nodes(10);
    for n in [7, 5, 9, 1] {
        cluster.later(1);
        let now = cluster.now;
        cluster.suspect(&format!("n{n}"), Some(now));
    }
    // Without a Device object it counts for nothing.
    cluster.event(WorldEvent::DevicesGone("n0".into()));
    assert_eq!(taken(&mut cluster, 10), ["n1", "n2", "n3", "n4", "n6", "n8", "n9"].map(str::to_owned).into(), "2 of 9");
    tells(&cluster.conditions["p9"], ["2 NodeSuspect: the machine has failed pods"]);
    let explained =
        |cluster: &TestScheduler, node: &str| cluster.scheduler.explain_node(node, cluster.moment()).unwrap();
    let (heeded, other) = (explained(&cluster, "n7"), explained(&cluster, "n9"));
    assert!(!heeded.takes_devices && heeded.message.contains("disk of n7 full"), "{}", heeded.message);
    assert_eq!((heeded.suspect, other.suspect.as_deref()), (None, Some("disk of n9 full")));
    assert_eq!(cluster.queue_report().unheeded, ["n1", "n9"].map(str::to_owned).into());
    // The third counts as soon as a first one is trusted, and a pod that waits hears of that one.
    cluster.suspect("n7", None).settle();
    assert!((0..10).any(|n| cluster.node_of(&format!("p{n}")) == Some("n7")));
    assert!(!explained(&cluster, "n9").takes_devices);
}

#[test]
fn of_three_nodes_none_goes_out_and_pods_without_devices_never_mind() {
    let mut cluster = nodes(3);
    cluster.suspect("n1", Some(Duration::ZERO));
    assert_eq!(taken(&mut cluster, 3).len(), 3);
    let mut cluster = nodes(4);
    (0..4).for_each(|n| _ = cluster.change_node(&format!("n{n}"), |node| node.unschedulable = n != 1));
    cluster.suspect("n1", Some(Duration::ZERO)).pod("plain", &[]).comes("gpu", ONE);
    assert_eq!(cluster.nodes_of(["plain", "gpu"]), [Some("n1"), None]);
}

#[test]
fn a_pod_on_its_way_to_a_node_that_becomes_suspect_goes_elsewhere() {
    let mut cluster = nodes(4);
    (0..12).for_each(|n| _ = cluster.pod(&format!("p{n}"), ONE));
    // Packed on one node, they wait for its lock one after another.
    let node = cluster.settled().node_of("p0").unwrap().to_owned();
    let before = (0..12).filter(|n| cluster.node_of(&format!("p{n}")) == Some(&node)).count();
    assert!(before < 8, "some wait");
    let now = cluster.now;
    cluster.suspect(&node, Some(now));
    (0..12).for_each(|_| cluster.settled().all_release());
    let there = (0..12).filter(|n| cluster.node_of(&format!("p{n}")) == Some(&node)).count();
    assert_eq!((there, cluster.bound()), (before, 12), "no further one went there, and all have a place");
}

/// 1,000 one-GPU pods, 10 nodes, one whose CDI spec cannot be written: pods lost within 10 minutes, and after how many seconds all
/// have run, if they have. Each node serves one pod a second, which lives 20 to 40 s; a failed one is made again a second later.
fn black_hole(seed: u64, heeded: bool) -> (usize, Option<u64>) {
    let (mut cluster, mut dice, mut suspicion) = (nodes(10), Dice(seed), Suspicion::default());
    cluster.watchful = false;
    let (mut waiting, mut lost, mut seconds) = ((0..1000).map(|n| format!("pod-{n}")).collect::<Vec<_>>(), 0, 0_u64);
    let mut ends: BTreeMap<String, Duration> = BTreeMap::new();
    while !waiting.is_empty() || !ends.is_empty() || cluster.bound() < cluster.pods.len() {
        seconds += 1;
        if seconds == 600 {
            return (lost, None);
        }
        cluster.later(1);
        let now = cluster.now;
        if seconds.is_multiple_of(30) {
            cluster.beat_all();
        }
        if heeded && suspicion.age(now) {
            cluster.suspect("n0", None);
        }
        for name in ends.extract_if(.., |_, end| *end <= now).map(|(name, _)| name).collect::<Vec<_>>() {
            cluster.delete(&name);
        }
        std::mem::take(&mut waiting).iter().for_each(|name| _ = cluster.pod(name, ONE));
        cluster.settle();
        for node in cluster.locks.keys().cloned().collect::<Vec<_>>() {
            let pod = cluster.holder(&node).expect("it names its holder").to_owned();
            cluster.agent_releases(&node);
            if node != "n0" {
                ends.insert(pod, now + Duration::from_secs(20 + u64::from(dice.below(21))));
                continue;
            }
            cluster.delete(&pod);
            lost += 1;
            waiting.push(format!("again-{lost}"));
            let failed = ServeOutcome::Failed { blame: Blame::Node(DeviceType::Gpu), why: "CDI spec".into() };
            if suspicion.note(failed, now) && heeded {
                cluster.suspect("n0", Some(now));
            }
        }
    }
    (lost, Some(seconds))
}

#[test]
fn a_node_that_fails_every_pod_costs_a_handful_of_a_thousand() {
    let seeds = std::env::var("SUSPECT_SEEDS").map_or(1, |text| text.parse().unwrap());
    for seed in 1..=seeds {
        let (without, with) = (black_hole(seed, false), black_hole(seed, true));
        println!("seed {seed}: pods lost, seconds until all have run: without {without:?}, with {with:?}");
        // Three, then one or two (one may be bound already) after each of the outages of 1, 2 and 4 minutes.
        assert!(with.0 <= 10 && with.1.is_some_and(|seconds| seconds < 600), "seed {seed}: {with:?}");
        // Every GPU of the broken node is free for ever: the last pods go nowhere else.
        assert!(without.0 > 400 && without.1.is_none(), "seed {seed}: {without:?}");
    }
}
