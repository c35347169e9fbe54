//! `--node-lock=auto` with the daemons as they ship: every pod gets exactly its devices, no lock is written where the node can do
//! without, and one is where it cannot.

use std::sync::Mutex;

use baton::contract::AgentStatus;
use futures::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::api::{WatchEvent, WatchParams};
use tokio::task::JoinHandle;

use crate::harness::pods::every_kind;
use crate::prelude::*;

const AUTO: &[&str] = &["--node-lock=auto"];
/// Marks the end of what a watch of locks is asked about.
const MARK: &str = "test/mark";

type Locks = BTreeMap<String, BTreeSet<String>>;

/// Every value that the lock of any node ever had, by a watch: nothing between two looks is missed.
struct LocksSeen {
    client: Client,
    seen: Arc<Mutex<(Locks, BTreeMap<String, String>)>>,
    watch: JoinHandle<()>,
}

impl LocksSeen {
    async fn from_now(cluster: &TestCluster) -> Self {
        let nodes: Api<Node> = Api::all(cluster.client.clone());
        let list = nodes.list_metadata(&ListParams::default()).await.expect("nodes are listed");
        let mut version = list.metadata.resource_version.expect("a list has a version");
        let seen = Arc::new(Mutex::new((Locks::new(), BTreeMap::new())));
        let noted = seen.clone();
        let watch = tokio::spawn(async move {
            // The server ends a watch now and then: it goes on where that stopped.
            loop {
                let Ok(stream) = nodes.watch_metadata(&WatchParams::default(), &version).await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let mut stream = std::pin::pin!(stream);
                while let Ok(Some(event)) = stream.try_next().await {
                    let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = event else { continue };
                    version = node.resource_version().expect("a version");
                    let (locks, marks) = &mut *noted.lock().expect("no holder of the lock panics");
                    let annotations = node.annotations();
                    if let Some(lock) = annotations.get(key::NODE_LOCK) {
                        locks.entry(node.name_any()).or_default().insert(lock.clone());
                    }
                    marks.extend(annotations.get(MARK).map(|mark| (node.name_any(), mark.clone())));
                }
            }
        });
        Self { client: cluster.client.clone(), seen, watch }
    }

    /// Values by node of everything that was written before this call.
    async fn until_now(self) -> Locks {
        let nodes: Api<Node> = Api::all(self.client.clone());
        for node in nodes.list_metadata(&ListParams::default()).await.expect("nodes are listed") {
            let mark = Patch::Merge(json!({"metadata": {"annotations": {MARK: "end"}}}));
            nodes.patch_metadata(&node.name_any(), &PatchParams::default(), &mark).await.expect("the mark is written");
            until("the watch has seen the mark", SOON, async || {
                self.seen.lock().ok()?.1.contains_key(&node.name_any()).then_some(())
            })
            .await;
        }
        self.seen.lock().expect("no holder of the lock panics").0.clone()
    }
}

impl Drop for LocksSeen {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Waits until the node's agent says that of its identification and of pods that are served without a lock.
async fn until_it_says(cluster: &TestCluster, node: &str, identity: Identity, lockless: &[&str]) {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), "default-nodes");
    until(&format!("the agent of {node} says {identity:?}, {lockless:?}"), SOON, async || {
        let lease = leases.get(&AgentStatus::lease_name(node)).await.ok()?;
        let status = AgentStatus::parse(lease.annotations().get(key::AGENT)?)?;
        (status.identity == identity && status.lockless? == lockless).then_some(())
    })
    .await;
}

/// One lock for each pod, none of which stays.
async fn each_is_served_under_its_own_lock(cluster: &TestCluster) {
    let locks = LocksSeen::from_now(cluster).await;
    let pods = all_are_served_exactly(cluster).await;
    cluster.until_unlocked(LOCK_GONE).await;
    assert_eq!(locks.until_now().await["node-0"].len(), pods, "each was bound under its own lock");
}

