//! filter, prioritize and preempt: recorded and hand-made questions.

use super::process::Extender;
use crate::prelude::*;

fn recorded() -> Vec<Value> {
    let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folder = std::env::var_os("BATON_FIXTURES").map_or_else(own, PathBuf::from);
    let text = std::fs::read_to_string(folder.join("kube-scheduler/extender-requests.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn names(value: &Value) -> Vec<String> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("no list: {value}"))
        .iter()
        .map(|n| n.as_str().unwrap().to_owned())
        .collect()
}

fn asks_for_devices(pod: &Value) -> bool {
    let lists = [&pod["spec"]["containers"], &pod["spec"]["initContainers"]];
    let mut limits =
        lists.into_iter().filter_map(Value::as_array).flatten().filter_map(|c| c["resources"]["limits"].as_object());
    limits.any(|limits| limits.keys().any(|name| key::is_device_resource(name)))
}

fn gpu_pod(limits: Value) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ml", "uid": "u-1", "creationTimestamp": null},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}, "status": {}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_requests_of_a_real_kube_scheduler_are_answered_for_every_node() {
    let requests = recorded();
    let mut nodes: Vec<String> = requests.iter().flat_map(|request| names(&request["body"]["NodeNames"])).collect();
    nodes.sort();
    nodes.dedup();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    let extender = Extender::start(&nodes).await;
    let (mut judged, mut with_devices) = (0, 0);
    for request in &requests {
        let result = extender.call(request["path"].as_str().unwrap(), &request["body"]).await;
        assert_eq!(result["Error"], "", "{result}");
        assert_eq!(result["Nodes"], Value::Null);
        // Every node has 8 free GPUs and a live agent; all other rules are kube-scheduler's.
        assert_eq!(result["NodeNames"], request["body"]["NodeNames"], "{result}");
        judged += names(&result["NodeNames"]).len();
        with_devices += usize::from(asks_for_devices(&request["body"]["Pod"]));
    }
    assert!(with_devices > 0, "no recorded pod asks for devices");
    println!(
        "{} recorded requests, {with_devices} with devices, {judged} verdicts on {} nodes",
        requests.len(),
        nodes.len()
    );
    // The same questions about unknown nodes: a device pod must not go there, and of others we say nothing.
    for request in &requests {
        let mut body = request["body"].clone();
        body["NodeNames"] = json!(["elsewhere"]);
        let result = extender.call("/filter", &body).await;
        let fits = !asks_for_devices(&body["Pod"]);
        assert_eq!(names(&result["NodeNames"]).len(), usize::from(fits), "{result}");
        assert_eq!(result["FailedNodes"].as_object().unwrap().len(), usize::from(!fits), "{result}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_say_why_and_whether_preemption_may_help() {
    let extender = Extender::start(&["n1", "n2"]).await;
    extender.binds("holder", json!({"nvidia.com/gpu": "6"}), "n1").await;
    let ask = |limits: Value| json!({"Pod": gpu_pod(limits), "Nodes": null, "NodeNames": ["n1", "n2"]});
    let four = extender.call("/filter", &ask(json!({"nvidia.com/gpu": "4"}))).await;
    assert_eq!(four["NodeNames"], json!(["n2"]));
    assert_eq!(four["FailedNodes"], json!({"n1": "have fewer than 4 free GPUs"}));
    assert_eq!(four["FailedAndUnresolvableNodes"], json!({}));
    let nine = extender.call("/filter", &ask(json!({"nvidia.com/gpu": "9"}))).await;
    assert_eq!(nine["NodeNames"], json!([]), "an empty list, not null: null is no answer");
    assert_eq!(nine["FailedAndUnresolvableNodes"].as_object().unwrap().len(), 2, "{nine}");
    let unserved = extender.call("/filter", &ask(json!({"nvidia.com/mig-1g.10gb": "1"}))).await;
    assert_eq!(
        unserved["FailedAndUnresolvableNodes"]["n1"],
        "have a node daemon that does not serve nvidia.com/mig-1g.10gb"
    );
    let invalid = extender.call("/filter", &ask(json!({"koordinator.sh/gpu-core": "50"}))).await;
    tells(invalid["FailedAndUnresolvableNodes"]["n2"].as_str().unwrap(), ["gpu-core alone is not a share"]);
    // Whole Node objects instead of names, and keys in camelCase.
    let node = |name: &str| json!({"metadata": {"name": name, "labels": {"kept": "yes"}}});
    let list = json!({"metadata": {}, "items": [node("n1"), node("n2")]});
    let whole = json!({"pod": gpu_pod(json!({"nvidia.com/gpu": "4"})), "nodes": list, "nodeNames": null});
    let whole = extender.call("/filter", &whole).await;
    assert_eq!(whole["NodeNames"], Value::Null);
    assert_eq!(whole["Nodes"]["items"], json!([node("n2")]));
    let none = json!({"Pod": gpu_pod(json!({"nvidia.com/gpu": "4"})), "Nodes": null, "NodeNames": null});
    let none = extender.call("/filter", &none).await;
    assert_eq!((&none["NodeNames"], &none["Error"]), (&json!([]), &json!("")));
    let none = json!({"Pod": gpu_pod(json!({"nvidia.com/gpu": "4"})), "Nodes": {"items": null}});
    assert_eq!(extender.call("/filter", &none).await["Nodes"], json!({"items": null}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gang_pods_are_refused_with_a_way_out_unless_ignored() {
    let mut pod = gpu_pod(json!({"nvidia.com/gpu": "1"}));
    pod["metadata"]["labels"] = json!({"pod-group.scheduling.sigs.k8s.io": "ring"});
    let body = json!({"Pod": pod, "NodeNames": ["n1"]});
    let refusing = Extender::start(&["n1"]).await;
    let result = refusing.call("/filter", &body).await;
    tells(result["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap(), ["ring", "--extender-gang=ignore"]);
    let ignoring = Extender::start_with(&["n1"], "", &["--extender-gang=ignore"]).await;
    assert_eq!(ignoring.call("/filter", &body).await["NodeNames"], json!(["n1"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prioritize_packs_gpus_within_0_to_10() {
    let extender = Extender::start(&["empty", "half", "full"]).await;
    for (name, node, gpus) in [("a", "half", "4"), ("b", "full", "8")] {
        extender.binds(name, json!({"nvidia.com/gpu": gpus}), node).await;
    }
    let candidates = json!(["empty", "half", "full", "unknown"]);
    let scores = extender
        .call("/prioritize", &json!({"Pod": gpu_pod(json!({"nvidia.com/gpu": "2"})), "NodeNames": candidates}))
        .await;
    let score = |name: &str| {
        let of = scores.as_array().unwrap().iter().find(|entry| entry["Host"] == name).unwrap();
        of["Score"].as_i64().unwrap()
    };
    println!("scores: {scores}");
    assert!(score("half") > score("empty"), "{scores}");
    assert_eq!((score("full"), score("unknown")), (0, 0), "{scores}");
    assert!(["empty", "half"].iter().all(|name| (0..=10).contains(&score(name))), "{scores}");
    let plain =
        extender.call("/prioritize", &json!({"Pod": gpu_pod(json!({"cpu": "1"})), "NodeNames": ["half"]})).await;
    assert_eq!(plain, json!([{"Host": "half", "Score": 0}]), "a pod without devices is no matter of ours");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preempt_keeps_nodes_where_victims_free_enough_and_adds_missing_victims() {
    let extender = Extender::start(&["n1", "n2", "n3"]).await;
    let mut uids = Vec::new();
    for (name, node, gpus) in [("a", "n1", "5"), ("b", "n1", "3"), ("c", "n2", "8")] {
        let pod = extender.binds(name, json!({"nvidia.com/gpu": gpus}), node).await;
        extender.cluster.set_lock(node, None).await;
        // The watch shows it after the answer, and no pod is a victim before.
        extender.in_state(name, "bound").await;
        uids.push(pod.uid().unwrap());
    }
    let [a, b, c] = uids.try_into().unwrap();
    let mut pod = gpu_pod(json!({"nvidia.com/gpu": "4"}));
    pod["spec"]["priority"] = json!(100);
    // n1: the proposed victim frees 3 of 4, so the other pod is needed, and then the first one is not ours to spare.
    let victims = json!({"n1": {"Pods": [{"UID": b}], "NumPDBViolations": 1}, "n2": {"Pods": [{"UID": c}]}, "n3": {"Pods": null},
        "unknown": null});
    let body = json!({"Pod": pod, "NodeNameToVictims": null, "NodeNameToMetaVictims": victims});
    let result = extender.call("/preempt", &body).await;
    let expected = json!({"n1": {"Pods": [{"UID": b}, {"UID": a}], "NumPDBViolations": 1},
        "n2": {"Pods": [{"UID": c}], "NumPDBViolations": 0}, "n3": {"Pods": [], "NumPDBViolations": 0}});
    assert_eq!(result["NodeNameToMetaVictims"], expected);
    // As from kubernetes#135486 on: kube-scheduler lacks nothing on the full node, and names it all the same.
    let victims = json!({"n2": {"Pods": []}});
    let result = extender.call("/preempt", &json!({"Pod": pod, "NodeNameToMetaVictims": victims})).await;
    assert_eq!(result["NodeNameToMetaVictims"], json!({"n2": {"Pods": [{"UID": c}], "NumPDBViolations": 0}}));
    // Of the same priority no pod is added; whole pods are read as well as uids.
    pod["spec"]["priority"] = json!(0);
    let victims = json!({"n1": {"Pods": [{"metadata": {"uid": b}}], "NumPDBViolations": 0}, "n2": {"Pods": [{"metadata": {"uid": c}}]}});
    let result = extender.call("/preempt", &json!({"Pod": pod, "NodeNameToVictims": victims})).await;
    assert_eq!(result["NodeNameToMetaVictims"], json!({"n2": {"Pods": [{"UID": c}], "NumPDBViolations": 0}}));
}
