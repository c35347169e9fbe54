//! Which node, which devices, and what is said when there are none.

use baton::contract::inventory::{DeviceHeld, HeldBy};

use crate::prelude::*;

#[test]
fn a_pod_is_bound_with_its_devices_and_all_keys_in_one_binding_after_the_lock() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.comes("a", TWO).node_of("a"), Some("n"));
    assert_eq!((cluster.lock_writes, cluster.binds), (1, 1));
    assert_eq!(cluster.holder("n"), Some("a"));
    assert_eq!(cluster.devices_of("a").of(&DeviceType::Gpu).len(), 2);
    let stamp = cluster.pods[&PodKey::new("ml", "a")].handoff.assignment.bind_timestamp.clone().unwrap();
    let lock = baton::contract::LockValue::parse(&cluster.locks["n"]).unwrap();
    assert!(lock.matches_bind_timestamp(&stamp));
}

#[test]
fn while_its_effects_wait_the_engine_lets_time_pass_and_decides_nothing() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.pod("a", ONE);
    let effects = cluster.scheduler.pass(cluster.moment());
    assert!(effects.is_empty() && cluster.bind_attempts() == 0, "{effects:?}");
    let due = |at: Option<Duration>| at.is_some_and(|at| at <= cluster.now);
    assert!(due(cluster.scheduler.next()) && !due(cluster.scheduler.next_timer()), "a decision is due, and no timer");
    assert_eq!(cluster.settled().node_of("a"), Some("n"));
}

#[test]
fn a_pod_without_devices_is_bound_without_a_lock() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("a", CPU);
    assert_eq!((cluster.node_of("a"), cluster.lock_writes, cluster.binds), (Some("n"), 0, 1));
}

#[test]
fn with_auto_the_lock_is_left_out_where_the_agent_identifies_exactly() {
    let config = Config { lock_mode: baton::decide::lock::LockMode::Auto, ..Config::default() };
    for (identity, writes) in [(Identity::Exact, 0), (Identity::Lock, 1)] {
        let mut cluster = TestScheduler::with(config.clone(), DefaultSet::default());
        cluster.node("n", 8).beat("n", identity, &[key::NVIDIA_GPU]).comes("a", ONE);
        assert_eq!((cluster.node_of("a"), cluster.lock_writes), (Some("n"), writes));
    }
}

#[test]
fn with_auto_a_lock_is_written_where_the_agent_needs_one_for_that_scheduler() {
    let config = Config { lock_mode: baton::decide::lock::LockMode::Auto, ..Config::default() };
    for (lockless, writes) in [(&["other", "baton-scheduler"][..], 0), (&["other"], 1), (&[], 1)] {
        let mut cluster = TestScheduler::with(config.clone(), DefaultSet::default());
        cluster.node("n", 8);
        let lockless = Some(lockless.iter().map(|name| (*name).to_owned()).collect());
        let exact = TestScheduler::status(Identity::Exact, &[key::NVIDIA_GPU]);
        cluster.beat_status("n", AgentStatus { lockless, exceptions: None, ..exact }).comes("a", ONE);
        assert_eq!((cluster.node_of("a"), cluster.lock_writes), (Some("n"), writes));
    }
}

#[test]
fn gpus_that_the_kubelet_offers_no_more_are_told_as_their_agents_trouble() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.node("without", 0).change_node("n", |facts| {
        let mut left = (*facts.allocatable).clone();
        left.set(key::NVIDIA_GPU, "0".parse().unwrap());
        facts.allocatable = left.into();
    });
    cluster.comes("a", ONE);
    let few = "1 has no free GPU";
    assert_eq!(
        cluster.conditions["a"],
        format!("0/2 nodes: 1 has a node daemon that is gone: the kubelet offers no nvidia.com/gpu, {few}")
    );
    cluster.later(120).settled().comes("b", ONE);
    assert_eq!(cluster.conditions["b"], cluster.conditions["a"], "however long it is gone");
    cluster.node("n", 8);
    assert_eq!(cluster.settled().node_of("a"), Some("n"));
}

