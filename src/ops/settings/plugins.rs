//! The versioned part of the scheduler's file: which plugins are enabled, with which weights and arguments.
//!
//! The names and the shape are kube-scheduler's: `plugins.<point>.{enabled,disabled}` and `pluginConfig[].{name,args}`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::log::DaemonSettings;
use super::timings::timings;
use crate::config::{Fields, Misplaced, Section, YamlNode, removed};
use baton_contract::key;
use baton_decide::core::MetricWeights;
use baton_decide::core::rules::plugins::{
    Disabled, Listed, PluginLists, Point, RatioConfig, Strategy, Weights, default_plugins, gpu_patience, names_at,
    points_of,
};
use baton_scheduler::SchedulerOptions;

/// The version of the file that this Baton reads.
pub const API_VERSION: &str = "baton.io/v1alpha1";
/// The kind of the file.
pub const KIND: &str = "SchedulerConfiguration";
/// Key of the weights by which TYJobs' policies rate nodes.
const JOB_WEIGHTS: &str = "jobWeights";

const HEAD: &[&str] = &["apiVersion", "kind"];
const ADVICE: &str = "begin it with apiVersion: baton.io/v1alpha1 and kind: SchedulerConfiguration";

/// The versions of kube-scheduler's own file that `baton config convert` reads.
pub const KUBE_VERSIONS: [&str; 4] = [
    "kubescheduler.config.k8s.io/v1",
    "kubescheduler.config.k8s.io/v1beta3",
    "kubescheduler.config.k8s.io/v1beta2",
    "kubescheduler.config.k8s.io/v1beta1",
];

const CONVERT: &str = "; `baton config convert FILE` makes Baton's configuration from kube-scheduler's";

/// The keys of the file that are no flags.
pub const SECTIONS: &[Section<DaemonSettings<SchedulerOptions>>] = &[
    Section {
        name: "apiVersion",
        needs: &["kind"],
        advice: ADVICE,
        read: |_, node| {
            let theirs = node.text("apiVersion").is_ok_and(|text| text == "v1" || KUBE_VERSIONS.contains(&text));
            let read = node.word("apiVersion", "version that this Baton reads", &[API_VERSION]);
            read.map(|_| ()).map_err(|mut wrong| {
                if theirs {
                    wrong.problem.push_str(CONVERT);
                }
                wrong
            })
        },
    },
    Section {
        name: "kind",
        needs: &["apiVersion"],
        advice: ADVICE,
        read: |_, node| node.word("kind", "kind that `baton scheduler` reads", &[KIND]).map(|_| ()),
    },
    Section {
        name: "pluginConfig",
        needs: HEAD,
        advice: ADVICE,
        read: |daemon, node| read_args(&mut daemon.options, node),
    },
    Section {
        name: "plugins",
        needs: HEAD,
        advice: ADVICE,
        read: |daemon, node| read_lists(&mut daemon.options, node),
    },
    Section {
        name: JOB_WEIGHTS,
        needs: HEAD,
        advice: ADVICE,
        read: |daemon, node| read_job_weights(&mut daemon.options.job_weights, node),
    },
    timings(),
];

fn read_lists(options: &mut SchedulerOptions, node: &YamlNode) -> Result<(), Misplaced> {
    let points = Point::ALL.map(|(_, key)| key);
    let fields = node.fields("plugins", &points)?;
    let mut lists = options.plugins.lists.clone();
    for (point, key) in Point::ALL {
        let Some((at, set)) = fields.get(key) else { continue };
        let path = format!("plugins.{key}");
        let set = set.fields(&path, &["enabled", "disabled"])?;
        let enabled = match set.get("enabled") {
            None => Vec::new(),
            Some((_, list)) => read_enabled(list, &format!("{path}.enabled"), (point, key))?,
        };
        let disabled = match set.get("disabled") {
            None => Disabled::These(Vec::new()),
            Some((_, list)) => read_disabled(list, &format!("{path}.disabled"), (point, key))?,
        };
        lists.change(point, enabled, &disabled);
        let sorts: Vec<&str> = lists.at(point).iter().map(|listed| listed.name).collect();
        if point == Point::QueueSort && sorts.len() != 1 {
            let problem = match sorts.as_slice() {
                [] => "no order of the queue is left; enable PrioritySort or QoSSort".to_owned(),
                several => format!("{} cannot both order the queue; disable one of them", several.join(" and ")),
            };
            return Err(Misplaced { at: *at, path, problem });
        }
    }
    options.plugins.lists = lists;
    // An error without a single place in the file, such as a rule without its preparation, is reported for the whole list.
    let made = options.plugin_set().map_err(|error| node.wrong("plugins", error.to_string()))?;
    default_plugins(&made).map_err(|error| node.wrong("plugins", error.to_string()))?;
    Ok(())
}

