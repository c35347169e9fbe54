//! Keys of gangs on pods and on PodGroups, and fields of the PodGroups of three APIs: which members get a node, and why not.

use baton::cluster::pod_group::RawPodGroup;
use baton::contract::gang::{key, pod_group};

use super::{Row, fields, judge, spec_schema};
use crate::prelude::*;

type Keys = Vec<(String, String)>;

/// Where a gang says something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Pods,
    PodGroup,
}

const POD_KEYS: &[Row<'_>] = &[
    (key::NAME, None, "0 bound, 0 held, InvalidGang"),
    (key::NAME, Some("g"), "0 bound, 0 held, GangIncomplete"),
    (key::MIN_AVAILABLE, None, "0 bound, 0 held, GangIncomplete"),
    (key::MIN_AVAILABLE, Some("0"), "2 bound, 0 held"),
    (key::MIN_AVAILABLE, Some("2"), "2 bound, 0 held"),
    (key::MIN_AVAILABLE, Some("3"), "0 bound, 0 held, GangIncomplete"),
    (key::WAITING_TIME, None, "0 bound, 2 held, Unschedulable"),
    (key::WAITING_TIME, Some("30s"), "0 bound, 0 held, GangTimeout"),
    (key::WAITING_TIME, Some("90s"), "0 bound, 2 held, Unschedulable"),
    (key::TIMEOUT_CLOCK, None, "0 bound, 0 held, Unschedulable"),
    (key::TIMEOUT_CLOCK, Some("holding"), "0 bound, 0 held, Unschedulable"),
    (key::TIMEOUT_CLOCK, Some("pending"), "0 bound, 0 held, GangTimeout"),
    (key::TOTAL_NUMBER, None, "2 bound, 0 held"),
    (key::TOTAL_NUMBER, Some("5"), "2 bound, 0 held"),
    (key::TOTAL_NUMBER, Some("1"), "2 bound, 0 held, GangInvalidValue"),
    (key::MODE, None, "0 bound, 0 held, Unschedulable"),
    (key::MODE, Some("Strict"), "0 bound, 0 held, Unschedulable"),
    (key::MODE, Some("NonStrict"), "0 bound, 2 held, Unschedulable"),
    (key::GROUPS, None, "2 bound, 0 held"),
    (key::GROUPS, Some(r#"["ml/g","ml/other"]"#), "0 bound, 0 held, GangIncomplete"),
    (key::MATCH_POLICY, None, "one more goes; of 3, 2 succeeded: goes, 2 deleted: goes"),
    (key::MATCH_POLICY, Some("once-satisfied"), "one more goes; of 3, 2 succeeded: goes, 2 deleted: goes"),
    (key::MATCH_POLICY, Some("only-waiting"), "one more waits; of 3, 2 succeeded: waits, 2 deleted: waits"),
    (key::MATCH_POLICY, Some("waiting-and-running"), "one more goes; of 3, 2 succeeded: waits, 2 deleted: waits"),
    (key::MATCH_POLICY, Some("waiting-running-succeed"), "one more goes; of 3, 2 succeeded: goes, 2 deleted: waits"),
    (key::TIMEOUT, None, "2 bound, 0 held"),
    (key::TIMEOUT, Some("true"), "0 bound, 0 held, GangTimeout"),
    (key::POD_GROUP, None, "2 bound, 0 held"),
    (key::POD_GROUP, Some("g"), "0 bound, 0 held, WaitingForPodGroup"),
    (key::COMMUNITY_POD_GROUP, None, "2 bound, 0 held"),
    (key::COMMUNITY_POD_GROUP, Some("g"), "0 bound, 0 held, WaitingForPodGroup"),
    (key::POD_GROUP_NAME, None, "0 bound, 0 held, InvalidGang"),
    (key::POD_GROUP_NAME, Some("g"), "0 bound, 0 held, GangIncomplete"),
    (key::POD_GROUP_MIN_AVAILABLE, None, "0 bound, 0 held, GangIncomplete"),
    (key::POD_GROUP_MIN_AVAILABLE, Some("2"), "2 bound, 0 held"),
    (key::POD_GROUP_MIN_AVAILABLE, Some("3"), "0 bound, 0 held, GangIncomplete"),
    (key::SCHEDULING_GROUP, None, "2 bound, 0 held"),
    (key::SCHEDULING_GROUP, Some("g"), "0 bound, 0 held, WaitingForPodGroup"),
    (key::SUB_PRIORITY, None, "first: older"),
    (key::SUB_PRIORITY, Some("10"), "first: younger"),
    (key::NETWORK_TOPOLOGY_SPEC, None, "2 bound, 0 held in r1 r2"),
    (
        key::NETWORK_TOPOLOGY_SPEC,
        Some(r#"{"gatherStrategy":[{"layer":"rack","strategy":"MustGather"}]}"#),
        "2 bound, 0 held in r2",
    ),
    (key::NETWORK_TOPOLOGY_INDEX, None, "first on b"),
    (key::NETWORK_TOPOLOGY_INDEX, Some("0"), "first on b"),
    (key::NETWORK_TOPOLOGY_INDEX, Some("7"), "first on c"),
    (key::REQUIRED_TOPOLOGY, None, "2 bound, 0 held in r1 r2"),
    (key::REQUIRED_TOPOLOGY, Some("rack"), "2 bound, 0 held in r2"),
    (key::REQUIRED_TOPOLOGY, Some("row"), "0 bound, 0 held, Unschedulable in "),
    (key::PREFERRED_TOPOLOGY, None, "2 bound, 0 held in r1 r2"),
    (key::PREFERRED_TOPOLOGY, Some("rack"), "2 bound, 0 held in r2"),
    (key::PREFERRED_TOPOLOGY, Some("row"), "2 bound, 0 held in r1 r2"),
];

/// Beside the keys that pods have, too.
const POD_GROUP_FIELDS: &[Row<'_>] = &[
    // As Go writes 0.
    ("minMember", None, "2 bound, 0 held"),
    ("minMember", Some("0"), "2 bound, 0 held"),
    ("minMember", Some("2"), "2 bound, 0 held"),
    ("minMember", Some("3"), "0 bound, 0 held, GangIncomplete"),
    ("minResources", None, "2 bound, 0 held"),
    ("minResources", Some(r#"{"cpu":"2"}"#), "2 bound, 0 held"),
    ("minResources", Some(r#"{"cpu":"100"}"#), "0 bound, 0 held, Unschedulable"),
    ("scheduleTimeoutSeconds", None, "0 bound, 2 held, Unschedulable"),
    ("scheduleTimeoutSeconds", Some("30"), "0 bound, 0 held, GangTimeout"),
    ("scheduleTimeoutSeconds", Some("90"), "0 bound, 2 held, Unschedulable"),
];

/// Other names of one key.
const ALIASES: [(&str, &str); 3] = [
    (key::GROUPS, key::GANG_GROUPS),
    (key::GROUPS, key::POD_GROUP_GROUPS),
    (key::MATCH_POLICY, key::POD_GROUP_MATCH_POLICY),
];

/// The rows, and those of other names.
fn with_aliases(rows: impl Iterator<Item = &'static Row<'static>>) -> Vec<Row<'static>> {
    let names = |name: &'static str| {
        std::iter::once(name).chain(ALIASES.into_iter().filter(move |of| of.0 == name).map(|of| of.1))
    };
    rows.flat_map(|(name, value, seen)| names(name).map(move |name| (name, *value, *seen))).collect()
}

const NATIVE_FIELDS: &[Row<'_>] = &[
    ("schedulingPolicy", None, "0 bound, 0 held, GangIncomplete"),
    ("schedulingPolicy", Some(r#"{"gang":{"minCount":2}}"#), "2 bound, 0 held"),
    ("schedulingPolicy", Some(r#"{"gang":{"minCount":3}}"#), "0 bound, 0 held, GangIncomplete"),
    ("schedulingPolicy", Some(r#"{"basic":{}}"#), "2 bound, 0 held"),
    ("schedulingConstraints", None, "2 bound, 0 held in r1 r2"),
    ("schedulingConstraints", Some(r#"{"topology":[{"key":"rack"}]}"#), "2 bound, 0 held in r2"),
    ("schedulingConstraints", Some(r#"{"topology":[{"key":"row"}]}"#), "0 bound, 0 held, Unschedulable in "),
];

/// Every key that the module of keys has.
fn keys_of_gangs() -> BTreeSet<String> {
    let source = include_str!("../../../src/contract/gang/key.rs");
    let constants = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = "));
    let keys = constants.filter(|(name, _)| !name.starts_with("CONDITION_") && !name.starts_with("MANAGED_BY"));
    keys.map(|(_, value)| value.trim_matches(['"', ';']).to_owned()).collect()
}

#[test]
fn each_key_of_a_gang_on_its_pods_is_seen_in_what_is_decided() {
    let rows = with_aliases(POD_KEYS.iter());
    judge("key of a gang", &rows, &keys_of_gangs(), |name, value| look(On::Pods, PodGroupApi::Sigs, name, value));
}

#[test]
fn each_field_and_key_of_a_pod_group_is_seen_in_what_is_decided() {
    let mut known = BTreeSet::new();
    fields(&spec_schema(pod_group::crd()), "", &["minResources"], &mut known);
    let of_pods = [
        key::NAME,
        key::MIN_AVAILABLE,
        key::WAITING_TIME,
        key::TIMEOUT,
        key::NETWORK_TOPOLOGY_INDEX,
        key::POD_GROUP,
        key::COMMUNITY_POD_GROUP,
        key::POD_GROUP_NAME,
        key::POD_GROUP_MIN_AVAILABLE,
        key::SCHEDULING_GROUP,
        key::SUB_PRIORITY,
    ];
    known.extend(keys_of_gangs().into_iter().filter(|name| !of_pods.contains(&name.as_str())));
    let of_both = POD_KEYS.iter().filter(|(name, ..)| !of_pods.contains(name));
    let rows = with_aliases(POD_GROUP_FIELDS.iter().chain(of_both));
    for api in [PodGroupApi::Sigs, PodGroupApi::Community] {
        judge("field or key of a PodGroup", &rows, &known, |name, value| look(On::PodGroup, api, name, value));
    }
    let native = BTreeSet::from(["schedulingPolicy".to_owned(), "schedulingConstraints".to_owned()]);
    judge("field of a native PodGroup", NATIVE_FIELDS, &native, |name, value| {
        look(On::PodGroup, PodGroupApi::Kubernetes, name, value)
    });
}

/// What a gang says: its pods' keys, and what its PodGroup has where there is one.
struct Says {
    api: PodGroupApi,
    pods: Keys,
    spec: Value,
    annotations: BTreeMap<String, String>,
    has_group: bool,
}

impl Says {
    fn key(mut self, on: On, name: &str, value: Option<&str>) -> Self {
        let Some(value) = value else { return self };
        match on {
            On::Pods => {
                let label = if name == key::COMMUNITY_POD_GROUP { "label:" } else { "" };
                self.pods.push((format!("{label}{name}"), value.to_owned()));
            }
            On::PodGroup if name.contains('/') => drop(self.annotations.insert(name.to_owned(), value.to_owned())),
            On::PodGroup => self.spec[name] = serde_json::from_str(value).unwrap(),
        }
        self
    }

    fn gangs(&self, cpus: u32) -> TestGangs {
        let mut gangs = TestGangs::holding(cpus);
        if self.has_group {
            let object = json!({
                "metadata": { "name": "g", "namespace": "ml", "annotations": self.annotations, "uid": "group" },
                "spec": self.spec,
            });
            let raw: RawPodGroup = serde_json::from_value(object).unwrap();
            let mut facts = raw.facts(self.api).unwrap();
            facts.created = wall(gangs.cluster.now);
            gangs.cluster.event(WorldEvent::PodGroup(Box::new(facts)));
        }
        gangs
    }

    fn member(&self, gangs: &mut TestGangs, name: &str) {
        let mut facts = gangs.facts(name, CPU, &self.pods);
        if let Some((_, group)) = self.pods.iter().find(|(name, _)| name == key::SCHEDULING_GROUP) {
            let source =
                DeclarationSource { namespace: "ml", labels: None, annotations: None, scheduling_group: Some(group) };
            facts.spec.gang = Declared::read(&source, || None).map(Arc::new);
        }
        gangs.cluster.submit(facts);
    }

    /// Members in a cluster of so many CPUs, after some seconds.
    fn run(&self, cpus: u32, members: usize, seconds: u64) -> TestGangs {
        let mut gangs = self.gangs(cpus);
        (0..members).for_each(|number| self.member(&mut gangs, &format!("g-{number}")));
        gangs.wait(seconds);
        gangs
    }
}

/// How many members have a node, how many are held a place for, why the others wait, and what is wrong.
fn told(gangs: &TestGangs) -> String {
    let id = baton::contract::gang::GangId::parse("ml/g").unwrap();
    let gang = gangs.cluster.world().gangs().gang(&id);
    let warned: Vec<String> =
        gang.into_iter().flat_map(|gang| gang.warnings()).map(|warning| warning.reason().to_string()).collect();
    let waits = gangs.cluster.pods.values().find(|pod| pod.handoff.node.is_none() && !pod.handoff.phase.is_terminal());
    let why = waits.map_or("", |pod| gangs.reason(&pod.handoff.pod.key.name));
    let held = gang.map_or(0, |gang| gang.counts().reserved);
    let parts = [format!("{} bound, {held} held", gangs.bound().len()), why.to_owned(), warned.join(" ")];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Two members on nodes of one CPU, the first in one rack and the others in another: what is reported, and the racks.
fn gathered(says: &Says) -> String {
    let mut gangs = says.gangs(0);
    for (name, rack) in [("a", "r1"), ("b", "r2"), ("c", "r2")] {
        gangs.plain_node(name, 1, "x");
        gangs.cluster.change_node(name, |facts| drop(facts.labels.insert("rack".to_owned(), rack.to_owned())));
    }
    (0..2).for_each(|number| says.member(&mut gangs, &format!("g-{number}")));
    gangs.wait(2);
    let rack = |name: String| if gangs.cluster.node_of(&name) == Some("a") { "r1" } else { "r2" };
    let racks: BTreeSet<&str> = gangs.bound().into_iter().map(rack).collect();
    format!("{} in {}", told(&gangs), racks.into_iter().collect::<Vec<_>>().join(" "))
}

fn look(on: On, api: PodGroupApi, name: &str, value: Option<&str>) -> String {
    let named = |min: &str| {
        let (pods, spec) = match (on, api) {
            (On::Pods, _) => (vec![(key::NAME, "g"), (key::MIN_AVAILABLE, min)], json!({})),
            (_, PodGroupApi::Sigs) => (vec![("label:pod-group.scheduling.sigs.k8s.io", "g")], json!({})),
            (_, PodGroupApi::Community) => (vec![("label:scheduling.x-k8s.io/pod-group", "g")], json!({})),
            (_, PodGroupApi::Kubernetes) => (vec![(key::SCHEDULING_GROUP, "g")], json!({})),
        };
        let mut spec: Value = spec;
        if on == On::PodGroup && api != PodGroupApi::Kubernetes {
            spec["minMember"] = min.parse::<i32>().unwrap().into();
        }
        let pods = pods.into_iter().filter(|(key, _)| *key != name);
        let pods = pods.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Says { api, pods, spec, annotations: BTreeMap::new(), has_group: on == On::PodGroup }
    };
    let says = |min: &str| named(min).key(on, name, value);
    match name {
        key::NAME | key::MIN_AVAILABLE | key::TOTAL_NUMBER | key::TIMEOUT => {
            let min = if name == key::NAME { "3" } else { "2" };
            told(&says(min).run(8, 2, 2))
        }
        "minMember" | "schedulingPolicy" => {
            let mut says = says("2");
            if value.is_none() {
                says.spec = json!({});
            }
            told(&says.run(8, 2, 2))
        }
        "minResources" => told(&says("2").run(8, 2, 2)),
        key::NETWORK_TOPOLOGY_INDEX => {
            let keys = |rank: Option<&str>| {
                let mut keys = named("2").pods;
                keys.push((key::REQUIRED_TOPOLOGY.to_owned(), "pool".to_owned()));
                keys.extend(rank.map(|rank| (name.to_owned(), rank.to_owned())));
                keys
            };
            let mut gangs = TestGangs::with(Default::default());
            ["b", "c"].iter().for_each(|node| _ = gangs.plain_node(node, 1, "x"));
            gangs.member("g-0", &keys(value));
            gangs.member("g-1", &keys(Some("5")));
            gangs.wait(2);
            format!("first on {}", gangs.cluster.node_of("g-0").unwrap_or("no node"))
        }
        key::NETWORK_TOPOLOGY_SPEC | key::REQUIRED_TOPOLOGY | key::PREFERRED_TOPOLOGY | "schedulingConstraints" => {
            let mut says = says("2");
            if api == PodGroupApi::Kubernetes {
                says.spec["schedulingPolicy"] = json!({"gang": {"minCount": 2}});
            }
            gathered(&says)
        }
        key::WAITING_TIME | "scheduleTimeoutSeconds" => {
            let says = says("3");
            let mode = (key::MODE.to_owned(), "NonStrict".to_owned());
            told(&Says { pods: [says.pods.clone(), vec![mode]].concat(), ..says }.run(2, 3, 60))
        }
        key::TIMEOUT_CLOCK => {
            let says = says("3");
            let wait = (key::WAITING_TIME.to_owned(), "30s".to_owned());
            told(&Says { pods: [says.pods.clone(), vec![wait]].concat(), ..says }.run(2, 3, 60))
        }
        key::MODE => told(&says("3").run(2, 3, 2)),
        key::GROUPS | key::GANG_GROUPS | key::POD_GROUP_GROUPS => told(&says("2").run(8, 2, 2)),
        key::MATCH_POLICY | key::POD_GROUP_MATCH_POLICY => {
            let after = |fewer: &dyn Fn(&mut TestGangs)| {
                let says = says("3");
                let mut gangs = says.run(8, 3, 2);
                fewer(&mut gangs);
                says.member(&mut gangs, "g-9");
                gangs.wait(2);
                if gangs.bound().iter().any(|name| name == "g-9") { "goes" } else { "waits" }
            };
            let ended = |gangs: &mut TestGangs| ["g-0", "g-1"].iter().for_each(|name| gangs.cluster.finish(name));
            let deleted = |gangs: &mut TestGangs| ["g-0", "g-1"].iter().for_each(|name| gangs.delete(name));
            let (none, ended, deleted) = (after(&|_| ()), after(&ended), after(&deleted));
            format!("one more {none}; of 3, 2 succeeded: {ended}, 2 deleted: {deleted}")
        }
        key::POD_GROUP | key::COMMUNITY_POD_GROUP | key::SCHEDULING_GROUP => {
            told(&Says { pods: Vec::new(), ..named("2") }.key(on, name, value).run(8, 2, 2))
        }
        key::POD_GROUP_NAME => {
            let min = (key::POD_GROUP_MIN_AVAILABLE.to_owned(), "3".to_owned());
            told(&Says { pods: vec![min], ..named("2") }.key(on, name, value).run(8, 2, 2))
        }
        key::POD_GROUP_MIN_AVAILABLE => {
            let group = (key::POD_GROUP_NAME.to_owned(), "g".to_owned());
            told(&Says { pods: vec![group], ..named("2") }.key(on, name, value).run(8, 2, 2))
        }
        key::SUB_PRIORITY => {
            let mut gangs = TestGangs::new(0);
            let own = |name: &str| {
                vec![(key::NAME.to_owned(), name.to_owned()), (key::MIN_AVAILABLE.to_owned(), "1".to_owned())]
            };
            gangs.member("older", &own("older"));
            gangs.cluster.later(1);
            let mut keys = own("younger");
            keys.extend(value.map(|value| (format!("label:{name}"), value.to_owned())));
            gangs.asks_as("younger", CPU, &keys, |facts| {
                facts.spec.labels.extend(value.map(|value| (name.to_owned(), value.to_owned())));
                facts.spec.gang = declared("ml", &keys);
            });
            gangs.node("room", 1).wait(2);
            format!("first: {}", gangs.bound().join(" "))
        }
        _ => format!("no test of {name}"),
    }
}
