//! What kube-scheduler learns when others leave a node for a pod: the room is that pod's, and budgets count.

use baton::decide::scheduler::{BindVerdict, RequestId};

use crate::harness::gangs;
use crate::prelude::*;

const THEIRS: &str = "default-scheduler";

fn cluster() -> TestScheduler {
    let config = Config { asking_names: [THEIRS.into()].into(), ..Config::default() };
    TestScheduler::with(config, DefaultSet::default())
}

/// A pod that kube-scheduler places.
fn theirs(cluster: &TestScheduler, name: &str, limits: &[(&str, &str)], priority: i32) -> PodFacts {
    let mut facts = pod(name, limits, cluster.now);
    facts.handoff.scheduler_name = THEIRS.into();
    facts.spec.priority = priority;
    facts.spec.labels = labels_of("app", name);
    facts
}

impl TestScheduler {
    fn bound_here(&mut self, name: &str, limits: &[(&str, &str)], priority: i32) -> &mut Self {
        assert!(self.arrives(name, limits, priority).node_of(name).is_some(), "{name}");
        self
    }

    fn room_for(&mut self, facts: &PodFacts, proposed: &[&str]) -> Option<(Vec<String>, i64)> {
        let uids = proposed.iter().map(|name| PodUid::new(&format!("uid-{name}"))).collect();
        let now = self.moment();
        let mut found = self.scheduler.make_room(facts, &BTreeMap::from([("n1".to_owned(), uids)]), now);
        found.remove("n1").map(|room| (room.victims.iter().map(ToString::to_string).collect(), room.more_broken))
    }
}

impl TestScheduler {
    fn fitting(&mut self, facts: &PodFacts, nodes: &[&str]) -> Vec<String> {
        let nodes: Vec<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        let now = self.moment();
        self.scheduler.fit_devices(facts, &nodes, now).fitting
    }
}

#[test]
fn gpus_of_nodes_without_an_agent_are_counted_for_kube_scheduler_too() {
    let config = Config { asking_names: [THEIRS.into()].into(), ..Config::default() };
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let mut cluster = TestScheduler::with(config, set);
    cluster.plain_node("n", 2);
    let third = theirs(&cluster, "third", ONE, 0);
    for name in ["first", "second"] {
        assert_eq!(cluster.fitting(&third, &["n"]), ["n"]);
        cluster.bound_here(name, ONE, 0);
    }
    assert_eq!(cluster.fitting(&third, &["n"]), [""; 0]);
    cluster.submit(third.clone()).requests(1, &third.handoff.pod, "n");
    let answers = cluster.scheduler.take_answers();
    assert!(
        matches!(&answers[0].verdict, BindVerdict::Failed(why) if why.contains("node n has no free GPU")),
        "{answers:?}"
    );
    cluster.delete("first");
    assert_eq!(cluster.fitting(&third, &["n"]), ["n"]);
}

#[test]
fn a_pod_of_kube_scheduler_is_explained_by_its_extender_calls_and_bind() {
    let mut cluster = cluster();
    cluster.node("n", 1).bound_here("first", ONE, 0);
    let waiting = theirs(&cluster, "waiting", ONE, 0);
    cluster.submit(waiting.clone());
    let key = PodKey::new("ml", "waiting");
    let reported = cluster.explain(&key).unwrap().verdict;
    assert!(reported.message.contains(THEIRS) && reported.message.contains("1 has no free GPU"), "{reported:?}");
    assert!(!reported.rules.is_empty() && reported.nodes.len() == 1, "{reported:?}");
    cluster.delete("first");
    let reported = cluster.explain(&key).unwrap().verdict;
    assert!(reported.message.ends_with("fits node n"), "{reported:?}");
    cluster.set_lock("n", "who knows").requests(1, &waiting.handoff.pod, "n");
    let listed = cluster.queue_report().items;
    let bind = listed.iter().find(|item| item.name == key.to_string()).unwrap();
    assert_eq!((bind.node.as_deref(), bind.state), (Some("n"), PodState::WaitingForLock), "{bind:?}");
}

/// Members of one gang, bound to `node` one after the other.
fn gang_on(cluster: &mut TestScheduler, node: &str, min: &str, names: &[&str]) {
    for name in names {
        cluster.pod_as(name, ONE, |facts| facts.spec.gang = gangs::declared("ml", &gangs::gang("g", min, &[])));
    }
    for _ in names {
        cluster.settled().agent_releases(node);
    }
    cluster.settle();
    assert!(names.iter().all(|name| cluster.node_of(name) == Some(node)));
}

