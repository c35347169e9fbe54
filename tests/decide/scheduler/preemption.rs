//! Room at the cost of pods of lower priority: who leaves, who may not take the room, and that no pod leaves in vain.

use baton::decide::audit::check;
use baton::decide::world::{PodId, World};

use crate::prelude::*;

fn id(world: &World, name: &str) -> PodId {
    world.pod_by_key(&PodKey::new("ml", name)).unwrap().id
}

impl TestScheduler {
    pub(super) fn arrives(&mut self, name: &str, limits: &[(&str, &str)], priority: i32) -> &mut Self {
        self.comes_as(name, limits, |facts| {
            facts.spec.priority = priority;
            facts.spec.labels = labels_of("app", name);
        });
        // The agent serves the bound pod.
        self.all_release();
        self.settled()
    }
}

/// A node of one GPU with `low` on it, which is evicted for `high`.
fn high_over_low() -> TestScheduler {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.arrives("low", ONE, 1).arrives("high", ONE, 9);
    cluster
}

#[test]
fn the_least_important_pod_leaves_and_its_devices_go_to_the_pod_that_it_left_for() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("low", ONE, 1).arrives("middle", ONE, 5);
    let freed = cluster.devices_of("low");
    assert_eq!(cluster.arrives("high", ONE, 9).evicted, ["low"]);
    assert_eq!(cluster.node_of("high"), None, "nothing is taken before the victim is gone");
    tells(&cluster.conditions["high"], ["evicting ml/low from node n"]);
    assert_eq!(cluster.pods[&PodKey::new("ml", "high")].spec.nominated.as_deref(), Some("n"));
    assert_eq!(cluster.goes("low").node_of("high"), Some("n"));
    assert_eq!(cluster.devices_of("high"), freed);
    assert!(cluster.nominations() == 0);
}

#[test]
fn no_pod_leaves_where_it_would_not_help_or_where_the_pod_never_preempts() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("low", ONE, 1).arrives("equal", ONE, 9).arrives("too-big", TWO, 9);
    assert_eq!(cluster.evicted, Vec::<String>::new());
    cluster.comes_as("polite", ONE, |facts| (facts.spec.priority, facts.spec.never_preempts) = (9, true));
    assert_eq!(cluster.evicted, Vec::<String>::new());
}

#[test]
fn no_pod_is_evicted_twice_while_victims_are_leaving() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("a", ONE, 1).arrives("b", ONE, 1).arrives("high", ONE, 9).pod("other", CPU);
    assert_eq!(cluster.after(5).evicted.len(), 1, "{:?}", cluster.evicted);
}

#[test]
fn the_room_is_closed_to_equal_and_lower_priority_until_the_nominated_pod_has_it() {
    let mut cluster = high_over_low();
    cluster.arrives("rival", ONE, 5);
    cluster.change_pod("high", |facts| facts.spec.gates = vec!["later".into()]).goes("low");
    assert_eq!(
        (cluster.node_of("rival"), cluster.node_of("high")),
        (None, None),
        "the room waits for the pod that it was made for"
    );
    assert_eq!(cluster.after(59).node_of("rival"), None);
    assert_eq!(cluster.after(2).node_of("rival"), Some("n"), "not for ever");
}

#[test]
fn the_free_part_of_room_is_closed_while_victims_and_their_processes_leave() {
    let forms: &[&[(&str, &str)]] = &[&[(key::NVIDIA_GPU, "2")], &[(key::GPU, "200")]];
    let rivals: &[&[(&str, &str)]] = &[ONE, &[(key::GPU, "100")], &[(key::GPU, "50")]];
    for (high, rival) in forms.iter().flat_map(|high| rivals.iter().map(move |rival| (*high, *rival))) {
        let mut cluster = TestScheduler::on("n", 2);
        cluster.arrives("low", ONE, 1);
        cluster.change_pod("low", |facts| {
            facts.handoff.phase = Phase::Running;
            facts.handoff.containers.iter_mut().for_each(|container| container.running = true);
        });
        cluster.arrives("high", high, 9).arrives("rival", rival, 5);
        assert_eq!(cluster.node_of("rival"), None, "a victim of {high:?} leaves, and {rival:?} waits");
        cluster.goes("low").wait(5);
        let placed = (cluster.node_of("rival"), cluster.node_of("high"));
        assert_eq!(placed, (None, None), "processes of the victim of {high:?} run, and {rival:?} waits");
        assert_eq!(cluster.after(40).node_of("high"), Some("n"), "{high:?} beside {rival:?}");
        assert_eq!(cluster.evicted, ["low"], "{high:?} beside {rival:?}");
    }
}

