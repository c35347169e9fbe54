//! A large gang gets its turn under a steady stream of small pods: nodes are kept for it. In virtual time, by the scheduler that ships.
//!
//! `AGED_SEEDS` sets how many streams are run.

use baton::decide::core::EarmarkPolicy;

use crate::prelude::*;

const NODES: u32 = 40;
const GPUS: usize = NODES as usize * 8;

/// A stream of one-GPU pods that live 60 to 120 s and keep 98 % of the GPUs busy.
struct Stream {
    gangs: TestGangs,
    dice: Dice,
    /// Names of running pods and when they end.
    ends: BTreeMap<String, Duration>,
    made: u32,
}

impl Stream {
    fn new(seed: u64, after: Duration) -> Self {
        let earmarks = EarmarkPolicy { after, ..EarmarkPolicy::default() };
        let mut cluster = TestScheduler::with(Config { earmarks, ..Config::default() }, DefaultSet::default());
        cluster.watchful = false;
        (0..NODES).for_each(|n| _ = cluster.node(&format!("n{n:02}"), 8));
        Self { gangs: TestGangs { cluster, accumulating: true }, dice: Dice(seed), ends: BTreeMap::new(), made: 0 }
    }

    /// One second. `keep`: how many GPUs small pods are to want.
    fn second(&mut self, keep: usize) {
        let cluster = &mut self.gangs.cluster;
        cluster.later(1);
        if cluster.now.as_secs().is_multiple_of(30) {
            cluster.beat_all();
        }
        let now = cluster.now;
        let ended: Vec<String> =
            self.ends.iter().filter(|(_, end)| **end <= now).map(|(name, _)| name.clone()).collect();
        for name in ended {
            self.ends.remove(&name);
            self.gangs.delete(&name);
        }
        // Small pods that wait for a GPU count as wanted: their stream never runs dry.
        while self.small() < keep {
            self.made += 1;
            self.gangs.asks(&format!("small-{}", self.made), ONE, &[]);
        }
        self.settle();
        let now = self.gangs.cluster.now;
        let started: Vec<String> = self.gangs.bound().into_iter().filter(|name| name.starts_with("small-")).collect();
        for name in started {
            let dice = &mut self.dice;
            self.ends.entry(name).or_insert_with(|| now + Duration::from_secs(60 + u64::from(dice.below(61))));
        }
    }

    /// As [`TestGangs::settle`], without the audit of all.
    fn settle(&mut self) {
        loop {
            self.gangs.cluster.settle();
            if self.gangs.cluster.locks.is_empty() {
                return;
            }
            self.gangs.cluster.all_release();
        }
    }

    fn small(&self) -> usize {
        self.gangs.cluster.pods.keys().filter(|key| key.name.starts_with("small-")).count()
    }

    fn used(&self) -> usize {
        let bound = self.gangs.cluster.pods.values().filter(|pod| pod.handoff.node.is_some());
        let running = bound.filter(|pod| pod.handoff.phase != Phase::Succeeded);
        running.map(|pod| if pod.handoff.pod.key.name.starts_with("small-") { 1 } else { 8 }).sum()
    }

    fn earmarked(&self) -> bool {
        !self.gangs.cluster.scheduler.earmarks().all().is_empty()
    }
}

/// A 128-GPU gang under the stream: when it started after its age, and GPUs in use in percent over the 20 minutes from its age on.
fn run(seed: u64, after: Duration) -> (Option<u64>, f64) {
    let mut stream = Stream::new(seed, after);
    let wanted = GPUS * 98 / 100;
    (0..200).for_each(|_| stream.second(wanted));
    let keys = gang("big", "16", &[]);
    (0..16).for_each(|n| stream.gangs.asks(&format!("big-{n:02}"), &[(key::NVIDIA_GPU, "8")], &keys));
    for _ in 0..600 {
        stream.second(wanted);
        assert!(stream.gangs.count("big") == 0, "seed {seed}: it starts before its age");
    }
    let (mut started, mut used) = (None, 0);
    for second in 0..1200 {
        stream.second(wanted);
        used += stream.used();
        if started.is_none() && stream.gangs.count("big") == 16 {
            assert!(!stream.earmarked(), "seed {seed}: the earmark outlives its purpose");
            started = Some(second);
        }
        if started.is_some_and(|started| second == started + 600) {
            (0..16).for_each(|n| stream.gangs.delete(&format!("big-{n:02}")));
        }
    }
    stream.gangs.cluster.audit();
    (started, used as f64 * 100.0 / (1200 * GPUS) as f64)
}

