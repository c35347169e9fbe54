//! What may be served: every rule of validation, and that no device is handed out twice.

use super::prefer::{Preference, PreferenceOrder, preference};
use super::test_node::{TestNode, refused, served};
use super::testing::{container, gpu_pod, grant, id, merged, pod, share_of, whole, with_assignment, with_entries};
use super::*;
use crate::lock::LockMode;
use crate::pod::{ContainerKind, Deletion, HandoffPod};
use crate::shares::{ShareOffer, ShareTerms};
use baton_contract::allocation::{DeviceExtension, Vf};
use baton_contract::hint::{AllocateStrategy, Counting};
use baton_contract::{DeviceEntry, EventReason, Quantity, ShareIsolation, key};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const GPU: &str = key::NVIDIA_GPU;

fn one(name: &str, device: &str) -> HandoffPod {
    with_assignment(gpu_pod(name, 1), &[("main", &[device])])
}

/// `pod` under its lock, listed without devices.
fn admitted(pod: &HandoffPod) -> TestNode {
    let containers: Vec<(&str, &str, &str, &[&str])> = pod
        .containers
        .iter()
        .filter(|container| container.kind != ContainerKind::Init)
        .map(|container| (&*pod.pod.key.name, &*container.name, GPU, &[] as &[&str]))
        .collect();
    TestNode::new(&[pod]).lock(pod).listed(&containers)
}

#[track_caller]
fn rule(node: &mut TestNode, ids: &[&str]) -> AllocateRule {
    let outcome = node.gpu(ids);
    assert!(refused(&outcome).text.len() > 40, "{outcome:?}");
    refused(&outcome).rule
}

#[test]
fn a_deleting_pod_is_not_served() {
    let mut a = one("a", "GPU-0");
    a.deleting = Some(Deletion { at: jiff::Timestamp::MAX, grace_seconds: 30 });
    let outcome = admitted(&a).gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Unidentified);
    assert!(refused(&outcome).text.contains("which is deleted"), "{outcome:?}");
}

#[test]
fn an_assignment_for_another_node_is_refused_and_makes_the_lock_useless() {
    let mut a = one("a", "GPU-0");
    let text = a.assignment.container_devices.as_deref().unwrap().replace("node-a", "node-b");
    a.assignment.container_devices = Some(text.into());
    assert_eq!(rule(&mut admitted(&a), &["GPU-0"]), AllocateRule::OtherNode);
    assert!(AllocateRule::OtherNode.makes_lock_useless() && !AllocateRule::Lock.makes_lock_useless());
}

#[test]
fn a_forged_annotation_without_a_lock_is_refused() {
    for (scheduler, says) in
        [("baton-scheduler", "delete and re-create it"), ("volcano", "--scheduler-names=baton-scheduler,volcano")]
    {
        let a = HandoffPod { scheduler_name: scheduler.into(), ..one("a", "GPU-0") };
        let mut node = admitted(&a);
        node.lock = baton_contract::LockRead::Free;
        let outcome = node.gpu(&["GPU-0"]);
        assert_eq!(refused(&outcome).rule, AllocateRule::Lock);
        let text = &refused(&outcome).text;
        assert!(text.contains(says) && text.contains("--node-lock=auto"), "{text}");
    }
}

#[test]
fn a_lock_of_an_earlier_bind_does_not_count() {
    let a = one("a", "GPU-0");
    let mut rebound = a.clone();
    rebound.assignment.bind_timestamp = Some("12345".into());
    let mut node = admitted(&rebound).lock(&a);
    assert_eq!(rule(&mut node, &["GPU-0"]), AllocateRule::Lock);
}

#[test]
fn a_pod_that_the_ledger_holds_needs_no_lock_any_more() {
    let gpu = [(GPU, 1)];
    let p = pod("b", vec![container("m1", ContainerKind::App, &gpu), container("m2", ContainerKind::App, &gpu)]);
    let p = with_assignment(p, &[("m1", &["GPU-0"]), ("m2", &["GPU-1"])]);
    let mut node = TestNode::new(&[&p]).listed(&[("b", "m1", GPU, &["GPU-0"]), ("b", "m2", GPU, &[])]);
    grant(&mut node.ledger, &p, &[("m1", &["GPU-0"])]);
    assert_eq!(served(&node.gpu(&["GPU-1"])).1, "m2");
}