#[test]
fn a_more_important_pod_may_take_the_room() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.arrives("low", ONE, 1).arrives("high", ONE, 5);
    cluster.delete("low").comes_as("higher", ONE, |facts| facts.spec.priority = 9);
    assert_eq!(cluster.nodes_of(["higher", "high"]), [Some("n"), None]);
}

#[test]
fn a_budget_is_kept_where_another_node_needs_none_broken_and_broken_otherwise() {
    let mut cluster = TestScheduler::on_each(&["a", "b"], 1);
    cluster.arrives("guarded", ONE, 1).arrives("free", ONE, 4);
    let selector = with_label("app", "guarded");
    let budget = BudgetFacts { selector: Some(selector), allowed: 0 };
    cluster.event(WorldEvent::Budget(PodKey::new("ml", "guard"), budget)).arrives("first", ONE, 9);
    assert_eq!(cluster.evicted, ["free"], "the more important pod leaves, for no budget guards it");
    assert_eq!(cluster.arrives("second", ONE, 9).evicted, ["free", "guarded"], "a budget is a preference");
}

#[test]
fn a_victim_whose_eviction_was_lost_is_evicted_again() {
    let mut cluster = high_over_low();
    // The API server never heard of it.
    cluster.change_pod("low", |facts| facts.handoff.deleting = None);
    assert_eq!(cluster.after(11).evicted, ["low", "low"]);
}

/// Three full nodes; the deletion of `low-0` has begun, and its grace period is that long.
fn one_leaves(grace: u64) -> TestScheduler {
    let mut cluster = TestScheduler::new();
    (0..3).for_each(|n| _ = cluster.node(&format!("n{n}"), 1).arrives(&format!("low-{n}"), ONE, 1));
    cluster.wait(100);
    leaves(&mut cluster, "low-0", grace);
    cluster
}

fn leaves(cluster: &mut TestScheduler, name: &str, grace: u64) {
    let at = wall(cluster.now + Duration::from_secs(grace));
    cluster.change_pod(name, |facts| facts.handoff.deleting = Some(Deletion { at, grace_seconds: grace as i64 }));
}

#[test]
fn a_pod_that_leaves_soon_is_waited_for_and_no_other_is_evicted() {
    let mut cluster = one_leaves(300);
    assert_eq!((cluster.arrives("high", ONE, 9).after(299).evicted.len(), cluster.nominations()), (0, 1));
    let explained = cluster.explain(&PodKey::new("ml", "high")).unwrap().verdict;
    let room = explained.room.unwrap();
    let until = wall(cluster.now + Duration::from_secs(61));
    let node = cluster.node_of("low-0").unwrap();
    assert_eq!(room, format!("room is made on node {node}: ml/low-0 leaves by {until:.0}"));
    assert!(explained.message.contains(&room), "{}", explained.message);
    assert!(!explained.advice.iter().any(|advice| advice.contains("ask for less")), "{:?}", explained.advice);
    assert!(cluster.goes("low-0").node_of("high").is_some());
}

/// The API server's clock is not this one's: what counts is how long the grace period is, from when its deletion was seen.
#[test]
fn a_clock_that_is_ahead_or_behind_evicts_no_second_victim() {
    for skew in [-900, 900] {
        let mut cluster = one_leaves(30);
        cluster.change_pod("low-0", |facts| {
            let deletion = facts.handoff.deleting.as_mut().unwrap();
            deletion.at += jiff::SignedDuration::from_secs(skew);
        });
        cluster.arrives("high", ONE, 9).wait(29);
        assert_eq!((cluster.evicted.len(), cluster.nominations()), (0, 1), "{skew} s");
        assert!(cluster.goes("low-0").node_of("high").is_some(), "{skew} s");
    }
}