#[test]
fn a_large_gang_fits_within_four_minutes_after_its_age_and_never_without_an_earmark() {
    let seeds = std::env::var("AGED_SEEDS").map_or(1, |text| text.parse().unwrap());
    for seed in 1..=seeds {
        let (never, alone) = run(seed, Duration::ZERO);
        let (started, used) = run(seed, Duration::from_secs(600));
        println!("seed {seed}: without: {never:?}, {alone:.1} % in use; with: after {started:?} s, {used:.1} % in use");
        assert_eq!(never, None, "seed {seed}: without an earmark it never fits");
        assert!(started.is_some_and(|after| after <= 240), "seed {seed}: {started:?}");
        assert!(used >= alone - 3.0, "seed {seed}: {used:.1} % of {alone:.1} % in use");
    }
}

/// Four nodes, all of whose GPUs are busy.
fn full(change: impl FnOnce(&mut EarmarkPolicy)) -> TestGangs {
    let mut earmarks = EarmarkPolicy::default();
    change(&mut earmarks);
    let mut cluster = TestScheduler::with(Config { earmarks, ..Config::default() }, DefaultSet::default());
    (0..4).for_each(|n| _ = cluster.node(&format!("n{n}"), 8));
    let mut gangs = TestGangs { cluster, accumulating: true };
    for n in 0..32 {
        gangs.asks(&format!("busy-{n}"), ONE, &[]);
        gangs.settle();
    }
    gangs
}

/// The same and a gang that needs two of them, aged.
fn aged(change: impl FnOnce(&mut EarmarkPolicy)) -> TestGangs {
    let mut gangs = full(change);
    gangs.all_ask("big", 2, &[(key::NVIDIA_GPU, "8")], &gang("big", "2", &[])).wait(610);
    gangs
}

impl TestGangs {
    fn kept(&self) -> Vec<String> {
        let world = self.cluster.world();
        world.nodes().filter(|(_, node)| node.kept_for.is_some()).map(|(_, node)| node.name.to_string()).collect()
    }
}

#[test]
fn kept_nodes_take_the_gang_and_higher_priority_and_pods_without_devices_only() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    assert_eq!((nodes.len(), gangs.reported("Earmarked")), (2, 1));
    tells(gangs.condition("big-0"), [format!("nodes {} are kept for it: 16 of 16 GPUs still busy", nodes.join(", "))]);
    let first = on(&gangs, &nodes[0]);
    gangs.delete(&first);
    gangs.asks("small", ONE, &[]);
    tells(gangs.after(2).condition("small"), ["kept for gang ml/big"]);
    gangs.member("plain", &[]);
    gangs.asks_as("urgent", ONE, &[], |facts| (facts.spec.priority, facts.spec.never_preempts) = (9, true));
    assert_eq!(gangs.after(2).counts(["small", "plain", "urgent"]), [0, 1, 1]);
    // The pods there end: the gang starts, and the earmark is over.
    let there: Vec<PodKey> = gangs
        .cluster
        .pods
        .values()
        .filter(|pod| pod.handoff.node.as_deref().is_some_and(|node| nodes.iter().any(|kept| kept == node)))
        .map(|pod| pod.handoff.pod.key.clone())
        .filter(|key| &*key.name != "plain")
        .collect();
    there.iter().for_each(|key| gangs.delete(&key.name));
    assert_eq!((gangs.after(2).count("big"), gangs.kept()), (2, Vec::new()));
}

