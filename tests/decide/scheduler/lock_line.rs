//! The node's line, and binds that do not go well.

use baton::contract::{LockFormat, LockRead};

use baton::decide::lock::LockPolicy;
use baton::decide::pod::PodContainer;
use baton::decide::scheduler::{LockResult, Scheduler};
use baton::decide::world::NodeFacts;
use baton::decide::world::spec::TolerationOperator;

use crate::prelude::*;

const EIGHTH: &[(&str, &str)] = &[(key::GPU, "10")];

/// A node, and a pod whose lock is on its way to the API server.
pub(super) fn locking(name: &str, gpus: u32) -> TestScheduler {
    let mut cluster = TestScheduler::on("n", gpus);
    cluster.hold(true).comes(name, ONE);
    cluster
}

#[test]
fn sixteen_pods_on_one_node_go_one_after_the_other_first_come_first_served() {
    let mut cluster = TestScheduler::on("n", 8);
    (0..16).for_each(|at| _ = cluster.pod(&format!("p{at:02}"), EIGHTH));
    cluster.settle();
    for at in 0..16 {
        let name = format!("p{at:02}");
        assert_eq!((cluster.holder("n"), cluster.bound()), (Some(name.as_str()), at + 1));
        cluster.agent_releases("n");
    }
    assert_eq!((cluster.lock_writes, cluster.binds), (16, 16), "no retries");
}

#[test]
fn how_long_each_pod_waited_for_the_lock_is_reported_once() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE).comes("second", ONE).after(7).agent_releases("n");
    assert_eq!(cluster.holder("n"), Some("second"));
    // A lost Lease takes none of them away.
    cluster.step_down();
    for take in [Scheduler::take_lock_waits, Scheduler::take_pod_waits] {
        let mut waits: Vec<u64> = take(&mut cluster.scheduler).iter().map(std::time::Duration::as_secs).collect();
        waits.sort_unstable();
        assert_eq!(waits, [0, 7]);
        assert!(take(&mut cluster.scheduler).is_empty());
    }
}

#[test]
fn a_higher_priority_goes_first_in_the_line() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE).pod("low", ONE);
    cluster.comes_as("high", ONE, |facts| facts.spec.priority = 10).agent_releases("n");
    assert_eq!(cluster.holder("n"), Some("high"));
    assert_eq!(cluster.agent_releases("n").holder("n"), Some("low"));
}

/// A lock of the format `timestamp` names no pod: what it is known by is its text.
#[test]
fn a_lost_answer_to_the_lock_is_found_to_be_success() {
    for lock_format in [LockFormat::Uid, LockFormat::Timestamp] {
        let mut cluster = TestScheduler::with(Config { lock_format, ..Config::default() }, DefaultSet::default());
        cluster.node("n", 8).lock_faults.push_back(Fault::LostAnswer);
        cluster.comes("a", ONE).wait(1);
        assert_eq!((cluster.node_of("a"), cluster.binds), (Some("n"), 1), "{lock_format:?}");
    }
}

#[test]
fn a_pod_in_the_line_of_a_node_that_takes_it_no_more_goes_elsewhere() {
    fn taint(facts: &mut NodeFacts, effect: TaintEffect) {
        facts.taints.push(Taint { key: "gone".to_owned(), value: String::new(), effect });
    }
    let changes: [fn(&mut NodeFacts); 4] = [
        |facts| facts.unschedulable = true,
        |facts| taint(facts, TaintEffect::NoSchedule),
        |facts| taint(facts, TaintEffect::NoExecute),
        |facts| drop(facts.labels.remove("pool")),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut cluster = TestScheduler::new();
        let pool = |facts: &mut NodeFacts| drop(facts.labels.insert("pool".to_owned(), "x".to_owned()));
        let submit = |cluster: &mut TestScheduler, name: &str, tolerates: bool| {
            let mut facts = pod(name, ONE, cluster.now);
            facts.spec.node_selector.insert("pool".to_owned(), "x".to_owned());
            let all = Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
            facts.spec.tolerations.extend(tolerates.then_some(all));
            cluster.enters(facts);
        };
        cluster.node("n", 8).change_node("n", pool);
        for (name, tolerates) in [("first", false), ("second", false), ("tolerant", true)] {
            submit(&mut cluster, name, tolerates);
        }
        cluster.node("other", 1).change_node("other", pool).settle();
        assert_eq!((cluster.holder("n"), cluster.bound()), (Some("first"), 1));
        cluster.change_node("n", change);
        assert_eq!(cluster.settled().node_of("second"), Some("other"), "{at}");
        assert_eq!(cluster.serves("n").node_of("tolerant"), (at < 3).then_some("n"), "{at}");
    }
}

