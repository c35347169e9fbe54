//! Whose a commit is and whose a hold: what gangs did alone, with others, or before their pods were relabelled satisfies no other
//! group. Never is a member bound while its group, as all its gangs declare it now, is not satisfied.

use baton::contract::gang::{MatchPolicy, Mode, key::CONDITION_SATISFIED};

use crate::prelude::*;

impl TestGangs {
    fn restate_all(&mut self, prefix: &str, count: usize, keys: &[(String, String)]) -> &mut Self {
        (0..count).for_each(|n| _ = self.restate(&format!("{prefix}-{n}"), keys));
        self
    }

    /// The groups that hold room.
    fn holders(&self) -> String {
        let holds = self.cluster.scheduler.reservations().all().values();
        let holders: BTreeSet<String> = holds.map(|hold| hold.group.as_ref().unwrap().to_string()).collect();
        holders.into_iter().collect::<Vec<_>>().join("; ")
    }
}

fn listed(gangs: &[&str]) -> Arc<BTreeSet<GangId>> {
    Arc::new(gangs.iter().map(|gang| GangId::parse(gang).unwrap()).collect())
}

/// Now, and after a restart.
fn always(gangs: &mut TestGangs, check: impl Fn(&TestGangs, &str)) {
    gangs.wait(2);
    check(gangs, "at once");
    gangs.restart(2);
    check(gangs, "after a restart");
}

#[test]
fn a_gang_that_lists_another_one_does_not_complete_that_ones_broken_commit() {
    for list in [r#"["ml/b"]"#, r#"["ml/b","ml/missing"]"#] {
        let mut gangs = TestGangs::new(8).asked("a", 2, "2", &[("groups", list)]);
        assert_eq!(gangs.come("b", 3, &gang("b", "3", &[])).counts(["a", "b"]), [0, 3], "{list}");
        gangs.cluster.finish("b-0");
        let reason = gangs.reason("a-0").to_owned();
        always(&mut gangs, |gangs, when| {
            assert_eq!((gangs.count("a"), gangs.reason("a-0")), (0, &*reason), "{list} {when}");
        });
    }
}

