//! Gangs, scenario by scenario. Every rest also asserts that a Strict group holds nothing, that nothing is over-committed and
//! that every pod is in one place; see [`TestGangs::settle`].

use crate::prelude::*;

type Keys = Vec<(String, String)>;

fn none() -> Keys {
    Vec::new()
}

/// The example of one parameter server and four workers of two GPUs each on two nodes of two GPUs.
fn training(keys: &Keys) -> TestGangs {
    let mut gangs = TestGangs::with_gpus(&[("a", 2), ("b", 2)]);
    gangs.asks("ps", CPU, keys);
    gangs.all_ask("worker", 4, TWO, keys).settle();
    gangs
}

fn five() -> Keys {
    vec![(format!("{P}/name"), "train".into()), (format!("{P}/min-available"), "5".into())]
}

#[test]
fn row_1_without_gang_keys_whatever_fits_is_bound() {
    let gangs = training(&none());
    assert_eq!(gangs.counts(["ps", "worker"]), [1, 2]);
}

#[test]
fn row_2_a_gang_of_five_that_does_not_fit_binds_nobody_and_all_say_why() {
    let gangs = training(&five());
    assert_eq!(gangs.bound(), Vec::<String>::new());
    for name in ["ps", "worker-0", "worker-1", "worker-2", "worker-3"] {
        assert_eq!(gangs.reason(name), "Unschedulable", "{name}");
        let said = gangs.condition(name);
        assert!(
            said.contains("gang ml/train: 0 of 5 placed, 3 without room; it never starts here: "),
            "{name}: {said}"
        );
        let room = "would take 2 of its 4 members of 2 GPUs; needs 4 × 2 GPUs; room for 2 (a: 2 free, b: 2 free); pod ml/worker-";
        assert!(said.contains(room), "{name}: {said}");
        assert!(said.contains("0/2 nodes: 2 have fewer than 2 free GPUs"), "{name}: {said}");
    }
}

#[test]
fn row_3_it_binds_whole_when_the_missing_nodes_join_and_nobody_acts() {
    let mut gangs = training(&five());
    gangs.cluster.node("c", 2).node("d", 2);
    assert_eq!(gangs.after(2).bound().len(), 5);
    assert_eq!(gangs.reported("GangSatisfied"), 1);
}

/// Three NonStrict (or Strict) gangs of five, of so many members, on nodes of three, three and four; each gang accepts its own label
/// or `shared`.
pub fn three_gangs(mode: &str, members: [usize; 3]) -> TestGangs {
    let mut gangs = TestGangs::with(Default::default());
    gangs.accumulating = mode == "NonStrict";
    for (node, cpus) in [("a", 3), ("b", 3), ("c", 4)] {
        gangs.node(node, cpus).cluster.change_node(node, |facts| facts.labels = labels_of("pool", node));
    }
    for (name, members) in ["a", "b", "c"].into_iter().zip(members) {
        for n in 0..members {
            gangs.asks_as(&format!("{name}-{n}"), CPU, &gang(name, "5", &[("mode", mode)]), |facts| {
                facts.spec.node_required = Some(vec![among("pool", &[name, "shared"])]);
            });
        }
        gangs.wait(1);
    }
    gangs
}

pub fn share(gangs: &mut TestGangs) {
    for node in ["a", "b", "c"] {
        gangs.cluster.change_node(node, |facts| facts.labels = labels_of("pool", "shared"));
    }
    gangs.wait(3);
}

#[test]
fn row_4_of_three_gangs_that_hold_all_room_only_the_last_gives_way() {
    let mut gangs = three_gangs("NonStrict", [5; 3]);
    assert_eq!(["ml/a", "ml/b", "ml/c"].map(|name| gangs.reserved(name)), [3, 3, 4]);
    assert_eq!(gangs.bound(), Vec::<String>::new());
    share(&mut gangs);
    assert_eq!(gangs.counts(["a", "b", "c"]), [5, 5, 0]);
    assert_eq!(gangs.reported("GangHoldReleased"), 1, "{:?}", gangs.cluster.notices);
    (0..5).for_each(|n| gangs.cluster.finish(&format!("a-{n}")));
    assert_eq!(gangs.after(3).count("c"), 5);
}

#[test]
fn row_5_strict_gangs_never_block_each_other() {
    let mut gangs = three_gangs("Strict", [5; 3]);
    share(&mut gangs);
    let whole = ["a", "b", "c"].map(|name| gangs.count(name));
    assert_eq!(whole.iter().sum::<usize>(), 10, "{whole:?}");
    assert!(whole.iter().all(|count| *count == 0 || *count == 5), "{whole:?}");
}