#[test]
fn a_lock_that_another_process_took_first_is_waited_for() {
    let mut cluster = locking("a", 8);
    cluster.pod_as("other", ONE, |facts| facts.handoff.scheduler_name = "theirs".into());
    let time = crate::harness::wall(cluster.now);
    cluster.locks.insert("n".into(), format!("{time:.9},ml,other,uid-other"));
    cluster.deliver().settle();
    assert_eq!((cluster.stats().binds.contended, cluster.node_of("a"), cluster.lock_writes), (1, None, 1));
    cluster.serves("n");
    assert_eq!((cluster.node_of("a"), cluster.lock_writes), (Some("n"), 2));
}

/// A client that repeats a write without an answer finds its own value.
#[test]
fn a_write_that_is_refused_because_it_was_made_has_the_lock() {
    for lock_format in [LockFormat::Uid, LockFormat::Timestamp] {
        let mut cluster = TestScheduler::with(Config { lock_format, ..Config::default() }, DefaultSet::default());
        cluster.node("n", 8).hold(true).comes("a", ONE);
        let Effect::Lock { ticket, new, .. } = cluster.held.remove(0) else { panic!("another request") };
        cluster.hold(false).locks.insert("n".into(), new.to_string());
        let result = LockResult::Contended(LockRead::parse(Some(&new)));
        cluster.report(EffectResult::Lock { ticket, result });
        cluster.settle();
        assert_eq!((cluster.node_of("a"), cluster.lock_writes), (Some("n"), 0), "{lock_format:?}");
    }
}

/// The write of a leader before this one, which arrives late.
#[test]
fn a_pod_in_the_queue_whose_lock_was_written_by_another_process_goes_first() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.hold(true).pod("first", ONE).comes("second", ONE);
    let time = crate::harness::wall(cluster.now);
    cluster.locks.insert("n".into(), format!("{time:.9},ml,second,uid-second"));
    assert_eq!(cluster.deliver().settled().nodes_of(["second", "first"]), [Some("n"), None]);
    let bound = &cluster.pods[&PodKey::new("ml", "second")].handoff.assignment.bind_timestamp;
    assert_eq!(bound.as_deref(), Some(time.as_nanosecond().to_string().as_str()));
    assert_eq!(cluster.serves("n").node_of("first"), Some("n"));
}

#[test]
fn a_lost_answer_to_the_binding_is_found_to_be_success() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.bind_faults.push_back(Fault::LostAnswer);
    cluster.comes("a", ONE).wait(1);
    assert_eq!((cluster.node_of("a"), cluster.holder("n"), cluster.bind_attempts()), (Some("n"), Some("a"), 0));
    assert_eq!(cluster.stats().binds.bound, 1);
}

#[test]
fn errors_that_pass_keep_the_node_and_the_reservation() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.lock_faults.push_back(Fault::Fails);
    cluster.bind_faults.extend([Fault::Fails, Fault::Fails]);
    assert_eq!(cluster.pod("a", ONE).comes("b", ONE).after(3).nodes_of(["a", "b"]), [Some("n"), None]);
}

