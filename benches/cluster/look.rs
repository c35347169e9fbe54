//! What an operator's commands cost beside a cluster whose nodes have one GPU free each: time and most memory of each, as a process of
//! its own, and how long the scheduler's loop answered nothing meanwhile. And the events of a gang of a thousand that waits.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use baton::contract::key;
use baton::runtime::clock;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::Size;
use crate::daemon::{Daemon, binary};
use crate::http::Ui;
use crate::pods::{self, Batch, Shape};
use crate::server::{NAMESPACE, Server};
use crate::start::{LONG, complete, running, scheduler};
use crate::wait::until;

/// Members of the gang that waits.
const MEMBERS: usize = 1000;
/// Longest wait for their events.
const EVENTS: Duration = Duration::from_secs(120);
/// Pods that are bound alone and beside it.
const SINGLES: usize = 100;
/// Pods that wait, for one GPU more than a node has, and for seven.
const WAITING: [(&str, Shape); 2] = [("pair", Shape::Gpus(2)), ("whole", Shape::Gpus(8))];

pub async fn measure(server: &Server, size: Size) {
    running(server, size, |at| at / size.nodes < 7).await;
    let began = clock::mono();
    let leader = scheduler(server, "leader");
    until("the scheduler knows the cluster", LONG, async || complete(&leader)).await;
    println!("  {} nodes and {} pods are known after {:.1?}", size.nodes, size.pods, clock::mono() - began);
    for (name, shape) in WAITING {
        pods::create(&server.client, Batch { name, count: 1, shape, on: None, gangs_of: None }).await;
    }
    let alone = bind(server, "alone").await;
    let began = clock::mono();
    let gang = Batch { name: "gang", count: MEMBERS, shape: Shape::Gpus(2), on: None, gangs_of: Some(MEMBERS) };
    pods::create(&server.client, gang).await;
    println!("  {MEMBERS} members are created after {:.1?}", clock::mono() - began);
    let (beside, ()) = tokio::join!(bind(server, "beside"), events(server, began));
    println!("  {SINGLES} pods are bound in {alone:.2?}, beside the gang's events in {beside:.2?}");

    for line in [
        "get nodes",
        "get pods -A",
        "get gangs -A",
        "get queue",
        "audit",
        "explain pod ml/running-000000",
        "explain pod ml/pair-00000",
        "explain pod ml/whole-00000",
        "explain pod ml/gang-00000",
        "explain gang ml/gang-000",
    ] {
        command(server, &leader, line, None).await;
    }
    let template = |gpus: u32, priority: i32| {
        json!({"schedulerName": "baton-scheduler", "priority": priority,
            "containers": [{"name": "main", "image": "i", "resources": {"limits": {key::NVIDIA_GPU: gpus.to_string()}}}]})
    };
    let pod = |name: &str, gpus: u32, priority: i32| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE}, "spec": template(gpus, priority)});
    let member = |at: usize| {
        let mut pod = pod(&format!("member-{at}"), 8, 0);
        pod["metadata"]["annotations"] = json!({"gang.scheduling.koordinator.sh/name": "asked",
            "gang.scheduling.koordinator.sh/min-available": "8"});
        pod
    };
    let set = |counts: usize| json!([{"name": "actor", "counts": counts, "template": {"spec": template(1, 0)}}]);
    let objects = [
        ("a pod that fits", pod("one", 1, 0)),
        ("a pod that fits nowhere", pod("eight", 8, 0)),
        ("a pod that preempts", pod("important", 8, 1000)),
        (
            "a gang of 8 x 8",
            json!({"apiVersion": "v1", "kind": "List", "items": (0..8).map(member).collect::<Vec<_>>()}),
        ),
        (
            "a Job of 8",
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "namespace": NAMESPACE},
                "spec": {"parallelism": 8, "template": {"spec": template(1, 0)}}}),
        ),
        (
            "a TYJob of 1 + 8",
            json!({"apiVersion": "arranger.taichu.io/v1alpha1", "kind": "TYJob", "metadata": {"name": "rl", "namespace": NAMESPACE},
                "spec": {"minWorkersNum": 8, "leader": {"name": "learner", "template": {"spec": template(1, 0)}}, "workerSets": set(8)}}),
        ),
    ];
    for (what, object) in objects {
        println!("  {what}:");
        command(server, &leader, "explain --what-if -f -", Some(object)).await;
    }
    page(server, &leader, size);
}