#[test]
fn row_6_a_gang_that_does_not_fit_keeps_nothing_and_the_next_pod_binds_at_once() {
    let mut gangs = TestGangs::new(4).asked("g", 5, "5", &[]);
    gangs.asks("single", &[("cpu", "2")], &none());
    assert_eq!(gangs.settled().bound(), ["single"]);
}

#[test]
fn row_7_a_non_strict_gang_keeps_what_it_has_until_the_last_place_is_free() {
    let mut gangs = TestGangs::holding(5);
    gangs.comes("other", &none()).members("g", 5, &gang("g", "5", &[("mode", "NonStrict")])).wait(100);
    assert_eq!(gangs.stand("g"), (0, 4));
    gangs.cluster.finish("other");
    assert_eq!(gangs.after(2).count("g"), 5);
}

#[test]
fn row_8_members_beyond_the_minimum_come_alone() {
    let mut gangs = TestGangs::new(4);
    assert_eq!(gangs.come("g", 6, &gang("g", "3", &[])).count("g"), 4);
    gangs.node("more", 2);
    assert_eq!(gangs.after(1).count("g"), 6);
}

#[test]
fn row_9_a_member_that_fits_nowhere_is_left_out_where_the_others_suffice() {
    let mut gangs = TestGangs::with_gpus(&[("x", 1), ("y", 1), ("z", 1)]);
    let keys = gang("g", "3", &[]);
    gangs.asks("a", TWO, &keys);
    ["b", "c", "d"].iter().for_each(|name| gangs.asks(name, ONE, &keys));
    assert_eq!(gangs.settled().bound(), ["b", "c", "d"]);
    assert_eq!(gangs.cluster.stats().groups.attempts, 1, "two cycles of one pass");
}

fn pair(cpus: u32) -> TestGangs {
    let mut gangs = TestGangs::new(cpus);
    let groups = ("groups", r#"["ml/a","ml/b"]"#);
    gangs.members("a", 2, &gang("a", "2", &[groups])).come("b", 3, &gang("b", "3", &[groups]));
    gangs
}

#[test]
fn row_10_a_group_of_gangs_starts_together_or_not_at_all() {
    assert_eq!(pair(5).bound().len(), 5);
    let four = pair(4);
    assert_eq!(four.bound(), Vec::<String>::new());
    let said = "group ml/a, ml/b; gang ml/a: 0 of 2 placed, gang ml/b: 0 of 3 placed, 1 without room; room for 4 (n); pod ml/b-";
    assert!(four.condition("a-0").starts_with(said), "{}", four.condition("a-0"));
}

#[test]
fn row_11_a_group_across_namespaces_waits_for_the_missing_gang_and_names_it() {
    let mut gangs = TestGangs::new(8);
    let groups = ("groups", r#"["one/a","two/b"]"#);
    gangs.come("one/a", 2, &gang("a", "2", &[groups]));
    assert_eq!((gangs.reason("one/a-0"), gangs.cluster.stats().groups.attempts), ("GangIncomplete", 0));
    tells(gangs.condition("one/a-0"), ["two/b"]);
    assert_eq!(gangs.come("two/b", 3, &gang("b", "3", &[groups])).bound().len(), 5);
}

#[test]
fn row_12_an_empty_list_of_groups_is_no_group_and_the_older_gang_goes_first() {
    let mut gangs = TestGangs::new(3);
    gangs.cluster.step_down();
    gangs.members("young", 3, &gang("young", "3", &[("groups", "")]));
    gangs.cluster.pods.values_mut().for_each(|facts| facts.handoff.created += std::time::Duration::from_secs(5));
    gangs.members("old", 3, &gang("old", "3", &[("groups", "")]));
    for key in gangs.cluster.pods.keys().cloned().collect::<Vec<_>>() {
        gangs.cluster.tell_pod(&key);
    }
    gangs.cluster.lead();
    assert_eq!(gangs.settled().counts(["old", "young"]), [3, 0]);
}

#[test]
fn row_13_the_annotation_beats_the_pod_group() {
    let mut gangs = TestGangs::new(8);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    let keys = vec![(P.to_owned(), "g".to_owned()), (format!("{G}min-available"), "5".to_owned())];
    assert_eq!((gangs.come("g", 4, &keys).count("g"), gangs.reason("g-0")), (0, "GangIncomplete"));
    tells(gangs.after(61).condition("g-0"), ["4 of 5 pods"]);
    assert_eq!(gangs.comes("g-4", &keys).count("g"), 5);
}

#[test]
fn row_14_pods_wait_for_their_pod_group_and_go_at_once_when_it_appears() {
    let mut gangs = TestGangs::new(8);
    gangs.come("g", 3, &[(format!("label:{P}"), "g".to_owned())]);
    assert_eq!((gangs.count("g"), gangs.reason("g-1")), (0, "WaitingForPodGroup"));
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    assert_eq!(gangs.settled().count("g"), 3);
}

#[test]
fn row_15_nothing_is_tried_before_the_last_needed_pod_exists() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "4", &[]);
    assert_eq!((gangs.members("g", 3, &keys).after(10).count("g"), gangs.cluster.stats().groups.attempts), (0, 0));
    assert_eq!(gangs.comes("g-3", &keys).count("g"), 4);
}

