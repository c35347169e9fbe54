//! What a tenant's large objects cost the daemons.

use baton::sim::hardware::{NodeSpec, VirtualNode};
use futures::StreamExt as _;

use crate::harness::cluster::agent_command;
use crate::prelude::*;

const NODE: &str = "large";
/// Longest wait for a daemon that has 230 MB to read.
const SOON: Duration = Duration::from_secs(300);
const PODS: usize = 150;
const LABELS: usize = 20_000;
/// More than the empty daemon may have resident, at any time.
const MOST_MIB: u64 = 100;

/// Resident now, and the most that was ever resident, in MiB.
pub fn resident(daemon: &Daemon) -> (u64, u64) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid().unwrap())).unwrap();
    let of = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    (of("VmRSS:") / 1024, of("VmHWM:") / 1024)
}

/// A pod that is bound to [`NODE`], with 1.2 MB of labels and an annotation of 200 kB.
fn fat(number: usize) -> Pod {
    let labels: BTreeMap<String, String> =
        (0..LABELS).map(|at| (format!("key-{at:06}"), format!("{number:04}-{at:06}-{}", "x".repeat(38)))).collect();
    let annotations = json!({key::DEVICE_ALLOCATE_HINT: "h".repeat(200_000)});
    serde_json::from_value(json!({
        "metadata": {"name": format!("fat-{number}"), "labels": labels, "annotations": annotations},
        "spec": {"nodeName": NODE, "automountServiceAccountToken": false, "containers": [{"name": "main", "image": "i"}]},
    }))
    .unwrap()
}

/// The daemon of a node without a kubelet.
fn agent(cluster: &TestCluster, hardware: &VirtualNode, name: &str) -> Daemon {
    let root = cluster.path(name);
    std::fs::create_dir_all(&root).unwrap();
    let of_kubelet = [root.join("kubelet"), root.join("pod-resources.sock")];
    let args = agent_command([name, "default"], &root, hardware, of_kubelet, &cluster.kubeconfig, &[]);
    Daemon::start(args, cluster.path(&format!("{name}.log")))
}

/// Waits until a process has done what it has to: its processor time stands still for a second.
async fn until_at_rest(daemon: &Daemon) {
    let spent = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid().unwrap())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit_once(')').unwrap().1.split_whitespace().filter_map(|of| of.parse().ok()).collect();
        fields[10] + fields[11]
    };
    let (mut before, mut since) = (spent(), clock::mono());
    until("the process is at rest", SOON, async || {
        // A few hundredths of a second are its timers.
        if spent() > before + 5 {
            (before, since) = (spent(), clock::mono());
        }
        (clock::mono() >= since + Duration::from_secs(2)).then_some(())
    })
    .await;
}

fn below(name: &str, empty: u64, later: [(u64, u64); 2]) {
    println!("{name}: {empty} MiB empty; with the pods, after a start: {later:?} (now, at most)");
    for (_, most) in later {
        assert!(most < empty + MOST_MIB, "{name}: {most} MiB, {empty} without the pods");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of processor time: the simulated API server stores 230 MB of labels"]
async fn pods_with_a_megabyte_of_labels_cost_the_daemons_little_also_at_a_start() {
    let mut cluster = TestCluster::on(installed().await, 0, &[], &[]).await;
    let hardware = VirtualNode::create(cluster.path("hw"), NodeSpec::new(NODE)).unwrap();
    cluster.create_object::<Node>(json!({"metadata": {"name": NODE}})).await;
    let mut agent = agent(&cluster, &hardware, NODE);
    for daemon in [&cluster.scheduler, &agent] {
        until_at_rest(daemon).await;
    }
    let empty = [resident(&cluster.scheduler).0, resident(&agent).0];
    let pods: Api<Pod> = cluster.pods_in("default");
    let size = serde_json::to_vec(&fat(0)).unwrap().len();
    println!("{PODS} pods of {:.2} MB each", size as f64 / 1e6);
    let made = futures::stream::iter(0..PODS).map(|number| {
        let pods = pods.clone();
        async move { drop(pods.create(&PostParams::default(), &fat(number)).await.unwrap()) }
    });
    made.buffer_unordered(4).for_each(|()| std::future::ready(())).await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        for daemon in [&cluster.scheduler, &agent] {
            until_at_rest(daemon).await;
        }
        seen.push([resident(&cluster.scheduler), resident(&agent)]);
        cluster.scheduler.restart();
        agent.restart();
    }
    below("scheduler", empty[0], [seen[0][0], seen[1][0]]);
    below("node daemon", empty[1], [seen[0][1], seen[1][1]]);
}

/// A simulated API server: the etcd of a real one takes no such objects by default.
async fn installed() -> TestServer {
    let server = TestServer::with_tls().await;
    server.install(&Values { namespace: "default".to_owned(), ..Values::default() }).await;
    server
}
