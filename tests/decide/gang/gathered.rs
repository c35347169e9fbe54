//! Gangs in one rack: which domain is taken, when what is preferred is given up, what members wait for that must be gathered. At every
//! rest no gang that must be gathered is bound in two domains.

use baton::contract::gang::{TopologyLayer, key};
use baton::contract::key as device_key;
use baton::decide::core::EarmarkPolicy;
use baton::decide::explain::GangExplanation;
use baton::decide::world::Pod;

use super::packing::{Ask, Needs, Room, fits};
use crate::prelude::*;

pub(super) const RACK: &str = "example.com/rack";
pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const SPEC: &str = key::NETWORK_TOPOLOGY_SPEC;
pub(super) const REQUIRED: &str = key::REQUIRED_TOPOLOGY;
const PREFERRED: &str = key::PREFERRED_TOPOLOGY;

type Keys<'a> = &'a [(&'a str, &'a str)];

/// A scheduler whose layers are zones, and racks by the name of Koordinator's documents; nodes as of [`TestGangs::node_by`].
pub(super) fn cluster(nodes: &[&str]) -> TestGangs {
    let mut config = Config::default();
    let layers = [ZONE, "RackLayer=example.com/rack"].map(|text| text.parse::<TopologyLayer>().unwrap());
    config.world.gangs.layers = layers.into();
    let mut gangs = TestGangs::with(config);
    nodes.iter().for_each(|node| _ = gangs.node_by(node));
    gangs
}

impl TestGangs {
    /// A node by `name cpus rack=… zone=… pool=…`.
    pub fn node_by(&mut self, text: &str) -> &mut Self {
        let mut words = text.split(' ');
        let (name, cpus) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        self.plain_node(name, cpus, "x");
        words.for_each(|word| _ = self.labelled(name, word));
        self
    }

    /// Sets a label, or takes it away.
    pub fn labelled(&mut self, node: &str, text: &str) -> &mut Self {
        let (key, value) = text.split_once('=').unwrap();
        let key = match key {
            "rack" => RACK,
            "zone" => ZONE,
            other => other,
        };
        self.cluster.change_node(node, |facts| match value {
            "" => drop(facts.labels.remove(key)),
            value => drop(facts.labels.insert(key.to_owned(), value.to_owned())),
        });
        self
    }

    /// Values of a label over the nodes of bound pods with this prefix; `-` where a node has none.
    pub fn places_of(&self, prefix: &str, label: &str) -> BTreeSet<String> {
        let bound = self.bound().into_iter().filter(|name| name.starts_with(prefix));
        let world = self.cluster.world();
        let place = |name: String| {
            let node = world.node(world.node_id(self.cluster.node_of(&name)?)?)?;
            Some(node.facts.as_ref()?.labels.get(label).map_or("-".to_owned(), |value| value.clone()))
        };
        bound.filter_map(place).collect()
    }

    fn racks(&self, prefix: &str) -> Vec<String> {
        self.places_of(prefix, RACK).into_iter().collect()
    }

    /// Pods of low priority on nodes of one CPU, one each.
    pub fn low_ones(&mut self, count: usize) -> &mut Self {
        self.all_of_priority("low", count, 1, &[]);
        assert_eq!(self.after(1).count("low"), count);
        self
    }

    fn in_pool(&mut self, name: &str, pool: &str, keys: &[(String, String)]) -> &mut Self {
        self.in_pool_with((name, 0), pool, keys)
    }

    pub fn in_pool_with(&mut self, (name, priority): (&str, i32), pool: &str, keys: &[(String, String)]) -> &mut Self {
        self.asks_as(name, CPU, keys, |facts| {
            facts.spec.priority = priority;
            facts.spec.node_required = Some(vec![among("pool", &[pool])]);
        })
    }
}

