//! Who is calling where the kubelet has lost ids: pods that it admits once more, and pods that it resizes.

use super::identify_tests::{one, pair, repeated, running};
use super::test_node::{TestNode, refused, served};
use super::testing::{container, grant, pod, with_assignment};
use super::*;
use crate::pod::{ContainerKind, Deletion, HandoffPod, Phase};
use baton_contract::key;

const GPU: &str = key::NVIDIA_GPU;

/// A pod that has lost its ids, and a node where a pod under admission is listed beside it.
fn beside_lost_ids(was: &HandoffPod, new: &HandoffPod) -> TestNode {
    let mut node = TestNode::new(&[was, new]).lock(new).listed(&[("was", "main", GPU, &[]), ("new", "main", GPU, &[])]);
    grant(&mut node.ledger, was, &[("main", &["GPU-3"])]);
    node.ledger.kubelet_starts();
    node
}

#[test]
fn a_container_without_its_ids_is_asked_for_while_its_pod_is_admitted_or_resized() {
    let (was, new) = (HandoffPod { phase: Phase::Running, ..one("was", "GPU-3") }, one("new", "GPU-4"));
    let up = running(was.clone(), &[true]);
    let second = jiff::SignedDuration::from_secs(1);
    let (now, registered) = (testing::LOCKED, testing::LOCKED - second);
    let cases =
        [(None, false), (Some(registered), false), (Some(now), false), (Some(now + second), false), (None, true)];
    for resizing in [true, false] {
        for runs in [true, false] {
            for (ended, is_over) in cases {
                let mut live = HandoffPod { resizing, ..running(was.clone(), &[runs]) };
                live.containers[0].ended = ended;
                // The watch may not have brought it yet.
                for watched in [&was, &up, &live] {
                    let mut node = beside_lost_ids(watched, &new);
                    node.live = vec![live.clone(), new.clone()];
                    node.ledger.registered(registered);
                    node.ledger.ends(is_over.then(|| was.pod.uid.clone()), Admission::Over);
                    let is_asked_for = resizing || !runs && !is_over && ended != Some(now);
                    match node.gpu(&["GPU-3"]) {
                        AllocateOutcome::Refuse(refusal) if is_asked_for => {
                            assert_eq!(refusal.rule, AllocateRule::Ambiguous);
                        }
                        outcome => assert_eq!((served(&outcome).0.as_str(), is_asked_for), ("new", false), "{live:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn a_pod_that_is_resized_is_asked_for_whatever_runs_and_nothing_is_over_by_that() {
    let resized = |pod: HandoffPod| HandoffPod { resizing: true, ..running(pod, &[true]) };
    let (was, waits) = (resized(one("was", "GPU-3")), HandoffPod { phase: Phase::Running, ..one("waits", "GPU-4") });
    let rows: &[(&str, &str, &str, &[&str])] = &[("was", "main", GPU, &[]), ("waits", "main", GPU, &[])];
    let node = |all: &[&HandoffPod], rows| {
        let mut node = TestNode::new(all).listed(rows);
        all.iter().for_each(|pod| grant(&mut node.ledger, pod, &[("main", &["GPU-3"])]));
        node.ledger.kubelet_starts();
        node.ledger.ends([was.pod.uid.clone()], Admission::Over);
        node
    };
    assert_eq!(repeated(&node(&[&was], &rows[..1]).gpu(&["GPU-5"])), "main");
    assert_eq!(refused(&node(&[&was, &waits], rows).gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    for is_over in [true, false] {
        let mut lagging = node(&[&HandoffPod { resizing: false, ..was.clone() }, &waits], rows);
        lagging.live = vec![was.clone(), waits.clone()];
        if !is_over {
            lagging.ledger.kubelet_starts();
        }
        assert_eq!(refused(&lagging.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous, "the watch does not show it yet");
    }
    assert_eq!(passed_by(&node(&[&was, &waits], rows).context(), &was.pod.uid), []);
    assert_eq!(passed_by(&node(&[&was, &waits], rows).context(), &waits.pod.uid), [&was].map(|of| of.pod.uid.clone()));
    // Another client has written that it had failed, and it is back without its ids: no kubelet has started.
    let new = one("new", "GPU-1");
    let mut node = TestNode::new(&[&was, &new]).lock(&new).listed(&[rows[0], ("new", "main", GPU, &[])]);
    grant(&mut node.ledger, &was, &[("main", &["GPU-3"])]);
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    // Of what was given since the kubelet started it has the ids, also of an init container, which it never lists.
    let init = pod(
        "init",
        vec![container("init", ContainerKind::Init, &[(GPU, 1)]), container("main", ContainerKind::App, &[])],
    );
    let init = HandoffPod { resizing: true, ..running(with_assignment(init, &[("init", &["GPU-0"])]), &[false, true]) };
    let new = one("new", "GPU-1");
    let mut node =
        TestNode::new(&[&init, &new]).lock(&new).listed(&[("init", "main", "", &[]), ("new", "main", GPU, &[])]);
    grant(&mut node.ledger, &init, &[("init", &["GPU-0"])]);
    assert_eq!((served(&node.gpu(&["GPU-5"])).0, node.asked_live), ("new".into(), 0));
    // One that was admitted while no plugin was known, and has its first call now.
    let late = resized(one("late", "GPU-6"));
    let mut node = TestNode::new(&[&late]).lock(&late).listed(&[("late", "main", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-5"])).0, "late");
    // Its deletion, or its end by another client's word, is on its way to the kubelet.
    let leaving = HandoffPod { deleting: Some(Deletion { at: testing::LOCKED, grace_seconds: 30 }), ..late.clone() };
    let ended = HandoffPod { phase: Phase::Failed, ..late.clone() };
    for gone in [leaving, ended] {
        for watched in [&late, &gone, &HandoffPod { resizing: false, ..gone.clone() }] {
            let mut node = TestNode::new(&[watched, &new]).lock(&new);
            node = node.listed(&[("late", "main", GPU, &[]), ("new", "main", GPU, &[])]);
            node.live = vec![gone.clone(), new.clone()];
            assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous, "{watched:?}");
        }
    }
    let [was, unseen] = [&was, &late].map(|pod| HandoffPod { resizing: false, ..pod.clone() });
    let mut lagging = TestNode::new(&[&was, &unseen]).lock(&late).listed(&[rows[0], ("late", "main", GPU, &[])]);
    grant(&mut lagging.ledger, &was, &[("main", &["GPU-3"])]);
    lagging.ledger.kubelet_starts();
    lagging.ledger.ends([was.pod.uid.clone()], Admission::Over);
    lagging.live = vec![was, late];
    assert_eq!(served(&lagging.gpu(&["GPU-5"])).0, "late", "the watch shows neither");
    // The kubelet asks for the first container that it has no ids of, or, if it admits the pod once more, for the first that waits.
    let two = HandoffPod { resizing: true, ..running(pair("two", ["GPU-0", "GPU-1"], [1, 1]), &[true, false]) };
    let mut node = TestNode::new(&[&two]).listed(&[("two", "a", GPU, &[]), ("two", "b", GPU, &[])]);
    grant(&mut node.ledger, &two, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    assert_eq!(refused(&node.gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    node = node.listed(&[("two", "a", GPU, &["GPU-5"]), ("two", "b", GPU, &[])]);
    assert_eq!(repeated(&node.gpu(&["GPU-6"])), "b");
}

#[test]
fn without_pod_resources_a_pod_that_is_resized_may_be_asking() {
    let holder = one("holder", "GPU-2");
    let was = HandoffPod { resizing: true, ..running(one("was", "GPU-3"), &[true]) };
    for resizing in [true, false] {
        let was = HandoffPod { resizing, ..was.clone() };
        let mut node = TestNode::new(&[&holder, &was]).lock(&holder);
        grant(&mut node.ledger, &was, &[("main", &["GPU-3"])]);
        node.ledger.kubelet_starts();
        match node.gpu(&["GPU-2"]) {
            AllocateOutcome::Refuse(refusal) => assert_eq!((refusal.rule, resizing), (AllocateRule::Ambiguous, true)),
            outcome => assert_eq!((served(&outcome).0.as_str(), resizing), ("holder", false)),
        }
    }
}

#[test]
fn an_init_container_before_one_with_ids_may_have_lost_its_own() {
    let gpu = [(GPU, 1)];
    let containers = vec![container("init", ContainerKind::Init, &gpu), container("main", ContainerKind::App, &gpu)];
    let p = with_assignment(pod("p", containers), &[("init", &["GPU-0"]), ("main", &["GPU-0"])]);
    let p = HandoffPod { resizing: true, ..running(HandoffPod { phase: Phase::Running, ..p }, &[false, true]) };
    let new = one("new", "GPU-2");
    let node = |starts: bool| {
        let mut node = TestNode::new(&[&p, &new]).lock(&new);
        grant(&mut node.ledger, &p, &[("init", &["GPU-0"]), ("main", &["GPU-0"])]);
        if starts {
            node.ledger.kubelet_starts();
        }
        node.listed(&[("p", "main", GPU, &["GPU-0"]), ("new", "main", GPU, &[])])
    };
    assert_eq!(refused(&node(true).gpu(&["GPU-5"])).rule, AllocateRule::Ambiguous);
    assert_eq!(served(&node(false).gpu(&["GPU-5"])).0, "new");
    let mut alone = node(true).listed(&[("p", "main", GPU, &["GPU-0"])]);
    assert_eq!(repeated(&alone.gpu(&["GPU-5"])), "init");
}
