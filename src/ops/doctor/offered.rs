//! The daemon's objects in the cluster, compared with the machine and with the kubelet's report: Lease, Device object, node.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::machine::MachineView;
use super::objects::{FoundObject, InspectedCluster};
use super::report::Finding;
use crate::say::amount;
use crate::view::{AgentRow, agent_row};
use baton_agent::AgentOptions;
use baton_agent::inventory::device_infos;
use baton_agent::offer::{InUse, Unseen, offers};
use baton_contract::inventory::Device;
use baton_contract::{AgentStatus, key};
use baton_runtime::clock;

pub fn look(
    options: &AgentOptions,
    seen: &MachineView,
    cluster: &InspectedCluster,
    agent_runs: Option<bool>,
) -> Vec<Finding> {
    let runs = agent_runs == Some(true);
    let mut findings = Vec::new();
    let mut agent = None;
    if let Some(FoundObject(lease)) = &cluster.lease {
        agent = lease.as_ref().map(|lease| agent_row(lease, clock::wall()));
        findings.push(agent_lease(options, agent.as_ref(), runs));
    }
    if let Some(FoundObject(device)) = &cluster.device {
        findings.push(inventory(options, seen, device.as_ref(), runs));
    }
    // What a daemon that runs and does not report serves is not known, and is no other plugin's.
    let is_silent = runs && agent.as_ref().is_some_and(|agent| !agent.fresh);
    if let Some(node) = cluster.node.as_ref().filter(|_| !is_silent) {
        findings.extend(resources(options, seen, node, agent.filter(|agent| agent.fresh).as_ref()));
    }
    findings
}

fn agent_lease(options: &AgentOptions, agent: Option<&AgentRow>, runs: bool) -> Finding {
    let namespace = AgentStatus::lease_namespace(&options.namespace);
    let name = format!("Lease {namespace}/{}", AgentStatus::lease_name(&options.node_name));
    let advice = if runs {
        "the daemon runs and does not report: it cannot write its Lease (see the lines permission and api-server, its log, and whether the namespace of --namespace exists), or it hangs: `pkill -KILL -f baton.device-plugin`, its pod starts it again; the scheduler sends no pod here while the Lease is stale"
    } else {
        "start the daemon; the scheduler sends no pod with devices here while the Lease is stale"
    };
    let Some(agent) = agent else {
        return Finding::bad(runs, "agent", format!("{name} does not exist"), advice);
    };
    let age = agent.renewed_seconds.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds} s ago"));
    if !agent.fresh {
        return Finding::bad(runs, "agent", format!("{name} is stale: renewed {age}"), advice);
    }
    if agent.version.is_some() && !agent.knows_pods {
        let advice = "while nothing tells what a running pod has (no ledger, annotation, answer of the kubelet or listed id), the scheduler sends no pod with devices here; the daemon's log names the pod: delete it, or wait until it ends";
        return Finding::warn(
            "agent",
            format!("{name}: the daemon does not know what a pod of this node holds"),
            advice,
        );
    }
    if let (Some(version), Some(identity)) = (&agent.version, agent.identity) {
        let identity = format!("{identity:?}").to_ascii_lowercase();
        Finding::ok("agent", format!("{name} renewed {age}, version {version}, identity {identity}"))
    } else {
        let advice = "another program writes this Lease, or a daemon of another version: one daemon for each node";
        Finding::fail("agent", format!("{name} carries no status of a daemon"), advice)
    }
}

/// The object is written when something changes, so it is judged by its content and not by its age.
fn inventory(options: &AgentOptions, seen: &MachineView, device: Option<&Device>, runs: bool) -> Finding {
    let name = format!("Device {}", options.node_name);
    let Some(device) = device else {
        let advice = "the daemon makes it when it starts; the CRD must be there: `baton crds | kubectl apply --server-side -f -`";
        return Finding::bad(runs, "device-object", format!("{name} does not exist"), advice);
    };
    let listed: BTreeSet<&str> = device.spec.devices.iter().map(|device| device.id.as_str()).collect();
    let sick: Vec<String> = device.spec.devices.iter().filter(|device| !device.health).map(sickness).collect();
    if seen.complete {
        let infos = device_infos(&seen.devices);
        let here: BTreeSet<&str> = infos.iter().map(|device| device.id.as_str()).collect();
        let (missing, extra) = (list(here.difference(&listed)), list(listed.difference(&here)));
        if !missing.is_empty() || !extra.is_empty() {
            let lacks = if missing.is_empty() { String::new() } else { format!(" lacks {missing}") };
            let still = if extra.is_empty() { String::new() } else { format!(" still names {extra}") };
            let found = format!("{name}{lacks}{still}");
            let advice = "the daemon writes it within a minute of a change; a device in use stays in it until its pod ends; if this stays, look at the daemon's log";
            return Finding::bad(runs && !missing.is_empty(), "device-object", found, advice);
        }
    }
    if !sick.is_empty() {
        let advice = "they take no new pods until they are healthy; the reason says what to do";
        return Finding::warn("device-object", format!("{name}: {}", sick.join("; ")), advice);
    }
    Finding::ok("device-object", format!("{name} names this machine's {}, all healthy", amount(listed.len(), "device")))
}

