//! TYJobs at the border: the wire type, the scheduler's record of one, and the write of the scheduler's half of the status.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, Resource};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::{is_too_large, said, status_code};
use super::pod::LightPod;
use super::pod_defaults;
use baton_contract::PodKey;
use baton_contract::gang::{self, BadValue, TopologySpec};
use baton_contract::quota::PodAsk;
use baton_contract::tyjob::{
    InvalidField, PodTemplate, Role, TyJob, TyJobSpec, TyJobStatus, condition, keys, validate,
};
use baton_decide::core::{JobScheduleStatus, JobWriteResult};
use baton_decide::tyjob::placement::{JobFacts, JobIdentity, JobPart, JobSpec, ScheduledCondition};

/// A TYJob as it is on the wire, whatever it says.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = TyJob)]
pub struct RawTyJob {
    /// Metadata without `managedFields`.
    #[serde(deserialize_with = "super::light_meta::read")]
    pub metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    status: Value,
}

impl RawTyJob {
    /// The TYJob, and the part of its spec that does not fit the type. Of a job that has started, a template that the scheduler cannot
    /// read is such a part: scheduler and controller both ignore the edit.
    pub fn read(self) -> Result<(TyJob, Option<InvalidField>), InvalidField> {
        let (job, mut unreadable) = TyJob::of_parts(self.metadata, &self.spec, &self.status)?;
        if unreadable.is_none() && job.started() && validate(&job).is_empty() {
            let read = job_spec(&key_of(&job), &TyJobStatus::default(), &job.spec);
            unreadable = read.err().map(|why| InvalidField { field: "spec".to_owned(), message: why.into() });
        }
        Ok((job, unreadable))
    }
}

/// The scheduler's record of a TYJob. The error is a status that cannot be read.
pub fn job_facts(raw: RawTyJob) -> Result<JobFacts, InvalidField> {
    let version = raw.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0);
    let (job, unreadable) = raw.read()?;
    let meta = &job.metadata;
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    let key = key_of(&job);
    let status = job.status.clone().unwrap_or_default();
    let scheduled = status.condition(condition::SCHEDULED).map(|found| ScheduledCondition {
        holds: found.status == "True",
        reason: found.reason.as_str().into(),
        message: found.message.as_str().into(),
        since: found.last_transition_time.0,
    });
    let spec = match job.effective(unreadable.as_ref()) {
        Ok(effective) => job_spec(&key, &status, &effective.spec)
            .map(|spec| JobSpec { topology: topology(meta.annotations.as_ref()), ..spec }),
        Err(fields) => {
            let text: Vec<String> = fields.iter().map(InvalidField::to_string).collect();
            Err(text.join("; ").into())
        }
    };
    Ok(JobFacts {
        job: JobIdentity { key, uid: word(&meta.uid).into() },
        version,
        created: meta.creation_timestamp.as_ref().map_or(jiff::Timestamp::UNIX_EPOCH, |at| at.0),
        deleting: meta.deletion_timestamp.is_some(),
        stage: status.stage,
        state: status.schedule_state,
        attempt: status.attempt,
        has_address: status.leader_address.as_deref().is_some_and(|address| !address.is_empty()),
        ended: status.ended_workers.iter().map(|(pod, end)| (pod.as_str().into(), *end)).collect(),
        scheduled,
        allocations: status.allocations,
        spec,
    })
}

