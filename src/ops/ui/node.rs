//! One node in full: what its page shows beside the rows that every page has.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::Client;
use kube::api::{Api, ListParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::ask::AgentRecords;
use super::model::Model;
use super::rows::row;
use crate::view::NodesView;
use baton_agent::node_handoff::{LedgerLine, ListedLine};
use baton_cluster::agent_lease::LightLease;
use baton_contract::allocation::Entries;
use baton_contract::{AgentStatus, DeviceEntry, key};
use baton_decide::pod::HandoffPod;
use baton_runtime::words;

/// Events that are shown, the newest.
const EVENTS: usize = 50;

/// `{"node":…,"devices":[…],"pods":[…],"records":…}`; `None` where there is no such node.
pub fn detail(model: &Model, name: &str, records: &AgentRecords) -> Option<Value> {
    let nodes = [name.to_owned()].into();
    let (part, said) = (model.snapshot.part(&nodes, &model.rules.lock_key), model.said(&nodes));
    let NodesView { nodes, devices } = NodesView::of(&part, &model.rules, &said);
    let node = nodes.into_iter().next()?;
    let infos: Vec<_> = part.devices.get(name).into_iter().flat_map(|device| &device.spec.devices).collect();
    let devices = devices.into_iter().zip(&infos).map(|(device, info)| {
        let mut shown = row(&device, part.wall);
        shown["socket"] = info.topology.as_ref().map_or(-1, |place| place.socket_id).into();
        shown["memory"] = info.resources.get(key::GPU_MEMORY).map_or(0, |amount| amount.value()).into();
        shown
    });
    let devices: Vec<Value> = devices.collect();
    let status = part.leases.get(&AgentStatus::lease_name(name)).and_then(LightLease::status);
    let here = part.pods.values().filter(|pod| pod.is_live() && pod.node.as_deref() == Some(name));
    let known = infos.iter().map(|info| info.id.as_str()).collect();
    Some(json!({
        "node": row(&node, part.wall), "devices": devices,
        "pods": pods(&here.collect::<Vec<_>>(), status.as_ref(), records, &known),
        "records": {"ledger": records.ledger.as_ref().err(), "kubelet": records.listed.as_ref().err()},
    }))
}

/// How much of a device: percent of its compute and memory, and bytes of memory, where they are known.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Amount {
    core: i64,
    ratio: i64,
    memory: i64,
}

impl Amount {
    fn of(entry: &DeviceEntry) -> Self {
        let amount = |name| entry.amount(name);
        let core = amount(key::GPU_CORE).max(amount(key::RDMA));
        Self { core, ratio: amount(key::GPU_MEMORY_RATIO), memory: amount(key::GPU_MEMORY) }
    }

    fn with(self, other: Self, of: impl Fn(i64, i64) -> i64) -> Self {
        Self {
            core: of(self.core, other.core),
            ratio: of(self.ratio, other.ratio),
            memory: of(self.memory, other.memory),
        }
    }

    /// The same as far as both say it. Bytes are rounded from percent, and the reverse.
    fn is(self, other: Self) -> bool {
        let same = |a: i64, b: i64| a == 0 || b == 0 || a.abs_diff(b) <= a.unsigned_abs() / 100;
        same(self.core, other.core) && same(self.ratio, other.ratio) && same(self.memory, other.memory)
    }
}

type AmountByResource<'a> = BTreeMap<&'a str, Amount>;

fn promised(devices: &Entries) -> AmountByResource<'_> {
    devices.values().flatten().map(|entry| (entry.id.as_str(), Amount::of(entry))).collect()
}

/// What the ledger has for one pod. Names of one container are about the same part of a device; containers that run beside each other
/// add up, and plain init containers do not run beside them.
fn served<'a>(lines: &[&'a LedgerLine]) -> AmountByResource<'a> {
    let mut each: BTreeMap<(bool, &str, &str), Amount> = BTreeMap::new();
    for line in lines {
        let bare = line.served.values().flatten().map(|id| (id.as_str(), Amount::default()));
        for (id, amount) in bare.chain(line.devices.iter().map(|entry| (entry.id.as_str(), Amount::of(entry)))) {
            let known = each.entry((line.init, &*line.container, id)).or_default();
            *known = known.with(amount, i64::max);
        }
    }
    let mut all = AmountByResource::new();
    for ((init, _, id), amount) in each {
        let known = all.entry(id).or_default();
        *known = known.with(amount, if init { i64::max } else { |a, b| a + b });
    }
    all
}

/// Devices behind the kubelet's ids, and whether the whole device is meant.
fn named(line: &ListedLine) -> impl Iterator<Item = (&str, bool)> {
    line.ids.iter().map(|id| id.split_once("::").map_or((&**id, true), |(device, _)| (device, false)))
}

