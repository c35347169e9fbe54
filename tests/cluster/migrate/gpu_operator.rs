//! NVIDIA's GPU operator beside Baton, as docs/migrate.md has it: what it writes on a node stays, and the pod by which its validator
//! tries the device plugin is refused, first by the policy and else by the node daemon.

use super::{OURS, allow};
use crate::prelude::*;

const VALIDATOR: &str = "system:serviceaccount:gpu-operator:nvidia-operator-validator";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gpu_operators_labels_stay_and_its_validators_pod_is_refused() {
    let objects = include_str!("../../fixtures/workloads/gpu-operator.yaml");
    let objects: Vec<Value> = serde_saphyr::from_str_multiple(objects).unwrap();
    let [node, validator] = &objects[..] else { panic!("a node and a pod") };
    let cluster = TestCluster::start(1).await;
    let patch = json!({"metadata": {"labels": node["metadata"]["labels"]}, "spec": node["spec"]});
    cluster.nodes().patch("node-0", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    cluster.create_namespace("gpu-operator").await;

    // The policy's word, which the validator has in its log.
    allow(&cluster, VALIDATOR, json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}])).await;
    let pod: Pod = serde_json::from_value(validator.clone()).unwrap();
    let theirs: Api<Pod> =
        Api::namespaced(cluster.acting_as(VALIDATOR, &["system:serviceaccounts"]).await, "gpu-operator");
    let denied = theirs.create(&PostParams::default(), &pod).await.unwrap_err().to_string();
    tells(denied, ["a pod that asks for devices leaves out spec.nodeName"]);

    // Where the policy lets it through, as with pinnedNamespaces, the node daemon's.
    let pods = cluster.pods_in("gpu-operator");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let status = until("the node refuses it", std::time::Duration::from_secs(60), async || {
        pods.get(&pod.name_any()).await.unwrap().status.filter(|status| status.phase.as_deref() == Some("Failed"))
    })
    .await;
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"), "{status:?}");

    // Baton's pods run beside it, with the tolerations that the two taints ask for.
    let ours = json!({"metadata": {"name": "train"}, "spec": {"schedulerName": OURS,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": super::TAINT, "operator": "Exists"}],
        "containers": [{"name": "main", "image": "docker.io/local/pause:1", "resources": {"limits": {key::NVIDIA_GPU: "8"}}}]}});
    let ours: Pod = serde_json::from_value(ours).unwrap();
    cluster.pods_in("default").create(&PostParams::default(), &ours).await.unwrap();
    cluster.until_running("train").await;
    let now: Node = cluster.nodes().get("node-0").await.unwrap();
    for (label, value) in node["metadata"]["labels"].as_object().unwrap() {
        assert_eq!(now.labels().get(label).map(String::as_str), value.as_str(), "{label}");
    }
    assert_eq!(now.spec.unwrap().taints.unwrap().len(), 2);
}