#[test]
fn a_pod_that_leaves_late_is_not_waited_for_where_another_makes_room() {
    let mut cluster = one_leaves(100_000);
    assert_eq!(cluster.arrives("high", ONE, 9).evicted.len(), 1, "{}", cluster.conditions["high"]);
    assert_ne!(cluster.evicted[0], "low-0");
    let victim = cluster.evicted[0].clone();
    assert!(cluster.goes(&victim).node_of("high").is_some());
}

#[test]
fn a_pod_that_stays_past_its_grace_period_holds_no_other_up() {
    for restart in [false, true] {
        let mut cluster = one_leaves(30);
        assert_eq!((cluster.arrives("high", ONE, 9).after(88).evicted.len(), cluster.nominations()), (0, 1));
        if restart {
            cluster.restart();
        }
        // A scheduler that begins to lead later does not know since when.
        cluster.wait(if restart { 95 } else { 3 });
        assert_eq!(cluster.evicted.len(), 1, "{restart}: {}", cluster.conditions["high"]);
        assert_ne!(cluster.evicted[0], "low-0");
        // The victim does not leave either: the last node makes room, and no pod is evicted twice.
        assert_eq!(cluster.after(300).evicted.len(), 2, "{:?}", cluster.evicted);
        assert_ne!(cluster.evicted[0], cluster.evicted[1]);
        assert_eq!(cluster.nominations(), 0, "no node can make room any more");
        assert!(cluster.goes("low-0").node_of("high").is_some(), "it did leave");
    }
}

#[test]
fn a_victim_whose_eviction_never_comes_about_keeps_no_room_for_ever() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.arrives("low", ONE, 1);
    cluster.lost_evictions = usize::MAX;
    cluster.arrives("high", ONE, 9);
    let until = |cluster: &TestScheduler| {
        let all = cluster.scheduler.preemption().all();
        all.values().next().map(|nomination| nomination.until)
    };
    let first = until(&cluster).unwrap();
    cluster.wait(599);
    assert_eq!(until(&cluster), Some(first), "it does not move on");
    cluster.wait(2);
    assert!(until(&cluster).is_some_and(|until| until > first), "other nodes would have been tried");
    cluster.lost_evictions = 0;
    assert_eq!(cluster.after(11).evicted, ["low"]);
}

#[test]
fn a_successor_waits_for_the_victims_of_its_predecessor() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.arrives("low", &[(key::NVIDIA_GPU, "8")], 1).arrives("high", &[(key::NVIDIA_GPU, "8")], 9).restart();
    assert_eq!((cluster.settled().evicted.len(), cluster.nominations()), (1, 1));
    assert_eq!(cluster.goes("low").node_of("high"), Some("n"));
}

/// Two nodes of one zone: a victim on the first, and `high` nominated to that.
fn nominated_in_a_zone(change: impl FnOnce(&mut baton::decide::world::PodSpec)) -> TestScheduler {
    let mut cluster = TestScheduler::on("n1", 1);
    cluster.node("n2", 0);
    for (name, node) in [("n1", "one"), ("n2", "two")] {
        cluster.change_node(name, |facts| {
            facts.labels = [("zone".to_owned(), "z".to_owned()), ("host".to_owned(), node.to_owned())].into();
        });
    }
    cluster.arrives("low", ONE, 1);
    let mut high = pod("high", ONE, cluster.now);
    high.spec.priority = 9;
    high.spec.labels = labels_of("app", "high");
    change(&mut high.spec);
    assert_eq!(cluster.enters(high).pods[&PodKey::new("ml", "high")].spec.nominated.as_deref(), Some("n1"));
    cluster
}

#[test]
fn a_pod_is_not_bound_near_one_that_is_only_nominated() {
    let mut cluster = nominated_in_a_zone(|_| {});
    cluster.comes_as("friend", CPU, |facts| facts.spec.affinity = vec![near("high", "zone")]);
    assert_eq!(cluster.node_of("friend"), None, "whether it ever comes is not known");
    cluster.goes("low");
    assert!(cluster.after(2).node_of("high").is_some() && cluster.node_of("friend").is_some());
}