#[test]
fn under_auto_a_known_scheduler_must_have_placed_the_pod() {
    let a = one("a", "GPU-0");
    let auto = |pod: &HandoffPod| {
        let mut node = admitted(pod);
        node.lock = baton_contract::LockRead::Free;
        node.policy.lock = LockMode::Auto;
        node
    };
    assert_eq!(served(&auto(&a).gpu(&["GPU-0"])).2, ["GPU-0"]);
    let mut pinned = a.clone();
    pinned.scheduled_condition = false;
    assert_eq!(rule(&mut auto(&pinned), &["GPU-0"]), AllocateRule::NotScheduled);
    let mut foreign = a.clone();
    foreign.scheduler_name = "default-scheduler".into();
    assert_eq!(rule(&mut auto(&foreign), &["GPU-0"]), AllocateRule::Scheduler);
    let mut locked = auto(&foreign).lock(&foreign);
    assert_eq!(served(&locked.gpu(&["GPU-0"])).2, ["GPU-0"], "a lock of this bind is proof enough");
}

#[test]
fn a_corrupt_annotation_is_refused_whole() {
    let mut a = one("a", "GPU-0");
    a.assignment.container_devices = Some("{".into());
    assert_eq!(rule(&mut admitted(&a), &["GPU-0"]), AllocateRule::BadAssignment);
}

#[test]
fn an_assignment_that_does_not_fit_the_request_is_refused() {
    let two = with_assignment(gpu_pod("a", 2), &[("main", &["GPU-0"])]);
    assert_eq!(rule(&mut admitted(&two), &["GPU-0", "GPU-1"]), AllocateRule::Plan);
    let part = with_entries(gpu_pod("a", 1), &[("main", vec![share_of("GPU-0", 50, 50, 1)])]);
    let outcome = admitted(&part).gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Plan);
    assert!(refused(&outcome).text.contains("the assignment has a share of GPU-0"), "{outcome:?}");
}

#[test]
fn what_was_rebuilt_for_a_pod_is_not_repeated_beside_another_holder() {
    let (a, b) = (one("a", "GPU-0"), one("b", "GPU-0"));
    let mut node = admitted(&a);
    grant(&mut node.ledger, &a, &[("main", &["GPU-0"])]);
    let rebuilt = node.ledger.iter().next().cloned().unwrap();
    node.ledger.restore(LedgerEntry { answer: None, ..rebuilt });
    assert!(matches!(node.gpu(&["GPU-0"]), AllocateOutcome::Repeat { .. }));
    // The machine has started again without the kubelet's checkpoint, and the GPU with an error.
    node.inventory.devices.get_mut(&id("GPU-0")).unwrap().healthy = false;
    assert_eq!(rule(&mut node, &["GPU-0"]), AllocateRule::Unhealthy);
    let mut running = a.clone();
    running.containers[0].running = true;
    (node.live, node.live_reads) = (vec![running.clone()], LiveReads::default());
    node.pods.apply(running);
    assert!(matches!(node.gpu(&["GPU-0"]), AllocateOutcome::Repeat { .. }));
    node.inventory.devices.get_mut(&id("GPU-0")).unwrap().healthy = true;
    node.pods.apply(b.clone());
    node.live.push(b.clone());
    grant(&mut node.ledger, &b, &[("main", &["GPU-0"])]);
    assert_eq!(rule(&mut node, &["GPU-0"]), AllocateRule::NoRoom);
}

