//! The node's line, and binds that do not go well.

use baton::contract::{PodKey, PodRef, key};

use baton::decide::lock::{ExpiredHolder, LockPolicy};
use baton::decide::scheduler::EngineConfig;
use baton::decide::scheduler::rules::plugins::DefaultSet;

use crate::env::{Env, Fault, pod};

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const EIGHTH: &[(&str, &str)] = &[(key::GPU, "10")];

#[test]
fn sixteen_pods_on_one_node_go_one_after_the_other_first_come_first_served() {
    let mut env = Env::new();
    env.node("n", 8);
    for at in 0..16 {
        env.pod(&format!("p{at:02}"), EIGHTH);
    }
    env.settle();
    for at in 0..16 {
        let name = format!("p{at:02}");
        assert_eq!((env.holder("n"), env.bound()), (Some(name.as_str()), at + 1));
        env.agent_releases("n");
    }
    assert_eq!((env.lock_writes, env.binds), (16, 16), "no retries");
}

#[test]
fn how_long_each_pod_waited_for_the_lock_is_told_once() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.settle();
    env.wait(7);
    env.agent_releases("n");
    assert_eq!(env.holder("n"), Some("second"));
    let mut waits: Vec<u64> = env.engine.take_lock_waits().iter().map(std::time::Duration::as_secs).collect();
    waits.sort_unstable();
    assert_eq!(waits, [0, 7]);
    assert!(env.engine.take_lock_waits().is_empty());
}

#[test]
fn a_higher_priority_goes_first_in_the_line() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("low", ONE);
    let mut high = pod("high", ONE, env.now);
    high.spec.priority = 10;
    env.submit(high);
    env.settle();
    env.agent_releases("n");
    assert_eq!(env.holder("n"), Some("high"));
    env.agent_releases("n");
    assert_eq!(env.holder("n"), Some("low"));
}

#[test]
fn a_lost_answer_to_the_lock_is_found_to_be_success() {
    let mut env = Env::new();
    env.node("n", 8);
    env.lock_faults.push_back(Fault::LostAnswer);
    env.pod("a", ONE);
    env.settle();
    env.wait(1);
    assert_eq!((env.node_of("a"), env.binds), (Some("n"), 1));
}

#[test]
fn a_lost_answer_to_the_binding_is_found_to_be_success() {
    let mut env = Env::new();
    env.node("n", 8);
    env.bind_faults.push_back(Fault::LostAnswer);
    env.pod("a", ONE);
    env.settle();
    env.wait(1);
    assert_eq!((env.node_of("a"), env.holder("n"), env.engine.flights().len()), (Some("n"), Some("a"), 0));
    assert_eq!(env.engine.stats().bound, 1);
}

#[test]
fn errors_that_pass_keep_the_node_and_the_reservation() {
    let mut env = Env::new();
    env.node("n", 1);
    env.lock_faults.push_back(Fault::Fails);
    env.bind_faults.extend([Fault::Fails, Fault::Fails]);
    env.pod("a", ONE);
    env.pod("b", ONE);
    env.settle();
    env.wait(3);
    assert_eq!((env.node_of("a"), env.node_of("b")), (Some("n"), None));
}

#[test]
fn a_final_failure_releases_the_lock_and_the_room_and_the_pod_is_tried_again() {
    let mut env = Env::new();
    env.node("n", 1);
    env.bind_faults.push_back(Fault::Refused);
    env.pod("a", ONE);
    env.settle();
    assert_eq!((env.holder("n"), env.node_of("a")), (None, None));
    assert!(env.notices.contains(&("a".into(), "FailedBinding")));
    env.wait(2);
    assert_eq!(env.node_of("a"), Some("n"));
}

#[test]
fn a_bind_that_fails_for_a_minute_is_given_up_and_its_lock_released() {
    let mut env = Env::new();
    env.node("n", 1);
    env.bind_faults.extend(std::iter::repeat_n(Fault::Fails, 22));
    env.pod("a", ONE);
    env.settle();
    env.wait(59);
    assert_eq!(env.holder("n"), Some("a"));
    env.wait(90);
    assert_eq!((env.node_of("a"), env.engine.stats().bind_failures), (Some("n"), 1));
}

#[test]
fn time_in_the_line_of_a_node_is_no_time_of_trouble() {
    let mut env = Env::new();
    env.node("n", 8);
    env.lock_faults.push_back(Fault::Fails);
    env.pod("a", ONE);
    env.settle();
    // While it pauses, a more important one takes the lock, whose call comes late.
    let mut high = pod("high", ONE, env.now);
    high.spec.priority = 10;
    env.submit(high);
    env.settle();
    assert_eq!((env.holder("n"), env.node_of("a")), (Some("high"), None));
    env.wait(65);
    assert_eq!(env.holder("n"), Some("high"));
    env.lock_faults.push_back(Fault::Fails);
    env.agent_releases("n");
    env.wait(2);
    assert_eq!((env.node_of("a"), env.engine.stats().bind_failures), (Some("n"), 0));
}

