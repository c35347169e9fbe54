//! GPU shares with limits: what a container really gets, that a process in it reads its limits, and that nothing is served without.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use baton::contract::inventory::DeviceStatus;
use baton::decide::shares::place;
use kube::Api;

use crate::prelude::*;

const HALF: &[(&str, &str)] = &[(key::GPU_CORE, "50"), (key::GPU_MEMORY_RATIO, "50")];
const QUICK: &str = "health_poll: 100ms";

/// What HAMi-core does first: it reads its limits, and opens the file that all processes of the container count in.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <stdlib.h>
static const char *of(const char *name) { const char *value = getenv(name); return value ? value : "none"; }
__attribute__((constructor)) static void loaded(void) {
    FILE *cache = fopen(of("CUDA_DEVICE_MEMORY_SHARED_CACHE"), "a");
    if (!cache) abort();
    fprintf(cache, "memory %s, compute %s\n", of("CUDA_DEVICE_MEMORY_LIMIT_0"), of("CUDA_DEVICE_SM_LIMIT"));
    fclose(cache);
}
"#;

/// HAMi-core as a package installs it, with a library that stands in for the real one.
fn install(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let source = dir.join("libvgpu.c");
    std::fs::write(&source, LIBRARY).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&dir.join("libvgpu.so"), &source]).status();
    assert!(built.expect("there is a C compiler").success());
    std::fs::write(dir.join("ld.so.preload"), format!("{}\n", place::LIBRARY)).unwrap();
    for file in ["libvgpu.so", "ld.so.preload"] {
        std::fs::set_permissions(dir.join(file), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn half(name: &str) -> PodSpec {
    pod(name).app("main", HALF)
}

/// `true` when its node daemon has refused the pod.
async fn is_refused_or_says(cluster: &TestCluster, name: &str, words: &str) -> bool {
    until(&format!("pod {name} waits and says {words:?}, or is refused"), SOON, async || {
        let status = cluster.pod(name).await?.status?;
        let says = status.conditions?.iter().any(|of| of.message.as_ref().is_some_and(|text| text.contains(words)));
        let is_refused = status.message.is_some_and(|text| text.contains("serves no GPU shares now"));
        (says || is_refused).then_some(is_refused)
    })
    .await
}

async fn unavailable(cluster: &TestCluster, node: &str) -> Option<String> {
    let devices: Api<Device> = Api::all(cluster.client.clone());
    let status = devices.get(node).await.expect("it is read").status?;
    status.shares_unavailable().map(|condition| condition.message.clone())
}

/// The environment of a container, and the host's path of each of its mounts: by the kubelet, and by the CDI specs it names.
fn given(cluster: &TestCluster, at: usize, name: &str) -> (BTreeMap<String, String>, BTreeMap<String, PathBuf>) {
    let node = &cluster.nodes[at];
    let view = node.kubelet.view();
    let injected = view[&format!("default/{name}")].containers["main"].injected.clone().expect("it was started");
    let mut mounts: BTreeMap<String, PathBuf> =
        injected.mounts.iter().map(|(at, from)| (at.clone(), from.into())).collect();
    for device in &injected.cdi_devices {
        let (kind, name) = device.split_once('=').expect("a CDI name");
        let file = cluster.path(&format!("{}/cdi/{}.json", node.name, kind.replace('/', "-")));
        let spec: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let devices = spec["devices"].as_array().unwrap();
        let device = devices.iter().find(|device| device["name"] == name).expect("the spec has it");
        let own = device["containerEdits"]["mounts"].as_array().into_iter().flatten();
        let path = |mount: &Value, which: &str| mount[which].as_str().unwrap().to_owned();
        mounts.extend(own.map(|mount| (path(mount, "containerPath"), path(mount, "hostPath").into())));
    }
    (injected.envs, mounts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_has_its_limits_in_every_process_or_is_not_served() {
    let mut cluster = TestCluster::start(1).await;
    cluster.create(&half("limited").label(key::GPU_ISOLATION_PROVIDER, "HAMi-core")).await;
    cluster.until_it_says("limited", "--share-isolation=none), the pod asks for HAMi-core").await;

    let hami = cluster.path("hami");
    install(&hami);
    let dir = format!("--hami-core-dir={}", hami.display());
    cluster.add_machine("node-1", "node-1", &["--share-isolation=hami-core", &dir, &timings(QUICK)]).await;
    cluster.until_running("limited").await;
    assert_eq!(cluster.until_bound("limited").await, "node-1");

    // What the container has: the library for every process, its own file, the node's lock.
    let (envs, mounts) = given(&cluster, 1, "limited");
    let uid = cluster.pod("limited").await.unwrap().uid().unwrap();
    let own = hami.join("baton/containers").join(format!("{uid}_main"));
    assert_eq!(mounts[place::LIBRARY], hami.join("libvgpu.so"));
    assert_eq!(mounts[place::PRELOAD], hami.join("ld.so.preload"));
    assert_eq!(mounts[place::LOCK], hami.join("baton/vgpulock"));
    assert_eq!(mounts[place::CACHE], own);
    // A process of it, with the libraries that its loader's list names, reads what the node daemon set.
    let preload = std::fs::read_to_string(&mounts[place::PRELOAD]).unwrap();
    let cache = &envs["CUDA_DEVICE_MEMORY_SHARED_CACHE"];
    let cache = own.join(Path::new(cache).strip_prefix(place::CACHE).unwrap());
    let mut process = Command::new("true");
    process.envs(&envs).env("CUDA_DEVICE_MEMORY_SHARED_CACHE", &cache).env("LD_PRELOAD", &mounts[preload.trim()]);
    assert!(process.status().unwrap().success());
    assert_eq!(std::fs::read_to_string(&cache).unwrap(), "memory 40779m, compute 50\n");

    // What would undo the limits is not served there.
    cluster.create(&half("sly").on("node-1").volume_at(place::PRELOAD)).await;
    cluster.until_it_says("sly", "container main has a volume at /etc/ld.so.preload, which undoes the limits").await;
    cluster.create(&half("other").on("node-1").label(key::GPU_ISOLATION_PROVIDER, "MPS")).await;
    cluster.until_it_says("other", "the pod asks for MPS").await;

    // Without the library no share is served, and whole GPUs are.
    std::fs::rename(hami.join("libvgpu.so"), hami.join("away")).unwrap();
    let why = until("shares are out of service", SOON, async || unavailable(&cluster, "node-1").await).await;
    tells(why, ["libvgpu.so cannot be found"]);
    // A scheduler that does not see it yet sends the pod there, and the node daemon refuses it.
    while {
        cluster.create(&half("later").on("node-1")).await;
        is_refused_or_says(&cluster, "later", "SharesUnavailable: the limits of GPU shares cannot be enforced").await
    } {
        cluster.delete("later").await;
    }
    cluster.runs(&pod("whole").on("node-1").app("main", &[(key::NVIDIA_GPU, "1")])).await;
    cluster.until_told("SharesUnavailable").await;
    std::fs::rename(hami.join("away"), hami.join("libvgpu.so")).unwrap();
    cluster.until_running("later").await;

    cluster.delete("limited").await;
    until("the ended container's directory is gone", SOON, async || (!own.exists()).then_some(())).await;
    assert_eq!(std::fs::read_dir(own.parent().unwrap()).unwrap().count(), 1, "that of the other one stays");
    cluster.check_no_device_twice().await;
}

/// A container of the node waits, and says these words.
async fn until_it_waits(cluster: &TestCluster, name: &str, words: &str) {
    until(&format!("the container of {name} waits: {words}"), SOON, async || {
        let statuses = cluster.pod(name).await?.status?.container_statuses?;
        let waiting = statuses.first()?.state.as_ref()?.waiting.as_ref()?.message.clone()?;
        waiting.contains(words).then_some(())
    })
    .await;
}

async fn until_it_runs_again(cluster: &TestCluster, name: &str) {
    until(&format!("the container of {name} runs again"), SOON, async || {
        let view = cluster.nodes[0].kubelet.view();
        let container = &view.get(&format!("default/{name}"))?.containers["main"];
        (container.running && container.restarts > 0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_with_a_share_starts_again_only_where_its_limits_stand() {
    let root = tempfile::tempdir().unwrap();
    let hami = root.path().join("hami");
    install(&hami);
    let dir = format!("--hami-core-dir={}", hami.display());
    // Without CDI: containerd makes a directory where the library is missing, and the loader skips that.
    let agent = ["--share-isolation=hami-core", "--device-list-strategy=envvar", &dir, &timings(QUICK)];
    let cluster = TestCluster::with_agent_args(1, &agent).await;
    cluster.create(&half("half").restarting()).await;
    cluster.create(&pod("whole").app("main", &[(key::GPU, "100")]).restarting()).await;
    cluster.until_running("half").await;
    cluster.until_running("whole").await;
    let (_, mounts) = given(&cluster, 0, "half");
    assert_eq!(mounts[place::LIBRARY], hami.join("libvgpu.so"));
    let own = mounts[place::CACHE].clone();
    std::fs::rename(hami.join("libvgpu.so"), hami.join("away")).unwrap();
    std::fs::remove_dir(&own).unwrap();
    let kubelet = &cluster.nodes[0].kubelet;
    assert!(["half", "whole"].map(|name| kubelet.fail_container("default", name, "main", 1)).iter().all(|done| *done));
    until_it_waits(&cluster, "half", "the limits of its GPU share cannot be enforced now").await;
    until_it_runs_again(&cluster, "whole").await;
    std::fs::rename(hami.join("away"), hami.join("libvgpu.so")).unwrap();
    until_it_runs_again(&cluster, "half").await;
    assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o777, "what is its own is there again");
    // Its process is killed with HAMi-core's lock, which is in the file.
    let count = own.join("vgpu.cache");
    std::fs::write(&count, "").unwrap();
    assert!(kubelet.fail_container("default", "half", "main", 137));
    until("the container begins without it", SOON, async || (!count.exists()).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_wait_for_the_mps_daemon_and_whole_gpus_do_not() {
    let root = tempfile::tempdir().unwrap();
    let pipe = root.path().join("nvidia.com/gpu/pipe");
    std::fs::create_dir_all(&pipe).unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let dir = format!("--mps-root={}", root.path().display());
    let cluster = TestCluster::with_agent_args(1, &["--share-isolation=mps", &dir, &timings(QUICK)]).await;
    let why = until("shares are out of service", SOON, async || unavailable(&cluster, "node-0").await).await;
    tells(why, ["the MPS control daemon does not answer"]);
    cluster.create(&half("share").label(key::GPU_ISOLATION_PROVIDER, "MPS").restarting()).await;
    cluster.until_it_says("share", DeviceStatus::SHARES_UNAVAILABLE).await;
    cluster.runs(&pod("whole").app("main", &[(key::NVIDIA_GPU, "1")])).await;
    let listener = UnixListener::bind(pipe.join("control")).unwrap();
    cluster.until_running("share").await;
    let (envs, mounts) = given(&cluster, 0, "share");
    assert_eq!(envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=40779M");
    assert_eq!(mounts["/mps/nvidia.com/gpu/pipe"], pipe);
    // A process without the control daemon would have no limits.
    drop(listener);
    std::fs::remove_file(pipe.join("control")).unwrap();
    assert!(cluster.nodes[0].kubelet.fail_container("default", "share", "main", 1));
    until_it_waits(&cluster, "share", "the MPS control daemon does not answer").await;
    let _listener = UnixListener::bind(pipe.join("control")).unwrap();
    until_it_runs_again(&cluster, "share").await;
    cluster.check_no_device_twice().await;
}
