//! A real kubelet's recording as the judge: at every recorded Allocate, the PodResources view of that moment must name the
//! pod and container that the recording shows to have received the devices.

use std::collections::{BTreeMap, BTreeSet};

use super::identify::{Identified, identify};
use super::ledger::{CallState, ContainerSlot, LedgerEntry};
use super::listing::{ListedPod, PodListing};
use super::test_node::TestNode;
use super::testing::{container, pod};
use super::*;
use crate::pod::{ContainerKind, HandoffPod, PodContainer};
use baton_contract::{PodKey, key};
use serde_json::Value;

/// The recorder's names, as ours.
fn name_of(recorded: &str) -> &'static str {
    match recorded {
        "example.com/gpu" | "gpu" => key::NVIDIA_GPU,
        "example.com/nic" | "nic" => key::RDMA,
        other => panic!("unknown resource {other}"),
    }
}

fn recording() -> Vec<Value> {
    let root = std::env::var("BATON_FIXTURES")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures").to_owned());
    let text = std::fs::read_to_string(format!("{root}/kubelet/rpc.jsonl")).expect("the recording");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn pod_of(recorded: &Value, nth: usize) -> HandoffPod {
    let spec = &recorded["spec"];
    let of = |list: &str| spec[list].as_array().cloned().unwrap_or_default();
    let made = |c: &Value, kind| -> PodContainer {
        let limits = c["resources"]["limits"].as_object().cloned().unwrap_or_default();
        let limits: Vec<(&str, i64)> = limits
            .iter()
            .filter(|(name, _)| *name != "example.com/unknown")
            .map(|(name, amount)| (name_of(name), amount.as_str().unwrap().parse().unwrap()))
            .collect();
        // One recorded NIC is one id, as one percent of a NIC is here; only the number of ids counts.
        container(c["name"].as_str().unwrap(), kind, &limits)
    };
    let init = of("initContainers");
    let init = init.iter().map(|c| {
        let sidecar = c["restartPolicy"] == "Always";
        made(c, if sidecar { ContainerKind::Sidecar } else { ContainerKind::Init })
    });
    let apps = of("containers");
    let all = init.chain(apps.iter().map(|c| made(c, ContainerKind::App))).collect();
    let mut pod = pod(recorded["name"].as_str().unwrap(), all);
    pod.pod.uid = baton_contract::PodUid::new(&format!("{}-{nth}", pod.pod.key.name));
    pod
}

fn listing_of(view: &Value) -> PodListing {
    let pods = view.as_object().unwrap().iter().map(|(name, containers)| {
        let (namespace, name) = name.split_once('/').unwrap();
        let containers = containers.as_object().unwrap().iter().map(|(container, resources)| {
            let resources = resources.as_object().unwrap().iter().map(|(resource, ids)| {
                let ids: BTreeSet<Box<str>> =
                    ids.as_array().unwrap().iter().map(|id| id.as_str().unwrap().into()).collect();
                (name_of(resource).into(), ids)
            });
            (container.as_str().into(), resources.collect())
        });
        ListedPod { key: PodKey::new(namespace, name), containers: containers.collect() }
    });
    PodListing { pods: pods.collect(), ..PodListing::default() }
}

#[test]
fn every_recorded_call_names_its_pod_and_container() {
    let lines = recording();
    let mut known: BTreeMap<Box<str>, HandoffPod> = BTreeMap::new();
    let mut ledger = Ledger::default();
    // Pod uid, container and resource in the order of the calls.
    let mut answered: Vec<(String, String, String)> = Vec::new();
    let mut preferences = 0;
    for (nth, line) in lines.iter().enumerate() {
        if line["scenario"].is_string() {
            // Each scenario starts with an empty node, but 11b, which goes on.
            if !line["scenario"].as_str().unwrap().starts_with("11b") {
                known.clear();
                ledger = Ledger::default();
            }
            continue;
        }
        if line["pod"].is_object() {
            let pod = pod_of(&line["pod"], nth);
            known.insert(pod.pod.key.name.clone(), pod);
            continue;
        }
        let rpc = line["rpc"].as_str().unwrap_or_default();
        if !matches!(rpc, "Allocate" | "GetPreferredAllocation") || line["podresources"].is_null() {
            continue;
        }
        let ids: Vec<String> = match rpc {
            "Allocate" => line["ids"][0].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect(),
            _ => Vec::new(),
        };
        let count = line["size"].as_i64().unwrap_or(ids.len() as i64);
        let resource = name_of(line["plugin"].as_str().unwrap());
        let mut node = TestNode::new(&known.values().collect::<Vec<_>>());
        node.resources = PodResources::Listed(listing_of(&line["podresources"]));
        node.ledger = ledger.clone();
        let call = AllocateCall { resource, count, ids: &ids };
        let context = node.context();
        let found = identify(&context, &call);
        let Identified::Caller(caller) = &found else { panic!("line {}: {line}: {found:?}", nth + 1) };
        let name = (caller.pod.pod.key.name.to_string(), caller.container.name.to_string(), resource.to_owned());
        if rpc == "GetPreferredAllocation" {
            preferences += 1;
            continue;
        }
        let slot = ContainerSlot::of(caller.pod, &caller.container.name);
        let own = ids.iter().map(|id| id.as_str().into()).collect();
        let (pod, container) = (&caller.pod.pod, &caller.container.name);
        ledger.record(LedgerEntry::new(pod, container, resource, slot, own, vec![], CallState::Answered));
        if line["answer"] == "ok" && !slot.init {
            is_confirmed_by_the_next_view(&lines[nth + 1..], &name, &ids);
        }
        answered.push(name);
    }
    if std::env::var_os("BATON_FIXTURES").is_none() {
        let of_b = answered.iter().filter(|(pod, ..)| pod == "b").map(|(_, container, _)| &**container);
        let expected = ["init", "init", "side", "m1", "m1", "m2", "m2", "main"];
        assert_eq!(of_b.collect::<Vec<_>>(), expected, "scenarios 2 and 3");
        assert_eq!(answered.len(), 27, "{answered:?}");
    }
    assert!(!answered.is_empty());
    println!("{} Allocate and {preferences} GetPreferredAllocation calls of the recording identified", answered.len());
}

/// The next view of the same scenario that lists the pod shows the ids at the container that was named.
fn is_confirmed_by_the_next_view(
    rest: &[Value],
    (pod, container, resource): &(String, String, String),
    ids: &[String],
) {
    let until_next = rest.iter().take_while(|line| !line["scenario"].is_string());
    let mut views =
        until_next.filter(|line| line["podresources"].is_object()).map(|line| listing_of(&line["podresources"]));
    let Some(view) = views.find(|view| view.lists(&PodKey::new("default", pod))) else { return };
    let key = PodKey::new("default", pod);
    let shown: BTreeSet<&str> = view.ids(&key, container, resource).collect();
    assert_eq!(shown, ids.iter().map(String::as_str).collect(), "{pod} {container} {resource}");
}