#[test]
fn an_unassigned_share_has_its_memory_as_percent_rounded_up_and_as_bytes() {
    const GIB: i64 = 1 << 30;
    let (bytes, ratio) = (|gib| (key::GPU_MEMORY, gib * GIB), |percent| (key::GPU_MEMORY_RATIO, percent));
    for (memory, total, expected) in [
        (bytes(30), 80 * GIB, Some([50, 38, 30 * GIB])),
        (bytes(40), 80 * GIB, Some([50, 50, 40 * GIB])),
        (bytes(40), 0, None),
        (ratio(25), 100 * GIB, Some([50, 25, 25 * GIB])),
    ] {
        let a = pod("a", vec![container("main", ContainerKind::App, &[(key::GPU_CORE, 50), memory])]);
        let mut node = TestNode::new(&[&a]).listed(&[("a", "main", key::GPU_CORE, &[])]);
        node.policy.unassigned = UnassignedPods::Serve;
        node.inventory.devices.get_mut(&super::testing::id("GPU-0")).unwrap().memory_bytes = Some(total);
        let ids: Vec<String> = (0..50).map(|unit| format!("GPU-0::{unit}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let outcome = node.call(key::GPU_CORE, &ids);
        let Some(expected) = expected else {
            assert_eq!(refused(&outcome).rule, AllocateRule::NoRoom, "a GPU without memory has no room");
            continue;
        };
        let AllocateOutcome::Serve(serving) = outcome else { panic!("not served: {outcome:?}") };
        let entry = &serving.entry.served[0].1;
        let amounts = [key::GPU_CORE, key::GPU_MEMORY_RATIO, key::GPU_MEMORY].map(|name| entry.amount(name));
        assert_eq!(amounts, expected, "{memory:?} of {total}");
        assert!(serving.shares);
    }
}

#[test]
fn an_unassigned_nic_is_served_by_its_percentage() {
    let a = pod("a", vec![container("main", ContainerKind::App, &[(key::RDMA, 50)])]);
    let mut node = TestNode::new(&[&a]).listed(&[("a", "main", key::RDMA, &[])]);
    node.policy.unassigned = UnassignedPods::Serve;
    let ids: Vec<String> = (0..50).map(|unit| format!("nic-1::{unit}")).collect();
    let outcome = node.call(key::RDMA, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let AllocateOutcome::Serve(serving) = outcome else { panic!("not served: {outcome:?}") };
    let entry = &serving.entry.served[0].1;
    assert_eq!((entry.id.as_str(), entry.amount(key::RDMA)), ("nic-1", 50));
}

#[test]
fn a_device_that_a_pod_of_another_node_is_assigned_is_free_here() {
    let a = gpu_pod("a", 1);
    let elsewhere = HandoffPod { node: Some("node-b".into()), ..one("b", "GPU-0") };
    let mut node = TestNode::new(&[&a, &elsewhere]).listed(&[("a", "main", GPU, &[])]);
    node.policy.unassigned = UnassignedPods::Serve;
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(served(&outcome).2, ["GPU-0"]);
    assert!(matches!(outcome, AllocateOutcome::Serve(serving) if !serving.shares));
}

/// A pod that asks for so much of a NIC and is assigned so much of `nic-0`, by these virtual functions.
fn with_nic(asked: i64, assigned: i64, vfs: Option<&[&str]>) -> HandoffPod {
    let vf = |id: &&str| Vf { minor: 0, bus_id: super::testing::id(id) };
    let extension = vfs.map(|vfs| DeviceExtension { vfs: vfs.iter().map(vf).collect() });
    let resources = [(key::RDMA.to_owned(), Quantity::units(assigned))].into();
    let nic = DeviceEntry { resources, extension, ..whole("nic-0") };
    with_entries(pod("a", vec![container("main", ContainerKind::App, &[(key::RDMA, asked)])]), &[("main", vec![nic])])
}

#[test]
fn a_whole_nic_is_a_whole_one_or_a_virtual_function_of_its_own() {
    let outcome = |pod: &HandoffPod| {
        let mut node = TestNode::new(&[pod]).lock(pod).listed(&[("a", "main", key::RDMA, &[])]);
        for (vf, nic) in [("vf-0", "nic-0"), ("vf-1", "nic-1")] {
            let mut device = node.inventory.devices[&super::testing::id(nic)].clone();
            device.parent = Some(super::testing::id(nic));
            node.inventory.devices.insert(super::testing::id(vf), device);
        }
        let call = pod.expected_calls(|_| true).next().unwrap();
        node.call(key::RDMA, &vec!["nic-0::0"; call.count as usize])
    };
    for pod in [with_nic(100, 100, None), with_nic(50, 50, None), with_nic(100, 1, Some(&["vf-0"]))] {
        assert_eq!(served(&outcome(&pod)).2, ["nic-0"]);
    }
    for pod in [with_nic(100, 50, None), with_nic(100, 50, Some(&[]))] {
        assert_eq!(refused(&outcome(&pod)).rule, AllocateRule::Plan);
    }
    let foreign = outcome(&with_nic(100, 1, Some(&["vf-1"])));
    assert_eq!(refused(&foreign).rule, AllocateRule::UnknownDevice);
    assert!(refused(&foreign).text.contains("vf-1 does not belong to nic-0"), "{foreign:?}");
}

#[test]
fn a_mig_device_is_served_with_and_without_an_assignment() {
    let a = pod("a", vec![container("main", ContainerKind::App, &[("nvidia.com/mig-1g.10gb", 1)])]);
    let part =
        DeviceEntry { resources: [("nvidia.com/mig-1g.10gb".to_owned(), Quantity::units(1))].into(), ..whole("MIG-0") };
    let a = with_entries(a, &[("main", vec![part])]);
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "main", "nvidia.com/mig-1g.10gb", &[])]);
    let mut device = node.inventory.devices[&super::testing::id("GPU-0")].clone();
    (device.parent, device.mig_profile) = (Some(super::testing::id("GPU-0")), Some("1g.10gb".into()));
    node.inventory.devices.insert(super::testing::id("MIG-0"), device);
    node.inventory.registered.insert("nvidia.com/mig-1g.10gb".into());
    assert_eq!(served(&node.call("nvidia.com/mig-1g.10gb", &["MIG-0"])).2, ["MIG-0"]);
    let unassigned = pod("b", a.containers.to_vec());
    node.pods = super::testing::pods(&[&unassigned]);
    node = node.listed(&[("b", "main", "nvidia.com/mig-1g.10gb", &[])]);
    (node.ledger, node.live, node.policy.unassigned) = (Ledger::default(), vec![unassigned], UnassignedPods::Serve);
    let outcome = node.call("nvidia.com/mig-1g.10gb", &["MIG-0"]);
    let AllocateOutcome::Serve(serving) = outcome else { panic!("not served: {outcome:?}") };
    let resources = &serving.entry.served[0].1.resources;
    assert_eq!(resources.keys().collect::<Vec<_>>(), ["nvidia.com/mig-1g.10gb"]);
}

