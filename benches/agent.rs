//! The node daemon on a machine with 8 GPUs and 4 NICs: what it takes of memory, threads and time, beside the limits of
//! `expect.toml`. The daemon is the shipped binary; kubelet, API server and NVML are simulated over their real wires.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

#[path = "../tests/cluster/control_plane.rs"]
#[allow(dead_code)] // the tests use more of it
mod control_plane;
#[path = "../tests/cluster/daemon.rs"]
#[allow(dead_code)] // the tests use more of it
mod daemon;
mod expect;
#[path = "../tests/cluster/harness.rs"]
#[allow(dead_code)] // the tests use more of it
mod harness;
#[path = "../tests/cluster/pods.rs"]
#[allow(dead_code)] // the tests use more of it
mod pods;
#[path = "../tests/cluster/wait.rs"]
mod wait;

use std::time::Duration;

use baton::contract::podresources::ListPodResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::runtime::clock;
use baton::sim::kubelet::PodResourcesMode;
use expect::Expect;
use hdrhistogram::Histogram;
use hyper_util::rt::TokioIo;
use tonic::transport::Endpoint;

const PODS: usize = 200;

#[tokio::main]
async fn main() {
    let mut expect = Expect::load("agent");
    let cluster = harness::Cluster::start(1).await;
    let node = &cluster.nodes[0];
    cluster.until_agent_is_ready().await;
    // One pod first: lazily made things are there, as on a node that works.
    allocate(&cluster, "warm-up").await;
    let pid = node.agent.pid().unwrap();

    println!("node daemon, 8 GPUs, 4 NICs, GPU sharing on, after the first pod");
    let library = mapped(pid, "nvml");
    expect.at_most("resident_mib", (rollup(pid, "Rss") - library.0) as f64 / 1024.0);
    expect.at_most("private_dirty_mib", (rollup(pid, "Private_Dirty") - library.1) as f64 / 1024.0);
    println!(
        "  of the resident memory, file-backed (the binary itself, shared by all): {:.1} MiB",
        file_backed(pid) as f64 / 1024.0
    );
    expect.at_most("threads", status(pid, "Threads:") as f64);
    if let Some(ready) = metric(&node.agent.get("/metrics").await.unwrap(), "baton_ready_after_nvml_seconds") {
        expect.at_most("ready_ms_after_nvml_init", ready * 1000.0);
    }

    node.kubelet.controls().take_allocate_times();
    let nvml_before = nvml_calls(&cluster);
    for number in 0..PODS {
        allocate(&cluster, &format!("p{number}")).await;
    }
    let nvml_after = nvml_calls(&cluster);
    let calls = histogram(&node.kubelet.controls().take_allocate_times());
    let listing = histogram(&pod_resources_times(&cluster).await);
    let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
    println!(
        "Allocate over {} calls, one pod after another; the PodResources call alone: p50 {} us, p99 {} us",
        calls.len(),
        us(&listing, 0.5),
        us(&listing, 0.99)
    );
    expect.at_most("allocate_p50_us", us(&calls, 0.5) - us(&listing, 0.5));
    expect.at_most("allocate_p99_us", us(&calls, 0.99) - us(&listing, 0.5));
    // The periodic re-scan is the only reader; it may fall into the run once a minute.
    expect.exactly("nvml_calls_per_allocation", (nvml_after - nvml_before) as f64 / PODS as f64);
    expect.finish();
}

/// Runs one pod to the point where it has its device, and takes it away.
async fn allocate(cluster: &harness::Cluster, name: &str) {
    cluster.create(&pods::pod(name).app("main", &[("nvidia.com/gpu", "1")])).await;
    cluster.until_running(name).await;
    cluster.delete(name).await;
}

fn histogram(times: &[Duration]) -> Histogram<u64> {
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    for time in times {
        histogram.record(time.as_micros() as u64).unwrap();
    }
    histogram
}

/// Time of the same call that the daemon makes, from here.
async fn pod_resources_times(cluster: &harness::Cluster) -> Vec<Duration> {
    let kubelet = &cluster.nodes[0].kubelet;
    kubelet.controls().set_pod_resources(PodResourcesMode::Normal);
    let socket = kubelet.options().pod_resources_socket();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
    let mut client = PodResourcesListerClient::new(channel);
    let mut times = Vec::new();
    while times.len() < 100 {
        let begin = clock::mono();
        match client.list(ListPodResourcesRequest {}).await {
            Ok(_) => times.push(clock::mono() - begin),
            // The kubelet allows 100 calls a second.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    times
}

/// NVML calls so far, without the waits for events.
fn nvml_calls(cluster: &harness::Cluster) -> u64 {
    let calls = cluster.nodes[0].hardware.nvml_calls().unwrap();
    calls.iter().filter(|(name, _)| !name.starts_with("nvmlEventSetWait")).map(|(_, count)| count).sum()
}

/// A line of /proc/<pid>/smaps_rollup, in KiB.
fn rollup(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    kib(text.lines().find(|line| line.starts_with(&format!("{field}:"))).unwrap())
}

/// Resident and private dirty KiB of the mappings of files whose path holds `name`.
fn mapped(pid: u32, name: &str) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut inside, mut sums) = (false, (0, 0));
    for line in text.lines() {
        match line.split_whitespace().next().unwrap_or_default() {
            "Rss:" if inside => sums.0 += kib(line),
            "Private_Dirty:" if inside => sums.1 += kib(line),
            word if !word.ends_with(':') => inside = line.contains(name),
            _ => {}
        }
    }
    sums
}

/// Resident KiB that are backed by files.
fn file_backed(pid: u32) -> u64 {
    status(pid, "RssFile:")
}

fn status(pid: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    kib(text.lines().find(|line| line.starts_with(field)).unwrap())
}

fn kib(line: &str) -> u64 {
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Value of a metric without labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find(|line| line.starts_with(&format!("{name} ")))?.split_whitespace().nth(1)?.parse().ok()
}