pub(super) fn rule(rules: &[(&str, &str)]) -> String {
    let rules: Vec<String> =
        rules.iter().map(|(layer, strategy)| format!(r#"{{"layer":"{layer}","strategy":"{strategy}"}}"#)).collect();
    format!(r#"{{"gatherStrategy":[{}]}}"#, rules.join(","))
}

/// The members of a gang go to these racks, or wait and say so, whether the gang accumulates or not.
fn expect(name: &str, on: &str, members: usize, keys: Keys, expected: Result<&str, &str>) {
    for mode in ["Strict", "NonStrict"] {
        let mut gangs = cluster(&[]);
        gangs.accumulating = mode == "NonStrict";
        on.split(", ").for_each(|text| _ = gangs.node_by(text));
        gangs.members("g", members, &gang("g", &members.to_string(), &[keys, &[("mode", mode)]].concat()));
        gangs.wait(2);
        let (said, bound) = (gangs.condition("g-0"), gangs.count("g"));
        match expected {
            Ok(expected) => {
                assert_eq!(bound, members, "{name} ({mode}): {said}");
                assert_eq!(gangs.racks("g").join(" "), expected, "{name} ({mode})");
            }
            Err(expected) => {
                assert_eq!(bound, 0, "{name} ({mode})");
                assert!(said.contains(expected), "{name} ({mode}): {said}");
            }
        }
    }
}

#[test]
fn each_row_of_the_table_is_placed_or_says_why_not() {
    let (required, preferred) = (&[(REQUIRED, RACK)], &[(PREFERRED, RACK)]);
    let uneven = "a 3 rack=r1, b 2 rack=r2, c 2 rack=r2";
    expect("the rack with the least left over", "a 4 rack=r1, b 2 rack=r2, c 1 rack=r2", 2, required, Ok("r2"));
    expect("one rack of several nodes", uneven, 4, required, Ok("r2"));
    let said = "it must be gathered in one example.com/rack and needs room for 4 members; the largest, \
                example.com/rack=r2, has room for 3 members when it is empty";
    expect("larger than any rack", "a 2 rack=r1, b 2 rack=r2, c 1 rack=r2", 4, required, Err(said));
    expect("no node has the label", "a 9 zone=z", 2, required, Err("no node has the label example.com/rack"));
    expect("nodes without the label do not count", "a 9, b 2 rack=r1", 2, required, Ok("r1"));
    let said = "has room for 1 member when it is empty";
    expect("nodes without the label are not used", "a 9, b 1 rack=r1", 2, required, Err(said));
    expect("what is preferred is given up", "a 2 rack=r1, b 1 rack=r2", 3, preferred, Ok("r1 r2"));
    expect("what is preferred is kept where it fits", "a 2 rack=r1, b 3 rack=r2", 3, preferred, Ok("r2"));
    let said = "\"one rack\" is neither a layer nor a label";
    expect("what is no layer holds the gang", "a 9 rack=r1", 2, &[(REQUIRED, "one rack")], Err(said));
}

#[test]
fn each_row_of_the_table_of_rules_is_placed_or_says_why_not() {
    let by = |name: &str, on: &str, members: usize, spec: &str, expected: Result<&str, &str>| {
        expect(name, on, members, &[(SPEC, spec)], expected);
    };
    let zones = "a 3 rack=r1 zone=z1, b 2 rack=r2 zone=z2, c 2 rack=r3 zone=z2";
    let must = rule(&[("RackLayer", "MustGather")]);
    by("by the name of a layer", "a 3 rack=r1, b 2 rack=r2, c 2 rack=r2", 4, &must, Ok("r2"));
    let layered = rule(&[("RackLayer", "PreferGather"), (ZONE, "PreferGather")]);
    by("layer by layer, the innermost first", zones, 4, &layered, Ok("r2 r3"));
    let mixed = rule(&[("RackLayer", "PreferGather"), (ZONE, "MustGather")]);
    by("a required layer beside a preferred one", zones, 4, &mixed, Ok("r2 r3"));
    let small = "a 2 rack=r1 zone=z1, b 1 rack=r2 zone=z2, c 1 rack=r3 zone=z2";
    let said = "and needs room for 3 members; the largest, topology.kubernetes.io/zone=z";
    by("the required layer of two is never given up", small, 3, &mixed, Err(said));
    let two = "a 2 rack=r1 zone=z1, b 2 rack=r1 zone=z2, c 3 rack=r2 zone=z2";
    let crossing = rule(&[("RackLayer", "MustGather"), (ZONE, "MustGather")]);
    by("a rack that lies in two zones is two domains where both are required", two, 3, &crossing, Ok("r2"));
    let on_a_node = rule(&[("NodeTopologyLayer", "MustGather")]);
    by("all on one node", "a 2 rack=r1, b 3 rack=r2", 3, &on_a_node, Ok("r2"));
    let anywhere = rule(&[("ClusterTopologyLayer", "MustGather")]);
    by("anywhere in the cluster", "a 2 rack=r1, b 1", 3, &anywhere, Ok("- r1"));
    by("an empty wish", "a 2 rack=r1, b 1", 3, "{}", Ok("- r1"));
    let keys: Keys = &[(SPEC, &rule(&[(ZONE, "MustGather")])), (REQUIRED, RACK)];
    let name = "Koordinator's annotation counts before Baton's key";
    expect(name, "a 2 rack=r1 zone=z, b 1 rack=r2 zone=z", 3, keys, Ok("r1 r2"));
    let spec = rule(&[("RackLayer", "Gather")]);
    let said = "has no strategy; expected MustGather or PreferGather";
    by("a strategy that is none holds the gang", "a 9 rack=r1", 2, &spec, Err(said));
    let spec = r#"{"gatherStrategy":[{"layer":"RackLayer","strategy":"PreferGather","podCountMultiple":2}]}"#;
    let said = "\"podCountMultiple: 2\" is not honoured";
    by("a multiple of pods is not honoured and holds the gang", "a 9 rack=r1", 2, spec, Err(said));
}

pub(super) fn must(name: &str, min: &str) -> Vec<(String, String)> {
    gang(name, min, &[(REQUIRED, RACK)])
}

#[test]
fn two_dialects_that_differ_are_named() {
    let mut gangs = cluster(&["a 4 rack=r1 zone=z"]);
    let both: Keys<'_> = &[(SPEC, &rule(&[(ZONE, "MustGather")])), (REQUIRED, RACK)];
    gangs.members("g", 2, &gang("g", "2", both)).wait(1);
    assert_eq!((gangs.count("g"), gangs.reported("GangInvalidValue")), (2, 1));
    let world = gangs.cluster.world();
    let of = baton::contract::gang::GangId::parse("ml/g").unwrap();
    let said: Vec<String> = world.gangs().gang(&of).unwrap().warnings().iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [format!(
            "{REQUIRED}: \"must gather in one {RACK}\" differs from {SPEC}, which must gather in one {ZONE}; the value is ignored"
        )]
    );
}

#[test]
fn kubernetes_constraints_count_before_batons_keys() {
    let mut gangs = cluster(&["a 2 rack=r1 zone=z", "b 2 rack=r2 zone=z"]);
    let spec = TopologySpec { required: [Box::from(ZONE)].into(), preferred: BTreeSet::new() };
    gangs.pod_group("ml/g", |object| {
        object.spec.min = Some(3);
        object.spec.topology = Some(Arc::new(spec));
    });
    let keys = [("pod-group.scheduling.sigs.k8s.io", "g"), (REQUIRED, RACK)];
    let keys: Vec<(String, String)> = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    gangs.members("g", 3, &keys).wait(1);
    assert_eq!((gangs.count("g"), gangs.reported("GangInvalidValue")), (3, 1), "{}", gangs.condition("g-0"));
}

#[test]
fn a_group_takes_the_innermost_layer_of_its_gangs() {
    let mut gangs = cluster(&["a 3 rack=r1 zone=z", "b 4 rack=r2 zone=z"]);
    let group = ("groups", r#"["ml/ga","ml/gb"]"#);
    gangs.members("ga", 2, &gang("ga", "2", &[group, (REQUIRED, ZONE)]));
    gangs.members("gb", 2, &gang("gb", "2", &[group, (REQUIRED, RACK)])).wait(1);
    assert_eq!((gangs.count("g"), gangs.racks("g")), (4, vec!["r2".to_owned()]));
}

#[test]
fn late_and_replaced_members_go_where_the_others_run_or_wait() {
    for policy in ["once-satisfied", "waiting-and-running"] {
        let mut gangs = cluster(&["a 2 rack=r1", "b 1 rack=r1", "c 9 rack=r2"]);
        let keys = gang("g", "2", &[(REQUIRED, RACK), ("match-policy", policy)]);
        gangs.member("g-0", &keys);
        gangs.member("g-1", &keys);
        assert_eq!(gangs.after(1).racks("g"), ["r1"], "{policy}");
        gangs.member("g-2", &keys);
        assert_eq!((gangs.after(1).count("g"), gangs.racks("g")), (3, vec!["r1".to_owned()]), "{policy}");
        gangs.member("g-3", &keys);
        assert_eq!(gangs.after(2).count("g"), 3, "{policy}: it waits");
        let said = gangs.condition("g-3");
        assert!(said.contains("example.com/rack=r1"), "{policy}: {said}");
        gangs.cluster.restart();
        assert_eq!(gangs.after(2).count("g"), 3, "{policy}: also after a restart");
        gangs.delete("g-0");
        gangs.wait(2);
        assert_eq!(
            (gangs.count("g"), gangs.racks("g")),
            (3, vec!["r1".to_owned()]),
            "{policy}: {}",
            gangs.condition("g-3")
        );
    }
}

#[test]
fn a_gang_whose_members_have_all_ended_may_be_gathered_elsewhere() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 3 rack=r2"]);
    assert_eq!(gangs.members("g", 2, &must("g", "2")).after(1).racks("g"), ["r1"]);
    (0..2).for_each(|n| gangs.delete(&format!("g-{n}")));
    gangs.member("blocks", &[]);
    gangs.after(1).cluster.change_node("a", |facts| facts.unschedulable = true);
    assert_eq!(gangs.members("g", 2, &must("g", "2")).after(1).racks("g"), ["r2"]);
}

#[test]
fn a_label_that_changes_while_the_gang_waits_is_seen_at_once() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 1 rack=r2"]);
    gangs.members("g", 3, &must("g", "3"));
    assert_eq!(gangs.after(1).count("g"), 0);
    gangs.labelled("b", "rack=r1").wait(1);
    assert_eq!((gangs.count("g"), gangs.racks("g")), (3, vec!["r1".to_owned()]), "{}", gangs.condition("g-0"));
}

#[test]
fn where_a_label_changed_under_running_members_late_ones_follow_the_most() {
    let mut gangs = cluster(&["a 1 rack=r1", "b 1 rack=r1", "c 1 rack=r1", "d 1 rack=r1", "e 9 rack=r2"]);
    gangs.members("g", 3, &must("g", "3")).wait(1);
    assert_eq!((gangs.count("g"), gangs.cluster.node_of("g-0").map(str::len)), (3, Some(1)));
    let moved = gangs.cluster.node_of("g-0").unwrap().to_owned();
    gangs.labelled(&moved, "rack=r2").member("g-3", &must("g", "3"));
    gangs.wait(1);
    let at = gangs.cluster.node_of("g-3").map(str::to_owned);
    assert!(at.as_deref().is_some_and(|at| "abcd".contains(at)), "{at:?}");
}

#[test]
fn a_gang_that_holds_room_moves_to_the_rack_that_has_room_for_all_of_it() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 3 rack=r2"]).accumulating();
    gangs.member("busy-0", &[]);
    gangs.member("busy-1", &[]);
    gangs.member("busy-2", &[]);
    gangs.wait(1);
    let on_b = (0..3).filter(|n| gangs.cluster.node_of(&format!("busy-{n}")) == Some("b")).count();
    gangs.members("g", 3, &gang("g", "3", &[(REQUIRED, RACK), ("mode", "NonStrict")]));
    let held = gangs.after(1).reserved("ml/g");
    assert!(held <= 2, "it holds {held} in one rack beside {on_b}");
    (0..3).for_each(|n| gangs.cluster.finish(&format!("busy-{n}")));
    gangs.wait(2);
    assert_eq!((gangs.count("g"), gangs.racks("g")), (3, vec!["r2".to_owned()]), "{}", gangs.condition("g-0"));
}

