//! What a machine does to the daemons on it: clocks that are off, processes that stand still, no descriptors left, a full disk.

use kube::Api;

use super::faults::{all_is_free, served_exactly, serves_exactly, waits_for_a_silent_daemon};
use crate::prelude::*;

const ONE: &[(&str, &str)] = &[(key::NVIDIA_GPU, "1")];

/// A quarter of an hour, in seconds.
const OFF: [&str; 2] = ["900", "-900"];

/// `clock_gettime` with the wall clock off by `CLOCK_OFF` seconds.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, id, time);
    if (result == 0 && id == CLOCK_REALTIME && getenv("CLOCK_OFF")) time->tv_sec += atoi(getenv("CLOCK_OFF"));
    return result;
}
"#;

fn clock_library(cluster: &TestCluster) -> PathBuf {
    let (source, library) = (cluster.path("clock.c"), cluster.path("clock.so"));
    std::fs::write(&source, CLOCK).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("there is a C compiler").success());
    library
}

/// Starts the daemon again with its wall clock off by that.
fn shift(daemon: &mut Daemon, library: &Path, seconds: &str) {
    daemon.env = vec![("LD_PRELOAD", library.into()), ("CLOCK_OFF", seconds.into())];
    daemon.restart();
}

async fn uid(cluster: &TestCluster, name: &str) -> Option<String> {
    cluster.pod(name).await.and_then(|pod| pod.uid())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_whose_clock_is_off_binds_as_ever_and_its_locks_are_believed() {
    let mut cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &[&timings(QUICK_LEASE)]).await;
    let library = clock_library(&cluster);
    for (at, off) in OFF.into_iter().enumerate() {
        shift(&mut cluster.scheduler, &library, off);
        let (first, second) = (format!("first-{at}"), format!("second-{at}"));
        serves_exactly(&cluster, &pod(&first).app("main", ONE)).await;
        // The next leader's clock is right, and it finds a lock of the other one, whose pod is not served.
        cluster.nodes[0].agent.signal("STOP");
        cluster.binds(&pod(&second).app("main", ONE)).await;
        let bound = uid(&cluster, &second).await;
        cluster.scheduler.env.clear();
        let before = cluster.scheduler.output().matches("the world is complete").count();
        cluster.scheduler.restart();
        until("the next leader has looked at everything", SOON, async || {
            (cluster.scheduler.output().matches("the world is complete").count() > before).then_some(())
        })
        .await;
        cluster.nodes[0].agent.signal("CONT");
        served_exactly(&cluster, &second).await;
        assert_eq!(uid(&cluster, &second).await, bound, "the pod is not ended for its lock's time");
    }
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_daemon_whose_clock_is_off_serves_as_ever() {
    let mut cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &[&timings(QUICK_LEASE)]).await;
    let library = clock_library(&cluster);
    for (at, off) in OFF.into_iter().enumerate() {
        shift(&mut cluster.nodes[0].agent, &library, off);
        cluster.until_agent_is_ready().await;
        for of in ["a", "b"] {
            let name = format!("{of}-{at}");
            serves_exactly(&cluster, &pod(&name).app("main", ONE)).await;
        }
    }
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_for_longer_than_its_lease_binds_no_pod_after_it() {
    let cluster = TestCluster::with_args(1, &[], &[&timings(QUICK_LEASE)]).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let spare = cluster.spare_scheduler(&[&timings(QUICK_LEASE)]).await;
    cluster.scheduler.signal("STOP");
    for name in ["a", "b", "c"] {
        serves_exactly(&cluster, &pod(name).app("main", ONE)).await;
    }
    assert!(spare.output().contains("leading"), "the spare one leads");
    cluster.scheduler.signal("CONT");
    for name in ["d", "e", "f", "g"] {
        serves_exactly(&cluster, &pod(name).app("main", ONE)).await;
        cluster.check_no_device_twice().await;
    }
    until("the one that stood still follows", SOON, async || {
        let output = cluster.scheduler.output();
        (output.contains("another process leads now") || output.contains("leadership lost")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_daemon_stands_still_takes_no_pod_until_it_goes_on() {
    let scheduler = [&*timings("agent_stale: 4s, lock_sweep: 1s")];
    let cluster = TestCluster::with_args(1, &[&timings("heartbeat: 1s")], &scheduler).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let devices = cluster.in_kubelet("node-0", "before");
    cluster.nodes[0].agent.signal("STOP");
    waits_for_a_silent_daemon(&cluster, "later").await;
    cluster.nodes[0].agent.signal("CONT");
    served_exactly(&cluster, "later").await;
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_without_its_device_node_takes_no_pod_and_is_back_with_it() {
    let cluster = TestCluster::start(2).await;
    let files: Vec<PathBuf> =
        (0..7).map(|gpu| cluster.nodes[0].hardware.dev_root().join(format!("nvidia{gpu}"))).collect();
    files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let reasons = async |reason: &str| {
        let devices: Api<Device> = Api::all(cluster.client.clone());
        let devices = devices.get("node-0").await.ok()?.spec.devices;
        let gpus = devices.iter().filter(|info| info.kind == DeviceType::Gpu);
        Some(gpus.filter(|info| info.conditions[0].reason == reason).count())
    };
    until("they are reported", SOON, async || (reasons("DeviceNodesMissing").await? == 7).then_some(())).await;
    // Seven of node-1 are taken first; with the eighth GPU of node-0 the pod of two GPUs finds no place at all.
    cluster.runs(&pod("seven").app("main", &[(key::NVIDIA_GPU, "7")])).await;
    assert_eq!(cluster.until_bound("seven").await, "node-1");
    cluster.create(&pod("two").app("main", &[(key::NVIDIA_GPU, "2")])).await;
    cluster.runs(&pod("one").on("node-0").app("main", ONE)).await;
    assert!(cluster.pod("two").await.unwrap().spec.unwrap().node_name.is_none(), "no GPU without a node is given");
    files.iter().for_each(|file| std::fs::write(file, "").unwrap());
    let start = clock::mono();
    until("they are back", SOON, async || (reasons("Healthy").await? == 8).then_some(())).await;
    let took = clock::mono() - start;
    println!("device nodes back to the Device object: {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    cluster.until_running("two").await;
    cluster.check_no_device_twice().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_cdi_spec_cannot_be_written_costs_three_pods() {
    // No test lasts as long as this: the suspicion ends when the test wants it to.
    let agent = [&*timings("rescan: 300ms"), "--suspect-min=20m"];
    // One of four is within the 30 % of nodes that may be out.
    let mut cluster = TestCluster::with_agent_args(4, &agent).await;
    let cdi = cluster.path("node-0/cdi");
    std::fs::remove_dir_all(&cdi).unwrap();
    std::fs::write(&cdi, "a file in the place of the directory").unwrap();
    until("the daemon has tried to write", SOON, async || {
        cluster.nodes[0].agent.output().contains("cannot be written").then_some(())
    })
    .await;
    let devices: Api<Device> = Api::all(cluster.client.clone());
    let suspect = async || devices.get("node-0").await.expect("it is read").status?.suspect().cloned();
    for name in ["a", "b", "c"] {
        assert_eq!(suspect().await, None, "before the third");
        cluster.create(&pod(name).on("node-0").app("main", ONE)).await;
        cluster.until_phase(name, &["Failed"]).await;
        let status = cluster.pod(name).await.unwrap().status.unwrap();
        assert!(status.message.as_ref().is_some_and(|why| why.contains("CDI spec")), "{:?}", status.message);
    }
    let before = until("the node is suspect", SOON, suspect).await;
    tells(&before.message, ["CDI spec", "no new pods before"]);
    cluster.create(&pod("kept").on("node-0").app("main", ONE)).await;
    cluster.until_it_says("kept", "NodeSuspect: the machine has failed pods").await;
    let (_, nodes, _) = cluster.baton(&["get", "nodes", "--baton-namespace", NAMESPACE]).await;
    assert!(nodes.contains("Ready,NodeSuspect"), "{nodes}");
    cluster.runs(&pod("other").app("main", &[(key::NVIDIA_GPU, "8")])).await;
    cluster.until_told("NodeSuspect").await;
    // The next daemon knows it, too.
    let state = cluster.path("node-0/state/health.json");
    let kept = until("it is kept", SOON, async || {
        std::fs::read_to_string(&state).ok().filter(|text| text.contains("CDI spec"))
    })
    .await;
    std::fs::remove_file(&cdi).unwrap();
    cluster.restart_agent(0).await;
    cluster.create(&pod("later").on("node-0").app("main", ONE)).await;
    cluster.until_it_says("later", "NodeSuspect").await;
    assert_eq!(suspect().await, Some(before), "cause, end and time of the transition are those of before");
    // Its end comes.
    cluster.nodes[0].agent.kill();
    let mut kept: Value = serde_json::from_str(&kept).unwrap();
    let ends = clock::wall() + Duration::from_secs(3);
    kept["outages"][0]["out"][1] = json!(ends.to_string());
    std::fs::write(&state, kept.to_string()).unwrap();
    cluster.nodes[0].agent.restart();
    for name in ["kept", "later"] {
        cluster.until_running(name).await;
    }
    until("it is trusted again", SOON, async || suspect().await.is_none().then_some(())).await;
    cluster.check_no_device_twice().await;
}

/// Lets a process open no further descriptor, or as many as before.
fn limit_descriptors(daemon: &Daemon, tight: bool) {
    let pid = daemon.pid().expect("it runs");
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    let most = if tight { open } else { 1024 };
    let limit = Command::new("prlimit").args([format!("--pid={pid}"), format!("--nofile={most}:")]).status();
    assert!(limit.expect("prlimit runs").success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_daemon_without_descriptors_gives_nothing_twice_and_serves_with_some_again() {
    let cluster = TestCluster::start(1).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let devices = cluster.in_kubelet("node-0", "before");
    limit_descriptors(&cluster.nodes[0].agent, true);
    for name in ["a", "b", "c"] {
        cluster.create(&pod(name).app("main", ONE)).await;
        if cluster.until_phase(name, &["Running", "Failed"]).await == "Failed" {
            assert!(cluster.in_kubelet("node-0", name).is_empty(), "{name} failed and holds nothing");
        }
        cluster.check_no_device_twice().await;
    }
    limit_descriptors(&cluster.nodes[0].agent, false);
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    for name in ["before", "a", "b", "c"] {
        cluster.delete(name).await;
    }
    all_is_free(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_without_descriptors_loses_no_pod() {
    let cluster = TestCluster::start(1).await;
    limit_descriptors(&cluster.scheduler, true);
    for name in ["a", "b", "c"] {
        cluster.create(&pod(name).app("main", ONE)).await;
    }
    limit_descriptors(&cluster.scheduler, false);
    for name in ["a", "b", "c"] {
        served_exactly(&cluster, name).await;
    }
    cluster.check_no_device_twice().await;
}

/// A small disk of its own.
struct Disk(PathBuf);

impl Disk {
    /// `None` without the right to mount.
    fn mount(at: PathBuf) -> Option<Self> {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&at).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }

    fn remount_read_only(&self) -> bool {
        Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap().success()
    }

    fn fill(&self) {
        let error = std::fs::write(self.0.join("filler"), vec![1; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_state_directory_refuses_pods_and_loses_none_and_a_read_only_one_is_named() {
    let mut cluster = TestCluster::start(1).await;
    cluster.nodes[0].agent.kill();
    let Some(disk) = Disk::mount(cluster.path("node-0/state")) else { return skipped("no right to mount") };
    cluster.restart_agent(0).await;
    serves_exactly(&cluster, &pod("before").app("main", ONE)).await;
    let devices = cluster.in_kubelet("node-0", "before");
    // The files of the ledger are written over: a full disk refuses no pod until they grow.
    disk.fill();
    let mut refused = Vec::new();
    for at in 0..7 {
        let name = format!("p{at}");
        cluster.create(&pod(&name).app("main", ONE)).await;
        if cluster.until_phase(&name, &["Running", "Failed"]).await == "Running" {
            served_exactly(&cluster, &name).await;
        } else {
            assert!(cluster.in_kubelet("node-0", &name).is_empty(), "what is not stored is not given");
            refused.extend(cluster.pod(&name).await.and_then(|pod| pod.status?.message));
        }
        cluster.check_no_device_twice().await;
    }
    assert!(refused.iter().any(|said| said.contains("No space left")), "{refused:?}");
    disk.empty();
    for at in 0..7 {
        cluster.delete(&format!("p{at}")).await;
    }
    assert_eq!(cluster.in_kubelet("node-0", "before"), devices);
    // It was stored: a new start knows all of them.
    cluster.restart_agent(0).await;
    serves_exactly(&cluster, &pod("last").app("main", &[(key::NVIDIA_GPU, "7")])).await;
    cluster.check_no_device_twice().await;
    // A directory that cannot be written is named at the start.
    cluster.nodes[0].agent.kill();
    assert!(disk.remount_read_only());
    let agent = &mut cluster.nodes[0].agent;
    agent.restart();
    until("it says what is wrong", SOON, async || agent.has_ended().then_some(())).await;
    assert!(agent.output().contains("Read-only file system"));
}
