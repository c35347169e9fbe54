//! Commits of a group that wait for each other: what an open one lacks, and what of it counts afterwards.

use super::volumes::with_claims;
use crate::prelude::*;

const BOTH: &str = r#"["ml/learner","ml/actor"]"#;

#[test]
fn no_member_goes_before_it_is_sure_that_one_of_a_later_commit_does() {
    for policy in ["only-waiting", "waiting-and-running", "waiting-running-succeed"] {
        let mut gangs = with_claims(8);
        let keys = gang("g", "2", &[("match-policy", policy)]);
        ["g-0", "g-1"].iter().for_each(|name| _ = gangs.claims(name, &keys));
        gangs.after(1).claims("g-2", &keys).after(1).delete("g-1");
        gangs.after(2).cluster.provision("g-0");
        assert_eq!(gangs.after(2).bound(), [""; 0], "{policy}");
        gangs.cluster.provision("g-2");
        assert_eq!(gangs.after(3).count("g"), 2, "{policy}");
    }
}

#[test]
fn no_member_is_bound_where_the_node_of_another_went_before_the_first_lock() {
    let mut gangs = with_claims(1);
    gangs.plain_node("b", 1, "y");
    let keys = gang("g", "2", &[]);
    gangs.claims("g-0", &keys).member("g-1", &keys);
    assert_eq!(gangs.after(2).cluster.selected("g-0"), Some("a"));
    gangs.cluster.loses_node("b");
    gangs.after(2).cluster.provision("g-0");
    assert_eq!(gangs.after(3).bound(), [""; 0]);
}

#[test]
fn a_gang_that_leaves_a_group_whose_commit_is_not_sure_was_not_satisfied() {
    let lists = |text: &'static str| {
        move |facts: &mut PodGroupFacts| {
            let stated = BTreeMap::from([(format!("{G}groups"), text.to_owned())]);
            facts.annotated = DeclaredFields::of_pod_group(None, Some(&stated)).0;
            facts.spec.min = Some(2);
        }
    };
    let mut gangs = with_claims(8);
    gangs.pod_group("ml/learner", lists(BOTH));
    let keys = vec![(P.to_owned(), "learner".to_owned())];
    gangs.member("learner-0", &keys);
    gangs.claims("learner-1", &keys).member("actor-0", &gang("actor", "1", &[("groups", BOTH)]));
    assert_eq!((gangs.after(2).reserved("ml/learner"), gangs.reserved("ml/actor")), (2, 1));
    gangs.pod_group("ml/learner", lists("")).delete("learner-1");
    assert_eq!(gangs.after(5).bound(), [""; 0], "one of two");
}

#[test]
fn a_binding_that_leaves_as_another_member_is_bound_is_on_its_way() {
    let mut gangs = TestGangs::new(4);
    gangs.cluster.hold(true);
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    gangs.member("g-0", &keys);
    gangs.asks("g-1", &[("cpu", "1"), (key::NVIDIA_GPU, "1")], &keys);
    gangs.cluster.settled().later(1);
    // Two wait until the first is bound, and the last has no room.
    for n in 2..5 {
        gangs.member(&format!("g-{n}"), &keys);
        gangs.cluster.settle();
    }
    let lock = gangs.cluster.held.iter().position(|effect| matches!(effect, Effect::Lock { .. })).unwrap();
    gangs.cluster.lock_faults.push_back(Fault::LostAnswer);
    gangs.cluster.deliver_one(lock);
    // The first is bound when the pause of the second is over, before its timer fires.
    gangs.cluster.now += Duration::from_millis(100);
    gangs.cluster.deliver_one(0).deliver();
    gangs.wait(2);
    let commit = gangs.cluster.pods[&TestGangs::key("g-2")].handoff.assignment.committed.unwrap();
    assert_eq!(commit.members, 2, "the second states its own");
    gangs.delete("g-0");
    gangs.cluster.restart();
    assert_eq!(gangs.after(3).cluster.node_of("g-4"), None, "it waits for a whole minimum");
}

#[test]
fn no_member_is_bound_once_more_where_a_gang_of_its_group_is_gone() {
    let keys = |name: &'static str| gang(name, "1", &[("groups", BOTH), ("match-policy", "only-waiting")]);
    let mut gangs = with_claims(8);
    gangs.member("learner-0", &keys("learner"));
    gangs.member("actor-0", &keys("actor"));
    gangs.after(2).delete("actor-0");
    gangs.claims("learner-1", &keys("learner")).member("actor-1", &keys("actor"));
    gangs.after(2).delete("actor-1");
    gangs.cluster.provision("learner-1");
    assert_eq!(gangs.after(5).bound(), ["learner-0"]);
}