#[test]
fn only_the_holders_of_its_devices_are_read_before_a_pod_is_refused() {
    let (a, old, other) = (one("a", "GPU-0"), one("old", "GPU-0"), one("other", "GPU-5"));
    let mut node = admitted(&a);
    for holder in [&old, &other] {
        node.pods.apply(holder.clone());
        node.live.push(holder.clone());
    }
    grant(&mut node.ledger, &old, &[("main", &["GPU-0"])]);
    grant(&mut node.ledger, &other, &[("main", &["GPU-5"])]);
    assert_eq!(rule(&mut node, &["GPU-0"]), AllocateRule::NoRoom);
    assert_eq!(node.live_reads.pods, BTreeSet::from([a.pod.key, old.pod.key]));
}

#[test]
fn an_init_container_before_one_that_has_devices_is_not_the_caller() {
    let gpu = [(GPU, 1)];
    let containers = [("init", ContainerKind::Init), ("m1", ContainerKind::App), ("m2", ContainerKind::App)];
    let a = pod("a", containers.into_iter().map(|(name, kind)| container(name, kind, &gpu)).collect());
    let a = with_assignment(a, &[("init", &["GPU-0"]), ("m1", &["GPU-0"]), ("m2", &["GPU-1"])]);
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&[("a", "m1", GPU, &["GPU-0"]), ("a", "m2", GPU, &[])]);
    assert_eq!(served(&node.gpu(&["GPU-1"])).1, "m2");
}