/// Everything on these nodes ends.
fn empty(gangs: &mut TestGangs, nodes: &[String]) {
    let pods = gangs.cluster.pods.values();
    let there = pods.filter(|pod| pod.handoff.node.as_deref().is_some_and(|node| nodes.iter().any(|of| of == node)));
    let there: Vec<String> = there.map(|pod| pod.handoff.pod.key.name.to_string()).collect();
    there.iter().for_each(|name| gangs.delete(name));
}

#[test]
fn of_two_large_gangs_the_younger_gets_its_turn_after_the_older() {
    let mut gangs = aged(|_| {});
    let first = gangs.all_ask("next", 2, &[(key::NVIDIA_GPU, "8")], &gang("next", "2", &[])).after(610).kept();
    empty(&mut gangs, &first);
    assert_eq!(gangs.after(70).counts(["big", "next"]), [2, 0]);
    let second = gangs.kept();
    assert_eq!(second.len(), 2, "its turn");
    let report = gangs.cluster.queue_report().closed;
    let said: Vec<&str> = report.iter().map(|closed| closed.why.as_str()).collect();
    assert_eq!(said, ["it is kept for gang ml/next"; 2], "as `baton get nodes` shows it");
    empty(&mut gangs, &second);
    assert_eq!((gangs.after(70).count("next"), gangs.kept()), (2, Vec::new()));
}

#[test]
fn a_decision_beside_an_earmark_judges_no_kept_node_again() {
    let mut gangs = aged(|_| {});
    let kept = gangs.kept();
    // Twice: a shape that no decision has met is judged on every node.
    let mut judged = Vec::new();
    for name in ["first", "second"] {
        let before = gangs.cluster.stats().judged;
        gangs.comes(name, &[]);
        judged.push(gangs.cluster.stats().judged - before);
    }
    assert!(gangs.count("second") == 1 && judged[1] < kept.len() as u64, "{judged:?} judged, {} kept", kept.len());
}

#[test]
fn a_pod_that_surely_ends_before_another_one_there_may_use_a_kept_node() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    let there = gangs.cluster.pods.values().filter(|pod| pod.handoff.node.as_deref() == Some(&nodes[0]));
    let there: Vec<String> = there.map(|pod| pod.handoff.pod.key.name.to_string()).collect();
    // It was bound 610 s ago and ends in 390 s.
    gangs.change(&there[0], |facts| facts.spec.deadline = Some(1000)).delete(&there[1]);
    gangs.delete(&there[2]);
    for (name, deadline) in [("long", 600), ("short", 300)] {
        gangs.asks_as(name, ONE, &[], |facts| facts.spec.deadline = Some(deadline)).wait(1);
    }
    assert_eq!(gangs.counts(["long", "short"]), [0, 1]);
}

#[test]
fn other_nodes_are_kept_when_they_need_a_fifth_fewer_gpus_to_come_free() {
    let mut gangs = aged(|_| {});
    let before = gangs.kept();
    let others: Vec<PodKey> = gangs
        .cluster
        .pods
        .values()
        .filter(|pod| pod.handoff.node.as_deref().is_some_and(|node| !before.iter().any(|kept| kept == node)))
        .map(|pod| pod.handoff.pod.key.clone())
        .collect();
    others.iter().take(3).for_each(|key| gangs.delete(&key.name));
    assert_eq!(gangs.after(11).kept(), before, "13 of 16 is not a fifth fewer than 16");
    others.iter().skip(3).take(5).for_each(|key| gangs.delete(&key.name));
    assert_ne!(gangs.after(11).kept(), before, "one node is free");
    assert_eq!(gangs.reported("Earmarked"), 2);
}

