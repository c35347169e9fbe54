//! `docs/migrate.md`, step by step, under two endless streams of jobs: those of the scheduler that was there before, and those of
//! Baton's. No pod fails at its admission, no GPU is given to two pods, and pods that run stay.

mod gpu_operator;
mod koordinator;
mod plugin;

use baton::ops::demo::apply_all;

use koordinator::{Koordinator, assigned};
use plugin::Plugin;

use crate::prelude::*;

const THEIRS: &str = "default-scheduler";
const OURS: &str = "baton-scheduler";
/// The taint of docs/migrate.md.
const TAINT: &str = "baton.io/scheduler";
const GPUS: usize = 8;
/// Jobs of each stream that live at a time.
const AT_A_TIME: usize = 5;

/// A fleet between two plugins, and what was seen of it.
struct Fleet {
    cluster: TestCluster,
    plugins: Vec<Option<Plugin>>,
    /// In the place of the other plugin.
    koordinator: Option<Koordinator>,
    /// Ids that the other plugin makes of one GPU.
    replicas: usize,
    /// Which streams flow.
    streams: BTreeSet<&'static str>,
    made: usize,
    done: BTreeMap<String, usize>,
    /// Seconds for which each node offered no GPU.
    gaps: Vec<Duration>,
}

impl Fleet {
    /// Nodes with the other plugin alone, and Baton installed with its node daemon kept off them.
    async fn start(nodes: usize, replicas: usize) -> Self {
        assert!(include_str!("../../../docs/migrate.md").contains(&format!("{TAINT}=only:NoSchedule")));
        let server = TestServer::start().await;
        server.install(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
        let mut fleet = Self::of(server, nodes, replicas).await;
        for number in 0..nodes {
            let plugin = fleet.plugin(number).await;
            fleet.plugins.push(Some(plugin));
            fleet.until("the other plugin's GPUs are offered", async |fleet| fleet.offers(number).await).await;
        }
        fleet
    }

    /// Nodes with Koordinator, and the same.
    async fn with_koordinator(nodes: usize) -> Option<Self> {
        let mut server = TestServer::start().await;
        let koordinator = Koordinator::install(&mut server).await?;
        let mut fleet = Self::of(server, nodes, 1).await;
        fleet.koordinator = Some(koordinator);
        for number in 0..nodes {
            fleet.plugins.push(None);
            fleet.report(number).await;
        }
        Some(fleet)
    }

    async fn of(server: TestServer, nodes: usize, replicas: usize) -> Self {
        let mut cluster = TestCluster::on(server, 0, &[], &[]).await;
        for number in 0..nodes {
            cluster.add_idle_machine(&format!("node-{number}")).await;
        }
        Self {
            cluster,
            plugins: Vec::new(),
            koordinator: None,
            replicas,
            streams: BTreeSet::from([THEIRS]),
            made: 0,
            done: BTreeMap::new(),
            gaps: Vec::new(),
        }
    }

    async fn plugin(&self, number: usize) -> Plugin {
        let node = &self.cluster.nodes[number];
        let each = |gpu: String| {
            (0..self.replicas).map(move |replica| match replica {
                0 => gpu.clone(),
                _ => format!("{gpu}::{replica}"),
            })
        };
        let ids = node.hardware.gpu_uuids().into_iter().flat_map(each).collect();
        Plugin::start(node.kubelet.options().device_plugins_dir(), ids).await
    }

    fn name(&self, number: usize) -> String {
        self.cluster.nodes[number].name.clone()
    }

    fn pods(&self) -> Api<Pod> {
        self.cluster.pods_in("default")
    }

    async fn node(&self, number: usize) -> Node {
        self.cluster.nodes().get(&self.name(number)).await.unwrap()
    }

    async fn patch(&self, number: usize, patch: Value) {
        self.cluster
            .nodes()
            .patch(&self.name(number), &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .unwrap();
    }

    /// The kubelet offers GPUs there.
    async fn offers(&self, number: usize) -> bool {
        allocatable(&self.node(number).await) > 0
    }

    async fn create(&mut self, scheduler: &str, seconds: u32) -> String {
        self.made += 1;
        let name = format!("{scheduler}-{}", self.made);
        let limits = match &self.koordinator {
            Some(_) if scheduler == THEIRS => json!({key::GPU_CORE: "100", key::GPU_MEMORY_RATIO: "100"}),
            _ => json!({key::NVIDIA_GPU: "1"}),
        };
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
            "schedulerName": scheduler, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            // Of the pods of Baton alone: it keeps the others off nodes that have moved.
            "tolerations": if scheduler == OURS { json!([{"key": TAINT, "operator": "Exists"}]) } else { json!([]) },
            "containers": [{"name": "main", "image": "docker.io/local/pause:1", "imagePullPolicy": "Never",
                "command": ["/bin/sleep", seconds.to_string()], "resources": {"limits": limits}}]}});
        self.pods().create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        name
    }

    /// Lets the cluster go on until something holds.
    async fn until(&mut self, what: &str, mut holds: impl AsyncFnMut(&Self) -> bool) {
        let deadline = clock::mono() + Duration::from_secs(60);
        while !holds(self).await {
            assert!(clock::mono() < deadline, "waited in vain: {what}");
            self.step().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// So many jobs of this stream have ended since.
    async fn flows(&mut self, scheduler: &'static str, jobs: usize) {
        let before = self.done.get(scheduler).copied().unwrap_or_default();
        let what = format!("{jobs} jobs of {scheduler} end");
        self.until(&what, async |fleet| fleet.done.get(scheduler).is_some_and(|done| *done >= before + jobs)).await;
    }

    /// Looks at every pod and every container, makes new jobs, and binds those of the other scheduler.
    async fn step(&mut self) {
        let pods = self.pods().list(&ListParams::default()).await.unwrap().items;
        self.no_gpu_is_shared(&pods).await;
        let mut living: BTreeMap<String, usize> = BTreeMap::new();
        for pod in &pods {
            let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.clone()).unwrap();
            match phase_of(pod) {
                Some("Failed") => panic!("{} failed: {:?}", pod.name_any(), pod.status),
                Some("Succeeded") if pod.metadata.deletion_timestamp.is_none() => {
                    *self.done.entry(scheduler).or_default() += 1;
                    self.delete(&pod.name_any()).await;
                }
                Some("Succeeded") => {}
                _ => *living.entry(scheduler).or_default() += 1,
            }
        }
        match self.koordinator {
            Some(_) => self.bind_koordinators(&pods).await,
            None => self.bind_theirs(&pods).await,
        }
        for scheduler in self.streams.clone() {
            let living = living.get(scheduler).copied().unwrap_or_default();
            for _ in living..AT_A_TIME {
                // Half a second of the simulated kubelets.
                self.create(scheduler, 10).await;
            }
        }
    }

    /// A pod that ended may be gone since it was listed.
    async fn delete(&self, pod: &str) {
        let deleted = self.pods().delete(pod, &DeleteParams::default().grace_period(0)).await;
        let gone = matches!(&deleted, Err(kube::Error::Api(status)) if status.code == 404);
        assert!(gone || deleted.is_ok(), "{deleted:?}");
    }

    /// As kube-scheduler binds: by counts, to nodes that are neither cordoned nor tainted.
    async fn bind_theirs(&self, pods: &[Pod]) {
        let mut room: BTreeMap<String, i64> = BTreeMap::new();
        for node in self.cluster.nodes().list(&ListParams::default()).await.unwrap() {
            let spec = node.spec.clone().unwrap_or_default();
            if spec.unschedulable != Some(true) && spec.taints.unwrap_or_default().is_empty() {
                room.insert(node.name_any(), allocatable(&node));
            }
        }
        for pod in pods.iter().filter(|pod| !is_over(pod)) {
            if let Some(room) = node_of(pod).and_then(|node| room.get_mut(node)) {
                *room -= 1;
            }
        }
        let waiting = pods.iter().filter(|pod| node_of(pod).is_none());
        for pod in waiting.filter(|pod| pod.spec.as_ref().unwrap().scheduler_name.as_deref() == Some(THEIRS)) {
            let Some((node, room)) = room.iter_mut().max_by_key(|(_, room)| **room).filter(|(_, room)| **room > 0)
            else {
                return;
            };
            *room -= 1;
            let name = pod.name_any();
            bind(&self.cluster.client, &name, node).await;
        }
    }

    /// By what the containers that run were started with, by either plugin, and by what pods are assigned.
    async fn no_gpu_is_shared(&self, pods: &[Pod]) {
        let views: Vec<_> = self.cluster.nodes.iter().map(|node| node.kubelet.view()).collect();
        // A pod that has ended since it was listed may have left its GPU to one that the view shows.
        let since = self.pods().list(&ListParams::default()).await.unwrap().items;
        let living: BTreeSet<_> = since.iter().filter(|pod| !is_over(pod)).map(|pod| pod.uid()).collect();
        for (node, view) in self.cluster.nodes.iter().zip(views) {
            let mut holders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
            for (pod, view) in view {
                for container in view.containers.values().filter(|container| container.running) {
                    let started = serde_json::to_string(&container.injected).unwrap();
                    for gpu in node.hardware.gpu_uuids().into_iter().filter(|gpu| started.contains(gpu.as_str())) {
                        holders.entry(gpu).or_default().insert(pod.clone());
                    }
                }
            }
            for pod in pods.iter().filter(|pod| node_of(pod) == Some(&node.name) && living.contains(&pod.uid())) {
                for gpu in assigned(pod) {
                    holders.entry(gpu).or_default().insert(format!("default/{}", pod.name_any()));
                }
            }
            assert!(
                self.replicas > 1 || holders.values().all(|pods| pods.len() == 1),
                "{}: a GPU of two pods: {holders:#?}",
                node.name
            );
            // Even where the other plugin shares by design, its pods and ours never meet.
            for pods in holders.values() {
                let ours = pods.iter().filter(|pod| pod.contains(OURS)).count();
                assert!(ours == 0 || pods.len() == 1, "{}: {pods:?}", node.name);
            }
        }
    }

    /// Deletes what waits for a scheduler that has no node any more; its owner would make it again for the other one.
    async fn renounce_waiting(&self, scheduler: &str) {
        for pod in self.pods().list(&ListParams::default()).await.unwrap() {
            let spec = pod.spec.as_ref().unwrap();
            if spec.node_name.is_none() && spec.scheduler_name.as_deref() == Some(scheduler) {
                self.delete(&pod.name_any()).await;
            }
        }
    }

    async fn runs(&self, name: &str) -> bool {
        let pod = self.pods().get_opt(name).await.unwrap();
        pod.and_then(|pod| pod.status?.phase).as_deref() == Some("Running")
    }

    async fn count(&self, is_meant: impl Fn(&Pod) -> bool) -> usize {
        self.pods().list(&ListParams::default()).await.unwrap().iter().filter(|pod| is_meant(pod)).count()
    }

    async fn living(&self) -> usize {
        self.count(|pod| !is_over(pod)).await
    }

    async fn running(&self) -> usize {
        self.count(|pod| phase_of(pod) == Some("Running")).await
    }

    /// Pods of this node that are bound and not running yet.
    async fn arriving(&self, number: usize) -> usize {
        let name = self.name(number);
        self.count(|pod| node_of(pod) == Some(&name) && phase_of(pod) == Some("Pending")).await
    }

    /// Pods with GPUs of this node.
    async fn holding(&self, number: usize) -> usize {
        let name = self.name(number);
        self.count(|pod| node_of(pod) == Some(&name) && !is_over(pod)).await
    }

    /// Both nodes to Baton, under the streams of a mixed fleet.
    async fn move_all(&mut self) {
        self.flows(THEIRS, AT_A_TIME).await;
        self.join_baton(0, false).await;
        self.streams.insert(OURS);
        self.flows(OURS, AT_A_TIME).await;
        self.flows(THEIRS, AT_A_TIME).await;
        self.join_baton(1, false).await;
        self.streams.remove(THEIRS);
        self.renounce_waiting(THEIRS).await;
        self.flows(OURS, 2 * AT_A_TIME).await;
    }

    async fn cordon(&mut self, number: usize) {
        self.patch(number, json!({"spec": {"unschedulable": true}})).await;
        self.until("no pod is on its way", async |fleet| fleet.arriving(number).await == 0).await;
    }

    async fn uncordon(&self, number: usize) {
        self.patch(number, json!({"spec": {"unschedulable": null}})).await;
    }

    /// One node from the other plugin to Baton.
    async fn join_baton(&mut self, number: usize, drain: bool) {
        self.cordon(number).await;
        if drain {
            self.until("the node is empty", async |fleet| fleet.holding(number).await == 0).await;
        }
        self.patch(number, json!({"spec": {"taints": [{"key": TAINT, "value": "only", "effect": "NoSchedule"}]}}))
            .await;
        let begin = clock::mono();
        self.plugins[number] = None;
        self.until("the other plugin's GPUs are gone", async |fleet| !fleet.offers(number).await).await;
        self.cluster.nodes[number].agent.restart();
        self.until("Baton's GPUs are offered", async |fleet| fleet.offers(number).await).await;
        self.gaps.push(clock::mono() - begin);
        self.uncordon(number).await;
    }

    /// And back.
    async fn back(&mut self, number: usize) {
        self.cordon(number).await;
        self.until("the node is empty", async |fleet| fleet.holding(number).await == 0).await;
        self.cluster.until_unlocked(Duration::from_secs(10)).await;
        let begin = clock::mono();
        self.cluster.nodes[number].agent.signal("TERM");
        self.until("Baton's GPUs are gone", async |fleet| !fleet.offers(number).await).await;
        self.cluster.nodes[number].agent.kill();
        let name = self.name(number);
        let leases: Api<DynamicObject> =
            self.any("coordination.k8s.io/v1", "Lease", Some(&format!("{NAMESPACE}-nodes")));
        leases.delete(&format!("baton-agent-{name}"), &DeleteParams::default()).await.unwrap();
        let devices = self.any("scheduling.koordinator.sh/v1alpha1", "Device", None);
        devices.delete(&name, &DeleteParams::default()).await.unwrap();
        let plugin = self.plugin(number).await;
        self.plugins[number] = Some(plugin);
        self.until("the other plugin's GPUs are offered", async |fleet| fleet.offers(number).await).await;
        self.gaps.push(clock::mono() - begin);
        let labels = ["gpu-vendor", "gpu-model", "gpu-driver-version"]
            .map(|label| (format!("node.koordinator.sh/{label}"), Value::Null));
        self.patch(number, json!({"spec": {"taints": null}, "metadata": {"labels": Value::from_iter(labels)}})).await;
        self.uncordon(number).await;
    }

    fn any(&self, version: &str, kind: &str, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = version.split_once('/').unwrap();
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        match namespace {
            Some(namespace) => Api::namespaced_with(self.cluster.client.clone(), namespace, &resource),
            None => Api::all_with(self.cluster.client.clone(), &resource),
        }
    }

    /// The promise of the page, and the figures.
    fn print(&self, way: &str) {
        let gaps: Vec<String> = self.gaps.iter().map(|gap| format!("{:.1}", gap.as_secs_f64())).collect();
        let longest = self.gaps.iter().max().copied().unwrap_or_default();
        println!(
            "{way}: failed admissions 0, shared GPUs 0, jobs {:?}, seconds without service per node: {}",
            self.done,
            gaps.join(", ")
        );
        assert!(longest < Duration::from_secs(60), "{longest:?}");
    }
}