#[test]
fn a_preference_avoids_the_devices_of_other_pods_of_this_node_only() {
    let (a, b) = (one("a", "GPU-0"), one("b", "GPU-1"));
    let elsewhere = HandoffPod { node: Some("node-b".into()), ..one("c", "GPU-2") };
    let mut node = TestNode::new(&[&a, &b, &elsewhere]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    let named = |node: &TestNode| {
        let call = AllocateCall { resource: GPU, count: 1, ids: &[] };
        let Preference::Order(order, key) = preference(&node.context(), &call) else { panic!("reads live") };
        (order.named.iter().map(ToString::to_string).collect::<Vec<_>>(), key.is_some())
    };
    assert_eq!(named(&node), (vec!["GPU-1".to_owned()], true));
    // The caller is not known: every pod of the node is another one.
    node = node.listed(&[]);
    node.lock = baton_contract::LockRead::Free;
    node.live_reads = LiveReads::pods_and_node([]);
    assert_eq!(named(&node), (vec!["GPU-0".to_owned(), "GPU-1".to_owned()], false));
}

#[test]
fn the_rest_of_a_pods_devices_is_preferred_but_what_its_containers_hold() {
    let containers = ["one", "two", "three"].map(|name| container(name, ContainerKind::App, &[(GPU, 1)]));
    let plan: [(&str, &[&str]); 3] = [("one", &["GPU-4"]), ("two", &["GPU-5"]), ("three", &["GPU-6"])];
    let a = with_assignment(pod("a", containers.to_vec()), &plan);
    let unassigned = gpu_pod("b", 1);
    let rows: [(&str, &str, &str, &[&str]); 3] =
        [("a", "one", GPU, &["GPU-4"]), ("a", "two", GPU, &[]), ("a", "three", GPU, &[])];
    let mut node = TestNode::new(&[&a, &unassigned]).lock(&a).listed(&rows);
    grant(&mut node.ledger, &a, &[("one", &["GPU-4"])]);
    grant(&mut node.ledger, &unassigned, &[("main", &["GPU-0"])]);
    let call = AllocateCall { resource: GPU, count: 1, ids: &[] };
    let Preference::Order(order, _) = preference(&node.context(), &call) else { panic!("reads live") };
    assert_eq!(order.own.iter().map(baton_contract::DeviceId::as_str).collect::<Vec<_>>(), ["GPU-5"]);
    assert_eq!(order.rest.iter().map(baton_contract::DeviceId::as_str).collect::<Vec<_>>(), ["GPU-6"]);
    let named: Vec<_> = order.named.iter().map(baton_contract::DeviceId::as_str).collect();
    assert_eq!(named, ["GPU-0"], "a device that a pod without assignment was served, and none of its own pod");
    // Served with another device than its assignment says: it is asked for again.
    let rows: [(&str, &str, &str, &[&str]); 3] = [rows[0], rows[1], ("a", "three", GPU, &["GPU-6"])];
    let mut node = TestNode::new(&[&a]).lock(&a).listed(&rows);
    grant(&mut node.ledger, &a, &[("one", &["GPU-4"]), ("two", &["GPU-7"]), ("three", &["GPU-6"])]);
    let Preference::Order(order, key) = preference(&node.context(), &call) else { panic!("reads live") };
    assert_eq!(key, Some(EntryKey::new(&a.pod.uid, "two", GPU)));
    let own = vec![super::testing::id("GPU-7")];
    assert_eq!(order, PreferenceOrder { own, ..PreferenceOrder::default() });
}

#[test]
fn each_kind_of_refusal_has_its_code() {
    let codes = [
        (AllocateRule::ApiUnavailable, RefusalCode::Unavailable),
        (AllocateRule::NotServing, RefusalCode::Unavailable),
        (AllocateRule::Deadline, RefusalCode::DeadlineExceeded),
        (AllocateRule::NoRoom, RefusalCode::ResourceExhausted),
        (AllocateRule::Ambiguous, RefusalCode::Aborted),
        (AllocateRule::Unidentified, RefusalCode::NotFound),
        (AllocateRule::Malformed, RefusalCode::InvalidArgument),
        (AllocateRule::Ledger, RefusalCode::Internal),
        (AllocateRule::Lock, RefusalCode::FailedPrecondition),
    ];
    codes.iter().for_each(|(rule, code)| assert_eq!(rule.code(), *code, "{rule:?}"));
}

#[test]
fn a_hint_that_changes_the_meaning_of_an_amount_changes_the_expected_count() {
    let all = Counting { strategy: Some(AllocateStrategy::ApplyForAll), alone: false };
    let mut every = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0", "GPU-1", "GPU-2"])]);
    assert_eq!(rule(&mut admitted(&every), &["GPU-0"]), AllocateRule::Plan);
    every.assignment.gpus = all;
    let outcome = admitted(&every).gpu(&["GPU-0"]);
    assert_eq!(served(&outcome).2, ["GPU-0", "GPU-1", "GPU-2"]);
    let mut none = with_assignment(gpu_pod("a", 1), &[("main", &[])]);
    none.assignment.gpus = all;
    let outcome = admitted(&none).gpu(&["GPU-0"]);
    assert!(
        refused(&outcome).rule == AllocateRule::Plan && refused(&outcome).text.contains("ApplyForAll"),
        "{outcome:?}"
    );
}

#[test]
fn devices_must_exist_be_healthy_and_have_room() {
    assert_eq!(rule(&mut admitted(&one("a", "GPU-9")), &["GPU-0"]), AllocateRule::UnknownDevice);
    let a = one("a", "GPU-0");
    let mut node = admitted(&a);
    let device = node.inventory.devices.get_mut(&super::testing::id("GPU-0")).unwrap();
    (device.healthy, device.reason) = (false, Some("XID 79".into()));
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Unhealthy);
    assert!(refused(&outcome).text.contains("XID 79"));
    let other = one("other", "GPU-0");
    let mut node =
        TestNode::new(&[&a, &other]).lock(&a).listed(&[("a", "main", GPU, &[]), ("other", "main", GPU, &["GPU-5"])]);
    grant(&mut node.ledger, &other, &[("main", &["GPU-0"])]);
    let outcome = node.gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::NoRoom);
    assert!(refused(&outcome).text.contains("default/other"), "{outcome:?}");
}

