//! Pods that want a gang or a device of Baton and name another scheduler: their controller gets one event.

use crate::prelude::*;

fn notices(cluster: &TestScheduler) -> Vec<&str> {
    let of = cluster.notices.iter().filter(|(_, reason)| *reason == "NotScheduledByBaton");
    of.map(|(pod, _)| pod.as_str()).collect()
}

impl TestScheduler {
    /// A pod of another scheduler.
    fn of_another(&mut self, name: &str, limits: &[(&str, &str)], change: impl FnOnce(&mut PodFacts)) -> &mut Self {
        let mut facts = pod(name, limits, self.now);
        facts.handoff.scheduler_name = "default-scheduler".into();
        change(&mut facts);
        self.submit(facts)
    }
}

#[test]
fn a_controller_is_told_once_after_half_a_minute() {
    let mut cluster = TestScheduler::on("n", 8);
    let of_job = |facts: &mut PodFacts| facts.spec.controller = Some("job".into());
    cluster.of_another("j-0", ONE, of_job).of_another("j-1", ONE, of_job).of_another("alone", ONE, |_| {});
    let members = gang("g", "2", &[]);
    cluster.of_another("g-0", &[], |facts| facts.spec.gang = declared("ml", &members));
    cluster.of_another("plain", &[("cpu", "1")], |_| {});
    cluster.of_another("gated", ONE, |facts| facts.spec.gates = vec!["queue".into()]);
    cluster.of_another("placed", ONE, |_| {}).wait(29);
    assert_eq!(notices(&cluster), Vec::<&str>::new());
    cluster.change_pod("placed", |facts| facts.handoff.node = Some("n".into())).wait(2);
    assert_eq!(notices(&cluster), ["j-0", "alone", "g-0"]);
    // Another pod of the same job says nothing new; one that comes when all others are gone does.
    cluster.of_another("j-2", ONE, of_job).wait(40);
    assert_eq!(notices(&cluster).len(), 3);
    ["j-0", "j-1", "j-2"].into_iter().for_each(|name| _ = cluster.delete(name));
    cluster.of_another("j-3", ONE, of_job).wait(40);
    assert_eq!(notices(&cluster), ["j-0", "alone", "g-0", "j-3"]);
    assert_eq!(cluster.bound(), 1, "they are left alone");
}

#[test]
fn pods_that_the_extender_serves_are_not_reported() {
    let asking_names = BTreeSet::from(["default-scheduler".into()]);
    let mut cluster = TestScheduler::with(Config { asking_names, ..Config::default() }, DefaultSet::default());
    cluster.of_another("asked", ONE, |_| {});
    cluster.of_another("strange", ONE, |facts| facts.handoff.scheduler_name = "volcano".into()).wait(40);
    assert_eq!(notices(&cluster), ["strange"]);
}

#[test]
fn what_waits_when_a_scheduler_begins_to_lead_is_reported_too() {
    let mut cluster = TestScheduler::new();
    cluster.of_another("alone", ONE, |_| {}).after(10).step_down().wait(60);
    assert_eq!(notices(&cluster), Vec::<&str>::new());
    cluster.lead().wait(31);
    assert_eq!(notices(&cluster), ["alone"]);
}
