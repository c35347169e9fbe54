//! The partition table that a Device object may carry: sets of GPUs that the fabric can isolate, by size.

use std::collections::BTreeMap;

use serde::Deserialize;

use baton_contract::inventory::Device;
use baton_contract::{Quantity, key};

/// Partitions by number of GPUs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
pub struct PartitionTable(BTreeMap<u32, Vec<Partition>>);

/// One partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// Minors of its GPUs.
    pub minors: Vec<i32>,
    /// What its ring delivers.
    #[serde(default)]
    pub ring_bus_bandwidth: Option<Quantity>,
    /// How well the node is left when it is taken; higher is better.
    #[serde(default)]
    pub allocation_score: i64,
}

impl PartitionTable {
    /// The table of a Device object; `None` where it has none.
    pub(super) fn of(device: &Device) -> Result<Option<Self>, String> {
        const NAME: &str = key::GPU_PARTITIONS;
        let Some(text) = device.metadata.annotations.as_ref().and_then(|all| all.get(NAME)) else {
            return Ok(None);
        };
        if text.len() > key::MAX_ANNOTATION {
            return Err(format!("{NAME} has {} bytes, the limit is {}", text.len(), key::MAX_ANNOTATION));
        }
        serde_json::from_str(text).map_err(|error| format!("{NAME} cannot be read, so it is not used: {error}"))
    }

    /// The partitions of that many GPUs.
    pub(super) fn of_size(&self, count: u32) -> &[Partition] {
        self.0.get(&count).map_or(&[], Vec::as_slice)
    }
}
