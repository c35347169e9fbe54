//! What the API server does to the daemons, or other clients do through it: out of reach for one of them, restored from a backup, refusals
//! by a webhook, finalizers and old objects of others.

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::faults::{all_is_free, served_exactly, serves_exactly, waits_for_a_silent_daemon};
use crate::prelude::*;

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];
const ALL: &[(&str, &str)] = &[(key::NVIDIA_GPU, "8")];

/// A way to a server that can be closed: what is open then hangs, as behind a firewall.
struct Way {
    address: SocketAddr,
    open: watch::Sender<bool>,
}

impl Way {
    async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, open) = (listener.local_addr().unwrap(), watch::Sender::new(true));
        let is_open = open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut is_open, mut is_closed) = (server.clone(), is_open.clone(), is_open.clone());
                tokio::spawn(async move {
                    let _ = is_open.wait_for(|open| *open).await;
                    let Ok(mut far) = TcpStream::connect(&server).await else { return };
                    let passed = tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => true,
                        _ = async { is_closed.wait_for(|open| !*open).await.is_ok() } => false,
                    };
                    if !passed {
                        // Nothing passes, and nothing is closed, for as long as it lasts.
                        let _ = is_open.wait_for(|open| *open).await;
                    }
                });
            }
        });
        Self { address, open }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_out_of_reach_for_the_daemon_alone_gives_nothing_twice() {
    let mut cluster =
        TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &[&timings("agent_stale: 4s, lock_sweep: 1s")]).await;
    let kubeconfig = cluster.path("baton-device-plugin-node-0.kubeconfig");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&kubeconfig).unwrap()).unwrap();
    let url = config["clusters"][0]["cluster"]["server"].as_str().unwrap().to_owned();
    let (scheme, server) = url.split_once("://").unwrap();
    let way = Way::to(server.trim_end_matches('/').to_owned()).await;
    config["clusters"][0]["cluster"]["server"] = json!(format!("{scheme}://{}", way.address));
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    cluster.restart_agent(0).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let devices = cluster.in_kubelet("node-0", "before");
    way.open.send_replace(false);
    // The scheduler does not know it yet: this one is sent there, and is served or refused, never in between.
    cluster.create(&pod("during").app("main", ONE)).await;
    let phase = cluster.until_phase("during", &["Running", "Failed"]).await;
    let held = cluster.in_kubelet("node-0", "during");
    match phase.as_str() {
        "Running" => assert_eq!(held, cluster.assigned("during").await),
        _ => assert!(held.is_empty()),
    }
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    waits_for_a_silent_daemon(&cluster, "later").await;
    way.open.send_replace(true);
    served_exactly(&cluster, "later").await;
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_restored_from_a_backup_is_noticed_and_listed_again() {
    let mut cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &[&timings(QUICK_LEASE)]).await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("its etcd is not at hand") };
    serves_exactly(&cluster, &pod("kept").app("main", ONE)).await;
    let (version, devices) = (server.version(), cluster.in_kubelet("node-0", "kept"));
    serves_exactly(&cluster, &pod("lost").app("main", ONE)).await;
    let until_high = server.version() + 400;
    while server.version() <= until_high {
        let mark = json!({"metadata": {"labels": {"at": server.version().to_string()}}});
        cluster.nodes().patch("node-0", &PatchParams::default(), &Patch::Merge(mark)).await.unwrap();
    }
    server.restore(version);
    for (daemon, name) in [(&mut cluster.scheduler, "scheduler"), (&mut cluster.nodes[0].agent, "node daemon")] {
        until(&format!("the {name} ends"), SOON, async || daemon.has_ended().then_some(())).await;
        tells(daemon.output(), ["went back from version"]);
        daemon.restart();
    }
    // A real kubelet is deaf as well, and is started again.
    cluster.nodes[0].kubelet.restart().await.unwrap();
    cluster.until_agent_is_ready().await;
    assert_eq!(cluster.in_kubelet("node-0", "kept"), devices);
    serves_exactly(&cluster, &pod("new").app("main", &[(key::NVIDIA_GPU, "7")])).await;
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_a_webhook_denies_are_tried_again_until_it_lets_them_through() {
    let mut cluster = TestCluster::start(1).await;
    // The daemons say that they were denied, which is no fault of our rights here.
    cluster.of_two_versions = true;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("no webhook stands there") };
    let denied = Effect::Answer(403, None);
    for (name, rule) in [
        ("lock", FaultRule::on("patch", "nodes").times(3)),
        ("binding", FaultRule::on("create", "pods").below("binding").times(3)),
    ] {
        let rule = server.faults().add(rule, denied.clone());
        serves_exactly(&cluster, &pod(name).app("main", ONE)).await;
        assert_eq!(server.faults().fired(rule), 3, "{name}");
        cluster.check_no_device_twice().await;
    }
    // The Device object: pods are served meanwhile.
    let rule = server.faults().add(FaultRule::on("patch", "devices"), denied);
    let put = server.faults().add(FaultRule::on("update", "devices"), Effect::Answer(403, None));
    cluster.nodes[0].hardware.xid(3, 79).unwrap();
    serves_exactly(&cluster, &pod("meanwhile").app("main", ONE)).await;
    until("the write was denied", SOON, async || {
        (server.faults().fired(rule) + server.faults().fired(put) > 0).then_some(())
    })
    .await;
    server.faults().clear();
    until("the Device object says it after all", SOON, async || {
        let request =
            http::Request::get("/apis/scheduling.koordinator.sh/v1alpha1/devices/node-0").body(vec![]).ok()?;
        let device: Value = cluster.client.request(request).await.ok()?;
        let devices = device["spec"]["devices"].as_array()?;
        devices.iter().any(|of| of["health"] == json!(false)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_a_foreign_finalizer_keeps_gives_its_devices_back_when_it_has_ended() {
    let cluster = TestCluster::start(1).await;
    serves_exactly(&cluster, &pod("held").app("main", ALL)).await;
    let pods = cluster.pods_in("default");
    let finalizers = |list: Value| Patch::Merge(json!({"metadata": {"finalizers": list}}));
    pods.patch("held", &PatchParams::default(), &finalizers(json!(["example.com/keep"]))).await.unwrap();
    pods.delete("held", &Default::default()).await.unwrap();
    all_is_free(&cluster).await;
    let held = cluster.pod("held").await.expect("its finalizer keeps it");
    assert!(held.metadata.deletion_timestamp.is_some());
    cluster.check_no_device_twice().await;
    pods.patch("held", &PatchParams::default(), &finalizers(json!(null))).await.unwrap();
    until("it goes", SOON, async || cluster.pod("held").await.is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_from_a_backup_with_an_old_lock_keeps_its_pods_and_loses_the_lock() {
    let cluster = TestCluster::start(1).await;
    cluster.nodes[0].agent.signal("STOP");
    cluster.create(&pod("p").app("main", ONE)).await;
    let backup = until("the node is locked", SOON, async || {
        let node = cluster.nodes().get("node-0").await.ok()?;
        node.annotations().contains_key(key::NODE_LOCK).then_some(node)
    })
    .await;
    cluster.nodes[0].agent.signal("CONT");
    served_exactly(&cluster, "p").await;
    let uid = cluster.pod("p").await.unwrap().uid();
    let mut again = backup.clone();
    (again.metadata.resource_version, again.metadata.managed_fields, again.status) = (None, None, None);
    cluster.nodes().patch("node-0", &PatchParams::default(), &Patch::Merge(&again)).await.unwrap();
    cluster.until_unlocked(LOCK_GONE).await;
    serves_exactly(&cluster, &pod("next").app("main", ONE)).await;
    // And once the pod that it names is gone.
    cluster.delete("p").await;
    cluster.nodes().patch("node-0", &PatchParams::default(), &Patch::Merge(&again)).await.unwrap();
    cluster.until_unlocked(LOCK_GONE).await;
    serves_exactly(&cluster, &pod("last").app("main", ONE)).await;
    assert_ne!(cluster.pod("last").await.unwrap().uid(), uid);
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_ledger_and_checkpoint_no_device_of_a_running_pod_is_given_again() {
    let mut cluster = TestCluster::start(1).await;
    serves_exactly(&cluster, &pod("a").app("main", &[(key::NVIDIA_GPU, "3")])).await;
    let devices = cluster.in_kubelet("node-0", "a");
    cluster.nodes[0].agent.kill();
    std::fs::remove_file(cluster.path("node-0/state/ledger.json")).expect("the ledger was there");
    let checkpoint = cluster.nodes[0].kubelet.options().device_plugins_dir().join("kubelet_internal_checkpoint");
    std::fs::remove_file(&checkpoint).expect("the checkpoint was there");
    cluster.restart_agent(0).await;
    serves_exactly(&cluster, &pod("b").app("main", &[(key::NVIDIA_GPU, "5")])).await;
    let both = cluster.in_kubelet("node-0", "b");
    assert!(devices.iter().all(|(kind, held)| both.get(kind).is_none_or(|other| held.is_disjoint(other))));
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_machines_under_one_name_give_no_device_twice() {
    let mut cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &[&timings("lock_sweep: 1s")]).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    cluster.add_machine("impostor", "node-0", &[&timings("heartbeat: 1s")]).await;
    for at in 0..4 {
        let name = format!("p{at}");
        cluster.create(&pod(&name).app("main", ONE)).await;
        // Where one kubelet has started the pod before without a call, its container waits on the other machine.
        until("the pod runs, has failed, or waits for a device that is used", SOON, async || {
            let phase = cluster.pod(&name).await?.status?.phase?;
            let waits = cluster.nodes.iter().any(|node| node.agent.output().contains("a container's start waits"));
            (waits || matches!(phase.as_str(), "Running" | "Failed")).then_some(())
        })
        .await;
    }
    for node in &cluster.nodes {
        let mut held = BTreeSet::new();
        for (pod, view) in node.kubelet.view().into_iter().filter(|(_, view)| view.active) {
            for id in view.containers.values().flat_map(|container| container.devices.values().flatten()) {
                assert!(held.insert(id.clone()), "{id} is given twice, to {pod} as well");
            }
        }
        until("the daemon says that it is not alone", SOON, async || {
            node.agent.output().contains("two machines run under this node").then_some(())
        })
        .await;
    }
}