fn read_enabled(list: &YamlNode, path: &str, (point, key): (Point, &str)) -> Result<Vec<Listed>, Misplaced> {
    let mut enabled: Vec<Listed> = Vec::new();
    for (at, item) in list.items(path)?.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let known: &[&str] = if point == Point::Score { &["name", "weight"] } else { &["name"] };
        let fields = item.fields(&path, known)?;
        let node = needed(item, &fields, &path, "name")?;
        let name = name_at(node, &format!("{path}.name"), (point, key))?;
        if enabled.iter().any(|listed| listed.name == name) {
            return Err(node.wrong(&format!("{path}.name"), format!("{name} is enabled twice; keep one")));
        }
        let weight = match fields.get("weight") {
            None => 1,
            Some((_, weight)) => weight.number(&format!("{path}.weight"), 1..=100)?,
        };
        enabled.push(Listed { name, weight });
    }
    Ok(enabled)
}

fn read_disabled(list: &YamlNode, path: &str, point: (Point, &str)) -> Result<Disabled, Misplaced> {
    let mut names = Vec::new();
    for (at, item) in list.items(path)?.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let fields = item.fields(&path, &["name"])?;
        let node = needed(item, &fields, &path, "name")?;
        if node.text(&path)? == "*" {
            return Ok(Disabled::All);
        }
        names.push(name_at(node, &format!("{path}.name"), point)?);
    }
    Ok(Disabled::These(names))
}

/// The plugin that `node` names, when it can be enabled at `point`.
fn name_at(node: &YamlNode, path: &str, (point, key): (Point, &str)) -> Result<&'static str, Misplaced> {
    // As scheduler-plugins spells it.
    let name = if node.text(path)? == "QOSSort" { "QoSSort" } else { node.text(path)? };
    let known: Vec<&'static str> = names_at(point).collect();
    let elsewhere = points_of(name);
    if let Some(problem) = removed(&format!("plugins.{name}")) {
        return Err(node.wrong(path, problem));
    }
    if !elsewhere.is_empty() && !known.contains(&name) {
        let problem = format!("{name} has no {key}; it can be enabled at {}", elsewhere.join(", "));
        return Err(node.wrong(path, problem));
    }
    if known.is_empty() {
        return Err(node.wrong(path, format!("{name:?} is not known; no plugin can be enabled at {key}")));
    }
    known
        .iter()
        .copied()
        .find(|known| *known == name)
        .map_or_else(|| node.word(path, &format!("plugin with {key}"), &known), Ok)
}

fn needed<'a>(whole: &YamlNode, fields: &Fields<'a>, path: &str, key: &'static str) -> Result<&'a YamlNode, Misplaced> {
    fields.get(key).map(|(_, node)| *node).ok_or_else(|| whole.wrong(path, format!("{key} is missing")))
}

/// Plugins with arguments.
const WITH_ARGS: &[&str] = &[
    "RequestedToCapacityRatio",
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "InterPodAffinity",
    "VolumeBinding",
    gpu_patience::NAME,
];

