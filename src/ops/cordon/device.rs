//! The device that a command names, its cordon, and the pods that hold it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};

use crate::live;
use crate::say::UsageError;
use crate::view::{DeviceHolder, DeviceHolders, Snapshot};
use baton_cluster::agent_lease::LightLease;
use baton_cluster::client::{said, status_code};
use baton_cluster::cordon::{CordonWrite, write_cordons};
use baton_cluster::device::RawDevice;
use baton_cluster::notice::{Notice, Notices, Subject};
use baton_cluster::pod::LightPod;
use baton_contract::inventory::{Device, DeviceInfo, device_names};
use baton_contract::{AgentStatus, Cordon, Cordons, DeviceId, EventReason, PodRef, key};
use baton_runtime::clock;

/// Writes that others may come before.
const TRIES: u32 = 10;
/// Longest wait for an event to be written.
const EVENT: Duration = Duration::from_secs(2);
/// Pause after one that another came before.
const PAUSE: Duration = Duration::from_millis(50);

/// `NODE/gpu-3` or `NODE/UUID`, as the command line gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceName {
    pub node: String,
    /// `gpu-3`, or an id.
    pub device: String,
}

impl DeviceName {
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((node, device)) if !node.is_empty() && !device.is_empty() && !device.contains('/') => {
                Ok(Self { node: node.to_owned(), device: device.to_owned() })
            }
            _ => Err("expected NODE/DEVICE, such as node-1/gpu-3; `baton get devices` lists them".to_owned()),
        }
    }
}

/// One device of a live cluster.
pub struct CordonTarget {
    client: Client,
    devices: Api<RawDevice>,
    node: String,
    /// `gpu-3`.
    pub name: String,
    /// UUID or PCI address.
    pub id: DeviceId,
    object: Device,
}

impl CordonTarget {
    /// Finds it; the error names the devices that there are.
    pub async fn find(client: Client, given: &DeviceName) -> anyhow::Result<Self> {
        let devices: Api<RawDevice> = Api::all(client.clone());
        let node = given.node.clone();
        let cannot = |error: kube::Error| live::cannot(&format!("read the Device object of node {node}"), error);
        let Some(object) = devices.get_opt(&node).await.map_err(cannot)? else {
            let nodes = Api::<Node>::all(client).list_metadata(&ListParams::default()).await.map_err(cannot)?;
            if nodes.items.iter().any(|known| known.name_any() == node) {
                bail!(
                    "node {node} has no Device object: its node daemon has published none; `baton doctor` there says why"
                );
            }
            let names: Vec<String> = nodes.items.iter().take(20).map(ResourceExt::name_any).collect();
            let more = if nodes.items.len() > names.len() { ", …" } else { "" };
            bail!("there is no node {node:?}; there are {}{more}", names.join(", "));
        };
        let (object, skipped) = object.read();
        if let Some(entry) = skipped.first() {
            // MIG devices are named by their order.
            bail!(
                "the Device object of node {node} has an entry that cannot be read: {entry}; its node daemon corrects it within a minute"
            );
        }
        let names = device_names(&object.spec.devices);
        let wanted = given.device.strip_prefix("rdma-").map_or_else(|| given.device.clone(), |at| format!("nic-{at}"));
        let listed = names.iter().zip(&object.spec.devices);
        let found = listed.filter(|(name, info)| **name == wanted || info.id.as_str() == wanted);
        let found: Vec<(&String, &DeviceInfo)> = found.collect();
        let (name, id) = match &found[..] {
            [(name, info)] => ((*name).clone(), info.id.clone()),
            [] => bail!("node {node} has no device {:?}; it has {}", given.device, names.join(", ")),
            several => {
                let ids: Vec<String> = several.iter().map(|(_, info)| format!("{node}/{}", info.id)).collect();
                bail!("{wanted} names {} devices of node {node}: use an id, {}", ids.len(), ids.join(" or "));
            }
        };
        Ok(Self { client, devices, node, name, id, object })
    }

    /// `node-1/gpu-3`.
    pub fn path(&self) -> String {
        format!("{}/{}", self.node, self.name)
    }

