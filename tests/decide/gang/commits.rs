//! What a commit is made of: members that an earlier commit is still binding, members that come back, and members that have ended.

use crate::harness::scheduler::Fault;
use crate::prelude::*;

/// Nodes of one GPU each. Requests are held.
fn on_nodes(count: usize) -> TestGangs {
    let mut gangs = TestGangs::with(Default::default());
    (0..count).for_each(|n| _ = gangs.cluster.node(&format!("n{n}"), 1));
    gangs.cluster.hold(true);
    gangs
}

impl TestGangs {
    fn opens(&mut self, node: usize, open: bool) -> &mut Self {
        self.cluster.change_node(&format!("n{node}"), |facts| facts.unschedulable = !open);
        self
    }

    /// Every request that is held reaches the API server, but the lock of this pod.
    fn deliver_but(&mut self, name: &str) -> &mut Self {
        let kept = format!(",{name},");
        self.deliver_until(|effect| !matches!(effect, Effect::Lock { new, .. } if new.contains(&kept)))
    }

    /// Such requests reach the API server, until none of them is held.
    fn deliver_until(&mut self, goes: impl Fn(&Effect) -> bool) -> &mut Self {
        while let Some(at) = self.cluster.held.iter().position(&goes) {
            self.cluster.deliver_one(at).settled().audit();
        }
        self.settled()
    }

    fn committed_with(&self, name: &str) -> Option<u32> {
        let pod = &self.cluster.pods[&TestGangs::key(name)];
        pod.handoff.assignment.committed.map(|commit| commit.members)
    }
}

/// A gang of three: two members go while the locks of all are written. Its keys, for those that come after them.
fn one_is_being_bound(policy: &str) -> (TestGangs, Vec<(String, String)>) {
    let mut gangs = on_nodes(3);
    let keys = gang("g", "3", &[("match-policy", policy)]);
    gangs.all_ask("g", 3, ONE, &keys).settle();
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    (gangs, keys)
}

/// A gang that has some of its members bound and waits for the others holds devices that compute nothing.
#[test]
fn members_of_a_commit_take_the_lock_before_older_pods_of_their_priority() {
    let mut gangs = TestGangs::with_gpus(&[("n", 8)]);
    gangs.asks("blocker", ONE, &[]);
    gangs.cluster.settle();
    gangs.asks("single", ONE, &[]);
    gangs.cluster.settled().wait(2);
    gangs.all_ask("g", 2, ONE, &gang("g", "2", &[])).cluster.settle();
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(gangs.cluster.holder("n").unwrap().to_owned());
        gangs.cluster.serves("n");
    }
    assert_eq!(order, ["blocker", "g-0", "g-1", "single"]);
}

/// As when the Binding of an earlier term arrives after the room of its pod was given to a gang.
#[test]
fn a_member_in_the_line_gives_way_to_a_pod_that_another_leader_has_bound() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    gangs.asks("blocker", ONE, &[]);
    gangs.cluster.settle();
    gangs.all_ask("g", 2, ONE, &gang("g", "2", &[]));
    assert_eq!(gangs.cluster.settled().holder("n"), Some("blocker"), "both wait in the line");
    let blocked = gangs.cluster.devices_of("blocker").of(&DeviceType::Gpu)[0].minor;
    gangs.cluster.node("m", 2).bound_by_another("theirs", "n", i64::from((blocked + 1) % 3));
    gangs.cluster.settled().audit();
    assert_eq!(gangs.settled().count("g"), 2);
}