#[test]
fn a_pod_deleted_while_its_lock_is_written_leaves_no_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.settle();
    env.delete("a");
    env.deliver();
    env.settle();
    assert_eq!((env.holder("n"), env.engine.flights().len(), env.binds), (None, 0, 0));
}

#[test]
fn a_pod_deleted_between_lock_and_bind_leaves_no_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.settle();
    // The lock is written, the Binding is on its way when the pod goes.
    let lock = env.held.pop().unwrap();
    env.hold = false;
    env.bind_faults.push_back(Fault::Fails);
    env.perform(vec![lock]);
    assert_eq!(env.holder("n"), Some("a"));
    env.delete("a");
    env.wait(1);
    assert_eq!((env.holder("n"), env.engine.flights().len()), (None, 0));
}

#[test]
fn a_pod_deleted_between_bind_and_allocate_leaves_no_lock() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("a", ONE);
    env.settle();
    assert_eq!((env.node_of("a"), env.holder("n")), (Some("n"), Some("a")));
    env.delete("a");
    env.settle();
    assert_eq!(env.holder("n"), None, "released at once");
}

#[test]
fn a_pod_bound_by_another_scheduler_meanwhile_is_left_alone_and_our_lock_goes() {
    let mut env = Env::new();
    env.node("n", 8);
    env.node("m", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.settle();
    env.pods.get_mut(&PodKey::new("ml", "a")).unwrap().handoff.node = Some("m".into());
    env.deliver();
    env.settle();
    assert_eq!((env.node_of("a"), env.holder("n"), env.holder("m")), (Some("m"), None, None));
    assert_eq!(env.engine.flights().len(), 0);
}

#[test]
fn a_recreated_pod_is_not_bound_in_place_of_the_old_one() {
    let mut env = Env::new();
    env.node("n", 8);
    env.hold = true;
    env.pod("a", ONE);
    env.settle();
    let mut anew = pod("a", ONE, env.now);
    anew.handoff.pod = PodRef::new("ml", "a", "uid-new");
    env.pods.insert(PodKey::new("ml", "a"), anew);
    env.deliver();
    env.settle();
    env.tell_pod(&PodKey::new("ml", "a"));
    env.settle();
    assert_eq!((env.node_of("a"), env.holder("n")), (Some("n"), Some("a")));
    assert!(env.locks["n"].ends_with("uid-new"));
}

#[test]
fn waiting_pods_are_chosen_anew_when_the_agent_goes_stale() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.pod("second", ONE);
    env.settle();
    assert_eq!(env.engine.flights().len(), 1);
    env.now += std::time::Duration::from_secs(90);
    env.settle();
    assert_eq!(env.engine.flights().len(), 0);
    assert_eq!(env.conditions["second"], "0/1 nodes: 1 agent not ready");
}

#[test]
fn what_another_scheduler_bound_is_read_before_its_devices_are_given_again() {
    let mut env = Env::new();
    env.node("n", 1);
    let mut theirs = pod("theirs", ONE, env.now);
    theirs.handoff.scheduler_name = "other".into();
    env.submit(theirs);
    let time = crate::env::wall(env.now);
    env.set_lock("n", &format!("{time:.9},ml,theirs,uid-theirs"));
    env.pod("ours", ONE);
    env.settle();
    // They bind GPU 0 and the agent releases; our node watch is ahead of our pod watch.
    let facts = env.pods.get_mut(&PodKey::new("ml", "theirs")).unwrap();
    facts.handoff.node = Some("n".into());
    facts.handoff.assignment.device_allocated =
        Some(r#"{"gpu":[{"minor":0,"id":"GPU-n-0","resources":{"koordinator.sh/gpu-core":"100"}}]}"#.into());
    env.agent_releases("n");
    env.settle();
    assert_eq!((env.node_of("ours"), env.binds, env.holder("n")), (None, 0, None));
    assert_eq!(env.conditions["ours"], "0/1 nodes: 1 have fewer than 1 free GPUs");
}

fn waits(env: &Env, name: &str) -> Option<(&'static str, String)> {
    Some((*env.reasons.get(name)?, env.conditions[name].clone()))
}

#[test]
fn who_waits_for_a_lock_that_stands_is_told_whose_it_is_since_when_and_what_ends_it() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.wait(4);
    assert_eq!(waits(&env, "second"), None, "most locks go within moments");
    env.wait(2);
    let text = "goes to node n and waits for its lock, held by pod ml/first since 2026-11-21T02:16:40Z: it goes when that pod has \
                its devices; if it still stands at 2026-11-21T02:21:40Z, that pod is deleted";
    assert_eq!(waits(&env, "second"), Some(("WaitingForNodeLock", text.to_owned())));
    env.wait(200);
    assert_eq!(env.condition_writes, 1, "nothing new is to be said while the lock stands");
    let events = |env: &Env| env.notices.iter().filter(|(_, reason)| *reason == "WaitingForNodeLock").count();
    assert_eq!(events(&env), 1);
    env.agent_releases("n");
    env.settle();
    assert_eq!((env.node_of("second"), env.condition_writes), (Some("n"), 1));
    env.wait(60);
    assert_eq!((env.condition_writes, events(&env)), (1, 1), "a bound pod is told nothing");
}

