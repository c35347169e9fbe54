//! `baton cordon`, `uncordon` and `drain` as operators run them: with the rights of their role, one after the other and all at once.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::ListParams;

use crate::prelude::*;

/// A node with eight GPUs, and people: ada has ClusterRole baton-operator, eve has no rights.
struct Operated {
    server: TestServer,
    ada: PathBuf,
    eve: PathBuf,
}

async fn cluster() -> Operated {
    let server = TestServer::start().await;
    server.install(&Values::default()).await;
    server.create_object::<Node>(json!({"metadata": {"name": "node-1"}})).await;
    server.create_object::<Device>(device("node-1", 8)).await;
    server
        .create_object::<ClusterRoleBinding>(json!({"metadata": {"name": "ada"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "baton-operator"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ada"}]}))
        .await;
    let of = async |user: &str| {
        server.acting_as(user, &[]).await;
        let path = server.path(&format!("{user}.kubeconfig"));
        std::fs::rename(server.path("acting.kubeconfig"), &path).unwrap();
        path
    };
    let (ada, eve) = (of("ada").await, of("eve").await);
    Operated { server, ada, eve }
}

fn device(node: &str, gpus: usize) -> Value {
    let whole = json!({key::GPU_CORE: "100", key::GPU_MEMORY_RATIO: "100", key::GPU_MEMORY: "80Gi"});
    let gpu = |minor: usize| json!({"type": "gpu", "id": format!("GPU-{node}-{minor}"), "minor": minor, "health": true, "resources": whole});
    let devices: Vec<Value> = (0..gpus).map(gpu).collect();
    json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": node}, "spec": {"devices": devices}})
}

impl Operated {
    /// Exit code and all output of `baton args…` by ada.
    async fn baton(&self, args: &str) -> (Option<i32>, String) {
        self.by(&self.ada, &args.split(' ').collect::<Vec<_>>()).await
    }

    /// All output of such a command, which ends with this code and says all this.
    async fn says(&self, args: &str, code: i32, parts: &[&str]) -> String {
        let (got, said) = self.baton(args).await;
        assert_eq!(got, Some(code), "{args}: {said}");
        tells(&said, parts);
        said
    }

    async fn by(&self, who: &Path, args: &[&str]) -> (Option<i32>, String) {
        let who = who.display().to_string();
        let (code, out, err) = self.server.baton(&[args, &["--kubeconfig", &who]].concat()).await;
        (code, out + &err)
    }

    /// A running pod that holds GPU `minor`.
    async fn pod(&self, name: &str, minor: usize) {
        let resources = json!({key::GPU_CORE: "100", key::GPU_MEMORY_RATIO: "100"});
        let allocated = json!({"gpu": [{"minor": minor, "id": format!("GPU-node-1-{minor}"), "resources": resources}]});
        let limits = json!({"nvidia.com/gpu": "1"});
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "labels": {"app": "train"},
                "annotations": {key::DEVICE_ALLOCATED: allocated.to_string()}},
            "spec": {"nodeName": "node-1", "schedulerName": "baton-scheduler", "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
        });
        let pods = self.server.pods_in("default");
        // A real API server has no ServiceAccount of that name before its controller has made one.
        let pod: Pod = serde_json::from_value(pod).unwrap();
        until("the pod is created", Duration::from_secs(30), async || {
            pods.create(&PostParams::default(), &pod).await.ok().map(drop)
        })
        .await;
        let running = Patch::Merge(json!({"status": {"phase": "Running"}}));
        pods.patch_status(name, &PatchParams::default(), &running).await.unwrap();
    }

    async fn cordons(&self) -> Value {
        let object: Device = Api::all(self.server.client.clone()).get("node-1").await.unwrap();
        let text = object.metadata.annotations.and_then(|all| all.get(key::CORDONED).cloned());
        text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_cordoned_drained_and_returned_with_the_rights_of_an_operator() {
    let cluster = cluster().await;
    cluster.pod("train", 3).await;
    let (code, said) =
        cluster.by(&cluster.ada, &["cordon", "node-1/gpu-3", "--reason", "fan fails", "--until", "2h"]).await;
    assert_eq!(code, Some(0), "{said}");
    tells(
        said,
        [
            "node-1/gpu-3 (GPU-node-1-3) is cordoned by ada until ",
            ": fan fails",
            "held by default/train, which stays",
            "baton drain node-1/gpu-3",
        ],
    );
    let cordon = &cluster.cordons().await["GPU-node-1-3"];
    assert_eq!((&cordon["reason"], &cordon["by"]), (&json!("fan fails"), &json!("ada")));

    let (_, said) = cluster.baton("get devices -o wide --node node-1").await;
    let row = said.lines().find(|line| line.contains("gpu-3")).unwrap();
    tells(row, ["cordoned", "100%", "default/train", "cordoned by ada until"]);
    let (_, said) = cluster.baton("get nodes -o json").await;
    let nodes: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(nodes["items"][0]["gpu"]["cordoned"], 1);

    // First the list, then the word.
    cluster.says("drain node-1/gpu-3", 0, &["default/train", "not created again", "--yes --force"]).await;
    let pods = cluster.server.pods_in("default");
    assert!(pods.get_opt("train").await.unwrap().is_some(), "nothing is evicted yet");
    // What nothing makes again takes one word more.
    let parts = ["no controller creates default/train again, so nothing is evicted", "--yes --force"];
    cluster.says("drain node-1/gpu-3 --yes", 1, &parts).await;
    assert!(pods.get_opt("train").await.unwrap().is_some(), "nothing is evicted");
    let parts = ["default/train", "is free", ": fan fails", "`baton uncordon node-1/gpu-3` returns it"];
    cluster.says("drain node-1/gpu-3 --yes --force", 0, &parts).await;
    assert!(pods.get_opt("train").await.unwrap().is_none());

    let said = cluster.says("uncordon node-1/gpu-3 -o json", 0, &[]).await;
    assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["id"], "GPU-node-1-3");
    assert_eq!(cluster.cordons().await, Value::Null);
    cluster.says("uncordon node-1/GPU-node-1-3", 0, &["was not cordoned"]).await;
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::all(cluster.server.client.clone());
    let events = events.list(&ListParams::default()).await.unwrap().items;
    let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert!(reasons.contains(&"DeviceCordoned") && reasons.contains(&"DeviceUncordoned"), "{reasons:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn people_who_cordon_at_the_same_time_do_not_undo_each_other() {
    let cluster = cluster().await;
    let one = async |gpu: usize| cluster.baton(&format!("cordon node-1/gpu-{gpu} --reason r{gpu}")).await;
    let all = futures::future::join_all((0..6).map(one)).await;
    assert!(all.iter().all(|(code, _)| *code == Some(0)), "{all:?}");
    let cordons = cluster.cordons().await;
    assert_eq!(cordons.as_object().unwrap().len(), 6, "{cordons}");
    // Of one GPU the last word counts, and says whose it replaces.
    cluster.says("cordon node-1/gpu-2 --reason mine", 0, &["It was cordoned by ada: r2; that is replaced."]).await;
    let back = async |gpu: usize| cluster.baton(&format!("uncordon node-1/gpu-{gpu}")).await;
    let all = futures::future::join_all((0..6).map(back)).await;
    assert!(all.iter().all(|(code, _)| *code == Some(0)), "{all:?}");
    assert_eq!(cluster.cordons().await, Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_disruption_budget_puts_an_eviction_off() {
    let cluster = cluster().await;
    cluster.pod("train", 0).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.server.client.clone(), "default");
    let budget = json!({"metadata": {"name": "keep"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}});
    budgets.create(&PostParams::default(), &serde_json::from_value(budget).unwrap()).await.unwrap();
    let parts = [
        "pod default/train is not evicted yet",
        "disruption budget",
        "still held by default/train after 2s",
        "stays cordoned",
    ];
    cluster.says("drain node-1/gpu-0 --yes --force --timeout 2s", 1, &parts).await;
    assert!(cluster.cordons().await["GPU-node-1-0"].is_object());
    budgets.delete("keep", &DeleteParams::default()).await.unwrap();
    cluster.says("drain node-1/gpu-0 --yes --force", 0, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_cordoned_is_named_with_what_there_is() {
    let cluster = cluster().await;
    cluster.server.create_object::<Device>(device("gone", 1)).await;
    cluster.server.create_object::<Node>(json!({"metadata": {"name": "bare"}})).await;
    let mut twice = device("twice", 2);
    twice["spec"]["devices"][1]["minor"] = json!(0);
    cluster.server.create_object::<Device>(twice).await;
    cluster.server.create_object::<Node>(json!({"metadata": {"name": "twice"}})).await;
    let why = ["--reason", "x"];
    for (args, code, parts) in [
        (&["node-1/gpu-9"][..], 1, &["no device \"gpu-9\"", "gpu-0, gpu-1", "gpu-7"][..]),
        (&["node-1/GPU-other"], 1, &["GPU-other", "gpu-0"]),
        (&["node-9/gpu-0"], 1, &["no node \"node-9\"", "node-1"]),
        (&["bare/gpu-0"], 1, &["node bare has no Device object", "baton doctor"]),
        (&["gone/gpu-0"], 1, &["node gone does not exist", "left over"]),
        (&["twice/gpu-0"], 1, &["gpu-0 names 2 devices", "twice/GPU-twice-0 or twice/GPU-twice-1"]),
        (&["twice/GPU-twice-1"], 0, &["(GPU-twice-1) is cordoned"]),
        (&["node-1"], 2, &["node-1/gpu-3"]),
        (&["node-1/gpu-0", "--until", "2020-01-01T00:00:00Z"], 2, &["2020-01-01T00:00:00Z is in the past"]),
        (&["node-1/gpu-0", "--until", "soon"], 2, &["\"soon\"", "2h"]),
    ] {
        let (got, said) = cluster.by(&cluster.ada, &[&["cordon"], args, &why].concat()).await;
        assert_eq!(got, Some(code), "{args:?}: {said}");
        tells(said, parts);
    }
    cluster.says("cordon node-1/gpu-0", 2, &["--reason"]).await;
    let (code, said) = cluster.by(&cluster.ada, &["cordon", "node-1/gpu-0", "--reason", "a\nb"]).await;
    assert_eq!(code, Some(2), "{said}");
    // Written by hand, and wrongly: it may mean any device, and is not overwritten.
    let broken = Patch::Merge(json!({"metadata": {"annotations": {key::CORDONED: "GPU-node-1-0"}}}));
    let devices: Api<Device> = Api::all(cluster.server.client.clone());
    devices.patch("node-1", &PatchParams::default(), &broken).await.unwrap();
    let parts = [key::CORDONED, "cannot be read", "kubectl annotate device node-1"];
    cluster.says("cordon node-1/gpu-0 --reason x", 1, &parts).await;
    cluster.says("audit", 1, &["Device object node-1", key::CORDONED]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_rights_is_told_which_are_missing() {
    let cluster = cluster().await;
    for args in [&["cordon", "node-1/gpu-0", "--reason", "x"][..], &["drain", "node-1/gpu-0"], &["get", "devices"]] {
        let (code, said) = cluster.by(&cluster.eve, args).await;
        assert_eq!(code, Some(1), "{args:?}: {said}");
        tells(&said, ["eve", "forbidden"]);
    }
    let (_, said) = cluster.by(&cluster.eve, &["get", "devices"]).await;
    tells(&said, ["`kubectl create clusterrolebinding NAME --clusterrole=baton-operator --user=USER`"]);
    let (_, said) = cluster.by(&cluster.eve, &["get", "queue"]).await;
    tells(&said, ["`kubectl -n baton-system create rolebinding NAME --role=baton-operator --user=USER`"]);
    // Baton's own view role lets people look and not touch.
    cluster.says("get queue", 1, &["no scheduler leads in namespace baton-system", "--admin-url"]).await;
}
