//! What the server costs on the operator's machine, beside a large cluster.

use std::sync::atomic::{AtomicU64, Ordering};

use futures::stream::{self, StreamExt};

use super::http::Ui;
use crate::prelude::*;

const NODES: usize = 5000;
const GPUS: usize = 8;
const CHANGES_PER_SECOND: u64 = 1000;
const TIME: Duration = Duration::from_secs(60);

/// Resident bytes, and seconds of the processor.
fn cost(pid: u32) -> (u64, f64) {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    let pages: u64 = read("statm").split(' ').nth(1).unwrap().parse().unwrap();
    (pages * 4096, ticks as f64 / 100.0)
}

/// The pod that holds a GPU; every other round it is another GPU of its node.
fn assignment(pod: usize, round: u64) -> String {
    let minor = (pod % GPUS + (round % 2) as usize) % GPUS;
    json!({"gpu": [{"minor": minor, "id": format!("GPU-{}-{minor}", pod / GPUS), "resources": {"koordinator.sh/gpu-core": "100"}}]}).to_string()
}

async fn fill(server: &TestServer) {
    let (nodes, devices, pods) =
        (Api::<Node>::all(server.client.clone()), Api::<Device>::all(server.client.clone()), server.pods_in("default"));
    let node = async |at: usize| {
        let name = format!("node-{at:04}");
        let status =
            json!({"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]});
        let object = serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap();
        nodes.create(&PostParams::default(), &object).await.unwrap();
        let gpu = |minor: usize| {
            json!({"type": "gpu", "id": format!("GPU-{at}-{minor}"), "minor": minor, "health": true, "resources": {"koordinator.sh/gpu-core": "100"},
            "labels": {key::MODEL: "NVIDIA-H100", key::PCIE_SWITCH: format!("0000:{}", minor / 4)}})
        };
        let gpus: Vec<_> = (0..GPUS).map(gpu).collect();
        let object = json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}, "spec": {"devices": gpus}});
        devices.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        for gpu in 0..GPUS {
            let pod = at * GPUS + gpu;
            let object = json!({"metadata": {"name": format!("pod-{pod}"), "annotations": {"scheduling.koordinator.sh/device-allocated": assignment(pod, 0)}},
                "spec": {"nodeName": name, "schedulerName": "baton-scheduler", "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
            pods.create(&PostParams::default(), &serde_json::from_value::<Pod>(object).unwrap()).await.unwrap();
        }
    };
    stream::iter(0..NODES).for_each_concurrent(16, node).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes, optimised: cargo test --release --test ops -- --ignored --nocapture the_server_of_5000_nodes"]
async fn the_server_of_5000_nodes_and_1000_changes_a_second() {
    let server = TestServer::simulated().await;
    // Without the policies, which would judge each of the writes of this test.
    server.create_crds([baton::contract::inventory::crd()]).await;
    let begin = clock::mono();
    fill(&server).await;
    println!("{NODES} nodes with {} pods after {:?}", NODES * GPUS, clock::mono() - begin);
    let ui = Ui::start(&server.kubeconfig, &[]);
    let pid = ui.child.id();
    let begin = clock::mono();
    let mut reader = ui.stream(None);
    let (bytes, deltas, longest, known) = (
        Arc::<AtomicU64>::default(),
        Arc::<AtomicU64>::default(),
        Arc::<AtomicU64>::default(),
        Arc::<AtomicU64>::default(),
    );
    let counts = (bytes.clone(), deltas.clone(), longest.clone(), known.clone());
    std::thread::spawn(move || {
        while let Some(event) = reader.next() {
            counts.0.fetch_add(event.bytes as u64, Ordering::Relaxed);
            if event.name == "delta" {
                counts.1.fetch_add(1, Ordering::Relaxed);
                counts.2.fetch_max(event.bytes as u64, Ordering::Relaxed);
            }
            let nodes = event.data["rows"]["nodes"].as_object().map_or(0, serde_json::Map::len);
            counts.3.fetch_add(nodes as u64, Ordering::Relaxed);
        }
    });
    while known.load(Ordering::Relaxed) < NODES as u64 {
        assert!(clock::mono() - begin < Duration::from_secs(300), "the rows come");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (memory, processor) = cost(pid);
    let build = if cfg!(debug_assertions) { "not optimised" } else { "optimised" };
    println!(
        "the test and its API server are {build}; every node on the stream after {:?}: {} MB resident, {processor:.1} s of the processor, {} kB",
        clock::mono() - begin,
        memory >> 20,
        bytes.load(Ordering::Relaxed) >> 10
    );
    let (before, bytes_before, deltas_before) =
        (processor, bytes.load(Ordering::Relaxed), deltas.load(Ordering::Relaxed));
    let pods = server.pods_in("default");
    let begin = clock::mono();
    let changes = stream::unfold(0_u64, |change| async move {
        tokio::time::sleep(
            (begin + Duration::from_micros(change * 1_000_000 / CHANGES_PER_SECOND)).saturating_sub(clock::mono()),
        )
        .await;
        (clock::mono() - begin < TIME).then_some((change, change + 1))
    });
    let done = AtomicU64::new(0);
    changes
        .for_each_concurrent(64, async |change| {
            let pod = (change as usize * 7919) % (NODES * GPUS);
            let text = assignment(pod, 1 + change / (NODES * GPUS) as u64);
            let patch = json!({"metadata": {"annotations": {"scheduling.koordinator.sh/device-allocated": text}}});
            pods.patch_metadata(&format!("pod-{pod}"), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            done.fetch_add(1, Ordering::Relaxed);
        })
        .await;
    let time = clock::mono() - begin;
    let (memory, processor) = cost(pid);
    let (bytes, deltas) =
        (bytes.load(Ordering::Relaxed) - bytes_before, deltas.load(Ordering::Relaxed) - deltas_before);
    println!(
        "{} changes in {time:.0?}: {} MB resident, {:.1} s of the processor ({:.0} %), {deltas} deltas, {} kB of stream, the longest {} bytes",
        done.into_inner(),
        memory >> 20,
        processor - before,
        (processor - before) * 100.0 / time.as_secs_f64(),
        bytes >> 10,
        longest.load(Ordering::Relaxed)
    );
    assert!(longest.load(Ordering::Relaxed) <= 64 << 10 && deltas as f64 <= time.as_secs_f64() * 4.0 + 8.0);
}
