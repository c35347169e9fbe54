//! Gangs as victims: the surplus of a gang leaves first, and one more takes the whole gang along, wherever its members are.

use super::gathered::{cluster, must};
use crate::prelude::*;

/// Nodes of one CPU each, and a gang of low priority on all of them.
fn gang_on(nodes: usize, min: &str) -> TestGangs {
    let mut gangs = TestGangs::on_ones(nodes);
    gangs.all_of_priority("low", nodes, 1, &gang("low", min, &[]));
    assert_eq!(gangs.settled().count("low"), nodes);
    gangs
}

impl TestGangs {
    fn urgent(&mut self, name: &str, keys: &[(String, String)]) -> &mut Self {
        self.of_priority(name, 9, keys).settled()
    }

    /// A pod that is evicted is gone.
    fn victims_leave(&mut self) -> &mut Self {
        let leaving: Vec<PodKey> = self
            .cluster
            .pods
            .iter()
            .filter(|(_, facts)| facts.handoff.deleting.is_some())
            .map(|(key, _)| key.clone())
            .collect();
        leaving.iter().for_each(|key| self.delete(&key.name));
        self.after(2)
    }
}

#[test]
fn the_surplus_of_a_gang_leaves_first_and_one_more_takes_all_of_it() {
    let mut gangs = gang_on(4, "3");
    assert_eq!(gangs.urgent("first", &[]).cluster.evicted.len(), 1);
    gangs.urgent("second", &[]);
    assert_eq!(gangs.cluster.evicted.len(), 4, "the gang would be below its minimum: {:?}", gangs.cluster.evicted);
    assert_eq!(gangs.victims_leave().counts(["first", "second", "low"]), [1, 1, 0]);
}

#[test]
fn a_gang_that_ends_member_by_member_counts_those_that_have_succeeded() {
    for (policy, evicted) in [("once-satisfied", 1), ("waiting-running-succeed", 1), ("waiting-and-running", 2)] {
        let mut gangs = TestGangs::on_ones(4);
        gangs.all_of_priority("low", 4, 1, &gang("low", "3", &[("match-policy", policy)])).settle();
        (0..2).for_each(|n| gangs.cluster.finish(&format!("low-{n}")));
        gangs.all_of_priority("high", 3, 9, &[]);
        assert_eq!(gangs.settled().cluster.evicted.len(), evicted, "{policy}: {:?}", gangs.cluster.evicted);
    }
}

#[test]
fn what_an_earlier_run_has_done_spares_no_member_of_this_one() {
    let mut gangs = TestGangs::on_ones(3);
    for run in ["first", "second"] {
        gangs.all_of_priority(run, 3, 1, &gang("low", "3", &[]));
        assert_eq!(gangs.settled().count(run), 3);
        if run == "first" {
            (0..3).for_each(|n| gangs.cluster.finish(&format!("first-{n}")));
            gangs.wait(2);
        }
    }
    assert_eq!(gangs.urgent("urgent", &[]).cluster.evicted.len(), 3, "{:?}", gangs.cluster.evicted);
}