/// Creates pods with one GPU and waits until they are bound.
async fn bind(server: &Server, name: &str) -> Duration {
    let began = clock::mono();
    pods::create(&server.client, Batch { name, count: SINGLES, shape: Shape::OneGpu, on: None, gangs_of: None }).await;
    let pods: Api<Pod> = Api::namespaced(server.client.clone(), NAMESPACE);
    for at in 0..SINGLES {
        let name = format!("{name}-{at:05}");
        until("the pod is bound", LONG, async || pods.get(&name).await.ok()?.spec?.node_name.map(drop)).await;
    }
    clock::mono() - began
}

/// Waits until each member has an event that says why the gang waits.
async fn events(server: &Server, began: Duration) {
    let all: Api<Event> = Api::namespaced(server.client.clone(), NAMESPACE);
    let (mut named, mut written) = (0, 0);
    while named < MEMBERS && clock::mono() - began < EVENTS {
        let found = all.list(&ListParams::default().fields("reason=Unschedulable")).await.unwrap().items;
        written = found.len();
        let pods: BTreeSet<_> = found.into_iter().filter_map(|event| event.involved_object.name).collect();
        named = pods.iter().filter(|name| name.starts_with("gang-")).count();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("  {named} members have their event after {:.1?}; {written} events", clock::mono() - began);
}

/// Runs `baton line`, and asks the scheduler's loop all the while.
async fn command(server: &Server, leader: &Daemon, line: &str, given: Option<Value>) {
    let admin = leader.address("admin HTTP").unwrap();
    let mut command = Command::new(binary());
    command
        .args(line.split(' '))
        .env("KUBECONFIG", &server.kubeconfig)
        .env("BATON_ADMIN_URL", format!("http://{admin}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (ended, silent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (until_end, most) = (ended.clone(), silent.clone());
    let scheduler = || cost(leader.pid().unwrap()).unwrap().1;
    let (began, before) = (clock::mono(), scheduler());
    let ran = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().unwrap();
        if let Some(given) = given {
            child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
        }
        drop(child.stdin.take());
        let pid = child.id();
        let watch = std::thread::spawn(move || {
            let mut last = (0, 0);
            while let Some(now) = cost(pid) {
                last = now;
                std::thread::park_timeout(Duration::from_millis(2));
            }
            last
        });
        let output = child.wait_with_output().unwrap();
        (output, watch.join().unwrap())
    });
    let asks = async {
        while !until_end.load(Ordering::Relaxed) {
            let asked = clock::mono();
            leader.get("/leading").await;
            most.fetch_max((clock::mono() - asked).as_millis() as u64, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let end = async {
        let ran = ran.await.unwrap();
        ended.store(true, Ordering::Relaxed);
        ran
    };
    let ((output, (peak, processor)), ()) = tokio::join!(end, asks);
    let took = clock::mono() - began;
    let said =
        String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout }).into_owned();
    println!(
        "  {line:32} {:>7.0} ms; {processor:>6} ms of the processor and {} of the scheduler's; {:>4} MiB; loop silent for {} ms; {} lines: {}",
        took.as_secs_f64() * 1e3,
        scheduler() - before,
        peak / 1024,
        silent.load(Ordering::Relaxed),
        said.lines().count(),
        said.lines().next().unwrap_or_default()
    );
    for line in said.lines().filter(|line| line.contains("would help") || line.contains("elsewhere")) {
        println!("      {line}");
    }
}

/// The most memory that a process has had, in KiB, and its processor time in milliseconds; `None` when it has ended.
fn cost(pid: u32) -> Option<(u64, u64)> {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
    let (status, stat) = (read("status")?, read("stat")?);
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    // Linux counts in hundredths of a second.
    Some((peak, fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10))
}

/// `baton ui`, until its stream has every node.
fn page(server: &Server, leader: &Daemon, size: Size) {
    let began = clock::mono();
    let admin = format!("--admin-url=http://{}", leader.address("admin HTTP").unwrap());
    let ui = Ui::start(&server.kubeconfig, &[&admin]);
    let mut stream = ui.stream(None);
    let (mut known, mut bytes) = (0, 0);
    while known < size.nodes {
        let event = stream.next().unwrap();
        bytes += event.bytes;
        known += event.data["rows"]["nodes"].as_object().map_or(0, serde_json::Map::len);
    }
    let took = clock::mono() - began;
    let again = clock::mono();
    let whole = ui.stream(None).until("the snapshot", |event| event.name == "snapshot").bytes;
    println!(
        "  page: every node after {took:.1?} and {} kB; a second window: {} kB in {:.0?}; {} MiB at most",
        bytes >> 10,
        whole >> 10,
        clock::mono() - again,
        cost(ui.child.id()).unwrap_or_default().0 >> 10
    );
    ui.interrupt();
}