#[test]
fn the_lock_of_a_pod_that_is_bound_and_not_shown_yet_is_not_abandoned() {
    let mut cluster = locking("p", 8);
    assert_eq!(cluster.deliver_one(0).stand("p", "n"), (None, Some("p")), "locked, and its leader ends");
    // A follower has known the lock for long when it begins to lead.
    cluster.step_down().hold(false).held.clear();
    cluster.after(60).bind_faults.push_back(Fault::Unseen);
    cluster.lead();
    assert_eq!(cluster.settled().node_of("p"), Some("n"));
    cluster.tell_node("n");
    assert_eq!(cluster.after(2).holder("n"), Some("p"), "its node daemon removes the lock");
}

/// As when the write of a lock is late, and another leader locks, binds and is done meanwhile.
#[test]
fn a_device_assigned_by_another_leader_while_the_lock_is_written_is_not_bound() {
    let mut cluster = locking("late", 1);
    assert!(matches!(&*cluster.held, [Effect::Lock { .. }]), "{:?}", cluster.held);
    cluster.watchful = false; // two reservations of one device
    cluster.bound_by_another("theirs", "n", 0);
    cluster.hold(false).deliver();
    cluster.watchful = true;
    cluster.settle();
    assert_eq!((cluster.node_of("late"), cluster.binds, cluster.holder("n")), (None, 0, None));
    assert_eq!(cluster.ends("theirs").node_of("late"), Some("n"));
}

#[test]
fn a_binding_without_an_answer_keeps_its_lock_beside_another_leaders() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.bind_faults.push_back(Fault::Fails);
    cluster.comes("late", ONE);
    assert_eq!(cluster.stand("late", "n"), (None, Some("late")), "its Binding is to be repeated");
    cluster.watchful = false; // two reservations of one device
    cluster.bound_by_another("theirs", "n", 0);
    assert_eq!(cluster.holder("n"), Some("late"), "the first request may still arrive");
}

#[test]
fn a_pod_does_not_wait_for_a_lock_when_another_leader_has_bound_its_devices() {
    let mut cluster = TestScheduler::on("n", 2);
    assert_eq!(cluster.comes("holder", ONE).holder("n"), Some("holder"), "its daemon does not answer");
    cluster.comes("waits", ONE).node("m", 1);
    let other = 1 - cluster.devices_of("holder").of(&DeviceType::Gpu)[0].minor;
    cluster.bound_by_another("theirs", "n", other.into());
    assert_eq!(cluster.settled().stand("waits", "n"), (Some("m"), Some("holder")));
}

#[test]
fn a_read_that_fails_is_repeated_and_lock_and_room_stay() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.bind_faults.extend([Fault::LostAnswer, Fault::Refused]);
    cluster.lost_reads = 3;
    cluster.comes("a", ONE).wait(1);
    assert_eq!((cluster.lost_reads, cluster.bind_attempts(), cluster.holder("n")), (2, 1, Some("a")));
    cluster.wait(1);
    assert_eq!((cluster.lost_reads, cluster.bind_attempts(), cluster.holder("n")), (1, 1, Some("a")), "once a second");
    cluster.wait(3);
    assert_eq!((cluster.node_of("a"), cluster.bind_attempts(), cluster.stats().binds.bound), (Some("n"), 0, 1));
}

#[test]
fn a_binding_that_is_refused_after_one_without_an_answer_may_have_been_made() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.bind_faults.extend([Fault::LostAnswer, Fault::Refused]);
    assert_eq!((cluster.pod("p", ONE).after(3).binds, cluster.node_of("p")), (2, Some("n")));
    assert_eq!(cluster.holder("n"), Some("p"), "its node daemon removes the lock");
    assert_eq!(cluster.bind_attempts(), 0);
    // Where none was made, it is tried again from the beginning once none can be made any more.
    cluster.agent_releases("n").bind_faults.extend([Fault::Fails, Fault::Refused]);
    cluster.pod("q", ONE).wait(59);
    assert_eq!((cluster.node_of("q"), cluster.bind_attempts()), (None, 1));
    assert_eq!(cluster.after(5).stand("q", "n"), (Some("n"), Some("q")));
}

