//! The table of pods, with the status words that `kubectl get pods` shows.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Column, age};
use crate::apiserver::object::{deleting, text};

/// (name, priority, description), name and age apart.
#[rustfmt::skip]
const COLUMNS: &[(&str, i64, &str)] = &[
    ("Ready", 0,
     "The aggregate readiness state of this pod for accepting traffic."),
    ("Status", 0,
     "The aggregate status of the containers in this pod."),
    ("Restarts", 0,
     "The number of times the containers in this pod have been restarted and when the last container \
     in this pod has restarted."),
    ("IP", 1,
     "podIP address allocated to the pod. Routable at least within the cluster. Empty if not yet \
     allocated."),
    ("Node", 1,
     "NodeName indicates in which node this pod is scheduled. If empty, this pod is a candidate for \
     scheduling by the scheduler defined in schedulerName. Once this field is set, the kubelet for \
     this node becomes responsible for the lifecycle of this pod. This field should not be used to \
     express a desire for the pod to be scheduled on a specific node. \
     https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#nodename"),
    ("Nominated Node", 1,
     "nominatedNodeName is set only when this pod preempts other pods on the node, but it cannot be \
     scheduled right away as preemption victims receive their graceful termination periods. This \
     field does not guarantee that the pod will be scheduled on this node. Scheduler may decide to \
     place the pod elsewhere if other nodes become available sooner. Scheduler may also decide to \
     give the resources on this node to a higher priority pod that is created after preemption. As a \
     result, this field may be different than PodSpec.nodeName when the pod is scheduled."),
    ("Readiness Gates", 1,
     "If specified, all readiness gates will be evaluated for pod readiness. A pod is ready when all \
     its containers are ready AND all conditions specified in the readiness gates have status equal \
     to \"True\" More info: https://git.k8s.io/enhancements/keps/sig-network/580-pod-readiness-gates"),
];

pub(super) fn columns() -> Vec<Column> {
    let rest = |from: usize, to: usize| {
        COLUMNS[from..to].iter().map(|(name, priority, description)| Column::new(name, *priority, description, ""))
    };
    std::iter::once(Column::name())
        .chain(rest(0, 3))
        .chain(std::iter::once(Column::age()))
        .chain(rest(3, COLUMNS.len()))
        .collect()
}

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let row = row(pod);
    let restarts = match row.last_restart {
        Some(time) if row.restarts > 0 => format!("{} ({} ago)", row.restarts, age(Some(&time), now)),
        _ => row.restarts.to_string(),
    };
    let or_none = |t: &str| json!(if t.is_empty() { "<none>" } else { t });
    let gates = pod["spec"]["readinessGates"].as_array().map_or(0, Vec::len);
    let open = pod["spec"]["readinessGates"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|g| {
            let list = pod["status"]["conditions"].as_array();
            list.into_iter().flatten().any(|c| c["type"] == g["conditionType"] && c["status"] == "True")
        })
        .count();
    vec![
        pod["metadata"]["name"].clone(),
        json!(format!("{}/{}", row.ready, row.total)),
        json!(row.reason),
        json!(restarts),
        json!(age(pod["metadata"]["creationTimestamp"].as_str(), now)),
        or_none(text(pod, &["status", "podIP"])),
        or_none(text(pod, &["spec", "nodeName"])),
        or_none(text(pod, &["status", "nominatedNodeName"])),
        json!(if gates == 0 { "<none>".to_owned() } else { format!("{open}/{gates}") }),
    ]
}

struct PodRow {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<String>,
}

fn row(pod: &Value) -> PodRow {
    let sidecars = list(&pod["spec"]["initContainers"]).iter().filter(|c| is_sidecar(c)).count();
    let mut row = PodRow {
        reason: text(pod, &["status", "phase"]).to_owned(),
        ready: 0,
        total: list(&pod["spec"]["containers"]).len() + sidecars,
        restarts: 0,
        last_restart: None,
    };
    let reason = text(pod, &["status", "reason"]);
    if !reason.is_empty() {
        reason.clone_into(&mut row.reason);
    }
    let conditions = list(&pod["status"]["conditions"]);
    if conditions.iter().any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated") {
        row.reason = "SchedulingGated".into();
    }
    let initialising = row.add_init_containers(pod);
    if !initialising || is_ready(pod) {
        row.add_containers(pod);
    }
    if deleting(pod) {
        row.reason =
            if text(pod, &["status", "reason"]) == "NodeLost" { "Unknown".into() } else { "Terminating".into() };
    }
    row
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

fn is_ready(pod: &Value) -> bool {
    list(&pod["status"]["conditions"]).iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

impl PodRow {
    fn add_restarts(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or(0);
        let ended = text(container, &["lastState", "terminated", "finishedAt"]);
        if !ended.is_empty() && self.last_restart.as_deref().is_none_or(|last| last < ended) {
            self.last_restart = Some(ended.to_owned());
        }
    }

    /// `true` while one of them has to run.
    fn add_init_containers(&mut self, pod: &Value) -> bool {
        let all = list(&pod["spec"]["initContainers"]);
        for (index, container) in list(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
            self.add_restarts(container);
            let state = &container["state"];
            let sidecar = all.iter().any(|c| is_sidecar(c) && c["name"] == container["name"]);
            if sidecar && container["started"] == true {
                if container["ready"] == true {
                    self.ready += 1;
                }
                continue;
            }
            if let Some(ended) = state.get("terminated") {
                if ended["exitCode"] == 0 {
                    continue;
                }
                self.reason = format!("Init:{}", ended_word(ended));
            } else {
                let waiting = text(state, &["waiting", "reason"]);
                self.reason = if waiting.is_empty() || waiting == "PodInitializing" {
                    format!("Init:{index}/{}", all.len())
                } else {
                    format!("Init:{waiting}")
                };
            }
            return true;
        }
        false
    }

    fn add_containers(&mut self, pod: &Value) {
        let mut running = false;
        for container in list(&pod["status"]["containerStatuses"]).iter().rev() {
            self.add_restarts(container);
            let state = &container["state"];
            let waiting = text(state, &["waiting", "reason"]);
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if let Some(ended) = state.get("terminated") {
                self.reason = ended_word(ended);
            } else if container["ready"] == true && state.get("running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" && running {
            self.reason = if is_ready(pod) { "Running".into() } else { "NotReady".into() };
        }
    }
}

fn ended_word(ended: &Value) -> String {
    let reason = text(ended, &["reason"]);
    let signal = ended["signal"].as_i64().unwrap_or(0);
    match (reason, signal) {
        ("", 0) => format!("ExitCode:{}", ended["exitCode"]),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}