fn read_args(options: &mut SchedulerOptions, node: &YamlNode) -> Result<(), Misplaced> {
    let mut seen = BTreeSet::new();
    for (at, item) in node.items("pluginConfig")?.iter().enumerate() {
        let path = format!("pluginConfig[{at}]");
        let fields = item.fields(&path, &["name", "args"])?;
        let named = needed(item, &fields, &path, "name")?;
        if let Some(problem) = named.text(&path).ok().and_then(|name| removed(&format!("pluginConfig.{name}"))) {
            return Err(named.wrong(&format!("{path}.name"), problem));
        }
        let name = named.word(&format!("{path}.name"), "plugin with arguments", WITH_ARGS)?;
        if !seen.insert(name) {
            return Err(named.wrong(&format!("{path}.name"), format!("{name} has arguments twice; keep one")));
        }
        let Some((_, args)) = fields.get("args") else { continue };
        let path = format!("{path}.args");
        match name {
            "RequestedToCapacityRatio" => ratio_args(options, args, &path)?,
            "NodeResourcesFit" => options.plugins.strategy = fit_args(args, &path)?,
            "NodeResourcesBalancedAllocation" => {
                if let Some((_, list)) = arguments(args, &path, name, &["resources"])?.get("resources") {
                    options.plugins.balanced = weights(list, &format!("{path}.resources"))?;
                }
            }
            "InterPodAffinity" => affinity_args(options, args, &path)?,
            "VolumeBinding" => volume_args(options, args, &path)?,
            _ => patience_args(options, args, &path)?,
        }
    }
    Ok(())
}