#[test]
fn a_nominated_pods_anti_affinity_closes_its_own_node_and_no_other() {
    let mut cluster = nominated_in_a_zone(|spec| spec.anti_affinity = vec![near("rival", "zone")]);
    cluster.comes_as("rival", CPU, |facts| facts.spec.labels = labels_of("app", "rival"));
    assert_eq!(cluster.node_of("rival"), Some("n2"));
}

#[test]
fn a_pod_that_keeps_away_from_a_nominated_one_does_not_take_its_node() {
    let mut cluster = nominated_in_a_zone(|_| {});
    cluster.comes_as("shy", CPU, |facts| {
        facts.spec.anti_affinity = vec![near("high", "host")];
        facts.spec.node_selector = labels_of("host", "one");
    });
    assert_eq!(cluster.node_of("shy"), None);
}

#[test]
fn a_nominated_pod_fills_no_place_of_a_spread_that_must_hold() {
    let mut cluster = nominated_in_a_zone(|_| {});
    let placed = |cluster: &mut TestScheduler, name: &str| {
        cluster.comes_as(name, CPU, |facts| {
            facts.spec.labels = labels_of("app", "high");
            facts.spec.node_selector = labels_of("host", "two");
            facts.spec.spread = vec![Spread { honor_affinity: false, ..spread("high", "host") }];
        });
    };
    placed(&mut cluster, "first");
    assert_eq!(cluster.node_of("first"), Some("n2"));
    placed(&mut cluster, "second");
    assert_eq!(cluster.node_of("second"), None, "the nominated pod is not on the other node yet");
}

#[test]
fn a_pod_makes_room_elsewhere_when_the_node_that_others_leave_for_it_dies() {
    let mut cluster = TestScheduler::on_each(&["n1", "n2"], 1);
    assert_eq!(cluster.arrives("first", ONE, 1).arrives("second", ONE, 2).arrives("high", ONE, 9).evicted, ["first"]);
    let dead = cluster.node_of("first").unwrap().to_owned();
    cluster.change_node(&dead, |facts| {
        facts.taints = vec![Taint {
            key: "node.kubernetes.io/unreachable".into(),
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        }];
    });
    cluster.settle();
    assert_eq!(cluster.after(11).evicted, ["first", "second"], "the first one's kubelet never says that it is gone");
    assert!(cluster.goes("second").node_of("high").is_some_and(|node| node != dead));
}

#[test]
fn a_nomination_that_was_not_written_is_tried_again_for_as_long_as_it_holds() {
    let mut cluster = TestScheduler::on("n", 1);
    cluster.arrives("low", ONE, 1);
    cluster.lost_nominations = 3;
    cluster.arrives("high", ONE, 9);
    let nominated = |cluster: &TestScheduler| cluster.pods[&PodKey::new("ml", "high")].spec.nominated.clone();
    assert_eq!((nominated(&cluster), cluster.lost_nominations), (None, 2));
    cluster.wait(1);
    assert_eq!((nominated(&cluster), cluster.lost_nominations), (None, 1));
    cluster.wait(2);
    assert_eq!((nominated(&cluster), cluster.lost_nominations), (None, 0));
    cluster.wait(3);
    assert_eq!(nominated(&cluster), None, "the third pause is four seconds");
    cluster.wait(1);
    assert_eq!((nominated(&cluster).as_deref(), cluster.nomination_writes), (Some("n"), 1));
    assert_eq!(cluster.after(30).nomination_writes, 1, "nothing is written that stands there already");
}

#[test]
fn a_nomination_whose_removal_was_not_written_is_removed_again() {
    let mut cluster = high_over_low();
    let nominated = |cluster: &TestScheduler| cluster.pods[&PodKey::new("ml", "high")].spec.nominated.clone();
    assert_eq!(nominated(&cluster).as_deref(), Some("n"));
    // The node refuses it for good, whichever pod leaves.
    cluster.lost_nominations = 1;
    cluster.change_node("n", |facts| facts.unschedulable = true).wait(11);
    assert_eq!((cluster.nominations(), cluster.lost_nominations), (0, 0));
    cluster.wait(2);
    assert_eq!(nominated(&cluster), None);
}

