//! How much is done for a gang: counted, so that a rule that looks at every member for each of them is seen.

use std::ops::Range;

use crate::prelude::*;

impl TestGangs {
    fn reviews(&self) -> u64 {
        self.cluster.stats().groups.reviews
    }

    fn offered(&self) -> u64 {
        self.cluster.stats().groups.offered
    }

    /// Nodes of one pool: as many as a search looks at, where all 64 are there.
    fn pool(&mut self, nodes: Range<usize>) -> &mut Self {
        nodes.for_each(|n| _ = self.plain_node(&format!("n-{n}"), 64, "x"));
        self
    }

    /// So many pods run on nodes that take no others.
    fn crowd(&mut self, pods: usize) -> &mut Self {
        for n in 0..pods {
            let node = format!("crowd-{}", n / 100);
            if n % 100 == 0 {
                self.plain_node(&node, 64, &node);
                self.cluster.change_node(&node, |facts| facts.unschedulable = true);
            }
            self.asks_as(&format!("crowd-{n}"), &[("cpu", "1m")], &[], |facts| {
                facts.handoff.node = Some(node.as_str().into());
                facts.handoff.phase = Phase::Running;
            });
        }
        self
    }

    /// A gang of two, each of which takes a pool for itself: where there is one pool, one of them is left over.
    fn apart(&mut self, name: &str, more: &[(&str, &str)]) -> &mut Self {
        let labels = labels_of("app", name);
        let away = near(name, "pool");
        for n in 0..2 {
            self.asks_as(&format!("{name}-{n}"), &[("cpu", "1m")], &gang(name, "2", more), |facts| {
                facts.spec.labels.clone_from(&labels);
                facts.spec.anti_affinity = vec![away.clone()];
            });
        }
        self
    }

    /// Work of each attempt so far.
    fn work(&self) -> u64 {
        let stats = self.cluster.stats();
        stats.work.done() / stats.groups.attempts
    }
}

/// A gang of so many, all of them bound.
fn bound(count: usize) -> TestGangs {
    let mut gangs = TestGangs::new(64);
    assert_eq!(gangs.come("g", count, &gang("g", &count.to_string(), &[])).count("g"), count);
    gangs
}

#[test]
fn members_that_are_seen_bound_and_running_ask_for_no_new_judgement_of_their_gang() {
    for count in [10, 50] {
        let mut gangs = bound(count);
        // One for each member that joins, one for the attempt.
        let most = count as u64 + 2;
        assert!(gangs.reviews() <= most, "{} reviews of a gang of {count}", gangs.reviews());
        let before = gangs.reviews();
        for n in 0..count {
            gangs.change(&format!("g-{n}"), |facts| facts.handoff.phase = Phase::Running);
        }
        assert_eq!(gangs.reviews(), before, "a pod that starts to run changes no verdict");
    }
}

#[test]
fn a_member_that_is_lost_or_joins_is_judged() {
    let mut gangs = bound(10);
    let before = gangs.reviews();
    gangs.delete("g-3");
    assert!(gangs.reviews() > before);
    let before = gangs.reviews();
    gangs.member("g-10", &gang("g", "10", &[]));
    assert!(gangs.reviews() > before);
    assert_eq!(gangs.settled().count("g"), 10, "there is no rule any more");
}

#[test]
fn an_attempt_goes_through_the_members_once() {
    let gangs = bound(50);
    assert_eq!(gangs.offered(), 50);
    assert_eq!(gangs.cluster.stats().groups.attempts, 1);
}

#[test]
fn a_gang_of_many_alike_that_fits_nowhere_costs_one_look_at_its_members() {
    let mut gangs = TestGangs::new(4);
    gangs.all_ask("never", 50, &[("cpu", "9")], &gang("never", "50", &[])).settle();
    assert_eq!((gangs.count("never"), gangs.reason("never-7")), (0, "Unschedulable"));
    assert_eq!((gangs.offered(), gangs.cluster.stats().groups.attempts), (50, 1));
}

/// No nodes yet. Invariants are checked at rest only: the cluster is large.
fn large() -> TestGangs {
    let mut gangs = TestGangs::with(Config::default());
    gangs.cluster.watchful = false;
    gangs
}

#[test]
fn a_search_whose_placements_compare_all_pods_tries_the_fewer_the_more_there_are() {
    // To the end: the first on each node, then the second on each. Beside 2,000 pods each placement compares all of them.
    for (pods, expected) in [(100, 64 + 64 * 64..u64::MAX), (2000, 0..11_000)] {
        let mut gangs = large();
        gangs.pool(0..64).crowd(pods).apart("g", &[]);
        assert_eq!(gangs.settled().count("g"), 0, "beside {pods} pods");
        assert!(expected.contains(&gangs.work()), "{} beside {pods} pods", gangs.work());
    }
}

#[test]
fn members_that_look_at_no_other_pod_are_searched_to_the_end_among_many_pods() {
    for others in [0, 2000] {
        let mut gangs = large();
        gangs.crowd(others);
        // Each takes one of seven nodes, which differ; eight do not fit.
        (0..7).for_each(|n| _ = gangs.plain_node(&format!("n-{n}"), 1, &format!("x-{n}")));
        for n in 0..8 {
            let cpu = if n < 4 { "1" } else { "900m" };
            gangs.asks(&format!("g-{n}"), &[("cpu", cpu)], &gang("g", "8", &[]));
        }
        assert_eq!(gangs.settled().count("g"), 0);
        // The first four in 64 states, the others in eight for each of 35, each on seven nodes.
        assert!(gangs.work() >= (64 + 35 * 8) * 7, "{} beside {others}", gangs.work());
    }
}

#[test]
fn a_call_decides_no_more_once_its_decisions_have_cost_much() {
    let mut gangs = large();
    gangs.pool(0..64).crowd(2000);
    (0..5).for_each(|n| _ = gangs.apart(&format!("g{n}"), &[]));
    gangs.cluster.run_once();
    let tried = gangs.cluster.stats().groups.attempts;
    assert!((1..5).contains(&tried), "{tried} gangs tried in one call");
    assert!(gangs.cluster.scheduler.next().is_some_and(|at| at <= gangs.cluster.now), "the others are due");
    assert!(gangs.settled().cluster.stats().groups.attempts >= 5);
}

#[test]
fn groups_that_hold_room_do_not_multiply_the_searches_of_one_decision() {
    let mut gangs = large().accumulating();
    gangs.pool(0..4);
    (0..24).for_each(|n| _ = gangs.apart(&format!("g{n}"), &[("mode", "NonStrict")]));
    // It is tried first, and has the lowest rank of those that hold room.
    gangs.apart("z", &[("mode", "NonStrict"), ("label:koordinator.sh/priority", "1")]);
    assert_eq!(gangs.settled().cluster.reservations(), 25);
    gangs.pool(4..64).crowd(2000);
    let before = gangs.cluster.stats().work.done();
    gangs.cluster.run_once();
    let spent = gangs.cluster.stats().work.done() - before;
    // One search of each of the others, at 10,000, would cost 250,000.
    assert!((100_000..150_000).contains(&spent), "{spent}");
}
