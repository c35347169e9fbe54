//! What most of these tests name.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::net::SocketAddr;
pub use std::path::{Path, PathBuf};
pub use std::process::Command;
pub use std::sync::Arc;
pub use std::time::Duration;

pub use baton::cluster::node_lock::NodeLocks;
pub use baton::contract::gang::PodGroupApi;
pub use baton::contract::inventory::Device;
pub use baton::contract::tyjob::{ScheduleState, Stage, condition, keys};
pub use baton::contract::{DeviceAllocation, DeviceType, Identity, key};
pub use baton::ops::manifests::Values;
pub use baton::runtime::clock;
pub use baton::scheduler::SchedulerOptions;
pub use baton::sim::apiserver::{Blackout, Effect, FaultRule};
pub use baton::sim::kubelet::PodResourcesMode;
pub use k8s_openapi::api::coordination::v1::Lease;
pub use k8s_openapi::api::core::v1::{Node, Pod};
pub use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
pub use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
pub use kube::core::{ApiResource, GroupVersionKind};
pub use kube::{Client, ResourceExt};
pub use serde_json::{Value, json};
pub use tokio::net::TcpStream;
pub use tokio_util::sync::CancellationToken;

pub use crate::harness::daemon::Daemon;
pub use crate::harness::pods::{PodSpec, pod};
pub use crate::harness::tells::tells;
pub use crate::harness::wait::until;
pub use crate::harness::{LOCK_GONE, NAMESPACE, QUICK_LEASE, SOON, TestCluster, TestServer, timings};
pub use crate::scheduler::verbs::SchedulerCluster;
pub use crate::skip::skipped;
