//! `examples/custom_plugin.rs` as a process: its Filter, Score and Permit decide beside Baton's rules, and pods get their devices
//! and locks as ever.

use std::process::{Child, Stdio};
use std::time::SystemTime;

use super::killed::serve;
use super::verbs::{SchedulerCluster, until};
use crate::prelude::*;

/// The example's program, kept until it is dropped.
struct Program(Child);

impl Program {
    fn start(kubeconfig: &Path) -> Self {
        let mut command = Command::new(example());
        command
            .args("--scheduler-name pool-scheduler --leader-elect=false --listen none --probe-listen none".split(' '));
        command.arg(timings("backoff: 100ms"));
        let child = command.arg("--kubeconfig").arg(kubeconfig).env("RUST_LOG", "warn").stdin(Stdio::null()).spawn();
        Self(child.expect("the example starts"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The latest change of a file below.
fn changed(path: &Path) -> SystemTime {
    let inside = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| changed(&entry.path()));
    let own = path.metadata().and_then(|found| found.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    inside.fold(own, SystemTime::max)
}

/// The example, built where that was not done: `cargo test` builds it, and `cargo test --test cluster` does not.
fn example() -> PathBuf {
    let baton = Path::new(env!("CARGO_BIN_EXE_baton"));
    let example = baton.with_file_name("examples").join("custom_plugin");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    if changed(&example) < changed(&package.join("src")).max(changed(&package.join("examples/custom_plugin.rs"))) {
        let mut build = Command::new(env!("CARGO"));
        // What cargo says of this package to a test is not said to a build: some dependencies would be built again.
        let said =
            |name: &str| ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"].iter().any(|start| name.starts_with(start));
        for (name, _) in std::env::vars().filter(|(name, _)| said(name)) {
            build.env_remove(name);
        }
        // Of what the tests were built of.
        let profile = if baton.parent().is_some_and(|folder| folder.ends_with("release")) { "release" } else { "test" };
        build.args(["build", "--offline", "--profile", profile, "--example", "custom_plugin", "--manifest-path"]);
        build.arg(package.join("Cargo.toml"));
        assert!(build.status().unwrap().success(), "the example is built");
    }
    example
}

async fn label_node(cluster: &SchedulerCluster, node: &str, pool: &str, price: &str) {
    let patch = json!({"metadata": {"labels": {"example.com/pool": pool, "example.com/price": price}}});
    cluster.nodes().patch_metadata(node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn pod(cluster: &SchedulerCluster, name: &str, labels: Value, gpus: &str) {
    let pod = json!({"metadata": {"name": name, "namespace": "ml", "labels": labels},
        "spec": {"schedulerName": "pool-scheduler", "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "x", "resources": {"limits": {key::NVIDIA_GPU: gpus}}}]}});
    cluster.make(pod).await;
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Waits until the pod's condition says so.
async fn refused(cluster: &SchedulerCluster, name: &str, why: &str) {
    until(&format!("{name} is refused: {why}"), || async {
        let status = cluster.get(name).await?.status?;
        let said = status.conditions?.into_iter().find(|condition| condition.type_ == "PodScheduled")?.message?;
        said.contains(why).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_with_rules_of_its_own_places_pods_and_hands_devices_over_as_ever() {
    let cluster = SchedulerCluster::start().await;
    for (node, pool, price) in [("cheap", "a", "1"), ("dear", "a", "5"), ("free", "b", "0")] {
        cluster.node(node).await;
        label_node(&cluster, node, pool, price).await;
    }
    let _program = Program::start(&cluster.kubeconfig);

    let in_a = || json!({"example.com/pool": "a"});
    pod(&cluster, "first", in_a(), "1").await;
    assert_eq!(node_of(&cluster.bound("first").await), "cheap", "of pool a, the cheap node");
    cluster.locked_by("cheap", "first").await;

    let stop = CancellationToken::new();
    let story = async {
        pod(&cluster, "anywhere", json!({}), "1").await;
        assert_eq!(node_of(&cluster.bound("anywhere").await), "free", "without a pool, the cheapest node of all");
        pod(&cluster, "stranger", json!({"example.com/pool": "c"}), "1").await;
        refused(&cluster, "stranger", "3 are in another pool").await;

        // Only `dear` has eight GPUs left in pool a. While approval is awaited, they are kept from others and nothing is written.
        pod(&cluster, "waits", json!({"example.com/pool": "a", "example.com/approval": "wanted"}), "8").await;
        // By its name it is the later one of the same second, too.
        pod(&cluster, "waits-too", in_a(), "8").await;
        refused(&cluster, "waits-too", "have fewer than 8 free GPUs").await;
        let waits = cluster.get("waits").await.unwrap();
        assert_eq!((node_of(&waits), cluster.lock("dear").await), ("", None));
        let approve = json!({"metadata": {"labels": {"example.com/approval": "given"}}});
        cluster.pods().patch_metadata("waits", &PatchParams::default(), &Patch::Merge(approve)).await.unwrap();
        let bound = cluster.bound("waits").await;
        let given = DeviceAllocation::parse(&bound.annotations()[key::DEVICE_ALLOCATED]).unwrap();
        assert_eq!((node_of(&bound), given.of(&DeviceType::Gpu).len()), ("dear", 8));
        cluster.unlocked("dear").await;

        pod(&cluster, "sent-away", json!({"example.com/approval": "refused"}), "1").await;
        refused(&cluster, "sent-away", "its approval was refused").await;
        stop.cancel();
    };
    tokio::join!(story, serve(&cluster, &stop));
}
