//! Pods that change gangs, gangs that change groups, members that change: whose a commit is, who holds what, and what is worth
//! another try.

use baton::decide::world::spec::Qos;
use baton::decide::world::spec::TolerationOperator;

use crate::prelude::*;

const AB: (&str, &str) = ("groups", r#"["ml/a","ml/b"]"#);

/// No member of the gang is bound, now and after a restart.
fn stays_out(gangs: &mut TestGangs, name: &str) {
    assert_eq!(gangs.after(3).count(name), 0);
    gangs.cluster.restart();
    assert_eq!(gangs.after(3).count(name), 0, "nor after a restart");
}

#[test]
fn a_bound_pod_that_is_given_to_another_gang_proves_nothing_of_that() {
    for before_it_exists in [true, false] {
        let mut gangs = TestGangs::new(4);
        gangs.come("a", 3, &gang("a", "3", &[]));
        if before_it_exists {
            gangs.restate("a-0", &gang("b", "3", &[]));
        }
        assert_eq!(gangs.members("b", 3, &gang("b", "3", &[])).after(2).counts(["a", "b"]), [3, 0]);
        gangs.restate("a-0", &gang("b", "3", &[]));
        stays_out(&mut gangs, "b");
        gangs.cluster.change_node("n", |facts| facts.allocatable.set("cpu", "6".parse().unwrap()));
        assert_eq!(gangs.after(3).count("b"), 3, "with room for three it starts");
    }
}

#[test]
fn a_group_that_is_made_later_starts_whole_whatever_one_of_its_gangs_did_before() {
    // More members than both gangs need together, and fewer of them than there were.
    for (members, ended) in [(5, 0), (3, 1)] {
        let mut gangs = TestGangs::new(members + 2);
        gangs.come("a", members as usize, &gang("a", "2", &[])).members("b", 3, &gang("b", "3", &[AB])).wait(2);
        (0..ended).for_each(|n| gangs.cluster.finish(&format!("a-{n}")));
        assert_eq!((gangs.after(1).count("b"), gangs.reason("b-0")), (0, "GangGroupMismatch"));
        gangs.cluster.pod("filler", &[("cpu", if ended == 0 { "0" } else { "1" })]);
        gangs.settle();
        (0..members).for_each(|n| _ = gangs.restate(&format!("a-{n}"), &gang("a", "2", &[AB])));
        stays_out(&mut gangs, "b");
    }
}

#[test]
fn a_gang_whose_members_tolerate_more_is_tried_again_as_a_pod_by_itself_is() {
    let mut gangs = TestGangs::on_plain("n", 4, "x");
    gangs.cluster.change_node("n", |facts| {
        facts.taints = vec![Taint { key: "k".into(), value: "v".into(), effect: TaintEffect::NoSchedule }];
    });
    gangs.members("g", 2, &gang("g", "2", &[]));
    assert_eq!(gangs.after(5).count("g"), 0);
    let everything = Toleration { operator: TolerationOperator::Exists, ..Toleration::default() };
    for name in ["g-0", "g-1"] {
        gangs.change(name, |facts| facts.spec.tolerations = vec![everything.clone()]);
    }
    assert_eq!(gangs.after(2).count("g"), 2, "{}", gangs.condition("g-0"));
}

#[test]
fn a_member_beyond_the_minimum_without_possible_room_does_not_stop_preemption() {
    let mut gangs = TestGangs::on_plain("n", 36, "x");
    (0..36).for_each(|n| gangs.member(&format!("low-{n}"), &[]));
    gangs.settle();
    let keys = gang("high", "33", &[]);
    gangs.all_of_priority("high", 33, 9, &keys).asks_as("high-big", &[("cpu", "2")], &keys, |facts| {
        facts.spec.priority = 9;
        facts.spec.node_selector = labels_of("pool", "none");
    });
    assert_eq!(gangs.settled().cluster.evicted.len(), 33);
    assert!(!gangs.condition("high-0").contains("high-big"), "{}", gangs.condition("high-0"));
}

#[test]
fn the_sub_priority_of_a_gang_that_waits_counts_as_soon_as_it_is_changed() {
    let mut gangs = TestGangs::on_plain("n", 1, "x");
    gangs.comes("first", &[]);
    ["a", "b"].into_iter().for_each(|name| _ = gangs.members(name, 1, &gang(name, "1", &[])));
    gangs.wait(3);
    let important = declared(
        "ml",
        &[gang("b", "1", &[]), vec![("label:koordinator.sh/priority".to_owned(), "10".to_owned())]].concat(),
    );
    gangs.change("b-0", |facts| facts.spec.gang = important).after(3).delete("first");
    assert_eq!(gangs.after(3).counts(["a", "b"]), [0, 1]);
}

#[test]
fn members_that_hold_room_say_that_capacity_keeps_them_waiting() {
    let mut gangs = TestGangs::holding(4);
    gangs.members("g", 5, &gang("g", "5", &[("mode", "NonStrict")]));
    assert_eq!(gangs.after(2).reserved("ml/g"), 4);
    for n in 0..5 {
        let name = format!("g-{n}");
        assert_eq!(gangs.reason(&name), "Unschedulable", "{name}: {}", gangs.condition(&name));
        tells(gangs.condition(&name), ["gang ml/g: 4 of 5 placed"]);
    }
}

#[test]
fn surplus_of_a_gang_that_was_satisfied_all_the_time_is_no_new_quorum() {
    let mut gangs = TestGangs::new(3).asked("g", 4, "3", &[("match-policy", "waiting-and-running")]);
    assert_eq!((gangs.after(2).count("g"), gangs.reported("GangSatisfied")), (3, 1));
    gangs.cluster.change_node("n", |facts| facts.allocatable.set("cpu", "4".parse().unwrap()));
    assert_eq!((gangs.after(3).count("g"), gangs.reported("GangSatisfied")), (4, 1));
    assert_eq!(gangs.cluster.stats().groups.satisfied, 1);
}

#[test]
fn gangs_whose_rule_stays_are_counted_as_waiting_and_those_of_others_are_not() {
    let mut gangs = TestGangs::new(3);
    let keys = gang("g", "3", &[("match-policy", "only-waiting")]);
    gangs.members("g", 3, &keys).after(2).delete("g-0");
    gangs.member("g-3", &keys);
    gangs.asks_as("o-0", CPU, &gang("o", "2", &[]), |facts| facts.handoff.scheduler_name = "another".into());
    gangs.wait(2);
    assert_eq!((gangs.reason("g-3"), gangs.cluster.scheduler.waiting_groups()), ("GangIncomplete", 1));
}

#[test]
fn what_a_pod_group_asks_for_in_all_is_told_in_the_units_of_people() {
    let mut gangs = TestGangs::new(4);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(1);
        facts.min_resources = Resources::of([("cpu", "1000".parse().unwrap())]);
    });
    gangs.members("g", 1, &[(P.to_owned(), "g".to_owned())]).wait(2);
    tells(gangs.condition("g-0"), ["asks for at least 1k cpu beyond what its members have, 4 are free in all"]);
}

