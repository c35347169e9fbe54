//! Koordinator on a fleet, as its sources of v1.8.0 write: koordlet the Device objects, koord-manager the resources of the nodes,
//! koord-scheduler the assignments, each as its own user.

use baton::ops::demo::apply_all;

use super::{Fleet, THEIRS, allow, bind, is_over, node_of};
use crate::helm::Helm;
use crate::prelude::*;

const SCHEDULER: &str = "system:serviceaccount:koordinator-system:koord-scheduler";
const KOORDLET: &str = "system:serviceaccount:koordinator-system:koordlet";

pub struct Koordinator {
    scheduler: Client,
    koordlet: Client,
}

impl Koordinator {
    /// Its kinds and rights, and then Baton as docs/migrate.md has it.
    pub async fn install(server: &mut TestServer) -> Option<Self> {
        let helm = Helm::find()?;
        let kinds = include_str!("../../fixtures/koordinator/devices.yaml");
        apply_all(&server.client, kinds).await.unwrap();
        apply_all(&server.client, &serde_json::to_string(&baton::contract::gang::pod_group::crd()).unwrap())
            .await
            .unwrap();
        for (user, rules) in [
            (
                SCHEDULER,
                json!([
                    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "update", "patch"]},
                    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
                    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
                    {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["devices"], "verbs": ["get", "list", "watch"]},
                ]),
            ),
            (
                KOORDLET,
                json!([
                    {"apiGroups": ["scheduling.koordinator.sh"], "resources": ["devices"],
                        "verbs": ["get", "list", "watch", "create", "update", "patch"]},
                ]),
            ),
        ] {
            allow(server, user, rules).await;
        }
        let values = Values { namespace: "baton-system".to_owned(), ..Values::default() };
        server.namespace = "baton-system";
        server.create_namespace(&values.namespace).await;
        let writers = format!("--set=crds=own,assignmentWriters={{{SCHEDULER}}}");
        apply_all(&server.client, &helm.template(&values.namespace, &[&writers])).await.unwrap();
        server.until_judged(&values).await;
        let groups = ["system:serviceaccounts"];
        Some(Self {
            scheduler: server.acting_as(SCHEDULER, &groups).await,
            koordlet: server.acting_as(KOORDLET, &groups).await,
        })
    }

    fn devices(&self) -> Api<Device> {
        Api::all(self.koordlet.clone())
    }
}

impl Fleet {
    /// What koordlet reports of a node (`buildBasicDevice`, `buildGPUDevice`), and what koord-manager makes of that.
    pub(super) async fn report(&self, number: usize) {
        let koordinator = self.koordinator.as_ref().unwrap();
        let (name, gpus) = (self.name(number), self.cluster.nodes[number].hardware.gpu_uuids());
        let amounts = json!({key::GPU_CORE: "100", key::GPU_MEMORY: "80Gi", key::GPU_MEMORY_RATIO: "100"});
        let devices = gpus.iter().enumerate().map(|(minor, uuid)| {
            json!({"type": "gpu", "id": uuid, "minor": minor, "health": true, "resources": amounts,
                "topology": {"socketID": -1, "nodeID": minor / 4, "pcieID": format!("pci0000:{minor:02x}"), "busID": format!("0000:{minor:02x}:00.0")}})
        });
        let node: Node = self.node(number).await;
        let device = json!({"metadata": {"name": name,
                "labels": {key::NODE_GPU_VENDOR: "nvidia", key::NODE_GPU_MODEL: "NVIDIA-H100-80GB-HBM3", key::NODE_GPU_DRIVER: "550.54.15"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid(),
                    "controller": true, "blockOwnerDeletion": true}]},
            "spec": {"devices": devices.collect::<Vec<_>>()}});
        let device: Device = serde_json::from_value(device).unwrap();
        koordinator.devices().create(&PostParams::default(), &device).await.unwrap();
        let all = (100 * gpus.len()).to_string();
        let amounts = json!({key::GPU: all, key::GPU_CORE: all, key::GPU_MEMORY_RATIO: all, key::GPU_MEMORY: "640Gi"});
        let patch = Patch::Merge(json!({"status": {"capacity": amounts, "allocatable": amounts}}));
        self.cluster.nodes().patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// koord-scheduler's PreBind and Bind: a whole GPU that nobody has, of a node that is neither cordoned nor tainted.
    pub(super) async fn bind_koordinators(&self, pods: &[Pod]) {
        let koordinator = self.koordinator.as_ref().unwrap();
        let theirs: Api<Pod> = Api::namespaced(koordinator.scheduler.clone(), "default");
        let mut free: Vec<(String, usize, String)> = Vec::new();
        for node in Api::<Node>::all(koordinator.scheduler.clone()).list(&ListParams::default()).await.unwrap() {
            let spec = node.spec.clone().unwrap_or_default();
            if spec.unschedulable == Some(true) || !spec.taints.unwrap_or_default().is_empty() {
                continue;
            }
            let name = node.name_any();
            let taken: BTreeSet<String> =
                pods.iter().filter(|pod| node_of(pod) == Some(&name)).flat_map(assigned).collect();
            let listed = koordinator.devices().get(&name).await.unwrap().spec.devices;
            for (minor, uuid) in listed.iter().map(|info| info.id.as_str().to_owned()).enumerate() {
                if !taken.contains(&uuid) {
                    free.push((name.clone(), minor, uuid));
                }
            }
        }
        let theirs_wait = |pod: &&Pod| {
            node_of(pod).is_none() && pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()) == Some(THEIRS)
        };
        for (pod, (node, minor, uuid)) in pods.iter().filter(theirs_wait).zip(free) {
            let name = pod.name_any();
            let resources = json!({key::GPU_CORE: "100", key::GPU_MEMORY: "80Gi", key::GPU_MEMORY_RATIO: "100"});
            let devices = json!({"gpu": [{"minor": minor, "id": uuid, "resources": resources}]});
            let patch = json!({"metadata": {"annotations": {key::DEVICE_ALLOCATED: devices.to_string()}}});
            theirs.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            bind(&koordinator.scheduler, &name, &node).await;
        }
    }
}

/// GPUs that a pod has by its annotation, and that its containers get from koordlet's hooks.
pub fn assigned(pod: &Pod) -> BTreeSet<String> {
    let Some(text) = pod.annotations().get(key::DEVICE_ALLOCATED).filter(|_| !is_over(pod)) else {
        return BTreeSet::new();
    };
    let devices: Value = serde_json::from_str(text).unwrap();
    let gpus = devices["gpu"].as_array().into_iter().flatten();
    gpus.map(|gpu| gpu["id"].as_str().unwrap().to_owned()).collect()
}
