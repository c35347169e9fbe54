//! How feasible nodes are scored, plugin by plugin: kube-scheduler's own figures, 0 to 100, before weights.

use baton::decide::core::rules::plugins::{Point, names_at};
use baton::decide::explain::RatedNode;
use baton::ops::config::{arguments, load};
use baton::ops::settings::{SCHEDULER_SECTIONS, scheduler};
use clap::Command;

use super::recorded::{files, list, moment, pod, read, scheduler_of};
use crate::prelude::*;

/// Figures by plugin: node to score.
type Scores = BTreeMap<String, BTreeMap<String, i64>>;

/// The set that a recorded profile means, by way of the configuration file: the arguments are kube-scheduler's, as they stood.
fn set_of(args: &Value, plugins: &[&str]) -> DefaultSet {
    let enabled: Vec<Value> = plugins.iter().map(|name| json!({"name": name, "weight": 1})).collect();
    let config: Vec<Value> = args
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| plugins.contains(&name.as_str()))
        .map(|(name, args)| json!({"name": name, "args": args}))
        .collect();
    let text = json!({
        "apiVersion": "baton.io/v1alpha1",
        "kind": "SchedulerConfiguration",
        "plugins": {"score": {"disabled": [{"name": "*"}], "enabled": enabled}},
        "pluginConfig": config,
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("baton.yaml");
    std::fs::write(&path, text.to_string()).unwrap();
    let command = arguments(Command::new("t").no_binary_name(true), &scheduler());
    let matches = command.try_get_matches_from(["--config-file", &path.display().to_string()]).unwrap();
    let loaded = load(&scheduler(), SCHEDULER_SECTIONS, &matches, &|_| None, "baton scheduler");
    let options = loaded.unwrap_or_else(|error| panic!("{error}\n{text}")).options.options;
    DefaultSet { without_agent: NodesWithoutAgent::Plain, ..options.plugin_set().unwrap() }
}

fn by_plugin(nodes: &[RatedNode]) -> Scores {
    let mut scores = Scores::new();
    for node in nodes {
        for rating in &node.ratings {
            scores.entry(rating.rule.clone()).or_default().insert(node.node.clone(), rating.score);
        }
    }
    scores
}

/// A plugin that kube-scheduler did not run for a pod counts as 0 everywhere.
fn scores_of(case: &Value, profile: &str, plugins: &[&str]) -> Scores {
    let nodes: Vec<String> = serde_json::from_value(case["nodes"].clone()).expect("the nodes that fit");
    let scores = |name: &str| match &case["scores"][profile][name] {
        Value::Null => vec![0; nodes.len()],
        recorded => serde_json::from_value(recorded.clone()).expect("recorded scores"),
    };
    plugins.iter().map(|name| ((*name).to_owned(), nodes.iter().cloned().zip(scores(name)).collect())).collect()
}

#[test]
fn the_ratings_of_every_recorded_case_are_the_scores_of_kube_scheduler() {
    let files = files("scores-");
    assert!(!files.is_empty(), "no scores-*.json");
    let (mut counts, mut wrong) = (BTreeMap::<String, (usize, usize)>::new(), Vec::new());
    for file in &files {
        let cluster = read(file);
        for (profile, recorded) in cluster["profiles"].as_object().unwrap() {
            let plugins: Vec<String> = serde_json::from_value(recorded["plugins"].clone()).unwrap();
            let ours: Vec<&str> = names_at(Point::Score).filter(|name| plugins.iter().any(|own| own == name)).collect();
            let scheduler = scheduler_of(&cluster, &set_of(&recorded["args"], &ours));
            for (at, case) in list(&cluster, "cases").iter().enumerate() {
                let facts = pod(&case["pod"], &format!("case-{at}")).facts();
                let name = facts.handoff.pod.key.to_string();
                let expected = scores_of(case, profile, &ours);
                let found = by_plugin(&scheduler.ratings(facts, moment()));
                for (plugin, expected) in expected {
                    // kube-scheduler rates the containers' requests, though the pod takes what it asks for as a whole.
                    if plugin == "NodeResourcesFit" && !case["pod"]["spec"]["resources"].is_null() {
                        continue;
                    }
                    let found = found.get(&plugin).cloned().unwrap_or_default();
                    let equal = expected.iter().filter(|(node, score)| found.get(*node) == Some(score)).count();
                    let count = counts.entry(plugin.clone()).or_default();
                    (count.0, count.1) = (count.0 + equal, count.1 + expected.len());
                    if found != expected {
                        let file = file.file_name().unwrap().to_string_lossy();
                        let what = format!("{file} {profile} {name} {plugin}");
                        wrong.push(format!("{what}: expected {expected:?}, found {found:?}"));
                    }
                }
            }
        }
    }
    for (plugin, (equal, all)) in &counts {
        println!("{plugin:>32}: {equal} of {all} equal");
    }
    let shown = wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} differ\n{shown}", wrong.len());
}