#[test]
fn an_earmark_ends_with_its_gang_limit_or_node_and_is_no_larger_than_its_share() {
    let mut gangs = aged(|_| {});
    gangs.delete("big-0");
    gangs.delete("big-1");
    assert_eq!(gangs.after(11).kept(), Vec::<String>::new(), "the gang is gone");

    let mut gangs = aged(|policy| policy.limit = Duration::from_secs(60));
    assert_eq!(gangs.kept().len(), 2);
    assert_eq!(gangs.after(75).kept(), Vec::<String>::new(), "it had them for long enough");

    let mut gangs = aged(|_| {});
    let lost = gangs.kept()[0].clone();
    gangs.cluster.change_node(&lost, |facts| facts.unschedulable = true);
    gangs.wait(400);
    assert!(gangs.kept().len() == 2 && !gangs.kept().contains(&lost), "{:?} without {lost}", gangs.kept());
    // Another leader chooses again.
    gangs.cluster.step_down();
    assert_eq!(gangs.kept(), Vec::<String>::new());
    gangs.cluster.lead();
    assert_eq!(gangs.after(2).kept().len(), 2);

    let gangs = aged(|policy| policy.share = 40);
    assert_eq!(gangs.kept(), Vec::<String>::new());
    tells(gangs.condition("big-0"), ["16 GPUs, and no more than 12 may be kept"]);
    assert_eq!(aged(|policy| policy.after = Duration::ZERO).kept(), Vec::<String>::new());
}

#[test]
fn kept_nodes_on_which_the_gang_does_not_fit_any_more_are_given_up() {
    let mut gangs = aged(|_| {});
    let fails = |gangs: &mut TestGangs, node: &str| {
        gangs.cluster.device(node, 8, |device| device.spec.devices[0].health = false);
    };
    let failed = gangs.kept()[0].clone();
    fails(&mut gangs, &failed);
    gangs.wait(11);
    assert!(gangs.kept().len() == 2 && !gangs.kept().contains(&failed), "{:?} without {failed}", gangs.kept());
    assert_eq!(gangs.reported("Earmarked"), 2);
    // It fits on no two nodes any more: the next one has its turn.
    gangs.asks("next-0", &[(key::NVIDIA_GPU, "8")], &gang("next", "1", &[]));
    let last = gangs.kept();
    let intact = (0..4).map(|n| format!("n{n}")).find(|node| *node != failed && !last.contains(node)).unwrap();
    fails(&mut gangs, &last[0]);
    fails(&mut gangs, &intact);
    let report = gangs.after(610).cluster.queue_report().closed;
    let said: Vec<&str> = report.iter().map(|closed| closed.why.as_str()).collect();
    assert_eq!(said, ["it is kept for gang ml/next"], "{}", gangs.condition("big-0"));
}

#[test]
fn a_gang_that_asks_for_more_keeps_enough_nodes_or_none() {
    for (share, nodes) in [(100, 3), (50, 0)] {
        let mut gangs = aged(|policy| policy.share = share);
        assert_eq!(gangs.kept().len(), 2);
        let keys = gang("big", "3", &[]);
        (0..2).for_each(|n| _ = gangs.change(&format!("big-{n}"), |facts| facts.spec.gang = declared("ml", &keys)));
        gangs.asks("big-2", &[(key::NVIDIA_GPU, "8")], &keys);
        assert_eq!(gangs.after(30).kept().len(), nodes, "{}", gangs.condition("big-0"));
    }
}

/// The name of a pod on this node.
fn on(gangs: &TestGangs, node: &str) -> String {
    let here = gangs.cluster.pods.values().find(|pod| pod.handoff.node.as_deref() == Some(node));
    here.unwrap().handoff.pod.key.name.to_string()
}

