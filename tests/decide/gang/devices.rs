//! Gangs whose members fit only when the devices of all of them are planned together.

use crate::prelude::*;

const SHARE: &str = "koordinator.sh/gpu";

impl TestGangs {
    fn shares(&mut self, name: &str, parts: &[&str], more: &[(&str, &str)]) -> &mut Self {
        let min = parts.len().to_string();
        let keys = gang(name, &min, more);
        for (n, part) in parts.iter().enumerate() {
            self.asks(&format!("{name}-{n}"), &[(SHARE, part)], &keys);
        }
        self
    }
}

#[test]
fn unlike_shares_are_planned_over_the_gpus_of_all_nodes_before_anything_is_reserved() {
    let six = ["40", "40", "30", "30", "30", "30"];
    for (nodes, parts, more, bound) in [
        (&[("n", 2)][..], &six[..], &[][..], 6),
        // 100 on a: 60 + 40. 200 on b: 70 + 30 twice.
        (&[("a", 1), ("b", 2)], &["70", "70", "60", "40", "30", "30"], &[], 6),
        // Each of four GPUs is filled by one pair only.
        (&[("a", 2), ("b", 2)], &["51", "52", "53", "54", "49", "48", "47", "46"], &[], 8),
        // One that accumulates gives up what it holds for a plan of all.
        (&[("n", 2)], &six, &[("mode", "NonStrict")], 6),
        // One percent too much binds no pod and holds nothing.
        (&[("n", 2)], &["40", "40", "30", "30", "30", "31"], &[], 0),
    ] {
        let mut gangs = TestGangs { accumulating: !more.is_empty(), ..TestGangs::with_gpus(nodes) };
        gangs.shares("g", parts, more).wait(2);
        let said = gangs.condition("g-0");
        assert_eq!(gangs.stand("g"), (bound, 0), "{parts:?} {more:?}: {said}");
        assert!(bound > 0 || said.contains("0 of 6 placed"), "{parts:?}: {said}");
        let attempts = gangs.cluster.stats().groups.attempts;
        assert!(attempts == 1 || nodes.len() > 1 || bound == 0 || !more.is_empty(), "{parts:?}: {attempts} attempts");
    }
}

#[test]
fn whole_gpus_and_shares_of_one_gang_are_planned_together() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    gangs.asks("other", &[(SHARE, "20")], &[]);
    gangs.settle();
    let keys = gang("g", "4", &[]);
    gangs.asks("g-0", ONE, &keys);
    (1..4).for_each(|n| gangs.asks(&format!("g-{n}"), &[(SHARE, ["50", "50", "80"][n - 1])], &keys));
    assert_eq!(gangs.after(2).count("g"), 4, "{}", gangs.condition("g-0"));
}

#[test]
fn like_members_that_spread_over_gpus_are_planned_together() {
    let mut gangs = TestGangs::with_gpus(&[("n", 3)]);
    ["x", "y"].into_iter().for_each(|name| gangs.asks(name, &[(SHARE, "40")], &[]));
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
    gangs.asks_as("small", CPU, &keys, |facts| facts.spec.labels = labels_of("app", "leader"));
    assert_eq!(gangs.after(3).count(""), 2, "{}", gangs.condition("large"));
}

#[test]
fn a_gang_that_waits_keeps_no_device_that_another_leader_has_bound() {
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]).accumulating();
    gangs.all_ask("g", 3, ONE, &gang("g", "3", &[("mode", "NonStrict")]));
    assert_eq!(gangs.settled().reserved("ml/g"), 2);
    gangs.cluster.bound_by_another("theirs", "n", 0);
    assert_eq!(gangs.settled().reserved("ml/g"), 1);
}
