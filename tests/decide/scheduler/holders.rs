//! Which devices a pod counts for, where its annotation is not the truth: it was written by another than the scheduler, or after the
//! bind, or the pod never got what it says.

use std::collections::BTreeMap;

use baton::contract::allocation::Entries;
use baton::contract::{AgentStatus, DeviceAllocation, DeviceType, Exceptions, Identity, PodKey, PodUid, key};
use baton::decide::pod::Phase;

use crate::harness::scheduler::NAMES;
use crate::harness::{TestScheduler, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

/// `device-allocated` with whole GPUs of node `n`.
fn whole(minors: &[u32]) -> String {
    let gpu = |minor: &u32| {
        format!(
            r#"{{"minor":{minor},"id":"GPU-n-{minor}","resources":{{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi","koordinator.sh/gpu-memory-ratio":"100"}}}}"#
        )
    };
    format!(r#"{{"gpu":[{}]}}"#, minors.iter().map(gpu).collect::<Vec<_>>().join(","))
}

pub(super) fn entries(minors: &[u32]) -> Entries {
    DeviceAllocation::parse(&whole(minors)).unwrap().devices
}

/// A daemon of this version says of these pods what they hold.
pub(super) fn says(cluster: &mut TestScheduler, exceptions: &[(&str, Entries)]) {
    let exceptions = exceptions.iter().map(|(name, held)| (PodUid::new(&format!("uid-{name}")), held.clone()));
    beat(cluster, exceptions.collect(), false);
}

fn beat(cluster: &mut TestScheduler, exceptions: Exceptions, too_many_exceptions: bool) {
    cluster.say("n", AgentStatus { exceptions: Some(exceptions), too_many_exceptions, ..status() });
}

/// Nothing is as the annotations do not say.
pub(super) fn status() -> AgentStatus {
    TestScheduler::status(Identity::Lock, &NAMES)
}

/// A cluster with one node of four GPUs and a daemon of this version.
fn four() -> TestScheduler {
    let mut cluster = TestScheduler::on("n", 4);
    says(&mut cluster, &[]);
    cluster
}

/// A pod that came with its node, with an annotation of its author.
fn forged(cluster: &mut TestScheduler, name: &str, limits: &[(&str, &str)], minors: &[u32]) {
    let mut facts = pod(name, limits, cluster.now);
    facts.handoff.node = Some("n".into());
    if !minors.is_empty() {
        facts.handoff.assignment.device_allocated = Some(whole(minors).into());
    }
    cluster.submit(facts);
}

/// How many more pods with one GPU each get one.
fn room(cluster: &mut TestScheduler) -> usize {
    let before = cluster.bound();
    for at in 0..5 {
        cluster.pod(&format!("probe-{at}"), ONE);
    }
    cluster.settle();
    while cluster.holder("n").is_some() {
        cluster.serves("n");
    }
    cluster.audit();
    cluster.bound() - before
}

#[test]
fn an_annotation_promises_no_more_than_the_pod_asks_for() {
    let mut cluster = four();
    forged(&mut cluster, "forged", ONE, &[0, 1, 2, 3]);
    assert_eq!(room(&mut cluster), 3);
}

#[test]
fn a_pod_whose_names_nothing_registers_holds_nothing_whatever_its_annotation_says() {
    for limits in [&[("nvidia.com/mig-9g.999gb", "1")], &[(key::GPU_MEMORY, "1")]] {
        for minors in [&[][..], &[0, 1, 2, 3]] {
            let mut cluster = four();
            forged(&mut cluster, "forged", limits, minors);
            assert_eq!(room(&mut cluster), 4, "{limits:?} {minors:?}");
        }
    }
}

#[test]
fn a_forged_pod_that_is_seen_before_its_node_is_counted_afresh_when_that_comes() {
    let mut cluster = TestScheduler::new();
    forged(&mut cluster, "forged", &[("nvidia.com/mig-9g.999gb", "4")], &[0, 1, 2, 3]);
    says(&mut cluster, &[]);
    cluster.node("n", 4);
    says(&mut cluster, &[]);
    assert_eq!(room(&mut cluster), 4);
}

#[test]
fn what_is_said_twice_counts_after_the_second_time_too() {
    let mut cluster = four();
    for _ in 0..2 {
        says(&mut cluster, &[("gone", entries(&[2, 3]))]);
    }
    assert_eq!(room(&mut cluster), 2);
}

#[test]
fn a_pod_without_assignment_takes_a_node_out_where_no_daemon_says_what_it_holds() {
    let mut cluster = four();
    forged(&mut cluster, "pinned", ONE, &[]);
    assert_eq!(room(&mut cluster), 3, "its request counts, as it does for every scheduler");
    // A daemon that says nothing of it.
    let mut cluster = TestScheduler::on("n", 4);
    cluster.says_nothing("n");
    forged(&mut cluster, "pinned", ONE, &[]);
    assert_eq!(room(&mut cluster), 0);
}

#[test]
fn what_the_daemon_says_counts_instead_of_the_annotation() {
    let mut cluster = four();
    forged(&mut cluster, "edited", ONE, &[3]);
    says(&mut cluster, &[("edited", entries(&[1]))]);
    assert_eq!(room(&mut cluster), 3);
    for at in 0..3 {
        let given = cluster.devices_of(&format!("probe-{at}"));
        assert!(given.of(&DeviceType::Gpu).iter().all(|gpu| gpu.minor != 1), "GPU 1 is in the pod's container");
    }
}

#[test]
fn a_pod_that_runs_unserved_holds_nothing_and_a_gone_one_what_the_kubelet_keeps() {
    let mut cluster = four();
    forged(&mut cluster, "unserved", ONE, &[0]);
    says(&mut cluster, &[("unserved", BTreeMap::new()), ("gone", entries(&[2, 3]))]);
    assert_eq!(room(&mut cluster), 2);
}

#[test]
fn a_node_with_too_many_exceptions_takes_no_device_pods() {
    let mut cluster = four();
    beat(&mut cluster, Exceptions::new(), true);
    assert_eq!(room(&mut cluster), 0);
}

#[test]
fn a_pod_that_runs_unserved_stays_when_its_lock_is_taken_over() {
    let mut cluster = four();
    cluster.comes("unserved", ONE);
    cluster.change_pod("unserved", |facts| facts.handoff.phase = Phase::Running);
    says(&mut cluster, &[("unserved", Entries::new())]);
    cluster.pod("next", ONE);
    assert_eq!(cluster.after(295).holder("n"), Some("unserved"));
    cluster.wait(10);
    assert_eq!((cluster.holder("n"), cluster.node_of("unserved")), (Some("next"), Some("n")));
    let key = PodKey::new("ml", "unserved");
    assert!(cluster.pods[&key].handoff.deleting.is_none());
    let verdict = cluster.explain(&key).unwrap().verdict;
    assert!(verdict.message.contains("runs without its devices") && verdict.advice.len() == 1, "{verdict:?}");
}

#[test]
fn the_condition_of_a_pod_says_while_it_runs_without_its_devices() {
    let mut cluster = four();
    cluster.comes("unserved", ONE);
    cluster.change_pod("unserved", |facts| facts.handoff.phase = Phase::Running);
    let key = PodKey::new("ml", "unserved");
    let unserved = |cluster: &TestScheduler| cluster.pods[&key].spec.unserved;
    says(&mut cluster, &[]);
    assert!(!unserved(&cluster));
    // The write is lost, and repeated with the next version of the Lease.
    cluster.lost_conditions = 1;
    says(&mut cluster, &[("unserved", Entries::new())]);
    assert!(!unserved(&cluster));
    says(&mut cluster, &[("unserved", Entries::new())]);
    assert!(unserved(&cluster));
    // The daemon starts again and does not know yet; then it has more exceptions than its Lease holds.
    cluster.say("n", AgentStatus { exceptions: None, ..status() });
    assert!(unserved(&cluster));
    beat(&mut cluster, Exceptions::new(), true);
    assert!(unserved(&cluster));
    says(&mut cluster, &[]);
    assert!(!unserved(&cluster));
}

#[test]
fn a_served_holder_stays_where_its_daemon_cannot_remove_the_lock() {
    let mut cluster = four();
    cluster.comes("served", ONE);
    let raw = cluster.locks["n"].clone();
    cluster.say("n", AgentStatus { unreleased: Some(raw.as_str().into()), ..status() });
    cluster.comes("next", ONE);
    assert_eq!(cluster.holder("n"), Some("next"), "taken over at once");
    // The daemon's word is about another lock now.
    assert_eq!(cluster.after(295).holder("n"), Some("next"));
}
