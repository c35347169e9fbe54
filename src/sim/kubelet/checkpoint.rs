//! `kubelet_internal_checkpoint`: who holds which devices, with each plugin's answer, in the real file's shape.
//!
//! The real file's checksum is a hash over a Go memory dump; this one is FNV-1a over the data's JSON. Only the kubelet that
//! wrote a checkpoint reads it, so the difference shows nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use prost::Message as _;
use serde::{Deserialize, Serialize};

use super::devices::Devices;
use super::grants::{Grant, Grants};
use baton_contract::deviceplugin::ContainerAllocateResponse;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "PascalCase")]
struct Data {
    pod_device_entries: Vec<GrantEntry>,
    registered_devices: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Serialize, Deserialize)]
struct GrantEntry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<String, Vec<String>>,
    #[serde(rename = "AllocResp")]
    answer: String,
}

/// Why a checkpoint was not taken over. The kubelet then starts without it.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read the checkpoint")]
    Read(#[source] std::io::Error),
    /// The file is not a checkpoint.
    #[error("the checkpoint is malformed: {0}")]
    Malformed(String),
}

/// The file's content.
pub fn encode(devices: &Devices) -> Vec<u8> {
    let entries = devices.grants.iter().map(|(uid, container, resource, grant)| GrantEntry {
        pod_uid: uid.to_owned(),
        container: container.to_owned(),
        resource: resource.to_owned(),
        device_ids: grant.by_numa.iter().map(|(node, ids)| (node.to_string(), ids.clone())).collect(),
        answer: BASE64.encode(grant.answer.encode_to_vec()),
    });
    let data = Data {
        pod_device_entries: entries.collect(),
        registered_devices: devices
            .health
            .iter()
            .map(|(name, health)| (name.clone(), health.healthy.clone()))
            .collect(),
    };
    let checksum = checksum(&data);
    serde_json::to_vec(&File { data, checksum }).expect("strings and numbers always serialize")
}

/// Writes the checkpoint: temporary file, then rename.
pub fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_file_name(".kubelet_internal_checkpoint.tmp");
    std::fs::write(&temporary, content)?;
    std::fs::rename(&temporary, path)
}

/// Reads a checkpoint; `None` when there is none.
pub fn read(path: &Path) -> Result<Option<(Grants, BTreeSet<String>)>, CheckpointError> {
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(CheckpointError::Read(error)),
    };
    decode(&content).map(Some)
}

fn decode(content: &[u8]) -> Result<(Grants, BTreeSet<String>), CheckpointError> {
    let malformed = |error: &dyn std::fmt::Display| CheckpointError::Malformed(error.to_string());
    let file: File = serde_json::from_slice(content).map_err(|error| malformed(&error))?;
    if checksum(&file.data) != file.checksum {
        return Err(malformed(&"the checksum does not match"));
    }
    let mut grants = Grants::default();
    for entry in file.data.pod_device_entries {
        let answer = BASE64.decode(&entry.answer).map_err(|error| malformed(&error))?;
        let answer = ContainerAllocateResponse::decode(answer.as_slice()).map_err(|error| malformed(&error))?;
        let mut by_numa = BTreeMap::new();
        for (node, ids) in entry.device_ids {
            by_numa.insert(node.parse().map_err(|error| malformed(&error))?, ids);
        }
        grants.insert(&entry.pod_uid, &entry.container, &entry.resource, Grant { by_numa, answer });
    }
    Ok((grants, file.data.registered_devices.into_keys().collect()))
}

fn checksum(data: &Data) -> u64 {
    let json = serde_json::to_vec(data).expect("strings and numbers always serialize");
    json.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::deviceplugin::{CdiDevice, Device, DevicePluginOptions};

    fn devices() -> Devices {
        let mut devices = Devices::default();
        devices.connected("a.b/c", DevicePluginOptions::default());
        devices.listed("a.b/c", vec![Device { id: "x".into(), health: "Healthy".into(), topology: None }]);
        let answer = ContainerAllocateResponse {
            cdi_devices: vec![CdiDevice { name: "a.b/c=x".into() }],
            ..ContainerAllocateResponse::default()
        };
        devices.grant("uid", "main", "a.b/c", &["x".into()], answer);
        devices
    }

    #[test]
    fn a_checkpoint_gives_back_grants_answers_and_resource_names() {
        let devices = devices();
        let (grants, registered) = decode(&encode(&devices)).unwrap();
        assert_eq!(grants, devices.grants);
        assert_eq!(registered, BTreeSet::from(["a.b/c".to_owned()]));
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let text = String::from_utf8(encode(&devices())).unwrap().replace("\"uid\"", "\"other\"");
        assert!(matches!(decode(text.as_bytes()), Err(CheckpointError::Malformed(_))));
    }

    #[test]
    fn a_missing_checkpoint_is_an_empty_start() {
        assert!(read(Path::new("/nonexistent/checkpoint")).unwrap().is_none());
    }
}
