//! A recorded cluster, and a scheduler that has seen it.

use std::path::PathBuf;

use baton::cluster::node::LightNode;
use baton::cluster::volume::{claim_facts, class_facts, volume_facts};
use baton::decide::core::rules::plugins::default_plugins;
use baton::decide::scheduler::{Moment, Scheduler};

use crate::prelude::*;

/// The recorded files whose names begin so, in order. `BATON_FIXTURES` names another directory of the same layout.
pub fn files(prefix: &str) -> Vec<PathBuf> {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folder = std::env::var_os("BATON_FIXTURES").map_or_else(own, PathBuf::from).join("kube-scheduler");
    let entries = std::fs::read_dir(&folder).expect("the recorded clusters").map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(prefix);
    let mut files: Vec<PathBuf> = entries.filter(named).collect();
    files.sort();
    files
}

pub fn read(file: &PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

pub fn moment() -> Moment {
    Moment { mono: Duration::from_secs(1), wall: Timestamp::UNIX_EPOCH }
}

/// A recorded object may lack what the API server adds: here a uid.
pub fn pod(value: &Value, uid: &str) -> LightPod {
    let mut value = value.clone();
    if value["metadata"]["uid"].is_null() {
        value["metadata"]["uid"] = json!(uid);
    }
    serde_json::from_value(value).expect("a recorded pod")
}

pub fn list(cluster: &Value, key: &str) -> Vec<Value> {
    cluster[key].as_array().cloned().unwrap_or_default()
}

pub fn scheduler_of(cluster: &Value, set: &DefaultSet) -> Scheduler {
    let config = Config { scheduler_names: ["default-scheduler".into()].into(), ..Config::default() };
    let mut scheduler = Scheduler::new(config, default_plugins(set).unwrap());
    let mut events = Vec::new();
    for node in list(cluster, "nodes") {
        let node: LightNode = serde_json::from_value(node).expect("a recorded node");
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
        scheduler.event(event, moment());
    }
    scheduler
}