#[test]
fn a_gang_whose_list_nobody_shares_does_not_owe_what_its_former_group_began() {
    let mut gangs = TestGangs::with_gpus(&[("n", 8)]);
    let both = ("groups", r#"["ml/a","ml/b"]"#);
    let policy = ("match-policy", "waiting-and-running");
    ["a", "b"].into_iter().for_each(|name| _ = gangs.all_ask(name, 2, ONE, &gang(name, "2", &[both, policy])));
    gangs.cluster.later(1).settle();
    assert_eq!(gangs.bound().len(), 1, "the others stand in line for the lock");
    // The scheduler dies, and until another one leads the gang of the bound pod has nothing to do with the other any more.
    gangs.cluster.step_down();
    let (began, other) = if gangs.count("a") == 1 { ("a", "b") } else { ("b", "a") };
    gangs.restate_all(began, 2, &gang(began, "2", &[policy])).restart(2);
    assert_eq!((gangs.count(other), gangs.reason(&format!("{other}-0"))), (0, "GangGroupMismatch"));
    assert_eq!(gangs.count(began), 2, "alone it has room for both: {}", gangs.condition(&format!("{began}-1")));
}

#[test]
fn a_group_that_is_made_later_does_not_owe_what_one_of_its_gangs_has_lost() {
    for policy in ["once-satisfied", "waiting-and-running"] {
        let policy = ("match-policy", policy);
        let mut gangs = TestGangs::new(5).asked("a", 3, "2", &[policy]);
        gangs.members("b", 3, &gang("b", "3", &[("groups", r#"["ml/a"]"#), policy])).wait(1);
        assert_eq!(gangs.counts(["a", "b"]), [3, 0]);
        gangs.cluster.finish("a-0");
        gangs.cluster.change_node("n", |facts| facts.allocatable.set("cpu", Quantity::units(4)));
        gangs.restate_all("a", 3, &gang("a", "2", &[("groups", r#"["ml/b"]"#), policy]));
        always(&mut gangs, |gangs, when| assert_eq!(gangs.count("b"), 0, "two places for three, {policy:?} {when}"));
        if policy.1 == "waiting-and-running" {
            gangs.node("more", 1);
            assert_eq!(gangs.after(2).count("b"), 3, "{}", gangs.condition("b-0"));
        }
    }
}

#[test]
fn a_group_of_gangs_that_all_have_their_minimum_is_satisfied_whenever_it_was_made() {
    let mut gangs = TestGangs::new(5).asked("a", 2, "2", &[]);
    gangs.come("b", 2, &gang("b", "2", &[]));
    let both = ("groups", r#"["ml/a","ml/b"]"#);
    ["a", "b"].iter().for_each(|name| _ = gangs.restate_all(name, 2, &gang(name, "2", &[both])));
    gangs.member("a-9", &gang("a", "2", &[both]));
    assert_eq!(gangs.after(2).count("a-9"), 1, "{}", gangs.condition("a-9"));
}

/// One of two gangs that wait together, by its PodGroup.
fn say(gangs: &mut TestGangs, name: &str, min: u32, wait: Option<Duration>, group: &[&str]) {
    gangs.pod_group(&format!("ml/{name}"), |facts| {
        (facts.spec.min, facts.spec.wait) = (Some(min), wait);
        facts.annotated.mode = Some(Mode::NonStrict);
        facts.annotated.policy = Some(MatchPolicy::WaitingAndRunning);
        facts.annotated.groups = Some(listed(group));
    });
}

#[test]
fn a_gang_that_leaves_its_group_gives_back_what_that_holds_and_starts_as_a_whole() {
    let mut gangs = TestGangs::holding(4);
    let both = ["ml/a", "ml/b"];
    say(&mut gangs, "a", 3, None, &both);
    say(&mut gangs, "b", 2, None, &both);
    let of = |name: &str| vec![(P.to_owned(), name.to_owned())];
    for name in ["b-0", "b-1"] {
        gangs.asks_as(name, CPU, &of("b"), |facts| facts.handoff.node = Some("n".into()));
    }
    gangs.members("a", 3, &of("a")).wait(2);
    assert_eq!((gangs.count("a"), gangs.reserved("ml/a"), &*gangs.holders()), (0, 2, "ml/a, ml/b"));
    let week = Duration::from_secs(7 * 24 * 3600);
    say(&mut gangs, "a", 3, Some(week), &[]);
    assert_eq!((gangs.count("a"), gangs.reported("GangHoldReleased")), (0, 1));
    gangs.wait(2);
    assert_eq!((gangs.count("a"), gangs.reserved("ml/a"), &*gangs.holders()), (0, 2, "ml/a"), "it is tried alone");
    // The ten minutes of the group that it has left are not its own.
    assert_eq!((gangs.after(620).state("a-2"), gangs.reserved("ml/a")), (MemberState::Pending, 2));
    gangs.node("more", 1);
    assert_eq!(gangs.after(2).count("a"), 3, "{}", gangs.condition("a-2"));
}

#[test]
fn members_of_a_gang_that_left_keep_their_reservations_when_one_pod_is_edited() {
    let mut gangs = TestGangs::holding(4);
    let more = [("mode", "NonStrict"), ("match-policy", "waiting-and-running")];
    let both = [more[0], more[1], ("groups", r#"["ml/a","ml/b"]"#)];
    for name in ["b-0", "b-1"] {
        gangs.asks_as(name, CPU, &gang("b", "2", &both), |facts| facts.handoff.node = Some("n".into()));
    }
    gangs.members("a", 3, &gang("a", "3", &both)).wait(2);
    assert_eq!((gangs.reserved("ml/a"), &*gangs.holders()), (2, "ml/a, ml/b"));
    // The oldest pod decides for all of them.
    gangs.restate("a-0", &gang("a", "3", &[more[0], more[1], ("groups", "")])).wait(2);
    assert_eq!((gangs.count("a"), gangs.reserved("ml/a"), &*gangs.holders()), (0, 2, "ml/a"));
}

#[test]
fn a_pod_group_satisfied_for_a_former_group_says_nothing_of_the_present_one() {
    let mut gangs = TestGangs::new(5);
    let since = crate::harness::wall(gangs.cluster.now + Duration::from_secs(1));
    for name in ["a", "b"] {
        gangs.pod_group(&format!("ml/{name}"), |facts| facts.spec.min = Some(2));
        gangs.members(name, 2, &[(P.to_owned(), name.to_owned())]);
    }
    assert_eq!(gangs.settled().bound().len(), 4);
    ["a-0", "b-0"].iter().for_each(|name| gangs.delete(name));
    for name in ["a", "b"] {
        gangs.pod_group(&format!("ml/{name}"), |facts| {
            facts.spec.min = Some(2);
            facts.annotated.groups = Some(listed(&["ml/a", "ml/b"]));
            facts.status.conditions = vec![condition(CONDITION_SATISFIED, "GangSatisfied", "", since)];
        });
    }
    gangs.member("a-9", &[(P.to_owned(), "a".to_owned())]);
    always(&mut gangs, |gangs, when| {
        assert_eq!((gangs.count("a-9"), gangs.reason("a-9")), (0, "GangIncomplete"), "{when}");
    });
}

/// A gang of two on its way: the volume of one is not settled yet.
fn on_its_way(gangs: &mut TestGangs, keys: &[(String, String)]) {
    let class = ClassFacts { waits: true, provisions: true, ..ClassFacts::default() };
    gangs.cluster.classes.insert("local".to_owned(), class.clone());
    gangs.cluster.event(WorldEvent::Class("local".into(), class)).claim("g-0", 10, |_| ());
    for name in ["g-0", "g-1"] {
        let mut facts = gangs.facts(name, CPU, keys);
        if name == "g-0" {
            facts.spec.volumes = vec![VolumeUse::Claim("g-0".into())];
        }
        gangs.cluster.submit(facts);
    }
    assert_eq!((gangs.settled().cluster.bind_attempts(), gangs.count("g")), (2, 0), "both are on their way");
}

#[test]
fn a_group_that_changes_before_the_first_lock_takes_its_commit_back() {
    for whole in [true, false] {
        let mut gangs = TestGangs::new(8);
        on_its_way(&mut gangs, &gang("g", "2", &[]));
        if whole {
            // It is to start with another gang, which is not there yet.
            gangs.restate_all("g", 2, &gang("g", "2", &[("groups", r#"["ml/other"]"#)]));
        } else {
            // One of its pods goes to another gang.
            gangs.restate("g-1", &gang("h", "2", &[]));
        }
        assert_eq!((gangs.settled().cluster.bind_attempts(), gangs.count("g")), (0, 0), "{whole}");
        assert_eq!([gangs.reason("g-0"), gangs.reason("g-1")], ["GangIncomplete"; 2], "{whole}");
    }
}