fn sickness(device: &baton_contract::inventory::DeviceInfo) -> String {
    let condition = device.conditions.iter().find(|condition| condition.type_ == "Healthy");
    let why = condition.map(|condition| format!(": {}: {}", condition.reason, condition.message));
    format!("{} is unhealthy{}", device.id, why.unwrap_or_default())
}

fn list<'a>(names: impl Iterator<Item = &'a &'a str>) -> String {
    names.copied().collect::<Vec<_>>().join(", ")
}

/// Each name: registered by the daemon, counted by the kubelet, as many as the machine has.
fn resources(options: &AgentOptions, seen: &MachineView, node: &Node, agent: Option<&AgentRow>) -> Vec<Finding> {
    let Some(agent) = agent else { return foreign(node) };
    if !seen.complete {
        return Vec::new();
    }
    let lists = offers(&seen.devices, options, &InUse::new(), Unseen::default());
    let line = |(name, (_, total)): (&str, (usize, usize))| resource(name, total as i64, node, agent);
    lists.iter().map(|(name, list)| (&**name, list.counts())).map(line).collect()
}

fn resource(name: &str, here: i64, node: &Node, agent: &AgentRow) -> Finding {
    if !agent.registered.iter().any(|registered| registered == name) {
        let advice = "the kubelet has refused or lost the registration: see the lines kubelet-socket and other-plugin, and the daemon's log; it tries again by itself";
        return Finding::fail("resource", format!("{name} is not registered with the kubelet"), advice);
    }
    let (status, count) = (node.status.as_ref(), |count: &Quantity| count.0.parse::<i64>().ok());
    let allocatable = status.and_then(|status| count(status.allocatable.as_ref()?.get(name)?));
    let capacity = status.and_then(|status| count(status.capacity.as_ref()?.get(name)?));
    match (allocatable, capacity) {
        (Some(allocatable), Some(capacity)) if capacity == here && allocatable == capacity => {
            Finding::ok("resource", format!("{name}: {allocatable} allocatable"))
        }
        (Some(allocatable), Some(capacity)) if capacity == here => {
            let advice =
                "the difference is unhealthy devices: see the line device-object; the kubelet follows within 10 s";
            Finding::warn("resource", format!("{name}: {allocatable} of {capacity} allocatable"), advice)
        }
        (None, _) | (_, None) if here == 0 => Finding::ok("resource", format!("{name}: none in this machine")),
        (allocatable, capacity) => {
            let shown = |count: Option<i64>| count.map_or_else(|| "nothing".to_owned(), |count| count.to_string());
            let found = format!(
                "{name}: the machine has {here}, the kubelet says capacity {}, allocatable {}",
                shown(capacity),
                shown(allocatable)
            );
            let advice = "the kubelet follows within 10 s of a change; if this stays, another plugin may have registered the name after ours (see other-plugin), or restart the kubelet";
            Finding::fail("resource", found, advice)
        }
    }
}

/// Device names that the node offers while no daemon of ours serves them.
fn foreign(node: &Node) -> Vec<Finding> {
    let status = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let names = status.into_iter().flatten().filter(|(name, count)| key::is_device_resource(name) && count.0 != "0");
    let line = |(name, count): (&String, &Quantity)| {
        let advice = "another plugin offers this name: take it off this node before Baton comes; or our daemon has just ended, then the kubelet forgets the name after 5 minutes";
        Finding::warn("resource", format!("{name}: {} allocatable, and no daemon of ours serves it", count.0), advice)
    };
    names.map(line).collect()
}
