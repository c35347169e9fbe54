//! The Node object and its Lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::devices::Amount;
use super::locked;
use super::machine::Machine;
use super::options::KubeletOptions;
use super::runtime::fnv;
use baton_runtime::clock;

/// The version that nodes report.
const VERSION: &str = "v1.36.0";

/// Registers the node, then keeps its status and Lease.
pub(super) fn run(machine: &Arc<Machine>) {
    let node = machine.clone();
    machine.spawn(async move {
        let mut status = Status::default();
        let retry = Duration::from_millis(200);
        while let Err(error) = register(&node).await {
            tracing::warn!(%error, "cannot register the node, will retry");
            tokio::time::sleep(retry).await;
        }
        loop {
            if let Err(error) = status.write(&node).await {
                tracing::warn!(%error, "cannot write the node status, will retry");
            }
            let periods = &node.options.periods;
            let pause = tokio::time::sleep(periods.scaled(periods.node_status));
            if periods.fast_status {
                tokio::select! {
                    () = pause => {}
                    () = node.devices_changed.notified() => {}
                }
            } else {
                pause.await;
            }
        }
    });
    let lease = machine.clone();
    machine.spawn(async move {
        loop {
            if let Err(error) = renew(&lease).await {
                tracing::warn!(%error, "cannot renew the node's Lease, will retry");
            }
            tokio::time::sleep(lease.options.periods.lease).await;
        }
    });
}

/// The labels that every kubelet sets, and the configured ones.
pub(super) fn labels(options: &KubeletOptions) -> BTreeMap<String, String> {
    let own = [
        ("kubernetes.io/hostname", options.node_name.as_str()),
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", "amd64"),
        ("beta.kubernetes.io/os", "linux"),
    ];
    let mut labels: BTreeMap<String, String> = own.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    labels.extend(options.labels.clone());
    labels
}

async fn register(machine: &Machine) -> Result<(), kube::Error> {
    let options = &machine.options;
    let nodes: Api<Node> = Api::all(machine.client.clone());
    let name = &options.node_name;
    let labels = labels(options);
    // Every kubelet sets this annotation, so a node's annotations are never without a map.
    let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    let new =
        json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}, "status": base(machine)});
    let new: Node = serde_json::from_value(new).map_err(kube::Error::SerdeError)?;
    match nodes.create(&PostParams::default(), &new).await {
        Ok(_) => return Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    let patch = json!({"metadata": {"labels": labels}});
    nodes.patch(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    if !options.checkpoint_file().exists() {
        // A new machine under an old name: what an earlier kubelet advertised is not there.
        let old = nodes.get_status(name).await?.status.unwrap_or_default();
        let extended = |names: Option<BTreeMap<String, _>>| -> BTreeMap<String, &'static str> {
            names.into_iter().flatten().filter(|(name, _)| name.contains('/')).map(|(name, _)| (name, "0")).collect()
        };
        let patch = json!({"status": {"capacity": extended(old.capacity), "allocatable": extended(old.allocatable)}});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    }
    Ok(())
}

