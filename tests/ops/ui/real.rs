//! `baton ui` beside daemons that ask for tokens, through the API server's proxy to their pods, with an operator's rights.

use std::net::SocketAddr;

use baton::contract::key;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::http::{SOON, Ui, send};
use crate::harness::daemon::Daemon;
use crate::harness::pods::pod;
use crate::harness::wait::until;
use crate::harness::{NAMESPACE, TestCluster, TestServer};

/// The address that a daemon has logged: `probes` or `admin HTTP`.
fn address(daemon: &Daemon, what: &str) -> Option<SocketAddr> {
    let output = daemon.output();
    output.rsplit_once(&format!("{what} address="))?.1.split_whitespace().next()?.parse().ok()
}

/// The pod in which the daemon would run.
async fn pod_of(cluster: &TestCluster, daemon: &Daemon, name: &str, labels: Value, node: Option<&str>) {
    let both = async || Some([("probes", address(daemon, "probes")?), ("admin", address(daemon, "admin HTTP")?)]);
    let ports = until(&format!("{name} has its addresses"), SOON, both).await;
    let ports = ports.map(|(name, address)| json!({"name": name, "containerPort": address.port()}));
    let object = json!({"metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "ports": ports}]}});
    let pods = cluster.pods_in(NAMESPACE);
    pods.create(&PostParams::default(), &serde_json::from_value::<Pod>(object).unwrap()).await.unwrap();
    let status = json!({"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// The kubelet of the node writes the address of each of its pods; this one is that of a process of this machine.
async fn is_here(cluster: &TestCluster, name: &str) {
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let pods = cluster.pods_in(NAMESPACE);
    pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// A kubeconfig of an account with ClusterRole `baton-operator` and nothing else.
async fn operator(server: &TestServer) -> std::path::PathBuf {
    let accounts: Api<ServiceAccount> = Api::namespaced(server.client.clone(), NAMESPACE);
    let account = serde_json::from_value(json!({"metadata": {"name": "ann"}})).unwrap();
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let binding = json!({"metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": format!("baton-operator-{NAMESPACE}")},
        "subjects": [{"kind": "ServiceAccount", "name": "ann", "namespace": NAMESPACE}]});
    let request = http::Request::post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
    let request = request.header("content-type", "application/json").body(binding.to_string().into_bytes());
    server.client.request::<Value>(request.unwrap()).await.unwrap();
    server.credentials(NAMESPACE, "ann", None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_records_and_two_leaders_are_read_and_nothing_is_written() {
    let server = TestServer::simulated().await;
    server.install(&baton::ops::manifests::Values { namespace: NAMESPACE.to_owned(), ..Default::default() }).await;
    let token = &["--admin-auth=token"][..];
    let cluster = TestCluster::on(server, 1, token, token).await;
    let central = json!({"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/component": "scheduler"});
    pod_of(&cluster, &cluster.scheduler, "baton-scheduler-0", central.clone(), None).await;
    let labels = json!({"app.kubernetes.io/part-of": "baton", "app.kubernetes.io/name": "baton-device-plugin"});
    pod_of(&cluster, &cluster.nodes[0].agent, "baton-device-plugin-0", labels, Some("node-0")).await;
    cluster.create(&pod("whole").app("main", &[("nvidia.com/gpu", "2")])).await;
    let half = &[("koordinator.sh/gpu-core", "50"), ("koordinator.sh/gpu-memory-ratio", "50")][..];
    cluster.create(&pod("half").app("main", half)).await;
    cluster.until_running("whole").await;
    cluster.until_running("half").await;
    let kubeconfig = operator(&cluster).await;
    let ui = Ui::start(&kubeconfig, &["--agent-namespace", NAMESPACE, "--scheduler-namespace", NAMESPACE]);
    let records = async |what: &str, holds: &dyn Fn(&Value) -> bool| {
        until(what, SOON, async || {
            is_here(&cluster, "baton-device-plugin-0").await;
            let answer = ui.get("/api/node/node-0");
            let detail: Value = serde_json::from_str(&answer.body).ok()?;
            holds(&detail).then_some(detail)
        })
        .await
    };
    let of = |detail: &Value, name: &str| -> Vec<Value> {
        let pods = detail["pods"].as_array().into_iter().flatten();
        let own = pods.filter(|pod| pod["pod"] == format!("default/{name}"));
        own.flat_map(|pod| pod["rows"].as_array().unwrap().clone()).collect()
    };
    let detail = records("both records of both pods", &|detail| {
        let all: Vec<Value> = ["whole", "half"].iter().flat_map(|name| of(detail, name)).collect();
        all.len() == 3 && all.iter().all(|row| !row["kubelet"].is_null() && !row["ledger"].is_null())
    })
    .await;
    println!("{}", serde_json::to_string_pretty(&detail["pods"]).unwrap());
    assert_eq!(detail["records"], json!({"ledger": null, "kubelet": null}));
    for row in of(&detail, "whole") {
        assert_eq!((&row["kubelet"], &row["differs"]), (&json!(["nvidia.com/gpu"]), &json!(false)), "{row}");
        assert_eq!((&row["annotation"]["core"], &row["ledger"]["core"]), (&json!(100), &json!(100)), "{row}");
    }
    let row = &of(&detail, "half")[0];
    assert_eq!(
        (&row["ledger"]["core"], &row["ledger"]["ratio"], &row["differs"]),
        (&json!(50), &json!(50), &json!(false))
    );
    assert!(row["kubelet"][0].as_str().unwrap().starts_with("50 × koordinator.sh/gpu-"), "{row}");
    // The annotation is changed with all rights of the cluster.
    let text = cluster.pod("whole").await.unwrap().metadata.annotations.unwrap()[key::DEVICE_ALLOCATED].clone();
    let mut said: Value = serde_json::from_str(&text).unwrap();
    let left = said["gpu"].as_array_mut().unwrap().pop().unwrap();
    let change = json!({"metadata": {"annotations": {key::DEVICE_ALLOCATED: said.to_string()}}});
    let pods = cluster.pods_in("default");
    pods.patch("whole", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    let detail =
        records("the difference", &|detail| of(detail, "whole").iter().any(|row| row["differs"] == true)).await;
    let marked: Vec<Value> = of(&detail, "whole").into_iter().filter(|row| row["differs"] == true).collect();
    assert_eq!(marked.len(), 1, "{marked:?}");
    assert_eq!((&marked[0]["id"], &marked[0]["annotation"]), (&left["id"], &Value::Null));

    // What if, and what it costs to paste too much.
    let pasted = |body: &str| send(&ui.address, "POST /api/what-if", &[("Cookie", &ui.cookie)], body);
    let asked = pasted(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: asked}\nspec: {schedulerName: baton-scheduler, containers: [{name: a, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}\n",
    );
    assert!(asked.status == 200 && asked.body.contains("node-0"), "{}", asked.body);
    let refused = pasted("nonsense");
    assert!(refused.status == 502 && refused.body.contains("error"), "{}", refused.body);
    assert_eq!(pasted(&"x".repeat(key::MAX_OBJECT + 1)).status, 413);

    // A second scheduler leads at once.
    let mut spare = cluster.spare_scheduler(&["--admin-auth=token", "--leader-elect=false"]).await;
    pod_of(&cluster, &spare, "baton-scheduler-1", central, None).await;
    let mut stream = ui.stream(None);
    let why = |event: &super::http::Event| event.data["rows"]["problems"]["schedulers"]["why"].clone();
    let both = stream.until("both leaders", |event| why(event).is_string());
    for name in ["baton-scheduler-0", "baton-scheduler-1"] {
        assert!(why(&both).as_str().unwrap().contains(name), "{}", why(&both));
    }
    spare.kill();
    stream.until("one leader", |event| {
        event.data["rows"]["problems"].as_object().is_some_and(|all| all.get("schedulers") == Some(&Value::Null))
    });
    let about = ui.stream(None).until("a leader", |event| event.data["rows"]["about"].is_object());
    assert_eq!(about.data["rows"]["about"]["scheduler"]["scheduler"], env!("CARGO_PKG_VERSION"), "{about:?}");

    assert_eq!(ui.get("/api/audit").status, 200);
    let counts = cluster.server().counts().all();
    let own: Vec<_> = counts.keys().filter(|of| of.user.ends_with(":ann")).collect();
    assert!(own.len() > 8, "{own:?}");
    for of in own {
        let reads = matches!(&*of.verb, "get" | "list" | "watch");
        let asks = of.verb == "create" && matches!(&*of.subresource, "token" | "proxy");
        assert!(reads || asks, "{of:?}");
    }
}
