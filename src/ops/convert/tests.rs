//! Every field of kube-scheduler's file has its decision, and whatever is converted starts and leads.

use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::command::convert;
use super::converted::Converted;
use super::plugins::POINTS;
use crate::config::read_yaml_value;
use crate::settings::{KUBE_VERSIONS, options_of};
use baton_decide::core::rules::plugins::{Point, Strategy as Rating};
use baton_scheduler::SchedulerOptions;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const CHANGES: &str = "# Not carried over, and changes where pods go:";
const HARMLESS: &str = "# Not carried over, harmless:";

fn read(path: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{path}")).unwrap()
}

/// The scheduler starts with the result and leads, and the comments have their order.
fn checked(converted: &Converted) -> (String, SchedulerOptions) {
    let text = converted.print().unwrap();
    let options = options_of(&text);
    assert_eq!(options.validate(), Ok(()), "{text}");
    assert!(options.leader.elect, "{text}");
    assert_eq!((&options.kubeconfig, &*options.namespace), (&None, "baton-system"), "{text}");
    assert_ne!(options.scheduler_names, ["default-scheduler"], "kube-scheduler binds these: {text}");
    let (changes, harmless) = (text.find(CHANGES), text.find(HARMLESS));
    assert_eq!((changes.is_some(), harmless.is_some()), (!converted.moves.is_empty(), !converted.harmless.is_empty()));
    assert!(changes.is_none_or(|at| harmless.is_none_or(|after| at < after)), "{text}");
    (text, options)
}

fn fixture(name: &str) -> (Converted, SchedulerOptions) {
    let text = read(&format!("tests/fixtures/scheduler-configs/{name}"));
    let converted = convert(read_yaml_value(&text).unwrap()).unwrap();
    let options = checked(&converted).1;
    (converted, options)
}

fn has(notes: &[String], begin: &str) -> bool {
    notes.iter().any(|note| note.starts_with(begin))
}

fn scores(options: &SchedulerOptions) -> Vec<(&'static str, i64)> {
    options.plugins.lists.at(Point::Score).iter().map(|listed| (listed.name, listed.weight)).collect()
}

#[test]
fn published_configurations_load_and_what_moves_pods_is_apart_from_the_rest() {
    for (name, moves, harmless) in [
        ("bin-packing.yaml", &[][..], &["profiles[0].schedulerName = default-scheduler"][..]),
        ("multi-point.yaml", &["profiles[0].plugins.multiPoint.enabled MyPlugin"], &[]),
        (
            "coscheduling.yaml",
            &[],
            &["profiles[0].plugins.multiPoint.enabled Coscheduling", "leaderElection.leaderElect = false"],
        ),
        (
            "managed.yaml",
            &[
                "extenders[0] (http://127.0.0.1:8888/)",
                "profiles[1] (no-scoring-scheduler)",
                "profiles[0].pluginConfig NodeResourcesFit.ignoredResources",
            ],
            &["percentageOfNodesToScore = 50", "leaderElection.resourceName = gpu-scheduler"],
        ),
        ("policy.json", &["predicates NoDiskConflict", "priorities SelectorSpreadPriority"], &[]),
        (
            "heavy.yaml",
            &[
                "profiles[0].plugins.score weights: 1 to 100 here; NodeResourcesFit 10000 becomes 100, ImageLocality 1 becomes 1",
            ],
            &[],
        ),
        ("profiles.yaml", &["profiles[1] (no-scoring-scheduler)", "profiles[2] (bin-packing)"], &[]),
        (
            "out-of-tree.yaml",
            &[
                "profiles[0].plugins.multiPoint.enabled CapacityScheduling",
                "profiles[0].plugins.score.enabled TargetLoadPacking",
            ],
            &["leaderElection.leaderElect = false", "profiles[0].pluginConfig Coscheduling.podGroupBackoffSeconds"],
        ),
        (
            "own-lease.yaml",
            &[
                "profiles[0].pluginConfig NodeAffinity.addedAffinity",
                "profiles[0].pluginConfig PodTopologySpread.defaultConstraints",
            ],
            &[
                "leaderElection.resourceName = my-scheduler",
                "clientConnection.kubeconfig = /etc/kubernetes/scheduler.conf",
            ],
        ),
        ("v1beta3.yaml", &[], &[]),
        ("v1beta1.yaml", &[], &["healthzBindAddress"]),
    ] {
        let converted = fixture(name).0;
        for line in moves {
            assert!(has(&converted.moves, line), "{name}: {line}: {:#?}", converted.moves);
        }
        for line in harmless {
            assert!(has(&converted.harmless, line), "{name}: {line}: {:#?}", converted.harmless);
        }
        assert_eq!(moves.is_empty(), converted.moves.is_empty(), "{name}: {:#?}", converted.moves);
    }
}