#[test]
fn a_device_whose_holder_is_found_gone_by_a_live_read_is_free() {
    let (a, old) = (one("a", "GPU-0"), one("old", "GPU-0"));
    let mut node = TestNode::new(&[&a, &old]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    grant(&mut node.ledger, &old, &[("main", &["GPU-0"])]);
    node.live = vec![a.clone()];
    assert_eq!(served(&node.gpu(&["GPU-0"])).2, ["GPU-0"]);
}

#[test]
fn the_holders_of_all_devices_of_a_node_are_asked_for_at_once() {
    let gpus = ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"];
    let all = with_assignment(gpu_pod("all", 8), &[("main", &gpus)]);
    let mut node = admitted(&all);
    for gpu in gpus {
        let gone = one(&format!("gone-{gpu}"), gpu);
        grant(&mut node.ledger, &gone, &[("main", &[gpu])]);
    }
    let outcome = node.gpu(&gpus);
    assert_eq!(served(&outcome).2.len(), 8, "{outcome:?}");
    assert_eq!(node.asked_live, 1, "the API server shows none of them");
}

#[test]
fn a_device_is_free_when_its_holder_is_deleted_and_asked_for_when_only_missing() {
    let (a, old) = (one("a", "GPU-0"), one("old", "GPU-0"));
    for (deleted, asked_live) in [(true, 0), (false, 1)] {
        let mut node = TestNode::new(&[&a, &old]).lock(&a).listed(&[("a", "main", GPU, &[])]);
        grant(&mut node.ledger, &old, &[("main", &["GPU-0"])]);
        node.live = vec![a.clone()];
        if deleted {
            node.pods.remove(&old.pod.uid);
        } else {
            node.pods.replace(vec![a.clone()]);
        }
        assert_eq!((served(&node.gpu(&["GPU-0"])).2, node.asked_live), (vec!["GPU-0".to_owned()], asked_live));
    }
    // Its processes may run: the container's start waits for them. A call that fails cannot be repeated.
    let mut node = TestNode::new(&[&a, &old]).lock(&a).listed(&[("a", "main", GPU, &[])]);
    grant(&mut node.ledger, &old, &[("main", &["GPU-0"])]);
    node.pods.remove(&old.pod.uid);
    node.ledger.follow(&node.pods, &node.resources, (Duration::ZERO, jiff::Timestamp::UNIX_EPOCH));
    for resources in [node.resources.clone(), PodResources::Missing] {
        node.resources = resources;
        assert!(node.ledger.iter().any(|entry| entry.leaving().is_some()));
        let mut node = TestNode {
            ledger: node.ledger.clone(),
            resources: node.resources.clone(),
            ..TestNode::new(&[&a]).lock(&a)
        };
        assert_eq!(served(&node.gpu(&["GPU-0"])).2, ["GPU-0"]);
    }
}

#[test]
fn without_a_running_watch_a_grant_rests_on_live_reads() {
    let a = one("a", "GPU-0");
    let mut node = admitted(&a);
    node.watching = false;
    assert_eq!((served(&node.gpu(&["GPU-0"])).2, node.asked_live), (vec!["GPU-0".to_owned()], 1));
    let mut node = admitted(&a);
    node.watching = false;
    node.live.clear();
    assert_eq!(rule(&mut node, &["GPU-0"]), AllocateRule::Unidentified);
}

#[test]
fn a_lock_that_is_not_of_this_moment_shows_a_watch_that_may_be_behind() {
    let old = one("web-0", "GPU-0");
    let mut next = one("web-0", "GPU-1");
    next.pod.uid = baton_contract::PodUid::new("uid-next");
    for seconds in [-60, 60] {
        // The kubelet admits the successor of the same name, and the watch of this daemon still has the pod before it.
        let mut node = admitted(&old);
        (node.now, node.live, node.live_lock) = (
            testing::LOCKED + jiff::SignedDuration::from_secs(seconds),
            vec![next.clone()],
            Some(testing::lock_of(&next)),
        );
        assert_eq!((served(&node.gpu(&["GPU-0"])).2, node.asked_live), (vec!["GPU-1".to_owned()], 1));
    }
    assert_eq!((served(&admitted(&old).gpu(&["GPU-0"])).2, admitted(&old).asked_live), (vec!["GPU-0".to_owned()], 0));
}

#[test]
fn other_ids_than_the_assignment_are_told_or_rejected() {
    let a = one("a", "GPU-0");
    let AllocateOutcome::Serve(serving) = admitted(&a).gpu(&["GPU-7"]) else { panic!() };
    assert!(serving.mismatch && serving.notices[0].reason == EventReason::DeviceIdMismatch);
    assert_eq!(serving.entry.devices().next().unwrap().as_str(), "GPU-0");
    let mut node = admitted(&a);
    node.policy.id_mismatch = IdMismatch::Reject;
    assert_eq!(rule(&mut node, &["GPU-7"]), AllocateRule::IdMismatch);
}

#[test]
fn names_that_accompany_the_delivering_one_answer_empty_and_count_as_served() {
    let limits = [(key::GPU_CORE, 2), (key::GPU_MEMORY_RATIO, 2)];
    let p = pod("s", vec![container("main", ContainerKind::App, &limits)]);
    let p = with_entries(p, &[("main", vec![share_of("GPU-0", 2, 2, 1 << 30)])]);
    let mut node = TestNode::new(&[&p]).lock(&p).listed(&[("s", "main", key::GPU_CORE, &[])]);
    let ids = ["GPU-0::0", "GPU-0::1"];
    assert_eq!(served(&node.call(key::GPU_MEMORY_RATIO, &ids)).2, Vec::<String>::new());
    assert!(!node.ledger.fully_served(&p, &node.inventory));
    let outcome = node.call(key::GPU_CORE, &ids);
    assert_eq!(served(&outcome).2, ["GPU-0"]);
    assert!(matches!(outcome, AllocateOutcome::Serve(serving) if serving.shares && !serving.mismatch));
    assert!(node.ledger.fully_served(&p, &node.inventory));
}

#[test]
fn a_share_is_refused_where_its_limits_are_not_enforced_and_a_whole_gpu_is_not() {
    let limits = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
    let mut share = pod("s", vec![container("main", ContainerKind::App, &limits)]);
    share.assignment.shares =
        Some(Box::new(ShareTerms { provider: Some("HAMi-core".into()), ..ShareTerms::default() }));
    let terms = share.assignment.shares.clone();
    let share = with_entries(share, &[("main", vec![share_of("GPU-0", 50, 50, 1 << 30)])]);
    assert_eq!(share.assignment.shares, terms);
    let ids: Vec<String> = (0..50).map(|unit| format!("GPU-0::{unit}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut node = TestNode::new(&[&share]).lock(&share).listed(&[("s", "main", key::GPU_CORE, &[])]);
    for (isolation, unavailable, says) in [
        (ShareIsolation::None, None, "the pod asks for HAMi-core"),
        (ShareIsolation::Mps, None, "limited by MPS there"),
        (ShareIsolation::HamiCore, Some("the library is gone".into()), "cannot limit them: the library is gone"),
    ] {
        node.inventory.shares = ShareOffer { isolation, unavailable };
        let outcome = node.call(key::GPU_CORE, &ids);
        assert_eq!(refused(&outcome).rule, AllocateRule::Isolation);
        assert!(refused(&outcome).text.contains(says), "{outcome:?}");
    }
    let mut whole = one("w", "GPU-1");
    whole.assignment.shares = share.assignment.shares.clone();
    let mut other = admitted(&whole);
    other.inventory.shares = node.inventory.shares.clone();
    assert_eq!(served(&other.gpu(&["GPU-1"])).2, ["GPU-1"]);
    node.inventory.shares = ShareOffer { isolation: ShareIsolation::HamiCore, unavailable: None };
    assert_eq!(served(&node.call(key::GPU_CORE, &ids)).2, ["GPU-0"]);
}

#[test]
fn a_share_of_a_gpu_of_unknown_memory_is_refused_where_shares_have_limits() {
    let limits = [(key::GPU_CORE, 50), (key::GPU_MEMORY_RATIO, 50)];
    let ids: Vec<String> = (0..50).map(|unit| format!("GPU-0::{unit}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    // HAMi-core reads a limit of 0 as none.
    for (bytes, isolation, serves) in [
        (0, ShareIsolation::None, true),
        (0, ShareIsolation::HamiCore, false),
        ((1 << 20) - 1, ShareIsolation::Mps, false),
        (1 << 20, ShareIsolation::HamiCore, true),
    ] {
        let share = pod("s", vec![container("main", ContainerKind::App, &limits)]);
        let share = with_entries(share, &[("main", vec![share_of("GPU-0", 50, 50, bytes)])]);
        let mut node = TestNode::new(&[&share]).lock(&share).listed(&[("s", "main", key::GPU_CORE, &[])]);
        node.inventory.shares = ShareOffer { isolation, unavailable: None };
        let outcome = node.call(key::GPU_CORE, &ids);
        if serves {
            assert_eq!(served(&outcome).2, ["GPU-0"]);
        } else {
            let refusal = refused(&outcome);
            assert_eq!(refusal.rule, AllocateRule::Isolation);
            assert!(refusal.text.contains("GPU-0") && refusal.text.contains("memory"), "{}", refusal.text);
        }
    }
}

#[test]
fn a_pod_without_an_assignment_is_denied_or_served_what_is_free() {
    let (a, waiting) = (gpu_pod("a", 1), one("waiting", "GPU-1"));
    let outcome = admitted(&a).gpu(&["GPU-0"]);
    assert_eq!(refused(&outcome).rule, AllocateRule::Unassigned);
    assert!(
        refused(&outcome).text.contains("baton-scheduler")
            && refused(&outcome).text.contains("--unassigned-pods=serve")
    );
    let mut node = TestNode::new(&[&a, &waiting]).listed(&[("a", "main", GPU, &[])]);
    node.policy.unassigned = UnassignedPods::Serve;
    let outcome = node.gpu(&["GPU-1"]);
    assert!(refused(&outcome).text.contains("default/waiting"), "{outcome:?}");
    assert_eq!(served(&node.gpu(&["GPU-0"])).2, ["GPU-0"]);
    assert!(node.ledger.iter().all(|entry| !entry.assigned));
}

#[test]
fn a_pod_of_another_scheduler_with_merged_devices_only_is_served_by_the_split() {
    let mut a = one("a", "GPU-0");
    a.assignment.container_devices = None;
    a.assignment.device_allocated = Some(merged(&["GPU-5"]).print().into());
    assert_eq!(served(&admitted(&a).gpu(&["GPU-5"])).2, ["GPU-5"]);
}

#[test]
fn a_whole_gpu_and_a_share_are_told_apart() {
    assert!(room::is_whole(&baton_contract::DeviceType::Gpu, &whole("GPU-0")));
    assert!(!room::is_whole(&baton_contract::DeviceType::Gpu, &share_of("GPU-0", 0, 30, 1)));
}

proptest! {
    /// Random pods with random (also clashing) plans are admitted one after another, with random kubelet ids.
    #[test]
    fn no_device_goes_to_two_live_pods_and_every_answer_names_the_pods_own_devices(
        plans in proptest::collection::vec((0..5usize, 0..5usize), 1..8), chosen in proptest::collection::vec(0..8usize, 8),
    ) {
        let pods: Vec<HandoffPod> = plans.iter().enumerate()
            .map(|(n, (m1, m2))| {
                let gpu = [(GPU, 1)];
                let p = pod(&format!("p{n}"), vec![container("m1", ContainerKind::App, &gpu), container("m2", ContainerKind::App, &gpu)]);
                with_assignment(p, &[("m1", &[&format!("GPU-{m1}")]), ("m2", &[&format!("GPU-{m2}")])])
            })
            .collect();
        let mut node = TestNode::new(&pods.iter().collect::<Vec<_>>());
        let mut held: BTreeMap<String, String> = BTreeMap::new();
        for (n, p) in pods.iter().enumerate() {
            let name = &*p.pod.key.name;
            node.ledger.ends(pods[..n].iter().map(|p| p.pod.uid.clone()), Admission::Over);
            node = node.lock(p);
            let mut m1: Vec<String> = Vec::new();
            for id in [chosen[n], chosen[7 - n]] {
                let m1_ids: Vec<&str> = m1.iter().map(String::as_str).collect();
                node = node.listed(&[(name, "m1", GPU, &m1_ids), (name, "m2", GPU, &[])]);
                let id = format!("GPU-{id}");
                let outcome = node.gpu(&[&id]);
                if let AllocateOutcome::Serve(_) = &outcome {
                    let (who, _, devices) = served(&outcome);
                    prop_assert_eq!(&who, name);
                    let own = [format!("GPU-{}", plans[n].0), format!("GPU-{}", plans[n].1)];
                    prop_assert!(own.contains(&devices[0]));
                    prop_assert_eq!(held.insert(devices[0].clone(), who), None, "{} twice", devices[0]);
                    m1.push(id);
                } else {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_pod_made_anew_under_its_name_with_the_same_devices_is_served_every_call() {
    let limits = [(baton_contract::key::NVIDIA_GPU, 1)];
    let two = |uid: &str| {
        let containers = ["a", "b"].map(|name| container(name, ContainerKind::App, &limits)).to_vec();
        let mut pod = with_assignment(pod("web-0", containers), &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
        pod.pod.uid = baton_contract::PodUid::new(uid);
        pod
    };
    let (old, new) = (two("first"), two("second"));
    let rows =
        |first: &'static [&'static str]| [("web-0", "a", limits[0].0, first), ("web-0", "b", limits[0].0, &[][..])];
    let mut node = TestNode::new(&[&new]).lock(&new).listed(&rows(&[]));
    grant(&mut node.ledger, &old, &[("a", &["GPU-0"]), ("b", &["GPU-1"])]);
    node.pods.remove(&old.pod.uid);
    assert_eq!(served(&node.gpu(&["GPU-0"])).1, "a");
    node = node.listed(&rows(&["GPU-0"]));
    assert_eq!(served(&node.gpu(&["GPU-1"])).1, "b", "what is listed is the new pod's");
    let both = [("web-0", "a", limits[0].0, &["GPU-0"][..]), ("web-0", "b", limits[0].0, &["GPU-1"][..])];
    node = node.listed(&both);
    assert!(node.ledger.follow(&node.pods, &node.resources, (Duration::ZERO, jiff::Timestamp::UNIX_EPOCH)));
    let left = node.ledger.iter().filter(|entry| entry.leaving().is_some());
    assert_eq!(left.filter(|entry| entry.pod.uid == old.pod.uid).count(), 2, "and the old one's entries leave");
    assert!(node.ledger.of_pod(&new.pod.uid).all(|entry| entry.leaving().is_none()));
}