#[test]
fn a_resumed_bind_that_is_refused_may_have_been_made_by_the_leader_before() {
    let mut cluster = locking("p", 8);
    cluster.deliver_one(0).settled().step_down().bind_faults.extend([Fault::Unseen, Fault::Refused]);
    cluster.deliver().lead().settle();
    assert_eq!((cluster.binds, cluster.node_of("p"), cluster.bind_attempts()), (2, Some("n"), 0));
    assert_eq!(cluster.holder("n"), Some("p"), "its node daemon removes the lock");
    assert_eq!(cluster.stats().binds.failed, 0);
}

#[test]
fn a_resumed_bind_whose_device_fails_waits_for_the_binding_of_the_leader_before() {
    for arrives in [true, false] {
        let mut cluster = TestScheduler::on("n", 1);
        cluster.bind_faults.push_back(Fault::Late);
        cluster.comes("p", ONE).step_down().hold(true);
        cluster.lead().device("n", 1, |device| device.spec.devices[0].health = false).hold(false);
        assert_eq!(cluster.deliver().after(50).stand("p", "n"), (None, Some("p")), "{arrives}");
        if arrives {
            assert_eq!(cluster.arrive().stand("p", "n"), (Some("n"), Some("p")));
        } else {
            assert_eq!(cluster.after(20).stand("p", "n"), (None, None));
        }
    }
}

#[test]
fn a_final_failure_releases_the_lock_and_the_room_and_the_pod_is_tried_again() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.bind_faults.push_back(Fault::Refused);
    assert_eq!(cluster.comes("a", ONE).stand("a", "n"), (None, None));
    assert!(cluster.notices.contains(&("a".into(), "FailedBinding")));
    assert_eq!(cluster.after(2).node_of("a"), Some("n"));
}

#[test]
fn a_bind_that_fails_for_a_minute_is_given_up_and_its_lock_released() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.bind_faults.extend(std::iter::repeat_n(Fault::Fails, 22));
    assert_eq!(cluster.comes("a", ONE).after(59).holder("n"), Some("a"));
    cluster.wait(90);
    assert_eq!((cluster.node_of("a"), cluster.stats().binds.failed), (Some("n"), 1));
}

#[test]
fn time_in_the_line_of_a_node_is_no_time_of_trouble() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.lock_faults.push_back(Fault::Fails);
    cluster.comes("a", ONE);
    // While it pauses, a more important one takes the lock, whose call comes late.
    cluster.comes_as("high", ONE, |facts| facts.spec.priority = 10);
    assert_eq!(cluster.stand("a", "n"), (None, Some("high")));
    assert_eq!(cluster.after(65).holder("n"), Some("high"));
    cluster.lock_faults.push_back(Fault::Fails);
    cluster.agent_releases("n").wait(2);
    assert_eq!((cluster.node_of("a"), cluster.stats().binds.failed), (Some("n"), 0));
}

#[test]
fn a_pod_deleted_while_its_lock_is_written_leaves_no_lock() {
    let mut cluster = locking("a", 8);
    cluster.delete("a").deliver().settle();
    assert_eq!((cluster.holder("n"), cluster.bind_attempts(), cluster.binds), (None, 0, 0));
}

#[test]
fn a_pod_deleted_between_lock_and_bind_leaves_no_lock() {
    let mut cluster = locking("a", 8);
    // The lock is written, the Binding is on its way when the pod goes.
    let lock = cluster.held.pop().unwrap();
    cluster.hold(false).bind_faults.push_back(Fault::Fails);
    assert_eq!(cluster.perform(vec![lock]).holder("n"), Some("a"));
    cluster.delete("a").wait(1);
    assert_eq!((cluster.holder("n"), cluster.bind_attempts()), (None, 0));
}