#[test]
fn kube_scheduler_evicts_no_pod_for_a_kept_node_and_has_it_for_higher_priority() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    let mut theirs = gangs.facts("theirs", ONE, &[]);
    theirs.handoff.scheduler_name = "default-scheduler".into();
    let first = on(&gangs, &nodes[0]);
    let uid = gangs.cluster.pods[&TestGangs::key(&first)].handoff.pod.uid.clone();
    let (now, proposed) = (gangs.cluster.moment(), [(nodes[0].clone(), vec![uid])].into());
    let fits = gangs.cluster.scheduler.fit_devices(&theirs, &nodes, now);
    assert_eq!((fits.fitting.len(), fits.failed.len(), fits.never.len()), (0, 0, 2), "no victim would help");
    assert!(gangs.cluster.scheduler.make_room(&theirs, &proposed, now).is_empty());
    theirs.spec.priority = 9;
    assert_eq!(gangs.cluster.scheduler.make_room(&theirs, &proposed, now).len(), 1);
    gangs.delete(&first);
    assert_eq!(gangs.cluster.scheduler.fit_devices(&theirs, &nodes, now).fitting, [nodes[0].clone()]);
    assert_eq!(gangs.kept(), nodes, "they are kept on");
}

/// A group of low priority gives way to a pod of high priority, while kept nodes are open to that pod: it goes to none of them.
#[test]
fn a_group_that_gives_way_to_another_gets_no_kept_node() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    let others: Vec<String> = (0..4).map(|n| format!("n{n}")).filter(|node| !nodes.contains(node)).collect();
    gangs.cluster.change_node(&others[1], |facts| facts.unschedulable = true);
    let four_end = |gangs: &mut TestGangs, node: &str| (0..4).for_each(|_| gangs.delete(&on(gangs, node)));
    four_end(&mut gangs, &others[0]);
    // It holds the room for one of its two members.
    let keys = gang("half", "2", &[("mode", "NonStrict"), ("waiting-time", "3h")]);
    (0..2).for_each(|n| _ = gangs.asks_as(&format!("half-{n}"), FOUR, &keys, |facts| facts.spec.priority = -1));
    assert_eq!(gangs.after(2).cluster.reservations(), 1, "{}", gangs.condition("half-0"));
    four_end(&mut gangs, &nodes[0]);
    gangs.wait(2);
    let mut urgent = gangs.facts("urgent", FOUR, &[]);
    urgent.spec.priority = 9;
    urgent.spec.node_selector = labels_of("spot", "here");
    gangs.cluster.change_node(&others[0], |facts| drop(facts.labels.insert("spot".to_owned(), "here".to_owned())));
    gangs.cluster.submit(urgent);
    assert_eq!(gangs.after(2).cluster.node_of("urgent"), Some(&*others[0]));
    assert_eq!((gangs.count("half"), gangs.cluster.reservations()), (0, 0), "{}", gangs.condition("half-0"));
}

#[test]
fn what_if_and_explain_find_the_nodes_open_that_a_pod_finds_open() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    let first = on(&gangs, &nodes[0]);
    gangs.delete(&first);
    let mut urgent = gangs.facts("urgent", ONE, &[]);
    let now = gangs.cluster.moment();
    assert!(!gangs.cluster.scheduler.what_if(urgent.clone(), now).fits);
    urgent.spec.priority = 9;
    let headline = gangs.cluster.scheduler.what_if(urgent.clone(), now).headline;
    assert_eq!(headline, format!("would start now on {}", nodes[0]));
    urgent.handoff.scheduler_name = "default-scheduler".into();
    let rated = gangs.cluster.scheduler.rate_devices(&urgent, &nodes, now);
    assert!(rated.iter().any(|(node, score)| *node == nodes[0] && *score > 0), "{rated:?}");
    let own = gangs.cluster.scheduler.explain(&TestGangs::key("big-0"), now).unwrap().verdict;
    assert!(!own.message.contains("kept for gang ml/big"), "{}", own.message);
    assert_eq!(gangs.kept(), nodes, "they are kept on");
}