#[test]
fn the_rest_of_a_commit_is_whole_though_those_bound_before_are_gone() {
    let mut gangs = with_claims(3);
    gangs.cluster.hold(true);
    let keys = gang("g", "3", &[("match-policy", "only-waiting")]);
    gangs.come("g", 3, &keys).comes("g-3", &keys).cluster.later(1).deliver_only(2);
    let left = (0..3).map(|n| format!("g-{n}")).find(|name| gangs.cluster.node_of(name).is_none()).unwrap();
    gangs.cluster.claim("late", 10, |_| ());
    let facts = gangs.cluster.pods.get_mut(&TestGangs::key(&left)).unwrap();
    facts.spec.volumes = vec![VolumeUse::Claim("late".into())];
    assert_eq!(gangs.restart(2).stand("g"), (2, 1));
    gangs.bound().iter().for_each(|name| gangs.delete(name));
    gangs.after(2).cluster.provision("late");
    assert_eq!(gangs.after(5).bound(), [left], "the other one waits for a whole minimum");
}

#[test]
fn a_pod_takes_its_place_while_room_is_made_for_another_one_on_the_node() {
    let mut jobs = TestJobs::on("a", 4, 0);
    jobs.cluster.comes_as("low", CPU, |facts| facts.spec.priority = -10);
    jobs.run("rl", CPU, (2, CPU), |_| {}).cluster.comes_as("urgent", CPU, |facts| facts.spec.priority = 100);
    assert_eq!((&jobs.cluster.evicted[..], jobs.reserved()), (&["low".to_owned()][..], 3));
    jobs.controller("rl");
    assert_eq!((jobs.cluster.node_of("rl-learner"), jobs.cluster.stats().jobs.places_void), (Some("a"), 0));
}

#[test]
fn a_gang_that_changes_its_group_when_the_last_member_of_a_commit_goes_is_tried() {
    let of = |name: &'static str, more: &[(&'static str, &'static str)]| {
        gang(name, "1", &[&[("match-policy", "only-waiting")], more].concat())
    };
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    gangs.plain_node("p", 8, "x").asks("blocker", ONE, &[]);
    gangs.cluster.settled().later(1);
    gangs.asks("learner-0", ONE, &of("learner", &[("groups", BOTH)]));
    gangs.member("actor-0", &of("actor", &[("groups", BOTH)]));
    gangs.cluster.settled().later(1);
    gangs.asks("learner-1", ONE, &of("learner", &[]));
    gangs.cluster.settle();
    gangs.delete("learner-0");
    assert_eq!(gangs.after(30).count("learner-1"), 1, "{}", gangs.condition("learner-1"));
}

#[test]
fn a_refused_member_completes_its_commit_though_another_one_has_gone_alone() {
    let mut gangs = TestGangs::new(4);
    gangs.cluster.hold(true);
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    gangs.come("g", 2, &keys).comes("g-2", &keys).cluster.bind_faults.push_back(Fault::Refused);
    gangs.cluster.deliver();
    assert_eq!(gangs.after(5).count("g"), 3, "{:?}", gangs.bound());
}

#[test]
fn the_lock_of_a_member_of_the_rest_that_cannot_be_resumed_goes_after_a_minute() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    gangs.cluster.hold(true);
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    ["g-0", "g-1"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    gangs.settle();
    (0..2).for_each(|_| _ = gangs.cluster.deliver_one(0));
    let left = if gangs.bound() == ["g-0"] { "g-1" } else { "g-0" };
    gangs.cluster.hold(false).locks.clear();
    gangs.asks_as("urgent", ONE, &[], |facts| facts.spec.priority = 9).restart(3);
    assert_eq!((gangs.count("urgent"), gangs.cluster.node_of(left)), (1, None));
    let uid = gangs.cluster.pods[&TestGangs::key(left)].handoff.pod.uid.clone();
    let time = wall(gangs.cluster.now);
    gangs.cluster.set_lock("n", &format!("{time:.9},ml,{left},{}", uid.as_str()));
    assert_eq!(gangs.cluster.after(75).holder("n"), None);
}

#[test]
fn what_a_gang_lacks_before_the_first_lock_counts() {
    // The one that it was to run beside.
    let mut gangs = with_claims(8);
    let keys = gang("g", "2", &[("match-policy", "waiting-and-running")]);
    gangs.members("g", 2, &keys).after(2).delete("g-0");
    gangs.claims("g-2", &keys).after(2).change("g-1", |facts| facts.handoff.phase = Phase::Failed).wait(2);
    gangs.cluster.provision("g-2");
    assert_eq!(gangs.after(3).cluster.node_of("g-2"), None);
    // A minimum that was raised.
    let mut gangs = with_claims(8);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    let keys = vec![(P.to_owned(), "g".to_owned())];
    gangs.member("g-0", &keys);
    gangs.claims("g-1", &keys).after(2).pod_group("ml/g", |facts| facts.spec.min = Some(3)).wait(2);
    gangs.cluster.provision("g-1");
    assert_eq!(gangs.after(3).bound(), [""; 0]);
}