#[test]
fn a_pod_deleted_between_bind_and_allocate_leaves_no_lock() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.comes("a", ONE).stand("a", "n"), (Some("n"), Some("a")));
    assert_eq!(cluster.goes("a").holder("n"), None, "released at once");
}

#[test]
fn a_pod_bound_by_another_scheduler_meanwhile_is_left_alone_and_our_lock_goes() {
    let mut cluster = TestScheduler::on_each(&["n", "m"], 8);
    cluster.hold(true).comes("a", ONE);
    cluster.pods.get_mut(&PodKey::new("ml", "a")).unwrap().handoff.node = Some("m".into());
    cluster.deliver().settle();
    assert_eq!((cluster.node_of("a"), cluster.holder("n"), cluster.holder("m")), (Some("m"), None, None));
    assert_eq!(cluster.bind_attempts(), 0);
}

#[test]
fn a_recreated_pod_is_not_bound_in_place_of_the_old_one() {
    let mut cluster = locking("a", 8);
    let mut again = pod("a", ONE, cluster.now);
    again.handoff.pod = PodRef::new("ml", "a", "uid-new");
    cluster.pods.insert(PodKey::new("ml", "a"), again);
    cluster.deliver().settled().tell_pod(&PodKey::new("ml", "a")).settle();
    assert_eq!(cluster.stand("a", "n"), (Some("n"), Some("a")));
    assert!(cluster.locks["n"].ends_with("uid-new"));
}

#[test]
fn waiting_pods_are_chosen_anew_when_the_agent_goes_stale() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.pod("first", ONE).comes("second", ONE).bind_attempts(), 1);
    cluster.later(90);
    assert_eq!(cluster.settled().bind_attempts(), 0);
    assert_eq!(cluster.conditions["second"], "0/1 nodes: 1 has no live node daemon");
}

#[test]
fn what_another_scheduler_bound_is_read_before_its_devices_are_given_again() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.pod_as("theirs", ONE, |facts| facts.handoff.scheduler_name = "other".into());
    let time = crate::harness::wall(cluster.now);
    cluster.set_lock("n", &format!("{time:.9},ml,theirs,uid-theirs")).comes("ours", ONE);
    // They bind GPU 0 and the agent releases; our node watch is ahead of our pod watch.
    let facts = cluster.pods.get_mut(&PodKey::new("ml", "theirs")).unwrap();
    facts.handoff.node = Some("n".into());
    facts.handoff.assignment.device_allocated =
        Some(r#"{"gpu":[{"minor":0,"id":"GPU-n-0","resources":{"koordinator.sh/gpu-core":"100"}}]}"#.into());
    cluster.serves("n");
    assert_eq!((cluster.node_of("ours"), cluster.binds, cluster.holder("n")), (None, 0, None));
    assert_eq!(cluster.conditions["ours"], "0/1 nodes: 1 has no free GPU");
}

impl TestScheduler {
    fn word_of(&self, name: &str) -> Option<(&'static str, String)> {
        Some((*self.reasons.get(name)?, self.conditions[name].clone()))
    }
}

#[test]
fn who_waits_for_a_lock_that_stands_is_told_whose_it_is_since_when_and_what_ends_it() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE).pod("second", ONE).wait(4);
    assert_eq!(cluster.word_of("second"), None, "most locks go within moments");
    cluster.wait(2);
    let text = "goes to node n and waits for its lock, held by pod ml/first since 2026-11-21T02:16:40Z: it is released when that pod has \
                its devices; if it still stands at 2026-11-21T02:21:40Z and the node daemon reports, it is taken over";
    assert_eq!(cluster.word_of("second"), Some(("WaitingForNodeLock", text.to_owned())));
    assert_eq!(cluster.after(200).condition_writes, 1, "nothing new is to be said while the lock stands");
    let events =
        |cluster: &TestScheduler| cluster.notices.iter().filter(|(_, reason)| *reason == "WaitingForNodeLock").count();
    assert_eq!(events(&cluster), 1);
    cluster.serves("n");
    assert_eq!((cluster.node_of("second"), cluster.condition_writes), (Some("n"), 1));
    let stamp = |name: &str| cluster.pods[&PodKey::new("ml", name)].handoff.assignment.bind_timestamp.clone();
    assert_ne!(stamp("first"), stamp("second"), "each is bound under the time of its own lock");
    cluster.wait(60);
    assert_eq!((cluster.condition_writes, events(&cluster)), (1, 1), "no condition is written of a bound pod");
}

