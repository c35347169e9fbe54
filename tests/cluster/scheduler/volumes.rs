//! Claims that wait for their first consumer, against an API server; the test plays the provisioner and the volume controller.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSIStorageCapacity, StorageClass};

use crate::prelude::*;
use crate::scheduler::verbs::until;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

struct Storage {
    classes: Api<StorageClass>,
    claims: Api<PersistentVolumeClaim>,
    volumes: Api<PersistentVolume>,
}

impl Storage {
    fn of(cluster: &SchedulerCluster) -> Self {
        let client = || cluster.client.clone();
        Self { classes: Api::all(client()), claims: Api::namespaced(client(), "ml"), volumes: Api::all(client()) }
    }

    async fn class(&self, name: &str, provisioner: &str) {
        let class = json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"});
        self.classes.create(&PostParams::default(), &serde_json::from_value(class).unwrap()).await.unwrap();
    }

    async fn claim(&self, name: &str, class: &str) {
        let claim = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {"storageClassName": class,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}});
        self.claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }

    async fn volume(&self, name: &str, class: &str, node: &str, claim: Value) {
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
        let volume = json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "20Gi"}, "local": {"path": "/data"}, "nodeAffinity": affinity, "claimRef": claim}});
        self.volumes.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.unwrap();
        let phase = if claim.is_null() { "Available" } else { "Bound" };
        let status = json!({"status": {"phase": phase}});
        self.volumes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }

    /// The volume controller's part: the claim names its volume.
    async fn complete(&self, claim: &str, volume: &str) {
        let patch = json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": volume}});
        self.claims.patch(claim, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }
}

async fn pod(cluster: &SchedulerCluster, name: &str, claim: &str) {
    let pod = json!({"metadata": {"name": name, "namespace": "ml"}, "spec": {"schedulerName": "baton-scheduler",
        "automountServiceAccountToken": false,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
    cluster.make(pod).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_is_provisioned_on_the_chosen_node_before_the_pod_is_bound() {
    let cluster = SchedulerCluster::with_node("n1").await;
    let storage = Storage::of(&cluster);
    storage.class("fast", "example.com/provisioner").await;
    storage.claim("data", "fast").await;
    let scheduler = cluster.scheduler().await;
    pod(&cluster, "p", "data").await;
    let claim = until("the node is selected", || async {
        let claim = storage.claims.get("data").await.unwrap();
        claim.annotations().contains_key(SELECTED).then_some(claim)
    })
    .await;
    assert_eq!(claim.annotations()[SELECTED], "n1");
    assert_eq!(cluster.lock("n1").await, None, "the lock is not taken while the volume is made");
    // The provisioner says no once: the node is chosen again.
    let patch = json!({"metadata": {"annotations": {SELECTED: null}}});
    storage.claims.patch("data", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    until("the node is selected again", || async {
        storage.claims.get("data").await.unwrap().annotations().contains_key(SELECTED).then_some(())
    })
    .await;
    let reference = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "ml", "name": "data", "uid": claim.uid()});
    storage.volume("made", "fast", "n1", reference).await;
    storage.complete("data", "made").await;
    let bound = cluster.bound("p").await;
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("n1"));
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_there_is_promised_to_the_claim_and_the_pod_goes_to_its_node() {
    let cluster = SchedulerCluster::with_node("n1").await;
    cluster.node("n2").await;
    let storage = Storage::of(&cluster);
    storage.class("local", "kubernetes.io/no-provisioner").await;
    storage.volume("disk", "local", "n2", Value::Null).await;
    storage.claim("data", "local").await;
    let scheduler = cluster.scheduler().await;
    pod(&cluster, "p", "data").await;
    let volume = until("the volume is promised", || async {
        storage.volumes.get("disk").await.ok().filter(|volume| volume.spec.as_ref().unwrap().claim_ref.is_some())
    })
    .await;
    assert_eq!(volume.annotations()["pv.kubernetes.io/bound-by-controller"], "yes");
    let reference = volume.spec.unwrap().claim_ref.unwrap();
    assert_eq!(
        (reference.name.as_deref(), reference.uid),
        (Some("data"), storage.claims.get("data").await.unwrap().uid())
    );
    storage.complete("data", "disk").await;
    assert_eq!(cluster.bound("p").await.spec.unwrap().node_name.as_deref(), Some("n2"));
    scheduler.stop().await;
}

/// What a driver can still make for one node.
async fn capacity(cluster: &SchedulerCluster, node: &str, fields: Value) {
    let capacities: Api<CSIStorageCapacity> = Api::namespaced(cluster.client.clone(), "ml");
    let mut object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity", "metadata": {"name": node},
        "storageClassName": "fast", "nodeTopology": {"matchLabels": {"kubernetes.io/hostname": node}}});
    for (key, value) in fields.as_object().unwrap() {
        object[key] = value.clone();
    }
    let params = PatchParams::apply("csi-provisioner").force();
    capacities.patch(node, &params, &Patch::Apply(object)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_goes_where_its_driver_has_storage_enough_and_waits_where_none_has() {
    let cluster = SchedulerCluster::start().await;
    for node in ["n1", "n2", "n3"] {
        cluster.node(node).await;
    }
    let storage = Storage::of(&cluster);
    storage.class("fast", "csi.example.com").await;
    let drivers: Api<CSIDriver> = Api::all(cluster.client.clone());
    let driver = json!({"metadata": {"name": "csi.example.com"}, "spec": {"storageCapacity": true}});
    drivers.create(&PostParams::default(), &serde_json::from_value(driver).unwrap()).await.unwrap();
    // Claims ask for 10Gi. The largest volume counts, where it is known.
    capacity(&cluster, "n1", json!({"capacity": "100Gi", "maximumVolumeSize": "9Gi"})).await;
    capacity(&cluster, "n2", json!({"capacity": "9Gi"})).await;
    let scheduler = cluster.scheduler().await;
    storage.claim("data", "fast").await;
    pod(&cluster, "p", "data").await;
    let message = until("the condition says why", || async {
        let conditions = cluster.pods().get("p").await.ok()?.status?.conditions?;
        conditions.into_iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?.message
    })
    .await;
    assert_eq!(message, "0/3 nodes: 3 have too little free storage of class fast for claim data");
    capacity(&cluster, "n2", json!({"capacity": "10Gi"})).await;
    let claim = until("the node is selected", || async {
        storage.claims.get("data").await.ok().filter(|claim| claim.annotations().contains_key(SELECTED))
    })
    .await;
    assert_eq!(claim.annotations()[SELECTED], "n2");
    // A driver that withdraws is asked no more.
    let patch = json!({"spec": {"storageCapacity": false}});
    drivers.patch("csi.example.com", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    storage.claim("more", "fast").await;
    pod(&cluster, "q", "more").await;
    until("a node is selected", || async {
        storage.claims.get("more").await.unwrap().annotations().contains_key(SELECTED).then_some(())
    })
    .await;
    scheduler.stop().await;
}
