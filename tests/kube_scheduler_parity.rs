//! The feasible nodes of every recorded case equal those that a real kube-scheduler found with its default filters.
//!
//! `BATON_FIXTURES` names another directory of the same layout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use baton::cluster::feed_node::FeedNode;
use baton::cluster::feed_pod::FeedPod;
use baton::cluster::feed_volume::{claim_facts, class_facts, volume_facts};
use baton::decide::cycle::{Engine, EngineConfig, Moment};
use baton::decide::plugins::{DefaultSet, NodesWithoutAgent, default_plugins};
use baton::decide::world::WorldEvent;
use jiff::Timestamp;
use serde_json::{Value, json};

fn fixtures() -> PathBuf {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    std::env::var_os("BATON_FIXTURES").map_or_else(own, PathBuf::from).join("kube-scheduler")
}

fn moment() -> Moment {
    Moment { mono: Duration::from_secs(1), wall: Timestamp::UNIX_EPOCH }
}

/// A recorded object may lack what the API server adds: here a uid.
fn pod(value: &Value, uid: &str) -> FeedPod {
    let mut value = value.clone();
    if value["metadata"]["uid"].is_null() {
        value["metadata"]["uid"] = json!(uid);
    }
    serde_json::from_value(value).expect("a recorded pod")
}

fn list(cluster: &Value, key: &str) -> Vec<Value> {
    cluster[key].as_array().cloned().unwrap_or_default()
}

fn world_of(cluster: &Value) -> Engine {
    let set = DefaultSet { without_agent: NodesWithoutAgent::Plain, ..DefaultSet::default() };
    let config = EngineConfig { scheduler_names: ["default-scheduler".into()].into(), ..EngineConfig::default() };
    let mut engine = Engine::new(config, default_plugins(&set).unwrap());
    let mut events = Vec::new();
    for node in list(cluster, "nodes") {
        let node: FeedNode = serde_json::from_value(node).expect("a recorded node");
        events.push(WorldEvent::Node(node.facts("unused/lock")));
    }
    for namespace in list(cluster, "namespaces") {
        let labels = serde_json::from_value(namespace["labels"].clone()).unwrap_or_default();
        events.push(WorldEvent::Namespace(namespace["name"].as_str().unwrap().into(), labels));
    }
    for volume in list(cluster, "persistentVolumes") {
        let volume = serde_json::from_value(volume).expect("a recorded volume");
        let facts = volume_facts(&volume);
        events.push(WorldEvent::Volume(volume.metadata.name.unwrap().into(), facts));
    }
    for claim in list(cluster, "persistentVolumeClaims") {
        let (key, facts) = claim_facts(&serde_json::from_value(claim).expect("a recorded claim"));
        events.push(WorldEvent::Claim(key, facts));
    }
    for class in list(cluster, "storageClasses") {
        let class = serde_json::from_value(class).expect("a recorded storage class");
        let facts = class_facts(&class);
        events.push(WorldEvent::Class(class.metadata.name.unwrap().into(), facts));
    }
    for (at, bound) in list(cluster, "pods").iter().enumerate() {
        events.push(WorldEvent::Pod(Box::new(pod(bound, &format!("bound-{at}")).facts())));
    }
    for event in events {
        engine.event(event, moment());
    }
    engine
}

#[test]
fn the_feasible_nodes_of_every_recorded_case_are_those_of_kube_scheduler() {
    let mut files: Vec<PathBuf> = std::fs::read_dir(fixtures())
        .expect("the recorded clusters")
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("cluster-"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no cluster-*.json in {}", fixtures().display());
    let (mut by_rule, mut wrong, mut cases) = (BTreeMap::<String, (usize, usize)>::new(), Vec::new(), 0);
    for file in &files {
        let cluster: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        for (at, case) in list(&cluster, "cases").iter().enumerate() {
            cases += 1;
            let expected: BTreeSet<String> =
                case["feasible"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
            let mut engine = world_of(&cluster);
            let facts = pod(&case["pod"], &format!("case-{at}")).facts();
            let key = facts.handoff.pod.key.clone();
            engine.event(WorldEvent::Pod(Box::new(facts)), moment());
            let explained = engine.explain(&key, moment()).unwrap();
            let found: BTreeSet<String> =
                explained.verdict.nodes.iter().filter(|node| node.fits).map(|node| node.node.clone()).collect();
            let rules: BTreeSet<&str> =
                case["rules"].as_array().unwrap().iter().map(|rule| rule.as_str().unwrap()).collect();
            for rule in rules {
                let count = by_rule.entry(rule.to_owned()).or_default();
                count.0 += usize::from(found == expected);
                count.1 += 1;
            }
            if found != expected {
                wrong.push(format!(
                    "{} case {at} {key}: expected {expected:?}, found {found:?}\n  rules {}\n  theirs: {}\n  ours: {}",
                    file.file_name().unwrap().to_string_lossy(),
                    case["rules"],
                    case["message"],
                    explained.verdict.message
                ));
            }
        }
    }
    for (rule, (equal, all)) in &by_rule {
        println!("{rule:>14}: {equal} of {all} equal");
    }
    println!("feasible sets: {} of {cases} equal in {} clusters", cases - wrong.len(), files.len());
    assert!(wrong.is_empty(), "{}", wrong.iter().take(12).cloned().collect::<Vec<_>>().join("\n"));
}