#[test]
fn a_gang_leaves_whole_or_keeps_what_it_cannot_spare() {
    let single = "uid-single";
    // What kube-scheduler proposes, the gang's minimum, and who leaves where two or three GPUs are needed.
    for (proposed, min, wanted, leave) in [
        (&[][..], "0", "1", "uid-a"),
        (&[], "1", "1", "uid-a"),
        (&[], "2", "1", single),
        (&["a"], "1", "2", "uid-a uid-single"),
        (&["single"], "2", "3", "uid-single uid-a uid-b"),
    ] {
        let mut cluster = cluster();
        cluster.node("n1", 3).bound_here("single", ONE, 0).wait(1);
        gang_on(&mut cluster, "n1", min, &["a", "b"]);
        let facts = theirs(&cluster, "asks", &[(key::NVIDIA_GPU, wanted)], 100);
        let (mut victims, _) = cluster.room_for(&facts, proposed).unwrap();
        victims.sort_unstable();
        let mut expected: Vec<&str> = leave.split(' ').collect();
        expected.sort_unstable();
        assert_eq!(victims, expected, "{proposed:?} {min}");
    }
    // A member elsewhere would be left behind.
    let mut cluster = cluster();
    cluster.node("n1", 1).node("n2", 1);
    gangs_apart(&mut cluster);
    let facts = theirs(&cluster, "asks", ONE, 100);
    assert_eq!(cluster.room_for(&facts, &[]), None);
}

/// A gang of two, with one member on each of two nodes.
fn gangs_apart(cluster: &mut TestScheduler) {
    for name in ["a", "b"] {
        cluster.pod_as(name, ONE, |facts| facts.spec.gang = gangs::declared("ml", &gangs::gang("g", "2", &[])));
    }
    assert_eq!(cluster.settled().bound(), 2);
    ["n1", "n2"].iter().for_each(|node| _ = cluster.agent_releases(node));
    cluster.settle();
}

#[test]
fn devices_that_were_freed_for_a_nominated_pod_are_closed_to_less_important_ones() {
    let mut cluster = cluster();
    cluster.node("n1", 2).node("n2", 1);
    let mut high = theirs(&cluster, "high", TWO, 100);
    high.spec.nominated = Some("n1".into());
    cluster.submit(high.clone());
    let low = theirs(&cluster, "low", ONE, 0);
    cluster.submit(low.clone());
    assert_eq!(cluster.fitting(&low, &["n1", "n2"]), ["n2"], "the room was made for the other one");
    assert_eq!(cluster.fitting(&high, &["n1", "n2"]), ["n1"]);
    let higher = theirs(&cluster, "higher", ONE, 200);
    assert_eq!(cluster.fitting(&higher, &["n1", "n2"]), ["n1", "n2"]);
    cluster.requests(1, &low.handoff.pod, "n1");
    let answers = cluster.scheduler.take_answers();
    assert!(matches!(&answers[0].verdict, BindVerdict::Failed(why) if why.contains("n1")), "{answers:?}");
    cluster.delete("high");
    assert_eq!(cluster.fitting(&low, &["n1", "n2"]), ["n1", "n2"]);
}

#[test]
fn the_node_is_closed_while_the_victims_of_a_nominated_pod_are_leaving() {
    let mut cluster = cluster();
    cluster.node("n1", 2).bound_here("victim", ONE, 0);
    let mut high = theirs(&cluster, "high", TWO, 100);
    high.spec.nominated = Some("n1".into());
    cluster.submit(high);
    let low = theirs(&cluster, "low", ONE, 0);
    assert_eq!(cluster.fitting(&low, &["n1"]), [""; 0]);
}

fn guard(cluster: &mut TestScheduler, app: &str) {
    let selector = Some(with_label("app", app));
    cluster.event(WorldEvent::Budget(PodKey::new("ml", app), BudgetFacts { selector, allowed: 0 }));
}

#[test]
fn further_victims_are_those_that_no_budget_guards_and_broken_budgets_are_counted() {
    let mut cluster = cluster();
    cluster.node("n1", 2).bound_here("guarded", ONE, 1).bound_here("free", ONE, 5);
    guard(&mut cluster, "guarded");
    let one = theirs(&cluster, "one", ONE, 100);
    assert_eq!(cluster.room_for(&one, &[]), Some((vec!["uid-free".to_owned()], 0)), "more important, and not guarded");
    let two = theirs(&cluster, "two", TWO, 100);
    let (victims, broken) = cluster.room_for(&two, &["free"]).unwrap();
    assert_eq!((victims, broken), (vec!["uid-free".to_owned(), "uid-guarded".to_owned()], 1));
    assert_eq!(cluster.room_for(&two, &["free", "guarded"]).unwrap().1, 0, "kube-scheduler has counted its own");
}

#[test]
fn no_pod_leaves_beside_pods_that_are_leaving_already() {
    let mut cluster = cluster();
    cluster.node("n1", 2).bound_here("leaving", ONE, 1).bound_here("staying", ONE, 1);
    cluster.change_pod("leaving", |facts| {
        facts.handoff.deleting = Some(Deletion { at: facts.handoff.created, grace_seconds: 30 });
    });
    let one = theirs(&cluster, "one", ONE, 100);
    assert_eq!(cluster.room_for(&one, &[]), Some((vec![], 0)));
}

