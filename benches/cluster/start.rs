//! A scheduler of a large cluster starts, leads, is killed, and another one takes over: resident memory beside the limit of the
//! shipped manifest, and the time to the first Binding.

use std::ffi::OsString;
use std::time::Duration;

use baton::contract::key;
use baton::ops::manifests::{Values, files};
use baton::runtime::clock;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::daemon::{Daemon, timings};
use crate::expect::Expect;
use crate::pods::{self, Batch, Shape};
use crate::scenario::memory_mib;
use crate::server::{NAMESPACE, SYSTEM, Server};
use crate::wait::until;
use crate::{Size, nodes};

pub const LONG: Duration = Duration::from_secs(600);

pub async fn measure(server: &Server, size: Size, expect: &mut Expect) {
    running(server, size, |at| at.is_multiple_of(20) && at / size.nodes < 8).await;
    let limit = limit_mib();
    let began = clock::mono();
    let mut leader = scheduler(server, "leader");
    until("the scheduler knows the cluster", LONG, async || complete(&leader)).await;
    println!("  {} nodes and {} pods are known after {:.1?}", size.nodes, size.pods, clock::mono() - began);
    first_bind(server, "first", began, "from the start to the first Binding").await;
    let (resident, peak) = (memory_mib(&leader, "VmRSS:"), memory_mib(&leader, "VmHWM:"));
    println!("  leader: {resident:.0} MiB resident, {peak:.0} at most, of {limit:.0} in the manifest");
    let spare = scheduler(server, "spare");
    until("the spare one knows the cluster", LONG, async || complete(&spare)).await;
    let killed = clock::mono();
    leader.kill();
    first_bind(server, "second", killed, "from SIGKILL of the leader to the next Binding").await;
    let after = memory_mib(&spare, "VmHWM:");
    println!("  next leader: {after:.0} MiB at most");
    expect.at_most("start_peak_to_limit", peak.max(after) / limit);
}

pub fn complete(scheduler: &Daemon) -> Option<()> {
    scheduler.output().contains("the world is complete").then_some(())
}

/// Creates a pod and waits until it is bound.
async fn first_bind(server: &Server, name: &str, since: Duration, what: &str) {
    pods::create(&server.client, Batch { name, count: 1, shape: Shape::OneGpu, on: None, gangs_of: None }).await;
    let pods: Api<Pod> = Api::namespaced(server.client.clone(), NAMESPACE);
    until("the pod is bound", LONG, async || pods.get(&format!("{name}-00000")).await.ok()?.spec?.node_name.map(drop))
        .await;
    println!("  {what}: {:.1?}", clock::mono() - since);
}

/// Pods that run, of a hundred templates, with one label of their own; some have a GPU.
pub async fn running(server: &Server, size: Size, has_gpu: impl Fn(usize) -> bool) {
    let pods: Api<Pod> = Api::namespaced(server.client.clone(), NAMESPACE);
    let each = (0..size.pods).map(|at| {
        let node = nodes::name(at % size.nodes);
        let minor = at / size.nodes;
        let gpu = has_gpu(at);
        let whole = json!({key::GPU_CORE: "100", key::GPU_MEMORY: "80Gi", key::GPU_MEMORY_RATIO: "100"});
        let id = format!("GPU-{node}-{minor:04}-0000-000000000000");
        let held = json!({"gpu": [{"minor": minor, "id": id, "resources": whole}]}).to_string();
        let mut limits = json!({"cpu": "500m", "memory": "1Gi"});
        let mut annotations = json!({});
        if gpu {
            limits[key::NVIDIA_GPU] = json!("1");
            annotations = json!({key::DEVICE_ALLOCATED: held, key::BIND_TIMESTAMP: (1_795_226_400_000_000_000_u64 + at as u64).to_string()});
        }
        let labels = json!({"app": format!("app-{}", at % 100), "pod-template-hash": format!("{:08x}", at % 100),
            "apps.kubernetes.io/pod-index": (at % 1000).to_string()});
        let pod = json!({"metadata": {"name": format!("running-{at:06}"), "labels": labels, "annotations": annotations},
            "spec": {"schedulerName": "baton-scheduler", "automountServiceAccountToken": false, "nodeName": node,
                "containers": [{"name": "main", "image": "registry.invalid/web:1", "resources": {"limits": limits}}]}});
        let (pods, pod) = (pods.clone(), serde_json::from_value(pod).unwrap());
        async move { pods.create(&PostParams::default(), &pod).await.map(drop).unwrap() }
    });
    futures::stream::iter(each).buffer_unordered(32).for_each(|()| std::future::ready(())).await;
}

pub fn scheduler(server: &Server, name: &str) -> Daemon {
    let stale = timings("agent_stale: 1h");
    let words = ["--namespace", SYSTEM, "--listen", "127.0.0.1:0", &stale, "--node-lock", "auto"];
    let mut args: Vec<OsString> = vec!["scheduler".into(), "--kubeconfig".into()];
    args.push(server.kubeconfig.clone().into_os_string());
    args.extend(words.iter().map(OsString::from));
    Daemon::start(args, server.dir.path().join(format!("{name}.log")))
}

/// The scheduler's memory limit in the shipped manifest.
fn limit_mib() -> f64 {
    let files = files(&Values::default());
    let manifest = files.iter().find(|file| file.path == "scheduler.yaml").unwrap();
    let (_, limits) = manifest.text.split_once("limits:").unwrap();
    let amount = limits.split_once("memory:").unwrap().1.split_whitespace().next().unwrap();
    amount.strip_suffix("Mi").unwrap().parse().unwrap()
}
