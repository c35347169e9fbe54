//! Who is calling: every rule of identification, one moment on a node each.

use super::test_node::{TestNode, refused, served};
use super::testing::{container, gpu_pod, grant, lock_of, pod, with_assignment};
use super::*;
use crate::pod::{ContainerKind, Deletion, HandoffPod, Phase};
use baton_contract::{EventReason, LockRead, PodUid, key};

const GPU: &str = key::NVIDIA_GPU;

pub(super) fn one(name: &str, device: &str) -> HandoffPod {
    with_assignment(gpu_pod(name, 1), &[("main", &[device])])
}

fn how(outcome: &AllocateOutcome) -> IdentifiedBy {
    match outcome {
        AllocateOutcome::Serve(serving) => serving.how,
        AllocateOutcome::Repeat { how, .. } => *how,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_pod_that_is_listed_without_devices_and_holds_the_lock_is_calling() {
    let (a, b) = (one("a", "GPU-3"), one("b", "GPU-4"));
    let mut node = TestNode::new(&[&a, &b]).lock(&b).listed(&[("a", "main", GPU, &["GPU-3"]), ("b", "main", GPU, &[])]);
    grant(&mut node.ledger, &a, &[("main", &["GPU-3"])]);
    let outcome = node.gpu(&["GPU-4"]);
    assert_eq!(served(&outcome), ("b".into(), "main".into(), vec!["GPU-4".into()]));
    assert_eq!((how(&outcome), node.asked_live), (IdentifiedBy::Both, 0));
}

#[test]
fn two_equal_pods_bound_in_reverse_order_of_creation_get_their_own_devices() {
    let (a, b) = (one("a", "GPU-1"), one("b", "GPU-2"));
    let mut node = TestNode::new(&[&a, &b]).lock(&b).listed(&[("b", "main", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-2"])).2, ["GPU-2"]);
    node = node.lock(&a).listed(&[("b", "main", GPU, &["GPU-2"]), ("a", "main", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-7"])).2, ["GPU-1"]);
}

#[test]
fn a_caller_without_the_lock_is_refused_and_the_holder_is_not_served_in_its_place() {
    let (holder, other) = (one("holder", "GPU-0"), one("other", "GPU-1"));
    let mut node = TestNode::new(&[&holder, &other]).lock(&holder).listed(&[("other", "main", GPU, &[])]);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Lock);
    assert!(refused(&outcome).text.starts_with("pod default/other, container main, nvidia.com/gpu: "));
    assert!(node.asked_live > 0, "no refusal rests on watched state alone");
}

#[test]
fn the_lock_that_the_watch_has_not_brought_yet_is_read_live_before_refusing() {
    let a = one("a", "GPU-3");
    let mut node = TestNode::new(&[&a]).listed(&[("a", "main", GPU, &[])]);
    node.live_lock = Some(lock_of(&a));
    assert_eq!(served(&node.gpu(&["GPU-3"])).2, ["GPU-3"]);
}

#[test]
fn a_pod_that_the_watch_has_not_brought_yet_is_read_live() {
    let a = one("a", "GPU-3");
    let mut node = TestNode::new(&[]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    node.live = vec![a];
    assert_eq!(served(&node.gpu(&["GPU-3"])).2, ["GPU-3"]);
}

#[test]
fn a_same_name_predecessor_that_is_deleting_is_a_miss() {
    let mut old = one("web-0", "GPU-1");
    old.deleting = Some(Deletion { at: jiff::Timestamp::MAX, grace_seconds: 30 });
    let mut new = one("web-0", "GPU-2");
    new.pod.uid = PodUid::new("second");
    let mut node = TestNode::new(&[&old]).lock(&new).listed(&[("web-0", "main", GPU, &[])]);
    node.live = vec![new.clone()];
    let outcome = node.gpu(&["GPU-2"]);
    let AllocateOutcome::Serve(serving) = &outcome else { panic!("{outcome:?}") };
    assert_eq!(serving.entry.pod, new.pod);
}

#[test]
fn two_pods_left_are_refused_by_both_names() {
    let (a, b) = (one("a", "GPU-0"), one("b", "GPU-1"));
    let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &[]), ("b", "main", GPU, &[])];
    let mut node = TestNode::new(&[&a, &b]).lock(&a).listed(rows);
    let outcome = node.gpu(&["GPU-0"]);
    let refusal = refused(&outcome);
    assert_eq!((refusal.rule, refusal.pods.len()), (AllocateRule::Ambiguous, 2));
    let events: Vec<_> = refusal.notices().map(|notice| (notice.pod.key.name.to_string(), notice.reason)).collect();
    assert_eq!(events, ["a", "b"].map(|name| (name.to_owned(), EventReason::AmbiguousAllocate)));
    assert!(refusal.text.contains("default/a") && refusal.text.contains("default/b"));
}

#[test]
fn a_pod_whose_admission_is_over_is_not_confused_with_the_one_under_admission() {
    let (stuck, a) = (one("stuck", "GPU-0"), one("a", "GPU-1"));
    let rows: &[(&str, &str, &str, &[&str])] = &[("stuck", "main", GPU, &[]), ("a", "main", GPU, &[])];
    let mut node = TestNode::new(&[&stuck, &a]).lock(&a).listed(rows);
    node.ledger.ends([stuck.pod.uid.clone()], Admission::Over);
    assert_eq!(served(&node.gpu(&["GPU-1"])).0, "a");
}

#[test]
fn running_and_dra_backed_containers_do_not_call() {
    let (mut running, mut dra, a) = (one("running", "GPU-0"), one("dra", "GPU-1"), one("a", "GPU-2"));
    running.containers[0].running = true;
    dra.containers[0].dra_backed = vec![GPU.into()];
    let rows: &[(&str, &str, &str, &[&str])] =
        &[("running", "main", GPU, &[]), ("dra", "main", GPU, &[]), ("a", "main", GPU, &[])];
    let mut node = TestNode::new(&[&running, &dra, &a]).lock(&a).listed(rows);
    assert_eq!(served(&node.gpu(&["GPU-2"])).0, "a");
}

#[test]
fn init_containers_are_not_listed_and_come_in_the_kubelets_order() {
    let gpu = [(GPU, 1)];
    let p = pod(
        "b",
        vec![
            container("init", ContainerKind::Init, &gpu),
            container("side", ContainerKind::Sidecar, &gpu),
            container("main", ContainerKind::App, &gpu),
        ],
    );
    let p = with_assignment(p, &[("init", &["GPU-0"]), ("side", &["GPU-0"]), ("main", &["GPU-1"])]);
    let mut node = TestNode::new(&[&p]).lock(&p).listed(&[("b", "side", GPU, &[]), ("b", "main", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-0"])).1, "init");
    assert_eq!(served(&node.gpu(&["GPU-0"])).1, "side");
    node = node.listed(&[("b", "side", GPU, &["GPU-0"]), ("b", "main", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-1"])).1, "main");
}

#[test]
fn a_repetition_after_the_kubelet_lost_its_state_is_known_and_its_ids_are_recorded() {
    let a = one("a", "GPU-3");
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    node.gpu(&["GPU-3"]);
    node.lock = LockRead::Free;
    let AllocateOutcome::Repeat { key, .. } = node.gpu(&["GPU-6"]) else { panic!("not a repetition") };
    let entry = node.ledger.get(&key).unwrap();
    assert_eq!((&*entry.ids[0], entry.asked), ("GPU-6", 2));
    assert_eq!(entry.devices().next().unwrap().as_str(), "GPU-3", "the stored answer stands");
}

#[test]
fn a_successor_that_an_old_list_hides_gets_its_own_devices() {
    let old = one("a", "GPU-3");
    let mut node = TestNode::new(&[&old]).lock(&old).listed(&[("a", "main", GPU, &[])]);
    node.gpu(&["GPU-3"]);
    let mut successor = one("a", "GPU-5");
    successor.pod.uid = PodUid::new("a-second");
    (node.lock, node.live_lock) = (LockRead::Free, Some(lock_of(&successor)));
    node.live = vec![successor];
    assert_eq!(served(&node.gpu(&["GPU-5"])).2, ["GPU-5"]);
}

#[test]
fn what_seems_to_be_asked_for_once_more_may_be_a_successors_first_call() {
    let (mut runs, mut old) = (one("runs", "GPU-3"), one("a", "GPU-4"));
    runs.containers[0].running = true;
    old.phase = Phase::Failed;
    let rows: &[(&str, &str, &str, &[&str])] = &[("runs", "main", GPU, &[]), ("a", "main", GPU, &[])];
    let mut successor = one("a", "GPU-5");
    successor.pod.uid = PodUid::new("a-second");
    let mut node = TestNode::new(&[&runs, &old]).lock(&successor).listed(rows);
    grant(&mut node.ledger, &runs, &[("main", &["GPU-3"])]);
    node.ledger.kubelet_starts();
    node.live = vec![runs.clone(), successor];
    assert_eq!(served(&node.gpu(&["GPU-3"])), ("a".into(), "main".into(), vec!["GPU-5".into()]));
    // Without a successor it is the pod that is admitted once more. Names of pods that asked for nothing are not read.
    let mut cpu = pod("a", vec![container("main", ContainerKind::App, &[])]);
    cpu.phase = Phase::Failed;
    for (old, reads) in [(&old, 2), (&cpu, 1)] {
        let mut node = TestNode::new(&[&runs, old]).listed(rows);
        grant(&mut node.ledger, &runs, &[("main", &["GPU-3"])]);
        node.ledger.kubelet_starts();
        assert!(matches!(node.gpu(&["GPU-3"]), AllocateOutcome::Repeat { .. }));
        assert_eq!((node.asked_live, node.live_reads.pods.len()), (1, reads));
    }
}

#[test]
fn what_seems_asked_for_once_more_may_be_a_container_behind_one_without_a_call() {
    let mut runs = one("runs", "GPU-3");
    runs.containers[0].running = true;
    let gpus = |count| container(if count == 2 { "c0" } else { "c1" }, ContainerKind::App, &[(GPU, count)]);
    let new = with_assignment(pod("new", vec![gpus(2), gpus(1)]), &[("c0", &["GPU-4", "GPU-5"]), ("c1", &["GPU-6"])]);
    let rows: &[(&str, &str, &str, &[&str])] =
        &[("runs", "main", GPU, &[]), ("new", "c0", GPU, &[]), ("new", "c1", GPU, &[])];
    let mut node = TestNode::new(&[&runs, &new]).lock(&new).listed(rows);
    grant(&mut node.ledger, &runs, &[("main", &["GPU-3"])]);
    node.ledger.kubelet_starts();
    assert_eq!(refused(&node.gpu(&["GPU-6"])).rule, AllocateRule::Ambiguous);
}

#[test]
fn an_init_container_that_has_ended_does_not_call_beside_a_pod_under_admission() {
    let mut was = with_assignment(
        pod(
            "was",
            vec![container("init", ContainerKind::Init, &[(GPU, 1)]), container("main", ContainerKind::App, &[])],
        ),
        &[("init", &["GPU-0"])],
    );
    was.phase = Phase::Running;
    was.containers[1].running = true;
    let new = one("new", "GPU-4");
    let mut listing = testing::listing(&[("new", "main", GPU, &[])]);
    listing.pods.push(ListedPod { key: was.pod.key.clone(), containers: [("main".into(), [].into())].into() });
    let mut node = TestNode::new(&[&was, &new]).lock(&new);
    node.resources = PodResources::Listed(listing);
    grant(&mut node.ledger, &was, &[("init", &["GPU-0"])]);
    node.ledger.kubelet_starts();
    assert_eq!((served(&node.gpu(&["GPU-4"])).0, node.asked_live), ("new".into(), 0));
}

#[test]
fn a_first_call_beside_pods_that_cannot_be_calling_needs_no_read() {
    let (mut old, was, new) = (one("old", "GPU-2"), one("was", "GPU-3"), one("new", "GPU-4"));
    old.phase = Phase::Failed;
    old.deleting = Some(Deletion { at: jiff::Timestamp::MAX, grace_seconds: 30 });
    let rows: &[(&str, &str, &str, &[&str])] =
        &[("old", "main", GPU, &[]), ("was", "main", GPU, &[]), ("new", "main", GPU, &[])];
    let mut node = TestNode::new(&[&old, &was, &new]).lock(&new).listed(rows);
    // Served since the kubelet started: what it lists was read before.
    grant(&mut node.ledger, &was, &[("main", &["GPU-3"])]);
    assert_eq!((served(&node.gpu(&["GPU-4"])).0, node.asked_live), ("new".into(), 0));
    let both = with_assignment(
        pod(
            "b",
            vec![container("c0", ContainerKind::App, &[(GPU, 1)]), container("c1", ContainerKind::App, &[(GPU, 1)])],
        ),
        &[("c0", &["GPU-0"]), ("c1", &["GPU-1"])],
    );
    let rows: &[(&str, &str, &str, &[&str])] = &[("b", "c0", GPU, &["GPU-0"]), ("b", "c1", GPU, &[])];
    let mut node = TestNode::new(&[&both]).lock(&both).listed(rows);
    grant(&mut node.ledger, &both, &[("c0", &["GPU-0"])]);
    node.ledger.kubelet_starts();
    assert_eq!((served(&node.gpu(&["GPU-1"])).1, node.asked_live), ("c1".into(), 0));
}

#[test]
fn a_whole_admission_that_is_repeated_goes_through_the_containers_again() {
    let gpu = [(GPU, 1)];
    let p = pod("b", vec![container("init", ContainerKind::Init, &gpu), container("main", ContainerKind::App, &gpu)]);
    let p = with_assignment(p, &[("init", &["GPU-0"]), ("main", &["GPU-0"])]);
    let mut node = TestNode::new(&[&p]).lock(&p).listed(&[("b", "main", GPU, &[])]);
    let mut round = || match node.gpu(&["GPU-0"]) {
        AllocateOutcome::Serve(serving) => serving.entry.container.to_string(),
        AllocateOutcome::Repeat { key, .. } => format!("again {}", key.container),
        other => panic!("{other:?}"),
    };
    assert_eq!([round(), round(), round(), round()], ["init", "main", "again init", "again main"]);
}

#[test]
fn without_pod_resources_the_lock_tells_unless_another_pod_could_be_calling() {
    let (a, mut b) = (one("a", "GPU-0"), one("b", "GPU-1"));
    let mut node = TestNode::new(&[&a]).lock(&a);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!((served(&outcome).0.as_str(), how(&outcome)), ("a", IdentifiedBy::Lock));
    let mut node = TestNode::new(&[&a, &b]).lock(&a);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Ambiguous);
    b.phase = Phase::Failed;
    assert_eq!(served(&TestNode::new(&[&a, &b]).lock(&a).gpu(&["GPU-0"])).0, "a");
    let mut node = TestNode::new(&[&a]);
    assert_eq!(refused(&node.gpu(&["GPU-0"])).rule, AllocateRule::Unidentified, "neither is known");
}

#[test]
fn without_pod_resources_the_lock_tells_only_as_it_stands_now() {
    let (rejected, successor) = (one("rejected", "GPU-0"), one("successor", "GPU-1"));
    let failed = HandoffPod { phase: Phase::Failed, ..rejected.clone() };
    let mut node = TestNode::new(&[&rejected]).lock(&rejected);
    // The watch shows neither that the kubelet has rejected the holder, nor the next bind.
    (node.live_lock, node.live) = (Some(lock_of(&successor)), vec![failed, successor]);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!((served(&outcome).0.as_str(), how(&outcome)), ("successor", IdentifiedBy::Lock));
}

#[test]
fn without_pod_resources_whoever_else_may_be_asking_is_a_reason_to_refuse() {
    let holder = one("holder", "GPU-2");
    let waits = HandoffPod { phase: Phase::Pending, ..pair("other", ["GPU-0", "GPU-1"], [1, 1]) };
    let runs = |containers| running(pair("other", ["GPU-0", "GPU-1"], [1, 1]), containers);
    let deletion = Deletion { at: jiff::Timestamp::MAX, grace_seconds: 30 };
    let deleting = HandoffPod { deleting: Some(deletion), ..waits.clone() };
    let [unserved, since, before, again] =
        [(false, false, false), (true, false, false), (true, true, false), (true, true, true)];
    let cases = [
        ("it waits", Some(waits.clone()), unserved, false),
        ("it is being deleted, which its kubelet may not have read", Some(deleting), unserved, false),
        ("it was admitted without a call", Some(runs(&[true, false])), unserved, true),
        ("its kubelet has not started again", Some(waits.clone()), since, true),
        ("it waits for its start", Some(waits), before, false),
        ("one container starts again", Some(runs(&[true, false])), before, false),
        ("it runs", Some(runs(&[true, true])), before, true),
        ("its kubelet has begun to ask once more: its status is an old one", Some(runs(&[true, true])), again, false),
        ("it has left", None, since, true),
        ("it has left, and its kubelet may not have read that", None, before, false),
    ];
    for (case, other, (is_served, may_repeat, has_begun), is_identified) in cases {
        let all: Vec<&HandoffPod> = std::iter::once(&holder).chain(&other).collect();
        let mut node = TestNode::new(&all).lock(&holder);
        if is_served {
            grant(&mut node.ledger, &runs(&[]), &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
        }
        if may_repeat {
            node.ledger.kubelet_starts();
        }
        if has_begun {
            node.ledger.repeat(&EntryKey::new(&runs(&[]).pod.uid, "b", GPU), vec![]);
        }
        let outcome = node.gpu(&["GPU-2"]);
        if is_identified {
            assert_eq!(served(&outcome).0, "holder", "{case}");
            continue;
        }
        let refusal = refused(&outcome);
        assert_eq!((refusal.rule, refusal.pods.len()), (AllocateRule::Ambiguous, 2), "{case}");
        assert!(
            refusal.text.contains("default/other") && refusal.text.contains("--pod-resources-socket"),
            "{refusal:?}"
        );
    }
}

#[test]
fn without_pod_resources_a_holder_is_asked_for_once_in_the_kubelets_order() {
    let pair = HandoffPod { phase: Phase::Pending, ..pair("pair", ["GPU-0", "GPU-1"], [1, 1]) };
    let mut node = TestNode::new(&[&pair]).lock(&pair);
    assert_eq!(served(&node.gpu(&["GPU-7"])).1, "a");
    // The kubelet may ask for either where it has started again between the two calls.
    let mut restarted = TestNode { ledger: node.ledger.clone(), ..TestNode::new(&[&pair]).lock(&pair) };
    restarted.ledger.kubelet_starts();
    assert_eq!(refused(&restarted.gpu(&["GPU-7"])).rule, AllocateRule::Ambiguous);
    assert_eq!(served(&node.gpu(&["GPU-7"])).1, "b");
    assert_eq!(refused(&node.gpu(&["GPU-7"])).rule, AllocateRule::Unidentified);
    node.ledger.kubelet_starts();
    assert_eq!(
        refused(&node.gpu(&["GPU-7"])).rule,
        AllocateRule::Unidentified,
        "which of them is repeated is not known"
    );
    let runs = running(one("a", "GPU-0"), &[true]);
    assert_eq!(refused(&TestNode::new(&[&runs]).lock(&runs).gpu(&["GPU-0"])).rule, AllocateRule::Unidentified);
}

#[test]
fn a_kubelet_that_does_not_list_in_time_is_answered_with_a_refusal() {
    let a = one("a", "GPU-0");
    let mut node = TestNode::new(&[&a]).lock(&a);
    node.resources = PodResources::Silent;
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!((refused(&outcome).rule, node.asked_live), (AllocateRule::Unidentified, 0));
}

#[test]
fn served_containers_that_wait_for_their_start_cannot_be_told_apart() {
    // Both wait until processes have ended that use their devices. The kubelet has lost its checkpoint and starts one of them.
    let single = one("single", "GPU-0");
    let pair = running(pair("pair", ["GPU-1", "GPU-2"], [1, 1]), &[false, true]);
    let listed: &[(&str, &str, &str, &[&str])] =
        &[("single", "main", GPU, &[]), ("pair", "a", GPU, &[]), ("pair", "b", GPU, &[])];
    let mut node = TestNode::new(&[&single, &pair]).listed(listed);
    grant(&mut node.ledger, &single, &[("main", &["GPU-0"])]);
    grant(&mut node.ledger, &pair, &[("a", &["GPU-1"]), ("b", &["GPU-2"])]);
    node.ledger.kubelet_starts();
    let refusal = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&refusal).rule, AllocateRule::Ambiguous, "{refusal:?}");
}

#[test]
fn a_served_container_that_waits_is_not_hidden_by_one_before_it() {
    // The kubelet has lost its checkpoint and admitted both without a call. It starts each container by itself.
    let single = one("single", "GPU-0");
    let pair = running(pair("pair", ["GPU-1", "GPU-2"], [2, 1]), &[false, false]);
    let listed: &[(&str, &str, &str, &[&str])] =
        &[("single", "main", GPU, &[]), ("pair", "a", GPU, &[]), ("pair", "b", GPU, &[])];
    let mut node = TestNode::new(&[&single, &pair]).listed(listed);
    grant(&mut node.ledger, &single, &[("main", &["GPU-0"])]);
    grant(&mut node.ledger, &pair, &[("a", &["GPU-1"]), ("b", &["GPU-2"])]);
    node.ledger.kubelet_starts();
    let refusal = node.gpu(&["GPU-0"]);
    assert_eq!((refused(&refusal).rule, refused(&refusal).pods.len()), (AllocateRule::Ambiguous, 2), "{refusal:?}");
    node.live = vec![single, running(pair, &[false, true])];
    assert_eq!(repeated(&node.gpu(&["GPU-0"])), "main", "the other one runs");
}

#[test]
fn what_a_rebuilt_ledger_holds_may_be_asked_for_beside_a_pod_under_admission() {
    let (was, new) = (one("was", "GPU-3"), one("new", "GPU-4"));
    let behind = pair("was", ["GPU-2", "GPU-3"], [2, 1]);
    let behind = HandoffPod { phase: Phase::Pending, ..behind };
    for was in [was, behind] {
        for is_over in [false, true] {
            let mut node = TestNode::new(&[&was, &new]).lock(&new);
            let rows: Vec<_> = was.containers.iter().map(|of| ("was", &*of.name, GPU, &[][..])).collect();
            node = node.listed(&[&rows[..], &[("new", "main", GPU, &[])]].concat());
            node.ledger = rebuild::rebuild(testing::NODE, &node.pods, &PodListing::default(), &node.inventory);
            node.ledger.forget(&EntryKey::new(&new.pod.uid, "main", GPU));
            if is_over {
                node.ledger.ends([was.pod.uid.clone()], Admission::Refused);
                assert_eq!(served(&node.gpu(&["GPU-3"])).0, "new", "the kubelet has rejected the other one");
            } else {
                assert_eq!(refused(&node.gpu(&["GPU-3"])).rule, AllocateRule::Ambiguous);
            }
        }
    }
}

#[test]
fn a_lock_holder_that_the_kubelet_lists_with_its_devices_is_not_calling() {
    let a = one("a", "GPU-0");
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "main", GPU, &["GPU-0"])]);
    assert_eq!(refused(&node.gpu(&["GPU-1"])).rule, AllocateRule::Unidentified);
}

#[test]
fn the_pod_of_the_preference_call_just_before_is_calling() {
    let (a, b) = (one("a", "GPU-0"), one("b", "GPU-1"));
    let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &[]), ("b", "main", GPU, &[])];
    let node = TestNode::new(&[&a, &b]).lock(&b).listed(rows);
    let ids = ["GPU-1".to_owned()];
    let call = AllocateCall { resource: GPU, count: 1, ids: &ids };
    let known = EntryKey::new(&b.pod.uid, "main", GPU);
    let outcome = decide(&node.context(), &call, Some(&known));
    assert_eq!((served(&outcome).0.as_str(), how(&outcome)), ("b", IdentifiedBy::Preference));
    let mut gone = TestNode::new(&[&HandoffPod { phase: Phase::Failed, ..b.clone() }]).lock(&b).listed(&[]);
    gone.live_reads = LiveReads::pods_and_node([b.pod.key.clone()]);
    let outcome = decide(&gone.context(), &call, Some(&known));
    assert_eq!(refused(&outcome).rule, AllocateRule::Unidentified, "it has ended since");
}

#[test]
fn all_other_pods_that_the_kubelet_lists_are_admitted() {
    let (a, b, c) = (one("a", "GPU-0"), one("b", "GPU-1"), one("c", "GPU-2"));
    let rows: &[(&str, &str, &str, &[&str])] = &[("a", "main", GPU, &[]), ("b", "main", GPU, &[])];
    let node = TestNode::new(&[&a, &b, &c]).listed(rows);
    assert_eq!(passed_by(&node.context(), &b.pod.uid), [a.pod.uid]);
}

#[test]
fn a_kubelet_that_lists_no_pod_under_admission_calls_for_the_lock_holder_once() {
    let holder = one("holder", "GPU-0");
    let mut node = TestNode::new(&[&holder]).lock(&holder).listed(&[]);
    assert_eq!(served(&node.gpu(&["GPU-0"])).0, "holder");
    assert_eq!(refused(&node.gpu(&["GPU-0"])).rule, AllocateRule::Unidentified, "it would be listed by now");
}

#[test]
fn the_lock_holder_is_not_served_while_the_kubelet_admits_a_pod_that_is_gone() {
    let holder = one("holder", "GPU-0");
    let mut node = TestNode::new(&[&holder]).lock(&holder).listed(&[("gone", "main", GPU, &[])]);
    assert_eq!(refused(&node.gpu(&["GPU-0"])).rule, AllocateRule::Unidentified);
}

#[test]
fn the_number_of_ids_must_be_the_containers_limit() {
    let a = one("a", "GPU-0");
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    assert_eq!(refused(&node.gpu(&["GPU-0", "GPU-1"])).rule, AllocateRule::Unidentified);
}

#[test]
fn a_pod_of_another_node_is_never_the_caller() {
    let mut a = one("a", "GPU-0");
    a.node = Some("node-b".into());
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Unidentified);
    assert!(
        refused(&outcome).text.contains("default/a, which is deleted, has ended or is not bound to this node"),
        "{outcome:?}"
    );
}

#[test]
fn the_lock_holder_is_calling_where_a_pod_that_is_gone_lacks_nothing() {
    let holder = one("holder", "GPU-0");
    let mut node = TestNode::new(&[&holder]).lock(&holder).listed(&[("gone", "main", GPU, &["GPU-7"])]);
    assert_eq!(served(&node.gpu(&["GPU-0"])).0, "holder");
}

#[test]
fn an_invalid_request_that_came_past_the_scheduler_is_named() {
    let bad = pod("bad", vec![container("main", ContainerKind::App, &[(key::GPU_CORE, 50)])]);
    let mut node = TestNode::new(&[&bad]).listed(&[("bad", "main", key::GPU_CORE, &[])]);
    let outcome = node.call(key::GPU_CORE, &["GPU-0::1"]);
    assert!(refused(&outcome).text.contains("pod default/bad, container main"), "{outcome:?}");
    assert!(refused(&outcome).text.contains("gpu-core alone"));
    let outcome = TestNode::new(&[&bad]).listed(&[]).call(key::GPU_CORE, &["GPU-0::1"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Unidentified, "the kubelet does not list it yet");
}

/// Two containers with a GPU each, both served.
pub(super) fn pair(name: &str, devices: [&str; 2], counts: [i64; 2]) -> HandoffPod {
    let [first, second] = counts.map(|count| [(GPU, count)]);
    let p = pod(name, vec![container("a", ContainerKind::App, &first), container("b", ContainerKind::App, &second)]);
    let p = with_assignment(p, &[("a", &[devices[0]]), ("b", &[devices[1]])]);
    HandoffPod { phase: Phase::Running, ..p }
}

pub(super) fn running(mut pod: HandoffPod, containers: &[bool]) -> HandoffPod {
    let mut all: Vec<_> = pod.containers.to_vec();
    all.iter_mut().zip(containers).for_each(|(container, running)| container.running = *running);
    pod.containers = all.into();
    pod
}

pub(super) fn repeated(outcome: &AllocateOutcome) -> &str {
    let AllocateOutcome::Repeat { key, .. } = outcome else { panic!("not a repetition: {outcome:?}") };
    &key.container
}

#[test]
fn after_a_lost_checkpoint_the_restarting_container_is_the_caller() {
    let p = running(pair("p", ["GPU-0", "GPU-1"], [1, 1]), &[true, false]);
    let mut node = TestNode::new(&[&p]).listed(&[("p", "a", GPU, &[]), ("p", "b", GPU, &[])]);
    grant(&mut node.ledger, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "b");
}

#[test]
fn a_running_container_of_another_size_does_not_hide_the_restarting_one() {
    let p = running(pair("p", ["GPU-0", "GPU-1"], [2, 1]), &[true, false]);
    let mut node = TestNode::new(&[&p]).listed(&[("p", "a", GPU, &[]), ("p", "b", GPU, &[])]);
    grant(&mut node.ledger, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "b");
}

#[test]
fn after_a_lost_checkpoint_no_caller_is_guessed_between_two_pods() {
    let p = running(pair("p", ["GPU-0", "GPU-1"], [1, 1]), &[true, false]);
    let q = running(pair("q", ["GPU-2", "GPU-3"], [1, 1]), &[true, true]);
    let rows: &[(&str, &str, &str, &[&str])] =
        &[("p", "a", GPU, &[]), ("p", "b", GPU, &[]), ("q", "a", GPU, &[]), ("q", "b", GPU, &[])];
    let mut node = TestNode::new(&[&p, &q]).listed(rows);
    grant(&mut node.ledger, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    grant(&mut node.ledger, &q, &[("a", &["GPU-2"]), ("b", &["GPU-3"])]);
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
}

#[test]
fn a_pod_whose_deletion_its_kubelet_has_not_read_may_be_the_one_that_asks_again() {
    let runs = running(one("runs", "GPU-0"), &[true]);
    let late =
        HandoffPod { deleting: Some(Deletion { at: jiff::Timestamp::MAX, grace_seconds: 30 }), ..one("late", "GPU-1") };
    let asks_not = HandoffPod { containers: vec![container("main", ContainerKind::App, &[])].into(), ..late.clone() };
    let rows: &[(&str, &str, &str, &[&str])] = &[("runs", "main", GPU, &[]), ("late", "main", GPU, &[])];
    let node = |others: &[&HandoffPod]| {
        let all: Vec<&HandoffPod> = std::iter::once(&runs).chain(others.iter().copied()).collect();
        let mut node = TestNode::new(&all).listed(rows);
        grant(&mut node.ledger, &runs, &[("main", &["GPU-0"])]);
        node.ledger.kubelet_starts();
        node
    };
    // Deleted with its grace period or by force, served before or not.
    for others in [&[&late][..], &[]] {
        for is_served in [true, false] {
            for unassigned in [UnassignedPods::default(), UnassignedPods::Serve] {
                let mut node = node(others);
                node.policy.unassigned = unassigned;
                if is_served {
                    grant(&mut node.ledger, &late, &[("main", &["GPU-1"])]);
                    node.ledger.kubelet_starts();
                }
                let outcome = node.gpu(&["GPU-5"]);
                assert_eq!(refused(&outcome).rule, AllocateRule::Unidentified);
                assert!(refused(&outcome).text.contains("default/late"), "{outcome:?}");
                node = node.listed(&rows[..1]);
                assert_eq!(repeated(&node.gpu(&["GPU-5"])), "main", "the kubelet has read it");
            }
        }
    }
    assert_eq!(repeated(&node(&[&asks_not]).gpu(&["GPU-5"])), "main", "it never asks");
    // Another client writes that it has ended, and its kubelet, which lists it, has not read it: a resize is asked for until then.
    let ended = running(HandoffPod { phase: Phase::Failed, deleting: None, ..late.clone() }, &[true]);
    let resized = HandoffPod { resizing: true, ..ended.clone() };
    for is_served in [true, false] {
        let call = |ended: &HandoffPod| {
            let mut node = node(&[ended]);
            if is_served {
                grant(&mut node.ledger, ended, &[("main", &["GPU-1"])]);
                node.ledger.kubelet_starts();
            }
            node.gpu(&["GPU-5"])
        };
        assert!(refused(&call(&resized)).text.contains("default/late, which is deleted, has ended"), "{is_served}");
        assert_eq!(repeated(&call(&ended)), "main", "{is_served}");
    }
    // Beside a pod under admission too, where a container of it may start again.
    let new = one("new", "GPU-2");
    let call = |late: &HandoffPod| {
        let rows: &[(&str, &str, &str, &[&str])] = &[("late", "main", GPU, &[]), ("new", "main", GPU, &[])];
        let mut node = TestNode::new(&[late, &new]).lock(&new).listed(rows);
        grant(&mut node.ledger, late, &[("main", &["GPU-1"])]);
        node.ledger.kubelet_starts();
        node.gpu(&["GPU-5"])
    };
    assert_eq!(refused(&call(&late)).rule, AllocateRule::Ambiguous);
    // Its ledger is lost too: it may have been served.
    let mut node = TestNode::new(&[&late, &new]).lock(&new);
    node = node.listed(&[("late", "main", GPU, &[]), ("new", "main", GPU, &[])]);
    node.ledger = rebuild::rebuild(testing::NODE, &node.pods, &PodListing::default(), &node.inventory);
    node.ledger.forget(&EntryKey::new(&new.pod.uid, "main", GPU));
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    assert_eq!(served(&call(&running(late, &[true]))).0, "new", "its container runs: only the new pod can be calling");
}

#[test]
fn containers_that_all_seem_to_run_are_read_live_and_refused_rather_than_guessed() {
    let p = running(pair("p", ["GPU-0", "GPU-1"], [1, 1]), &[true, true]);
    let mut node = TestNode::new(&[&p]).listed(&[("p", "a", GPU, &[]), ("p", "b", GPU, &[])]);
    grant(&mut node.ledger, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    let outcome = node.gpu(&["GPU-5"]);
    assert_eq!((refused(&outcome).rule, refused(&outcome).pods.len()), (AllocateRule::Ambiguous, 1));
    assert!(refused(&outcome).text.contains("delete the pod"));
    node.live = vec![running(p, &[true, false])];
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "b", "the status has come");
}

#[test]
fn a_pod_admitted_without_the_plugin_is_served_at_its_second_container() {
    let p = running(pair("p", ["GPU-0", "GPU-1"], [1, 1]), &[true, false]);
    let mut node = TestNode::new(&[&p]).lock(&p).listed(&[("p", "a", GPU, &[]), ("p", "b", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-5"])), ("p".into(), "b".into(), vec!["GPU-1".into()]));
}

#[test]
fn a_container_that_an_old_status_hides_is_not_taken_for_an_unlisted_lock_holder() {
    // Both wait by its status; the first has started since.
    let p = running(pair("p", ["GPU-0", "GPU-1"], [2, 1]), &[false, false]);
    let holder = one("holder", "GPU-2");
    let rows: &[(&str, &str, &str, &[&str])] = &[("p", "a", GPU, &[]), ("p", "b", GPU, &[])];
    let mut node = TestNode::new(&[&p, &holder]).lock(&holder).listed(rows);
    grant(&mut node.ledger, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    node.ledger.kubelet_starts();
    let outcome = node.gpu(&["GPU-5"]);
    assert_eq!((refused(&outcome).rule, refused(&outcome).pods.len()), (AllocateRule::Ambiguous, 2));
    node.lock = LockRead::Free;
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "b");
}

#[test]
fn behind_a_container_without_a_call_others_of_its_pod_may_be_asked_for() {
    let p = pair("p", ["GPU-0", "GPU-1"], [2, 1]);
    let p = HandoffPod { phase: Phase::Pending, ..p };
    let runs = running(one("runs", "GPU-2"), &[true]);
    let rows: &[(&str, &str, &str, &[&str])] =
        &[("p", "a", GPU, &[]), ("p", "b", GPU, &[]), ("runs", "main", GPU, &[])];
    let mut node = TestNode::new(&[&p, &runs]).lock(&p).listed(rows);
    grant(&mut node.ledger, &runs, &[("main", &["GPU-2"])]);
    node.ledger.kubelet_starts();
    let mut rebuilt = node.ledger.clone();
    // The first container of the other one comes first, unless it was admitted while no plugin was known.
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    node.ledger.ends([p.pod.uid.clone()], Admission::Over);
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "main", "the kubelet asks for nothing of it any more");
    // By a rebuilt ledger it may be over.
    grant(&mut rebuilt, &p, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    for container in ["a", "b"] {
        let entry = rebuilt.get(&EntryKey::new(&p.pod.uid, container, GPU)).unwrap().clone();
        rebuilt.restore(LedgerEntry { state: CallState::Held, ..entry });
    }
    node.ledger = rebuilt;
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
}

#[test]
fn after_a_lost_checkpoint_an_ended_init_container_comes_before_a_restarting_one() {
    let gpu = [(GPU, 1)];
    let containers = [("init", ContainerKind::Init), ("a", ContainerKind::App), ("b", ContainerKind::App)];
    let p = pod("p", containers.map(|(name, kind)| container(name, kind, &gpu)).to_vec());
    let p = with_assignment(p, &[("init", &["GPU-0"]), ("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    let p = running(HandoffPod { phase: Phase::Running, ..p }, &[false, true, false]);
    let mut node = TestNode::new(&[&p]).listed(&[("p", "a", GPU, &[]), ("p", "b", GPU, &[])]);
    grant(&mut node.ledger, &p, &[("init", &["GPU-0"]), ("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "init");
    assert_eq!(repeated(&node.gpu(&["GPU-5"])), "b");
}

#[test]
fn a_static_pod_is_refused_with_the_reason_whatever_unassigned_pods_get() {
    for unassigned in [UnassignedPods::Deny, UnassignedPods::Serve] {
        let mut node = TestNode::new(&[]).listed(&[("static-node-a", "main", GPU, &[])]);
        node.policy.unassigned = unassigned;
        let AllocateOutcome::Refuse(refusal) = node.gpu(&["GPU-5"]) else { panic!("served") };
        assert_eq!(refusal.rule, AllocateRule::Unidentified);
        assert!(
            refusal.text.contains("default/static-node-a") && refusal.text.contains("static pod"),
            "{}",
            refusal.text
        );
    }
}
