//! Rows as pages get them: those of `baton get` without what is empty, and with points in time instead of ages.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::view::{DeviceRow, NodeRow, ShownHealth, Snapshot, queue_kind};
use baton_contract::{PodKey, key, request};
use baton_decide::explain::{GangView, QueueItem};
use baton_decide::pod::HandoffPod;
use baton_decide::world::DeviceState;

/// The row as JSON: `null` and empty fields are left out, and `queuedSeconds` becomes `queuedAt`, in seconds since 1970. What lies in the
/// future (`next…`) is that many seconds ahead.
pub fn row(of: &impl Serialize, wall: Timestamp) -> Value {
    timed(serde_json::to_value(of).unwrap_or_default(), wall.as_second()).unwrap_or_default()
}

fn timed(value: Value, now: i64) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| match (name.strip_suffix("Seconds"), value.as_i64()) {
                (Some(name), Some(seconds)) => {
                    let at = if name.starts_with("next") { now + seconds } else { now - seconds };
                    Some((format!("{name}At"), at.into()))
                }
                _ => Some((name, timed(value, now)?)),
            };
            Some(Value::Object(fields.into_iter().filter_map(field).collect()))
        }
        Value::Array(items) => Some(Value::Array(items.into_iter().filter_map(|item| timed(item, now)).collect())),
        other => Some(other),
    }
}

/// A node with its devices, as small as it gets: `{"status":"Ready","daemon":"fresh","open":true,"version":"0.1.0","model":"H100",
/// "devices":{"gpu-0":{"p":0,"h":{"ml/train":100}}}}`. `open` says whether new pods with devices can come now. Of a device `p` numbers the
/// PCIe switches of the node, `h` has the percent of each holder, `r` those for which it is reserved; `s` is its state where it is not
/// free, `why` and `sinceAt` why it is out of service, or not free, and since when, `drain` that its pods are to be freed of it; `m` is a
/// model that differs from that of the node, and `g` the profile of a MIG device. `created` says of each holder when.
pub fn node(node: &NodeRow, devices: &[DeviceRow], wall: Timestamp) -> Value {
    let gpu_model = |device: &DeviceRow| device.model.clone().filter(|_| !device.is_nic());
    let model = devices.iter().find_map(gpu_model);
    let mut switches: Vec<Option<&str>> = Vec::new();
    let (mut cells, mut created) = (Map::new(), Map::new());
    for device in devices {
        let pcie = device.pcie.as_deref();
        let switch = switches.iter().position(|known| *known == pcie).unwrap_or(switches.len());
        if switch == switches.len() {
            switches.push(pcie);
        }
        let mut cell = json!({ "p": switch });
        if !device.holders.is_empty() {
            cell["h"] = device.holders.iter().map(|holder| (holder.pod.to_string(), json!(holder.percent))).collect();
        }
        let known = device
            .holders
            .iter()
            .filter_map(|holder| Some((holder.pod.to_string(), json!(holder.created?.as_second()))));
        created.extend(known);
        if !device.reserved_for.is_empty() {
            cell["r"] = json!(device.reserved_for);
        }
        if device.state != DeviceState::Free {
            cell["s"] = json!(device.state);
        }
        device.reason.iter().for_each(|reason| cell["why"] = json!(reason));
        let since = device.since.filter(|_| device.health == ShownHealth::Unhealthy);
        since.iter().for_each(|since| cell["sinceAt"] = json!(since.as_second()));
        if device.is_to_drain() {
            cell["drain"] = json!(true);
        }
        gpu_model(device).filter(|own| model.as_ref() != Some(own)).into_iter().for_each(|own| cell["m"] = json!(own));
        device.label(key::MIG_PROFILE).into_iter().for_each(|profile| cell["g"] = json!(profile));
        cells.insert(device.device.clone(), cell);
    }
    let agent = node.agent.as_ref();
    let shown = json!({
        "status": node.status,
        "daemon": node.daemon.word(),
        "open": node.takes_now(),
        "fault": node.daemon_fault,
        "suspect": node.suspect,
        "version": agent.and_then(|agent| agent.version.as_ref()),
        "closed": node.why_none(),
        "model": model,
        "created": (!created.is_empty()).then_some(created),
        "devices": cells,
    });
    row(&shown, wall)
}

/// The queue by kind and name, each item with its place in the order and what it wants in words.
pub fn queue(items: &[QueueItem], gangs: &[GangView], snapshot: &Snapshot) -> BTreeMap<String, Value> {
    // The gangs of a group all name the first of it.
    let mut groups = BTreeMap::<&str, Vec<&str>>::new();
    for gang in gangs {
        let waiting = gang.pending_children.iter().chain(&gang.waiting_for_bind_children).map(String::as_str);
        gang.gang_group.first().into_iter().for_each(|first| groups.entry(first).or_default().extend(waiting.clone()));
    }
    let of_group = |name: &str| name.split([',', ' ']).next().and_then(|first| groups.get(first)).cloned();
    // The jobs have rows of their own.
    let numbered = items.iter().enumerate().filter(|(_, item)| item.kind != "jobs").map(|(place, item)| {
        let mut shown = row(item, snapshot.wall);
        (shown["place"], shown["kind"]) = (place.into(), queue_kind(item).into());
        let pods =
            if item.kind == "group" { of_group(&item.name).unwrap_or_default() } else { vec![item.name.as_str()] };
        let mut wanted = BTreeMap::<Box<str>, i64>::new();
        for (name, amount) in pods.into_iter().filter_map(|name| pod(snapshot, name)).flat_map(HandoffPod::wanted) {
            *wanted.entry(name).or_default() += amount;
        }
        shown["wants"] = request::words(wanted.iter().map(|(name, amount)| (&**name, *amount))).into();
        (format!("{} {}", item.kind, item.name), shown)
    });
    numbered.collect()
}

