//! What the objects of a node say of the devices that an explanation is about: the rows of `baton get devices`.

use std::fmt::Write;
use std::time::Duration;

use anyhow::anyhow;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::output::Common;
use crate::leader::LeaderClient;
use crate::say::remark;
use crate::view::{
    Columns, DeviceHolder, DeviceRow, LockState, Look, NodesView, Row, Rules, ShownHealth, Snapshot, device_faults,
    entries_of, fitted, percent, plain, read_node, say_left_out,
};
use baton_agent::node_handoff::LedgerLine;
use baton_contract::{DeviceEntry, DeviceType, PodKey, ShareIsolation, key};
use baton_decide::explain::QueueReport;
use baton_decide::lock::{DaemonState, Delay};
use baton_decide::pod::{ExpectedCall, HandoffPod};
use baton_runtime::words;

/// Longest wait for a node daemon's ledger.
const PATIENCE: Duration = Duration::from_secs(3);

/// A device that a pod has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldRow {
    /// Its name on the node.
    pub device: String,
    /// Its id.
    pub id: String,
    /// Its model.
    pub model: Option<String>,
    /// How many percent of it.
    pub percent: i64,
    /// How much of its memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<i64>,
    /// What is wrong with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What is wrong concerns the pod, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    out_of_service: bool,
    #[serde(skip)]
    node: String,
}

/// What a pod has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodHoldings {
    /// The devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldRow>,
    /// What its GPUs have in common, the nearest first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linked_by: Option<String>,
    /// Of one that waits for its devices longer than usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<CallsMade>,
    /// Why these are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_unknown: Option<String>,
    /// It has shares of GPUs, which nothing holds to their limits here.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub counted_only: bool,
    /// Which of the devices are out of service, in the words of `baton get pods`.
    #[serde(skip)]
    problem: Option<String>,
}

/// The answered calls of the kubelet for the devices of a pod, one per container and resource name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallsMade {
    /// Those that the node daemon has served.
    pub made: usize,
    /// All of them.
    pub of: usize,
}

impl CallsMade {
    /// By the ledger of the node's daemon, which has registered for these names.
    fn count(pod: &HandoffPod, registered: &[String], ledger: &[LedgerLine]) -> Self {
        let calls: Vec<ExpectedCall<'_>> =
            pod.expected_calls(|name| registered.is_empty() || registered.iter().any(|of| of == name)).collect();
        let is_made = |call: &&ExpectedCall<'_>| {
            let wanted = (pod.pod.uid.as_str(), &*call.container.name, call.resource);
            ledger.iter().any(|line| (&*line.uid, &*line.container, &*line.resource) == wanted)
        };
        Self { made: calls.iter().filter(is_made).count(), of: calls.len() }
    }
}

/// How far the hand-off of a pod is whose lock stands longer than usual, as the node's daemon knows it, or why it does not say.
pub(super) async fn calls_made(
    common: &Common,
    snapshot: &Snapshot,
    node: &str,
    pod: &PodKey,
) -> Option<Result<CallsMade, String>> {
    let row = NodesView::of(snapshot, &Rules::default(), &QueueReport::default()).nodes.into_iter().next()?;
    let lock = row.lock.filter(|lock| lock.delay > Some(Delay::Usual) && lock.state == LockState::Held)?;
    let pod = snapshot.pods.get(pod).filter(|pod| lock.holder == Some(pod.pod.key.to_string()))?;
    // Where one of them is away, that is said, and no answer comes.
    if row.daemon != DaemonState::Fresh {
        return None;
    }
    let read = async {
        let client = common.access.connect().await?;
        let daemon = LeaderClient::of_node(client, &common.scheduler.home.namespace, node, None).await?;
        daemon.get::<Vec<LedgerLine>>("/ledger").await
    };
    let silent = |_| anyhow!("no answer within {} s", PATIENCE.as_secs());
    let read = async { tokio::time::timeout(PATIENCE, read).await.map_err(silent)? };
    let count = |ledger: Vec<LedgerLine>| {
        let registered = row.agent.map(|agent| agent.registered).unwrap_or_default();
        CallsMade::count(pod, &registered, &ledger)
    };
    Some(read.await.map(count).map_err(|error| words(error.as_ref())))
}