#[test]
fn row_16_a_total_that_never_comes_starves_no_other_gang() {
    let mut gangs = TestGangs::new(4).asked("g", 5, "5", &[("total-number", "8")]);
    assert_eq!(gangs.after(3).count("g"), 0);
    gangs.node("more", 1);
    assert_eq!(gangs.after(2).count("g"), 5);
}

fn impatient(mode: &'static str, groups: &'static str) -> Keys {
    let mut keys = gang("g", "3", &[("mode", mode), ("waiting-time", "5s")]);
    if !groups.is_empty() {
        keys.push((format!("{G}groups"), groups.to_owned()));
    }
    keys
}

#[test]
fn row_17_a_non_strict_gang_whose_wait_is_over_is_released_and_marked() {
    let mut gangs = TestGangs::holding(2);
    let keys = impatient("NonStrict", "");
    gangs.members("g", 3, &keys);
    assert_eq!(gangs.after(4).reserved("ml/g"), 2);
    assert_eq!(gangs.after(2).reserved("ml/g"), 0);
    for n in 0..3 {
        assert_eq!(gangs.state(&format!("g-{n}")), MemberState::TimedOut);
        assert_eq!(gangs.reason(&format!("g-{n}")), "GangTimeout");
    }
    assert_eq!(gangs.reported("GangTimeout"), 3, "once for each member");
    gangs.node("more", 4);
    assert_eq!(gangs.after(10).count("g"), 0);
    // A controller makes each pod again as it is deleted.
    for n in 0..3 {
        gangs.delete(&format!("g-{n}"));
        gangs.comes(&format!("g-{n}"), &keys);
    }
    assert_eq!(gangs.after(2).count("g"), 3);
}

#[test]
fn row_18_a_strict_gang_never_holds_and_never_times_out() {
    let mut gangs = TestGangs::new(2);
    gangs.members("g", 3, &impatient("Strict", "")).wait(60);
    assert_eq!((gangs.reported("GangTimeout"), gangs.state("g-0")), (0, MemberState::Pending));
}

#[test]
fn row_19_the_whole_group_is_marked_and_the_state_survives_a_restart() {
    let mut gangs = TestGangs::holding(2);
    let list = r#"["ml/g","ml/h"]"#;
    let keys = impatient("NonStrict", list);
    let other = gang("h", "1", &[("groups", list)]);
    // The second gang asks for more than there is.
    gangs.members("g", 3, &keys);
    gangs.asks("h-0", &[("cpu", "50")], &gang("h", "1", &[("groups", list), ("mode", "NonStrict")]));
    gangs.wait(7);
    assert_eq!(["g-0", "g-1", "g-2", "h-0"].map(|name| gangs.state(name)), [MemberState::TimedOut; 4]);
    gangs.comes("h-1", &other);
    assert_eq!((gangs.reason("h-1"), gangs.state("h-1")), ("GangTimeout", MemberState::Pending));
    assert_eq!((gangs.restart(5).bound().len(), gangs.state("h-1")), (0, MemberState::Pending));
}

#[test]
fn row_20_under_only_waiting_a_replacement_waits_for_a_full_quorum() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "3", &[("match-policy", "only-waiting")]);
    assert_eq!(gangs.come("g", 3, &keys).count("g"), 3);
    gangs.after(60).delete("g-0");
    gangs.member("g-9", &keys);
    assert_eq!(gangs.after(5).count("g-9"), 0, "{}", gangs.condition("g-9"));
    for n in [1, 2] {
        gangs.delete(&format!("g-{n}"));
        gangs.member(&format!("g-{n}"), &keys);
    }
    assert_eq!(gangs.after(2).count("g"), 3);
}