/// What a node's status says beside extended resources and heartbeats.
fn base(machine: &Machine) -> Value {
    let options = &machine.options;
    let id = format!("{:032x}", fnv(&options.node_name));
    json!({
        "capacity": options.capacity,
        "allocatable": options.capacity,
        "addresses": [
            {"type": "InternalIP", "address": options.host_ip},
            {"type": "Hostname", "address": options.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": id,
            "systemUUID": id,
            "bootID": machine.boot_id,
            "kernelVersion": "6.8.0",
            "osImage": "Simulated Linux",
            "containerRuntimeVersion": "containerd://2.1.0",
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
    })
}

#[derive(Default)]
struct Status {
    written: Option<Value>,
    /// Resources dropped after their grace: they stay in the status as 0.
    dropped: Vec<String>,
    /// When each condition became what it is.
    since: BTreeMap<&'static str, jiff::Timestamp>,
}

/// What a kubelet in health says of its node: type, status, reason, message.
const CONDITIONS: [(&str, &str, &str, &str); 4] = [
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
];

impl Status {
    async fn write(&mut self, machine: &Machine) -> Result<(), kube::Error> {
        let periods = &machine.options.periods;
        let grace = periods.scaled(periods.endpoint_grace);
        let (amounts, gone) = locked(&machine.state).devices.amounts(clock::mono(), grace);
        if !gone.is_empty() {
            self.dropped.extend(gone);
            if let Err(error) = machine.write_checkpoint() {
                tracing::error!(%error, "cannot write the device checkpoint");
            }
        }
        let mut amounts = amounts;
        for name in &self.dropped {
            amounts.entry(name.clone()).or_insert(Amount { capacity: 0, allocatable: 0 });
        }
        let mut status = base(machine);
        for (name, amount) in &amounts {
            status["capacity"][name] = json!(amount.capacity.to_string());
            status["allocatable"][name] = json!(amount.allocatable.to_string());
        }
        let nodes: Api<Node> = Api::all(machine.client.clone());
        let overwritten = self.written.is_some() && self.forget_overwritten(&nodes, &machine.options.node_name).await?;
        if self.written.as_ref() == Some(&status) && !overwritten {
            return Ok(());
        }
        let patch = json!({"status": self.with_conditions(status.clone())});
        nodes.patch_status(&machine.options.node_name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        self.written = Some(status);
        let counts = amounts.iter().map(|(name, amount)| (name.clone(), amount.allocatable as i64));
        locked(&machine.state).node_allocatable = counts.collect();
        Ok(())
    }

    /// Reads the node, as every kubelet does before it writes: a node controller that heard nothing of it for a while has put
    /// Unknown in the place of its conditions. They begin again; `true` when there are some.
    async fn forget_overwritten(&mut self, nodes: &Api<Node>, name: &str) -> Result<bool, kube::Error> {
        let there = nodes.get(name).await?.status.and_then(|status| status.conditions).unwrap_or_default();
        let before = self.since.len();
        self.since.retain(|kind, _| {
            let ours = CONDITIONS.iter().find(|(ours, ..)| ours == kind).map(|(_, value, ..)| *value);
            there.iter().any(|one| one.type_ == *kind && Some(one.status.as_str()) == ours)
        });
        Ok(self.since.len() < before)
    }

    fn with_conditions(&mut self, mut status: Value) -> Value {
        let wall = clock::wall();
        let conditions = CONDITIONS.map(|(kind, value, reason, message)| {
            let since = *self.since.entry(kind).or_insert(wall);
            json!({
                "type": kind, "status": value, "reason": reason, "message": message,
                "lastHeartbeatTime": seconds(wall), "lastTransitionTime": seconds(since),
            })
        });
        status["conditions"] = json!(conditions);
        status
    }
}

/// A time as Kubernetes' `metav1.Time` writes it.
fn seconds(time: jiff::Timestamp) -> String {
    jiff::Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

async fn renew(machine: &Machine) -> Result<(), kube::Error> {
    let name = &machine.options.node_name;
    let leases: Api<Lease> = Api::namespaced(machine.client.clone(), "kube-node-lease");
    let now = format!("{:.6}", clock::wall());
    let patch = json!({"spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}});
    match leases.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => return other.map(|_| ()),
    }
    let nodes: Api<Node> = Api::all(machine.client.clone());
    let owner = nodes
        .get(name)
        .await
        .ok()
        .and_then(|node| node.metadata.uid)
        .map(|uid| json!([{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]));
    let mut lease = patch;
    lease["metadata"] = json!({"name": name, "namespace": "kube-node-lease", "ownerReferences": owner});
    let lease: Lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
    leases.create(&PostParams::default(), &lease).await.map(|_| ())
}
