//! Binds that another scheduler requests: it chooses the node, waits for a short time, and gets one answer.

use baton::decide::scheduler::{BindVerdict, RequestId};

use crate::prelude::*;

const THEIRS: &str = "default-scheduler";

/// A node of eight GPUs, and a pod of kube-scheduler.
fn cluster() -> TestScheduler {
    let config = Config { asking_names: [THEIRS.into()].into(), ..Config::default() };
    let mut cluster = TestScheduler::with(config, DefaultSet::default());
    cluster.node("n", 8);
    submit(&mut cluster, "a");
    cluster
}

fn submit(cluster: &mut TestScheduler, name: &str) {
    cluster.comes_as(name, ONE, |facts| facts.handoff.scheduler_name = THEIRS.into());
}

fn reference(name: &str) -> PodRef {
    PodRef::new("ml", name, &format!("uid-{name}"))
}

impl TestScheduler {
    /// Requests the bind of a pod to a node, to be answered within ten seconds.
    fn asked_for(&mut self, id: u64, pod: &PodRef, node: &str) -> &mut Self {
        self.requests(id, pod, node).settled()
    }

    fn answer(&mut self, id: u64) -> String {
        let mut answers = answers(self);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let (answered, words) = answers.remove(0);
        assert_eq!(answered, id, "{words}");
        words
    }
}

fn answers(cluster: &mut TestScheduler) -> Vec<(u64, String)> {
    let words = |verdict| match verdict {
        BindVerdict::Bound => "bound".to_owned(),
        BindVerdict::Unknown => "unknown".to_owned(),
        BindVerdict::Failed(why) => why,
    };
    cluster.scheduler.take_answers().into_iter().map(|answer| (answer.request.0, words(answer.verdict))).collect()
}

#[test]
fn the_answer_comes_with_the_binding_and_the_other_scheduler_writes_the_event() {
    let mut cluster = cluster();
    cluster.asked_for(7, &reference("a"), "n");
    assert_eq!((cluster.answer(7).as_str(), cluster.node_of("a")), ("bound", Some("n")));
    assert!(!cluster.notices.contains(&("a".into(), "Scheduled")), "{:?}", cluster.notices);
    cluster.asked_for(8, &reference("a"), "n");
    assert_eq!((cluster.answer(8).as_str(), cluster.binds), ("bound", 1), "known without a write");
    cluster.agent_releases("n").comes("ours", ONE);
    assert!(cluster.notices.contains(&("ours".into(), "Scheduled")), "{:?}", cluster.notices);
}

#[test]
fn what_cannot_be_bound_is_answered_at_once() {
    let mut cluster = cluster();
    assert_eq!(cluster.asked_for(1, &reference("unseen"), "n").answer(1), "unknown");
    cluster.asked_for(2, &PodRef::new("ml", "b", "uid-a"), "n");
    assert_eq!(cluster.answer(2), "uid uid-a is the pod ml/a, not ml/b");
    assert_eq!(cluster.asked_for(3, &reference("a"), "m").answer(3), "node m is not known");
    cluster.node("m", 8).asked_for(4, &reference("a"), "n").answer(4);
    assert_eq!(cluster.asked_for(5, &reference("a"), "m").answer(5), "pod ml/a is bound to node n already");
    cluster.finish("a");
    assert_eq!(cluster.asked_for(6, &reference("a"), "n").answer(6), "pod ml/a has ended");
    submit(&mut cluster, "leaving");
    let at = crate::harness::wall(cluster.now);
    cluster.change_pod("leaving", |facts| facts.handoff.deleting = Some(Deletion { at, grace_seconds: 30 }));
    assert_eq!(cluster.asked_for(7, &reference("leaving"), "n").answer(7), "pod ml/leaving is being deleted");
    submit(&mut cluster, "b");
    cluster.step_down().asked_for(8, &reference("b"), "n");
    let why = cluster.answer(8);
    assert!(why.starts_with("this scheduler does not lead"), "{why}");
    assert_eq!((cluster.binds, cluster.reservations(), cluster.bind_attempts()), (1, 0, 0));
}

#[test]
fn a_lock_that_stands_is_waited_for_and_named() {
    let mut cluster = cluster();
    cluster.set_lock("n", "who knows").asked_for(1, &reference("a"), "n").wait(9);
    assert_eq!((answers(&mut cluster), cluster.bind_attempts()), (vec![], 1));
    assert_eq!(cluster.after(2).answer(1), "waited 10s for the lock of node n, which \"who knows\" holds");
    assert_eq!((cluster.bind_attempts(), cluster.reservations(), cluster.node_of("a")), (0, 0, None));
    assert!(!cluster.notices.iter().any(|(_, reason)| *reason == "WaitingForNodeLock"), "the other scheduler reports");
    // It may be requested again, and gets the lock when that is free.
    cluster.asked_for(2, &reference("a"), "n").after(3).serves("n");
    assert_eq!((cluster.answer(2).as_str(), cluster.node_of("a")), ("bound", Some("n")));
    cluster.wait(60);
    assert_eq!(answers(&mut cluster), [], "one answer each");
}

#[test]
fn writes_that_fail_are_part_of_the_answer() {
    let mut cluster = cluster();
    cluster.lock_faults.extend(std::iter::repeat_with(|| Fault::Fails).take(50));
    cluster.asked_for(1, &reference("a"), "n").wait(11);
    assert_eq!(cluster.answer(1), "the lock of node n could not be written within 10s: 500");
    assert_eq!((cluster.bind_attempts(), cluster.locks.get("n")), (0, None));
}

