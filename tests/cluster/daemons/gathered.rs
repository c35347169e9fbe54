//! Gangs in one rack, by the objects that Koordinator and Kubernetes publish, with the daemons as they ship.

use crate::harness::control_plane::{ControlPlane, NewerFlags};
use crate::prelude::*;

const RACK: &str = "example.com/rack";
const ZONE: &str = "topology.kubernetes.io/zone";
const SPEC: &str = "gang.scheduling.koordinator.sh/network-topology-spec";
const REQUIRED: &str = "baton.io/required-topology";
/// Without the second gate the API server drops `schedulingConstraints` and says nothing.
const GROUPS: NewerFlags = NewerFlags {
    since: 37,
    flags: &[
        "--feature-gates=GenericWorkload=true,TopologyAwareWorkloadScheduling=true",
        "--runtime-config=scheduling.k8s.io/v1beta1=true",
    ],
};

/// Kubernetes' PodGroups as a custom type, with the rules that 1.37 has for their constraints.
fn kubernetes_pod_groups() -> CustomResourceDefinition {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let name = "([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?";
    let key = json!({"type": "string", "minLength": 1, "pattern": format!("^{name}$")});
    let entry = json!({"type": "object", "required": ["key"], "properties": {"key": key}});
    let constraints =
        json!({"type": "object", "properties": {"topology": {"type": "array", "maxItems": 1, "items": entry}}});
    let rule = json!([{"rule": "self == oldSelf", "message": "field is immutable"}]);
    let mut spec = open.clone();
    spec["properties"] = json!({ "schedulingConstraints": constraints });
    spec["properties"]["schedulingConstraints"]["x-kubernetes-validations"] = rule;
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": open}}});
    let names = json!({"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"});
    let approved = json!({"api-approved.kubernetes.io": "https://github.com/kubernetes/kubernetes/pull/135500"});
    let version = json!({"name": "v1beta1", "served": true, "storage": true, "schema": schema});
    serde_json::from_value(json!({
        "metadata": {"name": "podgroups.scheduling.k8s.io", "annotations": approved},
        "spec": {"group": "scheduling.k8s.io", "names": names, "scope": "Namespaced", "versions": [version]},
    }))
    .unwrap()
}

/// Three nodes of 8 GPUs in two racks and two zones.
struct Racks {
    cluster: TestCluster,
    /// Pods can name Kubernetes' own PodGroups.
    native: bool,
}

impl Racks {
    async fn start() -> Self {
        let api = TestServer::with_flags(&GROUPS).await;
        let native = match &api.control_plane {
            ControlPlane::Simulated(_) => {
                api.create_crds([kubernetes_pod_groups()]).await;
                true
            }
            ControlPlane::Real(real) => real.flagged,
        };
        api.install(&Values { namespace: NAMESPACE.to_owned(), ..Values::default() }).await;
        let layers = format!("--topology-layers={ZONE},RackLayer={RACK}");
        let racks = Self { cluster: TestCluster::on(api, 3, &[], &[&layers]).await, native };
        for (node, rack, zone) in [(0, "r1", "z1"), (1, "r2", "z1"), (2, "r2", "z2")] {
            racks.label(&format!("node-{node}"), json!({RACK: rack, ZONE: zone})).await;
        }
        racks
    }