/// The fields of `args`; as in kube-scheduler's files, they may name their type.
fn arguments<'a>(node: &'a YamlNode, path: &str, name: &str, known: &[&'static str]) -> Result<Fields<'a>, Misplaced> {
    let fields = node.fields(path, &[HEAD, known].concat())?;
    if let Some((_, kind)) = fields.get("kind") {
        kind.word(&format!("{path}.kind"), "kind of these arguments", &[&format!("{name}Args")])?;
    }
    Ok(fields)
}

fn ratio_args(options: &mut SchedulerOptions, args: &YamlNode, path: &str) -> Result<(), Misplaced> {
    let fields = arguments(args, path, "RequestedToCapacityRatio", &["shape", "resources"])?;
    if let Some((_, node)) = fields.get("shape") {
        options.ratio_shape = shape(node, &format!("{path}.shape"))?;
    }
    if let Some((_, node)) = fields.get("resources") {
        let weights = weights(node, &format!("{path}.resources"))?;
        options.ratio_weights = weights.iter().map(|(resource, weight)| (resource.name().to_owned(), weight)).collect();
    }
    Ok(())
}

/// The weights of [`MetricWeights`] by their names in the file.
fn job_weights(weights: &mut MetricWeights) -> [(&'static str, &mut u32); 4] {
    let MetricWeights { cpu, memory, gpu, raised } = weights;
    [("cpu", cpu), ("memory", memory), (key::NVIDIA_GPU, gpu), ("raised", raised)]
}

fn read_job_weights(weights: &mut MetricWeights, node: &YamlNode) -> Result<(), Misplaced> {
    let known = job_weights(weights);
    let fields = node.fields(JOB_WEIGHTS, &known.each_ref().map(|(name, _)| *name))?;
    for (name, weight) in known {
        if let Some((_, node)) = fields.get(name) {
            *weight = node.number(&format!("{JOB_WEIGHTS}.{name}"), 1..=100)? as u32;
        }
    }
    Ok(())
}

fn fit_args(args: &YamlNode, path: &str) -> Result<Strategy, Misplaced> {
    let fields = arguments(args, path, "NodeResourcesFit", &["scoringStrategy"])?;
    let Some((_, node)) = fields.get("scoringStrategy") else { return Ok(Strategy::default()) };
    let path = format!("{path}.scoringStrategy");
    let fields = node.fields(&path, &["type", "resources", "requestedToCapacityRatio"])?;
    let types = ["LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"];
    let kind = needed(node, &fields, &path, "type")?.word(&format!("{path}.type"), "scoring strategy", &types)?;
    let weights = match fields.get("resources") {
        None => Weights::cpu_and_memory(),
        Some((_, list)) => weights(list, &format!("{path}.resources"))?,
    };
    if let Some((at, _)) = fields.get("requestedToCapacityRatio").filter(|_| kind != types[2]) {
        let problem = format!("requestedToCapacityRatio has no meaning with type {kind}");
        return Err(Misplaced { at: *at, path, problem });
    }
    match kind {
        "LeastAllocated" => Ok(Strategy::LeastAllocated(weights)),
        "MostAllocated" => Ok(Strategy::MostAllocated(weights)),
        _ => {
            let ratio = needed(node, &fields, &path, "requestedToCapacityRatio")?;
            let path = format!("{path}.requestedToCapacityRatio");
            let inner = ratio.fields(&path, &["shape"])?;
            let points = shape(needed(ratio, &inner, &path, "shape")?, &format!("{path}.shape"))?;
            let weights = weights.iter().map(|(resource, weight)| (resource.name().to_owned(), weight)).collect();
            let config = RatioConfig::new(points, weights).map_err(|error| ratio.wrong(&path, error.to_string()))?;
            Ok(Strategy::RequestedToCapacityRatio(config))
        }
    }
}

fn affinity_args(options: &mut SchedulerOptions, args: &YamlNode, path: &str) -> Result<(), Misplaced> {
    const HARD: &str = "hardPodAffinityWeight";
    const IGNORE: &str = "ignorePreferredTermsOfExistingPods";
    let fields = arguments(args, path, "InterPodAffinity", &[HARD, IGNORE])?;
    let affinity = &mut options.plugins.affinity;
    if let Some((_, node)) = fields.get(HARD) {
        affinity.hard_weight = node.number(&format!("{path}.{HARD}"), 0..=100)?;
    }
    if let Some((_, node)) = fields.get(IGNORE) {
        let word = node.word(&format!("{path}.{IGNORE}"), "switch", &["true", "false"])?;
        affinity.ignore_preferred_of_others = word == "true";
    }
    Ok(())
}

fn volume_args(options: &mut SchedulerOptions, args: &YamlNode, path: &str) -> Result<(), Misplaced> {
    const LIMIT: &str = "bindTimeoutSeconds";
    let fields = arguments(args, path, "VolumeBinding", &[LIMIT])?;
    if let Some((_, node)) = fields.get(LIMIT) {
        let seconds: i64 = node.number(&format!("{path}.{LIMIT}"), 1..=86_400)?;
        options.plugins.volumes.bind_timeout = std::time::Duration::from_secs(seconds.unsigned_abs());
    }
    Ok(())
}

fn patience_args(options: &mut SchedulerOptions, args: &YamlNode, path: &str) -> Result<(), Misplaced> {
    const KEEP: &str = "keepWhole";
    const HALF: &str = "halfLife";
    let fields = arguments(args, path, gpu_patience::NAME, &[KEEP, HALF])?;
    let patience = &mut options.plugins.patience;
    if let Some((_, node)) = fields.get(KEEP) {
        let (path, text) = (format!("{path}.{KEEP}"), node.text(&format!("{path}.{KEEP}"))?);
        let part = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
        let part: f64 =
            part.ok_or_else(|| node.wrong(&path, format!("{text:?} is no number from 0 to 1, such as 0.05")))?;
        patience.keep_whole = (part * 1000.0).round() as u32;
    }
    if let Some((_, node)) = fields.get(HALF) {
        patience.half_life = node.number(&format!("{path}.{HALF}"), 1..=1_000_000)? as u32;
    }
    Ok(())
}

/// Points `{utilization, score}`, ascending.
fn shape(node: &YamlNode, path: &str) -> Result<Vec<(i64, i64)>, Misplaced> {
    let mut points: Vec<(i64, i64)> = Vec::new();
    for (at, item) in node.items(path)?.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let fields = item.fields(&path, &["utilization", "score"])?;
        let number = |key, most| needed(item, &fields, &path, key)?.number(&format!("{path}.{key}"), 0..=most);
        let point = (number("utilization", 100)?, number("score", 10)?);
        if let Some(last) = points.last().filter(|last| last.0 >= point.0) {
            let problem = format!("utilization {} does not come after {}; expected ascending points", point.0, last.0);
            return Err(item.wrong(&path, problem));
        }
        points.push(point);
    }
    if points.is_empty() {
        return Err(node.wrong(path, "expected at least one point, such as {utilization: 0, score: 0}"));
    }
    Ok(points)
}

/// Weights `{name, weight}`; a weight that is not given is 1.
fn weights(node: &YamlNode, path: &str) -> Result<Weights, Misplaced> {
    let mut weights = Vec::new();
    for (at, item) in node.items(path)?.iter().enumerate() {
        let path = format!("{path}[{at}]");
        let fields = item.fields(&path, &["name", "weight"])?;
        let name = needed(item, &fields, &path, "name")?.text(&format!("{path}.name"))?.to_owned();
        let weight = match fields.get("weight") {
            None => 1,
            Some((_, weight)) => weight.number(&format!("{path}.weight"), 1..=100)?,
        };
        weights.push((name, weight));
    }
    if weights.is_empty() {
        return Err(node.wrong(path, "expected at least one resource, such as {name: cpu, weight: 1}"));
    }
    Weights::new(weights).map_err(|error| node.wrong(path, error.to_string()))
}

/// The same part of the file with the present values: [`SECTIONS`] read it back.
pub fn print(options: &SchedulerOptions) -> Vec<(&'static str, Value)> {
    let choice = &options.plugins;
    let resources = |weights: &Weights| -> Vec<Value> {
        weights.iter().map(|(resource, weight)| json!({"name": resource.name(), "weight": weight})).collect()
    };
    let affinity = json!({
        "hardPodAffinityWeight": choice.affinity.hard_weight,
        "ignorePreferredTermsOfExistingPods": choice.affinity.ignore_preferred_of_others,
    });
    let point = |(utilization, score): &(i64, i64)| json!({"utilization": utilization, "score": score});
    let points = |shape: &[(i64, i64)]| -> Vec<Value> { shape.iter().map(point).collect() };
    let ratio_weights = options.ratio_weights.iter().map(|(name, weight)| json!({"name": name, "weight": weight}));
    let ratio = json!({"shape": points(&options.ratio_shape), "resources": ratio_weights.collect::<Vec<_>>()});
    let mut strategy = json!({"type": choice.strategy.name(), "resources": resources(choice.strategy.weights())});
    if let Strategy::RequestedToCapacityRatio(config) = &choice.strategy {
        strategy["requestedToCapacityRatio"] = json!({"shape": points(config.shape())});
    }
    let plugin_config = json!([
        {"name": "RequestedToCapacityRatio", "args": ratio},
        {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}},
        {"name": "NodeResourcesBalancedAllocation", "args": {"resources": resources(&choice.balanced)}},
        {"name": "InterPodAffinity", "args": affinity},
        {"name": "VolumeBinding", "args": {"bindTimeoutSeconds": choice.volumes.bind_timeout.as_secs()}},
        {"name": gpu_patience::NAME, "args": {
            "keepWhole": f64::from(choice.patience.keep_whole) / 1000.0, "halfLife": choice.patience.half_life,
        }},
    ]);
    vec![
        ("apiVersion", API_VERSION.into()),
        ("kind", KIND.into()),
        ("plugins", print_lists(&choice.lists)),
        ("pluginConfig", plugin_config),
        (
            JOB_WEIGHTS,
            job_weights(&mut options.job_weights.clone()).map(|(name, weight)| (name, *weight)).into_iter().collect(),
        ),
    ]
}

fn print_lists(lists: &PluginLists) -> Value {
    let mut points = serde_json::Map::new();
    for (point, key) in Point::ALL {
        let name = |listed: &Listed| match point {
            Point::Score => json!({"name": listed.name, "weight": listed.weight}),
            _ => json!({"name": listed.name}),
        };
        let enabled: Vec<Value> = lists.at(point).iter().map(name).collect();
        if !enabled.is_empty() || PluginLists::default().at(point) != lists.at(point) {
            points.insert(key.to_owned(), json!({"enabled": enabled, "disabled": [{"name": "*"}]}));
        }
    }
    points.into()
}