/// The annotation, the kubelet and the ledger about one pod, a row for each device.
fn rows(
    annotation: &AmountByResource<'_>,
    ledger: Option<(&AmountByResource<'_>, &[&LedgerLine])>,
    listed: Option<&[&ListedLine]>,
    known: &BTreeSet<&str>,
) -> Vec<Value> {
    let lines = ledger.map_or(&[][..], |(_, lines)| lines);
    let own =
        |line: &ListedLine| lines.iter().find(|of| of.container == line.container && of.resource == line.resource);
    // Names that only accompany the one that delivers may name any device.
    let delivers = |line: &&&ListedLine| own(line).is_none_or(|own| own.served.values().any(|ids| !ids.is_empty()));
    let mut kubelet: BTreeMap<&str, BTreeMap<&str, (usize, bool)>> = BTreeMap::new();
    for line in listed.unwrap_or_default().iter().filter(delivers) {
        for (device, whole) in named(line).filter(|(device, _)| known.contains(device)) {
            let counted = kubelet.entry(device).or_default().entry(&line.resource).or_insert((0, whole));
            counted.0 += 1;
        }
    }
    // The kubelet need not list a plain init container, and names fewer devices than were served where one id stands for all.
    let excused = |device: &str| {
        let given: Vec<_> =
            lines.iter().filter(|line| line.served.values().flatten().any(|id| id.as_str() == device)).collect();
        !given.is_empty()
            && given.iter().all(|line| {
                let same = |of: &&&ListedLine| of.container == line.container && of.resource == line.resource;
                let ids: Vec<_> = listed.unwrap_or_default().iter().filter(same).flat_map(|of| named(of)).collect();
                let has = |device: &str| line.served.values().flatten().any(|id| id.as_str() == device);
                let fewer = !ids.is_empty() && ids.len() < line.served.values().map(Vec::len).sum();
                line.init || (fewer && ids.iter().all(|(device, _)| has(device)))
            })
    };
    let names = annotation.keys().chain(kubelet.keys());
    let names: BTreeSet<&str> = names.chain(ledger.iter().flat_map(|(amounts, _)| amounts.keys())).copied().collect();
    let of_device = |id: &str| {
        let (said, listed_here) = (annotation.get(id), kubelet.get(id));
        let given = ledger.map(|(amounts, _)| amounts.get(id));
        // A pod that is not served yet is in no record of its node.
        let waits = ledger.is_some_and(|(amounts, _)| amounts.is_empty()) && kubelet.is_empty();
        let by_ledger = given.is_some_and(|given| match (said, given) {
            (Some(said), Some(given)) => !said.is(*given),
            (said, given) => said.is_some() != given.is_some(),
        });
        let by_kubelet = listed.is_some()
            && match given {
                Some(given) => given.is_some() != listed_here.is_some() && !excused(id),
                None => said.is_none(),
            };
        let words = |(resource, (count, whole)): (&&str, &(usize, bool))| {
            if *whole { (*resource).to_owned() } else { format!("{count} × {resource}") }
        };
        let words: Option<Vec<String>> = listed_here.map(|all| all.iter().map(words).collect());
        let differs = !waits && (by_ledger || by_kubelet);
        json!({"id": id, "annotation": said, "kubelet": words, "ledger": given.flatten(), "differs": differs})
    };
    names.into_iter().map(of_device).collect()
}

/// What each pod holds by its annotation, by the kubelet and by the ledger. Where the ledger cannot be read, the daemon's Lease says where
/// it differs from the annotation.
fn pods(
    here: &[&HandoffPod],
    status: Option<&AgentStatus>,
    records: &AgentRecords,
    known: &BTreeSet<&str>,
) -> Vec<Value> {
    let (ledger, listed) = (records.ledger.as_deref().ok(), records.listed.as_deref().ok());
    let of_uid =
        |uid: &str| -> Vec<&LedgerLine> { ledger.into_iter().flatten().filter(|line| &*line.uid == uid).collect() };
    let of_name = |space: &str, name: &str| -> Option<Vec<&ListedLine>> {
        let own = |line: &&ListedLine| &*line.namespace == space && &*line.pod == name;
        listed.map(|lines| lines.iter().filter(own).collect())
    };
    let mut shown: Vec<Value> = Vec::new();
    for pod in here {
        let promise = pod.promise().map(|promise| promise.devices).unwrap_or_default();
        let (said, uid) = (promised(&promise), &pod.pod.uid);
        let lines = of_uid(uid.as_str());
        let exceptions = status.and_then(|status| status.exceptions.as_ref());
        let given = match (ledger, exceptions) {
            (Some(_), _) => Some(served(&lines)),
            (None, Some(all)) => Some(promised(all.get(uid).unwrap_or(&promise))),
            (None, None) => None,
        };
        let own = of_name(&pod.pod.key.namespace, &pod.pod.key.name);
        let rows = rows(&said, given.as_ref().map(|given| (given, &*lines)), own.as_deref(), known);
        let word = match &given {
            _ if status.is_some_and(|status| status.is_unserved(uid)) => Some("never served"),
            Some(given) if given.is_empty() && !said.is_empty() => Some("not served yet"),
            _ => None,
        };
        shown.push(json!({"pod": pod.pod.key.to_string(), "rows": rows, "word": word}));
    }
    // Those that the API server does not know.
    let strange =
        |space: &str, name: &str| here.iter().all(|pod| (&*pod.pod.key.namespace, &*pod.pod.key.name) != (space, name));
    let names = ledger.into_iter().flatten().map(|line| (&*line.namespace, &*line.pod));
    let names = names.chain(listed.into_iter().flatten().map(|line| (&*line.namespace, &*line.pod)));
    for (space, name) in names.filter(|(space, name)| strange(space, name)).collect::<BTreeSet<_>>() {
        let own = |line: &&LedgerLine| (&*line.namespace, &*line.pod) == (space, name);
        let lines: Vec<&LedgerLine> = ledger.into_iter().flatten().filter(own).collect();
        let given = ledger.map(|_| served(&lines));
        let given = given.as_ref().map(|given| (given, &*lines));
        let rows = rows(&AmountByResource::new(), given, of_name(space, name).as_deref(), known);
        // Other device plugins serve pods, too.
        if !rows.is_empty() {
            let word = "the API server has no such pod here";
            shown.push(json!({"pod": format!("{space}/{name}"), "rows": rows, "word": word}));
        }
    }
    shown.retain(|pod| pod["rows"].as_array().is_some_and(|rows| !rows.is_empty()));
    shown
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
        let (last, made) = (event.last_timestamp.as_ref(), event.metadata.creation_timestamp.as_ref());
        let last = last.map(|time| time.0).or(event.event_time.as_ref().map(|time| time.0));
        last.or(made.map(|time| time.0))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::cluster;

    const NONE: &str = "no answer";

    fn line(container: &str, resource: &str, ids: &[&str], devices: &[(&str, &str)]) -> LedgerLine {
        let entry = |(id, core): &(&str, &str)| json!({"minor": 0, "id": id, "resources": {key::GPU_CORE: core}});
        let served: Vec<&str> = devices.iter().map(|(id, _)| *id).collect();
        serde_json::from_value(json!({"namespace": "ml", "pod": "train", "uid": "u1", "container": container,
            "resource": resource, "ids": ids, "init": container == "init", "served": {"gpu": served},
            "devices": devices.iter().map(entry).collect::<Vec<_>>()}))
        .unwrap()
    }

    fn listed(pod: &str, container: &str, resource: &str, ids: &[&str]) -> ListedLine {
        let line = json!({"namespace": "ml", "pod": pod, "container": container, "resource": resource, "ids": ids});
        serde_json::from_value(line).unwrap()
    }

    /// Of ml/train, whose annotation names GPU-a0 alone: device, what the kubelet lists, percent by the ledger, the mark; and the word.
    fn shown(records: &AgentRecords) -> (Vec<(String, Value, Value, bool)>, Value) {
        let cluster = cluster();
        let pod = cluster.pods.values().next().unwrap();
        let status = cluster.leases["baton-agent-node-a"].status();
        let known = ["GPU-a0", "GPU-a1"].into();
        let pods = pods(&[pod], status.as_ref(), records, &known);
        let of = |row: &Value| {
            let id = row["id"].as_str().unwrap().to_owned();
            (id, row["kubelet"].clone(), row["ledger"]["core"].clone(), row["differs"].as_bool().unwrap())
        };
        let rows = pods.iter().flat_map(|pod| pod["rows"].as_array().unwrap()).map(of).collect();
        (rows, pods.last().unwrap()["word"].clone())
    }

    fn both(ledger: Vec<LedgerLine>, listed: Vec<ListedLine>) -> AgentRecords {
        AgentRecords { ledger: Ok(ledger), listed: Ok(listed) }
    }

    #[test]
    fn three_records_that_agree_have_no_mark_and_a_difference_marks_its_device() {
        let name = key::NVIDIA_GPU;
        let row = |id: &str, kubelet: Value, ledger: Value, differs| (id.to_owned(), kubelet, ledger, differs);
        let own = || line("main", name, &["GPU-a0"], &[("GPU-a0", "100")]);
        let agree = both(vec![own()], vec![listed("train", "main", name, &["GPU-a0"])]);
        let alike = row("GPU-a0", json!([name]), json!(100), false);
        assert_eq!(shown(&agree), (vec![alike.clone()], Value::Null));
        // The kubelet holds another one.
        let other = both(vec![own()], vec![listed("train", "main", name, &["GPU-a1"])]);
        let rows = vec![row("GPU-a0", Value::Null, json!(100), true), row("GPU-a1", json!([name]), Value::Null, true)];
        assert_eq!(shown(&other), (rows, Value::Null));
        // The ledger has less, and more, than the annotation says.
        let half = both(
            vec![line("main", name, &[], &[("GPU-a0", "50")])],
            vec![listed("train", "main", name, &["GPU-a0::1", "GPU-a0::2"])],
        );
        let text = json!([format!("2 × {name}")]);
        assert_eq!(shown(&half).0, [row("GPU-a0", text, json!(50), true)]);
        let more = vec![own(), line("other", name, &["GPU-a1"], &[("GPU-a1", "100")])];
        let listing = vec![listed("train", "main", name, &["GPU-a0"]), listed("train", "other", name, &["GPU-a1"])];
        assert_eq!(shown(&both(more, listing)).0[1], row("GPU-a1", json!([name]), json!(100), true));
        // A pod of another device plugin is no business of this page, and one that the API server lacks is.
        let strangers = vec![
            listed("train", "main", name, &["GPU-a0"]),
            listed("fpga", "main", "xilinx.com/fpga", &["card-0"]),
            listed("ghost", "main", name, &["GPU-a1"]),
        ];
        let (rows, word) = shown(&both(vec![own()], strangers));
        assert_eq!(rows, [alike, row("GPU-a1", json!([name]), Value::Null, true)]);
        assert_eq!(word, "the API server has no such pod here");
    }

    #[test]
    fn what_the_kubelet_need_not_list_is_no_difference() {
        let name = key::NVIDIA_GPU;
        let marks = |records: &AgentRecords| shown(records).0.iter().map(|(.., differs)| *differs).collect::<Vec<_>>();
        let init = line("init", name, &["GPU-a0"], &[("GPU-a0", "100")]);
        assert_eq!(marks(&both(vec![init], vec![])), [false], "a plain init container");
        let all = line("main", name, &["GPU-a0"], &[("GPU-a0", "100"), ("GPU-a1", "100")]);
        let listing = vec![listed("train", "main", name, &["GPU-a0"])];
        // The annotation names only the first one: its mark, not that of the kubelet.
        assert_eq!(marks(&both(vec![all], listing)), [false, true], "one id for all devices");
        // A name that accompanies another one may name any device.
        let lines = vec![
            line("main", name, &["GPU-a0"], &[("GPU-a0", "100")]),
            line("main", key::GPU_MEMORY_RATIO, &["GPU-a1::1"], &[]),
        ];
        let listing = vec![
            listed("train", "main", name, &["GPU-a0"]),
            listed("train", "main", key::GPU_MEMORY_RATIO, &["GPU-a1::1"]),
        ];
        assert_eq!(marks(&both(lines, listing)), [false]);
        let (rows, word) = shown(&both(vec![], vec![]));
        assert_eq!((rows[0].3, word), (false, json!("not served yet")));
    }

    #[test]
    fn without_the_ledger_the_lease_says_what_differs() {
        let away = || AgentRecords { ledger: Err(NONE.to_owned()), listed: Err(NONE.to_owned()) };
        let cluster = cluster();
        let (pod, lease) = (cluster.pods.values().next().unwrap(), &cluster.leases["baton-agent-node-a"]);
        let status = |exceptions: Value| -> AgentStatus {
            let mut status = serde_json::to_value(lease.status().unwrap()).unwrap();
            status["exceptions"] = exceptions;
            serde_json::from_value(status).unwrap()
        };
        let of = |status: &AgentStatus| pods(&[pod], Some(status), &away(), &["GPU-a0"].into())[0]["rows"].clone();
        let other = json!({"u1": {"gpu": [{"minor": 1, "id": "GPU-a1", "resources": {key::GPU_CORE: "100"}}]}});
        for (said, expected) in [
            (json!({}), json!([[100, 100, false]])),
            (other, json!([[100, null, true], [null, 100, true]])),
            // A daemon that says nothing of it.
            (Value::Null, json!([[100, null, false]])),
        ] {
            let rows = of(&status(said.clone()));
            let row = |row: &Value| json!([row["annotation"]["core"], row["ledger"]["core"], row["differs"]]);
            let rows: Value = rows.as_array().unwrap().iter().map(row).collect();
            assert_eq!(rows, expected, "{said}");
        }
    }
}
