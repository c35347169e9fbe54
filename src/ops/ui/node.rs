//! One node in full: what its page shows beside the rows that every page has.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use super::model::Model;
use super::rows::row;
use crate::get::{device_rows, node_rows};
use baton_cluster::agent_lease::LightLease;
use baton_contract::allocation::Entries;
use baton_contract::{AgentStatus, DeviceEntry, key};
use baton_decide::pod::HandoffPod;
use baton_runtime::words;

/// Events that are shown, the newest.
const EVENTS: usize = 50;

/// `{"node":…,"devices":[…],"pods":[…]}`; `None` where there is no such node.
pub fn detail(model: &Model, name: &str) -> Option<Value> {
    let nodes = [name.to_owned()].into();
    let (part, said) = (model.snapshot.part(&nodes, &model.rules.lock_key), model.said(&nodes));
    let node = node_rows(&part, &model.rules, &said).into_iter().next()?;
    let infos = part.devices.get(name).into_iter().flat_map(|device| &device.spec.devices);
    let devices = device_rows(&part, &said).into_iter().zip(infos).map(|(device, info)| {
        let mut shown = row(&device, part.wall);
        shown["socket"] = info.topology.as_ref().map_or(-1, |place| place.socket_id).into();
        shown["memory"] = info.resources.get(key::GPU_MEMORY).map_or(0, |amount| amount.value()).into();
        shown
    });
    let status = part.leases.get(&AgentStatus::lease_name(name)).and_then(LightLease::status);
    let here = part.pods.values().filter(|pod| pod.is_live() && pod.node.as_deref() == Some(name));
    let pods = here.map(|pod| held(pod, status.as_ref()));
    Some(
        json!({"node": row(&node, part.wall), "devices": devices.collect::<Vec<_>>(), "pods": pods.collect::<Vec<_>>()}),
    )
}

/// What a pod holds by its annotation, and by the word of its node's daemon, which compares its ledger with what the kubelet lists. No
/// word: the daemon says nothing.
fn held(pod: &HandoffPod, status: Option<&AgentStatus>) -> Value {
    let promised: Entries = pod.promise().map(|promise| promise.devices).unwrap_or_default();
    let exceptions = status.and_then(|status| status.exceptions.as_ref());
    let differs = exceptions.and_then(|pods| pods.get(&pod.pod.uid));
    let daemon = exceptions.map(|_| entries(differs.unwrap_or(&promised)));
    json!({
        "pod": pod.pod.key.to_string(),
        "annotation": entries(&promised),
        "daemon": daemon,
        "differs": differs.is_some(),
        "unserved": status.is_some_and(|status| status.is_unserved(&pod.pod.uid)),
    })
}

/// By id of the device: percent of its compute, and bytes of its memory, where they are known.
fn entries(devices: &Entries) -> BTreeMap<&str, Value> {
    let entry = |entry: &DeviceEntry| {
        let amount = |name| Some(entry.amount(name)).filter(|amount| *amount > 0);
        let core = amount(key::GPU_CORE).or(amount(key::RDMA));
        json!({"core": core, "ratio": amount(key::GPU_MEMORY_RATIO), "memory": amount(key::GPU_MEMORY)})
    };
    devices.values().flatten().map(|of| (of.id.as_str(), entry(of))).collect()
}

/// Events of a node, newest first; or why they cannot be read.
pub async fn events(client: Client, name: &str) -> Value {
    let selector = format!("involvedObject.kind=Node,involvedObject.name={name}");
    let listed = Api::<Event>::all(client).list(&ListParams::default().fields(&selector)).await;
    let mut events = match listed {
        Ok(listed) => listed.items,
        Err(error) => return json!({"why": words(&error)}),
    };
    let at = |event: &Event| -> Option<Timestamp> {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or(event.event_time.as_ref().map(|time| time.0)).or(event
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0))
    };
    events.sort_by_key(|event| std::cmp::Reverse(at(event)));
    let shown = events.iter().take(EVENTS).map(|event| {
        json!({"at": at(event).map(Timestamp::as_second), "type": event.type_, "reason": event.reason, "message": event.message})
    });
    json!({"items": shown.collect::<Vec<_>>()})
}

/// Without a key every label of nodes and how many values it has; with one its value on each node.
pub fn labels(model: &Model, key: Option<&str>) -> Value {
    let nodes = &model.snapshot.nodes;
    let labels =
        nodes.iter().flat_map(|(name, node)| node.metadata.labels.iter().flatten().map(move |label| (name, label)));
    if let Some(key) = key {
        return labels
            .filter(|(_, (of, _))| *of == key)
            .map(|(name, (_, value))| (name.clone(), json!(value)))
            .collect();
    }
    let mut values = BTreeMap::<&str, BTreeSet<&str>>::new();
    for (_, (key, value)) in labels {
        values.entry(key).or_default().insert(value);
    }
    values.into_iter().map(|(key, values)| (key.to_owned(), json!(values.len()))).collect()
}
