//! The scheduler's process is killed with -9 at every step of a bind, in the middle of a stream of pods.

use std::ffi::OsString;

use baton::sim::apiserver::Rule;

use crate::harness::daemon::timings;
use crate::prelude::*;

/// Eight GPUs each, four quarters to a GPU: room for 512 pods.
const NODES: usize = 16;
const PODS: usize = 500;
const USER: &str = "scheduler";
const LONG: Duration = Duration::from_secs(240);

/// Waits longer than [`crate::scheduler::verbs::until`] does: a killed leader's Lease must run out first.
async fn until(what: &str, mut check: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, wait).await.is_ok(), "{what} did not happen within {LONG:?}");
}

/// The scheduler as a process. Without the Lease it does not know of others.
fn scheduler(dir: &std::path::Path, name: &str, more: &str) -> Daemon {
    let words = format!("--namespace baton-system --listen 127.0.0.1:0 --node-lock always {more}");
    let quick = timings(
        "lease_duration: 2s, lease_renew_deadline: 1s, lease_retry: 200ms, lock_abandoned: 1s, lock_sweep: 200ms, backoff: 100ms, \
         backoff_max: 500ms",
    );
    let mut args: Vec<OsString> =
        vec!["scheduler".into(), quick.into(), "--kubeconfig".into(), dir.join("kubeconfig").into()];
    args.extend(words.split_whitespace().map(OsString::from));
    Daemon::start(args, dir.join(format!("{name}.log")))
}

/// Holder and place of every lock that stands.
fn locks(cluster: &SchedulerCluster) -> Vec<(String, String)> {
    let nodes = cluster.server().objects("", "nodes");
    let lock = |node: &Value| Some(node["metadata"]["annotations"].get(key::NODE_LOCK)?.as_str()?.to_owned());
    nodes.iter().filter_map(|node| Some((node["metadata"]["name"].as_str()?.to_owned(), lock(node)?))).collect()
}

/// Nodes of the pods, by uid; `None` for those that wait.
fn places(cluster: &SchedulerCluster) -> BTreeMap<String, Option<String>> {
    let pods = cluster.server().objects("", "pods");
    let place = |pod: &Value| pod["spec"]["nodeName"].as_str().map(str::to_owned);
    pods.iter().map(|pod| (pod["metadata"]["uid"].as_str().unwrap().to_owned(), place(pod))).collect()
}

/// What the agents do: the lock of a pod that is bound goes.
pub async fn serve(cluster: &SchedulerCluster, stop: &CancellationToken) {
    let releases = NodeLocks::new(cluster.client.clone(), key::NODE_LOCK);
    while !stop.is_cancelled() {
        let standing = locks(cluster);
        if !standing.is_empty() {
            let places = places(cluster);
            for (node, lock) in standing {
                let holder = lock.rsplit(',').next().unwrap_or_default();
                if places.get(holder).is_some_and(|place| place.as_ref() == Some(&node)) {
                    // Contended: it went meanwhile.
                    releases.release(&node, &lock).await.unwrap();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn submit(cluster: &SchedulerCluster, pods: std::ops::Range<usize>) {
    for at in pods {
        cluster.pod(&format!("p{at:03}"), json!({key::GPU: "25", "cpu": "1"})).await;
    }
}

/// Every pod has a node, no GPU is given beyond what it has, and no lock is left.
fn check(cluster: &SchedulerCluster) {
    let pods = cluster.server().objects("", "pods");
    assert_eq!(pods.len(), PODS);
    let mut given: BTreeMap<String, i64> = BTreeMap::new();
    for pod in &pods {
        let text = pod["metadata"]["annotations"][key::DEVICE_ALLOCATED].as_str().unwrap();
        for entry in DeviceAllocation::parse(text).unwrap().devices.values().flatten() {
            assert!(entry.id.as_str().contains(pod["spec"]["nodeName"].as_str().unwrap()), "a device of another node");
            *given.entry(entry.id.to_string()).or_default() += entry.amount(key::GPU_CORE);
        }
    }
    assert_eq!(given.values().sum::<i64>(), 25 * PODS as i64);
    let over: Vec<_> = given.iter().filter(|(_, percent)| **percent > 100).collect();
    assert!(over.is_empty(), "given beyond capacity: {over:?}");
    assert_eq!(locks(cluster), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_every_step_of_500_pods_each_is_bound_once_and_no_lock_is_left() {
    let cluster = SchedulerCluster::start().await;
    let dir = crate::harness::directory::directory();
    cluster.server().allow(USER, vec![Rule::new("*", "*", "*")]);
    std::fs::write(dir.path().join("kubeconfig"), cluster.server().plain_kubeconfig(USER)).unwrap();
    for at in 0..NODES {
        cluster.node(&format!("n{at:02}")).await;
    }
    let stop = CancellationToken::new();
    let story = async {
        let mut first = scheduler(dir.path(), "first", "");
        let on = |verb: &str, resource: &str, below: &str| FaultRule {
            user: USER.to_owned(),
            ..FaultRule::on(verb, resource).below(below).after(20).times(1)
        };
        // What the scheduler is doing when it is killed.
        let steps = [
            ("assumed, the lock not written", on("patch", "nodes", "-"), Effect::Hang),
            ("locked, the answer lost", on("patch", "nodes", "-"), Effect::HangAfter),
            ("locked, not bound", on("create", "pods", "binding"), Effect::Hang),
            ("bound, the answer lost", on("create", "pods", "binding"), Effect::HangAfter),
            ("bound, its event not written", on("create", "events", ""), Effect::Hang),
        ];
        let mut submitted = 0;
        for (step, rule, effect) in steps {
            let rule = cluster.server().faults().add(rule, effect);
            submit(&cluster, submitted..submitted + 60).await;
            submitted += 60;
            until(step, async || cluster.server().faults().fired(rule) > 0).await;
            first.kill();
            cluster.server().faults().remove(rule);
            first.restart();
        }
        // Both lead at once, the second without the Lease; then one is killed in the middle of its work, and only the other goes on.
        let mut second = scheduler(dir.path(), "second", "--leader-elect=false");
        until("the second leads, too", async || {
            second.get("/leading").await.is_some_and(|said| said.starts_with("HTTP/1.1 200"))
        })
        .await;
        submit(&cluster, submitted..PODS).await;
        until("half of the rest is bound", async || {
            places(&cluster).values().flatten().count() >= usize::midpoint(submitted, PODS)
        })
        .await;
        second.kill();
        until("every pod is bound", async || places(&cluster).values().flatten().count() == PODS).await;
        until("every lock is gone", async || locks(&cluster).is_empty()).await;
        stop.cancel();
    };
    tokio::join!(story, serve(&cluster, &stop));
    check(&cluster);
}
