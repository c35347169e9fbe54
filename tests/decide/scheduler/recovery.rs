//! Locks that no bind uses: crashes, dangling, expired and strange ones.

use baton::decide::scheduler::LockResult;

use super::lock_line::locking;
use crate::prelude::*;

const T: &str = "2026-11-21T02:00:00.000000001Z";

#[test]
fn a_scheduler_killed_between_lock_and_bind_resumes_under_the_same_lock() {
    let mut cluster = TestScheduler::on_each(&["n", "other"], 8);
    cluster.hold(true).comes("a", ONE);
    let lock = cluster.held.pop().unwrap();
    cluster.hold(false).step_down().perform(vec![lock]);
    let (node, value) = cluster.locks.first_key_value().map(|(n, v)| (n.clone(), v.clone())).unwrap();
    cluster.restart();
    assert_eq!(cluster.settled().node_of("a"), Some(node.as_str()));
    assert_eq!((cluster.locks[&node].clone(), cluster.lock_writes), (value, 1), "the same lock, written once");
    assert_eq!(cluster.stats().binds.resumed, 1);
}

#[test]
fn a_lock_of_ours_that_cannot_be_resumed_goes_after_a_minute() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.comes("big", TWO).set_lock("n", &format!("{T},ml,big,uid-big"));
    assert_eq!(cluster.settled().after(55).holder("n"), Some("big"));
    assert_eq!(cluster.after(10).holder("n"), None);
}

#[test]
fn the_lock_of_a_bind_under_way_is_not_abandoned_however_long_its_answer_takes() {
    let mut cluster = locking("a", 8);
    cluster.deliver_one(0).wait(120);
    assert_eq!((cluster.holder("n"), cluster.held.len()), (Some("a"), 1), "only the Binding is under way");
    assert_eq!(cluster.deliver().settled().stand("a", "n"), (Some("n"), Some("a")));
}

#[test]
fn a_lock_of_another_schedulers_unbound_pod_is_left_until_it_expires() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.pod_as("foreign", ONE, |facts| facts.handoff.scheduler_name = "other".into());
    // Written as of now: a lock that is old by its own words would be expired when it is first seen.
    let time = crate::harness::wall(cluster.now);
    cluster.set_lock("n", &format!("{time:.9},ml,foreign,uid-foreign")).pod("a", ONE).wait(299);
    assert_eq!(cluster.stand("a", "n"), (None, Some("foreign")));
    assert_eq!(cluster.after(2).node_of("a"), Some("n"));
}

#[test]
fn the_lock_of_a_pod_that_our_watch_has_not_shown_yet_is_respected() {
    let mut cluster = TestScheduler::on("n", 8);
    let mut foreign = pod("new", ONE, cluster.now);
    foreign.handoff.scheduler_name = "other".into();
    cluster.pods.insert(PodKey::new("ml", "new"), foreign);
    let time = crate::harness::wall(cluster.now);
    cluster.set_lock("n", &format!("{time:.9},ml,new,uid-new")).comes("a", ONE);
    assert_eq!(cluster.stand("a", "n"), (None, Some("new")));
}

#[test]
fn dangling_locks_go_even_when_nobody_waits_for_the_node() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.comes("a", ONE).ends("a").holder("n"), None, "ended");
    cluster.set_lock("n", &format!("{T},ml,ghost,uid-ghost"));
    assert_eq!(cluster.settled().locks.get("n"), None, "never existed");
}

#[test]
fn an_expired_lock_is_taken_over_and_its_holder_keeps_its_devices() {
    let mut cluster = TestScheduler::on("n", 2);
    assert_eq!(cluster.comes("stuck", ONE).pod("next", ONE).after(295).stand("next", "n"), (None, Some("stuck")));
    assert_eq!(cluster.after(10).stand("next", "n"), (Some("n"), Some("next")));
    assert_ne!(cluster.devices_of("stuck"), cluster.devices_of("next"));
    cluster.agent_releases("n").pod("third", ONE).wait(10);
    assert_eq!(cluster.nodes_of(["stuck", "third"]), [Some("n"), None], "both devices are assigned");
    cluster.audit();
}

/// The call of its holder may still come, and is served under it.
#[test]
fn an_expired_lock_that_no_bind_needs_stays() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.pod("stuck", ONE);
    assert_eq!(cluster.after(900).holder("n"), Some("stuck"));
    cluster.pod("next", ONE);
    assert_eq!(cluster.after(1).holder("n"), Some("next"), "it was watched for long enough before");
}

#[test]
fn an_expired_lock_stands_while_its_daemon_is_away_and_until_it_is_settled() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.comes("stuck", ONE).pod("next", ONE);
    // The clock goes on, and no daemon renews its Lease.
    cluster.later(600);
    assert_eq!(cluster.settled().holder("n"), Some("stuck"));
    assert_eq!(cluster.after(25).holder("n"), Some("stuck"), "the daemon is back, and may be about to release it");
    assert_eq!(cluster.after(40).holder("n"), Some("next"));
}