#[test]
fn a_member_that_could_stay_and_leaves_with_its_gang_is_counted_once() {
    // Two members on each of two GPUs. Three are the gang's minimum: without them the fourth could stay beside the urgent pod.
    let mut gangs = TestGangs::with_gpus(&[("n", 2)]);
    for n in 0..4 {
        let half = [(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")];
        gangs.asks_as(&format!("low-{n}"), &half, &gang("low", "3", &[]), |facts| facts.spec.priority = 1);
    }
    assert_eq!(gangs.settled().count("low"), 4);
    gangs.asks_as("urgent", ONE, &[], |facts| facts.spec.priority = 9);
    assert_eq!(gangs.settled().cluster.evicted.len(), 4, "{:?}", gangs.cluster.evicted);
}

#[test]
fn a_pod_by_itself_leaves_rather_than_a_gang_that_cannot_spare_anybody() {
    let mut gangs = gang_on(3, "3");
    gangs.plain_node("alone", 1, "x").of_priority("single", 1, &[]).settled().urgent("first", &[]);
    assert_eq!(gangs.cluster.evicted, ["single"]);
}

#[test]
fn a_gang_with_a_member_as_important_as_the_pod_is_no_victim_below_its_minimum() {
    let mut gangs = gang_on(3, "3");
    gangs.change("low-2", |facts| facts.spec.priority = 9).urgent("first", &[]);
    assert_eq!(gangs.cluster.evicted, Vec::<String>::new());
}

#[test]
fn a_gang_that_preempts_counts_the_surplus_of_its_victims_once() {
    // Two places are needed. Where the gang can spare one, all of it leaves, or none; where it can spare two, only these.
    for (nodes, evicted, left) in [(4, 4, 0), (5, 2, 3)] {
        let mut gangs = gang_on(nodes, "3");
        gangs.all_of_priority("high", 2, 9, &gang("high", "2", &[]));
        assert_eq!(gangs.settled().cluster.evicted.len(), evicted, "{:?}", gangs.cluster.evicted);
        assert_eq!(gangs.cluster.nominations(), 2, "{nodes} nodes");
        assert_eq!(gangs.victims_leave().counts(["high", "low"]), [2, left], "{nodes} nodes");
    }
}

#[test]
fn a_gang_that_preempts_uses_a_budget_once() {
    let mut gangs = TestGangs::on_ones(4);
    // Those of the budget are the youngest: without it they would leave.
    for name in ["other-0", "other-1", "web-0", "web-1"] {
        gangs.asks_as(name, CPU, &[], |facts| {
            facts.spec.priority = 1;
            facts.spec.labels = labels_of("app", &name[..3]);
        });
        gangs.wait(1);
    }
    let selector = with_label("app", "web");
    let budget = BudgetFacts { selector: Some(selector), allowed: 1 };
    gangs.cluster.event(WorldEvent::Budget(PodKey::new("ml", "web"), budget));
    gangs.all_of_priority("high", 2, 9, &gang("high", "2", &[])).settle();
    let evicted = &gangs.cluster.evicted;
    assert_eq!((evicted.len(), evicted.iter().filter(|pod| pod.starts_with("web")).count()), (2, 1), "{evicted:?}");
}

#[test]
fn the_room_of_a_preempting_gang_stays_closed_while_one_victim_is_there() {
    let mut gangs = gang_on(2, "0");
    gangs.all_of_priority("high", 3, 9, &gang("high", "3", &[])).plain_node("free", 1, "x").wait(2);
    assert_eq!((gangs.cluster.evicted.len(), gangs.cluster.nominations()), (2, 3));
    gangs.urgent("rival", &[]);
    // As long as the victims may take.
    gangs.wait(86);
    assert_eq!(gangs.count("rival"), 0, "the free node is kept for the third member as long as the others wait");
    assert_eq!(gangs.victims_leave().count("high"), 3);
}

/// A TYJob of a leader and three workers, of which it needs one, each on a node of its own.
fn job() -> TestGangs {
    let mut gangs = TestGangs::with(Default::default());
    let mut facts = TestJobs::new().job("rl", &[], (0, &[]));
    (facts.stage, facts.has_address) = (Some(Stage::Running), true);
    let spec = facts.spec.as_mut().unwrap();
    (spec.terminating, spec.parts) = (true, vec![]);
    gangs.cluster.jobs.insert(PodKey::new("ml", "rl"), facts);
    gangs.cluster.tell_job(&PodKey::new("ml", "rl"));
    for (n, name) in ["rl-learner", "rl-actor-0", "rl-actor-1", "rl-actor-2"].into_iter().enumerate() {
        gangs.plain_node(&format!("n{n}"), 1, "x");
        let mut facts = gangs.facts(name, CPU, &[]);
        facts.spec.priority = 1;
        facts.spec.job = Some(Arc::new(JobClaim { name: "rl".into(), uid: "uid-rl".into(), attempt: Some(0) }));
        let role = if n == 0 { "leader" } else { "worker" };
        facts.spec.labels.insert("arranger.taichu.io/role".to_owned(), role.to_owned());
        facts.handoff.node = Some(format!("n{n}").as_str().into());
        gangs.cluster.submit(facts);
    }
    gangs.settle();
    gangs
}

#[test]
fn a_job_spares_workers_above_its_minimum_and_never_its_leader() {
    let mut gangs = job();
    for (name, evicted) in [("first", 1), ("second", 2), ("third", 4)] {
        assert_eq!(gangs.urgent(name, &[]).cluster.evicted.len(), evicted, "{name}: {:?}", gangs.cluster.evicted);
        let leader = gangs.cluster.evicted.contains(&"rl-learner".to_owned());
        assert_eq!(leader, name == "third", "the leader leaves with all of the job only");
    }
}

impl TestGangs {
    /// A node whose only pod, of this priority, takes all of it.
    fn full_node(&mut self, name: &str, priority: i32) -> &mut Self {
        self.plain_node(name, 4, name).asks_as(&format!("low-{name}"), &[("cpu", "4")], &[], |facts| {
            facts.spec.priority = priority;
            facts.spec.node_selector = labels_of("pool", name);
        });
        assert_eq!(self.settled().cluster.node_of(&format!("low-{name}")), Some(name));
        self
    }

    fn unlike(&mut self, name: &str, cpus: &str, pool: Option<&str>) -> &mut Self {
        let mut facts = self.facts(name, &[("cpu", cpus)], &gang("high", "2", &[]));
        facts.spec.priority = 9;
        if let Some(pool) = pool {
            facts.spec.node_selector = labels_of("pool", pool);
        }
        self.cluster.submit(facts);
        self
    }
}

#[test]
fn unlike_members_get_victims_where_each_of_them_can_go() {
    let mut gangs = TestGangs::with(Default::default());
    // Whoever chooses by itself takes the room of the least important pod, and leaves the picky one without.
    gangs.full_node("x", 1).full_node("y", 2).full_node("z", 3).unlike("high-0", "3", None);
    gangs.unlike("high-1", "2", Some("x"));
    assert_eq!(gangs.settled().cluster.evicted.len(), 2, "{:?}", gangs.cluster.evicted);
    assert!(gangs.cluster.evicted.contains(&"low-x".to_owned()), "{:?}", gangs.cluster.evicted);
    assert!(
        gangs.cluster.evicted.contains(&"low-y".to_owned()),
        "the least important that helps: {:?}",
        gangs.cluster.evicted
    );
    assert_eq!(gangs.victims_leave().counts(["high", "low"]), [2, 1]);
    assert_eq!(gangs.cluster.node_of("high-1"), Some("x"));
}

#[test]
fn no_pod_is_evicted_for_unlike_members_that_would_not_all_fit() {
    let mut gangs = TestGangs::with(Default::default());
    gangs.full_node("x", 1).unlike("high-0", "3", None).unlike("high-1", "2", Some("x")).settle();
    assert_eq!((gangs.cluster.evicted.len(), gangs.count("low")), (0, 1));
}

#[test]
fn room_that_was_kept_for_a_gang_is_open_when_the_gang_is_deleted() {
    let mut gangs = gang_on(2, "1");
    let keys = gang("high", "2", &[]);
    assert_eq!(gangs.urgent("high-0", &keys).urgent("high-1", &keys).cluster.evicted.len(), 2);
    gangs.of_priority("late", 1, &[]).goes("low-0");
    assert_eq!(gangs.count("late"), 0, "it is kept for the gang, which waits for the other one");
    gangs.delete("high-0");
    assert_eq!(gangs.goes("high-1").count("late"), 1);
}

#[test]
fn a_gang_looks_for_other_victims_when_the_node_of_one_dies_with_it() {
    let mut gangs = gang_on(3, "1");
    let keys = gang("high", "2", &[]);
    gangs.urgent("high-0", &keys).urgent("high-1", &keys);
    let evicted = gangs.cluster.evicted.clone();
    assert_eq!(evicted.len(), 2);
    let dead = gangs.cluster.node_of(&evicted[0]).unwrap().to_owned();
    gangs.delete(&evicted[1]);
    gangs.cluster.change_node(&dead, |facts| facts.unschedulable = true);
    assert_eq!(gangs.after(3).cluster.evicted.len(), 3, "{:?}", gangs.cluster.evicted);
    let last = gangs.cluster.evicted[2].clone();
    gangs.delete(&last);
    assert_eq!(gangs.after(3).count("high"), 2);
}

#[test]
fn no_pod_joins_a_gang_whose_members_are_about_to_leave() {
    let mut gangs = TestGangs::on_plain("n1", 2, "x");
    assert_eq!(gangs.come("low", 3, &gang("low", "2", &[("match-policy", "waiting-and-running")])).count("low"), 2);
    gangs.asks_as("high", &[("cpu", "2")], &[], |facts| facts.spec.priority = 9).plain_node("n2", 1, "x").wait(2);
    assert_eq!((gangs.cluster.evicted.len(), gangs.count("low")), (2, 2), "the third one stays away");
    assert_eq!(gangs.victims_leave().counts(["high", "low"]), [1, 0], "alone it is below the minimum");
}

#[test]
fn members_with_affinity_to_each_other_keep_their_room_until_the_victims_left() {
    let mut gangs = gang_on(2, "0");
    let keys = gang("high", "2", &[]);
    gangs.asks_as("high-ps", CPU, &keys, |facts| {
        facts.spec.priority = 9;
        facts.spec.labels = labels_of("app", "ps");
    });
    gangs.asks_as("high-worker", CPU, &keys, |facts| {
        facts.spec.priority = 9;
        facts.spec.affinity = vec![PodTerm { namespaces: vec!["ml".into()], ..near("ps", "pool") }];
    });
    assert_eq!(gangs.settled().cluster.evicted.len(), 2, "{:?}", gangs.cluster.evicted);
    let victims = gangs.cluster.evicted.clone();
    gangs.urgent("late", &[]).wait(25);
    let asked: std::collections::BTreeSet<&String> = gangs.cluster.evicted.iter().collect();
    assert_eq!((asked.len(), gangs.cluster.nominations()), (2, 2), "{:?}", gangs.cluster.evicted);
    gangs.delete(&victims[0]);
    assert_eq!((gangs.after(25).count("late"), gangs.cluster.nominations()), (0, 2), "the room is the gang's");
    gangs.delete(&victims[1]);
    assert_eq!(gangs.after(3).counts(["high", "late"]), [2, 0]);
}

#[test]
fn a_gang_does_not_wait_for_a_pod_that_does_not_leave() {
    for (grace, waits) in [(100_000, 0), (30, 90)] {
        let mut gangs = TestGangs::with(Default::default());
        for n in 0..3 {
            gangs.plain_node(&format!("n{n}"), 1, "x").of_priority(&format!("low-{n}"), 1, &[]);
        }
        gangs.wait(100);
        let at = wall(gangs.cluster.now + std::time::Duration::from_secs(grace));
        gangs.change("low-0", |facts| {
            facts.handoff.deleting = Some(baton::decide::pod::Deletion { at, grace_seconds: grace as i64 });
        });
        (0..2).for_each(|n| _ = gangs.urgent(&format!("high-{n}"), &gang("high", "2", &[])));
        // Pods that were asked leave at once; only `low-0` stays.
        gangs.cluster.evicted.clone().iter().for_each(|name| gangs.delete(name));
        let mut asked = gangs.after(waits + 2).cluster.evicted.clone();
        asked.sort();
        asked.dedup();
        assert_eq!(asked, ["low-1", "low-2"], "{grace}: {}", gangs.condition("high-0"));
        let left: Vec<String> = gangs.bound().into_iter().filter(|name| asked.contains(name)).collect();
        left.iter().for_each(|name| gangs.delete(name));
        assert_eq!(gangs.after(3).count("high"), 2, "{grace}: {}", gangs.condition("high-0"));
    }
}

#[test]
fn a_gang_that_waits_for_the_deletion_of_a_member_says_so() {
    let mut gangs = TestGangs::on_plain("n1", 2, "x");
    gangs.come("low", 3, &gang("low", "2", &[("match-policy", "waiting-and-running")]));
    // The same condition with other words is not written more often than this.
    gangs.wait(61);
    gangs.cluster.lost_evictions = 100;
    gangs.asks_as("high", &[("cpu", "2")], &[], |facts| facts.spec.priority = 9).plain_node("n2", 1, "x");
    let bound = gangs.after(5).bound();
    assert_eq!((gangs.cluster.evicted.len(), gangs.count("low")), (0, 2));
    let third = (0..3).map(|n| format!("low-{n}")).find(|name| !bound.contains(name)).unwrap();
    tells(gangs.condition(&third), ["it is being preempted"]);
}

#[test]
fn a_gang_whose_member_is_asked_to_leave_in_vain_goes_on_after_a_minute() {
    let mut gangs = TestGangs::on_plain("n1", 2, "x");
    gangs.come("low", 3, &gang("low", "2", &[("match-policy", "waiting-and-running")]));
    gangs.cluster.lost_evictions = 100;
    gangs.asks_as("high", &[("cpu", "2")], &[], |facts| facts.spec.priority = 9).plain_node("n2", 1, "x");
    assert_eq!(gangs.after(58).count("low"), 2);
    assert_eq!(gangs.after(3).count("low"), 3, "{:?}", gangs.cluster.conditions);
}

#[test]
fn racks_that_victims_cannot_empty_do_not_hide_the_one_that_they_can() {
    let mut gangs = cluster(&[]);
    let mut racks: Vec<(String, i32, u32)> = (0..20).map(|rack| (format!("full-{rack}"), 9, 1)).collect();
    racks.push(("low".to_owned(), 1, 2));
    for (rack, priority, pods) in racks {
        gangs.node_by(&format!("{rack} 2 rack={rack} pool={rack}"));
        (0..pods).for_each(|n| _ = gangs.in_pool_with((&format!("on-{rack}-{n}"), priority), &rack, &[]));
    }
    assert_eq!(gangs.settled().count("on-"), 22);
    gangs.all_of_priority("g", 2, 9, &must("g", "2")).settled().cluster.evicted.sort_unstable();
    assert_eq!(gangs.cluster.evicted, ["on-low-0", "on-low-1"]);
}

#[test]
fn victims_leave_in_the_rack_where_that_costs_least() {
    let mut gangs = cluster(&["a 1 rack=r1 pool=a", "b 1 rack=r1 pool=b", "c 1 rack=r2 pool=c", "d 1 rack=r2 pool=d"]);
    for (node, priority) in [("b", 5), ("c", 1), ("d", 1)] {
        gangs.in_pool_with((&format!("on-{node}"), priority), node, &[]);
    }
    assert_eq!(gangs.settled().count("on-"), 3);
    gangs.all_of_priority("g", 2, 9, &must("g", "2")).settled().cluster.evicted.sort_unstable();
    assert_eq!(gangs.cluster.evicted, ["on-c", "on-d"], "in r1 one of higher priority would leave");
}