#[test]
fn a_member_that_an_earlier_commit_is_binding_belongs_to_the_next_one_too() {
    let (mut gangs, keys) = one_is_being_bound("waiting-and-running");
    gangs.deliver_but("g-2");
    ["g-3", "g-4"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    gangs.settled().deliver_but("g-2");
    assert_eq!((gangs.committed_with("g-3"), gangs.committed_with("g-4")), (Some(3), Some(3)));
    // It cannot be bound, and the others come to their end: the commit is not whole without it.
    gangs.cluster.bind_faults.push_back(Fault::Refused);
    gangs.cluster.deliver();
    ["g-3", "g-4"].iter().for_each(|name| gangs.cluster.finish(name));
    assert!(gangs.after(5).cluster.node_of("g-2").is_some());
    assert_eq!(gangs.committed_with("g-2"), Some(3));
}

#[test]
fn a_member_whose_binding_is_requested_stays_of_its_commit() {
    let (mut gangs, keys) = one_is_being_bound("only-waiting");
    gangs.deliver_until(|effect| !matches!(effect, Effect::Bind { .. }));
    assert!(matches!(gangs.cluster.held.as_slice(), [Effect::Bind { .. }]), "{:?}", gangs.cluster.held);
    // The next two are satisfied together with it; a third one has no room.
    ["g-3", "g-4", "g-5"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    gangs.settled().cluster.deliver();
    gangs.wait(2);
    let names = ["g-2", "g-3", "g-4"].map(|name| gangs.committed_with(name));
    assert_eq!(names, [Some(3), Some(2), Some(2)]);
    // Both commits are whole: nothing is left that the third one could complete.
    gangs.delete("g-2");
    assert_eq!(gangs.after(5).cluster.node_of("g-5"), None);
}

/// Four take their locks. The Binding of one is on its way, that of another is refused, and the scheduler ends when the next one is bound.
#[test]
fn a_member_whose_binding_was_refused_counts_those_that_are_on_their_way() {
    let mut gangs = on_nodes(4);
    gangs.all_ask("g", 4, ONE, &gang("g", "4", &[("match-policy", "only-waiting")])).settle();
    let locks = |effect: &Effect, name: &str| matches!(effect, Effect::Lock { new, .. } if new.contains(name));
    let binds = |effect: &Effect, name: &str| matches!(effect, Effect::Bind { pod, .. } if &*pod.key.name == name);
    let is_first_two = |effect: &Effect| [",g-0,", ",g-1,"].iter().any(|name| locks(effect, name));
    gangs.deliver_until(is_first_two);
    let refused = gangs.cluster.held.iter().position(|effect| binds(effect, "g-1")).unwrap();
    gangs.cluster.bind_faults.push_back(Fault::Refused);
    gangs.cluster.deliver_one(refused);
    gangs.wait(2);
    while gangs.bound().is_empty() {
        let next = gangs.cluster.held.iter().position(|effect| !binds(effect, "g-0"));
        gangs.cluster.deliver_one(next.expect("one that can be bound"));
        gangs.settle();
    }
    gangs.cluster.hold(false).restart();
    assert_eq!(gangs.after(60).bound().len(), 4);
}

/// Without a lock a member is bound as soon as its commit goes.
#[test]
fn members_that_come_one_by_one_while_others_are_bound_state_the_same_commit() {
    let mut gangs = TestGangs::new(8);
    gangs.cluster.hold(true);
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    ["g-0", "g-1"].iter().for_each(|name| gangs.member(name, &keys));
    gangs.settle();
    ["g-2", "g-3"].into_iter().for_each(|name| _ = gangs.comes(name, &keys));
    let binds =
        |effect: &Effect, names: &[&str]| matches!(effect, Effect::Bind { pod, .. } if names.contains(&&*pod.key.name));
    gangs.deliver_until(|effect| binds(effect, &["g-0", "g-1"])).deliver_until(|effect| binds(effect, &["g-2"]));
    assert_eq!((gangs.bound().len(), gangs.committed_with("g-2")), (3, Some(2)));
    gangs.cluster.hold(false).restart();
    assert_eq!(gangs.after(60).bound().len(), 4);
}

#[test]
fn a_commit_is_whole_with_the_members_that_it_took_over() {
    let (mut gangs, keys) = one_is_being_bound("only-waiting");
    gangs.deliver_but("g-2");
    ["g-3", "g-4", "g-5"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    gangs.settled().deliver_but("g-2");
    let names = ["g-3", "g-4"].map(|name| gangs.committed_with(name));
    assert_eq!(names, [Some(3), Some(3)]);
    // One is bound and gone before the last one is bound.
    gangs.delete("g-3");
    gangs.cluster.deliver();
    assert_eq!((gangs.after(5).committed_with("g-2"), gangs.cluster.node_of("g-5")), (Some(3), None));
}

#[test]
fn a_commit_is_whole_when_its_last_member_is_bound_though_others_have_gone() {
    let mut gangs = on_nodes(3);
    gangs.all_ask("g", 4, ONE, &gang("g", "3", &[("match-policy", "only-waiting")])).settle();
    gangs.deliver_until(|effect| !matches!(effect, Effect::Bind { .. }));
    assert_eq!(gangs.cluster.held.len(), 3, "one has no room");
    (0..2).for_each(|_| _ = gangs.cluster.deliver_one(0));
    gangs.cluster.bind_faults.push_back(Fault::Refused);
    gangs.cluster.deliver();
    let bound: Vec<String> = gangs.settled().bound();
    assert_eq!(bound.len(), 2);
    gangs.delete(&bound[0]);
    gangs.cluster.finish(&bound[1]);
    gangs.wait(5);
    // The refused one has completed its commit. The one without room is as old, and waits for a whole minimum.
    let placed = (0..4).filter(|n| gangs.cluster.pods.contains_key(&TestGangs::key(&format!("g-{n}"))));
    let placed: Vec<bool> = placed.map(|n| gangs.cluster.node_of(&format!("g-{n}")).is_some()).collect();
    assert_eq!(placed.iter().filter(|placed| **placed).count(), 2, "{placed:?}");
}

#[test]
fn a_commit_that_is_cancelled_leaves_nothing_to_complete() {
    let (mut gangs, keys) = one_is_being_bound("only-waiting");
    gangs.deliver_but("g-2").cluster.later(1);
    // The next two are satisfied with it, and wait for a volume.
    let class = ClassFacts { waits: true, provisions: true, ..ClassFacts::default() };
    gangs.cluster.event(WorldEvent::Class("local".into(), class)).claim("g-3", 10, |_| ());
    gangs.asks_as("g-3", ONE, &keys, |facts| facts.spec.volumes = vec![VolumeUse::Claim("g-3".into())]);
    gangs.asks("g-4", ONE, &keys);
    assert_eq!(gangs.settled().cluster.bind_attempts(), 3);
    gangs.cluster.deliver();
    assert_eq!((gangs.settled().committed_with("g-2"), gangs.cluster.node_of("g-4")), (Some(3), None));
    gangs.delete("g-3");
    assert_eq!(gangs.after(5).cluster.node_of("g-4"), None, "it waits for a whole minimum");
}

/// A commit of four has broken off: one member was bound and has ended, and there is room for one more, which is on its way to its
/// lock. Returns its keys.
fn four_of_which_one_has_ended() -> (TestGangs, Vec<(String, String)>) {
    let mut gangs = on_nodes(4).accumulating();
    let keys = gang("g", "4", &[("match-policy", "waiting-running-succeed"), ("mode", "NonStrict")]);
    gangs.all_ask("g", 4, ONE, &keys).cluster.settle();
    gangs.deliver_until(|effect| !matches!(effect, Effect::Bind { .. }));
    assert_eq!(gangs.cluster.held.len(), 4, "{:?}", gangs.cluster.held);
    gangs.cluster.deliver_one(0).bind_faults.extend((0..3).map(|_| Fault::Refused));
    gangs.cluster.deliver();
    let bound = gangs.settled().bound();
    assert_eq!(bound.len(), 1);
    gangs.cluster.finish(&bound[0]);
    (1..4).for_each(|n| _ = gangs.opens(n, false));
    gangs.cluster.hold(true);
    gangs.wait(5);
    assert_eq!((gangs.cluster.bind_attempts(), gangs.cluster.held.len()), (1, 1), "{:?}", gangs.cluster.held);
    (gangs, keys)
}

#[test]
fn a_member_that_has_room_already_is_of_the_rest_of_its_commit() {
    let (mut gangs, _) = four_of_which_one_has_ended();
    // One more member gets room, and holds it for the last one.
    assert_eq!((gangs.opens(1, true).after(1).cluster.bind_attempts(), gangs.cluster.reservations()), (1, 1));
    // It goes on as soon as the one before it is bound.
    gangs.deliver_until(|effect| !matches!(effect, Effect::Lock { node, .. } if **node == *"n1")).wait(1);
    assert_eq!((gangs.cluster.bind_attempts(), gangs.cluster.reservations()), (1, 0));
    gangs.cluster.deliver();
    assert_eq!(gangs.opens(2, true).after(5).stand("g"), (4, 0), "{:?}", gangs.bound());
}

#[test]
fn no_member_of_a_broken_commit_keeps_its_room_when_the_last_one_goes() {
    let (mut gangs, _) = four_of_which_one_has_ended();
    assert_eq!((gangs.opens(1, true).after(1).cluster.bind_attempts(), gangs.cluster.reservations()), (1, 1));
    // The last one gets room at the moment when the one before it is bound.
    gangs.opens(2, true).cluster.deliver();
    assert_eq!(gangs.after(5).stand("g"), (4, 0), "{:?}", gangs.bound());
}

#[test]
fn a_younger_member_that_holds_room_is_not_forgotten_when_the_rest_of_a_commit_goes() {
    let (mut gangs, keys) = four_of_which_one_has_ended();
    gangs.plain_node("own", 1, "own");
    gangs.asks_as("g-9", CPU, &keys, |facts| facts.spec.node_selector = labels_of("pool", "own")).wait(1);
    assert_eq!((gangs.cluster.bind_attempts(), gangs.cluster.reservations()), (1, 1), "it waits for others");
    gangs.cluster.deliver();
    assert_eq!((gangs.after(1).count("g"), gangs.cluster.reservations()), (2, 1), "two have no room");
    (1..3).for_each(|n| _ = gangs.opens(n, true));
    assert_eq!(gangs.after(5).stand("g"), (5, 0), "{:?}", gangs.bound());
}

#[test]
fn a_member_that_comes_back_alone_stays_of_its_commit() {
    let mut gangs = on_nodes(2);
    gangs.all_ask("g", 2, ONE, &gang("g", "2", &[])).cluster.bind_faults.push_back(Fault::Refused);
    gangs.settled().deliver_but("g-1").after(5).deliver_but("g-1");
    assert_eq!(gangs.committed_with("g-0"), Some(2), "it was refused once, and is bound");
    // The next leader knows by it that the other one is still to come, though it has ended.
    gangs.cluster.finish("g-0");
    gangs.cluster.restart();
    gangs.cluster.hold(false).held.clear();
    assert!(gangs.after(5).cluster.node_of("g-1").is_some());
}

#[test]
fn the_end_of_an_old_commit_queues_members_as_they_count_then() {
    let mut gangs = on_nodes(3);
    let keys = gang("g", "2", &[]);
    gangs.all_ask("g", 2, ONE, &keys).settle();
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.deliver_but("g-1");
    // The next generation: one of its two is bound, the other one is refused.
    ["g-2", "g-3"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    gangs.cluster.bind_faults.push_back(Fault::Refused);
    gangs.settled().deliver_but("g-1").cluster.deliver();
    gangs.settled().wait(5);
    assert!(["g-2", "g-3"].iter().all(|name| gangs.cluster.node_of(name).is_some()));
}

#[test]
fn a_gang_whose_members_have_ended_was_satisfied_for_those_that_are_older() {
    let mut gangs = TestGangs::new(2);
    assert_eq!(gangs.come("g", 3, &gang("g", "2", &[])).count("g"), 2);
    let placed = |gangs: &TestGangs, name: &str| gangs.cluster.node_of(name).is_some();
    let names = ["g-0", "g-1", "g-2"];
    let waits = names.into_iter().find(|name| !placed(&gangs, name)).unwrap();
    let ended: Vec<&str> = names.into_iter().filter(|name| *name != waits).collect();
    gangs.cluster.finish(ended[0]);
    gangs.delete(ended[1]);
    gangs.restart(2);
    assert!(placed(&gangs, waits));
}

#[test]
fn a_member_that_was_told_to_stop_does_not_count_though_it_ends_well() {
    let mut gangs = TestGangs::new(4);
    let keys = gang("g", "3", &[("match-policy", "waiting-running-succeed")]);
    gangs.come("g", 3, &keys);
    let now = wall(gangs.cluster.now);
    for name in ["g-0", "g-1"] {
        gangs.change(name, |facts| facts.handoff.deleting = Some(Deletion { at: now, grace_seconds: 30 }));
        gangs.cluster.finish(name);
    }
    gangs.member("g-3", &keys);
    assert_eq!((gangs.after(2).count("g-3"), gangs.reason("g-3")), (0, "GangIncomplete"));
    gangs.cluster.finish("g-2");
    gangs.member("g-4", &keys);
    assert_eq!(gangs.after(2).counts(["g-3", "g-4"]), [1, 1], "with the one that has done its work");
}

#[test]
fn a_commit_is_later_than_those_of_a_leader_whose_clock_was_ahead() {
    let mut gangs = TestGangs::new(2);
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    gangs.come("g", 2, &keys);
    let ahead = wall(gangs.cluster.now + Duration::from_secs(900));
    for name in ["g-0", "g-1"] {
        gangs.change(name, |facts| facts.handoff.assignment.committed.as_mut().unwrap().attempt = ahead);
    }
    // The next two wait for their room, so that the group is not forgotten.
    ["g-2", "g-3"].iter().for_each(|name| gangs.member(name, &keys));
    gangs.settle();
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.wait(2);
    let commit = gangs.cluster.pods[&TestGangs::key("g-2")].handoff.assignment.committed.unwrap();
    assert!(commit.attempt > ahead, "{commit} is to be known as the latest");
}

#[test]
fn a_member_bound_alone_proves_it_for_older_ones_though_the_leaders_clock_is_behind() {
    let mut gangs = TestGangs::new(3);
    let keys = gang("g", "2", &[]);
    let later = |gangs: &mut TestGangs, name: &str| {
        let mut facts = gangs.facts(name, CPU, &keys);
        facts.handoff.created = wall(gangs.cluster.now + Duration::from_secs(900));
        gangs.cluster.submit(facts);
    };
    ["g-0", "g-1"].iter().for_each(|name| later(&mut gangs, name));
    gangs.settle();
    // The third is bound alone, and the fourth waits for room.
    ["g-2", "g-3"].iter().for_each(|name| later(&mut gangs, name));
    assert_eq!((gangs.settled().count("g"), gangs.committed_with("g-2")), (3, Some(1)));
    gangs.cluster.finish("g-2");
    ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
    gangs.cluster.restart();
    assert!(gangs.after(2).cluster.node_of("g-3").is_some());
}
