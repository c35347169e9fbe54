//! Devices of pods that leave the API server before their processes have ended.

use std::time::Duration;

use baton::contract::{AgentStatus, DeviceType, LeavingPod, PodKey, PodUid, Quantity, key};
use baton::decide::pod::Phase;
use baton::decide::world::{Place, Resources, WorldEvent, still_used};

use super::holders::{entries, says, status};
use crate::harness::{TestScheduler, pod, wall};

const FOUR: &[(&str, &str)] = &[(key::NVIDIA_GPU, "4")];

/// A node of four GPUs; `a` runs on all of them, and `b` waits for all of them.
fn full() -> TestScheduler {
    let mut cluster = TestScheduler::on("n", 4);
    cluster.change_node("n", |node| node.boot_id = "1".into());
    says(&mut cluster, &[]);
    start(&mut cluster, "a");
    cluster.comes("b", FOUR);
    assert_eq!((cluster.node_of("a"), cluster.node_of("b")), (Some("n"), None));
    cluster
}

/// A pod comes, is bound to `n` and runs.
fn start(cluster: &mut TestScheduler, name: &str) {
    cluster.comes(name, FOUR);
    cluster.agent_releases("n");
    runs(cluster, name, Phase::Running, true);
}

/// What the kubelet writes, or, of a pod that has ended and whose container runs, another client.
fn runs(cluster: &mut TestScheduler, name: &str, phase: Phase, running: bool) {
    cluster.change_pod(name, |facts| {
        facts.handoff.phase = phase;
        for container in facts.handoff.containers.iter_mut() {
            (container.running, container.started) = (running, container.started || running);
        }
    });
    cluster.settle();
}

/// `kubectl delete --force --grace-period=0`.
fn force(cluster: &mut TestScheduler, name: &str) {
    cluster.goes(name);
}

/// The daemon says that the processes of `a` use all four GPUs.
fn names_a(cluster: &mut TestScheduler) {
    let held = [(PodUid::new("uid-a"), entries(&[0, 1, 2, 3]))].into();
    let a = LeavingPod { namespace: "ml".into(), name: "a".into(), since: wall(cluster.now) };
    cluster.say("n", AgentStatus { exceptions: Some(held), leaving: [(PodUid::new("uid-a"), a)].into(), ..status() });
    cluster.settle();
}

/// Time without a word of any daemon.
fn silence(cluster: &mut TestScheduler, seconds: u64) {
    for _ in 0..seconds {
        cluster.now += Duration::from_secs(1);
        cluster.settle();
    }
}

/// `a` is deleted by force, and `b` has its devices ten seconds later: the time alone wakes it.
fn goes_ten_seconds_before_b(cluster: &mut TestScheduler) {
    force(cluster, "a");
    silence(cluster, 5);
    cluster.beat_all();
    silence(cluster, 4);
    assert!(waits(cluster, "b"));
    silence(cluster, 1);
    assert!(!waits(cluster, "b"), "woken by the time alone");
}

fn waits(cluster: &TestScheduler, name: &str) -> bool {
    cluster.audit();
    cluster.node_of(name).is_none()
}

#[test]
fn a_waiting_pod_starts_when_the_daemon_says_no_more_of_one_deleted_by_force() {
    let mut cluster = full();
    force(&mut cluster, "a");
    assert!(waits(&cluster, "b"), "its container runs still");
    names_a(&mut cluster);
    cluster.wait(30);
    assert!(waits(&cluster, "b"), "its container runs still, by the daemon's word");
    says(&mut cluster, &[]);
    cluster.settle();
    assert!(!waits(&cluster, "b"), "at once");
}

#[test]
fn a_daemon_that_was_first_counts_as_well() {
    let mut cluster = full();
    names_a(&mut cluster);
    force(&mut cluster, "a");
    cluster.wait(30);
    assert!(waits(&cluster, "b"));
    says(&mut cluster, &[("a", [].into())]);
    cluster.settle();
    assert!(!waits(&cluster, "b"), "it holds nothing any more");
}

