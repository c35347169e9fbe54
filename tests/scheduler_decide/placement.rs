//! Which node, which devices, and what is said when there are none.

use std::time::Duration;

use baton::contract::inventory::{DeviceHeld, DeviceStatus, HeldBy};
use baton::contract::{DeviceType, Identity, PodKey, key};
use baton::decide::cycle::{EngineConfig, PodState};
use baton::decide::plugins::{DefaultSet, NodesWithoutAgent};
use baton::decide::world::WorldEvent;
use baton::decide::world::spec::{Taint, TaintEffect};

use crate::env::{Env, gpu_device, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

#[test]
fn a_pod_is_bound_with_its_devices_and_all_keys_in_one_binding_after_the_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", &[(key::NVIDIA_GPU, "2")]);
    env.settle();
    assert_eq!(env.node_of("a"), Some("n"));
    assert_eq!((env.lock_writes, env.binds), (1, 1));
    assert_eq!(env.holder("n"), Some("a"));
    assert_eq!(env.devices_of("a").of(&DeviceType::Gpu).len(), 2);
    let stamp = env.pods[&PodKey::new("ml", "a")].handoff.assignment.bind_timestamp.clone().unwrap();
    let lock = baton::contract::LockValue::parse(&env.locks["n"]).unwrap();
    assert!(lock.matches_bind_timestamp(&stamp));
}

#[test]
fn a_pod_without_devices_is_bound_without_a_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", &[("cpu", "1")]);
    env.settle();
    assert_eq!((env.node_of("a"), env.lock_writes, env.binds), (Some("n"), 0, 1));
}

#[test]
fn with_auto_the_lock_is_left_out_where_the_agent_identifies_exactly() {
    let config = EngineConfig { lock_mode: baton::decide::cycle::LockMode::Auto, ..EngineConfig::default() };
    for (identity, writes) in [(Identity::Exact, 0), (Identity::Lock, 1)] {
        let mut env = Env::with(config.clone(), DefaultSet::default());
        env.node("n", 8);
        env.beat("n", identity, &[key::NVIDIA_GPU]);
        env.pod("a", ONE);
        env.settle();
        assert_eq!((env.node_of("a"), env.lock_writes), (Some("n"), writes));
    }
}

#[test]
fn the_condition_counts_nodes_by_reason() {
    let mut env = Env::new();
    env.node("a", 2);
    env.node("b", 2);
    env.node("tainted", 8);
    env.plain_node("agentless", 8);
    env.change_node("tainted", |facts| {
        facts.taints.push(Taint { key: "gpu".into(), value: "reserved".into(), effect: TaintEffect::NoSchedule });
    });
    env.pod("big", &[(key::NVIDIA_GPU, "4")]);
    env.settle();
    assert_eq!(
        env.conditions["big"],
        "0/4 nodes: 2 have fewer than 4 free GPUs, 1 agent not ready, 1 taint gpu=reserved"
    );
    assert!(env.notices.contains(&("big".into(), "FailedScheduling")));
    let explained = env.engine.explain(&PodKey::new("ml", "big"), env.moment()).unwrap();
    assert_eq!((explained.state, explained.verdict.nodes.len()), (PodState::Parked, 4));
    assert!(explained.verdict.nodes.iter().any(|node| node.node == "a" && node.devices.len() == 2));
}

#[test]
fn a_parked_pod_wakes_when_devices_are_freed() {
    let mut env = Env::new();
    env.node("n", 2);
    env.pod("first", &[(key::NVIDIA_GPU, "2")]);
    env.settle();
    env.agent_releases("n");
    env.pod("second", ONE);
    env.settle();
    assert_eq!(env.node_of("second"), None);
    let attempts = env.engine.stats().attempts;
    env.change_node("n", |facts| facts.allocatable.milli_cpu += 1);
    env.settle();
    assert!(env.engine.stats().attempts <= attempts + 1);
    env.finish("first");
    env.settle();
    assert_eq!(env.node_of("second"), Some("n"));
}

#[test]
fn a_stale_agent_takes_no_device_pods_until_it_is_back() {
    let mut env = Env::new();
    env.node("n", 8);
    env.now += Duration::from_secs(90);
    env.pod("a", ONE);
    env.settle();
    assert_eq!(env.conditions["a"], "0/1 nodes: 1 agent not ready");
    env.beat("n", Identity::Lock, &[key::NVIDIA_GPU]);
    env.settle();
    assert_eq!(env.node_of("a"), Some("n"));
}

#[test]
fn a_name_that_the_agent_does_not_serve_or_the_kubelet_has_zeroed_is_named() {
    let mut env = Env::new();
    env.node("n", 8);
    env.beat("n", Identity::Lock, &[key::NVIDIA_GPU]);
    env.pod("a", &[(key::GPU_MEMORY_RATIO, "50")]);
    env.settle();
    assert_eq!(env.conditions["a"], "0/1 nodes: 1 agent does not serve koordinator.sh/gpu-memory-ratio");
    env.change_node("n", |facts| facts.allocatable.set(key::NVIDIA_GPU, baton::contract::Quantity::units(0)));
    env.pod("b", ONE);
    env.settle();
    assert_eq!(env.conditions["b"], "0/1 nodes: 1 have fewer than 1 free GPUs");
}