fn urgent(gangs: &mut TestGangs, count: usize, keys: &[(String, String)]) {
    gangs.all_of_priority("g", count, 9, keys).settle();
}

#[test]
fn victims_leave_in_one_rack_and_only_where_all_of_the_gang_then_fits() {
    for (min, victims) in [("2", 2), ("3", 3), ("4", 0)] {
        let mut gangs = cluster(&["a 1 rack=r1", "b 1 rack=r1", "c 1 rack=r1", "d 1 rack=r2", "e 1 rack=r2"]);
        gangs.low_ones(5);
        urgent(&mut gangs, min.parse().unwrap(), &must("g", min));
        assert_eq!(gangs.cluster.evicted.len(), victims, "{min}");
        let leaving: Vec<String> = gangs.cluster.evicted.iter().map(|pod| pod.to_string()).collect();
        leaving.iter().for_each(|pod| gangs.delete(pod));
        assert_eq!((gangs.after(2).count("g"), gangs.racks("g").len()), (victims, victims.min(1)), "{min}");
    }
}

#[test]
fn min_resources_are_free_in_the_rack_or_nothing_is_tried() {
    let mut gangs = cluster(&["a 3 rack=r1", "b 4 rack=r2"]);
    let min_resources = |cpus| {
        let mut resources = Resources::default();
        resources.set("cpu", Quantity::units(cpus));
        resources
    };
    for (cpus, placed) in [(5, 0), (4, 2)] {
        gangs.pod_group("ml/g", |object| {
            object.spec.min = Some(2);
            object.min_resources = min_resources(cpus);
        });
        if gangs.cluster.pods.is_empty() {
            let keys = [("pod-group.scheduling.sigs.k8s.io", "g"), (REQUIRED, RACK)];
            let keys: Vec<(String, String)> = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            gangs.members("g", 2, &keys);
        }
        assert_eq!(gangs.after(2).count("g"), placed, "{cpus}: {}", gangs.condition("g-0"));
        if placed == 0 {
            let said = gangs.condition("g-0");
            tells(said, ["asks for at least 5 cpu beyond what its members have, 4 are free in example.com/rack=r2"]);
        }
    }
    assert_eq!(gangs.racks("g"), ["r2"]);
}

