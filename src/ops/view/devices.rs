//! Every device: its health, what a new pod can have of it, whether people have taken it out of use, and which pods hold it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::table::{Row, RowId, age};
use super::usage::{DeviceHolder, DeviceHolders};
use baton_contract::inventory::{Device, DeviceInfo, device_names};
use baton_contract::word::word_enum;
use baton_contract::{Cordon, Cordons, DeviceType, HealthReason, key};
use baton_decide::explain::ReservedDevices;
use baton_decide::world::DeviceState;

word_enum! {
    /// Whether a device takes new pods, as far as it is up to the device.
    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    ShownHealth {
        /// It does.
        Healthy = "healthy",
        /// It does not until it is healthy again.
        Unhealthy = "unhealthy",
        /// It is healthy, and people have taken it out of use.
        Cordoned = "cordoned",
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRow {
    pub node: String,
    /// Its name on the node, `gpu-3`.
    pub device: String,
    /// UUID or PCI address.
    pub id: String,
    pub model: Option<String>,
    pub health: ShownHealth,
    /// What it is to new pods.
    pub state: DeviceState,
    /// Percent that pods hold.
    pub used: i64,
    /// Percent that a new pod may have: nothing of a device that is out of use, or whose node takes no new pods with devices.
    pub free: i64,
    pub holders: Vec<DeviceHolder>,
    /// Jobs, gangs and pods that are not bound yet and for which the scheduler has reserved a part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_for: Vec<String>,
    /// Why it is not healthy, who has cordoned it, until when and why, and which pods use it still that have left the API server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when it is healthy or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// For how long, by this machine's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cordon: Option<Cordon>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Number of a GPU in the order of nvidia-smi, which is that of the PCI addresses of the GPUs that NVML lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
    /// PCIe switch, or root complex where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlink: Option<String>,
    /// Those that have it are to be freed of it.
    #[serde(skip)]
    pub(crate) fails_holders: bool,
    /// Why it has nothing free although it is in order and no pod has it whole.
    #[serde(skip)]
    closed: Option<String>,
    #[serde(skip)]
    path: String,
    #[serde(skip)]
    labels: BTreeMap<String, String>,
}

/// Why a node gives new pods no device of a type now.
pub(super) type WhyNone<'a> = &'a dyn Fn(&DeviceType) -> Option<String>;

/// What is known of a node beside its Device object.
pub(super) struct DeviceSurroundings<'a> {
    pub usage: &'a DeviceHolders,
    pub reserved: &'a [&'a ReservedDevices],
    /// Why its node gives new pods none of this type now; `None` where there is no such node.
    pub gives_none: Option<WhyNone<'a>>,
    pub wall: Timestamp,
}

pub(super) fn of_node(node: &str, object: &Device, around: &DeviceSurroundings<'_>) -> Vec<DeviceRow> {
    let (cordons, indexes) = (Cordons::of_object(object), indexes(&object.spec.devices));
    let row = |(info, name): (&DeviceInfo, String)| {
        let mut row = row(node, info, name, &cordons, around);
        row.index = indexes.get(info.id.as_str()).copied();
        row.labels.extend(object.metadata.labels.clone().unwrap_or_default());
        row
    };
    object.spec.devices.iter().zip(device_names(&object.spec.devices)).map(row).collect()
}

/// Numbers of the GPUs that NVML lists, by their ids.
fn indexes(devices: &[DeviceInfo]) -> BTreeMap<&str, usize> {
    let unlisted = [HealthReason::Gone, HealthReason::Unlisted].map(|reason| reason.to_string());
    let is_listed = |info: &&DeviceInfo| info.health_condition().is_none_or(|of| !unlisted.contains(&of.reason));
    let is_gpu = |info: &&DeviceInfo| info.kind == DeviceType::Gpu && !info.labels.contains_key(key::PARENT);
    let gpus = devices.iter().filter(is_gpu).filter(is_listed);
    let mut known: Vec<(&str, &str)> = gpus.filter_map(|gpu| Some((gpu.bus_id()?, gpu.id.as_str()))).collect();
    known.sort_unstable();
    known.into_iter().enumerate().map(|(at, (_, id))| (id, at)).collect()
}

