//! What most of these tests name.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::io::BufReader;
pub use std::path::{Path, PathBuf};
pub use std::process::{Child, Command, Output, Stdio};
pub use std::sync::Arc;
pub use std::time::Duration;

pub use baton::contract::inventory::Device;
pub use baton::contract::key;
pub use baton::ops::manifests::Values;
pub use baton::runtime::clock;
pub use k8s_openapi::api::core::v1::{Node, Pod};
pub use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
pub use serde_json::{Value, json};

pub use crate::harness::pods::pod;
pub use crate::harness::tells::tells;
pub use crate::harness::wait::until;
pub use crate::harness::{TestCluster, TestServer};