#[test]
fn a_pod_that_never_leaves_is_not_waited_for_and_no_victim() {
    let mut cluster = cluster();
    cluster.node("n1", 2).bound_here("stuck", ONE, 1).bound_here("staying", ONE, 1);
    cluster.change_pod("stuck", |facts| {
        facts.handoff.deleting = Some(Deletion { at: facts.handoff.created, grace_seconds: 0 });
    });
    cluster.after(120).beat_all();
    let one = theirs(&cluster, "one", ONE, 100);
    assert_eq!(cluster.room_for(&one, &[]), Some((vec!["uid-staying".to_owned()], 0)));
    let two = theirs(&cluster, "two", TWO, 100);
    assert_eq!(cluster.room_for(&two, &[]), None);
}

#[test]
fn room_of_a_pod_that_kube_scheduler_nominated_is_closed_to_our_own_pods() {
    let mut cluster = cluster();
    cluster.node("n1", 1).bound_here("victim", ONE, 0);
    let mut high = theirs(&cluster, "high", ONE, 100);
    high.spec.nominated = Some("n1".into());
    cluster.submit(high).pod("own", ONE).after(5).delete("victim");
    assert_eq!(cluster.after(30).node_of("own"), None, "the victim left for another pod");
    cluster.change_pod("high", |facts| facts.spec.nominated = None);
    assert_eq!(cluster.after(30).node_of("own"), Some("n1"), "the nomination was given up");
}

#[test]
fn room_that_another_scheduler_makes_is_its_pods_also_where_it_does_not_ask_here() {
    const ALL: &[(&str, &str)] = &[("cpu", "64")];
    let mut cluster = TestScheduler::on("n1", 1);
    cluster.bound_here("victim", ALL, 0);
    let mut agent = theirs(&cluster, "agent", ALL, 2_000_000_000);
    agent.spec.nominated = Some("n1".into());
    cluster.submit(agent).pod("own", &[ALL[0], ONE[0]]).delete("victim").wait(30);
    assert_eq!(cluster.node_of("own"), None, "else it is evicted for the other pod, and comes back, without an end");
    cluster.change_pod("agent", |facts| facts.spec.nominated = None);
    assert_eq!(cluster.after(30).node_of("own"), Some("n1"), "the nomination was given up");
}

#[test]
fn no_pod_leaves_for_one_whose_bind_is_under_way() {
    let mut cluster = cluster();
    cluster.node("n1", 1).node("n2", 1);
    let theirs = theirs(&cluster, "theirs", ONE, 100);
    cluster.submit(theirs.clone());
    let (now, wait) = (cluster.moment(), std::time::Duration::from_secs(10));
    drop(cluster.scheduler.request_bind(RequestId(1), &theirs.handoff.pod, "n2", wait, now));
    let nodes = ["n1".to_owned(), "n2".to_owned()];
    let fits = cluster.scheduler.fit_devices(&theirs, &nodes, now);
    assert_eq!((fits.fitting, fits.failed.len(), fits.never.len()), (vec!["n2".to_owned()], 0, 1));
    assert_eq!(cluster.room_for(&theirs, &["victim"]), None);
}

#[test]
fn on_a_node_without_an_agent_pods_leave_by_their_number() {
    let config = Config { asking_names: [THEIRS.into()].into(), ..Config::default() };
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let mut cluster = TestScheduler::with(config, set);
    cluster.plain_node("n1", 2).bound_here("a", ONE, 0).bound_here("b", ONE, 0);
    let (two, three) = (theirs(&cluster, "two", TWO, 100), theirs(&cluster, "three", &[(key::NVIDIA_GPU, "3")], 100));
    let (now, nodes) = (cluster.moment(), ["n1".to_owned()]);
    let said = |cluster: &mut TestScheduler, facts: &PodFacts| {
        let fits = cluster.scheduler.fit_devices(facts, &nodes, now);
        (fits.failed.len(), fits.never.len())
    };
    assert_eq!((said(&mut cluster, &two), said(&mut cluster, &three)), ((1, 0), (0, 1)));
    let (victims, _) = cluster.room_for(&two, &["a"]).unwrap();
    assert_eq!(victims, ["uid-a", "uid-b"]);
    assert_eq!(cluster.room_for(&three, &["a", "b"]), None);
}

#[test]
fn every_way_to_join_a_gang_is_seen_and_a_pod_group_without_a_rule_is_none() {
    let mut gangs = TestGangs::new(1);
    gangs.pod_group("ml/none", |facts| facts.spec.min = Some(0));
    let together = |gangs: &mut TestGangs, keys: &[(&str, &str)]| {
        let keys: Vec<(String, String)> = keys.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let facts = gangs.facts("p", CPU, &keys);
        gangs.cluster.scheduler.together_with(&facts)
    };
    for name in ["pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name"] {
        assert_eq!(together(&mut gangs, &[(name, "g")]), Some(format!("{name}=g")));
    }
    let half = [("gang.scheduling.koordinator.sh/min-available", "2")];
    assert_eq!(together(&mut gangs, &half).as_deref(), Some("keys of a gang, without its name"));
    assert_eq!(together(&mut gangs, &[("app", "g")]), None);
    assert_eq!(together(&mut gangs, &[("pod-group.scheduling.sigs.k8s.io", "none")]), None);
}