#[test]
fn what_keeps_a_bound_pod_from_its_devices_is_an_event_for_each_sentence() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE);
    let events = |cluster: &TestScheduler| {
        cluster.notices.iter().filter(|notice| **notice == ("first".to_owned(), "NotServed")).count()
    };
    for (seconds, all) in [(14, 0), (12, 1), (30, 1), (15, 2), (200, 2)] {
        cluster.wait(seconds);
        assert_eq!(events(&cluster), all, "after {seconds} s more");
    }
    let late = |cluster: &TestScheduler| {
        cluster.notices.iter().filter(|notice| **notice == ("first".to_owned(), "ServedLate")).count()
    };
    let says = |cluster: &TestScheduler| cluster.scheduler.explain_node("n", cluster.moment()).unwrap().message;
    assert_eq!(says(&cluster), "takes no new pods with devices until its lock is free: 7 of 8 GPUs are free then");
    let free = |cluster: &TestScheduler| cluster.scheduler.fleet(cluster.moment()).largest_free["none"];
    assert_eq!(free(&cluster), 0, "none can be handed out now");
    cluster.agent_releases("n").wait(600);
    assert_eq!((events(&cluster), late(&cluster)), (2, 1), "it is served");
    assert!(says(&cluster).starts_with("takes new pods with devices: "), "{}", says(&cluster));
    assert_eq!(free(&cluster), 7);
    cluster.comes("second", ONE).agent_releases("n").wait(600);
    assert_eq!(cluster.notices.iter().filter(|(_, reason)| *reason == "ServedLate").count(), 1, "in time is no news");
}

#[test]
fn a_node_whose_lock_has_a_time_in_the_future_does_not_look_open() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.set_lock("n", "2026-11-21T03:16:40Z").settle();
    let node = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    assert!(!node.takes_devices && node.message.starts_with("takes no new pods"), "{}", node.message);
    tells(node.lock.unwrap(), [", which names no pod, with a time 3", " s in the future"]);
}

#[test]
fn a_lock_without_a_readable_holder_is_shown_with_the_time_of_its_takeover() {
    for (lock, end) in [
        ("garbage", "02:21:40"),
        // Half a minute more than the expiry by its own words, which is sooner than five minutes from now on.
        ("2026-11-21T02:16:00Z", "02:21:30"),
    ] {
        let mut cluster = TestScheduler::on("n", 8);
        cluster.set_lock("n", lock).pod("a", ONE).wait(6);
        let seen = "which names no pod, seen first at 2026-11-21T02:16:40Z";
        let text = format!(
            "goes to node n and waits for its lock, {lock:?}, {seen}: if it still stands at 2026-11-21T{end}Z, it is taken over"
        );
        assert_eq!(cluster.word_of("a"), Some(("WaitingForNodeLock", text)), "{lock}");
        let node = cluster.scheduler.explain_node("n", cluster.moment()).unwrap().lock.unwrap();
        assert!(node.ends_with(&format!("; if it still stands at 2026-11-21T{end}Z, it is taken over")), "{node}");
        let ends = cluster.queue_report().locks;
        assert_eq!((&*ends[0].node, format!("{:.0}", ends[0].at)), ("n", format!("2026-11-21T{end}Z")));
        cluster.wait(300);
        assert_eq!((cluster.node_of("a"), cluster.condition_writes), (Some("n"), 1), "{lock}");
    }
}