#[test]
fn the_condition_counts_nodes_by_reason() {
    let mut cluster = TestScheduler::on_each(&["a", "b"], 2);
    cluster.node("tainted", 8).plain_node("agentless", 8);
    cluster.change_node("tainted", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    cluster.comes("big", FOUR);
    assert_eq!(
        cluster.conditions["big"],
        "0/4 nodes: 2 have fewer than 4 GPUs in service, 1 has no live node daemon, 1 taint gpu=reserved"
    );
    assert!(cluster.notices.contains(&("big".into(), "FailedScheduling")));
    let explained = cluster.explain(&PodKey::new("ml", "big")).unwrap();
    assert_eq!((explained.state, explained.verdict.nodes.len()), (PodState::Parked, 4));
    assert!(explained.verdict.nodes.iter().any(|node| node.node == "a" && node.devices.len() == 2));
}

#[test]
fn a_parked_pod_wakes_when_devices_are_freed() {
    let mut cluster = TestScheduler::on("n", 2);
    assert_eq!(cluster.comes("first", TWO).agent_releases("n").comes("second", ONE).node_of("second"), None);
    let attempts = cluster.stats().attempts;
    cluster.change_node("n", |facts| facts.allocatable.milli_cpu += 1);
    assert!(cluster.settled().stats().attempts <= attempts + 1);
    assert_eq!(cluster.ends("first").node_of("second"), Some("n"));
}

#[test]
fn a_stale_agent_takes_no_device_pods_until_it_is_back() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.later(90).comes("a", ONE).conditions["a"], "0/1 nodes: 1 has no live node daemon");
    let said: Vec<_> = cluster.messages.iter().filter(|(of, ..)| of == "n").collect();
    let words = "the node daemon of n has not been heard for over a minute, so no new pod gets devices there; look: ";
    assert!(matches!(&*said, [(_, "NotServed", text)] if text.starts_with(words)), "{said:?}");
    cluster.beat("n", Identity::Lock, &[key::NVIDIA_GPU]);
    assert_eq!(cluster.settled().node_of("a"), Some("n"));
    cluster.now += Duration::from_secs(30);
    cluster.beat("n", Identity::Lock, &[key::NVIDIA_GPU]);
    let said: Vec<_> = cluster.messages.iter().filter(|(of, ..)| of == "n").skip(1).collect();
    let words = "kubelet and node daemon of n serve again: new pods get devices there";
    assert!(matches!(&*said, [(_, "Served", text)] if text == words), "{said:?}");
}

/// How many events of this reason there are.
fn events(cluster: &TestScheduler, reason: &str) -> usize {
    cluster.messages.iter().filter(|(_, found, _)| *found == reason).count()
}

#[test]
fn a_node_serves_again_once_its_kubelet_is_back_too() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.change_node("n", |facts| facts.not_ready = true);
    cluster.now += Duration::from_secs(90);
    cluster.settle();
    cluster.beat("n", Identity::Lock, &[key::NVIDIA_GPU]);
    assert_eq!((events(&cluster, "NotServed"), events(&cluster, "Served")), (1, 0));
    cluster.change_node("n", |facts| facts.not_ready = false);
    assert_eq!((events(&cluster, "NotServed"), events(&cluster, "Served")), (1, 1));
}