#[test]
fn a_commit_whose_first_member_has_ended_before_the_last_one_was_bound_is_whole() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    gangs.all_ask("g", 4, ONE, &gang("g", "3", &[("match-policy", "only-waiting")])).cluster.settle();
    let first = gangs.bound();
    assert_eq!(first.len(), 1, "the others stand in the node's line");
    gangs.cluster.agent_releases("n").finish(&first[0]);
    assert_eq!(gangs.settled().bound().len(), 3);
    assert_eq!(gangs.after(3).bound().len(), 3, "a fourth one needs a quorum");
}

#[test]
fn a_commit_is_completed_by_the_next_leader_where_its_first_member_has_ended() {
    for policy in ["only-waiting", "waiting-and-running", "once-satisfied"] {
        let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
        let keys = gang("g", "3", &[("match-policy", policy)]);
        gangs.all_ask("g", 3, ONE, &keys).cluster.settle();
        let first = gangs.bound();
        assert_eq!(first.len(), 1, "the others stand in the node's line");
        gangs.cluster.finish(&first[0]);
        gangs.cluster.restart();
        assert_eq!(gangs.settled().bound().len(), 3, "{policy}: {}", gangs.condition("g-2"));
        // A run after it has a minimum of its own.
        (0..3).for_each(|n| gangs.cluster.finish(&format!("g-{n}")));
        gangs.after(1).asks("g-3", ONE, &keys);
        gangs.cluster.restart();
        assert_eq!(gangs.settled().bound().len(), 3, "{policy}");
    }
}

#[test]
fn members_that_disagree_in_two_dialects_are_told_so() {
    let mut gangs = TestGangs::new(0);
    let older = [(format!("{P}/name"), "g".to_owned()), (format!("{P}/min-available"), "3".to_owned())];
    gangs.member("g-0", &older);
    assert_eq!(gangs.comes("g-1", &[older[0].clone()]).reported("GangConfigConflict"), 0);
    assert_eq!(gangs.comes("g-2", &gang("g", "5", &[])).reported("GangConfigConflict"), 1);
}

#[test]
fn the_class_of_a_gang_is_that_of_its_lowest_living_member() {
    let mut gangs = TestGangs::new(2).asked("g", 2, "2", &[]);
    (0..2).for_each(|n| _ = gangs.change(&format!("g-{n}"), |facts| facts.spec.qos = Qos::Guaranteed));
    gangs.settle();
    // Of one that has ended, nothing is read any more that it asked for.
    gangs.change("g-1", |facts| {
        facts.handoff.phase = Phase::Succeeded;
        facts.spec.qos = Qos::default();
    });
    gangs.settle();
    let id = GangId::parse("ml/g").unwrap();
    let class = gangs.cluster.world().gangs().gang(&id).unwrap().class();
    assert_eq!(class, Some(Qos::Guaranteed as u8));
}

#[test]
fn the_wait_begins_anew_when_all_that_was_held_is_lost() {
    let mut gangs = TestGangs::with(Default::default()).accumulating();
    gangs.plain_node("n", 1, "x");
    gangs.members("g", 2, &gang("g", "2", &[("mode", "NonStrict"), ("waiting-time", "60s")]));
    assert_eq!(gangs.after(50).reserved("ml/g"), 1);
    gangs.cluster.loses_node("n");
    gangs.after(2).plain_node("m", 1, "x").wait(40);
    assert_eq!((gangs.reserved("ml/g"), gangs.reported("GangTimeout")), (1, 0));
    assert_eq!((gangs.after(30).reserved("ml/g"), gangs.reported("GangTimeout")), (0, 2));
}