#[test]
fn a_pod_of_higher_priority_evicts_pods_of_kept_nodes() {
    let mut gangs = aged(|_| {});
    let nodes = gangs.kept();
    let others = (0..32).map(|n| format!("busy-{n}"));
    let is_kept = |gangs: &TestGangs, name: &str| nodes.iter().any(|node| gangs.cluster.node_of(name) == Some(node));
    for name in others.filter(|name| !is_kept(&gangs, name)).collect::<Vec<_>>() {
        gangs.change(&name, |facts| facts.spec.priority = 20);
    }
    gangs.asks_as("urgent", ONE, &[], |facts| facts.spec.priority = 9);
    assert_eq!(gangs.after(2).cluster.evicted.len(), 1, "{}", gangs.condition("urgent"));
}

#[test]
fn nodes_are_kept_beside_what_a_gang_holds_itself() {
    let mut cluster = TestScheduler::with(Config::default(), DefaultSet::default());
    let others = ["n1", "n2", "n3"];
    cluster.node("n0", 2);
    for node in others {
        cluster.node(node, 2).change_node(node, |facts| facts.unschedulable = true);
    }
    let mut gangs = TestGangs { cluster, accumulating: true };
    let keys = gang("big", "3", &[("mode", "NonStrict"), ("waiting-time", "3h")]);
    gangs.all_ask("big", 3, TWO, &keys);
    assert_eq!(gangs.after(5).cluster.reservations(), 1, "{}", gangs.condition("big-0"));
    for node in others {
        (0..2).for_each(|minor| gangs.cluster.bound_by_another(&format!("young-{node}-{minor}"), node, minor));
        gangs.cluster.change_node(node, |facts| facts.unschedulable = false);
    }
    let kept = gangs.after(610).kept();
    assert!(kept.len() == 2 && !kept.contains(&"n0".to_owned()), "{kept:?}: {}", gangs.condition("big-0"));
}

#[test]
fn a_gang_that_waits_for_nics_alone_has_an_earmark_beside_one_for_gpus() {
    let earmarks = EarmarkPolicy::default();
    let mut cluster = TestScheduler::with(Config { earmarks, ..Config::default() }, DefaultSet::default());
    for name in ["n0", "n1", "n2", "n3"] {
        cluster.node(name, 8);
        let mut device = gpu_device(name, 8);
        for at in 0..8 {
            let mut nic = device.spec.devices[at].clone();
            (nic.kind, nic.id) = (DeviceType::Rdma, DeviceId::parse(&format!("0000:0{at}:00.0")).unwrap());
            nic.resources = [(key::RDMA.to_owned(), Quantity::units(100))].into();
            device.spec.devices.push(nic);
        }
        cluster.event(WorldEvent::Devices(Box::new(device)));
    }
    let mut gangs = TestGangs { cluster, accumulating: true };
    for n in 0..4 {
        gangs.asks(&format!("busy-{n}"), &[(key::NVIDIA_GPU, "8"), (key::RDMA, "800")], &[]);
        gangs.settle();
    }
    for (name, device, amount) in [("gpus", key::NVIDIA_GPU, "8"), ("nics", key::RDMA, "800")] {
        gangs.asks(&format!("{name}-0"), &[(device, amount)], &gang(name, "1", &[]));
    }
    gangs.wait(610);
    for (member, of) in [("gpus-0", "GPUs"), ("nics-0", "NICs")] {
        tells(gangs.condition(member), [format!("kept for it: 8 of 8 {of} still busy")]);
    }
    let nodes = gangs.kept();
    assert_eq!(nodes.len(), 2, "each has its own");
    // A second gang for GPUs, with NICs, waits for its turn.
    gangs.asks("later-0", &[(key::NVIDIA_GPU, "8"), (key::RDMA, "800")], &gang("later", "1", &[]));
    assert_eq!(gangs.after(610).kept(), nodes);
    empty(&mut gangs, &nodes);
    assert_eq!(gangs.after(2).counts(["gpus", "nics", "later"]), [1, 1, 1]);
    assert_eq!(gangs.kept(), Vec::<String>::new());
}