    /// `gpu-3 (GPU-…) is cordoned by ada`, for an event on the node.
    pub fn sentence(&self, words: &str) -> String {
        format!("{} ({}) is {words}", self.name, self.id)
    }

    /// An error where the node is gone: its Device object is left over, and nothing is cordoned for the next node of that name.
    pub async fn check_node(&self) -> anyhow::Result<()> {
        let node = Api::<Node>::all(self.client.clone()).get_metadata_opt(&self.node).await;
        if node.with_context(|| format!("cannot read node {}", self.node))?.is_none() {
            bail!(
                "node {} does not exist; its Device object is left over and is deleted with what is left of the node",
                self.node
            );
        }
        Ok(())
    }

    /// Cordons it; returns the cordon that was in force before.
    pub async fn cordon(&mut self, cordon: &Cordon) -> anyhow::Result<Option<Cordon>> {
        let id = self.id.clone();
        self.change(|cordons, before| {
            cordons.set(id.clone(), cordon.clone());
            before
        })
        .await
    }

    /// Takes its cordon away; `None` when it had none.
    pub async fn uncordon(&mut self) -> anyhow::Result<Option<Cordon>> {
        let id = self.id.clone();
        self.change(|cordons, _| cordons.lift(&id)).await
    }

    /// Its own cordon in force.
    pub fn cordoned(&self) -> Option<Cordon> {
        Cordons::of_object(&self.object).of(self.id.as_str(), None, clock::wall()).cloned()
    }

    /// The GPU's cordon in force that covers a MIG device.
    pub fn parents_cordon(&self) -> Option<Cordon> {
        let parent = self.info()?.labels.get(key::PARENT)?;
        Cordons::of_object(&self.object).of(parent, None, clock::wall()).cloned()
    }

    fn info(&self) -> Option<&DeviceInfo> {
        self.object.spec.devices.iter().find(|info| info.id == self.id)
    }

    /// Reads, changes and writes, again where another write came between.
    async fn change(
        &mut self,
        mut change: impl FnMut(&mut Cordons, Option<Cordon>) -> Option<Cordon>,
    ) -> anyhow::Result<Option<Cordon>> {
        for _ in 0..TRIES {
            let text = self.object.annotations().get(key::CORDONED).filter(|text| !text.is_empty());
            let mut cordons = text.map(|text| Cordons::parse(text)).transpose().map_err(|error| {
                anyhow!("Device object {node}: {error}; it is not overwritten, for it may mean any device: correct it with `kubectl edit device \
                         {node}`, or take it away with `kubectl annotate device {node} {key}-`", node = self.node, key = key::CORDONED)
            })?
            .unwrap_or_default();
            cordons.prune(clock::wall());
            let before = cordons.of(self.id.as_str(), None, clock::wall()).cloned();
            let outcome = change(&mut cordons, before);
            let written = write_cordons(&self.devices, &self.object, &cordons).await.map_err(|error| {
                let hint =
                    if status_code(&error) == Some(403) { format!("; {}", live::LACKS_RIGHTS) } else { String::new() };
                anyhow!("cannot write the Device object of node {}: {}{hint}", self.node, said(&error))
            })?;
            if written == CordonWrite::Done {
                return Ok(outcome);
            }
            tokio::time::sleep(PAUSE).await;
            self.object = self.devices.get(&self.node).await?.read().0;
        }
        bail!(
            "the Device object of node {} is being changed all the time: {TRIES} writes were in vain; try again",
            self.node
        )
    }

