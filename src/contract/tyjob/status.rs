//! The status of a TYJob, and which daemon writes which half of it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::word::word_enum;

/// Condition types of a job.
pub mod condition {
    /// By the scheduler: whether the job is placed, and what is missing.
    pub const SCHEDULED: &str = "Scheduled";
    /// The spec cannot be run; the message names the field. Creates nothing.
    pub const INVALID_SPEC: &str = "InvalidSpec";
    /// An edit of a started job is refused; the last valid spec is in force.
    pub const INVALID_UPDATE: &str = "InvalidUpdate";
    /// A pod of a wanted name exists and is not the job's: it is left alone, and the name is tried again.
    pub const NAME_CONFLICT: &str = "NameConflict";
    /// The leader's image cannot be pulled, and since when.
    pub const IMAGE_PULL: &str = "ImagePullFailed";
    /// The API server refuses a pod of the job, and why.
    pub const POD_REFUSED: &str = "PodRefused";
}

word_enum! {
    /// Where a job is in its life; written by the controller.
    ///
    /// ```text
    /// Pending ──► Starting ──► Running ──► Succeeded | Failed (never left)
    ///    ▲            └──────────┤
    ///    └─ places ── Rescheduling
    /// ```
    #[derive(Serialize, Deserialize, JsonSchema)]
    Stage {
        /// Waits for its first placement.
        Pending = "Pending",
        /// The leader pod exists; workers are being made.
        Starting = "Starting",
        /// The leader and enough workers are ready.
        Running = "Running",
        /// The leader was lost: its pods are deleted, and the job waits for a new placement.
        Rescheduling = "Rescheduling",
        /// The leader succeeded, or the user ended the job.
        Succeeded = "Succeeded",
        /// It cannot run, or not any more.
        Failed = "Failed",
    }
}

impl Stage {
    /// `true` for a stage that is never left.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

word_enum! {
    /// How far the scheduler is; written by the scheduler.
    #[derive(Serialize, Deserialize, JsonSchema)]
    ScheduleState {
        /// Nothing is placed.
        Unscheduled = "Unscheduled",
        /// The leader and at least `minWorkersNum` workers are placed.
        ScheduledPartly = "ScheduledPartly",
        /// Every pod is placed.
        ScheduledSucceed = "ScheduledSucceed",
        /// The job does not fit into the whole cluster.
        ScheduledFailed = "ScheduledFailed",
    }
}

word_enum! {
    /// Leader or worker.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    Role {
        /// The pod that the others report to.
        Leader = "leader",
        /// One pod of a worker set.
        Worker = "worker",
    }
}

/// How a worker that is not made again has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum WorkerEnd {
    /// It did its work; it counts towards `minWorkersNum`.
    Succeeded,
    /// It failed, and its set is at `restartLimit`.
    Failed,
}

/// A place for one pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// Name of the pod.
    pub pod: String,
    /// Leader or worker.
    pub role: Role,
    /// Worker set; none for the leader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_set: Option<String>,
    /// Index in the worker set; 0 for the leader.
    #[serde(default)]
    pub index: i32,
    /// The node.
    pub node: String,
    /// `status.attempt` that the place is for; another one makes it void.
    #[serde(default)]
    pub attempt: i32,
}

/// Restarts of one pod's containers, as they were counted last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CountedRestarts {
    /// The pod.
    pub uid: String,
    /// Its `resourceVersion`: a report that is older says nothing new. 0 where that is no number.
    pub version: i64,
    /// The kubelet's number by container.
    pub containers: BTreeMap<String, i32>,
}

/// The status of a TYJob.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TyJobStatus {
    /// Where the job is in its life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// How far the scheduler is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_state: Option<ScheduleState>,
    /// How often the leader was restarted: as a pod that was made again, and its containers in their pods.
    pub restarts: i32,
    /// `restarts` and `workerSetRestarts` together, for people.
    pub total_restarts: i32,
    /// The present attempt: `restarts` when it began.
    pub attempt: i32,
    /// Pod IP of the leader of the present attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_address: Option<String>,
    /// Workers asked for, over all sets.
    pub total_workers: i32,
    /// Workers that are ready or have succeeded.
    pub ready_workers: i32,
    /// `readyWorkers/totalWorkers`, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
    /// Places, of the leader first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocations: Vec<Allocation>,
    /// How often workers were restarted, per worker set, in all attempts: as pods that were made again after a failure, and their
    /// containers in their pods.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_set_restarts: BTreeMap<String, i32>,
    /// The restarts of containers that the sums count already, by pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub counted_restarts: BTreeMap<String, CountedRestarts>,
    /// Uids of the pods of the present attempt that failed last, by pod: their failures are counted, and they are made again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub replaced: BTreeMap<String, String>,
    /// Workers of the present attempt that have ended and are not made again, by pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ended_workers: BTreeMap<String, WorkerEnd>,
    /// Conditions, by type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the leader pod was first seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job succeeded or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// Nodes of the job's pods, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Why the job is where it is, in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The spec in force since the job started: a refused edit does not reach it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "accepted_schema")]
    pub accepted_spec: Option<Value>,
}

/// What the scheduler writes, next to its condition.
const OF_SCHEDULER: [&str; 2] = ["scheduleState", "allocations"];

impl TyJobStatus {
    /// The failure of this pod is counted, and another one takes its place.
    pub fn replaces(&self, pod: &str, uid: &str) -> bool {
        self.replaced.get(pod).is_some_and(|replaced| replaced == uid)
    }

    /// All restarts, of the leader and of every worker set.
    pub fn sum_of_restarts(&self) -> i32 {
        self.worker_set_restarts.values().fold(self.restarts, |sum, more| sum.saturating_add(*more))
    }

    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// `true` when the condition of a type is `True`.
    pub fn holds(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }

    /// The controller's half, as its apply writes it.
    pub fn of_controller(&self) -> Value {
        self.half(false)
    }

    /// The scheduler's half, as its apply writes it. An empty list of allocations is written too.
    pub fn of_scheduler(&self) -> Value {
        let mut half = self.half(true);
        if let Value::Object(half) = &mut half {
            half.entry("allocations").or_insert_with(|| Value::Array(Vec::new()));
        }
        half
    }

    fn half(&self, scheduler: bool) -> Value {
        let mut whole = match serde_json::to_value(self) {
            Ok(Value::Object(whole)) => whole,
            _ => Map::new(),
        };
        whole.retain(|field, _| field == "conditions" || OF_SCHEDULER.contains(&field.as_str()) == scheduler);
        if let Some(Value::Array(conditions)) = whole.get_mut("conditions") {
            conditions.retain(|found| (found["type"] == condition::SCHEDULED) == scheduler);
            if conditions.is_empty() {
                whole.remove("conditions");
            }
        }
        Value::Object(whole)
    }
}

fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let item = generator.subschema_for::<Condition>();
    schemars::json_schema!({
        "type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}

fn accepted_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic",
    })
}