#[test]
fn members_whose_selectors_exclude_each_other_find_the_rack_that_has_both_kinds() {
    for (second, placed) in [("pool=y", 2), ("pool=x", 0)] {
        let c = format!("c 5 rack=r2 {second}");
        let mut gangs = cluster(&["a 4 rack=r1 pool=x", "b 1 rack=r2 pool=x", &c, "d 9 rack=r3 pool=y"]);
        gangs.in_pool("g-0", "x", &must("g", "2")).in_pool("g-1", "y", &must("g", "2"));
        assert_eq!(gangs.after(1).count("g"), placed, "{}", gangs.condition("g-0"));
        if placed == 0 {
            tells(gangs.condition("g-0"), ["the nearest of 3", "outside example.com/rack="]);
        }
    }
}

#[test]
fn among_a_thousand_domains_of_five_nodes_the_only_one_with_room_is_found() {
    let mut gangs = cluster(&[]);
    gangs.cluster.watchful = false;
    for rack in 0..1000 {
        (0..5)
            .for_each(|n| _ = gangs.node_by(&format!("n{rack}-{n} {} rack=r{rack}", if rack == 777 { 2 } else { 1 })));
    }
    gangs.come("g", 10, &must("g", "10"));
    assert_eq!((gangs.count("g"), gangs.racks("g")), (10, vec!["r777".to_owned()]), "{}", gangs.condition("g-0"));
}