/// The objects of `node`; `None` where they cannot be read, which is said.
pub(super) async fn of_node(common: &Common, node: &str) -> Option<Snapshot> {
    let read = async { read_node(common.access.connect().await?, &common.scheduler.home.namespace, node).await };
    let told =
        |error: anyhow::Error| remark(format_args!("the objects of {node} cannot be read: {}", words(error.as_ref())));
    read.await.map_err(told).ok()
}

/// The devices that the pod has by its assignment.
pub(crate) fn held(snapshot: &Snapshot, pod: &PodKey) -> PodHoldings {
    let devices = snapshot.pods.get(pod).map(|pod| entries_of(snapshot, pod)).unwrap_or_default();
    let rows = NodesView::of(snapshot, &Rules::default(), &QueueReport::default()).devices;
    let row = |entry: &DeviceEntry| rows.iter().find(|row| row.id == entry.id.as_str());
    let entries: Vec<&DeviceEntry> = devices.values().flatten().collect();
    let shown = |entry: &&DeviceEntry| {
        let row = row(entry);
        HeldRow {
            device: row.map_or_else(|| "not listed".to_owned(), |row| row.device.clone()),
            id: entry.id.to_string(),
            model: row.and_then(|row| row.model.clone()),
            percent: percent(entry),
            memory_bytes: Some(entry.amount(key::GPU_MEMORY)).filter(|bytes| *bytes > 0),
            out_of_service: row.is_some_and(|row| row.fails_holders),
            node: row.map(|row| row.node.clone()).unwrap_or_default(),
            problem: match row {
                None => Some("the node does not list it".to_owned()),
                Some(row) => row.reason.clone(),
            },
        }
    };
    let gpus: Vec<&DeviceRow> = entries.iter().filter_map(|entry| row(entry)).filter(|row| !row.is_nic()).collect();
    let node = snapshot.pods.get(pod).and_then(|pod| pod.node.as_deref()).unwrap_or_default();
    let limits =
        snapshot.labels_of(node).get(key::GPU_ISOLATION_PROVIDER).and_then(|of| ShareIsolation::of_provider(of));
    let shares = devices.get(&DeviceType::Gpu).is_some_and(|gpus| gpus.iter().any(|gpu| percent(gpu) < key::WHOLE));
    PodHoldings {
        held: entries.iter().map(shown).collect(),
        linked_by: linked(&gpus),
        calls: None,
        calls_unknown: None,
        counted_only: shares && limits.is_none_or(|limits| limits == ShareIsolation::None),
        problem: snapshot.pods.get(pod).and_then(|pod| device_faults(snapshot, pod, &devices)),
    }
}

/// What several GPUs have in common.
fn linked(gpus: &[&DeviceRow]) -> Option<String> {
    let (first, others) = gpus.split_first().filter(|(_, others)| !others.is_empty())?;
    let common = |of: fn(&DeviceRow) -> Option<String>| {
        of(first).filter(|first| others.iter().all(|other| of(other).as_ref() == Some(first)))
    };
    let nvlink = common(|row| row.nvlink.clone()).map(|domain| format!("NVLink (domain {domain})"));
    let switch = || common(|row| row.pcie.clone()).map(|switch| format!("one PCIe switch ({switch})"));
    let numa = || common(|row| row.numa.map(|numa| numa.to_string())).map(|numa| format!("NUMA node {numa}"));
    Some(nvlink.or_else(switch).or_else(numa).unwrap_or_else(|| "the node alone".to_owned()))
}

impl PodHoldings {
    /// Devices that are out of service.
    pub(super) fn broken(&self) -> impl Iterator<Item = &HeldRow> {
        self.held.iter().filter(|row| row.out_of_service)
    }