/// Three run, two of them complete, then a fourth comes.
fn replaced(policy: &str) -> (TestGangs, Keys) {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "3", &[("match-policy", policy)]);
    gangs.come("g", 3, &keys).after(60).cluster.finish("g-0");
    gangs.cluster.finish("g-1");
    gangs.member("g-4", &keys);
    gangs.wait(5);
    (gangs, keys)
}

#[test]
fn row_21_under_waiting_and_running_the_ended_do_not_count() {
    let (mut gangs, keys) = replaced("waiting-and-running");
    assert_eq!(gangs.count("g-4"), 0);
    gangs.member("g-5", &keys);
    assert_eq!(gangs.after(2).counts(["g-4", "g-5"]), [1, 1]);
}

#[test]
fn row_22_under_waiting_running_succeed_the_succeeded_count() {
    let (gangs, _) = replaced("waiting-running-succeed");
    assert_eq!(gangs.count("g-4"), 1);
}

#[test]
fn row_23_a_gang_on_one_node_goes_through_its_lock_one_by_one_and_whole() {
    let mut gangs = TestGangs::new(64);
    gangs.all_ask("g", 3, ONE, &gang("g", "3", &[]));
    for served in 0..3 {
        gangs.cluster.settle();
        assert_eq!(gangs.count("g"), served + 1);
        gangs.cluster.agent_releases("n");
    }
    assert_eq!(gangs.settled().count("g"), 3);
}

#[test]
fn row_24_a_binding_that_fails_twice_is_tried_on_its_node_until_it_is_done() {
    let mut gangs = TestGangs::new(8);
    gangs.cluster.bind_faults = [Fault::Fails, Fault::Fails].into();
    gangs.members("g", 3, &gang("g", "3", &[]));
    assert_eq!(gangs.after(3).count("g"), 3);
}

#[test]
fn row_25_after_a_crash_the_broken_commit_is_completed_first() {
    for policy in ["once-satisfied", "only-waiting"] {
        let mut gangs = TestGangs::with_gpus(&[("n", 8)]);
        gangs.all_ask("g", 5, ONE, &gang("g", "5", &[("match-policy", policy)]));
        gangs.cluster.later(1).settled().serves("n");
        assert_eq!(gangs.count("g"), 2, "{policy}");
        gangs.cluster.restart();
        assert_eq!(gangs.after(2).count("g"), 5, "{policy}");
    }
}

#[test]
fn row_26_priority_goes_before_age() {
    let mut gangs = TestGangs::new(4);
    gangs.cluster.step_down();
    gangs.members("low", 4, &gang("low", "4", &[]));
    for n in 0..4 {
        gangs.asks_as(&format!("high-{n}"), CPU, &gang("high", "4", &[]), |facts| {
            facts.spec.priority = 9;
            facts.handoff.created += std::time::Duration::from_secs(60);
        });
    }
    gangs.cluster.lead();
    assert_eq!(gangs.settled().counts(["high", "low"]), [4, 0]);
}

#[test]
fn row_27_a_large_gang_that_cannot_fit_does_not_block_a_small_one() {
    let mut gangs = TestGangs::new(10).asked("large", 100, "100", &[]);
    assert_eq!(gangs.come("small", 2, &gang("small", "2", &[])).counts(["large", "small"]), [0, 2]);
}

#[test]
fn row_28_a_gated_member_does_not_count() {
    let mut gangs = TestGangs::new(8);
    let keys = gang("g", "3", &[]);
    gangs.members("g", 2, &keys);
    gangs.asks_as("g-2", CPU, &keys, |facts| facts.spec.gates = vec!["later".into()]).wait(2);
    assert_eq!((gangs.count("g"), gangs.cluster.stats().groups.attempts), (0, 0));
    gangs.change("g-2", |facts| facts.spec.gates.clear());
    assert_eq!(gangs.settled().count("g"), 3);
}

/// A gang of four of high priority on a node where this many pods of low priority run.
fn against(low: usize, pinned: usize) -> TestGangs {
    let mut gangs = TestGangs::new(4);
    for n in 0..low + pinned {
        gangs.of_priority(&format!("low-{n}"), if n < low { 1 } else { 9 }, &none());
    }
    gangs.settled().all_of_priority("high", 4, 9, &gang("high", "4", &[])).settle();
    gangs
}

