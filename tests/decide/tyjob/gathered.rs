//! TYJobs whose pods are gathered in one domain: which one, what gives way, and what they wait for.

use baton::contract::gang::{BadValue, TopologyLayer};
use baton::decide::tyjob::placement::JobSpec;

use crate::harness::tyjobs::key;
use crate::prelude::*;

const RACK: &str = "example.com/rack";
const POLICIES: [BasicPolicy; 6] = [
    BasicPolicy::BinPack,
    BasicPolicy::Gang,
    BasicPolicy::LeaderFirst,
    BasicPolicy::MinFragment,
    BasicPolicy::JobAffinity,
    BasicPolicy::JobAntiAffinity,
];

/// Nodes by `name cpus rack`.
fn cluster(nodes: &[&str]) -> TestJobs {
    let mut config = baton::decide::scheduler::Config::default();
    let layers = ["topology.kubernetes.io/zone", "RackLayer=example.com/rack"];
    config.world.gangs.layers = layers.map(|text| text.parse::<TopologyLayer>().unwrap()).into();
    let mut jobs = TestJobs::with(config);
    for node in nodes {
        let words: Vec<&str> = node.split(' ').collect();
        jobs.node(words[0], words[1].parse().unwrap(), 0);
        words.get(2).iter().for_each(|rack| _ = jobs.labelled(words[0], rack));
    }
    jobs
}

impl TestJobs {
    fn labelled(&mut self, node: &str, rack: &str) -> &mut Self {
        self.cluster.change_node(node, |facts| drop(facts.labels.insert(RACK.to_owned(), rack.to_owned())));
        self
    }

    /// Racks of the job's places; `-` for a node without one.
    fn racks(&self, job: &str) -> BTreeSet<String> {
        let world = self.cluster.world();
        let rack = |node: &String| {
            let labels = &world.node(world.node_id(node)?)?.facts.as_ref()?.labels;
            Some(labels.get(RACK).map_or("-".to_owned(), |rack| (**rack).to_owned()))
        };
        self.places(job).values().filter_map(rack).collect()
    }
}

fn asks(spec: &mut JobSpec, required: Option<&str>, preferred: Option<&str>) {
    spec.topology = Ok(TopologySpec::short(required, preferred).unwrap().map(Arc::new));
}

fn named(racks: &[&str]) -> BTreeSet<String> {
    racks.iter().map(|rack| (*rack).to_owned()).collect()
}

#[test]
fn every_policy_places_a_job_in_one_rack_with_room_for_all_of_it() {
    for policy in POLICIES {
        let mut jobs = cluster(&["a 3 r1", "b 2 r2", "c 3 r2", "d 9", "e 9 r3"]);
        jobs.run("rl", CPU, (3, CPU), |spec| {
            spec.basic = policy;
            asks(spec, Some("RackLayer"), None);
        });
        assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed), "{policy:?}: {}", jobs.message("rl"));
        assert_eq!(jobs.checked().racks("rl"), named(&["r2"]), "{policy:?}: the least is left over there");
    }
}

#[test]
fn what_is_preferred_gives_way_and_what_is_required_does_not() {
    let nodes = ["a 3 r1", "b 2 r2", "c 1"];
    let mut jobs = cluster(&nodes);
    jobs.run("rl", CPU, (2, CPU), |spec| asks(spec, None, Some(RACK)));
    assert_eq!(jobs.racks("rl"), named(&["r1"]));
    let mut jobs = cluster(&nodes);
    jobs.run("rl", CPU, (5, CPU), |spec| asks(spec, None, Some(RACK)));
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledSucceed));
    assert_eq!(jobs.racks("rl"), named(&["-", "r1", "r2"]));
    // A job that may run with fewer workers takes the rack with the most room; the others wait for room there.
    let mut jobs = cluster(&nodes);
    jobs.run("rl", CPU, (3, CPU), |spec| asks(spec, Some(RACK), None));
    assert_eq!(jobs.state("rl"), Some(ScheduleState::ScheduledPartly), "{}", jobs.message("rl"));
    assert_eq!((jobs.places("rl").len(), jobs.racks("rl")), (3, named(&["r1"])));
    tells(jobs.message("rl"), ["rl-actor-2: 0/3 nodes: 1 insufficient cpu, 2 outside example.com/rack=r1"]);
    let explained = jobs.cluster.explain_job(&key("rl")).unwrap();
    let missing = explained.seats.iter().find(|seat| seat.state == "missing").unwrap();
    let outside = missing.nodes.iter().filter(|node| node.refused.as_deref() == Some("outside example.com/rack=r1"));
    let outside: BTreeSet<&str> = outside.map(|node| node.node.as_str()).collect();
    assert_eq!(outside, ["b", "c"].into(), "{missing:?}");
    assert!(missing.nodes.iter().all(|node| node.rank.is_none()), "{missing:?}");
    jobs.node("d", 1, 0).labelled("d", "r1").cluster.settle();
    assert_eq!((jobs.places("rl").len(), jobs.racks("rl")), (4, named(&["r1"])));
    jobs.check();
}

