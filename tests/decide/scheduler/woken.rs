//! Whatever opens room wakes what waits for it: no time passes in these tests.

use crate::prelude::*;

fn on(cluster: &TestScheduler, name: &str, host: &str, limits: &[(&str, &str)]) -> PodFacts {
    let mut facts = pod(name, limits, cluster.now);
    facts.spec.node_selector = labels_of("host", host);
    facts
}

/// A pod with this share of the GPU of this minor, as another leader binds it.
fn shares(cluster: &TestScheduler, name: &str, node: &str, (minor, percent): (i64, u32)) -> PodFacts {
    let mut facts = pod(name, &[(key::GPU, &percent.to_string())], cluster.now);
    facts.handoff.node = Some(node.into());
    let memory = percent * 80 / 100;
    let [core, size, ratio] = [key::GPU_CORE, key::GPU_MEMORY, key::GPU_MEMORY_RATIO];
    let share = format!(r#"{{"{core}":"{percent}","{size}":"{memory}Gi","{ratio}":"{percent}"}}"#);
    let text = format!(r#"{{"gpu":[{{"minor":{minor},"id":"GPU-{node}-{minor}","resources":{share}}}]}}"#);
    facts.handoff.assignment.device_allocated = Some(text.into());
    facts
}

fn hosts(gpus: u32, names: &[&str]) -> TestScheduler {
    let mut cluster = TestScheduler::new();
    for name in names {
        cluster.node(name, gpus).change_node(name, |facts| facts.labels = labels_of("host", name));
    }
    cluster
}

#[test]
fn a_gang_kept_back_for_another_cause_starts_when_room_comes_after_it() {
    let mut gangs = TestGangs::new(64);
    (0..8).for_each(|minor| gangs.cluster.bound_by_another(&format!("held-{minor}"), "n", minor));
    gangs.cluster.change_node("n", |facts| facts.unschedulable = true);
    let keys = gang("g", "2", &[]);
    ["g-0", "g-1"].into_iter().for_each(|name| gangs.asks(name, FOUR, &keys));
    gangs.settled().cluster.change_node("n", |facts| facts.unschedulable = false);
    assert_eq!(gangs.settled().count("g"), 0);
    (0..8).for_each(|minor| gangs.delete(&format!("held-{minor}")));
    assert_eq!(gangs.settled().count("g"), 2);
}

#[test]
fn a_gang_that_asks_twice_for_the_same_gpus_starts_when_they_come_free() {
    let mut gangs = TestGangs::new(64);
    (0..8).for_each(|minor| gangs.cluster.bound_by_another(&format!("held-{minor}"), "n", minor));
    let keys = gang("g", "2", &[]);
    for name in ["g-0", "g-1"] {
        // The init container asks by one name, and the other container by another one, for the same four GPUs.
        let mut facts = gangs.facts(name, FOUR, &keys);
        let again = pod(name, &[(key::GPU, "400")], gangs.cluster.now);
        let (init, app) = (&facts.handoff.containers[0], &again.handoff.containers[0]);
        let mut init = init.clone();
        (init.kind, init.name) = (ContainerKind::Init, "init".into());
        facts.handoff.containers = vec![init, app.clone()].into();
        facts.spec.requests.set(key::GPU, Quantity::units(400));
        gangs.cluster.submit(facts);
    }
    gangs.settle();
    (0..8).for_each(|minor| _ = gangs.goes(&format!("held-{minor}")));
    assert_eq!(gangs.count("g"), 2);
}

#[test]
fn a_pod_that_spreads_starts_when_a_pod_that_counts_no_more_is_marked_for_deletion() {
    let mut cluster = hosts(8, &["one", "two"]);
    for name in ["first", "second"] {
        let mut facts = on(&cluster, name, "one", ONE);
        facts.spec.labels = labels_of("app", "x");
        facts.spec.spread = vec![Spread { honor_affinity: false, ..spread("x", "host") }];
        cluster.enters(facts);
        cluster.locks.contains_key("one").then(|| _ = cluster.agent_releases("one"));
        cluster.settle();
    }
    assert_eq!(cluster.nodes_of(["first", "second"]), [Some("one"), None]);
    let at = wall(cluster.now);
    cluster.change_pod("first", |facts| facts.handoff.deleting = Some(Deletion { at, grace_seconds: 30 }));
    assert_eq!(cluster.settled().node_of("second"), Some("one"));
}

#[test]
fn a_pod_starts_where_another_one_was_to_run_that_was_bound_elsewhere() {
    let mut cluster = hosts(1, &["one", "two"]);
    cluster.change_node("two", |facts| facts.unschedulable = true).hold(true).comes("moved", ONE);
    let waits = on(&cluster, "waits", "one", ONE);
    assert_eq!((cluster.enters(waits).held.len(), cluster.node_of("waits")), (1, None), "the lock is under way");
    cluster.hold(false).held.clear();
    cluster.change_pod("moved", |facts| facts.handoff.node = Some("two".into()));
    assert_eq!(cluster.settled().node_of("waits"), Some("one"));
}

#[test]
fn a_pod_starts_when_the_daemon_says_that_nothing_more_is_held() {
    let mut cluster = TestScheduler::on("n", 8);
    cluster.says_nothing("n");
    cluster.pod_as("unassigned", ONE, |facts| facts.handoff.node = Some("n".into()));
    assert_eq!(cluster.comes("waits", ONE).node_of("waits"), None);
    assert_eq!(cluster.daemon_says(&[]).settled().node_of("waits"), Some("n"));
}

#[test]
fn a_pod_starts_when_room_that_was_kept_for_another_is_made_elsewhere() {
    let mut cluster = hosts(2, &["one", "two"]);
    let submit = |cluster: &mut TestScheduler, name: &str, gpus: &str, priority: i32, host: Option<&str>| {
        let limits = [(key::NVIDIA_GPU, gpus)];
        let mut facts = host.map_or_else(|| pod(name, &limits, cluster.now), |host| on(cluster, name, host, &limits));
        facts.spec.priority = priority;
        cluster.enters(facts).all_release();
        cluster.settle();
    };
    submit(&mut cluster, "victim", "1", 1, Some("one"));
    submit(&mut cluster, "full", "2", 3, Some("two"));
    submit(&mut cluster, "high", "2", 7, None);
    submit(&mut cluster, "waits", "1", 5, Some("one"));
    assert_eq!((cluster.evicted.as_slice(), cluster.node_of("waits")), (&["victim".to_owned()][..], None));
    cluster.change_pod("high", |facts| facts.spec.gates.push("quota".into())).goes("victim");
    submit(&mut cluster, "higher", "1", 9, Some("one"));
    assert_eq!(cluster.nodes_of(["higher", "waits"]), [Some("one"), None], "the rest is kept for high");
    cluster.change_pod("high", |facts| facts.spec.gates.clear());
    assert_eq!(cluster.settled().evicted, ["victim", "full"]);
    assert_eq!(cluster.node_of("waits"), Some("one"));
}

/// Two GPUs, of which pods of others hold 60 and 30 percent of the first, and a TYJob's place a half of the second. The first pod leaves:
/// the rest of the first GPU is the better place for the half, and no whole GPU is free.
fn a_place_that_could_move() -> TestJobs {
    let mut jobs = TestJobs::on("n", 64, 2);
    for (name, percent) in [("most", 60), ("rest", 30)] {
        let facts = shares(&jobs.cluster, name, "n", (0, percent));
        jobs.cluster.submit(facts);
    }
    jobs.run("rl", &[(key::GPU, "50")], (1, &[("cpu", "1")]), |_| {}).cluster.comes("waits", ONE).ends("most");
    assert_eq!((jobs.places("rl").len(), jobs.cluster.node_of("waits")), (2, None));
    jobs
}

#[test]
fn a_pod_starts_on_the_gpu_that_a_tyjobs_pod_leaves_as_it_takes_its_place() {
    let mut jobs = a_place_that_could_move();
    assert_eq!(jobs.controller("rl").cluster.node_of("rl-learner"), Some("n"));
    assert_eq!(jobs.cluster.node_of("waits"), Some("n"));
}

#[test]
fn a_pod_starts_on_what_the_pod_of_a_place_does_not_ask_for() {
    let mut jobs = TestJobs::on("n", 64, 2);
    jobs.run("rl", &[(key::NVIDIA_GPU, "2")], (1, &[("cpu", "1")]), |_| {}).cluster.comes("waits", ONE);
    // Admission changes the pod of the place.
    let mut made = jobs.pod_of("rl", "rl-learner");
    let less = pod("less", ONE, jobs.cluster.now);
    made.handoff.containers = less.handoff.containers.clone();
    made.spec.requests = less.spec.requests.clone();
    jobs.cluster.enters(made);
    assert_eq!(jobs.serve().cluster.node_of("rl-learner"), Some("n"));
    assert_eq!(jobs.cluster.node_of("waits"), Some("n"));
}

#[test]
fn a_pod_starts_in_the_place_of_a_pod_that_a_tyjob_asks_for_no_more() {
    let mut jobs = TestJobs::on("n", 64, 2);
    assert_eq!(jobs.run("rl", ONE, (1, ONE), |_| {}).cluster.comes("waits", ONE).node_of("waits"), None);
    jobs.change("rl", |facts| {
        let spec = facts.spec.as_mut().unwrap();
        (spec.parts[1].counts, spec.min_workers) = (0, 0);
    });
    assert_eq!(jobs.cluster.node_of("waits"), Some("n"));
}

#[test]
fn a_pod_starts_where_a_member_that_waited_for_others_has_moved_from() {
    let mut gangs = TestGangs { accumulating: true, ..TestGangs::with(Config::default()) };
    for name in ["one", "two"] {
        gangs.cluster.node(name, 2).change_node(name, |facts| facts.labels = labels_of("host", name));
    }
    (0..2).for_each(|minor| gangs.cluster.bound_by_another(&format!("held-{minor}"), "two", minor));
    // It stands before the gang, and its gate goes when a member of the gang has all of the node.
    let mut waits = on(&gangs.cluster, "waits", "one", ONE);
    waits.spec.gates.push("quota".into());
    gangs.cluster.submit(waits).later(1);
    let keys = gang("g", "2", &[("mode", "NonStrict")]);
    let large = pod("g-large", &[(key::NVIDIA_GPU, "2")], gangs.cluster.now);
    let small = on(&gangs.cluster, "g-small", "one", ONE);
    for mut facts in [large, small] {
        facts.spec.gang = declared("ml", &keys);
        gangs.cluster.submit(facts);
        gangs.settle();
    }
    gangs.cluster.change_pod("waits", |facts| facts.spec.gates.clear());
    gangs.settle();
    assert_eq!((gangs.reserved("ml/g"), gangs.bound().len(), gangs.cluster.node_of("waits")), (1, 2, None));
    (0..2).for_each(|minor| gangs.cluster.finish(&format!("held-{minor}")));
    assert_eq!(gangs.settled().cluster.node_of("g-large"), Some("two"));
    assert_eq!(gangs.cluster.nodes_of(["g-small", "waits"]), [Some("one"), Some("one")]);
}

#[test]
fn a_pod_starts_on_the_gpu_that_another_leader_did_not_give_as_was_chosen_here() {
    let mut cluster = TestScheduler::on("n", 2);
    for (name, percent) in [("most", 60), ("rest", 30)] {
        let facts = shares(&cluster, name, "n", (0, percent));
        cluster.submit(facts);
    }
    cluster.hold(true).comes("moved", &[(key::GPU, "50")]).finish("most");
    cluster.comes("waits", ONE);
    assert_eq!((cluster.held.len(), cluster.node_of("waits")), (1, None), "the lock is under way");
    cluster.hold(false).held.clear();
    let bound = shares(&cluster, "moved", "n", (0, 50));
    cluster.change_pod("moved", |facts| {
        facts.handoff.node = Some("n".into());
        facts.handoff.assignment = bound.handoff.assignment;
    });
    assert_eq!(cluster.settled().node_of("waits"), Some("n"));
}

#[test]
fn a_pod_starts_where_a_pod_that_is_deleted_had_room_kept_or_made() {
    for is_kept in [true, false] {
        let mut config = Config::default();
        config.earmarks.share = 100;
        if is_kept {
            config.earmarks.after = Duration::from_secs(5);
        }
        let mut cluster = TestScheduler::with(config, DefaultSet::default());
        cluster.node("n", 2).bound_by_another("held", "n", 0);
        cluster.pod_as("large", TWO, |facts| facts.spec.priority = i32::from(!is_kept)).wait(10);
        let owners = (cluster.scheduler.earmarks().all().len(), cluster.nominations());
        assert_eq!(owners, if is_kept { (1, 0) } else { (0, 1) });
        assert_eq!(cluster.comes("waits", ONE).node_of("waits"), None);
        cluster.delete("large");
        // What nothing tells of is seen at the next look.
        assert_eq!(cluster.after(if is_kept { 10 } else { 0 }).settled().node_of("waits"), Some("n"), "{is_kept}");
    }
}
