//! The node daemon on a machine with 8 GPUs and 4 NICs: what it takes of memory, threads and time, beside the limits of
//! `expect.toml`. Kubelet, API server and NVML are simulated over their real wires.
//!
//! With `BATON_BINARY` the daemons run from that file: the image's build
//! (`cargo build --profile image --no-default-features --bins`), which is what nodes run. Without it they run from this build, whose
//! pages have a limit of their own: it is not linked as one piece.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

mod expect;
#[path = "../tests/harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use more of it
mod harness;
#[path = "agent/health.rs"]
mod health;
#[path = "agent/process.rs"]
mod process;

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::podresources::ListPodResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::decide::handoff::LIST_SETTLES;
use baton::runtime::clock;
use baton::sim::kubelet::PodResourcesMode;
use expect::Expect;
use harness::pods;
use hdrhistogram::Histogram;
use hyper_util::rt::TokioIo;
use process::Process;
use tonic::transport::Endpoint;

const PODS: usize = 200;
/// What the last pods left behind is done by then: the ledger looked through, idle connections gone, the Device object without them (at
/// most once in half a minute).
const SETTLE: Duration = Duration::from_secs(35);
/// How long the idle daemon is watched: once around of everything that comes every half minute.
const IDLE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let mut expect = Expect::load("agent");
    let cluster = harness::TestCluster::start(1).await;
    let node = &cluster.nodes[0];
    cluster.until_agent_is_ready().await;
    // One pod first: lazily made things are there, as on a node that works.
    allocate(&cluster, "warm-up").await;
    let process = Process(node.agent.pid().unwrap());
    size(&mut expect, process);
    if let Some(ready) = metric(&cluster, "baton_node_ready_after_nvml_seconds").await {
        expect.at_most("ready_ms_after_nvml_init", ready * 1000.0);
    }
    // Until then each call reads its pod live, once after a start.
    tokio::time::sleep(LIST_SETTLES).await;
    allocations(&mut expect, &cluster, process).await;
    idle(&mut expect, &cluster, process).await;
    xids(&mut expect, &cluster).await;
    // It exits where a limit is broken; the daemons must not outlive it.
    drop(cluster);
    expect.finish();
}

fn size(expect: &mut Expect, process: Process) {
    let (binary, bytes) = process.binary();
    println!("{}, {:.1} MiB", binary.display(), bytes as f64 / f64::from(1 << 20));
    println!("node daemon, 8 GPUs, 4 NICs, GPU sharing on, after the first pod");
    // Pages of a file that was built a moment ago are dirty until they are on the disk.
    std::fs::File::open(&binary).unwrap().sync_all().unwrap();
    let (library, own) = (process.mapped("nvml"), process.mapped(&binary.display().to_string()));
    let mib = |kib: u64| kib as f64 / 1024.0;
    let resident = mib(process.rollup("Rss") - library.0);
    let is_image = std::env::var_os("BATON_BINARY").is_some();
    expect.at_most(if is_image { "resident_mib" } else { "release_resident_mib" }, resident);
    expect.at_most("private_dirty_mib", mib(process.rollup("Private_Dirty") - library.1));
    println!(
        "  of the resident memory, pages of the binary {:.1} MiB, of all files {:.1} MiB, anonymous {:.1} MiB",
        mib(own.0),
        mib(process.status("RssFile") - library.0),
        mib(process.status("RssAnon"))
    );
    expect.at_most("threads", process.status("Threads") as f64);
}

async fn allocations(expect: &mut Expect, cluster: &harness::TestCluster, process: Process) {
    let node = &cluster.nodes[0];
    node.kubelet.controls().take_allocate_times();
    let nvml_before = nvml_calls(cluster);
    let names = ["baton_node_allocate_seconds_sum", "baton_node_allocate_seconds_count", "baton_node_live_reads_total"];
    let before = metrics(cluster, &names).await;
    let cpu_before = process.cpu_seconds();
    for number in 0..PODS {
        allocate(cluster, &format!("p{number}")).await;
    }
    let cpu = process.cpu_seconds();
    let nvml_after = nvml_calls(cluster);
    let after = metrics(cluster, &names).await;
    let grown = |name: &str| after[name] - before[name];
    let (seconds, count) = (grown("baton_node_allocate_seconds_sum"), grown("baton_node_allocate_seconds_count"));
    let calls = histogram(&node.kubelet.controls().take_allocate_times());
    let listing = histogram(&pod_resources_times(cluster).await);
    let us = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
    println!(
        "Allocate over {} calls, one pod after another, as the kubelet waits for it: best {} us, p50 {} us; the PodResources \
         call alone: best {} us, p50 {} us, p99 {} us",
        calls.len(),
        calls.min(),
        us(&calls, 0.5),
        listing.min(),
        us(&listing, 0.5),
        us(&listing, 0.99)
    );
    expect.at_most("allocate_p50_us", us(&calls, 0.5) - us(&listing, 0.5));
    expect.at_most("allocate_p99_us", us(&calls, 0.99) - us(&listing, 0.5));
    expect.at_most("allocate_mean_inside_us", seconds / count * 1e6);
    let per_pod = |seconds: f64| seconds * 1000.0 / PODS as f64;
    println!(
        "  per pod, everything included: {:.2} ms of processor time in user mode, {:.2} ms in the kernel",
        per_pod(cpu.0 - cpu_before.0),
        per_pod(cpu.1 - cpu_before.1)
    );
    let reads = |call: &str| (labelled(&after, call) - labelled(&before, call)) / PODS as f64;
    expect.at_most("live_reads_per_allocate", reads("Allocate"));
    expect.at_most("live_reads_per_preference", reads("GetPreferredAllocation"));
    // The periodic re-scan is the only reader; it may fall into the run once a minute.
    expect.exactly("nvml_calls_per_allocation", (nvml_after - nvml_before) as f64 / PODS as f64);
}