    /// What helps a pod whose device is out of service.
    pub fn advice(&self) -> Option<String> {
        let broken: Vec<&HeldRow> = self.broken().collect();
        let (go, them) = if broken.len() == 1 { ("goes", "it") } else { ("go", "them") };
        let names: Vec<&str> = broken.iter().map(|row| &*row.device).collect();
        let drains: Vec<String> =
            broken.iter().map(|row| format!("`baton drain {}/{} --yes`", row.node, row.device)).collect();
        (!broken.is_empty()).then(|| {
            format!(
                "{} {go} to no new pod; this one keeps {them} until it ends: once its work is saved, {} (which also cordons {them}: `baton \
                 uncordon` ends that), or delete the pod: its owner, or you, create another one. Where the machine has to be rebooted, \
                 `kubectl drain {} --ignore-daemonsets` evicts all of its pods (docs/runbooks.md)",
                names.join(", "),
                drains.join(" and "),
                broken.first().map_or("", |row| &*row.node)
            )
        })
    }

    /// Adds what the pod has to what the scheduler says of the pod: it does not look whether these devices work.
    pub fn complete(&self, answer: &mut Map<String, Value>) {
        if let (Some(advice), Some(known)) = (self.advice(), answer.get_mut("advice").and_then(Value::as_array_mut)) {
            known.push(advice.into());
        }
        if let (Some(problem), Some(message)) = (&self.problem, answer.get_mut("message")) {
            *message = format!("{}; {problem}", message.as_str().unwrap_or_default()).into();
        }
        answer.extend(json!(self).as_object().cloned().unwrap_or_default());
    }

    /// The rows as a table, and what the GPUs have in common.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if let Some(CallsMade { made, of }) = &self.calls {
            let _ = writeln!(
                out,
                "  the node daemon answers; calls of the kubelet for these devices so far: {made} of {of}"
            );
        }
        if let Some(why) = &self.calls_unknown {
            let _ = writeln!(out, "  the node daemon was asked which calls it has answered: {why}");
        }
        if self.held.is_empty() {
            return out;
        }
        let cells = |row: &HeldRow| {
            let memory = row.memory_bytes.map(|bytes| format!("{}Mi", bytes >> 20)).unwrap_or_default();
            let model = row.model.clone().unwrap_or_default();
            vec![row.device.clone(), model, format!("{}%", row.percent), memory, row.id.clone()]
        };
        let table = plain(&["DEVICE", "MODEL", "SHARE", "MEMORY", "ID"], self.held.iter().map(cells));
        let _ = write!(out, "\n{table}");
        for row in &self.held {
            let Some(problem) = &row.problem else { continue };
            let _ = if row.out_of_service {
                writeln!(out, "{} is out of service: {problem}", row.device)
            } else {
                writeln!(out, "{} ({}): {problem}", row.device, row.id)
            };
        }
        if let Some(linked) = &self.linked_by {
            let _ = writeln!(out, "Its GPUs are connected by {linked}.");
        }
        if self.counted_only {
            out.push_str(
                "Its shares are counted, not limited on this node: each can take the whole GPU (docs/share.md).\n",
            );
        }
        out
    }
}

