//! The kubelet's checkpoint of devices. The kubelet stores each answer to Allocate there, and gives it to the container each time that
//! starts; it offers this by no call.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message as _;
use serde::Deserialize;

use crate::answer::named;
use baton_contract::PodUid;
use baton_contract::deviceplugin::ContainerAllocateResponse;
use baton_decide::handoff::{EntryKey, StoredAnswer};

/// In the kubelet's device-plugins directory (`pkg/kubelet/cm/devicemanager/checkpoint`). The checksum covers a Go memory dump and is
/// not compared: the kubelet replaces the file as a whole.
const FILE: &str = "kubelet_internal_checkpoint";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Checkpoint {
    data: Data,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Option<Vec<CheckpointEntry>>,
}

#[derive(Deserialize)]
struct CheckpointEntry {
    #[serde(rename = "PodUID")]
    pod: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    /// By NUMA node.
    #[serde(rename = "DeviceIDs", default)]
    ids: Option<BTreeMap<String, Vec<Box<str>>>>,
    #[serde(rename = "AllocResp")]
    answer: Option<String>,
}

/// The stored answers. None where the file is absent or not of this shape.
pub fn stored_answers(directory: &Path) -> BTreeMap<EntryKey, StoredAnswer> {
    let path = directory.join(FILE);
    let read = match std::fs::read(&path) {
        // A kubelet that has handed out nothing yet has none.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            tracing::info!(path = %path.display(), "the kubelet has no checkpoint of devices: its ids must do");
            return BTreeMap::new();
        }
        read => read.map_err(|error| error.to_string()),
    };
    match read.and_then(|content| decode(&content).map_err(|error| error.to_string())) {
        Ok(answers) => answers,
        Err(error) => {
            tracing::warn!(path = %path.display(), error, "the kubelet's checkpoint cannot be read: its ids must do");
            BTreeMap::new()
        }
    }
}

fn decode(content: &[u8]) -> serde_json::Result<BTreeMap<EntryKey, StoredAnswer>> {
    let checkpoint: Checkpoint = serde_json::from_slice(content)?;
    let answer = |entry: &CheckpointEntry| {
        let encoded = BASE64.decode(entry.answer.as_deref()?).ok()?;
        let devices = named(&ContainerAllocateResponse::decode(&*encoded).ok()?);
        let ids = entry.ids.iter().flat_map(BTreeMap::values).flatten().cloned().collect();
        Some(StoredAnswer { devices, ids, encoded })
    };
    let entries = checkpoint.data.pod_device_entries.into_iter().flatten();
    let answers = entries.filter_map(|entry| {
        let key = EntryKey::new(&PodUid::new(&entry.pod), &entry.container, &entry.resource);
        Some((key, answer(&entry)?))
    });
    Ok(answers.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::DeviceId;
    use baton_contract::deviceplugin::CdiDevice;

    #[test]
    fn the_devices_of_stored_answers_are_read_from_the_kubelets_form() {
        let gpu = ContainerAllocateResponse {
            envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1,GPU-2".to_owned())].into(),
            ..ContainerAllocateResponse::default()
        };
        let nic = ContainerAllocateResponse {
            cdi_devices: vec![CdiDevice { name: "koordinator.sh/rdma=0000:1a:00.1".into() }],
            ..ContainerAllocateResponse::default()
        };
        let entry = |container: &str, answer: Option<&ContainerAllocateResponse>| {
            serde_json::json!({"PodUID": "u", "ContainerName": container, "ResourceName": "nvidia.com/gpu",
                "DeviceIDs": {"-1": ["GPU-9"]}, "AllocResp": answer.map(|of| BASE64.encode(of.encode_to_vec()))})
        };
        let index = ContainerAllocateResponse {
            envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), "GPU-1,0".to_owned())].into(),
            ..ContainerAllocateResponse::default()
        };
        let entries = [entry("a", Some(&gpu)), entry("b", Some(&nic)), entry("c", None), entry("d", Some(&index))];
        let file = serde_json::json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1});
        let answers = decode(file.to_string().as_bytes()).unwrap();
        let ids = |container: &str| -> Option<Vec<&str>> {
            let named = answers.get(&EntryKey::new(&PodUid::new("u"), container, "nvidia.com/gpu"))?;
            Some(named.devices.iter().map(DeviceId::as_str).collect())
        };
        assert_eq!(ids("a").unwrap(), ["GPU-1", "GPU-2"]);
        assert_eq!((ids("b").unwrap(), ids("c")), (vec!["0000:1a:00.1"], None));
        assert!(ids("d").unwrap().is_empty(), "not all of its devices are named by their ids");
        assert!(answers.values().all(|answer| answer.ids == ["GPU-9".into()].into()));
    }

    #[test]
    fn a_checkpoint_without_pods_or_of_another_shape_has_no_answers() {
        let empty = br#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}"#;
        assert!(decode(empty).unwrap().is_empty());
        assert!(decode(b"{}").is_err());
        assert!(stored_answers(Path::new("/nonexistent")).is_empty());
    }
}