#[test]
fn a_line_that_moves_writes_nothing_for_half_a_minute_and_then_once_for_each() {
    let mut cluster = TestScheduler::on("n", 8);
    (0..64).for_each(|at| _ = cluster.pod(&format!("p{at:02}"), EIGHTH));
    cluster.settle();
    (0..29).for_each(|_| _ = cluster.after(1).serves("n"));
    assert_eq!((cluster.bound(), cluster.condition_writes), (30, 0));
    (0..20).for_each(|_| _ = cluster.after(1).serves("n"));
    let (reason, text) = cluster.word_of("p60").unwrap();
    assert_eq!(reason, "WaitingForNodeLock");
    assert!(text.starts_with("goes to node n and waits for its turn there"), "{text}");
    assert!(cluster.condition_writes <= 34, "{} writes", cluster.condition_writes);
}

#[test]
fn a_wait_past_the_expiry_names_the_missing_agent_and_a_requeued_pod_says_why() {
    let settles_late = LockPolicy { agent_settled: Duration::from_secs(3600), ..LockPolicy::default() };
    let config = Config { lock_policy: settles_late, ..Config::default() };
    let mut cluster = TestScheduler::with(config, DefaultSet::default());
    cluster.node("n", 8).comes("first", ONE).pod("second", ONE);
    assert!(cluster.after(10).conditions["second"].ends_with("it is taken over"), "{}", cluster.conditions["second"]);
    tells(&cluster.after(310).conditions["second"], ["it has expired, but"]);
    assert_eq!(cluster.condition_writes, 2);
    cluster.later(90).settle();
    assert_eq!(cluster.word_of("second"), Some(("Unschedulable", "0/1 nodes: 1 has no live node daemon".to_owned())));
}

#[test]
fn a_lost_word_of_waiting_is_said_again_and_never_after_the_bind() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("first", ONE).pod("second", ONE);
    cluster.lost_conditions = 1;
    assert_eq!((cluster.after(9).lost_conditions, cluster.condition_writes), (0, 1));
    cluster.pod("third", ONE);
    cluster.lost_conditions = 1;
    cluster.wait(10);
    cluster.lost_conditions = 1;
    cluster.serves("n").serves("n");
    let reported = cluster.condition_writes;
    assert_eq!(cluster.nodes_of(["second", "third"]), [Some("n"), Some("n")]);
    cluster.wait(120);
    assert_eq!((cluster.condition_writes, cluster.lost_conditions), (reported, 1), "nothing is written of bound pods");
}

/// A pod of containers with the longest names, each with these limits.
fn wide(name: &str, containers: usize, limits: &[(&str, &str)]) -> PodFacts {
    let mut facts = pod(name, limits, Duration::ZERO);
    let one = facts.handoff.containers[0].clone();
    let many = (0..containers).map(|at| PodContainer { name: format!("{at:0>63}").into(), ..one.clone() });
    facts.handoff.containers = many.collect::<Vec<_>>().into();
    facts
}

