//! What happens to gangs beside the table of scenarios: rules that vanish, holders that give way, members that ask for unlike
//! things, Bindings that are refused.

use baton::decide::core::{GangPolicy, OnBindFailure};
use baton::decide::world::NodeFacts;

use super::whole::{share, three_gangs};
use crate::prelude::*;

fn no_nodes() -> TestGangs {
    TestGangs::with(Config::default()).accumulating()
}

impl TestGangs {
    /// A member that goes to nodes of these pools only.
    fn member_of(&mut self, name: &str, cpus: &str, pools: &[&str], keys: &[(String, String)]) -> &mut Self {
        self.asks_as(name, &[("cpu", cpus)], keys, |facts| facts.spec.node_required = Some(vec![among("pool", pools)]))
    }
}

fn of_pod_group(name: &str) -> Vec<(String, String)> {
    vec![(P.to_owned(), name.to_owned())]
}

#[test]
fn a_member_that_moves_when_others_give_way_never_leaves_two_pods_on_one_place() {
    let mut gangs = no_nodes();
    [("x", 2), ("y", 2), ("z", 1)].into_iter().for_each(|(node, cpus)| _ = gangs.plain_node(node, cpus, node));
    let keys = |name: &'static str| gang(name, "2", &[("mode", "NonStrict")]);
    // First in rank: holds x with the one that may go to y as well, and lacks x for the other.
    gangs.member_of("t-0", "2", &["x", "later"], &keys("t")).member_of("t-1", "1", &["x"], &keys("t")).wait(1);
    gangs.member_of("l-0", "2", &["y", "later"], &keys("l")).member_of("l-1", "64", &["y"], &keys("l")).wait(1);
    gangs.member_of("m-0", "1", &["z"], &keys("m")).member_of("m-1", "64", &["z"], &keys("m")).wait(1);
    assert_eq!(["ml/t", "ml/l", "ml/m"].map(|name| gangs.reserved(name)), [1, 1, 1]);
    // y turns into a pool that the first may use.
    gangs.cluster.change_node("y", |facts| facts.labels = labels_of("pool", "later"));
    gangs.wait(3);
    assert_eq!((gangs.count("t"), gangs.cluster.node_of("t-0")), (2, Some("y")), "{:?}", gangs.cluster.notices);
    assert_eq!(gangs.reserved("ml/l"), 0, "its room is taken");
}

#[test]
fn a_minimum_that_is_lowered_to_zero_lets_every_member_go_alone() {
    let mut gangs = TestGangs::new(3);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(5)).members("g", 5, &of_pod_group("g"));
    assert_eq!(gangs.after(2).count("g"), 0);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(0));
    assert_eq!(gangs.after(2).count("g"), 3);
    gangs.node("more", 2);
    assert_eq!(gangs.after(2).count("g"), 5);
}

#[test]
fn the_oldest_member_that_drops_the_minimum_frees_all_others() {
    let mut gangs = TestGangs::new(3).asked("g", 5, "5", &[]);
    gangs.wait(2);
    let oldest = gangs.cluster.world().gangs().gangs().next().unwrap().members().next().unwrap();
    let oldest = oldest.identity.key.name.to_string();
    gangs.restate(&oldest, &gang("g", "0", &[]));
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn pods_that_waited_for_a_pod_group_without_a_minimum_go_when_it_comes() {
    let mut gangs = TestGangs::new(8);
    gangs.members("g", 3, &of_pod_group("g"));
    assert_eq!(gangs.after(1).reason("g-0"), "WaitingForPodGroup");
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(0));
    assert_eq!(gangs.settled().count("g"), 3);
}

#[test]
fn a_late_pod_of_a_satisfied_gang_goes_when_the_pod_group_that_vanished_is_back() {
    let mut gangs = TestGangs::new(8);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3)).members("g", 3, &of_pod_group("g"));
    gangs.after(1).pod_group_gone("ml/g").member("g-4", &of_pod_group("g"));
    assert_eq!((gangs.after(1).count("g"), gangs.reason("g-4")), (3, "WaitingForPodGroup"));
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    assert_eq!(gangs.settled().count("g"), 4);
}

