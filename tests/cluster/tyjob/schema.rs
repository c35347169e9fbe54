//! What the API server says of a TYJob before anybody else sees it.

use baton::contract::tyjob::{BasicPolicy, CleanPodPolicy, crd};

use super::verbs::{JobCluster, SOON, job};
use crate::prelude::*;

async fn create(cluster: &JobCluster, job: Value) -> Result<DynamicObject, kube::Error> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("arranger.taichu.io", "v1alpha1", "TYJob"));
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), "default", &resource);
    api.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_are_filled_in_and_unknown_parts_of_templates_are_kept() {
    let cluster = JobCluster::start().await;
    let made = cluster
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
    let cluster = JobCluster::start().await;
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
        let error = create(&cluster, job(&format!("bad-{number}"), edit)).await.unwrap_err().to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}

/// An answer of the API server that refuses: its code and its words.
fn refusal<T: std::fmt::Debug>(answer: Result<T, kube::Error>) -> (u16, String) {
    match answer {
        Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rule_between_fields_refuses_at_the_door_with_its_field_and_its_words() {
    let cluster = JobCluster::start().await;
    let long = "a".repeat(61);
    let bad: [(&str, &str, &str, Edit); 10] = [
        ("a.b", "<nil>", "the name of a job is the first part", |_| {}),
        ("rl", "spec.leader.name", "the leader pod <job>-<leader> would have", |job| {
            job["spec"]["leader"]["name"] = "a".repeat(62).into();
        }),
        (&long, "spec.workerSets", "a worker pod <job>-<workerset>-<index> would have", |job| {
            job["spec"]["leader"]["name"] = "l".into();
            job["spec"]["workerSets"][0]["name"] = "w".into();
        }),
        ("rl", "spec.minWorkersNum", "minWorkersNum is more than the workers", |job| {
            job["spec"]["minWorkersNum"] = 1000.into();
        }),
        ("rl", "spec.workerSets", "more than 5000 workers in all", |job| {
            let mut other = job["spec"]["workerSets"][0].clone();
            other["name"] = "other".into();
            other["counts"] = 5000.into();
            job["spec"]["workerSets"].as_array_mut().unwrap().push(other);
        }),
        ("rl", "spec.leader.template.spec.restartPolicy", "restartPolicy Always never ends", |job| {
            job["spec"]["leader"]["template"]["spec"]["restartPolicy"] = "Always".into();
        }),
        ("rl", "spec.leader.name", "the leader and a worker would have the same pod name", |job| {
            job["spec"]["leader"]["name"] = "actor-0".into();
        }),
        ("rl", "spec.leader.name", "the leader and a worker set have the same name", |job| {
            job["spec"]["leader"]["name"] = "actor".into();
        }),
        ("rl", "spec.leader.template.spec.schedulerName", "leave it out", |job| {
            job["spec"]["leader"]["template"]["spec"]["schedulerName"] = "other".into();
        }),
        ("rl", "spec.workerSets[0].template.spec.nodeName", "leave it out", |job| {
            job["spec"]["workerSets"][0]["template"]["spec"]["nodeName"] = "node-1".into();
        }),
    ];
    for (name, field, words, edit) in bad {
        let (code, text) = refusal(create(&cluster, job(name, edit)).await);
        assert_eq!(code, 422, "{text}");
        assert!(text.contains(words) && text.contains(field), "{field}, {words}: {text}");
        assert!(text.contains("Invalid value: \"object\""), "{text}");
    }
    // An edit is held to the same rules.
    cluster.submit("rl", |_| {}).await;
    let edit = Patch::Merge(json!({ "spec": { "minWorkersNum": 1000 } }));
    let (code, text) = refusal(cluster.jobs().patch("rl", &PatchParams::default(), &edit).await);
    assert!(code == 422 && text.contains("minWorkersNum is more than the workers"), "{text}");
    // With a mistake of another kind, rules are not looked at.
    let both = job("both", |job| {
        job["spec"]["minWorkersNum"] = 1000.into();
        job["spec"]["cleanPodPolicy"] = "Some".into();
    });
    let (_, text) = refusal(create(&cluster, both).await);
    assert!(
        text.contains("some validation rules were not checked") && !text.contains("minWorkersNum is more"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_is_no_cel_is_refused_and_a_new_rule_spares_untouched_fields() {
    let cluster = JobCluster::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let definition = |rule: &str| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "boxes.example.com" },
            "spec": {
                "group": "example.com", "scope": "Namespaced",
                "names": { "plural": "boxes", "singular": "box", "kind": "Box", "listKind": "BoxList" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": { "type": "object", "properties": {
                        "size": {
                            "type": "object",
                            "properties": { "wide": { "type": "integer" } },
                            "x-kubernetes-validations": [{ "rule": rule }],
                        },
                        "colour": { "type": "string" },
                    }}},
                }}}],
            },
        })
    };
    let apply = PatchParams::apply("test").force();
    let (code, text) =
        refusal(definitions.patch("boxes.example.com", &apply, &Patch::Apply(definition("self.wide >"))).await);
    assert!(
        code == 422 && text.contains("x-kubernetes-validations[0].rule") && text.contains("compilation failed"),
        "{text}"
    );
    definitions.patch("boxes.example.com", &apply, &Patch::Apply(definition("self.wide > 0"))).await.unwrap();
    let boxes: Api<DynamicObject> = Api::namespaced_with(
        cluster.client.clone(),
        "default",
        &ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("example.com", "v1", "Box"), "boxes"),
    );
    let one = json!({ "apiVersion": "example.com/v1", "kind": "Box", "metadata": { "name": "one" },
        "spec": { "size": { "wide": 2 }, "colour": "red" } });
    let mut none = one.clone();
    none["metadata"]["name"] = "none".into();
    none["spec"]["size"]["wide"] = 0.into();
    let (_, text) = refusal(boxes.create(&PostParams::default(), &serde_json::from_value(none).unwrap()).await);
    assert!(text.contains("spec.size: Invalid value: \"object\": failed rule: self.wide > 0"), "{text}");
    boxes.create(&PostParams::default(), &serde_json::from_value(one).unwrap()).await.unwrap();
    // A stricter rule: the part that it forbids may stay, and may not be written again.
    definitions.patch("boxes.example.com", &apply, &Patch::Apply(definition("self.wide > 5"))).await.unwrap();
    let patch =
        async |spec: Value| boxes.patch("one", &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await;
    patch(json!({ "colour": "blue" })).await.unwrap();
    let (_, text) = refusal(patch(json!({ "size": { "wide": 3 } })).await);
    tells(text, ["failed rule: self.wide > 5"]);
    patch(json!({ "size": { "wide": 6 } })).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_came_in_before_the_rules_and_breaks_one_says_so() {
    let cluster = JobCluster::start().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let apply = async |definition: Value| {
        let apply = PatchParams::apply("test").force();
        definitions.patch("tyjobs.arranger.taichu.io", &apply, &Patch::Apply(definition)).await.unwrap();
    };
    let with_rules = serde_json::to_value(crd()).unwrap();
    let mut without = with_rules.clone();
    let schema = without["spec"]["versions"][0]["schema"]["openAPIV3Schema"].as_object_mut().unwrap();
    assert!(schema.remove("x-kubernetes-validations").is_some());
    apply(without).await;
    create(&cluster, job("a.b", |_| {})).await.unwrap();
    apply(with_rules).await;
    assert_eq!(refusal(create(&cluster, job("c.d", |_| {})).await).0, 422, "the rules are in force");
    let _controller = cluster.controller(&["--leader-elect=false"]);
    until("the status says why", SOON, async || {
        cluster.events("a.b").await.iter().any(|reason| reason == "InvalidSpec").then_some(())
    })
    .await;
    assert!(cluster.pods_of("a.b").await.is_empty());
}