#[test]
fn an_earmark_keeps_nodes_of_one_rack_and_ends_when_a_node_leaves_it() {
    let earmarks = EarmarkPolicy { after: Duration::from_secs(60), share: 100, ..EarmarkPolicy::default() };
    let mut cluster = TestScheduler::with(Config { earmarks, ..Config::default() }, DefaultSet::default());
    for (name, rack) in [("a", "r1"), ("b", "r2"), ("c", "r2"), ("d", "r1")] {
        cluster.node(name, 2);
        cluster.change_node(name, |facts| drop(facts.labels.insert(RACK.to_owned(), rack.to_owned())));
    }
    let mut gangs = TestGangs { cluster, accumulating: false };
    // One busy GPU on each node of the first rack, two on one node of the second: over the racks, two nodes with one each are the least.
    for (name, at, gpus) in [("p", "a", "1"), ("q", "d", "1"), ("r", "b", "2")] {
        gangs.labelled(at, &format!("host={at}"));
        gangs.asks_as(name, &[(device_key::NVIDIA_GPU, gpus)], &[], |facts| {
            facts.spec.node_required = Some(vec![among("host", &[at])]);
        });
        assert_eq!(gangs.settled().cluster.node_of(name), Some(at));
    }
    gangs.all_ask("g", 2, &[(device_key::NVIDIA_GPU, "2")], &must("g", "2")).wait(90);
    let kept = |gangs: &TestGangs| -> BTreeSet<String> {
        let world = gangs.cluster.world();
        world.nodes().filter(|(_, node)| node.kept_for.is_some()).map(|(_, node)| node.name.to_string()).collect()
    };
    let first = kept(&gangs);
    let one_rack = [BTreeSet::from(["a".to_owned(), "d".to_owned()]), BTreeSet::from(["b".to_owned(), "c".to_owned()])];
    assert!(one_rack.contains(&first), "{first:?}: {}", gangs.condition("g-0"));
    let leaves = first.first().unwrap().clone();
    gangs.labelled(&leaves, "rack=r9").wait(30);
    let second = kept(&gangs);
    assert!(one_rack.contains(&second) && second != first, "{second:?}: {}", gangs.condition("g-0"));
    (["p", "q", "r"]).iter().for_each(|pod| gangs.cluster.finish(pod));
    assert_eq!((gangs.after(5).count("g"), gangs.racks("g").len()), (2, 1), "{}", gangs.condition("g-0"));
}

