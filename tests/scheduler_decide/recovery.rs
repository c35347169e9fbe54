//! Locks that stand when nobody pursues them: crashes, dangling, expired and strange ones.

use baton::contract::{PodKey, key};

use crate::env::{Env, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const T: &str = "2026-11-21T02:00:00.000000001Z";

#[test]
fn a_scheduler_killed_between_lock_and_bind_resumes_under_the_same_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.node("other", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.settle();
    let lock = env.held.pop().unwrap();
    env.hold = false;
    env.engine.lead(false, env.moment());
    env.perform(vec![lock]);
    let (node, value) = env.locks.first_key_value().map(|(n, v)| (n.clone(), v.clone())).unwrap();
    env.restart();
    env.settle();
    assert_eq!(env.node_of("a"), Some(node.as_str()));
    assert_eq!((env.locks[&node].clone(), env.lock_writes), (value, 1), "the same lock, written once");
    assert_eq!(env.engine.stats().resumed, 1);
}

#[test]
fn a_lock_of_ours_that_cannot_be_resumed_goes_after_half_a_minute() {
    let mut env = Env::new();
    env.node("n", 1);
    env.pod("big", &[(key::NVIDIA_GPU, "2")]);
    env.settle();
    env.set_lock("n", &format!("{T},ml,big,uid-big"));
    env.settle();
    env.wait(25);
    assert_eq!(env.holder("n"), Some("big"));
    env.wait(10);
    assert_eq!(env.holder("n"), None);
}

#[test]
fn a_lock_of_another_schedulers_unbound_pod_is_left_until_it_expires() {
    let mut env = Env::new();
    env.node("n", 8);
    let mut foreign = pod("foreign", ONE, env.now);
    foreign.handoff.scheduler_name = "other".into();
    env.submit(foreign);
    // Written as of now: a lock that is old by its own words would be expired at first sight.
    let time = crate::env::wall(env.now);
    env.set_lock("n", &format!("{time:.9},ml,foreign,uid-foreign"));
    env.pod("a", ONE);
    env.wait(299);
    assert_eq!((env.holder("n"), env.node_of("a")), (Some("foreign"), None));
    env.wait(2);
    assert_eq!(env.node_of("a"), Some("n"));
}

#[test]
fn the_lock_of_a_pod_that_does_not_exist_is_taken_over_after_a_live_read() {
    let mut env = Env::new();
    env.node("n", 8);
    env.set_lock("n", &format!("{T},ml,ghost,uid-ghost"));
    env.pod("a", ONE);
    env.settle();
    assert_eq!((env.node_of("a"), env.holder("n")), (Some("n"), Some("a")));
}

#[test]
fn the_lock_of_a_pod_that_our_watch_has_not_shown_yet_is_respected() {
    let mut env = Env::new();
    env.node("n", 8);
    let mut foreign = pod("new", ONE, env.now);
    foreign.handoff.scheduler_name = "other".into();
    env.pods.insert(PodKey::new("ml", "new"), foreign);
    let time = crate::env::wall(env.now);
    env.set_lock("n", &format!("{time:.9},ml,new,uid-new"));
    env.pod("a", ONE);
    env.settle();
    assert_eq!((env.holder("n"), env.node_of("a")), (Some("new"), None));
}

#[test]
fn dangling_locks_go_even_when_nobody_waits_for_the_node() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", ONE);
    env.settle();
    env.finish("a");
    env.settle();
    assert_eq!(env.holder("n"), None, "ended");
    env.set_lock("n", &format!("{T},ml,ghost,uid-ghost"));
    env.settle();
    assert_eq!(env.locks.get("n"), None, "never existed");
}

#[test]
fn an_expired_holder_is_fenced_before_its_lock_is_taken_over() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("stuck", ONE);
    env.settle();
    env.pod("next", ONE);
    env.wait(290);
    assert!(env.fenced.is_empty());
    env.wait(15);
    assert!(env.fenced.contains("stuck"));
    assert_eq!(env.engine.stats().fenced, 1);
    env.wait(1);
    env.delete("stuck");
    env.settle();
    assert_eq!(env.holder("n"), Some("next"));
}

#[test]
fn a_malformed_lock_is_an_unknown_holder_for_five_minutes() {
    let mut env = Env::new();
    env.node("n", 8);
    env.set_lock("n", "gibberish");
    env.pod("a", ONE);
    env.wait(299);
    assert_eq!(env.node_of("a"), None);
    env.wait(2);
    assert_eq!((env.node_of("a"), env.holder("n")), (Some("n"), Some("a")));
}

#[test]
fn after_a_restart_bound_pods_hold_their_devices() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", &[(key::NVIDIA_GPU, "7")]);
    env.settle();
    env.agent_releases("n");
    env.restart();
    env.pod("b", &[(key::NVIDIA_GPU, "2")]);
    env.settle();
    assert_eq!(env.conditions["b"], "0/1 nodes: 1 have fewer than 2 free GPUs");
    env.pod("c", ONE);
    env.settle();
    assert_eq!(env.node_of("c"), Some("n"));
}

#[test]
fn a_leader_that_lost_and_regained_its_lease_goes_on_with_pods_that_were_in_flight() {
    let mut env = Env::new();
    env.node("n", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.pod("b", ONE);
    env.settle();
    assert_eq!(env.engine.flights().len(), 2);
    env.held.clear();
    env.hold = false;
    env.engine.lead(false, env.moment());
    env.lead();
    env.settle();
    assert_eq!((env.node_of("a"), env.node_of("b")), (Some("n"), None));
    env.agent_releases("n");
    env.settle();
    assert_eq!(env.node_of("b"), Some("n"));
}

#[test]
fn a_resumed_bind_goes_before_pods_that_would_wait_for_its_own_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    // A scheduler died between the lock and the bind of the younger of two pods.
    env.pod("older", ONE);
    let mut younger = pod("younger", ONE, env.now + std::time::Duration::from_secs(5));
    younger.handoff.scheduler_name = crate::env::OURS.into();
    env.pods.insert(PodKey::new("ml", "younger"), younger);
    let time = crate::env::wall(env.now);
    env.locks.insert("n".into(), format!("{time:.9},ml,younger,uid-younger"));
    env.now += std::time::Duration::from_secs(7);
    env.restart();
    env.settle();
    assert_eq!((env.node_of("younger"), env.node_of("older")), (Some("n"), None));
    let bound = &env.pods[&PodKey::new("ml", "younger")].handoff.assignment.bind_timestamp;
    assert_eq!(bound.as_deref(), Some(time.as_nanosecond().to_string().as_str()), "bound under the lock's own time");
    env.agent_releases("n");
    env.settle();
    assert_eq!(env.node_of("older"), Some("n"));
}
