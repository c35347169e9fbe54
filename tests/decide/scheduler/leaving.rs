//! Devices of pods that leave the API server before their processes have ended.

use baton::contract::LeavingPod;
use baton::decide::world::{Place, still_used};

use super::holders::{entries, status};
use crate::prelude::*;

/// A node of four GPUs; `a` runs on all of them, and `b` waits for all of them.
fn full() -> TestScheduler {
    let mut cluster = TestScheduler::on("n", 4);
    cluster.change_node("n", |node| node.boot_id = "1".into()).daemon_says(&[]).starts("a").comes("b", FOUR);
    assert_eq!(cluster.nodes_of(["a", "b"]), [Some("n"), None]);
    cluster
}

impl TestScheduler {
    /// A pod comes, is bound to `n` and runs.
    fn starts(&mut self, name: &str) -> &mut Self {
        self.comes(name, FOUR).agent_releases("n").runs(name, Phase::Running, true);
        self
    }
}

impl TestScheduler {
    fn waits(&self, name: &str) -> bool {
        self.audit();
        self.node_of(name).is_none()
    }

    /// `kubectl delete --force --grace-period=0`.
    fn forced(&mut self, name: &str) -> &mut Self {
        self.goes(name)
    }

    /// What the kubelet writes, or, of a pod that has ended and whose container runs, another client.
    fn runs(&mut self, name: &str, phase: Phase, running: bool) -> &mut Self {
        self.change_pod(name, |facts| {
            facts.handoff.phase = phase;
            for container in facts.handoff.containers.iter_mut() {
                (container.running, container.started) = (running, container.started || running);
            }
        });
        self.settled()
    }

    /// Time without a word of any daemon.
    fn silence(&mut self, seconds: u64) -> &mut Self {
        (0..seconds).for_each(|_| self.later(1).settle());
        self
    }

    /// The daemon says that the processes of `a` use all four GPUs.
    fn names_a(&mut self) -> &mut Self {
        let held = [(PodUid::new("uid-a"), entries(&[0, 1, 2, 3]))].into();
        let a = LeavingPod { namespace: "ml".into(), name: "a".into(), since: wall(self.now) };
        self.say("n", AgentStatus { exceptions: Some(held), leaving: [(PodUid::new("uid-a"), a)].into(), ..status() });
        self.settled()
    }
}

/// `a` is deleted by force, and `b` has its devices ten seconds later: the time alone wakes it.
fn goes_ten_seconds_before_b(cluster: &mut TestScheduler) {
    cluster.forced("a").silence(5).beat_all();
    assert!(cluster.silence(4).waits("b"));
    assert!(!cluster.silence(1).waits("b"), "woken by the time alone");
}

#[test]
fn a_waiting_pod_starts_when_the_daemon_says_no_more_of_one_deleted_by_force() {
    let mut cluster = full();
    assert!(cluster.forced("a").waits("b"), "its container runs still");
    assert!(cluster.names_a().after(30).waits("b"), "its container runs still, by the daemon's word");
    assert!(!cluster.daemon_says(&[]).settled().waits("b"), "at once");
}

#[test]
fn a_daemon_that_was_first_counts_as_well() {
    let mut cluster = full();
    assert!(cluster.names_a().forced("a").after(30).waits("b"));
    assert!(!cluster.daemon_says(&[("a", [].into())]).settled().waits("b"), "it holds nothing any more");
}

#[test]
fn a_pod_whose_containers_have_ended_or_never_ran_frees_its_devices_at_once() {
    for phase in [Phase::Pending, Phase::Running, Phase::Succeeded] {
        let mut cluster = full();
        assert!(!cluster.runs("a", phase, false).forced("a").waits("b"), "{phase:?}");
    }
}

#[test]
fn a_daemon_that_says_nothing_for_ten_seconds_has_seen_nothing() {
    let mut cluster = full();
    assert!(cluster.forced("a").silence(20).waits("b"), "it may have died before");
    cluster.beat_all();
    assert!(!cluster.silence(1).waits("b"));
    let mut cluster = full();
    goes_ten_seconds_before_b(&mut cluster);
}

#[test]
fn a_daemon_that_is_away_has_ten_seconds_from_its_return() {
    let mut cluster = full();
    assert!(cluster.silence(100).forced("a").silence(300).waits("b"), "no daemon looks");
    assert!(cluster.daemon_says(&[]).silence(9).waits("b"));
    assert!(!cluster.silence(1).waits("b"));
}

#[test]
fn a_node_that_starts_again_or_goes_has_no_processes_of_before() {
    let mut cluster = full();
    assert!(cluster.forced("a").tell_node("n").settled().waits("b"), "the same boot");
    assert!(!cluster.change_node("n", |node| node.boot_id = "2".into()).settled().waits("b"));
    let mut cluster = full();
    assert!(!cluster.forced("a").event(WorldEvent::NodeGone("n".into())).tell_node("n").settled().waits("b"));
}