#[test]
fn a_gang_without_topology_beside_one_with_it_uses_every_rack() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 3 rack=r2", "c 1"]);
    gangs.members("g", 3, &must("g", "3")).members("free", 3, &gang("free", "3", &[])).wait(1);
    assert_eq!((gangs.racks("g"), gangs.racks("free")), (vec!["r2".to_owned()], vec!["-".to_owned(), "r1".to_owned()]));
}

/// Random worlds of up to eight nodes. A gang that must be gathered is bound exactly where the judge finds a domain for it, and in one; one
/// that prefers it is bound wherever it fits at all, and in one domain where that is possible.
#[test]
fn random_gangs_are_gathered_whenever_that_is_possible_and_never_apart() {
    let cases: u64 = std::env::var("GATHER_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let one: Option<u64> = std::env::var("GATHER_SEED").ok().and_then(|text| text.parse().ok());
    let (mut gathered, mut refused) = (0, 0);
    for seed in one.map_or(0..cases, |seed| seed..seed + 1) {
        let (placed, must) = random_case(seed);
        gathered += u32::from(placed && must);
        refused += u32::from(!placed && must);
    }
    assert!(
        one.is_some() || cases < 100 || gathered > 20 && refused > 20,
        "{gathered} {refused}: the worlds say little"
    );
}

/// A node as the judge sees it.
#[derive(Debug)]
struct JudgedNode {
    rack: Option<String>,
    zone: Option<String>,
    room: Room,
}

fn random_case(seed: u64) -> (bool, bool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut gangs = cluster(&[]);
    gangs.cluster.watchful = false;
    let mut rooms: Vec<JudgedNode> = Vec::new();
    for n in 0..rng.usize(1..=8) {
        let (cpus, pool) = (rng.u32(1..=5), *rng.choice(&["x", "y"]).unwrap());
        let rack = (rng.u8(..8) > 0).then(|| format!("r{}", rng.u8(..3)));
        let zone = (rng.u8(..8) > 0).then(|| format!("z{}", rng.u8(..2)));
        let mut text = format!("n{n} {cpus} pool={pool}");
        rack.iter().for_each(|rack| text += &format!(" rack={rack}"));
        zone.iter().for_each(|zone| text += &format!(" zone={zone}"));
        gangs.node_by(&text);
        rooms.push(JudgedNode { rack, zone, room: Room { pool: Some(pool), free: i64::from(cpus) } });
    }
    let members = rng.usize(1..=6);
    let asks: Vec<Ask> = (0..members)
        .map(|_| Ask { cpus: rng.i64(1..=3), pool: (rng.u8(..3) == 0).then(|| *rng.choice(&["x", "y"]).unwrap()) })
        .collect();
    let least = rng.usize(1..=members);
    let must = rng.u8(..3) > 0;
    let layers: Keys<'_> =
        *rng.choice(&[&[("RackLayer", "")][..], &[(ZONE, "")], &[("RackLayer", ""), (ZONE, "")]]).unwrap();
    let strategy = if must { "MustGather" } else { "PreferGather" };
    let rules: Vec<(&str, &str)> = layers.iter().map(|(layer, _)| (*layer, strategy)).collect();
    let mode = *rng.choice(&["Strict", "NonStrict"]).unwrap();
    gangs.accumulating = mode == "NonStrict";
    let keys = gang("g", &least.to_string(), &[(SPEC, &rule(&rules)), ("mode", mode)]);
    for (n, ask) in asks.iter().enumerate() {
        let mut facts = gangs.facts(&format!("g-{n}"), &[("cpu", &ask.cpus.to_string())], &keys);
        if let Some(pool) = ask.pool {
            facts.spec.node_required = Some(vec![among("pool", &[pool])]);
        }
        gangs.cluster.submit(facts);
    }
    gangs.wait(2);
    let (by_rack, by_zone) =
        (layers.iter().any(|(layer, _)| *layer != ZONE), layers.iter().any(|(layer, _)| *layer == ZONE));
    let domain = |node: &JudgedNode| {
        Some((
            if by_rack { node.rack.clone()? } else { String::new() },
            if by_zone { node.zone.clone()? } else { String::new() },
        ))
    };
    let needs = [Needs { least, asks }];
    let fits_in = |wanted: &dyn Fn(&JudgedNode) -> bool| {
        let rooms: Vec<Room> = rooms.iter().filter(|node| wanted(node)).map(|node| node.room).collect();
        fits(&needs, &rooms)
    };
    let domains: BTreeSet<(String, String)> = rooms.iter().filter_map(domain).collect();
    let one = domains.iter().any(|wanted| fits_in(&|entry| domain(entry).as_ref() == Some(wanted)));
    let anywhere = fits_in(&|_| true);
    let bound = gangs.count("g");
    let story =
        || format!("seed {seed}: {rooms:?} {needs:?} {rules:?} {mode}; {bound} bound; {}", gangs.condition("g-0"));
    let expected = if must { one } else { anywhere };
    assert_eq!(bound >= least && bound > 0, expected, "{}", story());
    let label = |name: &str| gangs.places_of("g", name);
    let apart = by_rack && label(RACK).len() > 1 || by_zone && label(ZONE).len() > 1;
    let unlabelled = by_rack && label(RACK).contains("-") || by_zone && label(ZONE).contains("-");
    // Members beyond the minimum of a gang that prefers to be gathered go where there is room.
    let whole = least == members;
    assert!(!(must && (apart || unlabelled)), "gathered apart: {}", story());
    assert!(!(one && whole && apart), "it could be gathered: {}", story());
    if must {
        change_at_random(&mut gangs, &mut rng, &keys, (by_rack, by_zone), seed);
    }
    (bound > 0, must)
}

/// Members end, are deleted and replaced, the scheduler restarts: those that run are in one domain whatever comes.
fn change_at_random(
    gangs: &mut TestGangs,
    rng: &mut fastrand::Rng,
    keys: &[(String, String)],
    (by_rack, by_zone): (bool, bool),
    seed: u64,
) {
    let mut story = Vec::new();
    for step in 0..6 {
        let names: Vec<String> = gangs.cluster.pods.keys().map(|key| key.name.to_string()).collect();
        match (rng.u8(..6), rng.choice(&names).cloned()) {
            (0 | 1, Some(name)) => {
                gangs.delete(&name);
                story.push(format!("{name} is deleted"));
            }
            (2, Some(name)) if gangs.cluster.node_of(&name).is_some() => {
                gangs.cluster.finish(&name);
                story.push(format!("{name} ends"));
            }
            (3, _) => {
                gangs.cluster.restart();
                story.push("restart".to_owned());
            }
            _ => {
                gangs.member(&format!("g-late-{step}"), keys);
                story.push(format!("g-late-{step} comes"));
            }
        }
        gangs.wait(2);
        let live = |label: &str| -> BTreeSet<String> {
            let world = gangs.cluster.world();
            let live = world.pods().filter(|pod| MemberState::of(pod).is_bound()).filter_map(Pod::node);
            let labels = live.filter_map(|id| world.node(id)?.facts.as_ref()).map(|facts| facts.labels.get(label));
            labels.map(|value| value.map_or("-", |value| &**value).to_owned()).collect()
        };
        let (racks, zones) = (live(RACK), live(ZONE));
        let apart =
            by_rack && (racks.len() > 1 || racks.contains("-")) || by_zone && (zones.len() > 1 || zones.contains("-"));
        assert!(!apart, "seed {seed}: {story:?}: {racks:?} {zones:?}");
    }
}

fn explained(gangs: &mut TestGangs, name: &str) -> GangExplanation {
    gangs.cluster.scheduler.explain_gang(&GangId::new("ml", name).unwrap(), gangs.cluster.moment()).unwrap()
}

#[test]
fn explain_gang_names_the_nearest_domain_and_what_is_missing_there() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 4 rack=r2 pool=y", "c 1 rack=r2"]);
    gangs.in_pool("busy-0", "y", &[]).in_pool("busy-1", "y", &[]);
    gangs.settled().members("g", 4, &must("g", "4")).wait(1);
    let GangExplanation { state, message, .. } = explained(&mut gangs, "g");
    assert_eq!(state, "waiting");
    assert_eq!(
        message,
        "gang ml/g: 0 of 4 placed, 1 without room; in example.com/rack=r2, the nearest of 2; room for 3 (b, c); pod ml/g-3 beside those: \
         0/3 nodes: 2 insufficient cpu, 1 outside example.com/rack=r2"
    );
}

