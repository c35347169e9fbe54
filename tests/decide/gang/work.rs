//! How much is done for a gang: counted, so that a rule that looks at every member for each of them is seen.

use baton::decide::pod::Phase;

use crate::harness::gangs::{TestGangs, gang};

fn reviews(gangs: &TestGangs) -> u64 {
    gangs.cluster.stats().group_reviews
}

fn offered(gangs: &TestGangs) -> u64 {
    gangs.cluster.stats().group_offered
}

/// A gang of so many, all of them bound.
fn bound(count: usize) -> TestGangs {
    let mut gangs = TestGangs::new(64);
    gangs.members("g", count, &gang("g", &count.to_string(), &[]));
    gangs.settle();
    assert_eq!(gangs.count("g"), count);
    gangs
}

#[test]
fn members_that_are_seen_bound_and_running_ask_for_no_new_judgement_of_their_gang() {
    for count in [10, 50] {
        let mut gangs = bound(count);
        // One for each member that joins, one for the attempt.
        let most = count as u64 + 2;
        assert!(reviews(&gangs) <= most, "{} reviews of a gang of {count}", reviews(&gangs));
        let before = reviews(&gangs);
        for n in 0..count {
            gangs.change(&format!("g-{n}"), |facts| facts.handoff.phase = Phase::Running);
        }
        assert_eq!(reviews(&gangs), before, "a pod that starts to run changes no verdict");
    }
}

#[test]
fn a_member_that_is_lost_or_joins_is_judged() {
    let mut gangs = bound(10);
    let before = reviews(&gangs);
    gangs.delete("g-3");
    assert!(reviews(&gangs) > before);
    let before = reviews(&gangs);
    gangs.member("g-10", &gang("g", "10", &[]));
    assert!(reviews(&gangs) > before);
    gangs.settle();
    assert_eq!(gangs.count("g"), 10, "there is no rule any more");
}

#[test]
fn an_attempt_goes_through_the_members_once() {
    let gangs = bound(50);
    assert_eq!(offered(&gangs), 50);
    assert_eq!(gangs.cluster.stats().group_attempts, 1);
}

#[test]
fn a_gang_of_many_alike_that_fits_nowhere_costs_one_look_at_its_members() {
    let mut gangs = TestGangs::new(4);
    let keys = gang("never", "50", &[]);
    (0..50).for_each(|n| gangs.asks(&format!("never-{n}"), &[("cpu", "9")], &keys));
    gangs.settle();
    assert_eq!((gangs.count("never"), gangs.reason("never-7")), (0, "Unschedulable"));
    assert_eq!((offered(&gangs), gangs.cluster.stats().group_attempts), (50, 1));
}