#[test]
fn a_successor_of_the_same_name_waits_too() {
    let mut cluster = full();
    cluster.forced("b");
    let mut again = pod("a", FOUR, cluster.now + Duration::from_secs(1));
    again.handoff.pod.uid = PodUid::new("uid-a-2");
    assert!(cluster.enters(again).waits("a"), "the deletion was not seen, its predecessor's container runs");
    assert!(!cluster.names_a().daemon_says(&[]).settled().waits("a"));
}

#[test]
fn a_pod_that_another_client_calls_failed_holds_its_devices_and_may_run_again() {
    let mut cluster = full();
    assert!(cluster.runs("a", Phase::Failed, true).waits("b"));
    cluster.runs("a", Phase::Running, true);
    assert!(matches!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Bound(_)));
    assert!(cluster.after(60).waits("b"), "it is an ordinary pod again");
    // Its deletion now: a second record, not the first one's time.
    cluster.runs("a", Phase::Failed, true);
    goes_ten_seconds_before_b(&mut cluster);
}

#[test]
fn a_pod_that_another_client_calls_failed_before_it_starts_may_run() {
    let mut cluster = TestScheduler::on("n", 4);
    cluster.daemon_says(&[]).comes("a", FOUR).agent_releases("n").runs("a", Phase::Failed, false);
    assert!(cluster.runs("a", Phase::Running, true).comes("b", FOUR).waits("b"), "a uses the devices");
    assert!(matches!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Bound(_)));
}

#[test]
fn a_pod_that_its_kubelet_has_refused_is_never_bound_again() {
    let mut cluster = TestScheduler::on("n", 4);
    cluster.daemon_says(&[]).comes("a", FOUR);
    cluster.change_pod("a", |facts| (facts.handoff.phase, facts.spec.refused) = (Phase::Failed, true)).settle();
    cluster.change_pod("a", |facts| (facts.handoff.phase, facts.spec.refused) = (Phase::Pending, false)).settle();
    assert_eq!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Ended, "an old event");
}

#[test]
fn the_kubelets_word_that_a_failed_pod_has_stopped_is_final() {
    let mut cluster = full();
    assert!(cluster.runs("a", Phase::Failed, true).waits("b"));
    assert!(!cluster.runs("a", Phase::Failed, false).waits("b"));
    cluster.runs("a", Phase::Running, true);
    assert_eq!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Ended, "an old event");
}

#[test]
fn a_leaving_pod_counts_for_nothing_but_its_devices() {
    let mut cluster = full();
    cluster.forced("a");
    cluster.comes_as("cpu", &[], |facts| {
        facts.spec.requests = Resources::of([("cpu", "64".parse::<Quantity>().unwrap())]);
    });
    assert!(!cluster.waits("cpu"));
    let id = cluster.world().node_id("n").unwrap();
    let node = cluster.world().node(id).unwrap();
    assert_eq!((cluster.world().device_pods(), node.pods.len()), (0, 1));
    let said: Vec<String> = node.leaving().map(|(pod, _)| still_used(pod)).collect();
    assert_eq!(
        said,
        ["still used by processes of ml/a, which was deleted or written as ended at 2026-11-21T02:16:40Z"]
    );
    cluster.names_a();
    let node = cluster.world().node(id).unwrap();
    assert_eq!(node.leaving().map(|(pod, _)| still_used(pod)).collect::<Vec<_>>(), said, "once");
}

#[test]
fn the_explanation_names_the_pod_that_has_left() {
    let mut cluster = full();
    cluster.forced("a");
    for round in 0..2 {
        let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
        let words = "ml/a, which was deleted or written as ended at 2026-11-21T02:16:40Z";
        for device in answer.devices {
            assert_eq!(device.still_used, [format!("still used by processes of {words}")], "{round}");
        }
        let answer = cluster.explain(&PodKey::new("ml", "b")).unwrap();
        let nearest = answer.verdict.nearest.unwrap();
        assert_eq!(nearest, format!("n with 0 of 4 ({words}, holds 4)"));
        cluster.names_a();
    }
}

/// A preemptor whose victim is deleted by force waits for the devices, and evicts no other pod.
#[test]
fn a_victim_has_left_when_its_devices_are_free() {
    let mut cluster = full();
    cluster.forced("b").node("m", 4);
    let ranked = |cluster: &mut TestScheduler, name: &str, priority: i32| {
        cluster.comes_as(name, FOUR, |facts| facts.spec.priority = priority);
    };
    ranked(&mut cluster, "d", 5);
    assert_eq!(cluster.node_of("d"), Some("m"));
    cluster.agent_releases("m");
    ranked(&mut cluster, "high", 10);
    assert_eq!(cluster.evicted, ["a"]);
    assert!(cluster.forced("a").names_a().after(120).waits("high"));
    assert_eq!(cluster.evicted, ["a"]);
    cluster.daemon_says(&[]).settle();
    assert_eq!((cluster.node_of("high"), cluster.evicted.len()), (Some("n"), 1));
    assert_eq!(cluster.devices_of("high").of(&DeviceType::Gpu).len(), 4);
}
