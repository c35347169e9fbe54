//! The spec of a TYJob, and the pods that it asks for.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::status::{Role, TyJobStatus};
use super::template::PodTemplate;

/// Most worker sets of one job.
pub const MAX_WORKER_SETS: usize = 64;
/// Most workers of one job, over all sets: their allocations fit into one object.
pub const MAX_PODS: i32 = 5000;

/// A leader (the learner) and sets of workers (the actors).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, CustomResource, JsonSchema)]
#[kube(
    group = "arranger.taichu.io",
    version = "v1alpha1",
    kind = "TYJob",
    root = "TyJob",
    plural = "tyjobs",
    singular = "tyjob",
    shortname = "tyj",
    namespaced,
    status = "TyJobStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name":"Stage","type":"string","jsonPath":".status.stage"}"#,
    printcolumn = r#"{"name":"Scheduled","type":"string","jsonPath":".status.scheduleState"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.ready"}"#,
    printcolumn = r#"{"name":"Restarts","type":"integer","jsonPath":".status.totalRestarts"}"#,
    printcolumn = r#"{"name":"Priority","type":"integer","jsonPath":".spec.priority"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Leader","type":"string","jsonPath":".status.leaderAddress","priority":1}"#,
    printcolumn = r#"{"name":"Nodes","type":"string","jsonPath":".status.nodes","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TyJobSpec {
    /// How often the leader may be restarted, and how often the workers of one set together: as pods and as containers.
    #[serde(default = "three")]
    #[schemars(range(min = 0))]
    pub restart_limit: i32,
    /// Volumes added to every pod. Immutable once the job started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "volumes_schema")]
    pub volumes: Vec<Value>,
    /// The pod that the workers report to.
    pub leader: Leader,
    /// The workers, at least one set.
    pub worker_sets: Vec<WorkerSet>,
    /// Which pods are deleted when the job ends.
    #[serde(default)]
    pub clean_pod_policy: CleanPodPolicy,
    /// `true` ends the job as Succeeded.
    #[serde(default)]
    pub terminating: bool,
    /// How many workers the job needs in order to run, over all sets.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub min_workers_num: i32,
    /// 1 (last) to 10 (first).
    #[serde(default = "five")]
    #[schemars(range(min = 1, max = 10))]
    pub priority: i32,
    /// How the scheduler orders and places the job.
    #[serde(default)]
    pub scheduler_policy: SchedulerPolicy,
}

/// The leader pod.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Leader {
    /// Last part of the pod's name, `<job>-<name>`; an RFC 1123 label.
    #[schemars(schema_with = "label_schema")]
    pub name: String,
    /// The pod. Immutable once the job started.
    pub template: PodTemplate,
}

/// Workers with one template.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct WorkerSet {
    /// Middle part of the pods' names, `<job>-<name>-<index>`; an RFC 1123 label, unique in the job.
    #[schemars(schema_with = "label_schema")]
    pub name: String,
    /// The pods. Immutable once the job started.
    pub template: PodTemplate,
    /// How many.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 5000))]
    pub counts: i32,
}

/// Which pods are deleted when the job ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum CleanPodPolicy {
    /// Those that still run.
    Running,
    /// All.
    #[default]
    All,
    /// None.
    None,
}

/// How the scheduler orders and places a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SchedulerPolicy {
    /// Order among jobs.
    #[serde(default)]
    pub job_queue_policy: JobQueuePolicy,
    /// Nodes for the pods.
    #[serde(default)]
    pub basic_policy: BasicPolicy,
}

/// Order among jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
pub enum JobQueuePolicy {
    /// `spec.priority`, then age, then name.
    #[default]
    Priority,
    /// Smallest dominant share of the cluster first.
    #[serde(rename = "DRF")]
    Drf,
}

/// Nodes for the pods of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema)]
pub enum BasicPolicy {
    /// As `BinPack`, and every pod or none.
    Gang,
    /// Fills used nodes first.
    #[default]
    BinPack,
    /// The leader on the least used node, workers on the most used ones.
    LeaderFirst,
    /// Keeps cpu and memory of a node equally used.
    MinFragment,
    /// The job's pods together.
    JobAffinity,
    /// The job's pods apart.
    JobAntiAffinity,
}

/// One pod that a job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct JobMember<'a> {
    /// Name of the pod.
    pub name: String,
    /// Leader or worker.
    pub role: Role,
    /// Worker set; none for the leader.
    pub worker_set: Option<&'a str>,
    /// Index in the worker set; 0 for the leader.
    pub index: i32,
    /// Its template.
    pub template: &'a PodTemplate,
}

impl TyJobSpec {
    /// Σ counts, without overflow; at least 0.
    pub fn total_workers(&self) -> i64 {
        self.worker_sets.iter().map(|set| i64::from(set.counts.max(0))).sum()
    }

    /// Name of the leader pod.
    pub fn leader_pod(&self, job: &str) -> String {
        format!("{job}-{}", self.leader.name)
    }

    /// The worker set of a pod by the pod's name, whatever its index; `Some(None)` for the leader.
    pub fn set_of(&self, job: &str, pod: &str) -> Option<Option<&str>> {
        let part = pod.strip_prefix(job)?.strip_prefix('-')?;
        if part == self.leader.name {
            return Some(None);
        }
        let (name, index) = part.rsplit_once('-')?;
        let set = self.worker_sets.iter().find(|set| set.name == name)?;
        index.bytes().all(|byte| byte.is_ascii_digit()).then_some(Some(&set.name))
    }

    /// The leader.
    pub fn leader_member(&self, job: &str) -> JobMember<'_> {
        JobMember {
            name: self.leader_pod(job),
            role: Role::Leader,
            worker_set: None,
            index: 0,
            template: &self.leader.template,
        }
    }

    /// Every pod of the job: the leader, then the workers by set in the order of the spec, then by index.
    pub fn members<'a>(&'a self, job: &'a str) -> impl Iterator<Item = JobMember<'a>> {
        let workers = self.worker_sets.iter().flat_map(move |set| {
            (0..set.counts.max(0)).map(move |index| JobMember {
                name: worker_pod(job, &set.name, index),
                role: Role::Worker,
                worker_set: Some(&set.name),
                index,
                template: &set.template,
            })
        });
        std::iter::once(self.leader_member(job)).chain(workers)
    }
}

/// Name of a worker pod.
pub fn worker_pod(job: &str, set: &str, index: i32) -> String {
    format!("{job}-{set}-{index}")
}

fn one() -> i32 {
    1
}

fn three() -> i32 {
    3
}

fn five() -> i32 {
    5
}

fn label_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    })
}

fn volumes_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": { "name": { "type": "string", "minLength": 1, "maxLength": 63 } },
            "x-kubernetes-preserve-unknown-fields": true,
        },
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    })
}