    /// Pods that hold it or a part of it, those of its MIG devices included.
    pub async fn holders(&self, agent_namespace: &str) -> anyhow::Result<Vec<HolderPod>> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let pods = Api::<LightPod>::all(self.client.clone());
        let pods = live::patiently(pods.list(&on_node), || format!("reading the pods of node {}", self.node)).await;
        let pods = pods.map_err(|error| anyhow!("cannot list the pods of node {}: {}", self.node, said(&error)))?;
        let leases: Api<LightLease> =
            Api::namespaced(self.client.clone(), &AgentStatus::lease_namespace(agent_namespace));
        let lease = leases.get_opt(&AgentStatus::lease_name(&self.node)).await.ok().flatten();
        let mut snapshot = Snapshot::default();
        pods.items.into_iter().for_each(|pod| snapshot.put_pod(pod));
        snapshot.leases.extend(lease.map(|lease| (AgentStatus::lease_name(&self.node), lease)));
        snapshot.devices.insert(self.node.clone(), self.object.clone());
        let usage = DeviceHolders::of(&snapshot);
        let parts = self.object.spec.devices.iter().filter(|info| {
            info.id == self.id || info.labels.get(key::PARENT).is_some_and(|parent| parent == self.id.as_str())
        });
        let mut found = BTreeMap::new();
        for holder in parts.flat_map(|info| usage.holders(&self.node, info.id.as_str())) {
            let DeviceHolder { pod, uid, .. } = holder;
            let known = snapshot.pods.get(pod).filter(|known| known.pod.uid == *uid);
            let notes = known.and_then(|_| snapshot.notes.get(pod));
            let owner = notes.and_then(|notes| notes.owner.as_deref().map(str::to_owned));
            let deleting = known.is_some_and(|known| known.deleting.is_some());
            found
                .insert(uid.clone(), HolderPod { pod: PodRef { key: pod.clone(), uid: uid.clone() }, owner, deleting });
        }
        Ok(found.into_values().collect())
    }
}

/// A pod that holds the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderPod {
    pub pod: PodRef,
    /// `Job train`, which makes another pod; `None` for a pod that nothing makes again.
    pub owner: Option<String>,
    pub deleting: bool,
}

impl HolderPod {
    /// An eviction is its end: nothing makes it again, and it is not ending already.
    pub fn is_lost(&self) -> bool {
        self.owner.is_none() && !self.deleting
    }
}

/// Shows in `kubectl describe node`. An event that cannot be written is no failure of the command.
pub async fn notice(client: &Client, target: &CordonTarget, reason: EventReason, message: String) {
    let (notices, writer) = Notices::start(client.clone(), "baton", &target.node, async || {});
    let subject = Subject::Node(target.node.as_str().into());
    notices.post(Notice { subject, warning: false, reason, action: "Cordon", message });
    drop(notices);
    let _ = tokio::time::timeout(EVENT, writer).await;
}

/// The user of these credentials, as the API server knows it.
pub async fn user(client: &Client) -> String {
    let review = Api::<SelfSubjectReview>::all(client.clone());
    let answer = review.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok();
    let name = answer.and_then(|answer| answer.status?.user_info?.username);
    name.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "unknown".to_owned())
}

/// A time from `--until`: a span from now, or a time of day with its date. It lies in the future.
pub fn until(text: &str) -> anyhow::Result<jiff::Timestamp> {
    let now = clock::wall();
    let until = match (humantime::parse_duration(text), text.parse::<jiff::Timestamp>()) {
        (Ok(span), _) => now.checked_add(span).ok(),
        (_, at) => at.ok(),
    };
    let Some(until) = until else {
        return Err(UsageError(format!(
            "--until {text:?}: expected a time such as 2026-11-23T10:00:00Z, or a span such as 2h"
        ))
        .into());
    };
    // Whole seconds, as the API writes times.
    let until = jiff::Timestamp::from_second(until.as_second())?;
    if until <= now {
        return Err(UsageError(format!("--until {text}: {until} is in the past, it is {now:.0} now")).into());
    }
    Ok(until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_behind_its_node() {
        let name = DeviceName::parse("node-1/gpu-3").unwrap();
        assert_eq!((name.node.as_str(), name.device.as_str()), ("node-1", "gpu-3"));
        for bad in ["node-1", "/gpu-3", "node-1/", "a/b/c", ""] {
            assert!(DeviceName::parse(bad).unwrap_err().contains("NODE/DEVICE"), "{bad:?}");
        }
    }

    #[test]
    fn a_time_in_the_past_or_none_at_all_is_named() {
        assert!(until("2h").unwrap() > clock::wall());
        for bad in ["2020-01-01T00:00:00Z", "0s"] {
            let said = until(bad).unwrap_err().to_string();
            assert!(said.contains(bad) && said.contains("in the past"), "{said}");
        }
        for bad in ["tomorrow", "", "-2h", "999999999999y"] {
            assert!(until(bad).unwrap_err().to_string().contains("expected a time"), "{bad}");
        }
    }
}