/// A line of the list of fields.
struct Line {
    path: String,
    value: Value,
    decision: String,
    not_in: String,
}

static FIELDS: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let text = read("tests/fixtures/scheduler-configs/fields.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [path, value, decision] = parts[..3] else { panic!("{line}") };
        let not_in = parts.get(3).and_then(|part| part.strip_prefix("not ")).unwrap_or("none");
        let value = serde_json::from_str(value).unwrap();
        Line { path: path.to_owned(), value, decision: decision.to_owned(), not_in: not_in.to_owned() }
    };
    lines.map(line).collect()
});

fn empty(version: &str) -> Value {
    json!({"apiVersion": version, "kind": "KubeSchedulerConfiguration", "profiles": [{}]})
}

fn put(file: &mut Value, path: &str, value: Value) {
    let profile = &mut file["profiles"][0];
    if let Some((plugin, field)) = path.strip_prefix("pluginConfig ").and_then(|path| path.split_once('.')) {
        if profile["pluginConfig"].is_null() {
            profile["pluginConfig"] = json!([]);
        }
        let items = profile["pluginConfig"].as_array_mut().unwrap();
        let at = items.iter().position(|item| item["name"] == plugin).unwrap_or_else(|| {
            items.push(json!({"name": plugin, "args": {}}));
            items.len() - 1
        });
        items[at]["args"][field] = value;
    } else if let Some(path) = path.strip_prefix("profiles[0].") {
        *path.split('.').fold(profile, |at, key| &mut at[key]) = value;
    } else {
        *path.split('.').fold(file, |at, key| &mut at[key]) = value;
    }
}

#[test]
fn every_field_is_carried_over_or_named_under_what_it_means() {
    for version in KUBE_VERSIONS {
        let body = |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let base = convert(empty(version)).unwrap();
        let before = body(&checked(&base).0);
        for Line { path, value, decision, .. } in FIELDS.iter().filter(|line| !version.ends_with(&line.not_in)) {
            let mut file = empty(version);
            put(&mut file, path, value.clone());
            let converted = convert(file).unwrap_or_else(|error| panic!("{version}: {path} {value}: {error:#}"));
            let (text, _) = checked(&converted);
            let (moves, harmless) = (converted.moves.len(), converted.harmless.len());
            let found = match (moves, harmless > base.harmless.len()) {
                (1.., _) => "moves",
                (0, true) => "harmless",
                _ if body(&text) != before => "carried",
                _ => "forgotten",
            };
            assert_eq!(found, &**decision, "{version}: {path} {value}\n{text}");
        }
    }
}

#[test]
fn a_weight_that_is_left_out_is_1_and_multi_point_counts_less_than_a_point() {
    let converted = |plugins: Value, version: &str| {
        let mut file = empty(version);
        put(&mut file, "profiles[0].plugins", plugins);
        let converted = convert(file).unwrap();
        let options = checked(&converted).1;
        (scores(&options), options)
    };
    let v1 = |plugins: Value| converted(plugins, KUBE_VERSIONS[0]).0;
    let weight =
        |scores: &[(&str, i64)], name: &str| scores.iter().find(|(score, _)| *score == name).map(|(_, weight)| *weight);
    assert_eq!(weight(&v1(json!({})), "TaintToleration"), Some(3));
    let plain = v1(json!({"score": {"enabled": [{"name": "TaintToleration"}]}}));
    assert_eq!((weight(&plain, "TaintToleration"), plain.len()), (Some(1), 7));
    let both = json!({"multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality", "weight": 7}, {"name": "PrioritySort"}]},
        "score": {"enabled": [{"name": "NodeAffinity", "weight": 5}]}});
    assert_eq!(v1(both), [("ImageLocality", 7), ("NodeAffinity", 5)]);
    let exact = v1(json!({"score": {"disabled": [{"name": "*"}],
        "enabled": [{"name": "ImageLocality", "weight": 300}, {"name": "NodeAffinity", "weight": 150}]}}));
    assert_eq!(exact, [("ImageLocality", 2), ("NodeAffinity", 1)]);
    let early = converted(json!({}), KUBE_VERSIONS[2]).0;
    assert_eq!((weight(&early, "TaintToleration"), weight(&early, "PodTopologySpread")), (Some(1), Some(2)));
    let off = converted(json!({"filter": {"disabled": [{"name": "VolumeBinding"}]}}), KUBE_VERSIONS[0]).1;
    for point in [Point::PreFilter, Point::Filter, Point::Reserve, Point::PreBind] {
        assert!(!off.plugins.lists.at(point).iter().any(|listed| listed.name == "VolumeBinding"), "{point:?}");
    }
}

