//! Pods that want a gang or a device of Baton and name another scheduler: their controller gets one event.

use std::collections::BTreeSet;

use baton::contract::key;
use baton::decide::core::rules::plugins::DefaultSet;
use baton::decide::scheduler::Config;
use baton::decide::world::PodFacts;

use crate::harness::gangs::{declared, gang};
use crate::harness::{TestScheduler, pod};

fn notices(cluster: &TestScheduler) -> Vec<&str> {
    let of = cluster.notices.iter().filter(|(_, reason)| *reason == "NotScheduledByBaton");
    of.map(|(pod, _)| pod.as_str()).collect()
}

/// A pod of another scheduler.
fn other(cluster: &mut TestScheduler, name: &str, limits: &[(&str, &str)], change: impl FnOnce(&mut PodFacts)) {
    let mut facts = pod(name, limits, cluster.now);
    facts.handoff.scheduler_name = "default-scheduler".into();
    change(&mut facts);
    cluster.submit(facts);
}

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

#[test]
fn a_controller_is_told_once_after_half_a_minute() {
    let mut cluster = TestScheduler::on("n", 8);
    let of_job = |facts: &mut PodFacts| facts.spec.controller = Some("job".into());
    other(&mut cluster, "j-0", ONE, of_job);
    other(&mut cluster, "j-1", ONE, of_job);
    other(&mut cluster, "alone", ONE, |_| {});
    let members = gang("g", "2", &[]);
    other(&mut cluster, "g-0", &[], |facts| facts.spec.gang = declared("ml", &members));
    other(&mut cluster, "plain", &[("cpu", "1")], |_| {});
    other(&mut cluster, "gated", ONE, |facts| facts.spec.gates = vec!["queue".into()]);
    other(&mut cluster, "placed", ONE, |_| {});
    cluster.wait(29);
    assert_eq!(notices(&cluster), Vec::<&str>::new());
    cluster.change_pod("placed", |facts| facts.handoff.node = Some("n".into()));
    cluster.wait(2);
    assert_eq!(notices(&cluster), ["j-0", "alone", "g-0"]);
    // Another pod of the same job says nothing new; one that comes when all others are gone does.
    other(&mut cluster, "j-2", ONE, of_job);
    cluster.wait(40);
    assert_eq!(notices(&cluster).len(), 3);
    for name in ["j-0", "j-1", "j-2"] {
        cluster.delete(name);
    }
    other(&mut cluster, "j-3", ONE, of_job);
    cluster.wait(40);
    assert_eq!(notices(&cluster), ["j-0", "alone", "g-0", "j-3"]);
    assert_eq!(cluster.bound(), 1, "they are left alone");
}

#[test]
fn pods_that_the_extender_serves_are_not_reported() {
    let asking_names = BTreeSet::from(["default-scheduler".into()]);
    let mut cluster = TestScheduler::with(Config { asking_names, ..Config::default() }, DefaultSet::default());
    other(&mut cluster, "asked", ONE, |_| {});
    other(&mut cluster, "strange", ONE, |facts| facts.handoff.scheduler_name = "volcano".into());
    cluster.wait(40);
    assert_eq!(notices(&cluster), ["strange"]);
}

#[test]
fn what_waits_when_a_scheduler_begins_to_lead_is_reported_too() {
    let mut cluster = TestScheduler::new();
    other(&mut cluster, "alone", ONE, |_| {});
    cluster.wait(10);
    cluster.step_down();
    cluster.wait(60);
    assert_eq!(notices(&cluster), Vec::<&str>::new());
    cluster.lead();
    cluster.wait(31);
    assert_eq!(notices(&cluster), ["alone"]);
}