#[test]
fn where_many_daemons_fall_silent_at_once_no_node_has_an_event() {
    for (count, written) in [(20, 20), (21, 0)] {
        let names: Vec<String> = (0..count).map(|n| format!("n{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut cluster = TestScheduler::on_each(&names, 1);
        cluster.now += Duration::from_secs(90);
        cluster.comes("a", ONE);
        assert_eq!((events(&cluster, "NotServed"), cluster.node_of("a")), (written, None), "{count} nodes");
        cluster.beat_all();
        assert_eq!(events(&cluster, "Served"), written, "{count} nodes");
    }
}

#[test]
fn a_name_that_the_agent_does_not_serve_or_the_kubelet_has_zeroed_is_named() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.beat("n", Identity::Lock, &[key::NVIDIA_GPU]).comes("a", &[(key::GPU_MEMORY_RATIO, "50")]);
    assert_eq!(
        cluster.conditions["a"],
        "0/1 nodes: 1 has a node daemon that does not serve koordinator.sh/gpu-memory-ratio"
    );
    cluster.change_node("n", |facts| facts.allocatable.set(key::NVIDIA_GPU, baton::contract::Quantity::units(0)));
    cluster.comes("b", ONE);
    assert_eq!(
        cluster.conditions["b"],
        "0/1 nodes: 1 has a node daemon that is gone: the kubelet offers no nvidia.com/gpu"
    );
}

#[test]
fn plain_nodes_are_judged_by_allocatable_alone() {
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let mut cluster = TestScheduler::with(Config::default(), set);
    cluster.plain_node("n", 1).pod("a", ONE).comes("b", ONE);
    assert_eq!((cluster.bound(), cluster.lock_writes), (1, 0), "no agent, no call, no lock");
}

#[test]
fn an_invalid_request_says_which_rule_it_breaks_and_waits_for_no_event() {
    let mut cluster = TestScheduler::on("n", 8);
    tells(&cluster.comes("a", &[(key::GPU_CORE, "50")]).conditions["a"], ["gpu-core alone"]);
    let attempts = cluster.stats().attempts;
    assert_eq!(cluster.after(20).stats().attempts, attempts);
}

#[test]
fn a_bound_pod_without_an_assignment_blocks_its_type_until_the_node_reports() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.says_nothing("n");
    cluster.pod_as("foreign", ONE, |facts| {
        facts.handoff.scheduler_name = "default-scheduler".into();
        facts.handoff.node = Some("n".into());
    });
    cluster.comes("a", ONE);
    assert_eq!(cluster.conditions["a"], "0/1 nodes: 1 which gpu devices another pod holds or waits for is not known");
    let node = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    let says = "takes no new pods with devices: GPUs: which gpu devices another pod holds or waits for is not known";
    assert!(!node.takes_devices && node.message == says && node.advice.is_some(), "{}", node.message);
    let closed = cluster.queue_report().closed.remove(0);
    assert!(closed.kind == Some(DeviceType::Gpu) && says.ends_with(&closed.why), "{closed:?}");
    let mut device = gpu_device("n", 2);
    let entry = HeldBy { name: "foreign".into(), namespace: "ml".into(), uuid: "uid-foreign".into(), minors: vec![0] };
    device.status = Some(DeviceStatus {
        allocations: vec![DeviceHeld { kind: DeviceType::Gpu, entries: vec![entry] }],
        ..DeviceStatus::default()
    });
    cluster.event(WorldEvent::Devices(Box::new(device)));
    assert_eq!(cluster.settled().devices_of("a").of(&DeviceType::Gpu)[0].minor, 1);
}

#[test]
fn gpus_are_packed_onto_the_node_that_is_fullest() {
    let mut cluster = TestScheduler::on_each(&["a", "b", "c"], 8);
    cluster.comes("first", FOUR);
    let home = cluster.node_of("first").unwrap().to_owned();
    cluster.agent_releases(&home).pod("second", TWO).comes("whole", &[(key::NVIDIA_GPU, "8")]);
    assert_eq!(cluster.node_of("second"), Some(home.as_str()));
    assert_ne!(cluster.node_of("whole"), Some(home.as_str()));
}

#[test]
fn exclusivity_is_what_the_pod_asked_for_when_it_was_placed() {
    let share: &[(&str, &str)] = &[(key::GPU, "30")];
    let alone = Some(r#"{"gpu":{"exclusivePolicy":"DeviceLevel"}}"#.into());
    let mut cluster = TestScheduler::on("n", 1);
    cluster.comes_as("first", share, |facts| facts.spec.wishes.hint = alone.clone()).serves("n");
    // A user who may edit the pod neither opens what was promised to it …
    cluster.change_pod("first", |facts| facts.spec.wishes.hint = None).comes("second", share);
    assert_eq!(cluster.nodes_of(["first", "second"]), [Some("n"), None]);
    assert_eq!(cluster.goes("first").node_of("second"), Some("n"));
    cluster.serves("n");
    // … nor closes what it shares.
    cluster.change_pod("second", |facts| facts.spec.wishes.hint = alone).comes("third", share);
    assert_eq!(cluster.node_of("third"), Some("n"));
}

#[test]
fn a_gated_pod_is_left_in_peace_and_told_of_where_somebody_asks() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.comes_as("gated", ONE, |facts| facts.spec.gates = vec!["kueue.x-k8s.io/admission".into()]);
    assert!(!cluster.conditions.contains_key("gated"), "its condition SchedulingGated is the API server's");
    let queued = cluster.queue_report().items;
    assert_eq!(queued[0].rules, ["SchedulingGates"]);
    assert!(queued[0].message.contains("kueue.x-k8s.io/admission"), "{queued:?}");
    cluster.change_pod("gated", |facts| facts.spec.gates.clear());
    assert_eq!(cluster.settled().node_of("gated"), Some("n"));
}