#[test]
fn plain_nodes_are_judged_by_allocatable_alone() {
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let mut env = Env::with(EngineConfig::default(), set);
    env.plain_node("n", 1);
    env.pod("a", ONE);
    env.pod("b", ONE);
    env.settle();
    assert_eq!((env.bound(), env.lock_writes), (1, 0), "no agent, no call, no lock");
}

#[test]
fn an_invalid_request_says_which_rule_it_breaks_and_waits_for_no_event() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", &[(key::GPU_CORE, "50")]);
    env.settle();
    assert!(env.conditions["a"].contains("gpu-core alone"), "{}", env.conditions["a"]);
    let attempts = env.engine.stats().attempts;
    env.wait(20);
    assert_eq!(env.engine.stats().attempts, attempts);
}

#[test]
fn a_gated_pod_goes_when_its_gates_are_gone() {
    let mut env = Env::new();
    env.node("n", 8);
    let mut gated = pod("a", ONE, env.now);
    gated.spec.gates.push("quota".into());
    env.submit(gated);
    env.settle();
    assert_eq!(env.node_of("a"), None);
    env.change_pod("a", |facts| facts.spec.gates.clear());
    env.settle();
    assert_eq!(env.node_of("a"), Some("n"));
}

#[test]
fn a_bound_pod_without_an_assignment_blocks_its_type_until_the_node_says_what_it_holds() {
    let mut env = Env::new();
    env.node("n", 2);
    let mut foreign = pod("foreign", ONE, env.now);
    foreign.handoff.scheduler_name = "default-scheduler".into();
    foreign.handoff.node = Some("n".into());
    env.submit(foreign);
    env.pod("a", ONE);
    env.settle();
    assert_eq!(env.conditions["a"], "0/1 nodes: 1 a pod without an assignment holds unknown gpu devices");
    let mut device = gpu_device("n", 2);
    let entry = HeldBy { name: "foreign".into(), namespace: "ml".into(), uuid: "uid-foreign".into(), minors: vec![0] };
    device.status =
        Some(DeviceStatus { allocations: vec![DeviceHeld { kind: DeviceType::Gpu, entries: vec![entry] }] });
    env.event(WorldEvent::Devices(Box::new(device)));
    env.settle();
    assert_eq!(env.devices_of("a").of(&DeviceType::Gpu)[0].minor, 1);
}

#[test]
fn an_unhealthy_device_is_never_chosen() {
    let mut env = Env::new();
    env.node("n", 2);
    let mut device = gpu_device("n", 2);
    device.spec.devices[0].health = false;
    env.event(WorldEvent::Devices(Box::new(device)));
    env.pod("a", ONE);
    env.settle();
    assert_eq!(env.devices_of("a").of(&DeviceType::Gpu)[0].minor, 1);
}

#[test]
fn gpus_are_packed_onto_the_node_that_is_fullest() {
    let mut env = Env::new();
    for name in ["a", "b", "c"] {
        env.node(name, 8);
    }
    env.pod("first", &[(key::NVIDIA_GPU, "4")]);
    env.settle();
    let home = env.node_of("first").unwrap().to_owned();
    env.agent_releases(&home);
    env.pod("second", &[(key::NVIDIA_GPU, "2")]);
    env.pod("whole", &[(key::NVIDIA_GPU, "8")]);
    env.settle();
    assert_eq!(env.node_of("second"), Some(home.as_str()));
    assert_ne!(env.node_of("whole"), Some(home.as_str()));
}

#[test]
fn exclusivity_is_what_the_pod_asked_for_when_it_was_placed() {
    let share: &[(&str, &str)] = &[(key::GPU, "30")];
    let alone = Some(r#"{"gpu":{"exclusivePolicy":"DeviceLevel"}}"#.into());
    let mut env = Env::new();
    env.node("n", 1);
    let mut first = pod("first", share, env.now);
    first.spec.wishes.hint = alone.clone();
    env.submit(first);
    env.settle();
    env.agent_releases("n");
    env.settle();
    // Whoever may edit the pod neither opens what was promised to it …
    env.change_pod("first", |facts| facts.spec.wishes.hint = None);
    env.pod("second", share);
    env.settle();
    assert_eq!((env.node_of("first"), env.node_of("second")), (Some("n"), None));
    env.delete("first");
    env.settle();
    assert_eq!(env.node_of("second"), Some("n"));
    env.agent_releases("n");
    env.settle();
    // … nor closes what it shares.
    env.change_pod("second", |facts| facts.spec.wishes.hint = alone);
    env.pod("third", share);
    env.settle();
    assert_eq!(env.node_of("third"), Some("n"));
}