fn key_of(job: &TyJob) -> PodKey {
    let meta = &job.metadata;
    PodKey::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

fn job_spec(key: &PodKey, status: &TyJobStatus, spec: &TyJobSpec) -> Result<JobSpec, Box<str>> {
    let part = |role, name: &str, counts, template: &PodTemplate| -> Result<JobPart, Box<str>> {
        let mut pod = pod_of(key, status, spec, (role, name), template);
        as_served(&mut pod);
        pod_defaults::fill(&mut pod);
        let ask = PodAsk::read(&pod["spec"]).map_err(|error| format!("the template of {name}: {error}"))?;
        let pod: LightPod = serde_json::from_value(pod).map_err(|error| format!("the template of {name}: {error}"))?;
        let mut pod = pod.facts();
        // A TYJob is placed as such, never as a gang too.
        pod.spec.gang = None;
        Ok(JobPart { role, name: name.into(), counts, ask, indexed: indexed(spec), pod })
    };
    let mut parts = vec![part(Role::Leader, &spec.leader.name, 1, &spec.leader.template)?];
    for set in &spec.worker_sets {
        parts.push(part(Role::Worker, &set.name, set.counts, &set.template)?);
    }
    Ok(JobSpec {
        priority: spec.priority,
        queue: spec.scheduler_policy.job_queue_policy,
        basic: spec.scheduler_policy.basic_policy,
        min_workers: i64::from(spec.min_workers_num),
        topology: Ok(None),
        terminating: spec.terminating,
        parts,
    })
}

/// Where the pods of a job are gathered: by Koordinator's annotation, or else by Baton's keys.
fn topology(annotations: Option<&BTreeMap<String, String>>) -> Result<Option<Arc<TopologySpec>>, BadValue> {
    let text = |key: &str| annotations.and_then(|all| all.get(key)).map(String::as_str);
    let koordinator = TopologySpec::parse(
        gang::key::NETWORK_TOPOLOGY_SPEC,
        text(gang::key::NETWORK_TOPOLOGY_SPEC).unwrap_or_default(),
    )?;
    let own = TopologySpec::short(text(gang::key::REQUIRED_TOPOLOGY), text(gang::key::PREFERRED_TOPOLOGY))?;
    Ok(koordinator.or(own).map(Arc::new))
}

/// The pod that the controller would make of a template, as far as the scheduler reads it.
fn pod_of(
    key: &PodKey,
    status: &TyJobStatus,
    spec: &TyJobSpec,
    (role, name): (Role, &str),
    template: &PodTemplate,
) -> Value {
    let map = |which: &str| -> BTreeMap<&str, &str> { template.metadata(which).collect() };
    let (mut labels, attempt) = (map("labels"), status.attempt.to_string());
    labels.extend([(keys::JOB, &*key.name), (keys::ROLE, role.word()), (keys::ATTEMPT, &*attempt)]);
    match role {
        Role::Leader => drop(labels.insert(keys::INDEX, "0")),
        Role::Worker => drop(labels.insert(keys::WORKER_SET, name)),
    }
    let mut pod: Map<String, Value> = template.spec().as_object().cloned().unwrap_or_default();
    let own = pod.remove("volumes").and_then(|volumes| volumes.as_array().cloned()).unwrap_or_default();
    // The claim of an ephemeral volume is made with the pod: it says nothing about the place yet.
    let volumes = own.iter().chain(&spec.volumes).filter(|volume| volume["ephemeral"].is_null());
    pod.insert("volumes".to_owned(), volumes.cloned().collect());
    // Not one of the scheduler's own pods: it is not counted as one.
    pod.insert("schedulerName".to_owned(), "none".into());
    json!({
        "metadata": { "namespace": key.namespace, "name": name, "labels": labels, "annotations": map("annotations") },
        "spec": pod,
    })
}

/// A template is kept as its author wrote it; of a pod, the API server drops nulls and writes quantities as texts.
fn as_served(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            for (key, value) in map {
                as_served(value);
                if matches!(key.as_str(), "limits" | "requests" | "overhead") {
                    let amounts = value.as_object_mut().into_iter().flatten();
                    amounts.filter(|(_, amount)| amount.is_number()).for_each(|(_, amount)| {
                        *amount = amount.to_string().into();
                    });
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(as_served),
        _ => {}
    }
}

/// A pod of the job selects others by their index: then the index of each pod counts for its place.
fn indexed(spec: &TyJobSpec) -> bool {
    let sets = spec.worker_sets.iter().map(|set| &set.template);
    let named = |terms: &Value| terms.to_string().contains(keys::INDEX);
    std::iter::once(&spec.leader.template).chain(sets).any(|template| {
        let pod = template.spec();
        named(&pod["affinity"]) || named(&pod["topologySpreadConstraints"])
    })
}

/// Writes the scheduler's half of TYJobs' statuses.
#[derive(Clone)]
pub struct JobStatuses(Client);

impl JobStatuses {
    /// By this client.
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    /// Applies the half to the TYJob of this uid, with a field manager of its own: the controller's fields stay as they are. Only
    /// the version protects another TYJob of the name: the API server ignores the uid in a write of a custom object's status.
    pub async fn write(&self, job: &JobIdentity, version: u64, status: &JobScheduleStatus) -> JobWriteResult {
        let scheduled = &status.condition;
        let status = TyJobStatus {
            schedule_state: Some(status.state),
            allocations: status.allocations.clone(),
            conditions: vec![Condition {
                type_: condition::SCHEDULED.to_owned(),
                status: if scheduled.holds { "True" } else { "False" }.to_owned(),
                reason: scheduled.reason.to_string(),
                message: scheduled.message.to_string(),
                last_transition_time: Time(scheduled.since),
                observed_generation: None,
            }],
            ..TyJobStatus::default()
        };
        let mut body = json!({
            "apiVersion": keys::API_VERSION,
            "kind": keys::KIND,
            "metadata": { "name": job.key.name, "namespace": job.key.namespace, "uid": job.uid },
            "status": status.of_scheduler(),
        });
        if version > 0 {
            body["metadata"]["resourceVersion"] = version.to_string().into();
        }
        let jobs: Api<TyJobMeta> = Api::namespaced(self.0.clone(), &job.key.namespace);
        let apply = PatchParams::apply(keys::SCHEDULER_MANAGER).force();
        match jobs.patch_status(&job.key.name, &apply, &Patch::Apply(body)).await {
            Ok(job) => {
                let version = job.metadata.resource_version.and_then(|version| version.parse().ok());
                JobWriteResult::Done(version.unwrap_or(0))
            }
            Err(error) if status_code(&error) == Some(404) => JobWriteResult::Gone,
            Err(error) if status_code(&error) == Some(409) && version > 0 => JobWriteResult::Stale,
            Err(error) if is_too_large(&error) => JobWriteResult::TooLarge(said(&error)),
            Err(error) => JobWriteResult::Failed(said(&error)),
        }
    }
}

/// Of the answer to a write, only the metadata is read.
#[derive(Debug, Clone, Deserialize, Resource)]
#[resource(inherit = TyJob)]
struct TyJobMeta {
    metadata: ObjectMeta,
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::quota::LimitRangeRules;
    use baton_contract::tyjob::{BasicPolicy, JobQueuePolicy};
    use baton_decide::tyjob::placement::{Folded, GPU_PERCENT, Seat};

    fn raw(edit: impl FnOnce(&mut Value)) -> RawTyJob {
        let container = |limits: Value| json!([{ "name": "main", "image": "i", "resources": { "limits": limits } }]);
        let mut job = json!({
            "apiVersion": keys::API_VERSION, "kind": keys::KIND,
            "metadata": { "namespace": "ml", "name": "rl", "uid": "u", "resourceVersion": "42" },
            "spec": {
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }],
                "leader": { "name": "learner", "template": {
                    "metadata": { "labels": { "team": "a" } },
                    "spec": {
                        "containers": container(json!({ "cpu": "2", "nvidia.com/gpu": "1" })),
                        "volumes": [{ "name": "scratch", "ephemeral": {} }],
                        "nodeSelector": { "zone": "z" },
                    },
                }},
                "workerSets": [{ "name": "actor", "counts": 3, "template": {
                    "spec": { "containers": container(json!({ "cpu": "500m" })) },
                }}],
                "schedulerPolicy": { "jobQueuePolicy": "DRF", "basicPolicy": "Gang" },
            },
            "status": { "attempt": 2, "stage": "Pending" },
        });
        edit(&mut job);
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn a_job_becomes_what_its_pods_would_ask_for() {
        let facts = job_facts(raw(|_| {})).unwrap();
        assert_eq!((facts.version, facts.attempt, facts.has_address), (42, 2, false));
        let spec = facts.spec.unwrap();
        assert_eq!((spec.queue, spec.basic, spec.min_workers), (JobQueuePolicy::Drf, BasicPolicy::Gang, 1));
        let [leader, actor] = &spec.parts[..] else { panic!("a leader and one set") };
        let asked = &leader.pod.spec;
        assert_eq!(Folded::wanted(&asked.requests).get(GPU_PERCENT), 100);
        assert_eq!((asked.requests.milli_cpu, actor.pod.spec.requests.milli_cpu), (2000, 500));
        assert_eq!(asked.node_selector.get("zone").map(String::as_str), Some("z"));
        assert_eq!(asked.labels.get("team").map(String::as_str), Some("a"));
        assert_eq!(asked.labels.get(keys::ROLE).map(String::as_str), Some("leader"));
        assert_eq!(asked.volumes.len(), 1, "the shared claim, not the ephemeral one");
        assert!(leader.pod.handoff.asks_for_devices() && asked.job.is_none());
        assert_eq!(actor.counts, 3);
    }

    #[test]
    fn what_limit_ranges_give_counts_as_if_it_stood_in_the_template() {
        let range = json!({ "type": "Container", "defaultRequest": { "cpu": "200m" },
            "default": { "cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "1" } });
        let range = json!({ "metadata": { "name": "l" }, "spec": { "limits": [range] } });
        let rules = LimitRangeRules::read(&serde_json::from_value(range).unwrap());
        let with = |init: Value, main: Value| {
            let facts = job_facts(raw(|job| {
                let pod = &mut job["spec"]["workerSets"][0]["template"]["spec"];
                pod["overhead"] = json!({ "cpu": "10m" });
                pod["initContainers"] = json!([{ "name": "init", "image": "i", "resources": init }]);
                pod["containers"][0]["resources"] = main;
            }));
            facts.unwrap()
        };
        let pod = |facts: &JobFacts| facts.spec.as_ref().unwrap().parts[1].pod.clone();
        let mut unsaid = with(json!({}), json!({ "limits": { "cpu": "500m" } }));
        let own = |cpu: &str| json!({ "cpu": cpu, "memory": "1Gi", "nvidia.com/gpu": "1" });
        let said = with(
            json!({ "limits": own("1500m"), "requests": own("200m") }),
            json!({ "limits": own("500m"), "requests": own("500m") }),
        );
        assert_ne!(pod(&unsaid), pod(&said));
        let template = unsaid.clone();
        unsaid.fill(|ask| {
            let mut ask = ask.clone();
            rules.fill(&mut ask);
            ask
        });
        assert_eq!(pod(&unsaid), pod(&said));
        unsaid.fill(PodAsk::clone);
        assert_eq!(unsaid, template, "without a range it is the template's again");
        let mut whole = job_facts(raw(|job| {
            job["spec"]["leader"]["template"]["spec"]["resources"] = json!({ "limits": { "memory": "4Gi" } });
        }))
        .unwrap();
        let template = whole.clone();
        whole.fill(PodAsk::clone);
        assert_eq!(whole, template);
    }

    #[test]
    fn pods_are_planned_with_the_labels_that_they_will_have_and_what_terms_make_of_them() {
        let near = |selector: Value, keys: Value| {
            json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname", "labelSelector": selector, "matchLabelKeys": keys,
            }] } })
        };
        let facts = job_facts(raw(|job| {
            let selector = json!({ "matchLabels": { keys::ROLE: "leader", keys::INDEX: "0" } });
            job["spec"]["workerSets"][0]["template"]["spec"]["affinity"] = near(selector, json!([keys::JOB]));
        }));
        let facts = facts.unwrap();
        let spec = facts.spec.as_ref().unwrap();
        let label = |part: usize, index| {
            let seat = Seat { pod: "p".into(), part, index };
            spec.parts[part].pod_of(&facts.job, &seat).spec.labels.get(keys::INDEX).cloned()
        };
        assert_eq!((label(0, 0).as_deref(), label(1, 2).as_deref()), (Some("0"), Some("2")));
        let merged = &spec.parts[1].pod.spec.affinity[0].selector.as_ref().unwrap().match_expressions[0];
        assert_eq!((merged.key.as_str(), &*merged.values), (keys::JOB, &["rl".to_owned()][..]));
        // Where no pod selects by the index, all workers of a set are one record.
        let plain = job_facts(raw(|_| {})).unwrap().spec.unwrap();
        assert!(plain.parts.iter().all(|part| !part.indexed));
    }

    #[test]
    fn numbers_and_nulls_of_a_template_are_read_as_the_api_server_reads_them() {
        let facts = job_facts(raw(|job| {
            let pod = &mut job["spec"]["leader"]["template"]["spec"];
            pod["containers"][0]["resources"]["limits"] = json!({ "cpu": 0.5, "nvidia.com/gpu": 2 });
            pod["overhead"] = json!({ "cpu": 1 });
            pod["nodeSelector"] = Value::Null;
            pod["affinity"] = json!({ "nodeAffinity": null });
            pod["tolerations"] = Value::Null;
        }));
        let asked = facts.unwrap().spec.unwrap().parts[0].pod.spec.requests.clone();
        assert_eq!((asked.milli_cpu, Folded::wanted(&asked).get(GPU_PERCENT)), (1500, 200));
    }

    #[test]
    fn a_template_that_cannot_be_read_is_an_invalid_edit_of_a_started_job() {
        let edited = |stage: &'static str| {
            raw(move |job| {
                job["status"]["stage"] = stage.into();
                job["status"]["acceptedSpec"] = job["spec"].clone();
                let mut set = job["spec"]["workerSets"][0].clone();
                set["name"] = "late".into();
                set["template"]["spec"]["tolerations"] = json!({ "key": "gpu" });
                job["spec"]["workerSets"].as_array_mut().unwrap().push(set);
            })
        };
        let spec = job_facts(edited("Running")).unwrap().spec.unwrap();
        assert_eq!(spec.parts.len(), 2, "the last valid spec");
        let shown = edited("Running").shown().unwrap();
        let effective = shown.job.effective(shown.unreadable.as_ref()).unwrap();
        assert!(effective.refused[0].message.contains("the template of late: "), "{:?}", effective.refused);
        assert_eq!(effective.spec.worker_sets.len(), 1);
        // A job that has not started waits with the reason.
        assert!(job_facts(edited("Pending")).unwrap().spec.unwrap_err().contains("the template of late: "));
        assert!(edited("Pending").shown().unwrap().unreadable.is_none());
    }

    #[test]
    fn a_job_that_cannot_be_has_no_spec_and_one_with_a_strange_status_is_left_alone() {
        let facts = job_facts(raw(|job| job["spec"]["workerSets"] = json!([]))).unwrap();
        assert!(facts.spec.unwrap_err().contains("spec.workerSets"));
        assert!(job_facts(raw(|job| job["status"]["attempt"] = "two".into())).is_err());
    }
}
