//! Port-forwards: bytes to and from a port that a pod declares, by kube-rs over TLS, with the verbs that a real server asks for.

use baton::sim::apiserver::Rule;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{HttpApi, JSON, MERGE, PODS, message};

/// A server with the pod `p`, one port of which answers what it is sent, until its client has sent all; and that port.
async fn with_pod(c: &HttpApi) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut word = [0; 4];
            stream.read_exact(&mut word).await.unwrap();
            stream.write_all(&word.repeat(100_000)).await.unwrap();
        }
    });
    let ports = json!([{"containerPort": port}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "node-a", "containers": [{"name": "c", "image": "i", "ports": ports}]}});
    assert_eq!(c.post(PODS, pod).await.0, 201);
    let status = json!({"status": {"phase": "Running"}});
    assert_eq!(c.patch(&format!("{PODS}/p/status"), MERGE, status).await.0, 200);
    port
}

async fn pods(c: &HttpApi, user: &str) -> Api<Pod> {
    let config = Kubeconfig::from_yaml(&c.server.kubeconfig(user)).unwrap();
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
    Api::namespaced(Client::try_from(config).unwrap(), "default")
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_and_go_and_the_end_of_the_port_is_the_end_of_the_stream() {
    let c = HttpApi::new().await;
    let port = with_pod(&c).await;
    let mut forward = pods(&c, "admin").await.portforward("p", &[port]).await.unwrap();
    let mut stream = forward.take_stream(port).unwrap();
    stream.write_all(b"word").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"word".repeat(100_000));
    drop(stream);
    assert_eq!(forward.take_error(port).unwrap().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_the_pod_does_not_declare_is_refused_on_its_own_channel() {
    let c = HttpApi::new().await;
    let port = with_pod(&c).await;
    // It listens, and is none of the pod's.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let mut forward = pods(&c, "admin").await.portforward("p", &[other, port]).await.unwrap();
    let why = forward.take_error(other).unwrap().await.unwrap();
    assert!(why.contains(&other.to_string()) && why.contains("connection refused"), "{why}");
    let mut stream = forward.take_stream(port).unwrap();
    stream.write_all(b"word").await.unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"word");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_get_and_create_and_a_pod_that_runs() {
    let c = HttpApi::new().await;
    let port = with_pod(&c).await;
    for (user, verbs, text) in [
        ("ann", "", "pods \"p\" is forbidden: User \"ann\" cannot get resource \"pods/portforward\""),
        ("bob", "create", "pods \"p\" is forbidden: User \"bob\" cannot get resource \"pods/portforward\""),
        ("eve", "get", "pods \"p\" is forbidden: "),
    ] {
        c.server.allow(user, vec![Rule::new("core", "pods/portforward", verbs)]);
        let why = pods(&c, user).await.portforward("p", &[port]).await.err().unwrap();
        let kube::Error::Api(status) = why else { panic!("{why}") };
        assert!(status.code == 403 && status.message.starts_with(text), "{}", status.message);
    }
    c.server.allow("joe", vec![Rule::new("core", "pods/portforward", "get create")]);
    assert!(pods(&c, "joe").await.portforward("p", &[port]).await.is_ok());
    let forward = |name: &str| format!("{PODS}/{name}/portforward?ports={port}");
    let (code, body) = c.get(&forward("p")).await;
    assert_eq!((code, message(&body)), (400, "Upgrade request required"), "without a WebSocket");
    assert_eq!(c.get(&forward("absent")).await.0, 404);
    c.pod("q").await;
    let (code, body) = c.get(&forward("q")).await;
    assert_eq!((code, message(&body)), (400, "pod q does not have a host assigned"));
    let stranger = c.server.token("stranger");
    assert_eq!(c.with_token(&stranger, &[], "GET", (&forward("p"), JSON), None).await.0, 403);
}