#[test]
fn a_late_member_of_a_gang_that_prefers_one_rack_goes_there_while_there_is_room() {
    let mut gangs = cluster(&["z 9 rack=r9", "a 1 rack=r1", "b 1 rack=r1", "c 1 rack=r1"]);
    gangs.cluster.change_node("z", |facts| facts.unschedulable = true);
    let keys = gang("g", "2", &[(PREFERRED, RACK)]);
    gangs.members("g", 2, &keys).after(1).cluster.change_node("z", |facts| facts.unschedulable = false);
    assert_eq!(gangs.after(1).racks("g"), ["r1"]);
    gangs.member("g-2", &keys);
    assert_eq!((gangs.after(1).count("g"), gangs.racks("g")), (3, vec!["r1".to_owned()]));
    gangs.member("g-3", &keys);
    assert_eq!(gangs.after(1).racks("g"), ["r1", "r9"], "there is no room left beside the others");
}

#[test]
fn members_beyond_the_minimum_go_elsewhere_when_the_preferred_rack_is_full() {
    for policy in ["once-satisfied", "waiting-and-running", "only-waiting"] {
        let mut gangs = cluster(&["a 2 rack=r1", "b 9 rack=r2"]);
        gangs.members("g", 3, &gang("g", "2", &[(PREFERRED, RACK), ("match-policy", policy)])).wait(3);
        assert_eq!((gangs.count("g"), gangs.racks("g").len()), (3, 2), "{policy}: {}", gangs.condition("g-2"));
        assert!(explained(&mut gangs, "g").message.ends_with(" started in 2 of example.com/rack"));
        gangs.members("h", 2, &must("h", "2")).wait(3);
        assert!(explained(&mut gangs, "h").message.ends_with(" started in example.com/rack=r2"));
    }
}

#[test]
fn a_wish_that_is_changed_while_the_gang_waits_counts_at_once() {
    let mut gangs = cluster(&["a 2 rack=r1 zone=z", "b 2 rack=r2 zone=z"]);
    gangs.members("g", 3, &must("g", "3"));
    assert_eq!(gangs.after(1).count("g"), 0);
    for n in 0..3 {
        gangs.change(&format!("g-{n}"), |facts| {
            facts.spec.gang = crate::harness::gangs::declared("ml", &gang("g", "3", &[(REQUIRED, ZONE)]));
        });
    }
    assert_eq!(gangs.after(1).count("g"), 3, "{}", gangs.condition("g-0"));
}

#[test]
fn pods_without_a_gang_rule_follow_the_first_of_them() {
    let mut gangs = cluster(&["a 2 rack=r1", "b 1 rack=r2", "c 9"]);
    gangs.members("g", 4, &must("g", "0")).wait(2);
    assert_eq!((gangs.count("g"), gangs.racks("g").len()), (if gangs.racks("g") == ["r1"] { 2 } else { 1 }, 1));
}
