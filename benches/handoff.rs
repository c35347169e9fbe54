//! The hand-off under a burst: 64 pods of one eighth of a GPU on one node, the lock always on, real processes and sockets.
//! Prints total time, how long locks were held, and API writes per pod, beside the limits of `expect.toml`.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a bench is a test

#[allow(dead_code)] // the agent's bench uses more of it
mod expect;
#[path = "../tests/harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // the tests use more of it
mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{AgentStatus, key};
use baton::runtime::clock;
use expect::Expect;
use futures::StreamExt as _;
use harness::pods;
use hdrhistogram::Histogram;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};

const PODS: u32 = 64;

#[tokio::main]
async fn main() {
    let mut expect = Expect::load("handoff");
    let cluster = harness::TestCluster::start(1).await;
    let writes_before = writes(&cluster);
    let holds = tokio::spawn(lock_holds(cluster.client.clone()));
    let running = tokio::spawn(all_running(cluster.client.clone()));

    let start = clock::mono();
    for number in 0..PODS {
        // One eighth, in whole percent: eight fit on a GPU.
        let pod = pods::pod(&format!("share-{number:02}")).app("main", &[(key::GPU, "12")]);
        cluster.create(&pod).await;
    }
    let created = clock::mono() - start;
    running.await.unwrap();
    let total = clock::mono() - start;
    cluster.until_unlocked(harness::LOCK_GONE).await;
    let holds = holds.await.unwrap();
    cluster.check_no_device_twice().await;

    let mut histogram = Histogram::<u64>::new(3).unwrap();
    for hold in &holds {
        histogram.record(hold.as_micros() as u64).unwrap();
    }
    let millis = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    println!(
        "burst of {PODS} one-eighth shares on one node, lock always on (created within {:.3} s)",
        created.as_secs_f64()
    );
    expect.at_most("total_seconds", total.as_secs_f64());
    expect.at_most("lock_hold_p50_ms", millis(0.5));
    expect.at_most("lock_hold_p99_ms", millis(0.99));
    expect.exactly("lock_holds", holds.len() as f64);
    if let Some(before) = writes_before {
        let after = writes(&cluster).unwrap();
        for (what, count) in &after {
            println!("  {what}: {}", count - before[what]);
        }
        let total: u64 = after.iter().map(|(what, count)| count - before[what]).sum();
        expect.exactly("api_writes_per_pod", total as f64 / f64::from(PODS));
    }
    // It exits where a limit is broken; the daemons must not outlive it.
    drop(cluster);
    for (lock, suffix) in [("always", ""), ("auto", "_without_lock")] {
        let lock = format!("--node-lock={lock}");
        let cluster = harness::TestCluster::with_args(1, &[&lock], &[&lock]).await;
        let Some(_) = cluster.control_plane.simulated() else { continue };
        let one = waves(&cluster, 1, 1).await;
        expect.exactly(&format!("writes_of_1_pod{suffix}"), one.handoff);
        let many = waves(&cluster, 5, 200).await;
        expect.exactly(&format!("writes_per_1000_pods{suffix}"), many.handoff / 1000.0);
        expect.exactly("writes_of_exceptions", one.beside + many.beside);
    }
    let mut queue = Queue::start().await;
    let mut freed = Histogram::<u64>::new(3).unwrap();
    for _ in 0..FREED {
        freed.record(queue.free_one().await.as_micros() as u64).unwrap();
    }
    let millis = |quantile: f64| freed.value_at_quantile(quantile) as f64 / 1000.0;
    println!("{FREED} times a GPU comes free, {WAITING} pods wait");
    expect.at_most("freed_to_bound_p50_ms", millis(0.5));
    expect.at_most("freed_to_bound_p99_ms", millis(0.99));
    expect.at_most("leader_killed_to_bound_seconds", queue.kill_leader().await.as_secs_f64());
    queue.cluster.check_no_device_twice().await;
    drop(queue);
    expect.finish();
}

const WAITING: usize = 1000;
const FREED: usize = 100;

/// Two nodes whose GPUs are all in use, pods that wait for one, and a scheduler that stands by.
struct Queue {
    cluster: harness::TestCluster,
    spare: harness::daemon::Daemon,
    events: std::pin::Pin<Box<dyn futures::Stream<Item = WatchEvent<Pod>> + Send>>,
    bound: Vec<String>,
    ended: BTreeSet<String>,
}

impl Queue {
    async fn start() -> Self {
        let cluster = harness::TestCluster::start(2).await;
        let spare = cluster.spare_scheduler(&[]).await;
        for number in 0..16 + WAITING {
            cluster.create(&pods::pod(&format!("q-{number:04}")).app("main", &[(key::NVIDIA_GPU, "1")])).await;
        }
        let mut bound = Vec::new();
        for number in 0..16 {
            let name = format!("q-{number:04}");
            cluster.until_running(&name).await;
            bound.push(name);
        }
        cluster.until_unlocked(harness::LOCK_GONE).await;
        let api: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
        let listed = api.list_metadata(&ListParams::default()).await.unwrap();
        let version = listed.metadata.resource_version.unwrap_or_default();
        let events = api.watch(&WatchParams::default().timeout(290), &version).await.unwrap();
        let events = Box::pin(events.filter_map(|event| std::future::ready(event.ok())));
        Self { cluster, spare, events, bound, ended: BTreeSet::new() }
    }