/// Racks where its pods may not be have room for all: they do not hide the rack that has room for some.
#[test]
fn a_job_finds_the_rack_of_its_pool_however_many_others_are_free() {
    let mut jobs = cluster(&["a 3 r1"]);
    jobs.cluster.change_node("a", |facts| drop(facts.labels.insert("pool".to_owned(), "x".to_owned())));
    (0..20).for_each(|n| _ = jobs.node(&format!("b{n}"), 9, 0).labelled(&format!("b{n}"), &format!("other-{n}")));
    jobs.run("rl", CPU, (3, CPU), |spec| {
        asks(spec, Some(RACK), None);
        for part in &mut spec.parts {
            let mut pod = (*part.pod.spec).clone();
            pod.node_selector = labels_of("pool", "x");
            part.pod.spec = pod.into();
        }
    });
    assert_eq!((jobs.places("rl").len(), jobs.racks("rl")), (3, named(&["r1"])), "{}", jobs.message("rl"));
}

#[test]
fn pods_with_a_place_fix_the_rack_for_workers_that_are_added() {
    let mut jobs = cluster(&["a 3 r1", "b 9 r2"]);
    jobs.run("rl", CPU, (1, CPU), |spec| asks(spec, Some(RACK), None));
    assert_eq!(jobs.racks("rl"), named(&["r1"]));
    jobs.change("rl", |facts| facts.spec.as_mut().unwrap().parts[1].counts = 4);
    assert_eq!((jobs.places("rl").len(), jobs.racks("rl")), (3, named(&["r1"])), "{}", jobs.message("rl"));
    jobs.cluster.restart();
    assert_eq!((jobs.settled().places("rl").len(), jobs.racks("rl")), (3, named(&["r1"])), "also after a restart");
}

#[test]
fn a_job_that_no_rack_can_ever_hold_fails_and_says_why() {
    for (nodes, state, said) in [
        (
            &["a 2 r1", "b 2 r2"][..],
            ScheduleState::ScheduledFailed,
            "the job must be gathered in one example.com/rack: 2 of 3 workers",
        ),
        // A label may be set later.
        (&["a 9"], ScheduleState::Unscheduled, "no node has the label example.com/rack"),
    ] {
        let mut jobs = cluster(nodes);
        jobs.run("rl", CPU, (3, CPU), |spec| {
            spec.basic = BasicPolicy::Gang;
            asks(spec, Some(RACK), None);
        });
        assert_eq!(jobs.stand("rl"), (Some(ScheduleState::Unscheduled), 0));
        assert_eq!(jobs.after(400).state("rl"), Some(state), "{}", jobs.message("rl"));
        tells(jobs.message("rl"), [said]);
    }
}

#[test]
fn a_wish_that_cannot_be_read_keeps_the_job_waiting_and_is_named() {
    let mut jobs = cluster(&["a 9 r1"]);
    let bad = TopologySpec::short(Some("one rack"), None);
    jobs.run("rl", CPU, (1, CPU), |spec| spec.topology = bad.map(|spec| spec.map(Arc::new)));
    let told = BadValue::new("baton.io/required-topology", "one rack", "is neither a layer nor a label of nodes");
    assert_eq!(jobs.state("rl"), Some(ScheduleState::Unscheduled));
    tells(jobs.message("rl"), [told.to_string()]);
    jobs.change("rl", |facts| asks(facts.spec.as_mut().unwrap(), Some(RACK), None));
    assert_eq!((jobs.places("rl").len(), jobs.racks("rl")), (2, named(&["r1"])));
}

#[test]
fn random_jobs_take_one_rack_with_as_many_places_as_it_has_room_for() {
    let mut whole = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let nodes: Vec<(u32, Option<u8>)> =
            (0..rng.usize(1..8)).map(|_| (rng.u32(1..5), (rng.u8(..6) > 0).then(|| rng.u8(..3)))).collect();
        let texts: Vec<String> = nodes
            .iter()
            .enumerate()
            .map(|(n, (cpus, rack))| format!("n{n} {cpus}{}", rack.map(|rack| format!(" r{rack}")).unwrap_or_default()))
            .collect();
        let mut jobs = cluster(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        let (workers, policy) = (rng.i32(1..7), *rng.choice(&POLICIES).unwrap());
        jobs.run("rl", CPU, (workers, CPU), |spec| {
            spec.basic = policy;
            asks(spec, Some(RACK), None);
        });
        let room = |rack: u8| nodes.iter().filter(|(_, of)| *of == Some(rack)).map(|(cpus, _)| *cpus as usize).sum();
        let most: usize = (0..3).map(room).max().unwrap();
        let all = workers as usize + 1;
        let expected = match policy {
            BasicPolicy::Gang if most < all => 0,
            _ if most < 2 => 0,
            _ => most.min(all),
        };
        let story =
            || format!("seed {seed}: {texts:?} {workers} {policy:?}: {:?} {}", jobs.places("rl"), jobs.message("rl"));
        assert_eq!(jobs.places("rl").len(), expected, "{}", story());
        assert!(jobs.racks("rl").len() <= 1 && !jobs.racks("rl").contains("-"), "{}", story());
        whole += usize::from(expected == all);
        jobs.check();
    }
    assert!((50..290).contains(&whole), "{whole}: the worlds say little");
}