#[test]
fn a_lost_nomination_of_a_pod_that_is_bound_or_gone_is_not_written_again() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("low", ONE, 1).arrives("low-too", ONE, 1);
    cluster.lost_nominations = 2;
    cluster.arrives("first", ONE, 9).arrives("second", ONE, 9);
    assert_eq!(cluster.delete("second").goes("low").node_of("first"), Some("n"));
    assert_eq!(cluster.after(60).nomination_writes, 0);
}

#[test]
fn every_change_of_the_accounts_makes_a_newer_generation() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("low", ONE, 1).arrives("large", TWO, 0);
    let mut world = cluster.world().clone();
    let (low, waits, node) = (id(&world, "low"), id(&world, "large"), world.node_id("n").unwrap());
    let mut last = world.generation();
    let mut changes = |world: &mut World, change: &dyn Fn(&mut World)| {
        change(world);
        assert!(std::mem::replace(&mut last, world.generation()) < world.generation());
    };
    changes(&mut world, &|world| assert!(world.assume(waits, node, None)));
    changes(&mut world, &|world| assert!(world.forget(waits)));
    changes(&mut world, &|world| world.keep(node, Some("gang ml/big".into())));
    changes(&mut world, &|world| world.remove_for_dry_run(low));
    changes(&mut world, &|world| world.restore_after_dry_run(low));
}

#[test]
fn the_lowest_priority_and_the_rules_about_others_are_those_of_placed_pods() {
    let mut cluster = TestScheduler::on("n", 8);
    for (name, priority) in [("one", 1), ("two", 1), ("five", 5)] {
        cluster.arrives(name, ONE, priority);
    }
    for (name, lowest) in [("one", Some(1)), ("two", Some(5)), ("five", None)] {
        assert_eq!(cluster.ends(name).world().lowest_priority(), lowest);
    }
    cluster.arrives("plain", ONE, 0);
    cluster.change_node("n", |facts| drop(facts.labels.insert("zone".into(), "z".into())));
    for name in ["needs", "prefers"] {
        let mut facts = pod(name, ONE, cluster.now);
        match name {
            "needs" => facts.spec.affinity = vec![near("plain", "zone")],
            _ => facts.spec.pods_preferred = vec![(1, near("plain", "zone"))],
        }
        cluster.enters(facts).agent_releases("n");
    }
    let names: Vec<_> = cluster.world().placed_with_affinity().map(|pod| pod.key().name.to_string()).collect();
    assert_eq!(names, ["needs", "prefers"]);
}

#[test]
fn the_room_of_one_nominated_pod_is_given_back_and_not_the_others() {
    let mut cluster = TestScheduler::on("n", 1);
    for (name, priority) in [("low", 1), ("first", 0), ("second", 0)] {
        cluster.arrives(name, ONE, priority);
    }
    let mut world = cluster.world().clone();
    let (first, second, node) = (id(&world, "first"), id(&world, "second"), world.node_id("n").unwrap());
    assert!(world.assume_nominated(first, node, None) && world.assume_nominated(second, node, None));
    assert!(world.forget(first));
    assert_eq!(world.nominated_reservations_on(node).map(|pod| pod.id).collect::<Vec<_>>(), [second]);
}

#[test]
fn a_lost_node_is_not_forgotten_while_a_dry_run_has_its_pods() {
    let mut cluster = TestScheduler::on("n", 2);
    cluster.arrives("low", ONE, 1).arrives("large", TWO, 0);
    let mut world = cluster.world().clone();
    let (low, waits, node) = (id(&world, "low"), id(&world, "large"), world.node_id("n").unwrap());
    for event in [WorldEvent::NodeGone("n".into()), WorldEvent::DevicesGone("n".into())] {
        world.apply(event, cluster.now, wall(cluster.now));
    }
    world.apply(WorldEvent::AgentGone("n".into()), cluster.now, wall(cluster.now));
    world.remove_for_dry_run(low);
    assert!(world.assume_nominated(waits, node, None));
    world.forget(waits);
    world.restore_after_dry_run(low);
    assert_eq!(check(&world), []);
    // A reservation that a search takes away and puts back.
    for _ in 0..2 {
        assert!(world.assume(waits, node, None));
        world.remove_for_dry_run(low);
        world.forget(waits);
        world.restore_after_dry_run(low);
        assert_eq!(check(&world), []);
    }
}
