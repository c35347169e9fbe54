//! Gangs whose members fit only when the devices of all of them are planned together.

use baton::contract::key;
use baton::decide::world::spec::PodTerm;

use crate::harness::gangs::{TestGangs, gang};
use crate::harness::parts::{labels_of, near};

const SHARE: &str = "koordinator.sh/gpu";

fn shares(gangs: &mut TestGangs, name: &str, parts: &[&str], more: &[(&str, &str)]) {
    let min = parts.len().to_string();
    let keys = gang(name, &min, more);
    for (n, part) in parts.iter().enumerate() {
        gangs.asks(&format!("{name}-{n}"), &[(SHARE, part)], &keys);
    }
}

#[test]
fn unlike_shares_are_planned_over_the_gpus_of_a_node_before_anything_is_reserved() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    shares(&mut gangs, "g", &["40", "40", "30", "30", "30", "30"], &[]);
    assert_eq!(gangs.after(2).count("g"), 6, "{}", gangs.condition("g-0"));
    assert_eq!(gangs.cluster.stats().groups.attempts, 1);
}

#[test]
fn shares_that_fill_two_nodes_only_one_way_are_found_that_way() {
    let mut gangs = TestGangs::with_gpus(&[("a", 1), ("b", 2)]);
    // 100 on a: 60 + 40. 200 on b: 70 + 30 twice.
    shares(&mut gangs, "g", &["70", "70", "60", "40", "30", "30"], &[]);
    assert_eq!(gangs.after(2).count("g"), 6, "{}", gangs.condition("g-0"));
}

#[test]
fn one_percent_too_much_binds_nobody_and_holds_nothing() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    shares(&mut gangs, "g", &["40", "40", "30", "30", "30", "31"], &[]);
    gangs.wait(2);
    assert_eq!((gangs.count("g"), gangs.reserved("ml/g")), (0, 0));
    assert!(gangs.condition("g-0").contains("0 of 6 placed"), "{}", gangs.condition("g-0"));
}

#[test]
fn eight_unlike_members_are_searched_over_nodes_and_gpus() {
    let mut gangs = TestGangs::with_gpus(&[("a", 2), ("b", 2)]);
    // Each of four GPUs is filled by one pair only.
    shares(&mut gangs, "g", &["51", "52", "53", "54", "49", "48", "47", "46"], &[]);
    assert_eq!(gangs.after(2).count("g"), 8, "{}", gangs.condition("g-0"));
}

#[test]
fn whole_gpus_and_shares_of_one_gang_are_planned_together() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    gangs.asks("other", &[(SHARE, "20")], &[]);
    gangs.settle();
    let keys = gang("g", "4", &[]);
    gangs.asks("g-0", &[(key::NVIDIA_GPU, "1")], &keys);
    (1..4).for_each(|n| gangs.asks(&format!("g-{n}"), &[(SHARE, ["50", "50", "80"][n - 1])], &keys));
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-0"));
}

#[test]
fn a_gang_that_accumulates_gives_up_what_it_holds_for_a_plan_of_all() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    gangs.accumulating = true;
    shares(&mut gangs, "g", &["40", "40", "30", "30", "30", "30"], &[("mode", "NonStrict")]);
    assert_eq!(gangs.after(2).count("g"), 6, "{}", gangs.condition("g-0"));
}

#[test]
fn like_members_that_spread_over_gpus_are_planned_together() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    for name in ["x", "y"] {
        gangs.asks(name, &[(SHARE, "40")], &[]);
    }
    gangs.settle();
    // 20 percent, 100 and 100 are free; two of each GPU at 50: the first pod must not take the two whole ones alone.
    let keys = gang("g", "2", &[]);
    for n in 0..2 {
        let limits = [("koordinator.sh/gpu.shared", "2"), ("koordinator.sh/gpu-memory-ratio", "100")];
        gangs.asks(&format!("g-{n}"), &limits, &keys);
    }
    assert_eq!(gangs.after(2).count("g"), 2, "{}", gangs.condition("g-0"));
}

#[test]
fn a_member_that_must_be_near_another_is_placed_after_it_whatever_their_sizes() {
    let mut gangs = TestGangs::new(8);
    gangs.cluster.change_node("n", |facts| facts.labels = labels_of("kubernetes.io/hostname", "n"));
    let keys = gang("g", "2", &[]);
    gangs.asks_as("large", &[("cpu", "4")], &keys, |facts| {
        let leader = near("leader", "kubernetes.io/hostname");
        facts.spec.affinity = vec![PodTerm { namespaces: vec!["ml".into()], ..leader }];
    });
    gangs.asks_as("small", &[("cpu", "1")], &keys, |facts| facts.spec.labels = labels_of("app", "leader"));
    assert_eq!(gangs.after(3).count(""), 2, "{}", gangs.condition("large"));
}

#[test]
fn a_gang_that_waits_keeps_no_device_that_another_leader_has_bound() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    gangs.accumulating = true;
    gangs.all_ask("g", 3, &[(key::NVIDIA_GPU, "1")], &gang("g", "3", &[("mode", "NonStrict")]));
    assert_eq!(gangs.settled().reserved("ml/g"), 2);
    gangs.cluster.bound_by_another("theirs", "n", 0);
    assert_eq!(gangs.settled().reserved("ml/g"), 1);
}