#[test]
fn a_pod_whose_containers_have_ended_or_never_ran_frees_its_devices_at_once() {
    for phase in [Phase::Pending, Phase::Running, Phase::Succeeded] {
        let mut cluster = full();
        runs(&mut cluster, "a", phase, false);
        force(&mut cluster, "a");
        assert!(!waits(&cluster, "b"), "{phase:?}");
    }
}

#[test]
fn a_daemon_that_says_nothing_for_ten_seconds_has_seen_nothing() {
    let mut cluster = full();
    force(&mut cluster, "a");
    silence(&mut cluster, 20);
    assert!(waits(&cluster, "b"), "it may have died before");
    cluster.beat_all();
    silence(&mut cluster, 1);
    assert!(!waits(&cluster, "b"));
    let mut cluster = full();
    goes_ten_seconds_before_b(&mut cluster);
}

#[test]
fn a_daemon_that_is_away_has_ten_seconds_from_its_return() {
    let mut cluster = full();
    silence(&mut cluster, 100);
    force(&mut cluster, "a");
    silence(&mut cluster, 300);
    assert!(waits(&cluster, "b"), "no daemon looks");
    says(&mut cluster, &[]);
    silence(&mut cluster, 9);
    assert!(waits(&cluster, "b"));
    silence(&mut cluster, 1);
    assert!(!waits(&cluster, "b"));
}

#[test]
fn a_node_that_starts_again_or_goes_has_no_processes_of_before() {
    let mut cluster = full();
    force(&mut cluster, "a");
    cluster.tell_node("n");
    cluster.settle();
    assert!(waits(&cluster, "b"), "the same boot");
    cluster.change_node("n", |node| node.boot_id = "2".into());
    cluster.settle();
    assert!(!waits(&cluster, "b"));
    let mut cluster = full();
    force(&mut cluster, "a");
    cluster.event(WorldEvent::NodeGone("n".into()));
    cluster.tell_node("n");
    cluster.settle();
    assert!(!waits(&cluster, "b"));
}

#[test]
fn a_successor_of_the_same_name_waits_too() {
    let mut cluster = full();
    force(&mut cluster, "b");
    let mut again = pod("a", FOUR, cluster.now + Duration::from_secs(1));
    again.handoff.pod.uid = PodUid::new("uid-a-2");
    cluster.enters(again);
    assert!(waits(&cluster, "a"), "the deletion was not seen, its predecessor's container runs");
    names_a(&mut cluster);
    says(&mut cluster, &[]);
    cluster.settle();
    assert!(!waits(&cluster, "a"));
}

#[test]
fn a_pod_that_another_client_calls_failed_holds_its_devices_and_may_run_again() {
    let mut cluster = full();
    runs(&mut cluster, "a", Phase::Failed, true);
    assert!(waits(&cluster, "b"));
    runs(&mut cluster, "a", Phase::Running, true);
    assert!(matches!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Bound(_)));
    cluster.wait(60);
    assert!(waits(&cluster, "b"), "it is an ordinary pod again");
    // Its deletion now: a second record, not the first one's time.
    runs(&mut cluster, "a", Phase::Failed, true);
    goes_ten_seconds_before_b(&mut cluster);
}

#[test]
fn a_pod_that_another_client_calls_failed_before_it_starts_may_run() {
    let mut cluster = TestScheduler::on("n", 4);
    says(&mut cluster, &[]);
    cluster.comes("a", FOUR);
    cluster.agent_releases("n");
    runs(&mut cluster, "a", Phase::Failed, false);
    runs(&mut cluster, "a", Phase::Running, true);
    cluster.comes("b", FOUR);
    assert!(waits(&cluster, "b"), "a uses the devices");
    assert!(matches!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Bound(_)));
}

