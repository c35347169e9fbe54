//! `baton audit` against an API server over TLS, as an operator runs it.

use baton::contract::inventory;
use k8s_openapi::api::resource::v1::ResourceSlice;

use crate::prelude::*;

/// All output of `baton audit`, which ends with this code.
async fn audit(server: &TestServer, more: &[&str], expected: i32) -> String {
    let (code, out, err) = server.baton(&[&["audit"], more].concat()).await;
    let said = out + &err;
    assert_eq!(code, Some(expected), "{said}");
    said
}

fn pod(name: &str) -> Pod {
    let resources = json!({"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"});
    let entry = json!({"minor": 0, "id": "GPU-0", "resources": resources});
    let split = json!({"version": 1, "node": "node-a", "containers": {"main": {"gpu": [entry.clone()]}}}).to_string();
    let merged = json!({"gpu": [entry]}).to_string();
    let annotations = json!({
        key::BIND_TIMESTAMP: "1795226400000000000", key::CONTAINER_DEVICES: split, key::DEVICE_ALLOCATED: merged,
    });
    let limits = json!({"nvidia.com/gpu": "1"});
    let containers = json!([{"name": "main", "image": "i", "resources": {"limits": limits}}]);
    let spec = json!({"nodeName": "node-a", "schedulerName": "baton-scheduler", "containers": containers});
    let metadata = json!({"name": name, "namespace": "default", "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sound_cluster_passes_and_a_device_of_two_pods_is_named_with_exit_code_one() {
    let server = TestServer::with_tls().await;
    let said = audit(&server, &[], 2).await;
    assert!(said.contains("baton: no verdict: "), "{said}");
    assert!(said.contains("baton crds | kubectl apply --server-side -f -"), "{said}");

    server.create_crds([inventory::crd()]).await;
    server.create_object::<Node>(json!({"metadata": {"name": "node-a"}})).await;
    let gpu = json!({"type": "gpu", "id": "GPU-0", "minor": 0, "health": true, "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}});
    let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "node-a"}, "spec": {"devices": [gpu]}});
    server.create_object::<Device>(device).await;
    let pods = server.pods_in("default");
    pods.create(&PostParams::default(), &pod("one")).await.unwrap();
    let containers = json!([{"name": "main", "image": "i"}]);
    let idle = json!({"metadata": {"name": "no-devices"}, "spec": {"containers": containers}});
    pods.create(&PostParams::default(), &serde_json::from_value(idle).unwrap()).await.unwrap();
    let said = audit(&server, &[], 0).await;
    // tests/hostile is about the policies that this server lacks.
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].starts_with("note: no node daemon has reported from node-a, so no new pod gets devices"),
        "{said}"
    );
    assert!(lines[1].starts_with("note: no admission policy"), "{said}");
    let verdict =
        "1 node, 1 Device object, 1 pod that asks for devices: no violation, but 1 node takes no new pods with devices";
    assert_eq!(lines[2..], [verdict]);

    pods.create(&PostParams::default(), &pod("two")).await.unwrap();
    tells(audit(&server, &[], 1).await, ["device GPU-0 of node node-a: pods hold 200 of 100 compute"]);
    let said = audit(&server, &["-o", "json"], 1).await;
    let printed: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&printed["apiVersion"], &printed["kind"]), (&"baton.io/v1alpha1".into(), &"AuditReport".into()));
    assert_eq!((&printed["pods"], &printed["podsWithDevices"]), (&json!(3), &json!(2)));
    let first = &printed["violations"][0];
    assert_eq!(
        (&first["kind"], &first["device"], &first["held"]),
        (&json!("DeviceTwice"), &json!("GPU-0"), &json!(200))
    );
    assert!(first["text"].as_str().unwrap().contains("delete all but one"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_gpus_another_driver_offers_is_named() {
    let server = TestServer::with_tls().await;
    server.create_crds([inventory::crd()]).await;
    for node in ["node-a", "node-b"] {
        server.create_object::<Node>(json!({"metadata": {"name": node}})).await;
        let pool = json!({"name": node, "generation": 1, "resourceSliceCount": 1});
        let spec = json!({"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]});
        server
            .create_object::<ResourceSlice>(json!({"metadata": {"name": format!("{node}-gpus")}, "spec": spec}))
            .await;
    }
    let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "node-a"}, "spec": {"devices": []}});
    server.create_object::<Device>(device).await;
    let said = audit(&server, &[], 1).await;
    assert!(said.contains("node node-a: gpu.nvidia.com offers its GPUs by ResourceSlices"), "{said}");
    assert!(!said.contains("node-b"), "that driver's own node: {said}");
}
