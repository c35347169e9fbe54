//! `baton get` against an API server over TLS, as an operator runs it.

use crate::prelude::*;

struct Shown(TestServer);

async fn cluster() -> Shown {
    Shown(TestServer::with_tls().await)
}

impl Shown {
    /// Exit code, standard output, standard error.
    async fn baton(&self, args: &str) -> (Option<i32>, String, String) {
        self.0.baton(&args.split(' ').collect::<Vec<_>>()).await
    }

    async fn install_crds(&self) {
        use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
        let (_, crds, _) = self.baton("crds -o json").await;
        let list: Value = serde_json::from_str(&crds).unwrap();
        for crd in list["items"].as_array().unwrap() {
            self.0.create_object::<CustomResourceDefinition>(crd.clone()).await;
        }
    }

    async fn node(&self, name: &str, lock: Option<&str>) {
        let annotations = lock.map(|lock| json!({"scheduling.koordinator.sh/node-lock": lock}));
        self.0.create_object::<Node>(json!({"metadata": {"name": name, "annotations": annotations}})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_without_the_crd_is_told_how_to_get_it() {
    let cluster = cluster().await;
    cluster.node("node-a", None).await;
    let (code, _, said) = cluster.baton("get nodes").await;
    assert_eq!(code, Some(1));
    tells(said, ["baton crds | kubectl apply --server-side -f -"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_nodes_and_pods_are_shown_as_they_are() {
    let cluster = cluster().await;
    cluster.install_crds().await;
    cluster.node("node-a", Some("2026-11-21T02:35:12.000000001Z,default,gone,u1")).await;
    cluster.node("node-b", Some("whatever")).await;
    cluster.node("node-c", None).await;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "waits", "namespace": "default"},
        "spec": {"schedulerName": "baton-scheduler", "containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }))
    .unwrap();
    cluster.0.pods_in("default").create(&PostParams::default(), &pod).await.unwrap();

    let (code, locks, said) = cluster.baton("get locks -o json").await;
    assert_eq!(code, Some(0), "{said}");
    let locks: Value = serde_json::from_str(&locks).unwrap();
    let states: Vec<_> =
        locks["items"].as_array().unwrap().iter().map(|lock| (&lock["node"], &lock["state"])).collect();
    assert_eq!(states, [(&json!("node-a"), &json!("dangling")), (&json!("node-b"), &json!("malformed"))]);
    assert_eq!(locks["items"][0]["holder"], "default/gone");

    let (_, nodes, _) = cluster.baton("get nodes").await;
    assert_eq!(nodes.lines().count(), 4, "{nodes}");
    assert!(nodes.starts_with("NAME"), "{nodes}");
    let (_, one, _) = cluster.baton("get nodes node-c -o yaml").await;
    assert!(one.contains("name: node-c") && !one.contains("node-a"), "{one}");
    let (_, pods, _) = cluster.baton("get pods").await;
    assert!(pods.contains("waits") && pods.contains("nvidia.com/gpu=1"), "{pods}");
    // As kubectl: the namespace of the context, where none is named.
    let path = &cluster.0.kubeconfig;
    let mut config: Value = baton::ops::config::read_yaml_value(&std::fs::read_to_string(path).unwrap()).unwrap();
    config["contexts"][0]["context"]["namespace"] = json!("elsewhere");
    let own = std::fs::read(path).unwrap();
    std::fs::write(path, config.to_string()).unwrap();
    assert!(!cluster.baton("get pods").await.1.contains("waits"));
    assert!(cluster.baton("get pods -n default").await.1.contains("waits"));
    std::fs::write(path, own).unwrap();
    let (code, _, said) = cluster.baton("get nodes node-z").await;
    assert_eq!(code, Some(1));
    tells(said, ["node-z"]);
}