#[test]
fn row_29_nobody_is_evicted_unless_the_whole_gang_fits_then() {
    let three = against(3, 1);
    assert_eq!(three.cluster.evicted, Vec::<String>::new());
    let mut four = against(4, 0);
    assert_eq!((four.cluster.evicted.len(), four.cluster.nominations()), (4, 4));
    (0..4).for_each(|n| four.delete(&format!("low-{n}")));
    assert_eq!(four.after(2).count("high"), 4);
}

#[test]
fn row_30_a_gang_that_cannot_be_is_held_with_its_reason() {
    let mut gangs = TestGangs::new(8);
    gangs.members("bad", 2, &gang("Gang_A", "2", &[])).members("two", 2, &gang("two", "2", &[]));
    gangs.change("two-1", |facts: &mut PodFacts| facts.spec.priority = 7);
    gangs.members("no-min", 2, &[(format!("{P}/name"), "no-min".to_owned())]).wait(2);
    // The first two may have been bound before the priority was changed.
    assert_eq!(gangs.counts(["bad", "no-min"]), [0, 0]);
    assert_eq!((gangs.reason("bad-0"), gangs.reason("no-min-0")), ("InvalidGang", "GangIncomplete"));
    tells(gangs.condition("bad-0"), ["Gang_A"]);
    tells(gangs.condition("no-min-0"), ["min-available missing"]);

    let mut unequal = TestGangs::new(8);
    for (name, priority) in [("g-0", 1), ("g-1", 2)] {
        unequal.of_priority(name, priority, &gang("g", "2", &[]));
    }
    assert_eq!((unequal.settled().bound().len(), unequal.reason("g-0")), (0, "InvalidGang"));
}

#[test]
fn a_deleted_member_releases_the_others_when_the_minimum_is_out_of_reach() {
    let mut gangs = TestGangs::holding(2);
    assert_eq!(gangs.come("g", 3, &gang("g", "3", &[("mode", "NonStrict")])).reserved("ml/g"), 2);
    assert_eq!((gangs.goes("g-0").reserved("ml/g"), gangs.reason("g-1")), (0, "GangIncomplete"));
}

#[test]
fn a_pod_group_that_vanishes_releases_what_its_gang_holds() {
    let mut gangs = TestGangs::holding(2);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3));
    gangs.come("g", 3, &[(P.to_owned(), "g".to_owned()), (format!("{G}mode"), "NonStrict".to_owned())]);
    assert_eq!(gangs.reserved("ml/g"), 2);
    gangs.pod_group_gone("ml/g").settle();
    assert_eq!((gangs.reserved("ml/g"), gangs.reason("g-1")), (0, "WaitingForPodGroup"));
}

#[test]
fn a_lowered_minimum_is_tried_at_once() {
    let mut gangs = TestGangs::new(2);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(3)).members("g", 3, &[(P.to_owned(), "g".to_owned())]);
    assert_eq!(gangs.after(2).count("g"), 0);
    gangs.pod_group("ml/g", |facts| facts.spec.min = Some(2));
    assert_eq!(gangs.settled().count("g"), 2);
}

#[test]
fn members_that_no_order_of_offering_places_are_found_a_place_by_search() {
    // The larger one would take the only node of the smaller one first.
    let mut gangs = TestGangs::with(Default::default());
    gangs.node("a", 3).node("b", 4).cluster.change_node("a", |facts| facts.labels = labels_of("disk", "fast"));
    let keys = gang("g", "3", &[]);
    gangs.asks("x", &[("cpu", "3")], &keys);
    gangs.asks("y", &[("cpu", "2")], &keys);
    gangs.asks_as("z", &[("cpu", "2")], &keys, |facts| facts.spec.node_selector = labels_of("disk", "fast"));
    assert_eq!(gangs.after(2).bound(), Vec::<String>::new(), "seven units on seven, but no way to cut them");
    gangs.node("c", 2);
    assert_eq!(gangs.after(2).bound(), ["x", "y", "z"]);
}

#[test]
fn a_higher_priority_pod_gets_room_that_a_gang_merely_holds() {
    let mut gangs = TestGangs::holding(2);
    gangs.come("g", 3, &gang("g", "3", &[("mode", "NonStrict")]));
    gangs.asks_as("urgent", &[("cpu", "2")], &none(), |facts| facts.spec.priority = 5).settle();
    assert_eq!((gangs.bound(), gangs.reserved("ml/g")), (vec!["urgent".to_owned()], 0));
}