/// The daemon reads annotations up to 64 KiB: a pod that would need more is refused before its node is locked.
#[test]
fn an_assignment_is_never_larger_than_what_is_read_of_it() {
    let most = 64 * 1024;
    let two = [(key::GPU_CORE, "2"), (key::GPU_MEMORY_RATIO, "2"), (key::RDMA, "1")];
    for (limits, containers) in [(&two[..], 128), (&two[..], 160), (&two[..2], 256), (&two[2..], 256), (&two[..], 257)]
    {
        let mut cluster = TestScheduler::on("n", 8);
        let mut device = gpu_device("n", 8);
        for at in 0..8 {
            let mut nic = device.spec.devices[at].clone();
            (nic.kind, nic.id) = (DeviceType::Rdma, DeviceId::parse(&format!("0000:0{at}:00.0")).unwrap());
            nic.resources = [(key::RDMA.to_owned(), Quantity::units(100))].into();
            device.spec.devices[at].id = DeviceId::parse(&format!("GPU-{at:08}-1111-2222-3333-444444444444")).unwrap();
            device.spec.devices.push(nic);
        }
        cluster.event(WorldEvent::Devices(Box::new(device))).enters(wide("wide", containers, limits));
        let assignment = &cluster.pods.values().next().unwrap().handoff.assignment;
        let sizes = [&assignment.device_allocated, &assignment.container_devices];
        let sizes = sizes.map(|text| text.as_ref().map_or(0, |text| text.len()));
        println!("{containers} containers, {} names each: {sizes:?} bytes", limits.len());
        let said = cluster.conditions.get("wide");
        if cluster.bound() == 1 {
            assert!(sizes.iter().all(|size| (1..=most).contains(size)), "{containers}: {sizes:?}");
        } else {
            let reported = said.is_some_and(|text| text.contains("split the pod"));
            assert!(reported && cluster.lock_writes == 0, "{said:?}");
        }
    }
}

/// A Binding is not checked against the limit of all annotations, but every later write of the pod's status is.
#[test]
fn a_pod_whose_annotations_leave_no_room_for_an_assignment_is_not_bound() {
    let mut cluster = TestScheduler::on("n", 8);
    for (name, bytes) in [("full", 261_500), ("large", 200_000)] {
        cluster.pod_as(name, ONE, |facts| facts.spec.annotation_bytes = bytes);
    }
    assert_eq!(cluster.settled().nodes_of(["full", "large"]), [None, Some("n")]);
    tells(&cluster.conditions["full"], ["have 261500 of 262144 bytes", "shorten them"]);
}

/// For an hour the API server answers no write but with 429 or 500.
#[test]
fn an_hour_of_refused_writes_costs_few_of_them_and_no_pod() {
    for lock in [true, false] {
        let mut cluster = TestScheduler::new();
        (0..4).for_each(|at| _ = cluster.node(&format!("n{at}"), 8));
        let faults = if lock { &mut cluster.lock_faults } else { &mut cluster.bind_faults };
        faults.extend(std::iter::repeat_n(Fault::Fails, 1_000_000));
        (0..32).for_each(|at| _ = cluster.pod(&format!("p{at:02}"), ONE));
        cluster.settled().wait(3600);
        let tries = if lock { cluster.lock_writes } else { cluster.binds };
        println!("lock: {lock}: {tries} tries of 32 pods within the hour");
        assert_eq!(cluster.bound(), 0);
        assert!(tries < 32 * 3600 / 5, "a pod is tried at most every five seconds, {tries}");
        cluster.lock_faults.clear();
        cluster.bind_faults.clear();
        let since = cluster.now;
        while cluster.bound() < 32 {
            cluster.after(1).all_release();
            assert!(cluster.now < since + Duration::from_secs(120), "{} of 32 are bound", cluster.bound());
        }
        cluster.audit();
    }
}

#[test]
fn a_lock_without_a_name_is_that_of_the_pod_which_was_bound_at_its_time() {
    let config = Config { lock_format: LockFormat::Timestamp, ..Config::default() };
    let mut cluster = TestScheduler::with(config, DefaultSet::default());
    cluster.node("n", 4).comes("holds", ONE).pod("next", ONE).wait(20);
    let node = cluster.scheduler.explain_node("n", cluster.moment()).unwrap();
    assert!(node.lock.as_ref().unwrap().starts_with("held by ml/holds") && !node.takes_devices, "{node:?}");
    let next = cluster.explain(&PodKey::new("ml", "next")).unwrap();
    assert!(next.verdict.message.contains("its lock, held by pod ml/holds since"), "{next:?}");
    assert!(next.verdict.advice.iter().all(|advice| !advice.contains("No pod holds")), "{next:?}");
}
