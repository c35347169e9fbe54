//! What the API server says of a TYJob before anybody else sees it.

use baton::contract::tyjob::{BasicPolicy, CleanPodPolicy};
use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::stage::{Theatre, job};

async fn create(theatre: &Theatre, job: Value) -> Result<DynamicObject, kube::Error> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("arranger.taichu.io", "v1alpha1", "TYJob"));
    let api: Api<DynamicObject> = Api::namespaced_with(theatre.client.clone(), "default", &resource);
    api.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_filled_in_and_unknown_parts_of_templates_are_kept() {
    let theatre = Theatre::open().await;
    let made = theatre
        .submit("rl", |job| {
            job["spec"]["leader"]["template"]["spec"]["future"] = json!({ "a": [1] });
            job["spec"]["workerSets"][0].as_object_mut().unwrap().remove("counts");
        })
        .await;
    let spec = made.spec;
    assert_eq!((spec.restart_limit, spec.min_workers_num, spec.priority), (3, 1, 5));
    assert_eq!((spec.worker_sets[0].counts, spec.clean_pod_policy), (1, CleanPodPolicy::All));
    assert_eq!(spec.scheduler_policy.basic_policy, BasicPolicy::BinPack);
    assert_eq!(spec.leader.template.spec()["future"], json!({ "a": [1] }));
}

/// Spoils a job.
type Edit = fn(&mut Value);

#[tokio::test(flavor = "multi_thread")]
async fn what_the_schema_can_refuse_is_refused_at_the_door() {
    let theatre = Theatre::open().await;
    let bad: [(&str, Edit); 12] = [
        ("spec.priority", |job| job["spec"]["priority"] = 11.into()),
        ("spec.priority", |job| job["spec"]["priority"] = "high".into()),
        ("spec.restartLimit", |job| job["spec"]["restartLimit"] = (-1).into()),
        ("spec.workerSets", |job| job["spec"]["workerSets"] = json!([])),
        ("counts", |job| job["spec"]["workerSets"][0]["counts"] = 0.into()),
        ("spec.leader", |job| drop(job["spec"].as_object_mut().unwrap().remove("leader"))),
        ("spec.leader.name", |job| job["spec"]["leader"]["name"] = "Learner".into()),
        ("containers", |job| job["spec"]["leader"]["template"]["spec"]["containers"] = json!([])),
        ("cleanPodPolicy", |job| job["spec"]["cleanPodPolicy"] = "Some".into()),
        ("basicPolicy", |job| job["spec"]["schedulerPolicy"] = json!({ "basicPolicy": "binpack" })),
        ("workerSets[1]", |job| {
            let set = job["spec"]["workerSets"][0].clone();
            job["spec"]["workerSets"].as_array_mut().unwrap().push(set);
        }),
        ("restartPolicy", |job| job["spec"]["leader"]["template"]["spec"]["restartPolicy"] = "Sometimes".into()),
    ];
    for (number, (field, edit)) in bad.into_iter().enumerate() {
        let error = create(&theatre, job(&format!("bad-{number}"), edit)).await.unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}