#[test]
fn the_scores_of_v1beta1_become_a_strategy_of_one_plugin() {
    let (_, options) = fixture("v1beta1.yaml");
    assert!(scores(&options).contains(&("NodeResourcesFit", 5)), "{:?}", scores(&options));
    let Rating::MostAllocated(weights) = &options.plugins.strategy else { panic!("{:?}", options.plugins.strategy) };
    let weights: Vec<_> = weights.iter().map(|(resource, weight)| (resource.name(), weight)).collect();
    assert_eq!(weights, [("cpu", 1), ("nvidia.com/gpu", 3)]);
    let mut both = empty("kubescheduler.config.k8s.io/v1beta1");
    let most = json!({"enabled": [{"name": "NodeResourcesMostAllocated", "weight": 5}]});
    put(&mut both, "profiles[0].plugins.score", most);
    let converted = convert(both).unwrap();
    assert!(
        has(&converted.moves, "profiles[0].plugins.score NodeResourcesLeastAllocated = 1"),
        "{:?}",
        converted.moves
    );
    assert!(matches!(checked(&converted).1.plugins.strategy, Rating::MostAllocated(_)));
}

#[test]
fn the_policy_with_its_ratio_keeps_shape_weights_and_scores() {
    let options = fixture("policy.json").1;
    assert_eq!(options.ratio_shape, [(0, 0), (100, 10)]);
    assert_eq!(options.ratio_weights, [("nvidia.com/gpu".to_owned(), 5), ("cpu".to_owned(), 1)]);
    assert_eq!(scores(&options), [("RequestedToCapacityRatio", 2), ("NodeAffinity", 1)]);
    assert_eq!(options.plugins.affinity.hard_weight, 10);
}

#[test]
fn early_spellings_are_read() {
    let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: s\n  plugins:\n    queueSort: {enabled: [{name: QOSSort}], disabled: [{name: PrioritySort}]}\n    score: {disabled: [{name: '*'}], enabled: [{name: RequestedToCapacityRatio}]}\n  pluginConfig:\n  - name: RequestedToCapacityRatio\n    args: {functionshape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}], resourcetoweightmap: {nvidia.com/gpu: 4, cpu: 1}}\n";
    let converted = convert(read_yaml_value(text).unwrap()).unwrap();
    let (printed, _) = checked(&converted);
    assert!(converted.moves.is_empty() && converted.harmless.is_empty(), "{converted:?}");
    assert!(printed.contains("- name: QoSSort") && printed.contains("name: nvidia.com/gpu"), "{printed}");
}

#[test]
fn what_kube_scheduler_would_not_read_is_refused_by_name() {
    let fails = |text: &str| convert(read_yaml_value(text).unwrap()).unwrap_err().to_string();
    for (text, part) in [
        ("apiVersion: kubescheduler.config.k8s.io/v1alpha2\nkind: KubeSchedulerConfiguration\n", "v1alpha2"),
        ("kind: Deployment\n", "Deployment"),
    ] {
        assert!(fails(text).contains(part) && fails(text).contains("expected"), "{}", fails(text));
    }
    for (path, value, part) in [
        ("profiles[0].plugins", json!([1]), "profiles[0].plugins: expected a mapping"),
        ("profiles[0].plugins.score.enabled", json!("a"), "profiles[0].plugins.score.enabled: expected a list"),
        ("profiles[0].plugins.score.enabled", json!([{"weight": 1}]), "enabled[0]: name is missing"),
        ("leaderElection", json!(true), "leaderElection: expected a mapping"),
        (
            "pluginConfig NodeResourcesFit.scoringStrategy",
            weighted(&[i64::MIN, -1, 200]),
            "resources example.com/r0 = -9223372036854775808: expected a weight of 1 or more",
        ),
    ] {
        let mut file = empty(KUBE_VERSIONS[0]);
        put(&mut file, path, value);
        let error = convert(file).unwrap_err().to_string();
        assert!(error.contains(part), "{path}: {error}");
    }
}