#[test]
fn a_lock_that_names_nobody_or_cannot_be_read_is_told_with_the_time_at_which_it_is_taken_over() {
    for (lock, whose) in [
        ("garbage", "its lock, which cannot be read and was there at 2026-11-21T02:16:40Z"),
        ("2026-11-21T02:16:00Z", "its lock of 2026-11-21T02:16:00Z, which names no pod"),
    ] {
        let mut env = Env::new();
        env.node("n", 8);
        env.set_lock("n", lock);
        env.pod("a", ONE);
        env.wait(6);
        let text = format!(
            "goes to node n and waits for {whose}: if it still stands at 2026-11-21T02:21:40Z, it is taken over"
        );
        assert_eq!(waits(&env, "a"), Some(("WaitingForNodeLock", text)), "{lock}");
        env.wait(300);
        assert_eq!((env.node_of("a"), env.condition_writes), (Some("n"), 1), "{lock}");
    }
}

#[test]
fn a_line_that_moves_writes_nothing_for_half_a_minute_and_then_once_for_each() {
    let mut env = Env::new();
    env.node("n", 8);
    for at in 0..64 {
        env.pod(&format!("p{at:02}"), EIGHTH);
    }
    env.settle();
    for _ in 0..29 {
        env.wait(1);
        env.agent_releases("n");
        env.settle();
    }
    assert_eq!((env.bound(), env.condition_writes), (30, 0));
    for _ in 0..20 {
        env.wait(1);
        env.agent_releases("n");
        env.settle();
    }
    let (reason, text) = waits(&env, "p60").unwrap();
    assert_eq!(reason, "WaitingForNodeLock");
    assert!(text.starts_with("goes to node n and waits for its turn there"), "{text}");
    assert!(env.condition_writes <= 34, "{} writes", env.condition_writes);
}

#[test]
fn a_told_wait_that_outlives_the_expiry_without_an_agent_says_so_and_a_requeued_pod_says_why() {
    let mut env = Env::with(
        EngineConfig {
            lock_policy: LockPolicy { expired_holder: ExpiredHolder::Wait, ..LockPolicy::default() },
            ..EngineConfig::default()
        },
        DefaultSet::default(),
    );
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.wait(10);
    assert!(env.conditions["second"].contains("is left to you"), "{}", env.conditions["second"]);
    env.wait(310);
    assert!(env.conditions["second"].contains("it has expired, and"), "{}", env.conditions["second"]);
    assert_eq!(env.condition_writes, 2);
    env.now += std::time::Duration::from_secs(90);
    env.settle();
    assert_eq!(waits(&env, "second"), Some(("Unschedulable", "0/1 nodes: 1 agent not ready".to_owned())));
}

#[test]
fn a_lost_word_of_waiting_is_said_again_and_never_after_the_bind() {
    let mut env = Env::new();
    env.node("n", 8);
    env.pod("first", ONE);
    env.settle();
    env.pod("second", ONE);
    env.lost_conditions = 1;
    env.wait(6);
    env.wait(3);
    assert_eq!((env.lost_conditions, env.condition_writes), (0, 1));
    env.pod("third", ONE);
    env.lost_conditions = 1;
    env.wait(10);
    env.lost_conditions = 1;
    env.agent_releases("n");
    env.settle();
    env.agent_releases("n");
    env.settle();
    let told = env.condition_writes;
    assert_eq!((env.node_of("second"), env.node_of("third")), (Some("n"), Some("n")));
    env.wait(120);
    assert_eq!((env.condition_writes, env.lost_conditions), (told, 1), "nothing is written of bound pods");
}
