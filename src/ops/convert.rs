//! `baton config convert`: Baton's configuration from kube-scheduler's, a `KubeSchedulerConfiguration` of version v1 or a `Policy`. What
//! has no counterpart is named line by line, as comments above the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::config::{print_yaml, read_yaml_value};
use super::say::say;
use super::settings::{API_VERSION, KIND};
use baton_decide::scheduler::rules::plugins::{Point, names_at, points_of};

/// Arguments of `baton config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ConfigVerb,
}

/// What `baton config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print Baton's configuration for a kube-scheduler's
    Convert {
        /// A KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, or a Policy; YAML or JSON.
        file: PathBuf,
    },
}

/// Reads, converts, prints.
pub fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    let ConfigVerb::Convert { file } = &args.verb;
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let value = read_yaml_value(&text).map_err(|problem| anyhow::anyhow!("{}: {problem}", file.display()))?;
    say(convert(&value).with_context(|| file.display().to_string())?.print()?)
}

/// The version that is read.
pub const KUBE_VERSION: &str = "kubescheduler.config.k8s.io/v1";

/// Baton's configuration and what could not be carried over.
#[derive(Debug, Default)]
struct Converted {
    keys: Map<String, Value>,
    /// By point: names to enable, scores with their weights.
    enabled: BTreeMap<&'static str, Vec<(String, i64)>>,
    disabled: BTreeMap<&'static str, BTreeSet<String>>,
    args: BTreeMap<&'static str, Value>,
    left: Vec<String>,
}

/// kube-scheduler's default scores with their weights: a file changes these.
const SCORES: [(&str, i64); 7] = [
    ("TaintToleration", 3),
    ("NodeAffinity", 2),
    ("NodeResourcesFit", 1),
    ("PodTopologySpread", 2),
    ("InterPodAffinity", 2),
    ("NodeResourcesBalancedAllocation", 1),
    ("ImageLocality", 1),
];

/// kube-scheduler's plugins that Baton covers by other means.
const COVERED: &[(&str, &str)] = &[
    ("Coscheduling", "gangs are built in"),
    ("DefaultBinder", "lock and Binding are built in"),
    ("SchedulingGates", "gates are always honoured"),
];

fn convert(file: &Value) -> anyhow::Result<Converted> {
    match (file["kind"].as_str(), file["apiVersion"].as_str()) {
        (Some("Policy"), _) => Ok(of_policy(file)),
        (Some("KubeSchedulerConfiguration"), Some(KUBE_VERSION)) => Ok(of_configuration(file)),
        (Some("KubeSchedulerConfiguration"), version) => {
            bail!("apiVersion {:?} is not read; expected {KUBE_VERSION}", version.unwrap_or_default())
        }
        (kind, _) => {
            bail!("kind {:?} is not read; expected KubeSchedulerConfiguration or Policy", kind.unwrap_or_default())
        }
    }
}

fn of_configuration(file: &Value) -> Converted {
    let mut to = Converted::default();
    to.score_as_kube_scheduler();
    for (key, value) in entries(file) {
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "profiles" => {
                let profiles = value.as_array().map(Vec::as_slice).unwrap_or_default();
                if let Some(profile) = profiles.first() {
                    to.profile(profile);
                }
                for (at, other) in profiles.iter().enumerate().skip(1) {
                    let name = other["schedulerName"].as_str().unwrap_or("default-scheduler");
                    to.leave(
                        &format!("profiles[{at}] ({name})"),
                        "one set of plugins is for all pods; `more-scheduler-names` serves further names by it",
                    );
                }
            }
            "leaderElection" => to.keys_of(
                key,
                value,
                &[
                    ("leaderElect", "leaderElect"),
                    ("leaseDuration", "leaseDuration"),
                    ("renewDeadline", "leaseRenewDeadline"),
                    ("retryPeriod", "leaseRetry"),
                    ("resourceName", "leaseName"),
                ],
            ),
            "clientConnection" => to.keys_of(key, value, &[("kubeconfig", "kubeconfig")]),
            "podInitialBackoffSeconds" => to.seconds(key, value, "backoff"),
            "podMaxBackoffSeconds" => to.seconds(key, value, "backoffMax"),
            "percentageOfNodesToScore" => to.leave(key, "every node is judged"),
            "parallelism" => to.leave(key, "decisions need one thread"),
            "extenders" => to.leave(key, "Baton calls no extenders"),
            _ => to.leave(key, "Baton has no such setting"),
        }
    }
    to
}