fn row(node: &str, info: &DeviceInfo, device: String, cordons: &Cordons, around: &DeviceSurroundings<'_>) -> DeviceRow {
    let (usage, wall, id) = (around.usage, around.wall, info.id.as_str());
    let label = |name: &str| info.labels.get(name).cloned();
    let cordon = cordons.of(id, info.labels.get(key::PARENT).map(String::as_str), wall);
    let reserved: Vec<&&ReservedDevices> = around.reserved.iter().filter(|of| of.devices.contains_key(id)).collect();
    let (used, kept) = (usage.percent(node, id), reserved.iter().map(|of| of.devices[id]).sum::<i64>());
    let closed = around.gives_none.and_then(|why| why(&info.kind));
    let takes = around.gives_none.is_some() && closed.is_none();
    let state = match used {
        _ if !info.health => DeviceState::Unhealthy,
        _ if cordon.is_some() => DeviceState::Cordoned,
        _ if info.resources.is_empty() => DeviceState::Split,
        key::WHOLE.. => DeviceState::Held,
        _ if kept > 0 => DeviceState::Reserved,
        1.. => DeviceState::Partly,
        _ if takes => DeviceState::Free,
        _ => DeviceState::Off,
    };
    let usable = matches!(state, DeviceState::Free | DeviceState::Partly | DeviceState::Reserved);
    let gone = around.gives_none.is_none().then(|| format!("node {node} does not exist"));
    let left = usage.leaving(node, id).map(str::to_owned);
    let reasons: Vec<String> = info.fault().into_iter().chain(cordon.map(Cordon::words)).chain(left).collect();
    let since = info.health_condition().map(|condition| condition.last_transition_time.0);
    let places = info.topology.as_ref();
    DeviceRow {
        node: node.to_owned(),
        path: format!("{node}/{device}"),
        device,
        id: id.to_owned(),
        model: label(key::MODEL),
        health: match (info.health, cordon) {
            (false, _) => ShownHealth::Unhealthy,
            (true, Some(_)) => ShownHealth::Cordoned,
            (true, None) => ShownHealth::Healthy,
        },
        state,
        fails_holders: info.fault_of_holder().is_some(),
        closed: closed.filter(|_| usable || state == DeviceState::Off),
        used,
        free: if takes && usable { (key::WHOLE - used - kept).max(0) } else { 0 },
        holders: usage.holders(node, id).to_vec(),
        reserved_for: reserved.iter().map(|of| of.reserved_for.clone()).collect(),
        reason: gone.or((!reasons.is_empty()).then(|| reasons.join("; "))),
        since,
        since_seconds: since.map(|since| Duration::try_from(wall.duration_since(since)).unwrap_or_default().as_secs()),
        cordon: cordon.cloned(),
        pcie: label(key::PCIE_SWITCH).or_else(|| places.map(|place| place.pcie_id.clone())).filter(|id| !id.is_empty()),
        pci: info.bus_id().map(str::to_owned),
        index: None,
        numa: places.map(|place| place.node_id).filter(|node| *node >= 0),
        nvlink: label(key::NVLINK_DOMAIN),
        labels: info.labels.clone(),
    }
}

impl DeviceRow {
    /// Whether it is in this state. People may take an unhealthy device out of use, too.
    pub(crate) fn is_in(&self, state: DeviceState) -> bool {
        self.state == state || state == DeviceState::Cordoned && self.cordon.is_some()
    }

    /// What is wrong with it concerns the pods that have it, and there are some.
    pub fn is_to_drain(&self) -> bool {
        self.fails_holders && !self.holders.is_empty()
    }

    pub fn is_nic(&self) -> bool {
        self.device.starts_with("nic-")
    }

