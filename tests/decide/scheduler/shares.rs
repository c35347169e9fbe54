//! GPU shares with limits: which nodes serve which pods, for single pods, gangs, pods that push others out, and kube-scheduler.

use baton::contract::ShareIsolation;
use baton::decide::shares::ShareTerms;

use crate::prelude::*;

const HALF: &[(&str, &str)] = &[(key::GPU, "50")];
const WHOLE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

impl TestScheduler {
    /// The node's daemon says what limits shares there, and whether that works.
    fn isolates(&mut self, node: &str, gpus: u32, isolation: ShareIsolation, broken: bool) -> &mut Self {
        let (said, now) = ("libvgpu.so cannot be found", wall(self.now));
        let broken = broken.then(|| condition(DeviceStatus::SHARES_UNAVAILABLE, "LimitsNotEnforced", said, now));
        let conditions = broken.into_iter().collect();
        self.device(node, gpus, |device| {
            device.metadata.labels = Some(labels_of(key::GPU_ISOLATION_PROVIDER, isolation.provider()));
            device.status = Some(DeviceStatus { conditions, ..DeviceStatus::default() });
        })
    }
}

fn insists(facts: &mut PodFacts, provider: &str) {
    facts.spec.wishes.shares = Some(Box::new(ShareTerms { provider: Some(provider.into()), ..ShareTerms::default() }));
}

/// A node without limits, and one with HAMi-core's.
fn two(gpus: u32) -> TestScheduler {
    let mut cluster = TestScheduler::on_each(&["free", "held"], gpus);
    cluster.isolates("held", gpus, ShareIsolation::HamiCore, false);
    cluster
}

impl TestScheduler {
    fn served(&mut self) -> &mut Self {
        (0..20).for_each(|_| self.settled().all_release());
        self
    }
}

#[test]
fn a_label_that_comes_or_changes_while_the_pod_waits_counts() {
    let mut cluster = two(1);
    let mut facts = pod("p", HALF, cluster.now);
    insists(&mut facts, "gVisor");
    tells(&cluster.submit(facts).served().conditions["p"], ["the pod asks for gVisor"]);
    cluster.change_pod("p", |facts| insists(facts, "MPS"));
    // The condition of a pod that waits is not written more often.
    tells(&cluster.after(15).conditions["p"], ["the pod asks for MPS"]);
    assert_eq!(cluster.change_pod("p", |facts| insists(facts, "hami-core")).served().node_of("p"), Some("held"));
}

#[test]
fn a_gang_that_insists_on_limits_is_placed_where_they_are_or_waits_whole() {
    let mut gangs = TestGangs::new(1);
    gangs.cluster = two(2);
    let keys = gang("g", "4", &[]);
    (0..4).for_each(|n| _ = gangs.asks_as(&format!("g-{n}"), HALF, &keys, |facts| insists(facts, "HAMi-core")));
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-0"));
    assert!((0..4).all(|n| gangs.cluster.node_of(&format!("g-{n}")) == Some("held")));
    let keys = gang("h", "2", &[]);
    (0..2).for_each(|n| _ = gangs.asks_as(&format!("h-{n}"), HALF, &keys, |facts| insists(facts, "HAMi-core")));
    assert_eq!(gangs.after(2).stand("h"), (0, 0), "the other node has room, and no limits");
}

#[test]
fn no_pod_leaves_a_node_that_does_not_limit_shares_as_the_more_important_one_asks() {
    let mut cluster = two(1);
    for (name, node) in [("low-free", "free"), ("low-held", "held")] {
        let other = if node == "free" { "held" } else { "free" };
        cluster.change_node(other, |facts| facts.unschedulable = true);
        cluster.pod_as(name, WHOLE, |facts| (facts.spec.priority, facts.spec.labels) = (1, labels_of("app", name)));
        cluster.served().change_node(other, |facts| facts.unschedulable = false);
        assert_eq!(cluster.node_of(name), Some(node));
    }
    let mut facts = pod("high", HALF, cluster.now);
    facts.spec.priority = 9;
    insists(&mut facts, "HAMi-core");
    assert_eq!(cluster.submit(facts).served().evicted, ["low-held"]);
    let mut facts = pod("higher", HALF, cluster.now);
    facts.spec.priority = 10;
    insists(&mut facts, "MPS");
    assert_eq!(cluster.submit(facts).served().evicted, ["low-held"], "nowhere is MPS");
}

#[test]
fn pods_with_shares_on_their_way_to_a_node_without_shares_are_placed_elsewhere() {
    let mut cluster = two(8);
    cluster.isolates("free", 8, ShareIsolation::HamiCore, false);
    (0..10).for_each(|n| _ = cluster.pod(&format!("s{n}"), HALF));
    // Packed on one node, they wait for its lock one after another.
    let node = cluster.settled().node_of("s0").unwrap().to_owned();
    let there = |cluster: &TestScheduler| (0..10).filter(|n| cluster.node_of(&format!("s{n}")) == Some(&node)).count();
    let before = there(&cluster);
    assert!(before < 5, "some wait");
    cluster.isolates(&node, 8, ShareIsolation::HamiCore, true);
    let other = if node == "free" { "held" } else { "free" };
    cluster.served();
    assert_eq!((there(&cluster), cluster.bound()), (before, 10), "no further one went there, and all have a place");
    cluster.change_node(other, |facts| facts.unschedulable = true).pod("whole", WHOLE).pod("late", HALF).served();
    assert_eq!(cluster.nodes_of(["whole", "late"]), [Some(&*node), None]);
    let says = "SharesUnavailable: the limits of GPU shares cannot be enforced";
    tells(&cluster.conditions["late"], [says]);
    let explained = cluster.explain(&PodKey::new("ml", "late")).unwrap();
    assert!(format!("{explained:?}").contains("docs/share.md"), "{explained:?}");
    let said = cluster.scheduler.explain_node(&node, cluster.moment()).unwrap();
    assert!(said.takes_devices, "whole GPUs: {}", said.message);
    assert_eq!(said.not_given, ["GPU shares: SharesUnavailable: libvgpu.so cannot be found"]);
}

#[test]
fn kube_scheduler_learns_which_nodes_limit_shares() {
    const THEIRS: &str = "default-scheduler";
    let config = Config { asking_names: [THEIRS.into()].into(), ..Config::default() };
    let mut cluster = TestScheduler::with(config, DefaultSet::default());
    ["free", "held", "broken"].into_iter().for_each(|node| _ = cluster.node(node, 1));
    cluster.isolates("held", 1, ShareIsolation::Mps, false).isolates("broken", 1, ShareIsolation::Mps, true);
    let mut facts = pod("theirs", HALF, cluster.now);
    facts.handoff.scheduler_name = THEIRS.into();
    let nodes = ["free", "held", "broken"].map(str::to_owned);
    let mut fitting = |facts: &PodFacts| {
        let now = cluster.moment();
        cluster.scheduler.fit_devices(facts, &nodes, now).fitting
    };
    assert_eq!(fitting(&facts), ["free", "held"]);
    insists(&mut facts, "MPS");
    assert_eq!(fitting(&facts), ["held"]);
    insists(&mut facts, "HAMi-core");
    assert_eq!(fitting(&facts), [""; 0]);
}