#[test]
fn a_gang_of_which_a_member_without_devices_can_run_nowhere_keeps_no_node() {
    let mut gangs = full(|_| {});
    let keys = gang("big", "3", &[]);
    gangs.all_ask("big", 2, &[(key::NVIDIA_GPU, "8")], &keys);
    let in_pool = |gangs: &mut TestGangs, name: &str, keys: &[(String, String)]| {
        gangs.asks_as(name, CPU, keys, |facts| facts.spec.node_selector = labels_of("pool", "launch"));
    };
    in_pool(&mut gangs, "big-2", &keys);
    assert_eq!(gangs.after(610).kept(), Vec::<String>::new(), "no node has its label");
    assert_eq!(gangs.plain_node("cpu", 1, "launch").after(400).kept().len(), 2, "{}", gangs.condition("big-0"));
    // Nodes are kept on while a pod of the same priority has the place: it ends as those with GPUs do.
    in_pool(&mut gangs, "other", &[]);
    assert_eq!((gangs.after(30).count("other"), gangs.kept().len()), (1, 2), "{}", gangs.condition("big-0"));
    gangs.cluster.change_node("cpu", |facts| facts.unschedulable = true);
    assert_eq!(gangs.after(11).kept(), Vec::<String>::new(), "its node is closed");
}

#[test]
fn a_gang_whose_pod_group_asks_for_more_than_can_be_free_keeps_no_node() {
    let mut gangs = full(|_| {});
    let asks = |gangs: &mut TestGangs, cpus: i64| {
        let amounts = [("cpu", Quantity::units(cpus)), (key::NVIDIA_GPU, Quantity::units(16))];
        let wanted = Resources::of(amounts);
        gangs.pod_group("ml/big", |facts| (facts.spec.min, facts.min_resources) = (Some(2), wanted));
    };
    asks(&mut gangs, 1000);
    let keys = [(P.to_owned(), "big".to_owned())];
    gangs.all_ask("big", 2, &[(key::NVIDIA_GPU, "8")], &keys).wait(610);
    assert_eq!(gangs.kept(), Vec::<String>::new(), "{}", gangs.condition("big-0"));
    asks(&mut gangs, 2);
    gangs.wait(610); // it counts as created now
    assert_eq!(gangs.kept().len(), 2, "{}", gangs.condition("big-0"));
    asks(&mut gangs, 1000);
    assert_eq!(gangs.after(11).kept(), Vec::<String>::new(), "it asks for more than before");
}

#[test]
fn no_more_nodes_are_kept_than_whole_devices_are_asked_for() {
    let apart = || vec![near("wide", "kubernetes.io/hostname")];
    let shares = [(key::GPU, "1")];
    for (asks, terms, nodes) in [(shares, apart(), 0), (shares, vec![], 1), ([(key::NVIDIA_GPU, "1")], apart(), 4)] {
        let mut gangs = full(|policy| policy.share = 100);
        for name in (0..4).map(|n| format!("n{n}")) {
            let host = ("kubernetes.io/hostname".to_owned(), name.clone());
            gangs.cluster.change_node(&name, |facts| drop(facts.labels.insert(host.0, host.1)));
        }
        let keys = gang("wide", "4", &[]);
        for n in 0..4 {
            gangs.asks_as(&format!("wide-{n}"), &asks, &keys, |facts| {
                facts.spec.labels = labels_of("app", "wide");
                facts.spec.anti_affinity.clone_from(&terms);
            });
        }
        gangs.wait(610);
        let said = gangs.condition("wide-0");
        assert_eq!(gangs.kept().len(), nodes, "{asks:?}: {said}");
        let refused = said.contains("it needs 4 nodes, and no more than 1 may be kept");
        assert_eq!(refused, nodes == 0, "{asks:?}: {said}");
    }
}