impl Converted {
    fn leave(&mut self, path: &str, why: &str) {
        self.left.push(format!("{path}: {why}"));
    }

    fn score_as_kube_scheduler(&mut self) {
        let scores = SCORES.map(|(name, weight)| (name.to_owned(), weight));
        self.enabled.insert("score", scores.into());
    }

    /// Fields of `value` that are keys of ours, by their names here.
    fn keys_of(&mut self, path: &str, value: &Value, known: &[(&str, &str)]) {
        for (field, value) in entries(value) {
            match known.iter().find(|(theirs, _)| theirs == field) {
                Some((_, ours)) if value.as_str() != Some("") => {
                    self.keys.insert((*ours).to_owned(), value.clone());
                }
                Some(_) => {}
                None => self.leave(&format!("{path}.{field}"), "Baton has no such setting"),
            }
        }
    }

    fn seconds(&mut self, path: &str, value: &Value, key: &str) {
        match value.as_u64().filter(|seconds| *seconds > 0) {
            Some(seconds) => drop(self.keys.insert(key.to_owned(), json!(format!("{seconds}s")))),
            None => self.leave(path, "expected a number of seconds above 0"),
        }
    }

    fn profile(&mut self, profile: &Value) {
        for (key, value) in entries(profile) {
            match key.as_str() {
                "schedulerName" => drop(self.keys.insert("schedulerName".to_owned(), value.clone())),
                "plugins" => self.plugins(value),
                "pluginConfig" => {
                    for item in value.as_array().into_iter().flatten() {
                        self.arguments(item["name"].as_str().unwrap_or_default(), &item["args"]);
                    }
                }
                "percentageOfNodesToScore" => {
                    self.leave("profiles[0].percentageOfNodesToScore", "every node is judged");
                }
                _ => self.leave(&format!("profiles[0].{key}"), "Baton has no such setting"),
            }
        }
    }