/// Nothing happens on the node: how often the daemon wakes up, and what it asks of the API server.
async fn idle(expect: &mut Expect, cluster: &harness::TestCluster, process: Process) {
    cluster.until_unlocked(harness::LOCK_GONE).await;
    tokio::time::sleep(SETTLE).await;
    let (before, requests_before) = (process.wake_ups(), requests(cluster));
    tokio::time::sleep(IDLE).await;
    let (after, requests_after) = (process.wake_ups(), requests(cluster));
    println!("idle for {IDLE:?}");
    let mut total = 0;
    for (id, (name, count)) in &after {
        let woken = count - before.get(id).map_or(0, |(_, count)| *count);
        println!("  thread {name:18} {:.2} wake-ups a second", woken as f64 / IDLE.as_secs_f64());
        // It waits inside NVML, which wakes it up every two seconds.
        total += if name == "nvml-events" { 0 } else { woken };
    }
    expect.at_most("idle_wake_ups_per_second", total as f64 / IDLE.as_secs_f64());
    if let (Some(before), Some(after)) = (requests_before, requests_after) {
        for (what, count) in after.iter().filter(|(what, count)| before.get(*what) != Some(count)) {
            println!("  API: {what}: {}", count - before.get(what).unwrap_or(&0));
        }
        let writes = |requests: &BTreeMap<String, u64>| -> u64 {
            let steady = |what: &str| {
                let (verb, resource) = what.split_once(' ').unwrap_or_default();
                !matches!(verb, "get" | "list" | "watch") && resource != "leases"
            };
            requests.iter().filter(|(what, _)| steady(what)).map(|(_, count)| count).sum()
        };
        expect.exactly("idle_api_writes_beside_lease", (writes(&after) - writes(&before)) as f64);
    }
}

async fn xids(expect: &mut Expect, cluster: &harness::TestCluster) {
    let samples = health::measure(cluster).await;
    let sorted = |of: fn(&health::Sample) -> Duration| {
        let mut times: Vec<f64> = samples.iter().map(|sample| of(sample).as_secs_f64() * 1000.0).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (lists, objects) = (sorted(|sample| sample.lists), sorted(|sample| sample.object));
    println!("an XID on each of {} GPUs, 100 shares for each GPU and name", samples.len());
    println!("  until all five lists have come, ms: {lists:.1?}");
    println!("  until a watcher has the Device object, ms: {objects:.1?}");
    let median = |times: &[f64]| times[times.len() / 2];
    expect.at_most("xid_to_lists_best_ms", lists[0]);
    expect.at_most("xid_to_lists_p50_ms", median(&lists));
    expect.at_most("xid_to_object_best_ms", objects[0]);
    expect.at_most("xid_to_object_p50_ms", median(&objects));
}

/// Runs one pod to the point where it has its device, and takes it away.
async fn allocate(cluster: &harness::TestCluster, name: &str) {
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
async fn pod_resources_times(cluster: &harness::TestCluster) -> Vec<Duration> {
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
fn nvml_calls(cluster: &harness::TestCluster) -> u64 {
    let calls = cluster.nodes[0].hardware.nvml_calls().unwrap();
    calls.iter().filter(|(name, _)| !name.starts_with("nvmlEventSetWait")).map(|(_, count)| count).sum()
}

/// What the daemon has asked of the simulated API server so far, by verb and resource.
fn requests(cluster: &harness::TestCluster) -> Option<BTreeMap<String, u64>> {
    let mut requests = BTreeMap::new();
    for (what, count) in cluster.control_plane.simulated()?.counts().all() {
        if what.agent == "baton-device-plugin" {
            *requests.entry(format!("{} {}", what.verb, what.resource)).or_default() += count;
        }
    }
    // A binary that does not say who it is, an older one, cannot be distinguished.
    (!requests.is_empty()).then_some(requests)
}

/// The daemon's metrics whose names begin with one of `names`, with their labels.
async fn metrics(cluster: &harness::TestCluster, names: &[&str]) -> BTreeMap<String, f64> {
    let text = cluster.nodes[0].agent.get("/metrics").await.unwrap();
    let lines = text.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    lines
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

fn labelled(metrics: &BTreeMap<String, f64>, label: &str) -> f64 {
    metrics.iter().filter(|(name, _)| name.contains(&format!("\"{label}\""))).map(|(_, value)| value).sum()
}

/// Value of a metric without labels.
async fn metric(cluster: &harness::TestCluster, name: &str) -> Option<f64> {
    metrics(cluster, &[name]).await.get(name).copied()
}
