//! What most of these tests name.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::net::SocketAddr;
pub use std::path::Path;
pub use std::sync::Arc;
pub use std::time::Duration;

pub use baton::agent::kubelet::register::dial;
pub use baton::agent::options::MigStrategy;
pub use baton::contract::deviceplugin::device_plugin_client::DevicePluginClient;
pub use baton::contract::key::{NVIDIA_GPU, RDMA};
pub use baton::contract::{DeviceId, DeviceType, LockRead, key};
pub use baton::decide::handoff::AllocatePolicy;
pub use baton::runtime::clock;
pub use baton::sim::hardware::{NodeSpec, NvmlReturn, Shape};
pub use baton::sim::kubelet::{Kubelet, PodResourcesMode};
pub use kube::Api;
pub use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
pub use serde_json::{Value, json};

pub use crate::harness::tells::tells;
pub use crate::harness::wait;
