//! GPU shares with limits: which nodes serve which pods, for single pods, gangs, pods that push others out, and kube-scheduler.

use baton::contract::inventory::DeviceStatus;
use baton::contract::{PodKey, ShareIsolation, key};
use baton::decide::core::rules::plugins::DefaultSet;
use baton::decide::scheduler::Config;
use baton::decide::shares::ShareTerms;
use baton::decide::world::PodFacts;

use crate::harness::gangs::{TestGangs, gang};
use crate::harness::parts::{condition, labels_of};
use crate::harness::{TestScheduler, pod, wall};

const HALF: &[(&str, &str)] = &[(key::GPU, "50")];
const WHOLE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

/// The node's daemon says what limits shares there, and whether that works.
fn publish(cluster: &mut TestScheduler, node: &str, gpus: u32, isolation: ShareIsolation, broken: bool) {
    let (said, now) = ("libvgpu.so cannot be found", wall(cluster.now));
    let broken = broken.then(|| condition(DeviceStatus::SHARES_UNAVAILABLE, "LimitsNotEnforced", said, now));
    let conditions = broken.into_iter().collect();
    cluster.device(node, gpus, |device| {
        device.metadata.labels = Some(labels_of(key::GPU_ISOLATION_PROVIDER, isolation.provider()));
        device.status = Some(DeviceStatus { conditions, ..DeviceStatus::default() });
    });
}

fn insists(facts: &mut PodFacts, provider: &str) {
    facts.spec.wishes.shares = Some(Box::new(ShareTerms { provider: Some(provider.into()), ..ShareTerms::default() }));
}

/// A node without limits, and one with HAMi-core's.
fn two(gpus: u32) -> TestScheduler {
    let mut cluster = TestScheduler::on_each(&["free", "held"], gpus);
    publish(&mut cluster, "held", gpus, ShareIsolation::HamiCore, false);
    cluster
}

fn served(cluster: &mut TestScheduler) {
    for _ in 0..20 {
        cluster.settle();
        cluster.all_release();
    }
}

#[test]
fn a_label_that_comes_or_changes_while_the_pod_waits_counts() {
    let mut cluster = two(1);
    let mut facts = pod("p", HALF, cluster.now);
    insists(&mut facts, "gVisor");
    cluster.submit(facts);
    served(&mut cluster);
    assert!(cluster.conditions["p"].contains("the pod asks for gVisor"), "{}", cluster.conditions["p"]);
    cluster.change_pod("p", |facts| insists(facts, "MPS"));
    // The condition of a pod that waits is not written more often.
    assert!(cluster.after(15).conditions["p"].contains("the pod asks for MPS"), "{}", cluster.conditions["p"]);
    cluster.change_pod("p", |facts| insists(facts, "hami-core"));
    served(&mut cluster);
    assert_eq!(cluster.node_of("p"), Some("held"));
}

#[test]
fn a_gang_that_insists_on_limits_is_placed_where_they_are_or_waits_whole() {
    let mut gangs = TestGangs::new(1);
    gangs.cluster = two(2);
    let keys = gang("g", "4", &[]);
    for n in 0..4 {
        let mut facts = gangs.facts(&format!("g-{n}"), HALF, &keys);
        insists(&mut facts, "HAMi-core");
        gangs.cluster.submit(facts);
    }
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-0"));
    assert!((0..4).all(|n| gangs.cluster.node_of(&format!("g-{n}")) == Some("held")));
    let keys = gang("h", "2", &[]);
    for n in 0..2 {
        let mut facts = gangs.facts(&format!("h-{n}"), HALF, &keys);
        insists(&mut facts, "HAMi-core");
        gangs.cluster.submit(facts);
    }
    gangs.wait(2);
    assert_eq!((gangs.count("h"), gangs.reserved("ml/h")), (0, 0), "the other node has room, and no limits");
}

#[test]
fn no_pod_leaves_a_node_that_does_not_limit_shares_as_the_more_important_one_asks() {
    let mut cluster = two(1);
    for (name, node) in [("low-free", "free"), ("low-held", "held")] {
        let other = if node == "free" { "held" } else { "free" };
        cluster.change_node(other, |facts| facts.unschedulable = true);
        cluster.pod_as(name, WHOLE, |facts| {
            (facts.spec.priority, facts.spec.labels) = (1, labels_of("app", name));
        });
        served(&mut cluster);
        cluster.change_node(other, |facts| facts.unschedulable = false);
        assert_eq!(cluster.node_of(name), Some(node));
    }
    let mut facts = pod("high", HALF, cluster.now);
    facts.spec.priority = 9;
    insists(&mut facts, "HAMi-core");
    cluster.submit(facts);
    served(&mut cluster);
    assert_eq!(cluster.evicted, ["low-held"]);
    let mut facts = pod("higher", HALF, cluster.now);
    facts.spec.priority = 10;
    insists(&mut facts, "MPS");
    cluster.submit(facts);
    served(&mut cluster);
    assert_eq!(cluster.evicted, ["low-held"], "nowhere is MPS");
}

#[test]
fn pods_with_shares_on_their_way_to_a_node_without_shares_are_placed_elsewhere() {
    let mut cluster = two(8);
    publish(&mut cluster, "free", 8, ShareIsolation::HamiCore, false);
    (0..10).for_each(|n| cluster.pod(&format!("s{n}"), HALF));
    // Packed on one node, they wait for its lock one after another.
    let node = cluster.settled().node_of("s0").unwrap().to_owned();
    let there = |cluster: &TestScheduler| (0..10).filter(|n| cluster.node_of(&format!("s{n}")) == Some(&node)).count();
    let before = there(&cluster);
    assert!(before < 5, "some wait");
    publish(&mut cluster, &node, 8, ShareIsolation::HamiCore, true);
    let other = if node == "free" { "held" } else { "free" };
    served(&mut cluster);
    assert_eq!((there(&cluster), cluster.bound()), (before, 10), "no further one went there, and all have a place");
    cluster.change_node(other, |facts| facts.unschedulable = true);
    cluster.pod("whole", WHOLE);
    cluster.pod("late", HALF);
    served(&mut cluster);
    assert_eq!((cluster.node_of("whole"), cluster.node_of("late")), (Some(&*node), None));
    let says = "SharesUnavailable: the limits of GPU shares cannot be enforced";
    assert!(cluster.conditions["late"].contains(says), "{}", cluster.conditions["late"]);
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
    for node in ["free", "held", "broken"] {
        cluster.node(node, 1);
    }
    publish(&mut cluster, "held", 1, ShareIsolation::Mps, false);
    publish(&mut cluster, "broken", 1, ShareIsolation::Mps, true);
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