    async fn label(&self, node: &str, labels: Value) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        self.cluster.nodes().patch_metadata(node, &PatchParams::default(), &patch).await.unwrap();
    }

    fn api(&self, api_version: &str, kind: &str) -> Api<DynamicObject> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.cluster.client.clone(), NAMESPACE, &resource)
    }

    /// Creates objects as they are published; the first error's text.
    async fn apply(&self, yaml: &str) -> Result<(), String> {
        let objects: Vec<DynamicObject> = serde_saphyr::from_str_multiple(yaml).unwrap();
        for object in objects {
            let types = object.types.clone().unwrap();
            let api = self.api(&types.api_version, &types.kind);
            api.create(&PostParams::default(), &object).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// A member that takes so many GPUs.
    async fn member(&self, name: &str, gpus: u32, names: &Group<'_>) {
        let mut text = pod(name).app("main", &[("nvidia.com/gpu", &gpus.to_string())]);
        let keys = match names {
            Group::Native(_, keys) | Group::Sigs(_, keys) | Group::Alone(_, keys) => *keys,
        };
        for (key, value) in keys {
            text = text.annotation(key, value);
        }
        let text = match names {
            Group::Native(..) => text,
            Group::Sigs(group, _) => text.label("pod-group.scheduling.sigs.k8s.io", group),
            Group::Alone((gang, least), _) => text
                .annotation("gang.scheduling.koordinator.sh/name", gang)
                .annotation("gang.scheduling.koordinator.sh/min-available", least),
        };
        let mut object = serde_json::to_value(text.build()).unwrap();
        if let Group::Native(group, _) = names {
            object["spec"]["schedulingGroup"] = json!({ "podGroupName": group });
        }
        let object = serde_json::from_value(object).unwrap();
        self.api("v1", "Pod").create(&PostParams::default(), &object).await.unwrap();
    }

    /// Members `PREFIX-0`, …, all running: their nodes. They are gone afterwards.
    async fn run(&self, prefix: &str, count: usize, gpus: u32, group: &Group<'_>) -> BTreeSet<String> {
        for n in 0..count {
            self.member(&format!("{prefix}-{n}"), gpus, group).await;
        }
        let nodes = self.running(prefix, count).await;
        self.gone(prefix, count).await;
        nodes
    }

    async fn gone(&self, prefix: &str, count: usize) {
        for n in 0..count {
            self.cluster.delete(&format!("{prefix}-{n}")).await;
        }
    }

    /// The same for a gang whose values differ: an event names them.
    async fn run_noted(&self, prefix: &str, group: &Group<'_>, parts: &[&str]) -> BTreeSet<String> {
        for n in 0..2 {
            self.member(&format!("{prefix}-{n}"), 8, group).await;
        }
        let nodes = self.running(prefix, 2).await;
        self.noted("GangInvalidValue", parts).await;
        self.gone(prefix, 2).await;
        nodes
    }

    async fn running(&self, prefix: &str, count: usize) -> BTreeSet<String> {
        let mut nodes = BTreeSet::new();
        for n in 0..count {
            let name = format!("{prefix}-{n}");
            self.cluster.until_running(&name).await;
            nodes.insert(self.cluster.until_bound(&name).await);
        }
        println!("{prefix}: {count} members run on {nodes:?}");
        nodes
    }

    /// Waits until a pod's condition says this.
    async fn waits(&self, name: &str, reason: &str, part: &str) {
        until(&format!("{name} waits: {reason} {part}"), SOON, async || {
            let conditions = self.cluster.pod(name).await?.status?.conditions?;
            let of = conditions.into_iter().find(|of| of.type_ == "PodScheduled" && of.status == "False")?;
            let message = of.message.unwrap_or_default();
            (of.reason.as_deref() == Some(reason) && message.contains(part)).then(|| println!("{name}: {message}"))
        })
        .await;
    }

    /// Waits for an event whose note says all this.
    async fn noted(&self, reason: &str, parts: &[&str]) {
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        until(&format!("an event {reason} with {parts:?}"), SOON, async || {
            let all = events.list(&Default::default()).await.ok()?.items;
            let said = |note: &str| parts.iter().all(|part| note.contains(part));
            let of = |event: &&k8s_openapi::api::events::v1::Event| event.reason.as_deref() == Some(reason);
            all.iter().filter(of).filter_map(|event| event.note.as_deref()).any(said).then_some(())
        })
        .await;
    }
}

/// How members name their gang, and their other annotations.
enum Group<'a> {
    /// Kubernetes' PodGroup.
    Native(&'a str, &'a [(&'a str, &'a str)]),
    /// The PodGroup of `scheduling.sigs.k8s.io`.
    Sigs(&'a str, &'a [(&'a str, &'a str)]),
    /// Annotations alone: name and minimum.
    Alone((&'a str, &'a str), &'a [(&'a str, &'a str)]),
}

fn native(name: &str, least: u32, topology: &str) -> String {
    format!(
        "apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {{name: {name}}}
spec:
  schedulingPolicy:
    gang: {{minCount: {least}}}
  schedulingConstraints:
    topology: {topology}
"
    )
}

/// As Koordinator's documents have it.
fn gathered(layer: &str, strategy: &str) -> String {
    format!("{{\n  \"gatherStrategy\": [\n    {{\"layer\": \"{layer}\", \"strategy\": \"{strategy}\"}}\n  ]\n}}")
}

fn nodes(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn gangs_in_one_rack_by_the_objects_of_each_project() {
    let racks = Racks::start().await;
    let (r1, r2) = (nodes(&["node-0"]), nodes(&["node-1", "node-2"]));
    println!("Kubernetes' own PodGroups: {}", racks.native);

    // Koordinator's annotation, on a PodGroup and on pods, by a layer's name and by a label.
    let spec = gathered("RackLayer", "MustGather").replace('\n', "\n      ");
    let group = format!(
        "apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: koord
  annotations:
    {SPEC}: |
      {spec}
spec: {{minMember: 3}}
"
    );
    racks.apply(&group).await.unwrap();
    assert_eq!(racks.run("koord", 3, 4, &Group::Sigs("koord", &[])).await, r2, "Koordinator's, on a PodGroup");
    let by_label = [(SPEC, &*gathered(RACK, "PreferGather"))];
    assert_eq!(racks.run("prefer", 2, 8, &Group::Alone(("prefer", "2"), &by_label)).await, r2, "preferred");

    // Ours: the rack with the least left over.
    let ours = [(REQUIRED, RACK)];
    assert_eq!(racks.run("small", 2, 4, &Group::Alone(("small", "2"), &ours)).await, r1, "ours, the least left over");
    assert_eq!(racks.run("large", 2, 8, &Group::Alone(("large", "2"), &ours)).await, r2, "ours");

    if racks.native {
        natives(&racks, &r2).await;
    }

    // Koordinator's annotation counts before ours.
    let both = [(SPEC, &*gathered(ZONE, "MustGather")), (REQUIRED, RACK)];
    let zone = racks.run_noted("both", &Group::Alone(("both", "2"), &both), &[REQUIRED, RACK, SPEC, ZONE]).await;
    assert_eq!(zone, nodes(&["node-0", "node-1"]), "Koordinator's before ours");

    // What contradicts itself is refused by name.
    let contradiction = r#"{"gatherStrategy": [{"layer": "RackLayer", "strategy": "MustGather"},
        {"layer": "RackLayer", "strategy": "PreferGather"}]}"#;
    let twice = [(SPEC, contradiction)];
    racks.member("twice-0", 1, &Group::Alone(("twice", "1"), &twice)).await;
    racks.waits("twice-0", "InvalidGang", "\"RackLayer\" is both a MustGather and a PreferGather").await;
    racks.cluster.delete("twice-0").await;

    network_topology(&racks).await;

    // Without room it waits as a whole; a label that changes is seen.
    for n in 0..3 {
        racks.member(&format!("wide-{n}"), 8, &Group::Alone(("wide", "3"), &ours)).await;
    }
    let full = "needs room for 3 members; the largest, example.com/rack=r2, has room for 2 members when it is empty";
    racks.waits("wide-0", "Unschedulable", full).await;
    racks.label("node-0", json!({RACK: "r2"})).await;
    assert_eq!(racks.running("wide", 3).await.len(), 3, "a label changed while it waited");
    racks.gone("wide", 3).await;
    racks.label("node-0", json!({RACK: "r1"})).await;

    // Running members fix the rack for late ones.
    let late = Group::Alone(("late", "2"), &ours);
    for n in 0..2 {
        racks.member(&format!("late-{n}"), 4, &late).await;
    }
    assert_eq!(racks.running("late", 2).await, r1);
    racks.member("late-2", 4, &late).await;
    racks.waits("late-2", "Unschedulable", "example.com/rack=r1").await;
    racks.cluster.delete("late-0").await;
    racks.cluster.until_running("late-2").await;
    assert_eq!(racks.cluster.until_bound("late-2").await, "node-0");
    racks.cluster.check_no_device_twice().await;
}