#[test]
fn a_policy_that_is_edited_to_once_satisfied_lets_the_surplus_go_alone() {
    let mut gangs = TestGangs::new(2);
    let with = |policy| vec![(P.to_owned(), "g".to_owned()), (format!("{G}match-policy"), policy)];
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    gangs.members("g", 3, &with("waiting-and-running".to_owned()));
    assert_eq!(gangs.after(2).count("g"), 2);
    (0..3).for_each(|n| _ = gangs.restate(&format!("g-{n}"), &with("once-satisfied".to_owned())));
    gangs.after(2).node("more", 1);
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn the_sub_priority_of_a_pod_by_itself_counts_too() {
    let mut gangs = TestGangs::new(1);
    gangs.cluster.step_down();
    gangs.member("old", &[]);
    gangs.asks_as("urgent", CPU, &[], |facts| {
        facts.handoff.created += std::time::Duration::from_secs(60);
        facts.spec.labels.insert("koordinator.sh/priority".to_owned(), "10".to_owned());
    });
    gangs.cluster.lead();
    assert_eq!(gangs.settled().bound(), ["urgent"]);
}

/// A node is its own zone.
pub fn zone(gangs: &mut TestGangs, node: &str) {
    gangs.cluster.change_node(node, |facts| _ = facts.labels.insert("zone".into(), node.into()));
}

#[test]
fn the_surplus_of_a_gang_satisfied_in_anothers_attempt_is_not_forgotten() {
    let mut gangs = three_gangs("NonStrict", [5, 6, 5]);
    share(&mut gangs);
    assert_eq!(gangs.counts(["a", "b", "c"]), [5, 5, 0]);
    let left = (0..6).map(|n| format!("b-{n}")).find(|name| gangs.state(name) == MemberState::Pending).unwrap();
    assert_eq!(gangs.reason(&left), "Unschedulable");
    (0..5).for_each(|n| gangs.cluster.finish(&format!("a-{n}")));
    assert_eq!(gangs.after(3).plain_node("more", 2, "shared").after(3).counts(["b", "c"]), [6, 5]);
}

#[test]
fn a_search_for_unlike_members_leaves_the_room_of_a_preempting_gang_alone() {
    let mut gangs = no_nodes();
    ["n0", "n1"].into_iter().for_each(|node| _ = gangs.plain_node(node, 1, "x"));
    gangs.all_of_priority("low", 2, 1, &[]).wait(1);
    gangs.all_of_priority("high", 3, 9, &gang("high", "3", &[])).plain_node("free", 1, "x");
    assert_eq!(gangs.after(2).cluster.nominations(), 3);
    for (n, cpus) in ["1", "500m"].into_iter().enumerate() {
        gangs.asks_as(&format!("rival-{n}"), &[("cpu", cpus)], &gang("rival", "1", &[]), |facts| {
            facts.spec.priority = 5;
        });
    }
    assert_eq!(gangs.after(3).count("rival"), 0);
    (0..2).for_each(|n| gangs.delete(&format!("low-{n}")));
    assert_eq!(gangs.after(2).counts(["high", "rival"]), [3, 0]);
}

#[test]
fn one_picky_member_among_many_alike_gets_its_only_place() {
    for (count, mode) in [(10, "Strict"), (60, "Strict"), (10, "NonStrict")] {
        let mut gangs = TestGangs::on_plain("a", 1, "small").accumulating();
        gangs.plain_node("b", count - 1, "large");
        let min = count.to_string();
        let keys = gang("g", &min, &[("mode", mode)]);
        gangs.members("g", count as usize - 1, &keys);
        gangs.asks_as("g-zz", CPU, &keys, |facts| facts.spec.node_selector = labels_of("pool", "small"));
        assert_eq!(gangs.after(3).bound().len(), count as usize, "{count} {mode}: {}", gangs.condition("g-0"));
    }
}

#[test]
fn a_group_that_was_satisfied_once_stays_free_when_one_of_its_gangs_is_cleaned_up() {
    let mut gangs = TestGangs::new(8);
    let groups = ("groups", r#"["ml/a","ml/b"]"#);
    gangs.members("a", 2, &gang("a", "2", &[groups])).members("b", 3, &gang("b", "3", &[groups]));
    assert_eq!(gangs.after(2).bound().len(), 5);
    (0..2).for_each(|n| gangs.delete(&format!("a-{n}")));
    gangs.delete("b-0");
    gangs.member("b-9", &gang("b", "3", &[groups]));
    assert_eq!(gangs.after(2).count("b-9"), 1, "{}", gangs.condition("b-9"));
    gangs.cluster.restart();
    gangs.delete("b-1");
    gangs.member("b-8", &gang("b", "3", &[groups]));
    assert_eq!(gangs.after(2).count("b-8"), 1, "after a restart too: {}", gangs.condition("b-8"));
}

#[test]
fn where_policies_differ_the_gang_whose_rule_is_over_is_not_held_by_the_other() {
    let mut gangs = TestGangs::new(8);
    let groups = ("groups", r#"["ml/a","ml/b"]"#);
    gangs.members("a", 2, &gang("a", "2", &[groups, ("match-policy", "only-waiting")]));
    gangs.members("b", 2, &gang("b", "2", &[groups]));
    assert_eq!(gangs.after(2).bound().len(), 4);
    gangs.member("b-9", &gang("b", "2", &[groups]));
    assert_eq!(gangs.after(2).count("b-9"), 1, "{}", gangs.condition("b-9"));
    gangs.member("a-9", &gang("a", "2", &[groups, ("match-policy", "only-waiting")]));
    assert_eq!((gangs.after(2).count("a-9"), gangs.reason("a-9")), (0, "GangIncomplete"));
}

#[test]
fn members_that_no_rule_needs_say_why_they_wait_and_go_when_there_is_room() {
    for policy in ["waiting-and-running", "waiting-running-succeed", "once-satisfied"] {
        let mut gangs = TestGangs::new(4).asked("g", 6, "3", &[("match-policy", policy)]);
        assert_eq!(gangs.after(2).count("g"), 4, "{policy}");
        let left: Vec<String> =
            (0..6).map(|n| format!("g-{n}")).filter(|name| gangs.state(name) == MemberState::Pending).collect();
        for name in &left {
            assert_eq!(gangs.reason(name), "Unschedulable", "{policy} {name}");
            assert!(gangs.condition(name).contains("0/1 nodes"), "{policy}: {}", gangs.condition(name));
        }
        gangs.node("more", 2);
        assert_eq!(gangs.after(2).count("g"), 6, "{policy}");
    }
}

#[test]
fn an_important_member_that_no_rule_needs_preempts_by_itself() {
    let mut gangs = TestGangs::new(4);
    for (name, priority, keys) in
        [("low", 1, vec![]), ("high", 9, gang("g", "2", &[("match-policy", "waiting-and-running")]))]
    {
        gangs.all_of_priority(name, 2, priority, &keys);
    }
    assert_eq!(gangs.after(1).bound().len(), 4);
    gangs.of_priority("high-9", 9, &gang("g", "2", &[("match-policy", "waiting-and-running")]));
    assert_eq!(gangs.after(2).cluster.evicted.len(), 1);
    let victim = gangs.cluster.evicted[0].clone();
    gangs.delete(&victim);
    assert_eq!(gangs.after(2).count("high-9"), 1);
}

#[test]
fn a_binding_that_is_always_refused_is_tried_at_growing_distances() {
    for policy in ["once-satisfied", "only-waiting", "waiting-and-running", "waiting-running-succeed"] {
        let mut gangs = TestGangs::new(8);
        let keys = gang("g", "3", &[("match-policy", policy)]);
        gangs.members("g", 3, &keys).after(1).delete("g-0");
        if policy == "only-waiting" {
            gangs.delete("g-1");
            gangs.delete("g-2");
            gangs.come("h", 3, &[]);
            (0..3).for_each(|n| gangs.delete(&format!("h-{n}")));
        }
        gangs.wait(1);
        let before = gangs.cluster.binds;
        gangs.cluster.bind_faults = std::iter::repeat_n(Fault::Refused, 10_000).collect();
        let fresh = if policy == "only-waiting" { 3 } else { 1 };
        gangs.members("n", fresh, &keys).wait(60);
        let tries = (gangs.cluster.binds - before) / fresh;
        assert!((3..=12).contains(&tries), "{policy}: {tries} tries in a minute");
        gangs.cluster.bind_faults.clear();
        assert_eq!(gangs.after(61).count("n"), fresh, "{policy}");
    }
}

#[test]
fn a_gang_that_turns_strict_gives_back_what_it_holds() {
    let mut gangs = TestGangs::holding(2);
    gangs.members("g", 3, &gang("g", "3", &[("mode", "NonStrict")]));
    assert_eq!(gangs.after(1).reserved("ml/g"), 2);
    (0..3).for_each(|n| _ = gangs.restate(&format!("g-{n}"), &gang("g", "3", &[])));
    assert_eq!(gangs.settled().reserved("ml/g"), 0);
}

#[test]
fn a_shorter_wait_and_smaller_resources_of_a_pod_group_count_at_once() {
    let mut gangs = TestGangs::holding(2);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    let keys = vec![(P.to_owned(), "g".to_owned()), (format!("{G}mode"), "NonStrict".to_owned())];
    gangs.members("g", 3, &keys).wait(10);
    gangs.pod_group("ml/g", |facts| {
        facts.spec.min = Some(3);
        facts.spec.wait = Some(std::time::Duration::from_secs(12));
    });
    assert_eq!(gangs.after(4).state("g-0"), MemberState::TimedOut);

    let mut gangs = TestGangs::new(4);
    let sized = |gangs: &mut TestGangs, cpus: i64| {
        gangs.pod_group("ml/g", |facts| {
            facts.spec.min = Some(3);
            facts.min_resources.set("cpu", Quantity::units(cpus));
        });
    };
    sized(&mut gangs, 5);
    gangs.members("g", 3, &of_pod_group("g"));
    assert_eq!(gangs.after(5).count("g"), 0);
    sized(&mut gangs, 3);
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn what_is_held_on_a_node_that_changes_is_judged_again() {
    let changes: [fn(&mut NodeFacts); 2] =
        [|facts| facts.labels = labels_of("pool", "y"), |facts| facts.unschedulable = true];
    for change in changes {
        let mut gangs = TestGangs::on_plain("a", 1, "x").accumulating();
        for n in 0..2 {
            gangs.member_of(&format!("g-{n}"), "1", &["x"], &gang("g", "2", &[("mode", "NonStrict")]));
        }
        assert_eq!(gangs.after(2).reserved("ml/g"), 1);
        gangs.cluster.change_node("a", change);
        gangs.plain_node("b", 1, "x");
        assert_eq!(gangs.after(3).count("g"), 0, "node a does not fit any more");
        gangs.plain_node("c", 1, "x");
        assert_eq!(gangs.after(3).count("g"), 2);
        assert!((0..2).all(|n| gangs.cluster.node_of(&format!("g-{n}")) != Some("a")));
    }
}

#[test]
fn a_holder_that_nobody_can_help_does_not_keep_the_others_blocked() {
    let mut gangs = no_nodes();
    [("t", 1), ("a", 2), ("b", 2)].into_iter().for_each(|(node, cpus)| _ = gangs.plain_node(node, cpus, node));
    gangs.member_of("t-0", "1", &["t"], &gang("t", "2", &[("mode", "NonStrict"), ("waiting-time", "168h")]));
    gangs.member_of("t-1", "1", &["nowhere"], &gang("t", "2", &[("mode", "NonStrict"), ("waiting-time", "168h")]));
    gangs.wait(1);
    for name in ["a", "b"] {
        for n in 0..3 {
            gangs.member_of(&format!("{name}-{n}"), "1", &[name, "s"], &gang(name, "3", &[("mode", "NonStrict")]));
        }
        gangs.wait(1);
    }
    assert_eq!(["ml/t", "ml/a", "ml/b"].map(|name| gangs.reserved(name)), [1, 2, 2]);
    for node in ["a", "b"] {
        gangs.cluster.change_node(node, |facts| facts.labels = labels_of("pool", "s"));
    }
    assert_eq!((gangs.after(3).reserved("ml/t"), gangs.count("a")), (1, 3));
}

#[test]
fn the_only_order_that_places_more_than_eight_members_of_two_kinds_is_found() {
    let mut gangs = no_nodes();
    gangs.cluster.node("a", 4).node("b", 6).change_node("a", |facts| facts.labels = labels_of("pool", "a"));
    let keys = gang("g", "10", &[]);
    gangs.all_ask("any", 6, ONE, &keys);
    for n in 0..4 {
        gangs.asks_as(&format!("picky-{n}"), ONE, &keys, |facts| facts.spec.node_selector = labels_of("pool", "a"));
    }
    assert_eq!(gangs.after(3).bound().len(), 10, "{}", gangs.condition("any-0"));
}

#[test]
fn holders_give_way_and_pods_leave_for_one_gang_where_neither_alone_is_enough() {
    let mut gangs = TestGangs::on_plain("n", 4, "x").accumulating();
    gangs.of_priority("low", 1, &[]).wait(1);
    gangs.all_of_priority("hold", 5, 1, &gang("hold", "5", &[("mode", "NonStrict")])).wait(2);
    assert_eq!((gangs.reserved("ml/hold"), gangs.count("low")), (3, 1));
    gangs.all_of_priority("high", 4, 9, &gang("high", "4", &[])).wait(2);
    assert_eq!((gangs.cluster.evicted.clone(), gangs.reserved("ml/hold")), (vec!["low".to_owned()], 0));
    gangs.delete("low");
    assert_eq!(gangs.after(2).count("high"), 4);
}

#[test]
fn the_rest_of_a_commit_is_bound_where_its_locks_stand_after_a_crash() {
    let mut gangs = no_nodes();
    ["n1", "n2", "n3"].into_iter().for_each(|node| _ = gangs.cluster.node(node, 1));
    gangs.cluster.hold(true);
    let keys = gang("g", "3", &[("match-policy", "only-waiting")]);
    gangs.all_ask("g", 3, &[(baton::contract::key::NVIDIA_GPU, "1")], &keys);
    assert_eq!(gangs.cluster.settled().held.len(), 3, "the locks: {:?}", gangs.cluster.held);
    (0..3).for_each(|_| _ = gangs.cluster.deliver_one(0));
    let is_bind =
        |effect: &baton::decide::scheduler::Effect| matches!(effect, baton::decide::scheduler::Effect::Bind { .. });
    assert!(gangs.cluster.held.len() == 3 && gangs.cluster.held.iter().all(is_bind), "{:?}", gangs.cluster.held);
    gangs.cluster.deliver_only(1);
    let holders: Vec<Option<String>> =
        ["n1", "n2", "n3"].iter().map(|node| gangs.cluster.holder(node).map(str::to_owned)).collect();
    // A node that comes first in every respect.
    gangs.cluster.node("m0", 1).restart();
    assert_eq!(gangs.settled().count("g"), 3);
    for (node, holder) in ["n1", "n2", "n3"].iter().zip(holders) {
        let holder = holder.unwrap();
        assert_eq!(gangs.cluster.node_of(&holder), Some(*node), "{holder} holds the lock of {node}");
    }
}

#[test]
fn a_member_that_owes_makes_room_for_itself_as_any_pod_of_its_priority_does() {
    let mut gangs = TestGangs::on_plain("n", 2, "x").accumulating();
    gangs.cluster.hold(true);
    gangs.all_of_priority("high", 2, 100, &gang("high", "2", &[])).of_priority("low", 0, &[]).cluster.settle();
    // The first one's Binding is refused before the second one is bound.
    for refused in [true, false] {
        gangs.cluster.bind_faults.extend(refused.then_some(Fault::Refused));
        gangs.cluster.deliver_one(0).settle();
    }
    gangs.cluster.deliver();
    assert_eq!(gangs.settled().counts(["high", "low"]), [1, 1], "the other's room was free for a second");
    assert_eq!(gangs.after(3).cluster.evicted, ["low"]);
    gangs.delete("low");
    assert_eq!(gangs.after(3).count("high"), 2);
}

#[test]
fn a_condition_that_is_lost_is_written_again() {
    let mut gangs = TestGangs::on_plain("n", 1, "x").accumulating();
    gangs.cluster.lost_conditions = 3;
    gangs.come("g", 2, &gang("g", "2", &[])).wait(5);
    for name in ["g-0", "g-1"] {
        assert_eq!(gangs.reason(name), "Unschedulable");
        tells(gangs.condition(name), ["0 of 2 placed"]);
    }
}

#[test]
fn what_was_told_before_another_one_led_is_told_again() {
    let mut gangs = TestGangs::on_plain("n", 1, "x").accumulating();
    gangs.come("g", 2, &gang("g", "2", &[])).cluster.step_down();
    gangs.cluster.reasons.insert("g-0".to_owned(), "GangIncomplete");
    gangs.cluster.lead();
    assert_eq!(gangs.settled().reason("g-0"), "Unschedulable");
}

#[test]
fn members_that_others_keep_away_are_told_apart_by_their_labels() {
    use baton::decide::world::spec::PodTerm;
    for mode in ["Strict", "NonStrict"] {
        let mut gangs = TestGangs::on_plain("n", 4, "x").accumulating();
        zone(&mut gangs, "n");
        let mut guard = gangs.facts("guard", CPU, &[]);
        let selector = Some(with_label("role", "ps"));
        guard.spec.anti_affinity = vec![PodTerm { selector, topology_key: "zone".into(), ..PodTerm::default() }];
        gangs.cluster.submit(guard);
        gangs.settle();
        for (name, role) in [("g-0", "ps"), ("g-1", "worker"), ("g-2", "worker")] {
            gangs.asks_as(name, CPU, &gang("g", "2", &[("mode", mode)]), |facts| {
                facts.spec.labels = labels_of("role", role);
            });
        }
        assert_eq!(gangs.settled().bound(), ["g-1", "g-2", "guard"], "{mode}");
    }
}

#[test]
fn a_gang_that_gets_its_rest_by_another_hand_is_satisfied() {
    let mut gangs = TestGangs::on_plain("n", 2, "x").accumulating();
    let more = [("mode", "NonStrict"), ("match-policy", "waiting-and-running"), ("waiting-time", "60s")];
    assert_eq!(gangs.come("g", 3, &gang("g", "3", &more)).stand("g"), (0, 2));
    gangs.plain_node("other", 1, "y");
    let left = (0..3).map(|n| format!("g-{n}")).find(|name| gangs.state(name) == MemberState::Pending).unwrap();
    gangs.cluster.change_node("other", |facts| facts.unschedulable = true);
    gangs.change(&left, |facts| facts.handoff.node = Some("other".into()));
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn a_gang_satisfied_by_another_scheduler_gives_its_reservations_back() {
    let mut gangs = TestGangs::on_plain("n", 1, "x").accumulating();
    let more = [("mode", "NonStrict"), ("match-policy", "once-satisfied"), ("waiting-time", "600s")];
    assert_eq!(gangs.come("g", 3, &gang("g", "2", &more)).stand("g"), (0, 1));
    gangs.plain_node("other", 3, "y").cluster.change_node("other", |facts| facts.unschedulable = true);
    let left: Vec<String> =
        (0..3).map(|n| format!("g-{n}")).filter(|name| gangs.state(name) == MemberState::Pending).collect();
    assert_eq!(left.len(), 2);
    for name in left {
        gangs.change(&name, |facts| facts.handoff.node = Some("other".into()));
    }
    gangs.plain_node("free", 1, "z").of_priority("late", -1, &[]).wait(3);
    assert_eq!(gangs.counts(["g", "late"]), [3, 1], "{}", gangs.condition("late"));
    assert_eq!(gangs.reserved("ml/g"), 0);
}

#[test]
fn every_quorum_of_a_gang_whose_rule_stays_is_reported() {
    let mut gangs = TestGangs::on_plain("n", 4, "x").accumulating();
    let keys = gang("g", "2", &[("match-policy", "only-waiting")]);
    assert_eq!(gangs.come("g", 2, &keys).reported("GangSatisfied"), 1);
    (0..2).for_each(|n| gangs.delete(&format!("g-{n}")));
    (2..4).for_each(|n| gangs.member(&format!("g-{n}"), &keys));
    assert_eq!((gangs.settled().count("g"), gangs.reported("GangSatisfied")), (2, 2));
}

#[test]
fn with_evict_gang_a_deletion_that_is_lost_is_asked_for_again() {
    let mut gangs =
        TestGangs::by(GangPolicy { on_bind_failure: OnBindFailure::EvictGang, ..GangPolicy::default() }).accumulating();
    gangs.plain_node("n", 4, "x");
    gangs.cluster.lost_evictions = 2;
    gangs.cluster.bind_faults.extend([Fault::Refused]);
    assert_eq!(gangs.come("g", 3, &gang("g", "3", &[])).cluster.evicted, Vec::<String>::new(), "both were lost");
    assert_eq!(gangs.after(11).cluster.evicted.len(), 2);
}