#[test]
fn a_write_without_an_answer_is_waited_for_also_after_the_time() {
    for (delivered, end) in [(1, "the lock of node n could not be written within 10s"), (2, "bound")] {
        let mut cluster = cluster();
        cluster.hold(true).asked_for(1, &reference("a"), "n");
        if delivered == 2 {
            cluster.deliver_one(0); // the lock: the Binding is under way when the time ends
        }
        cluster.wait(30);
        assert_eq!(answers(&mut cluster), [], "the write may still take effect");
        assert_eq!(cluster.deliver().settled().answer(1), end);
        assert_eq!(cluster.bind_attempts(), 0);
        assert_eq!(cluster.locks.contains_key("n"), end == "bound", "a failed bind leaves no lock");
        assert_eq!(cluster.node_of("a").is_some(), end == "bound");
    }
}

#[test]
fn a_posted_binding_keeps_lock_and_devices_for_as_long_as_it_may_arrive() {
    for arrives_after in [None, Some(1), Some(50)] {
        let mut cluster = cluster();
        cluster.node("m", 8);
        cluster.bind_faults.extend([Fault::Late].into_iter().chain(std::iter::repeat_n(Fault::Fails, 30)));
        cluster.asked_for(1, &reference("a"), "n").wait(12);
        assert_eq!(cluster.answer(1), "the Binding to node n was not made within 10s: 500");
        assert_eq!(cluster.asked_for(2, &reference("a"), "m").answer(2), "a bind of pod ml/a to node n is under way");
        cluster.wait(arrives_after.unwrap_or(48));
        assert_eq!((cluster.holder("n"), cluster.bind_attempts()), (Some("a"), 1), "{arrives_after:?}");
        cluster.bind_faults.clear();
        if arrives_after.is_some() {
            assert_eq!(cluster.arrive().stand("a", "n"), (Some("n"), Some("a")));
        } else {
            assert_eq!(cluster.after(10).stand("a", "n"), (None, None));
        }
        assert_eq!((cluster.bind_attempts(), cluster.reservations(), cluster.stats().binds.failed), (0, 0, 0));
    }
}

#[test]
fn the_same_bind_has_one_caller_and_another_node_none() {
    let mut cluster = cluster();
    cluster.node("m", 8).set_lock("n", "who knows").asked_for(1, &reference("a"), "n").wait(6);
    assert_eq!(cluster.asked_for(2, &reference("a"), "n").answer(1), "the same bind was requested again");
    assert_eq!(cluster.asked_for(3, &reference("a"), "m").answer(3), "a bind of pod ml/a to node n is under way");
    // The time is that of the last request.
    cluster.wait(6);
    assert_eq!(answers(&mut cluster), []);
    assert_eq!((cluster.serves("n").answer(2).as_str(), cluster.binds), ("bound", 1));
}

#[test]
fn a_caller_that_leaves_ends_a_bind_that_is_not_posted_and_no_other() {
    for posted in [false, true] {
        let mut cluster = cluster();
        cluster.hold(posted);
        if !posted {
            cluster.set_lock("n", "who knows");
        }
        cluster.asked_for(1, &reference("a"), "n");
        if posted {
            cluster.deliver_one(0);
        }
        let now = cluster.moment();
        for (id, left) in [(9, 1), (1, usize::from(posted))] {
            let effects = cluster.scheduler.cancel_request(RequestId(id), now);
            assert_eq!(cluster.perform(effects).bind_attempts(), left);
        }
        cluster.deliver();
        assert_eq!(cluster.settled().node_of("a").is_some(), posted);
        let why = cluster.answer(1);
        assert_eq!(why, if posted { "bound" } else { "the scheduler that requested the bind has left" });
    }
}

#[test]
fn a_pod_that_another_scheduler_binds_meanwhile_is_no_bind_of_ours() {
    let mut cluster = cluster();
    cluster.set_lock("n", "who knows").asked_for(1, &reference("a"), "n");
    // To the same node, and without our time in it.
    cluster.change_pod("a", |facts| facts.handoff.node = Some("n".into()));
    assert_eq!(cluster.answer(1), "another scheduler has bound the pod");
    assert_eq!((cluster.stats().binds.bound, cluster.bind_attempts()), (0, 0));
}

#[test]
fn a_pod_that_goes_or_a_lost_lease_ends_the_wait() {
    let mut cluster = cluster();
    submit(&mut cluster, "b");
    cluster.set_lock("n", "who knows").asked_for(1, &reference("a"), "n").asked_for(2, &reference("b"), "n");
    cluster.change_pod("a", |facts| facts.handoff.phase = Phase::Failed).settle();
    assert_eq!(cluster.answer(1), "the pod is gone or changed while it was being bound");
    assert_eq!(cluster.step_down().answer(2), "this scheduler does not lead any more");
}

#[test]
fn a_requested_bind_leaves_volumes_to_the_scheduler_that_asks() {
    let mut cluster = cluster();
    cluster.class("local", true, &[]).claim("data", 10, |_| {});
    cluster.pod_as("slow", ONE, |facts| {
        facts.handoff.scheduler_name = THEIRS.into();
        facts.spec.volumes = vec![VolumeUse::Claim("data".into())];
    });
    cluster.asked_for(1, &reference("slow"), "n");
    assert_eq!((cluster.answer(1).as_str(), cluster.volume_writes), ("bound", 0));
}

#[test]
fn a_request_for_a_bind_of_our_own_waits_for_its_volumes_and_names_them() {
    let mut cluster = cluster();
    cluster.class("local", true, &[]).claim("data", 10, |_| {});
    cluster.comes_as("slow", ONE, |facts| facts.spec.volumes = vec![VolumeUse::Claim("data".into())]);
    cluster.asked_for(1, &reference("slow"), "n").wait(11);
    assert_eq!(cluster.answer(1), "the pod's volumes were not ready on node n within 10s");
}