/// Koordinator's object states the layers: in the form of its own tests, with one layer of two labels.
async fn network_topology(racks: &Racks) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": open}}});
    let names = json!({"kind": "ClusterNetworkTopology", "listKind": "ClusterNetworkTopologyList",
        "plural": "clusternetworktopologies", "singular": "clusternetworktopology"});
    let version = json!({"name": "v1alpha1", "served": true, "storage": true, "schema": schema});
    let definition = json!({"metadata": {"name": "clusternetworktopologies.scheduling.koordinator.sh"},
        "spec": {"group": "scheduling.koordinator.sh", "names": names, "scope": "Cluster", "versions": [version]}});
    racks.cluster.create_crds([serde_json::from_value(definition).unwrap()]).await;
    let kind = GroupVersionKind::gvk("scheduling.koordinator.sh", "v1alpha1", "ClusterNetworkTopology");
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = Api::all_with(racks.cluster.client.clone(), &resource);
    let published = |parent: &str| {
        let text = format!(
            "apiVersion: scheduling.koordinator.sh/v1alpha1
kind: ClusterNetworkTopology
metadata: {{name: default}}
spec:
  networkTopologySpec:
  - labelKey: [{ZONE}]
    topologyLayer: SpineLayer
    parentTopologyLayer: {parent}
  - labelKey: [example.com/old-rack, {RACK}]
    parentTopologyLayer: SpineLayer
    topologyLayer: BlockLayer
  - parentTopologyLayer: BlockLayer
    topologyLayer: NodeTopologyLayer
"
        );
        serde_saphyr::from_str::<DynamicObject>(&text).unwrap()
    };
    until("the type is served", SOON, async || {
        api.create(&PostParams::default(), &published("ClusterTopologyLayer")).await.ok()
    })
    .await;
    let log = async |text: &str| {
        until(text, SOON, async || racks.cluster.scheduler.output().contains(text).then_some(())).await;
    };
    log("SpineLayer=topology.kubernetes.io/zone BlockLayer=example.com/old-rack,example.com/rack").await;
    let (r2, zone) = (nodes(&["node-1", "node-2"]), nodes(&["node-0", "node-1"]));
    let by = |layer: &str| [(SPEC, gathered(layer, "MustGather"))];
    for (layer, expected) in [("BlockLayer", &r2), ("SpineLayer", &zone)] {
        let spec = by(layer);
        let keys = [(spec[0].0, &*spec[0].1)];
        assert_eq!(racks.run("layer", 2, 8, &Group::Alone(("layer", "2"), &keys)).await, *expected, "{layer}");
    }
    // What is no chain of layers is logged with its name, and the layers stay.
    let bad = Patch::Merge(json!({"spec": published("BlockLayer").data["spec"]}));
    api.patch("default", &PatchParams::default(), &bad).await.unwrap();
    log("is among its own parents").await;
    let keys = [(REQUIRED, "BlockLayer")];
    assert_eq!(racks.run("stays", 2, 8, &Group::Alone(("stays", "2"), &keys)).await, r2, "the layers stay");
    api.delete("default", &Default::default()).await.unwrap();
    racks.member("gone-0", 1, &Group::Alone(("gone", "1"), &keys)).await;
    racks.waits("gone-0", "Unschedulable", "no node has the label BlockLayer").await;
    racks.cluster.delete("gone-0").await;
}

