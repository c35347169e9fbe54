//! Which devices a pod counts for, where its annotation is not the truth: it was written by another than the scheduler, or after the
//! bind, or the pod never got what it says.

use baton::contract::Exceptions;
use baton::contract::allocation::Entries;

use crate::harness::scheduler::NAMES;
use crate::prelude::*;

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

impl TestScheduler {
    /// A daemon of this version says of these pods what they hold.
    pub fn daemon_says(&mut self, exceptions: &[(&str, Entries)]) -> &mut Self {
        let exceptions = exceptions.iter().map(|(name, held)| (PodUid::new(&format!("uid-{name}")), held.clone()));
        beat(self, exceptions.collect(), false);
        self
    }

    /// A pod that came with its node, with an annotation of its author.
    fn forged(&mut self, name: &str, limits: &[(&str, &str)], minors: &[u32]) -> &mut Self {
        let mut facts = pod(name, limits, self.now);
        facts.handoff.node = Some("n".into());
        if !minors.is_empty() {
            facts.handoff.assignment.device_allocated = Some(whole(minors).into());
        }
        self.submit(facts)
    }

    /// How many more pods with one GPU each get one.
    fn room_left(&mut self) -> usize {
        let before = self.bound();
        (0..5).for_each(|at| _ = self.pod(&format!("probe-{at}"), ONE));
        self.settle();
        while self.holder("n").is_some() {
            self.serves("n");
        }
        self.audit();
        self.bound() - before
    }
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
    cluster.daemon_says(&[]);
    cluster
}

#[test]
fn an_annotation_promises_no_more_than_the_pod_asks_for() {
    let mut cluster = four();
    cluster.forged("forged", ONE, &[0, 1, 2, 3]);
    assert_eq!(cluster.room_left(), 3);
}

#[test]
fn a_pod_whose_names_nothing_registers_holds_nothing_whatever_its_annotation_says() {
    for limits in [&[("nvidia.com/mig-9g.999gb", "1")], &[(key::GPU_MEMORY, "1")]] {
        for minors in [&[][..], &[0, 1, 2, 3]] {
            let mut cluster = four();
            cluster.forged("forged", limits, minors);
            assert_eq!(cluster.room_left(), 4, "{limits:?} {minors:?}");
        }
    }
}

#[test]
fn a_forged_pod_that_is_seen_before_its_node_is_counted_afresh_when_that_comes() {
    let mut cluster = TestScheduler::new();
    cluster.forged("forged", &[("nvidia.com/mig-9g.999gb", "4")], &[0, 1, 2, 3]).daemon_says(&[]);
    assert_eq!(cluster.node("n", 4).daemon_says(&[]).room_left(), 4);
}

#[test]
fn what_is_said_twice_counts_after_the_second_time_too() {
    let mut cluster = four();
    (0..2).for_each(|_| _ = cluster.daemon_says(&[("gone", entries(&[2, 3]))]));
    assert_eq!(cluster.room_left(), 2);
}

#[test]
fn a_pod_without_assignment_takes_a_node_out_where_no_daemon_says_what_it_holds() {
    let mut cluster = four();
    cluster.forged("pinned", ONE, &[]);
    assert_eq!(cluster.room_left(), 3, "its request counts, as it does for every scheduler");
    // A daemon that says nothing of it.
    let mut cluster = TestScheduler::on("n", 4);
    cluster.says_nothing("n");
    cluster.forged("pinned", ONE, &[]);
    assert_eq!(cluster.room_left(), 0);
}

#[test]
fn what_the_daemon_says_counts_instead_of_the_annotation() {
    let mut cluster = four();
    assert_eq!(cluster.forged("edited", ONE, &[3]).daemon_says(&[("edited", entries(&[1]))]).room_left(), 3);
    for at in 0..3 {
        let given = cluster.devices_of(&format!("probe-{at}"));
        assert!(given.of(&DeviceType::Gpu).iter().all(|gpu| gpu.minor != 1), "GPU 1 is in the pod's container");
    }
}

#[test]
fn a_pod_that_runs_unserved_holds_nothing_and_a_gone_one_what_the_kubelet_keeps() {
    let mut cluster = four();
    cluster.forged("unserved", ONE, &[0]);
    assert_eq!(cluster.daemon_says(&[("unserved", BTreeMap::new()), ("gone", entries(&[2, 3]))]).room_left(), 2);
}

#[test]
fn a_node_with_too_many_exceptions_takes_no_device_pods() {
    let mut cluster = four();
    beat(&mut cluster, Exceptions::new(), true);
    assert_eq!(cluster.room_left(), 0);
}

#[test]
fn a_pod_that_runs_unserved_stays_when_its_lock_is_taken_over() {
    let mut cluster = four();
    cluster.comes("unserved", ONE).change_pod("unserved", |facts| facts.handoff.phase = Phase::Running);
    cluster.daemon_says(&[("unserved", Entries::new())]).pod("next", ONE);
    assert_eq!(cluster.after(295).holder("n"), Some("unserved"));
    assert_eq!(cluster.after(10).stand("unserved", "n"), (Some("n"), Some("next")));
    let key = PodKey::new("ml", "unserved");
    assert!(cluster.pods[&key].handoff.deleting.is_none());
    let verdict = cluster.explain(&key).unwrap().verdict;
    assert!(verdict.message.contains("runs without its devices") && verdict.advice.len() == 1, "{verdict:?}");
}

#[test]
fn the_condition_of_a_pod_says_while_it_runs_without_its_devices() {
    let mut cluster = four();
    cluster.comes("unserved", ONE).change_pod("unserved", |facts| facts.handoff.phase = Phase::Running);
    let key = PodKey::new("ml", "unserved");
    let unserved = |cluster: &TestScheduler| cluster.pods[&key].spec.unserved;
    cluster.daemon_says(&[]);
    assert!(!unserved(&cluster));
    // The write is lost, and repeated with the next version of the Lease.
    cluster.lost_conditions = 1;
    cluster.daemon_says(&[("unserved", Entries::new())]);
    assert!(!unserved(&cluster));
    cluster.daemon_says(&[("unserved", Entries::new())]);
    assert!(unserved(&cluster));
    // The daemon starts again and does not know yet; then it has more exceptions than its Lease holds.
    cluster.say("n", AgentStatus { exceptions: None, ..status() });
    assert!(unserved(&cluster));
    beat(&mut cluster, Exceptions::new(), true);
    assert!(unserved(&cluster));
    cluster.daemon_says(&[]);
    assert!(!unserved(&cluster));
}

#[test]
fn a_served_holder_stays_where_its_daemon_cannot_remove_the_lock() {
    let mut cluster = four();
    cluster.comes("served", ONE);
    let raw = cluster.locks["n"].clone();
    cluster.say("n", AgentStatus { unreleased: Some(raw.as_str().into()), ..status() });
    assert_eq!(cluster.comes("next", ONE).holder("n"), Some("next"), "taken over at once");
    // The daemon's word is about another lock now.
    assert_eq!(cluster.after(295).holder("n"), Some("next"));
}
