//! What most of these tests name.

pub use std::collections::{BTreeMap, BTreeSet};
pub use std::path::Path;
pub use std::sync::Arc;
pub use std::time::Duration;

pub use baton::contract::deviceplugin::RegisterRequest;
pub use baton::contract::deviceplugin::registration_client::RegistrationClient;
pub use baton::contract::podresources::ListPodResourcesRequest;
pub use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
pub use baton::runtime::clock;
pub use baton::sim::kubelet::{Kubelet, KubeletOptions, Periods};
pub use k8s_openapi::api::core::v1::Pod;
pub use serde_json::{Value, json};
pub use tokio::sync::watch;