#[test]
fn what_a_bound_pod_holds_is_what_its_first_version_says() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.comes("first", ONE).serves("n");
    let other = i32::from(cluster.devices_of("first").of(&DeviceType::Gpu)[0].minor == 0);
    for text in [None, Some(format!(r#"{{"gpu":[{{"minor":{other},"id":"GPU-n-{other}","resources":{{}}}}]}}"#))] {
        cluster.change_pod("first", |facts| facts.handoff.assignment.device_allocated = text.map(Into::into));
        cluster.settle();
    }
    assert_eq!(cluster.comes("second", ONE).node_of("second"), Some("n"));
    assert_eq!(cluster.devices_of("second").of(&DeviceType::Gpu)[0].minor, other);
}

#[test]
fn an_annotation_on_a_pod_that_asks_for_nothing_holds_nothing() {
    let mut cluster = TestScheduler::on("n", 1);
    let mut forged = pod("forged", &[("cpu", "1")], cluster.now);
    forged.handoff.node = Some("n".into());
    let device = gpu_device("n", 1).spec.devices[0].id.clone();
    let text = format!(r#"{{"gpu":[{{"minor":0,"id":"{device}","resources":{{"koordinator.sh/gpu-core":"100"}}}}]}}"#);
    forged.handoff.assignment.device_allocated = Some(text.into());
    assert_eq!(cluster.submit(forged).comes("real", ONE).node_of("real"), Some("n"));
}

#[test]
fn an_absurd_request_leaves_the_nodes_accounts_as_they_were() {
    let mut cluster = TestScheduler::on("n", 0);
    cluster.comes("large", &[("cpu", "60")]);
    cluster.pod_as("absurd", &[("cpu", "10P")], |facts| facts.handoff.node = Some("n".into()));
    assert_eq!(cluster.comes("small", &[("cpu", "8")]).node_of("small"), None);
    assert_eq!(cluster.goes("absurd").after(2).node_of("small"), None, "60 of 64 are in use");
    assert_eq!(cluster.goes("large").node_of("small"), Some("n"));
}

#[test]
fn a_live_read_that_comes_after_the_deletion_brings_no_pod_back() {
    let mut cluster = TestScheduler::on("n", 1);
    assert_eq!(cluster.comes("gone", ONE).node_of("gone"), Some("n"));
    cluster.serves("n");
    let read = cluster.pods.values().next().unwrap().clone();
    cluster.delete("gone").event(WorldEvent::PodRead(Box::new(read))).comes("other", ONE);
    assert_eq!(cluster.node_of("other"), Some("n"));
}

/// It is made and deleted while the watch is down, so that the list after that lacks it and no deletion is ever shown.
#[test]
fn a_pod_that_only_a_live_read_shows_does_not_stay() {
    let mut cluster = TestScheduler::on("n", 1);
    let mut brief = pod("brief", ONE, cluster.now);
    brief.handoff.node = Some("n".into());
    brief.handoff.assignment.device_allocated =
        Some(r#"{"gpu":[{"id":"GPU-n-0","minor":0,"resources":{"koordinator.sh/gpu-core":"100"}}]}"#.into());
    assert_eq!(cluster.event(WorldEvent::PodRead(Box::new(brief))).comes("other", ONE).node_of("other"), Some("n"));
}

#[test]
fn what_if_takes_priority_and_policy_from_the_clusters_classes() {
    use baton::decide::tyjob::placement::PriorityClassFacts;
    let mut cluster = TestScheduler::new();
    for (name, value, default, never_preempts) in [("gold", 1000, false, true), ("base", 7, true, false)] {
        cluster.event(WorldEvent::PriorityClass(name.into(), PriorityClassFacts { value, default, never_preempts }));
    }
    let world = cluster.world();
    assert_eq!(world.admit_priority(Some("gold"), None, None), Ok((1000, true)));
    assert_eq!(world.admit_priority(None, None, None), Ok((7, false)));
    assert_eq!(world.admit_priority(None, Some(3), Some(true)), Ok((3, true)));
    assert_eq!(world.admit_priority(Some("system-node-critical"), None, None), Ok((2_000_001_000, false)));
    assert!(world.admit_priority(Some("lead"), None, None).unwrap_err().contains("no PriorityClass with name lead"));
    assert!(world.admit_priority(Some("gold"), Some(1), None).unwrap_err().contains("gives 1000"));
    assert!(world.admit_priority(Some("gold"), None, Some(false)).is_err());
}
