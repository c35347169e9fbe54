//! `baton audit` against an API server over TLS, as an operator runs it.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::process::Command;

use baton::contract::inventory::{self, Device};
use baton::contract::key;
use baton::sim::apiserver::{ApiServer, Options};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

/// Exit code and standard output of `baton audit`.
async fn audit(kubeconfig: &std::path::Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.arg("audit").args(more).env("KUBECONFIG", kubeconfig);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

async fn create<K>(client: &kube::Client, object: Value)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object).unwrap();
    let api: Api<K> = Api::all(client.clone());
    api.create(&PostParams::default(), &object).await.unwrap();
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
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start(Options::default()).await.unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, server.kubeconfig("admin")).unwrap();
    let client = baton::cluster::client::connect(Some(&path)).await.unwrap();

    let (code, said) = audit(&path, &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("baton crds | kubectl apply --server-side -f -"), "{said}");

    Api::all(client.clone()).create(&PostParams::default(), &inventory::crd()).await.unwrap();
    create::<Node>(&client, json!({"metadata": {"name": "node-a"}})).await;
    let gpu = json!({"type": "gpu", "id": "GPU-0", "minor": 0, "health": true, "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}});
    let device = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "node-a"}, "spec": {"devices": [gpu]}});
    create::<Device>(&client, device).await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), &pod("one")).await.unwrap();
    let (code, said) = audit(&path, &[]).await;
    assert_eq!((code, said.as_str()), (Some(0), "1 nodes, 1 Device objects, 1 pods: everything holds\n"));

    pods.create(&PostParams::default(), &pod("two")).await.unwrap();
    let (code, said) = audit(&path, &[]).await;
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("device GPU-0 of node node-a: pods hold 200 of 100 compute"), "{said}");
    let (code, said) = audit(&path, &["-o", "json"]).await;
    assert_eq!(code, Some(1), "{said}");
    let printed: Value = serde_json::from_str(&said).unwrap();
    let first = &printed["violations"][0];
    assert_eq!(
        (&first["kind"], &first["device"], &first["held"]),
        (&json!("DeviceTwice"), &json!("GPU-0"), &json!(200))
    );
    assert!(first["text"].as_str().unwrap().contains("delete all but one"), "{said}");
}
