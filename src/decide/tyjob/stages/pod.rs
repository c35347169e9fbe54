//! The pod of a job's member: its template, and what the controller adds.

use serde_json::{Map, Value, json};

use super::view::JobView;
use baton_contract::tyjob::{Allocation, JobMember, PodTemplate, Role, TyJobSpec, keys};

/// The names of [`environment`], in its order.
const ENV: [&str; 6] = [
    keys::ENV_NAME,
    keys::ENV_ROLE,
    keys::ENV_WORKER_SET,
    keys::ENV_INDEX,
    keys::ENV_NUM_WORKERS,
    keys::ENV_LEADER_ADDRESS,
];

/// The pod of a member at its place, whole. `leader_address` is given for workers.
pub fn pod_of(
    view: &JobView<'_>,
    spec: &TyJobSpec,
    member: &JobMember<'_>,
    place: &Allocation,
    leader_address: Option<&str>,
) -> Value {
    let meta = &view.job.metadata;
    let job = meta.name.as_deref().unwrap_or_default();
    let mut labels = owned(member.template, "labels");
    let mut label = |key: &str, value: String| labels.insert(key.to_owned(), value.into());
    label(keys::JOB, job.to_owned());
    label(keys::ROLE, member.role.word().to_owned());
    label(keys::ATTEMPT, place.attempt.to_string());
    if let Some(set) = member.worker_set {
        label(keys::WORKER_SET, set.to_owned());
    }
    label(keys::INDEX, member.index.to_string());
    let mut annotations = owned(member.template, "annotations");
    annotations.insert(keys::ALLOCATION.to_owned(), place.node.as_str().into());
    let mut pod = member.template.spec().as_object().cloned().unwrap_or_default();
    pod.insert("schedulerName".to_owned(), view.scheduler_name.into());
    pod.insert("restartPolicy".to_owned(), member.template.restart_policy().into());
    if !spec.volumes.is_empty() {
        let volumes = pod.entry("volumes").or_insert_with(|| json!([]));
        if volumes.is_null() {
            *volumes = json!([]);
        }
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.extend(spec.volumes.iter().cloned());
        }
    }
    let environment = environment(job, spec, member, leader_address);
    for list in ["initContainers", "containers"] {
        for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            add_environment(container, &environment);
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": member.name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": keys::API_VERSION,
                "kind": keys::KIND,
                "name": job,
                "uid": meta.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": pod,
    })
}

fn owned(template: &PodTemplate, map: &str) -> Map<String, Value> {
    template.metadata(map).map(|(key, value)| (key.to_owned(), value.into())).collect()
}

fn environment(
    job: &str,
    spec: &TyJobSpec,
    member: &JobMember<'_>,
    leader_address: Option<&str>,
) -> Vec<(&'static str, String)> {
    let mut all = vec![
        (keys::ENV_NAME, job.to_owned()),
        (keys::ENV_ROLE, member.role.word().to_owned()),
        (keys::ENV_WORKER_SET, member.worker_set.unwrap_or_default().to_owned()),
        (keys::ENV_INDEX, member.index.to_string()),
        (keys::ENV_NUM_WORKERS, spec.total_workers().to_string()),
    ];
    if member.role == Role::Worker {
        all.extend(leader_address.map(|address| (keys::ENV_LEADER_ADDRESS, address.to_owned())));
    }
    all
}

/// Ours come first, so that the container's own may refer to them; a name that the container sets itself is its own.
fn add_environment(container: &mut Value, environment: &[(&'static str, String)]) {
    let own = container["env"].as_array().cloned().unwrap_or_default();
    let theirs = |name: &str| own.iter().any(|entry| entry["name"] == name);
    let ours = environment.iter().filter(|(name, _)| !theirs(name));
    let mut all: Vec<Value> = ours.map(|(name, value)| json!({ "name": name, "value": value })).collect();
    all.extend(own);
    if let Some(container) = container.as_object_mut() {
        container.insert("env".to_owned(), Value::Array(all));
    }
}

/// Variables of ours that a container sets itself, with the container: `(leader/main, TYJOB_NAME)`. Of a job that has started,
/// those of worker sets that `former` does not have.
pub fn overridden_env(spec: &TyJobSpec, former: Option<&TyJobSpec>) -> Vec<(String, &'static str)> {
    let sets = spec.worker_sets.iter().map(|set| (set.name.as_str(), &set.template));
    let mut found = Vec::new();
    for (at, (part, template)) in
        std::iter::once((spec.leader.name.as_str(), &spec.leader.template)).chain(sets).enumerate()
    {
        let known = |former: &TyJobSpec| at == 0 || former.worker_sets.iter().any(|set| set.name == part);
        if former.is_some_and(known) {
            continue;
        }
        // The leader does not get its own address.
        let ours = if at == 0 { &ENV[..ENV.len() - 1] } else { &ENV[..] };
        for list in ["initContainers", "containers"] {
            for container in template.spec()[list].as_array().into_iter().flatten() {
                let own = |name: &str| container["env"].as_array().into_iter().flatten().any(|e| e["name"] == name);
                let place = format!("{part}/{}", container["name"].as_str().unwrap_or_default());
                found.extend(ours.iter().copied().filter(|name| own(name)).map(|name| (place.clone(), name)));
            }
        }
    }
    found
}