/// The rows of Kubernetes' own PodGroups.
async fn natives(racks: &Racks, r2: &BTreeSet<String>) {
    racks.apply(&native("kube", 2, &format!("[{{key: {RACK}}}]"))).await.unwrap();
    assert_eq!(racks.run("kube", 2, 8, &Group::Native("kube", &[])).await, *r2, "Kubernetes' constraint");

    // Kubernetes' field counts before ours, Koordinator's annotation before both.
    racks.apply(&native("first", 2, &format!("[{{key: {ZONE}}}]"))).await.unwrap();
    let ours = [(REQUIRED, RACK)];
    let zone = racks.run_noted("first", &Group::Native("first", &ours), &[REQUIRED, RACK, ZONE]).await;
    assert_eq!(zone, nodes(&["node-0", "node-1"]), "Kubernetes' before ours");
    racks.apply(&native("koord-first", 2, &format!("[{{key: {ZONE}}}]"))).await.unwrap();
    let spec = [(SPEC, &*gathered("RackLayer", "MustGather"))];
    let rack = racks.run_noted("koord-first", &Group::Native("koord-first", &spec), &["RackLayer", ZONE]).await;
    assert_eq!(rack, *r2, "Koordinator's before Kubernetes'");

    // What the API server itself refuses never reaches the scheduler.
    for (topology, named) in [
        (format!("[{{key: {RACK}}}, {{key: {ZONE}}}]"), "Too many"),
        ("[{key: one rack}]".to_owned(), "one rack"),
        ("[{}]".to_owned(), "equired"),
    ] {
        let refused = racks.apply(&native("refused", 2, &topology)).await.unwrap_err();
        println!("{topology}: {refused}");
        assert!(refused.contains("spec.schedulingConstraints.topology") && refused.contains(named), "{refused}");
    }
    let changed = Patch::Merge(json!({"spec": {"schedulingConstraints": {"topology": [{"key": RACK}]}}}));
    let groups = racks.api("scheduling.k8s.io/v1beta1", "PodGroup");
    let refused = groups.patch("first", &PatchParams::default(), &changed).await.unwrap_err().to_string();
    println!("a change: {refused}");
    tells(refused, ["immutable"]);
    racks.apply(&native("nothing", 2, "[]")).await.unwrap();
    assert_eq!(racks.run("nothing", 3, 8, &Group::Native("nothing", &[])).await.len(), 3, "no constraint");
}