    /// A label of the device, or of its Device object.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

impl Row for DeviceRow {
    const WHAT: &'static str = "device";
    const PLURAL: &'static str = "devices";
    const NONE: &'static str = "No node has published a device.";
    const HEADERS: &'static str =
        "NODE,DEVICE,MODEL,HEALTH,USED,FREE,HOLDERS,REASON,SINCE,PCI,INDEX,PCIE,NUMA,NVLINK,ID";
    const NARROW: usize = 8;
    fn id(&self) -> RowId<'_> {
        RowId { name: &self.path, node: Some(&self.node), labels: Some(&self.labels), ..RowId::default() }
    }
    fn is(&self, given: &str) -> bool {
        self.path == given || self.id == given
    }
    fn cells(&self) -> Vec<String> {
        let holder = |holder: &DeviceHolder| match holder.percent {
            key::WHOLE => holder.pod.to_string(),
            percent => format!("{} {percent}%", holder.pod),
        };
        let reserved = self.reserved_for.iter().map(|name| format!("reserved for {name}"));
        vec![
            self.node.clone(),
            self.device.clone(),
            self.model.clone().unwrap_or_default(),
            match (self.health, &self.cordon) {
                (ShownHealth::Unhealthy, Some(_)) => "unhealthy,cordoned".to_owned(),
                (health, _) => health.to_string(),
            },
            format!("{}%", self.used),
            format!("{}%", self.free),
            self.holders.iter().map(holder).chain(reserved).collect::<Vec<_>>().join(", "),
            self.reason.as_ref().or(self.closed.as_ref()).cloned().unwrap_or_default(),
            self.since_seconds.map(|seconds| age(Duration::from_secs(seconds))).unwrap_or_default(),
            self.pci.clone().unwrap_or_default(),
            self.index.map(|index| index.to_string()).unwrap_or_default(),
            self.pcie.clone().unwrap_or_default(),
            self.numa.map(|numa| numa.to_string()).unwrap_or_default(),
            self.nvlink.clone().unwrap_or_default(),
            self.id.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::snapshot_tests::{cluster, leave};
    use crate::view::{NodesView, Rules, Snapshot};
    use baton_decide::explain::QueueReport;
    use serde_json::json;

    fn rows(cluster: &Snapshot) -> Vec<DeviceRow> {
        NodesView::of(cluster, &Rules::default(), &QueueReport::default()).devices
    }

    #[test]
    fn a_device_says_who_holds_it_whether_it_is_well_and_who_has_cordoned_it() {
        let mut cluster = cluster();
        let device = cluster.devices.get_mut("node-a").unwrap();
        let text = r#"{"GPU-a1":{"reason":"fan fails","by":"ada"}}"#;
        device.metadata.annotations = Some([(key::CORDONED.to_owned(), text.to_owned())].into());
        let rows = rows(&cluster);
        let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
        assert_eq!(cells[0][..7], ["node-a", "gpu-0", "", "healthy", "100%", "0%", "ml/train"]);
        assert_eq!(cells[1][..8], ["node-a", "gpu-1", "", "cordoned", "0%", "0%", "", "cordoned by ada: fan fails"]);
        assert_eq!(cells[2][..4], ["node-b", "gpu-0", "", "unhealthy"]);
        assert!(rows[1].is("node-a/gpu-1") && rows[1].is("GPU-a1") && !rows[1].is("gpu-1"));
    }

    #[test]
    fn a_device_that_a_pod_uses_which_has_left_says_so() {
        let mut cluster = cluster();
        leave(&mut cluster, "u1", "train");
        cluster.pods.clear();
        let row = rows(&cluster).remove(0);
        let words =
            "still used by processes of ml/train, which was deleted or written as ended at 2026-11-21T02:35:30Z";
        assert_eq!(row.cells()[..8], ["node-a", "gpu-0", "", "healthy", "100%", "0%", "ml/train", words]);
    }

    #[test]
    fn a_free_device_of_a_node_that_takes_no_pods_says_so() {
        let mut cluster = cluster();
        cluster.leases.clear();
        let row = rows(&cluster).remove(1);
        let why = "its node takes no new pods with devices: no node daemon has reported from this node";
        assert_eq!(row.cells()[3..8], ["healthy", "0%", "0%", "", why]);
    }

    #[test]
    fn devices_of_a_node_that_is_gone_say_so() {
        let mut cluster = cluster();
        cluster.nodes.clear();
        assert!(rows(&cluster)[0].reason.as_ref().unwrap().contains("node node-a does not exist"));
    }

    #[test]
    fn mig_devices_and_nics_have_names_too() {
        let device = |kind: &str, id: &str, minor: i32, labels: serde_json::Value| json!({"type": kind, "id": id, "minor": minor, "health": true, "labels": labels});
        let parent = json!({key::PARENT: "GPU-3"});
        let devices = json!([
            device("gpu", "GPU-3", 3, json!({})),
            device("gpu", "MIG-a", 3, parent.clone()),
            device("gpu", "MIG-b", 3, parent),
            device("rdma", "0000:3c:00.0", 1, json!({})),
        ]);
        let devices: Vec<DeviceInfo> = serde_json::from_value(devices).unwrap();
        assert_eq!(device_names(&devices), ["gpu-3", "mig-3-0", "mig-3-1", "nic-1"]);
    }
}