/// Gives a user these rights, everywhere.
async fn allow(server: &TestServer, user: &str, rules: Value) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    let name = user.rsplit(':').next().unwrap();
    let of = |kind: &str| json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": {"name": name}});
    let (mut role, mut binding) = (of("ClusterRole"), of("ClusterRoleBinding"));
    role["rules"] = rules;
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": name});
    binding["subjects"] = json!([{"apiGroup": GROUP, "kind": "User", "name": user}]);
    apply_all(&server.client, &format!("{role}\n---\n{binding}\n")).await.unwrap();
}

async fn bind(client: &Client, pod: &str, node: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{pod}/binding"))
        .header("content-type", "application/json")
        .body(binding.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
}

fn allocatable(node: &Node) -> i64 {
    let amount = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get(key::NVIDIA_GPU).cloned());
    amount.and_then(|amount| amount.0.parse().ok()).unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

fn phase_of(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

fn is_over(pod: &Pod) -> bool {
    matches!(phase_of(pod), Some("Succeeded" | "Failed"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_from_nvidias_plugin_node_by_node_and_back() {
    let mut fleet = Fleet::start(2, 1).await;
    // They run through both ways of the first node and through the switch of all.
    let long = [fleet.create(THEIRS, 100_000).await, fleet.create(THEIRS, 100_000).await];
    for name in &long {
        let name = name.clone();
        fleet.until("a long pod runs", async |fleet| fleet.runs(&name).await).await;
    }
    fleet.move_all().await;
    for name in &long {
        assert!(fleet.runs(name).await, "{name} was touched");
    }
    // The GPUs of the pods from before count as taken: the rest of the fleet, and not one more.
    fleet.streams.clear();
    fleet.until("the streams have ended", async |fleet| fleet.living().await == long.len()).await;
    let mut full = Vec::new();
    for _ in 0..=2 * GPUS - long.len() {
        full.push(fleet.create(OURS, 100_000).await);
    }
    fleet.until("the fleet is full", async |fleet| fleet.running().await == 2 * GPUS).await;
    for name in full.iter().chain(&long) {
        fleet.delete(name).await;
    }
    fleet.print("from NVIDIA's plugin");

    fleet.gaps.clear();
    fleet.streams.insert(OURS);
    fleet.flows(OURS, AT_A_TIME).await;
    fleet.back(0).await;
    fleet.streams.insert(THEIRS);
    fleet.flows(THEIRS, AT_A_TIME).await;
    fleet.flows(OURS, AT_A_TIME).await;
    fleet.back(1).await;
    fleet.streams.remove(OURS);
    fleet.renounce_waiting(OURS).await;
    fleet.flows(THEIRS, 2 * AT_A_TIME).await;
    fleet.print("back to NVIDIA's plugin");
}

/// HAMi's pods share GPUs, which Baton cannot know: a node is empty before it moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_from_a_plugin_that_shares_gpus_by_empty_nodes() {
    let mut fleet = Fleet::start(2, 4).await;
    fleet.flows(THEIRS, AT_A_TIME).await;
    fleet.join_baton(0, true).await;
    fleet.streams.insert(OURS);
    fleet.flows(OURS, AT_A_TIME).await;
    fleet.flows(THEIRS, AT_A_TIME).await;
    fleet.streams.remove(THEIRS);
    fleet.join_baton(1, true).await;
    fleet.flows(OURS, 2 * AT_A_TIME).await;
    fleet.print("from HAMi");
}

/// Koordinator's kinds, objects and scheduler stay; what runs keeps its GPUs, which its assignments name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_moves_from_koordinator_node_by_node() {
    let Some(mut fleet) = Fleet::with_koordinator(2).await else { return };
    let long = fleet.create(THEIRS, 100_000).await;
    fleet.until("a long pod runs", async |fleet| fleet.runs(&long).await).await;
    fleet.move_all().await;
    // Every GPU but that of the pod from before.
    fleet.streams.clear();
    fleet.until("the streams have ended", async |fleet| fleet.living().await == 1).await;
    for _ in 0..2 * GPUS {
        fleet.create(OURS, 100_000).await;
    }
    fleet.until("the fleet is full", async |fleet| fleet.running().await == 2 * GPUS).await;
    assert!(fleet.runs(&long).await, "{long} was touched");
    fleet.print("from Koordinator");
}