/// A gang by its name, with its members in words.
pub fn gang(gang: &GangView, snapshot: &Snapshot) -> (String, Value) {
    let mut shown = row(gang, snapshot.wall);
    shown["members"] = gang.members().into();
    (format!("{}/{}", gang.namespace, gang.name), shown)
}

/// The pod of that `namespace/name`.
fn pod<'a>(snapshot: &'a Snapshot, name: &str) -> Option<&'a HandoffPod> {
    let (space, name) = name.split_once('/')?;
    snapshot.pods.get(&PodKey::new(space, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::{cluster, unlocked};
    use crate::view::{NodesView, Rules};
    use baton_decide::explain::QueueReport;

    #[test]
    fn a_node_says_who_holds_which_device_and_nothing_about_free_ones() {
        let cluster = unlocked();
        let view = NodesView::of(&cluster, &Rules::default(), &QueueReport::default());
        let of = |name: &str| {
            let row = view.nodes.iter().find(|row| row.name == name).unwrap();
            node(row, view.devices_of(name), cluster.wall)
        };
        let expected = json!({"gpu-0": {"p": 0, "h": {"ml/train": 100}, "s": "held"}, "gpu-1": {"p": 0}});
        assert_eq!((of("node-a")["devices"].clone(), of("node-a")["daemon"].clone()), (expected, json!("fresh")));
        assert_eq!(
            of("node-b")["devices"]["gpu-0"],
            json!({"p": 0, "s": "unhealthy", "why": "not healthy; the Device object gives no reason, `baton doctor` on the node may"})
        );
        assert_eq!(of("node-c"), json!({"status": "Unknown", "daemon": "none", "open": false, "devices": {}}));
        assert_eq!([of("node-a")["open"].clone(), of("node-b")["open"].clone()], [json!(true), json!(false)]);
    }

    #[test]
    fn the_queue_says_in_words_what_a_pod_and_a_group_want() {
        let cluster = cluster();
        let items: Vec<QueueItem> = [("pod", "ml/train"), ("pod", "ml/unknown"), ("group", "ml/g, ml/h")]
            .iter()
            .map(|(kind, name)| {
                serde_json::from_value(
                    json!({"kind": kind, "name": name, "priority": 0, "state": "parked", "attempts": 1,
                "queuedSeconds": 5}),
                )
                .unwrap()
            })
            .collect();
        let gang: GangView = serde_json::from_value(json!({"name": "h", "namespace": "ml", "minRequiredNumber": 2,
            "totalChildrenNum": 2, "mode": "Strict", "matchPolicy": "once-satisfied", "waitTime": "1m0s",
            "gangGroup": ["ml/g", "ml/h"], "children": ["ml/train"], "pendingChildren": ["ml/train"],
            "waitingForBindChildren": [], "boundChildren": ["ml/train", "ml/unknown"], "scheduleCycle": 1,
            "scheduleCycleValid": true, "childrenScheduleRoundMap": {}, "resourceSatisfied": false, "attempts": 1,
            "counts": {"bound": 1, "running": 1, "timedOut": 1, "succeeded": 2}, "notCreated": 1}))
        .unwrap();
        let queue = queue(&items, std::slice::from_ref(&gang), &cluster);
        let wants: Vec<&Value> = queue.values().map(|item| &item["wants"]).collect();
        assert_eq!(wants, ["1 GPU", "1 GPU", ""], "by kind and name: the group first");
        let kinds: Vec<&Value> = queue.values().map(|item| &item["kind"]).collect();
        assert_eq!(kinds, ["gang", "pod", "pod"]);
        let members = "2 bound, 1 started, 1 marked, 2 succeeded, 1 not created";
        assert_eq!(super::gang(&gang, &cluster).1["members"], members);
        assert_eq!(crate::view::Row::cells(&gang)[3], members, "the table prints the same");
    }

    #[test]
    fn ages_become_points_in_time_and_nothing_is_null() {
        let now: Timestamp = "2026-11-21T02:36:00Z".parse().unwrap();
        let shown = row(&json!({"queuedSeconds": 60, "nextTrySeconds": 5, "node": null, "rules": ["A"]}), now);
        let at = now.as_second();
        assert_eq!(shown, json!({"queuedAt": at - 60, "nextTryAt": at + 5, "rules": ["A"]}));
    }
}