#[test]
fn a_pod_that_its_kubelet_has_refused_is_never_bound_again() {
    let mut cluster = TestScheduler::on("n", 4);
    says(&mut cluster, &[]);
    cluster.comes("a", FOUR);
    cluster.change_pod("a", |facts| (facts.handoff.phase, facts.spec.refused) = (Phase::Failed, true));
    cluster.settle();
    cluster.change_pod("a", |facts| (facts.handoff.phase, facts.spec.refused) = (Phase::Pending, false));
    cluster.settle();
    assert_eq!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Ended, "an old event");
}

#[test]
fn the_kubelets_word_that_a_failed_pod_has_stopped_is_final() {
    let mut cluster = full();
    runs(&mut cluster, "a", Phase::Failed, true);
    assert!(waits(&cluster, "b"));
    runs(&mut cluster, "a", Phase::Failed, false);
    assert!(!waits(&cluster, "b"));
    runs(&mut cluster, "a", Phase::Running, true);
    assert_eq!(cluster.world().pod_by_key(&PodKey::new("ml", "a")).unwrap().place, Place::Ended, "an old event");
}

#[test]
fn a_leaving_pod_counts_for_nothing_but_its_devices() {
    let mut cluster = full();
    force(&mut cluster, "a");
    cluster.comes_as("cpu", &[], |facts| {
        facts.spec.requests = Resources::of([("cpu", "64".parse::<Quantity>().unwrap())]);
    });
    assert!(!waits(&cluster, "cpu"));
    let id = cluster.world().node_id("n").unwrap();
    let node = cluster.world().node(id).unwrap();
    assert_eq!((cluster.world().device_pods(), node.pods.len()), (0, 1));
    let said: Vec<String> = node.leaving().map(|(pod, _)| still_used(pod)).collect();
    assert_eq!(
        said,
        ["still used by processes of ml/a, which was deleted or written as ended at 2026-11-21T02:16:40Z"]
    );
    names_a(&mut cluster);
    let node = cluster.world().node(id).unwrap();
    assert_eq!(node.leaving().map(|(pod, _)| still_used(pod)).collect::<Vec<_>>(), said, "once");
}

#[test]
fn the_explanation_names_the_pod_that_has_left() {
    let mut cluster = full();
    force(&mut cluster, "a");
    for round in 0..2 {
        let answer = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
        let words = "ml/a, which was deleted or written as ended at 2026-11-21T02:16:40Z";
        for device in answer.devices {
            assert_eq!(device.still_used, [format!("still used by processes of {words}")], "{round}");
        }
        let answer = cluster.explain(&PodKey::new("ml", "b")).unwrap();
        let nearest = answer.verdict.nearest.unwrap();
        assert_eq!(nearest, format!("n with 0 of 4 ({words}, holds 4)"));
        names_a(&mut cluster);
    }
}

/// A preemptor whose victim is deleted by force waits for the devices, and evicts no other pod.
#[test]
fn a_victim_has_left_when_its_devices_are_free() {
    let mut cluster = full();
    force(&mut cluster, "b");
    cluster.node("m", 4);
    let ranked = |cluster: &mut TestScheduler, name: &str, priority: i32| {
        cluster.comes_as(name, FOUR, |facts| facts.spec.priority = priority);
    };
    ranked(&mut cluster, "d", 5);
    assert_eq!(cluster.node_of("d"), Some("m"));
    cluster.agent_releases("m");
    ranked(&mut cluster, "high", 10);
    assert_eq!(cluster.evicted, ["a"]);
    force(&mut cluster, "a");
    names_a(&mut cluster);
    cluster.wait(120);
    assert!(waits(&cluster, "high"));
    assert_eq!(cluster.evicted, ["a"]);
    says(&mut cluster, &[]);
    cluster.settle();
    assert_eq!((cluster.node_of("high"), cluster.evicted.len()), (Some("n"), 1));
    assert_eq!(cluster.devices_of("high").of(&DeviceType::Gpu).len(), 4);
}