    /// Ends the pod that was bound first. How long from when it is gone until the next one is bound.
    async fn free_one(&mut self) -> Duration {
        let ended = self.bound.remove(0);
        let api: Api<Pod> = Api::namespaced(self.cluster.client.clone(), "default");
        api.delete(&ended, &Default::default()).await.unwrap();
        let mut gone = None;
        while let Some(event) = self.events.next().await {
            match event {
                // The last words of a pod that ended before.
                WatchEvent::Modified(pod) | WatchEvent::Deleted(pod) if self.ended.contains(&pod.name_any()) => {}
                WatchEvent::Modified(pod) if pod.name_any() == ended => {
                    // Its containers have ended: its GPU is free before the object is gone.
                    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                    if matches!(phase, Some("Succeeded" | "Failed")) {
                        gone.get_or_insert_with(clock::mono);
                    }
                }
                WatchEvent::Deleted(_) => _ = gone.get_or_insert_with(clock::mono),
                WatchEvent::Modified(pod) => {
                    let name = pod.name_any();
                    if pod.spec.is_some_and(|spec| spec.node_name.is_some()) && !self.bound.contains(&name) {
                        self.bound.push(name);
                        self.ended.insert(ended);
                        return gone.map_or(Duration::ZERO, |gone| clock::mono() - gone);
                    }
                }
                _ => {}
            }
        }
        panic!("the watch has ended");
    }

    /// Kills the leader, ends a pod, and waits until the next leader binds another one.
    async fn kill_leader(&mut self) -> Duration {
        let since = clock::mono();
        self.cluster.scheduler.kill();
        self.free_one().await;
        assert!(self.spare.output().contains("leading"), "the scheduler that stands by has bound it");
        clock::mono() - since
    }
}

/// `AgentTimings::heartbeat`.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Writes that some pods caused.
struct Writes {
    /// Locks, Bindings, unlocks.
    handoff: f64,
    /// Changes of what the node daemon's Lease says, and writes of the Device object beyond its count of free GPUs.
    beside: f64,
}

/// Runs `waves` of so many pods, one wave after another.
async fn waves(cluster: &harness::TestCluster, waves: usize, pods: usize) -> Writes {
    let server = cluster.control_plane.simulated().unwrap();
    let status = async || {
        let leases: Api<Lease> =
            Api::namespaced(cluster.client.clone(), &AgentStatus::lease_namespace(harness::NAMESPACE));
        leases.get(&AgentStatus::lease_name("node-0")).await.unwrap().annotations()[key::AGENT].clone()
    };
    let of_handoff = || writes(cluster).unwrap().values().sum::<u64>();
    let (before, devices, said) = (of_handoff(), server.counts().writes("devices"), status().await);
    let (mut changed, began) = (0, clock::mono());
    for wave in 0..waves {
        for number in 0..pods {
            let name = format!("w{wave}-{number}");
            cluster.create(&pods::pod(&name).app("main", &[(key::GPU, "1")])).await;
        }
        for number in 0..pods {
            cluster.until_running(&format!("w{wave}-{number}")).await;
        }
        cluster.until_unlocked(harness::LOCK_GONE).await;
        changed += u64::from(status().await != said);
        for number in 0..pods {
            cluster.delete(&format!("w{wave}-{number}")).await;
        }
        harness::wait::until("the pods are gone", harness::SOON, async || {
            let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
            pods.list_metadata(&ListParams::default()).await.unwrap().items.is_empty().then_some(())
        })
        .await;
    }
    // The count of free GPUs that `kubectl get devices` shows follows at most once per heartbeat.
    let counts = (clock::mono() - began).as_secs() / HEARTBEAT.as_secs() + 1;
    let beside = (server.counts().writes("devices") - devices).saturating_sub(counts) + changed;
    Writes { handoff: (of_handoff() - before) as f64, beside: beside as f64 }
}

/// Writes of the hand-off at the API server: lock, binding, unlock. Pod creation, events, Leases, Device objects, labels and
/// status conditions are counted apart, as the protocol does.
fn writes(cluster: &harness::TestCluster) -> Option<BTreeMap<&'static str, u64>> {
    let counts = cluster.control_plane.simulated()?.counts();
    // Only this program writes these here: kubelets patch nodes/status and pods/status.
    let ours = |verb, resource, subresource| counts.of(verb, resource, subresource);
    Some(BTreeMap::from([
        ("patch nodes", ours("patch", "nodes", "")),
        ("create pods/binding", ours("create", "pods", "binding")),
        ("patch pods", ours("patch", "pods", "")),
    ]))
}

/// How long each value stood in the lock annotation, until [`PODS`] of them are gone.
async fn lock_holds(client: Client) -> Vec<Duration> {
    let nodes: Api<Node> = Api::all(client);
    let mut holds = Vec::new();
    let mut held: Option<(String, Duration)> = None;
    let mut version = "0".to_owned();
    while holds.len() < PODS as usize {
        let mut events = nodes.watch_metadata(&WatchParams::default(), &version).await.unwrap().boxed();
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = event else { continue };
            version = node.resource_version().unwrap_or_default();
            let value = node.annotations().get(key::NODE_LOCK).cloned();
            let now = clock::mono();
            if value.as_deref() != held.as_ref().map(|(value, _)| value.as_str()) {
                holds.extend(held.take().map(|(_, since)| now - since));
                held = value.map(|value| (value, now));
            }
            if holds.len() >= PODS as usize {
                break;
            }
        }
    }
    holds
}

/// Returns when every pod runs; panics when one fails.
async fn all_running(client: Client) {
    let pods: Api<Pod> = Api::namespaced(client, "default");
    let mut running = std::collections::BTreeSet::new();
    let mut version = "0".to_owned();
    loop {
        let mut events = pods.watch(&WatchParams::default(), &version).await.unwrap().boxed();
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else { continue };
            version = pod.resource_version().unwrap_or_default();
            match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
                Some("Running") => running.insert(pod.name_any()),
                Some("Failed") => panic!("{} failed: {:?}", pod.name_any(), pod.status),
                _ => continue,
            };
            if running.len() == PODS as usize {
                return;
            }
        }
    }
}