fn weighted(weights: &[i64]) -> Value {
    let resource = |(at, weight): (usize, &i64)| json!({"name": format!("example.com/r{at}"), "weight": weight});
    let resources: Vec<Value> = weights.iter().enumerate().map(resource).collect();
    json!({"type": "MostAllocated", "resources": resources})
}

#[test]
fn a_line_break_in_a_value_stays_inside_its_comment() {
    let mut file = empty(KUBE_VERSIONS[0]);
    put(&mut file, "leaderElection.resourceName", json!("a\nleaderElect: false\r\nkubeconfig: b"));
    put(&mut file, "x\nleaderElect", json!(false));
    checked(&convert(file).unwrap());
}

const NAMES: &str = "PrioritySort QOSSort QoSSort SchedulingGates NodeName NodeUnschedulable TaintToleration NodeAffinity \
    NodePorts NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone \
    PodTopologySpread InterPodAffinity DefaultPreemption NodeResourcesBalancedAllocation ImageLocality \
    DefaultBinder DynamicResources GangScheduling NodeDeclaredFeatures TopologyPlacementGenerator \
    PodGroupPodsCount DeferredPodScheduling NodeResourcesLeastAllocated NodeResourcesMostAllocated \
    RequestedToCapacityRatio NodeLabel NodePreferAvoidPods SelectorSpread Coscheduling \
    CapacityScheduling TargetLoadPacking DeviceFit *";

fn listed() -> impl Strategy<Value = (prop::sample::Index, prop::sample::Index, bool, i64)> {
    let weight = prop_oneof![Just(0), 1..=100i64, 101..=20_000i64, Just(i64::from(i32::MAX)), Just(-1)];
    (any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>(), weight)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_configuration_starts_leads_and_names_what_it_loses(
        version in 0..KUBE_VERSIONS.len(),
        chosen in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        plugins in prop::collection::vec(listed(), 0..12),
        profiles in 1..4usize,
    ) {
        let mut file = empty(KUBE_VERSIONS[version]);
        let (keys, names): (Vec<&str>, Vec<&str>) = (POINTS.split(' ').collect(), NAMES.split(' ').collect());
        let mut lost = std::collections::BTreeMap::new();
        for Line { path, value, decision, .. } in chosen.iter().map(|at| at.get(&FIELDS)) {
            put(&mut file, path, value.clone());
            lost.insert(path.replace("pluginConfig", "profiles[0].pluginConfig"), decision.clone());
        }
        for (key, name, enabled, weight) in plugins {
            let (key, name) = (*key.get(&keys), *name.get(&names));
            let field = if enabled && name != "*" { "enabled" } else { "disabled" };
            let list = &mut file["profiles"][0]["plugins"][key][field];
            if list.is_null() {
                *list = json!([]);
            }
            let item = if field == "enabled" { json!({"name": name, "weight": weight}) } else { json!({"name": name}) };
            list.as_array_mut().unwrap().push(item);
        }
        for at in 1..profiles {
            file["profiles"].as_array_mut().unwrap().push(json!({"schedulerName": format!("s{at}")}));
        }
        let converted = convert(file.clone()).unwrap();
        let (text, _) = checked(&converted);
        prop_assert_eq!(has(&converted.moves, "profiles[1]"), profiles > 1);
        // Lists of plugins change what other lists mean, and which score rates resources; the other fields keep their decision.
        let depends = |path: &str| [".plugins.", ".resources", ".scoringStrategy"].iter().any(|part| path.contains(part));
        for (path, decision) in lost.iter().filter(|(path, _)| !depends(path)) {
            let notes = if decision == "moves" { &converted.moves } else { &converted.harmless };
            prop_assert!(decision == "carried" || has(notes, path), "{} {}: {}", path, decision, text);
        }
    }
}