/// The devices of a node as `baton get devices` has them.
pub(super) fn table(rows: &[DeviceRow], look: Look) -> String {
    let headers = ["DEVICE", "HEALTH", "USED", "FREE", "HOLDERS", "ID"];
    let all: Vec<&str> = DeviceRow::HEADERS.split(',').collect();
    let cells = |row: &DeviceRow| {
        let cells = row.cells();
        headers.iter().filter_map(|header| cells.get(all.iter().position(|of| of == header)?).cloned()).collect()
    };
    let (mut out, left_out) = fitted(&headers, rows.iter().map(cells).collect(), look, &mut Columns::default());
    say_left_out(&left_out, look);
    for row in rows {
        let Some(reason) = &row.reason else { continue };
        let since = row.since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
        let _ = match row.health {
            ShownHealth::Unhealthy => {
                let keeps = |holder: &DeviceHolder| format!("; {} keeps it until it ends", holder.pod);
                let kept: String = row.holders.iter().map(keeps).collect();
                let drain = row.is_to_drain().then(|| format!(" or `baton drain {}/{} --yes`", row.node, row.device));
                writeln!(out, "{} is out of service{since}: {reason}{kept}{}", row.device, drain.unwrap_or_default())
            }
            _ => writeln!(out, "{}: {reason}", row.device),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::pod_rows;
    use crate::view::snapshot_tests::unlocked;
    use baton_cluster::pod::LightPod;

    #[test]
    fn a_pods_devices_have_their_names_shares_and_faults() {
        let mut cluster = unlocked();
        let both = r#"{"gpu":[{"minor":0,"id":"GPU-a0","resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"10Gi"}},{"minor":1,"id":"GPU-a1","resources":{"koordinator.sh/gpu-core":"50"}}]}"#;
        let asks = json!({"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
        let train: LightPod = serde_json::from_value(json!({
            "metadata": {"name": "train", "namespace": "ml", "uid": "u1", "annotations": {key::DEVICE_ALLOCATED: both}},
            "spec": {"nodeName": "node-a", "containers": [{"name": "main", "resources": {"limits": asks}}]},
        }))
        .unwrap();
        let key = PodKey::new("ml", "train");
        cluster.pods = [(key.clone(), train.handoff())].into();
        let devices = &mut cluster.devices.get_mut("node-a").unwrap().spec.devices;
        devices.iter_mut().for_each(|info| drop(info.labels.insert(key::NVLINK_DOMAIN.into(), "0".into())));
        devices[1].health = false;
        let shown = held(&cluster, &key);
        let row =
            |at: usize| (shown.held[at].device.as_str(), shown.held[at].percent, shown.held[at].problem.as_deref());
        assert_eq!(
            [row(0), row(1)],
            [
                ("gpu-0", 50, None),
                ("gpu-1", 50, Some("not healthy; the Device object gives no reason, `baton doctor` on the node may"))
            ]
        );
        assert!(shown.advice().unwrap().contains("`baton drain node-a/gpu-1 --yes`"), "{shown:?}");
        let mut answer = json!({"message": "bound to node node-a", "advice": []});
        shown.complete(answer.as_object_mut().unwrap());
        let problem = pod_rows(&cluster, None, &Rules::default())[0].problem.clone().unwrap();
        assert!(problem.starts_with("gpu-1 is out of service: not healthy"), "{problem}");
        assert_eq!(answer["message"], format!("bound to node node-a; {problem}"));
        assert_eq!((&answer["advice"][0], &answer["held"][1]["device"]), (&json!(shown.advice()), &json!("gpu-1")));
        let text = shown.text();
        assert!(text.contains("Its GPUs are connected by NVLink (domain 0).\n"), "{text}");
        assert!(text.contains("counted, not limited on this node"), "{text}");
        let pod = &cluster.pods[&key];
        let names: Vec<String> = pod.expected_calls(|_| true).map(|call| call.resource.to_owned()).collect();
        let line = |uid: &str| -> LedgerLine {
            serde_json::from_value(json!({"namespace": "ml", "pod": "train", "uid": uid, "container": "main",
                "resource": names[0], "init": false, "ids": [], "served": {}, "devices": []}))
            .unwrap()
        };
        let counted = |ledger: &[LedgerLine]| CallsMade::count(pod, &[], ledger);
        assert_eq!(counted(&[line("u1"), line("u0")]), CallsMade { made: 1, of: names.len() });
        assert_eq!(counted(&[line("u0")]).made, 0, "that was an earlier pod of the name");
        let node = cluster.nodes.get_mut("node-a").unwrap();
        node.metadata.labels = Some([(key::GPU_ISOLATION_PROVIDER.to_owned(), "hami-core".to_owned())].into());
        assert!(!held(&cluster, &key).counted_only);
    }
}