/// A scheduler that has just started has not watched it.
#[test]
fn another_leader_watches_a_lock_for_the_whole_expiry_before_it_takes_it() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.pod("stuck", ONE).wait(200);
    let old = cluster.locks["n"].replace("2026", "2020");
    cluster.set_lock("n", &old).pod("next", ONE);
    assert_eq!(cluster.after(290).holder("n"), Some("stuck"), "the value has changed");
    assert_eq!(cluster.after(15).holder("n"), Some("next"));
}

#[test]
fn a_malformed_lock_is_an_unknown_holder_for_five_minutes() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.set_lock("n", "gibberish").pod("a", ONE);
    assert_eq!(cluster.after(299).node_of("a"), None);
    assert_eq!(cluster.after(2).stand("a", "n"), (Some("n"), Some("a")));
}

#[test]
fn after_a_restart_bound_pods_hold_their_devices() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.comes("a", &[(key::NVIDIA_GPU, "7")]).agent_releases("n").restart();
    assert_eq!(cluster.comes("b", TWO).conditions["b"], "0/1 nodes: 1 has fewer than 2 free GPUs");
    assert_eq!(cluster.comes("c", ONE).node_of("c"), Some("n"));
}

#[test]
fn a_leader_that_lost_and_regained_its_lease_goes_on_with_pods_that_were_in_flight() {
    let mut cluster = TestScheduler::on("n", 8);
    assert_eq!(cluster.hold(true).pod("a", ONE).comes("b", ONE).bind_attempts(), 2);
    cluster.held.clear();
    assert_eq!(cluster.hold(false).step_down().lead().settled().nodes_of(["a", "b"]), [Some("n"), None]);
    assert_eq!(cluster.serves("n").node_of("b"), Some("n"));
}

#[test]
fn the_removal_of_a_lock_that_a_lost_lease_broke_off_is_requested_again() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.hold(true).set_lock("n", &format!("{T},ml,ghost,uid-ghost"));
    assert_eq!(cluster.settled().held.len(), 1, "the removal");
    cluster.held.clear();
    cluster.hold(false).step_down().lead();
    assert_eq!(cluster.settled().locks.get("n"), None);
}

#[test]
fn a_resumed_bind_goes_before_pods_that_would_wait_for_its_own_lock() {
    let mut cluster = TestScheduler::on("n", 8);
    // A scheduler died between the lock and the bind of the younger of two pods.
    cluster.pod("older", ONE);
    let mut younger = pod("younger", ONE, cluster.now + Duration::from_secs(5));
    younger.handoff.scheduler_name = crate::harness::OURS.into();
    cluster.pods.insert(PodKey::new("ml", "younger"), younger);
    let time = crate::harness::wall(cluster.now);
    cluster.locks.insert("n".into(), format!("{time:.9},ml,younger,uid-younger"));
    cluster.later(7).restart();
    assert_eq!(cluster.settled().nodes_of(["younger", "older"]), [Some("n"), None]);
    let bound = &cluster.pods[&PodKey::new("ml", "younger")].handoff.assignment.bind_timestamp;
    assert_eq!(bound.as_deref(), Some(time.as_nanosecond().to_string().as_str()), "bound under the lock's own time");
    assert_eq!(cluster.serves("n").node_of("older"), Some("n"));
}

impl TestScheduler {
    /// A lock of a pod of another scheduler, taken now.
    fn locked_by_theirs(&mut self) -> &mut Self {
        let time = crate::harness::wall(self.now);
        self.set_lock("n", &format!("{time:.9},ml,theirs,uid-theirs"));
        self
    }
}

#[test]
fn the_holder_of_a_removed_lock_is_read_where_no_outcome_is_seen() {
    for (seen, reads) in [("bound", 0), ("deleted", 0), ("waiting", 1), ("nothing", 1)] {
        let mut cluster = TestScheduler::on("n", 8);
        let mut theirs = pod("theirs", &[], cluster.now);
        theirs.handoff.scheduler_name = "theirs".into();
        if seen != "nothing" {
            cluster.submit(theirs);
        }
        // Another replica leads meanwhile.
        cluster.step_down().locked_by_theirs();
        match seen {
            "bound" => _ = cluster.change_pod("theirs", |facts| facts.handoff.node = Some("n".into())),
            "deleted" => _ = cluster.delete("theirs"),
            _ => {}
        }
        cluster.agent_releases("n").lead().comes("mine", ONE);
        assert_eq!((cluster.reads, cluster.node_of("mine")), (reads, Some("n")), "{seen}");
    }
}

