//! `baton ui` beside daemons in pods, which it reaches by port-forwards, with an operator's rights.

use super::http::{SOON, Ui, send};
use crate::harness::{NAMESPACE, QUICK_LEASE, timings};
use crate::prelude::*;

/// A kubeconfig of an account with both roles `baton-operator` and nothing else.
async fn operator(server: &TestServer) -> std::path::PathBuf {
    server.create_account("ann").await;
    server.bind_role("ann", "ClusterRole", &format!("baton-operator-{NAMESPACE}")).await;
    server.bind_role("ann", "Role", "baton-operator").await;
    server.credentials(NAMESPACE, "ann", None).await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_records_and_the_next_leader_are_read_and_nothing_is_written() {
    let server = TestServer::simulated().await;
    server.install(&baton::ops::manifests::Values { namespace: NAMESPACE.to_owned(), ..Default::default() }).await;
    let quick = timings(QUICK_LEASE);
    let mut cluster = TestCluster::on(server, 1, &[], &[&quick]).await;
    let central = [("app.kubernetes.io/component", "scheduler")];
    cluster.pod_of(&cluster.scheduler, "baton-scheduler-0", &central, "node-0").await;
    let labels = [("app.kubernetes.io/name", "baton-device-plugin")];
    cluster.pod_of(&cluster.nodes[0].agent, "baton-device-plugin-0", &labels, "node-0").await;
    cluster.create(&pod("whole").app("main", &[("nvidia.com/gpu", "2")])).await;
    let half = &[("koordinator.sh/gpu-core", "50"), ("koordinator.sh/gpu-memory-ratio", "50")][..];
    cluster.create(&pod("half").app("main", half)).await;
    cluster.until_running("whole").await;
    cluster.until_running("half").await;
    let kubeconfig = operator(&cluster).await;
    let ui = Ui::start(&kubeconfig, &["--baton-namespace", NAMESPACE]);
    let records = async |what: &str, holds: &dyn Fn(&Value) -> bool| {
        until(what, SOON, async || {
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

    // Another scheduler leads: the page has kept its port-forward to the first, and opens one to the next.
    let forwards = || cluster.server().counts().sum(|of| of.subresource == "portforward" && of.user.ends_with(":ann"));
    let before = forwards();
    let mut stream = ui.stream(None);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(forwards(), before, "it asks every second");
    let spare = cluster.spare_scheduler(&[&quick]).await;
    cluster.pod_of(&spare, "baton-scheduler-1", &central, "node-0").await;
    cluster.scheduler.kill();
    let problem = |event: &super::http::Event| event.data["rows"]["problems"]["scheduler"]["why"].clone();
    stream.until("no leader", |event| problem(event).is_string());
    stream.until("the next leader", |event| {
        event.data["rows"]["problems"].as_object().is_some_and(|all| all.get("scheduler") == Some(&Value::Null))
    });
    let about = ui.stream(None).until("a leader", |event| event.data["rows"]["about"].is_object());
    assert_eq!(about.data["rows"]["about"]["scheduler"]["scheduler"], env!("CARGO_PKG_VERSION"), "{about:?}");

    assert_eq!(ui.get("/api/audit").status, 200);
    let counts = cluster.server().counts().all();
    let own: Vec<_> = counts.keys().filter(|of| of.user.ends_with(":ann")).collect();
    assert!(own.len() > 8, "{own:?}");
    for of in own {
        let reads = matches!(&*of.verb, "get" | "list" | "watch");
        assert!(reads, "{of:?}");
    }
}