/// Pods of every kind at once, then a line of shares: each runs with exactly the devices that were chosen for it.
async fn all_are_served_exactly(cluster: &TestCluster) -> usize {
    let shares = (0..3).map(|number| pod(&format!("part-{number}")).app("main", &[(key::GPU, "50")]));
    let pods: Vec<PodSpec> = every_kind().into_iter().chain(shares).collect();
    for pod in &pods {
        cluster.create(pod).await;
    }
    for pod in &pods {
        let name = pod.name();
        let node = cluster.until_bound(name).await;
        cluster.until_running(name).await;
        let assigned = cluster.assigned(name).await;
        assert!(!assigned.is_empty(), "pod {name} has an assignment");
        assert_eq!(assigned, cluster.in_kubelet(&node, name), "pod {name}");
    }
    cluster.check_no_device_twice().await;
    pods.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_both_sides_need_no_lock_none_is_written_and_every_pod_gets_its_devices() {
    let cluster = TestCluster::with_args(1, AUTO, AUTO).await;
    until_it_says(&cluster, "node-0", Identity::Exact, &["baton-scheduler"]).await;
    let locks = LocksSeen::from_now(&cluster).await;
    if let Some(server) = cluster.control_plane.simulated() {
        server.counts().reset();
    }
    let pods = all_are_served_exactly(&cluster).await as u64;
    if let Some(server) = cluster.control_plane.simulated() {
        assert_eq!(server.counts().of("create", "pods", "binding"), pods, "one Binding for each, none refused");
        let writes = ["patch", "update"]
            .map(|verb| ["nodes", "pods"].map(|resource| server.counts().of(verb, resource, "")).iter().sum::<u64>());
        assert_eq!(writes, [0, 0], "nothing else is written for a pod");
    }
    assert_eq!(locks.until_now().await, Locks::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn where_one_side_needs_the_lock_each_pod_is_served_under_its_own() {
    let another: &[&str] = &["--node-lock=auto", "--scheduler-names=another"];
    for (agents, scheduler, lockless) in
        [(AUTO, &[][..], &["baton-scheduler"][..]), (&[], AUTO, &[]), (another, AUTO, &["another"])]
    {
        println!("agents {agents:?}, scheduler {scheduler:?}");
        let cluster = TestCluster::with_args(1, agents, scheduler).await;
        until_it_says(&cluster, "node-0", Identity::Exact, lockless).await;
        each_is_served_under_its_own_lock(&cluster).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_node_whose_kubelet_does_not_tell_callers_apart_is_locked() {
    let mut cluster = TestCluster::with_args(2, AUTO, AUTO).await;
    cluster.nodes[0].kubelet.controls().set_pod_resources(PodResourcesMode::Absent);
    cluster.restart_agent(0).await;
    until_it_says(&cluster, "node-0", Identity::Lock, &["baton-scheduler"]).await;
    until_it_says(&cluster, "node-1", Identity::Exact, &["baton-scheduler"]).await;
    let locks = LocksSeen::from_now(&cluster).await;
    let names: Vec<String> = (0..8).map(|number| format!("half-{number}")).collect();
    for name in &names {
        cluster.create(&pod(name).app("main", &[("nvidia.com/gpu", "2")])).await;
    }
    let mut on = BTreeMap::<String, usize>::new();
    for name in &names {
        *on.entry(cluster.until_bound(name).await).or_default() += 1;
        cluster.until_running(name).await;
    }
    assert_eq!(on, BTreeMap::from([("node-0".to_owned(), 4), ("node-1".to_owned(), 4)]), "both nodes are full");
    cluster.check_at_rest().await;
    let seen = locks.until_now().await;
    assert_eq!(seen.keys().collect::<Vec<_>>(), ["node-0"], "{seen:?}");
    assert_eq!(seen["node-0"].len(), 4, "each was bound under its own lock: {seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_killed_before_its_binding_leaves_no_lock_and_nothing_twice() {
    let mut cluster = TestCluster::with_args(1, AUTO, &[AUTO, &[&*timings(QUICK_LEASE)]].concat()).await;
    until_it_says(&cluster, "node-0", Identity::Exact, &["baton-scheduler"]).await;
    let Some(server) = cluster.control_plane.simulated() else { return skipped("needs injected faults") };
    let locks = LocksSeen::from_now(&cluster).await;
    let hang = server.faults().add(FaultRule::on("create", "pods").below("binding"), Effect::Hang);
    for name in ["p", "q"] {
        cluster.create(&pod(name).app("main", &[("nvidia.com/gpu", "4")])).await;
    }
    until("both Bindings hang", SOON, async || (server.faults().fired(hang) >= 2).then_some(())).await;
    cluster.scheduler.kill();
    cluster.control_plane.simulated().unwrap().faults().clear();
    cluster.scheduler.restart();
    for name in ["p", "q"] {
        cluster.until_bound(name).await;
        cluster.until_running(name).await;
        assert_eq!(cluster.assigned(name).await, cluster.in_kubelet("node-0", name), "pod {name}");
    }
    cluster.check_no_device_twice().await;
    assert_eq!(locks.until_now().await, Locks::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_between_bind_and_allocate_needs_no_lock_to_serve_the_pod_once() {
    let mut cluster = TestCluster::with_args(1, AUTO, AUTO).await;
    until_it_says(&cluster, "node-0", Identity::Exact, &["baton-scheduler"]).await;
    let locks = LocksSeen::from_now(&cluster).await;
    cluster.nodes[0].kubelet.controls().delay_admission(Some(Duration::from_millis(500)));
    cluster.binds(&pod("p").app("main", &[("nvidia.com/gpu", "4")])).await;
    cluster.nodes[0].agent.restart();
    cluster.nodes[0].kubelet.controls().delay_admission(None);
    if cluster.until_phase("p", &["Running", "Failed"]).await == "Running" {
        assert_eq!(cluster.assigned("p").await, cluster.in_kubelet("node-0", "p"));
    } else {
        assert!(cluster.in_kubelet("node-0", "p").is_empty());
    }
    cluster.until_agent_is_ready().await;
    cluster.runs(&pod("q").app("main", &[("nvidia.com/gpu", "4")])).await;
    assert_eq!(cluster.assigned("q").await, cluster.in_kubelet("node-0", "q"));
    cluster.check_no_device_twice().await;
    assert_eq!(locks.until_now().await, Locks::new());
}