#[test]
fn a_bound_holder_that_the_watch_is_yet_to_show_is_waited_for() {
    for removed in [true, false] {
        let mut cluster = TestScheduler::on("n", 8);
        let mut theirs = pod("theirs", &[], cluster.now);
        theirs.handoff.scheduler_name = "theirs".into();
        theirs.handoff.node = Some("n".into());
        let key = theirs.handoff.pod.key.clone();
        cluster.pods.insert(key.clone(), theirs);
        cluster.locked_by_theirs();
        if removed {
            cluster.agent_releases("n");
        }
        cluster.comes("mine", ONE).wait(11);
        assert_eq!((cluster.reads, cluster.node_of("mine")), (2, None), "removed: {removed}");
        cluster.tell_pod(&key).wait(11);
        assert_eq!((cluster.reads, cluster.node_of("mine")), (2, removed.then_some("n")), "removed: {removed}");
    }
}

#[test]
fn a_holder_that_cannot_be_read_is_read_again_after_ten_seconds() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.lost_reads = 2;
    cluster.locked_by_theirs().comes("mine", ONE);
    (0..8).for_each(|_| _ = cluster.after(1).tell_node("n"));
    assert_eq!((cluster.reads, cluster.node_of("mine")), (1, None));
    assert_eq!((cluster.after(22).reads, cluster.node_of("mine")), (3, Some("n")));
}

#[test]
fn the_lock_of_a_pod_whose_deletion_the_watch_reports_goes_without_a_read() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.pod_as("theirs", &[], |facts| facts.handoff.scheduler_name = "theirs".into()).locked_by_theirs();
    assert_eq!(cluster.comes("mine", ONE).node_of("mine"), None);
    cluster.goes("theirs");
    assert_eq!((cluster.node_of("mine"), cluster.reads), (Some("n"), 0));
}

#[test]
fn the_lock_of_a_pod_that_was_made_again_under_its_name_goes_after_a_read() {
    let mut cluster = TestScheduler::on("n", 8);
    // The watch shows neither of them yet.
    let mut second = pod("theirs", &[], cluster.now);
    (second.handoff.scheduler_name, second.handoff.pod.uid) = ("theirs".into(), PodUid::new("uid-second"));
    cluster.pods.insert(second.handoff.pod.key.clone(), second);
    cluster.locked_by_theirs().comes("mine", ONE);
    assert_eq!((cluster.node_of("mine"), cluster.reads), (Some("n"), 1));
}

#[test]
fn a_removal_of_a_lock_that_fails_is_repeated_every_second() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.release_faults.extend([Fault::Fails, Fault::Fails, Fault::LostAnswer]);
    cluster.set_lock("n", &format!("{T},ml,ghost,uid-ghost")).comes("a", ONE).wait(1);
    assert_eq!((cluster.release_faults.len(), cluster.node_of("a")), (1, None));
    assert_eq!(cluster.after(2).node_of("a"), Some("n"));
}

#[test]
fn a_lock_that_this_scheduler_has_removed_is_gone_before_the_watch_shows_it() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.hold(true).set_lock("n", &format!("{T},ml,ghost,uid-ghost")).settle();
    let Effect::Release { node, old, .. } = cluster.held.remove(0) else { panic!("another request") };
    cluster.locks.remove("n");
    let done = EffectResult::Release { node, old, result: LockResult::Done };
    cluster.report(done);
    cluster.comes("a", ONE);
    assert!(matches!(&*cluster.held, [Effect::Lock { old: None, .. }]), "{:?}", cluster.held);
}

#[test]
fn a_node_that_is_deleted_under_a_bind_is_forgotten() {
    let mut cluster = locking("a", 8);
    assert_eq!(cluster.bind_attempts(), 1);
    let agent = WorldEvent::AgentGone("n".into());
    for event in [WorldEvent::NodeGone("n".into()), WorldEvent::DevicesGone("n".into()), agent] {
        cluster.event(event);
    }
    let Effect::Lock { ticket, .. } = cluster.held.remove(0) else { panic!("another request") };
    let gone = EffectResult::Lock { ticket, result: LockResult::NodeGone };
    cluster.report(gone);
    assert_eq!((cluster.comes("b", ONE).bind_attempts(), cluster.world().node_id("n")), (0, None));
}

#[test]
fn a_new_leader_keeps_an_old_lock_for_as_long_as_a_binding_under_it_may_arrive() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.comes("big", TWO).step_down().set_lock("n", &format!("{T},ml,big,uid-big")).wait(100);
    // The leader before posts under one lock for a minute and more.
    cluster.lead();
    assert_eq!(cluster.after(55).holder("n"), Some("big"));
    assert_eq!(cluster.after(10).holder("n"), None);
}