    fn plugins(&mut self, plugins: &Value) {
        for (key, set) in entries(plugins) {
            let path = format!("profiles[0].plugins.{key}");
            let points: Vec<(Point, &'static str)> =
                Point::ALL.into_iter().filter(|(_, name)| name == key || key == "multiPoint").collect();
            for item in set["disabled"].as_array().into_iter().flatten() {
                self.disable(&path, &points, item["name"].as_str().unwrap_or_default());
            }
            for item in set["enabled"].as_array().into_iter().flatten() {
                let weight = item["weight"].as_i64().filter(|weight| *weight > 0);
                self.enable(&path, &points, item["name"].as_str().unwrap_or_default(), weight);
            }
        }
    }

    fn disable(&mut self, path: &str, points: &[(Point, &'static str)], name: &str) {
        let name = ours(name);
        let known = |point: Point| names_at(point).any(|known| known == name);
        let (mut done, mut kept) = (false, false);
        for (point, key) in points {
            match (*key, name) {
                ("score", "*") => done |= self.enabled.insert(key, Vec::new()).is_some(),
                // The order that is enabled takes the place of the other.
                ("queueSort", "*" | "PrioritySort" | "QoSSort") => done = true,
                (_, "*") => kept = true,
                ("score", _) => {
                    self.enabled.entry(key).or_default().retain(|(listed, _)| listed != name);
                    done = true;
                }
                _ if known(*point) => {
                    done = true;
                    // What works at several points in turn is taken out at all of them.
                    for (other, key) in
                        Point::ALL.into_iter().filter(|(_, key)| !key.ends_with("core") && !key.ends_with("Core"))
                    {
                        if names_at(other).any(|known| known == name) {
                            self.disabled.entry(key).or_default().insert(name.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        if kept {
            self.leave(&format!("{path}.disabled \"*\""), "Baton's own rules stay; disable those to leave out by name");
        } else if !done && !COVERED.iter().any(|(covered, _)| *covered == name) {
            self.leave(&format!("{path}.disabled {name}"), "Baton has no such plugin here, so nothing is disabled");
        }
    }

    fn enable(&mut self, path: &str, points: &[(Point, &'static str)], name: &str, weight: Option<i64>) {
        let name = ours(name);
        let mut done = false;
        for (point, key) in points {
            if !names_at(*point).any(|known| known == name) {
                continue;
            }
            done = true;
            self.disabled.entry(key).or_default().remove(name);
            let list = self.enabled.entry(key).or_default();
            match list.iter_mut().find(|(listed, _)| listed == name) {
                Some((_, known)) => *known = weight.unwrap_or(*known),
                None if *key == "queueSort" => *list = vec![(name.to_owned(), 1)],
                None => {
                    let default = SCORES.iter().find(|(known, _)| *known == name).map_or(1, |(_, weight)| *weight);
                    list.push((name.to_owned(), weight.unwrap_or(default)));
                }
            }
        }
        if !done {
            let covered = COVERED.iter().find(|(covered, _)| *covered == name).map(|(_, how)| *how);
            let elsewhere = points_of(name).join(", ");
            let why = match covered {
                Some(how) => how.to_owned(),
                None if elsewhere.is_empty() => "Baton has no such plugin".to_owned(),
                None => format!("Baton has this plugin at {elsewhere} only"),
            };
            self.leave(&format!("{path}.enabled {name}"), &why);
        }
    }

    /// The arguments of one plugin.
    fn arguments(&mut self, name: &str, args: &Value) {
        let path = format!("pluginConfig {name}");
        let known: &[(&str, &str)] = match name {
            "NodeResourcesFit" => &[("scoringStrategy", "scoringStrategy")],
            "NodeResourcesBalancedAllocation" => &[("resources", "resources")],
            "InterPodAffinity" => &[
                ("hardPodAffinityWeight", "hardPodAffinityWeight"),
                ("ignorePreferredTermsOfExistingPods", "ignorePreferredTermsOfExistingPods"),
            ],
            "VolumeBinding" => &[("bindTimeoutSeconds", "bindTimeoutSeconds")],
            "RequestedToCapacityRatio" => return self.ratio(&path, args),
            "Coscheduling" => {
                for (field, value) in entries(args) {
                    match field.as_str() {
                        "apiVersion" | "kind" => {}
                        "permitWaitingTimeSeconds" => self.seconds(&path, value, "gangWaitingTime"),
                        "defaultTimeout" => drop(self.keys.insert("gangWaitingTime".to_owned(), value.clone())),
                        "defaultMatchPolicy" => drop(self.keys.insert("gangMatchPolicy".to_owned(), value.clone())),
                        _ => self.leave(&format!("{path}.{field}"), "Baton has no such setting"),
                    }
                }
                return;
            }
            _ => return self.leave(&path, "Baton's plugin of that name has no arguments, or there is none"),
        };
        let mut taken = Map::new();
        for (field, value) in entries(args) {
            match known.iter().find(|(theirs, _)| theirs == field) {
                Some((_, ours)) => drop(taken.insert((*ours).to_owned(), value.clone())),
                None if matches!(field.as_str(), "apiVersion" | "kind") => {}
                None => self.leave(&format!("{path}.{field}"), "Baton's plugin has no such argument"),
            }
        }
        if let Some(name) = points_of(name).first().and(PLUGIN_ARGS.iter().find(|known| **known == name)) {
            self.args.insert(name, taken.into());
        }
    }

    /// The shape and the weights of the resources, also in the spelling of early versions.
    fn ratio(&mut self, path: &str, args: &Value) {
        let mut taken = Map::new();
        for (field, value) in entries(args) {
            match field.to_ascii_lowercase().as_str() {
                "apiversion" | "kind" => {}
                "shape" | "functionshape" => drop(taken.insert("shape".to_owned(), value.clone())),
                "resources" => drop(taken.insert("resources".to_owned(), value.clone())),
                "resourcetoweightmap" => {
                    let weights: Vec<Value> =
                        entries(value).map(|(name, weight)| json!({"name": name, "weight": weight})).collect();
                    taken.insert("resources".to_owned(), weights.into());
                }
                _ => self.leave(&format!("{path}.{field}"), "Baton's plugin has no such argument"),
            }
        }
        self.args.insert("RequestedToCapacityRatio", taken.into());
    }

    fn print(&self) -> anyhow::Result<String> {
        let mut file =
            Map::from_iter([("apiVersion".to_owned(), json!(API_VERSION)), ("kind".to_owned(), json!(KIND))]);
        file.extend(self.keys.clone());
        let mut plugins = Map::new();
        for (_, key) in Point::ALL {
            let (enabled, disabled) = (self.enabled.get(key), self.disabled.get(key));
            let name = |(name, weight): &(String, i64)| match key {
                "score" => json!({"name": name, "weight": weight}),
                _ => json!({"name": name}),
            };
            let enabled: Vec<Value> = enabled.into_iter().flatten().map(name).collect();
            let mut out: Vec<Value> = disabled.into_iter().flatten().map(|name| json!({"name": name})).collect();
            if matches!(key, "score" | "queueSort") && self.enabled.contains_key(key) {
                out = vec![json!({"name": "*"})];
            }
            if !enabled.is_empty() || !out.is_empty() {
                plugins.insert(key.to_owned(), json!({"enabled": enabled, "disabled": out}));
            }
        }
        file.insert("plugins".to_owned(), plugins.into());
        let args: Vec<Value> = self.args.iter().map(|(name, args)| json!({"name": name, "args": args})).collect();
        if !args.is_empty() {
            file.insert("pluginConfig".to_owned(), args.into());
        }
        let mut text = String::from(
            "# Made by `baton config convert`. The scores are those of the file, without Baton's default that packs GPUs.\n",
        );
        for left in &self.left {
            writeln!(text, "# not carried over: {left}")?;
        }
        Ok(text + &print_yaml(&Value::from(file))?)
    }
}

/// Plugins with arguments that are carried over as they are.
const PLUGIN_ARGS: &[&str] =
    &["NodeResourcesFit", "NodeResourcesBalancedAllocation", "InterPodAffinity", "VolumeBinding"];

/// The priorities of a Policy, by the plugin that has their meaning.
const PRIORITIES: &[(&str, &str)] = &[
    ("LeastRequestedPriority", "NodeResourcesFit"),
    ("MostRequestedPriority", "NodeResourcesFit"),
    ("BalancedResourceAllocation", "NodeResourcesBalancedAllocation"),
    ("InterPodAffinityPriority", "InterPodAffinity"),
    ("NodeAffinityPriority", "NodeAffinity"),
    ("TaintTolerationPriority", "TaintToleration"),
    ("ImageLocalityPriority", "ImageLocality"),
    ("EvenPodsSpreadPriority", "PodTopologySpread"),
];

/// The predicates of a Policy that Baton's rules contain.
const PREDICATES: &[&str] = &[
    "GeneralPredicates",
    "PodFitsResources",
    "PodFitsHostPorts",
    "PodFitsPorts",
    "HostName",
    "MatchNodeSelector",
    "PodToleratesNodeTaints",
    "CheckNodeUnschedulable",
    "CheckNodeCondition",
    "CheckVolumeBinding",
    "NoVolumeZoneConflict",
    "MatchInterPodAffinity",
    "EvenPodsSpreadPred",
];

fn of_policy(file: &Value) -> Converted {
    let mut to = Converted::default();
    if !file["priorities"].is_array() {
        to.score_as_kube_scheduler();
    }
    for (key, value) in entries(file) {
        let named =
            || value.as_array().into_iter().flatten().map(|item| (item["name"].as_str().unwrap_or_default(), item));
        match key.as_str() {
            "apiVersion" | "kind" => {}
            "predicates" => {
                for (name, _) in named().filter(|(name, _)| !PREDICATES.contains(name)) {
                    to.leave(&format!("predicates {name}"), "Baton has no such rule; all rules of Baton stay enabled");
                }
            }
            "priorities" => named().for_each(|(name, item)| to.priority(name, item)),
            "hardPodAffinitySymmetricWeight" => {
                drop(to.args.insert("InterPodAffinity", json!({"hardPodAffinityWeight": value})));
            }
            "extenders" | "extenderConfigs" => to.leave(key, "Baton calls no extenders"),
            _ => to.leave(key, "Baton has no such setting"),
        }
    }
    to
}

impl Converted {
    fn priority(&mut self, name: &str, item: &Value) {
        let weight = item["weight"].as_i64().unwrap_or(1).clamp(1, 100);
        let ratio = &item["argument"]["requestedToCapacityRatioArguments"];
        let plugin = if ratio.is_object() {
            self.ratio(&format!("priorities {name}"), ratio);
            "RequestedToCapacityRatio"
        } else if let Some((_, plugin)) = PRIORITIES.iter().find(|(known, _)| *known == name) {
            plugin
        } else {
            return self.leave(&format!("priorities {name}"), "Baton has no such score");
        };
        let scores = self.enabled.entry("score").or_default();
        if scores.iter().any(|(listed, _)| listed == plugin) {
            return self.leave(&format!("priorities {name}"), &format!("{plugin} scores already, by another priority"));
        }
        scores.push((plugin.to_owned(), weight));
        if plugin == "NodeResourcesFit" {
            let kind = if name == "MostRequestedPriority" { "MostAllocated" } else { "LeastAllocated" };
            let resources = json!([{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]);
            self.args.insert("NodeResourcesFit", json!({"scoringStrategy": {"type": kind, "resources": resources}}));
        }
    }
}

/// kube-scheduler and its plugins spell one name in another way.
fn ours(name: &str) -> &str {
    if name == "QOSSort" { "QoSSort" } else { name }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::options_of;

    /// The configuration that comes out, loaded, and what is left out.
    fn converted(text: &str) -> (String, Vec<String>) {
        let converted = convert(&read_yaml_value(text).unwrap()).unwrap();
        let printed = converted.print().unwrap();
        assert_eq!(options_of(&printed).validate(), Ok(()), "{printed}");
        (printed, converted.left)
    }

    fn fixture(name: &str) -> (String, Vec<String>) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/scheduler-configs/");
        converted(&std::fs::read_to_string(format!("{path}{name}")).unwrap())
    }

    #[test]
    fn published_configurations_load_and_what_is_left_out_is_named() {
        for (name, left) in [
            ("bin-packing.yaml", &[][..]),
            ("multi-point.yaml", &["profiles[0].plugins.multiPoint.enabled MyPlugin"]),
            ("coscheduling.yaml", &["profiles[0].plugins.multiPoint.enabled Coscheduling"]),
            ("managed.yaml", &["percentageOfNodesToScore", "extenders", "profiles[1] (no-scoring-scheduler)"]),
            ("policy.json", &["predicates NoDiskConflict", "priorities SelectorSpreadPriority"]),
        ] {
            let (printed, found) = fixture(name);
            for line in left {
                assert!(found.iter().any(|found| found.starts_with(line)), "{name}: {line}: {found:#?}");
                assert!(printed.contains(&format!("# not carried over: {line}")), "{printed}");
            }
            assert!(!left.is_empty() || found.is_empty(), "{name}: {found:#?}");
        }
    }

    #[test]
    fn the_policy_with_its_ratio_keeps_shape_weights_and_scores() {
        let options = options_of(&fixture("policy.json").0);
        assert_eq!(options.ratio_shape, [(0, 0), (100, 10)]);
        assert_eq!(options.ratio_weights, [("nvidia.com/gpu".to_owned(), 5), ("cpu".to_owned(), 1)]);
        let scores: Vec<(&str, i64)> =
            options.plugins.lists.at(Point::Score).iter().map(|listed| (listed.name, listed.weight)).collect();
        assert_eq!(scores, [("RequestedToCapacityRatio", 2), ("NodeAffinity", 1)]);
        assert_eq!(options.plugins.affinity.hard_weight, 10);
    }

    #[test]
    fn early_spellings_are_read() {
        let text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- schedulerName: s\n  plugins:\n    queueSort: {enabled: [{name: QOSSort}], disabled: [{name: PrioritySort}]}\n    score: {disabled: [{name: '*'}], enabled: [{name: RequestedToCapacityRatio}]}\n  pluginConfig:\n  - name: RequestedToCapacityRatio\n    args: {functionshape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}], resourcetoweightmap: {nvidia.com/gpu: 4, cpu: 1}}\n";
        let (printed, left) = converted(text);
        assert_eq!(left, Vec::<String>::new());
        assert!(printed.contains("- name: QoSSort") && printed.contains("name: nvidia.com/gpu"), "{printed}");
    }

    #[test]
    fn other_versions_and_kinds_are_refused_by_name() {
        for (text, part) in [
            ("apiVersion: kubescheduler.config.k8s.io/v1beta2\nkind: KubeSchedulerConfiguration\n", "v1beta2"),
            ("kind: Deployment\n", "Deployment"),
        ] {
            let error = convert(&read_yaml_value(text).unwrap()).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("expected"), "{error}");
        }
    }
}
