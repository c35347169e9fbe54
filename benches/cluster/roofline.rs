//! The roofline: a bare client that posts Bindings that were decided before.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton::cluster::pod_writer::PodWriter;
use baton::cluster::selected_labels::SelectedLabels;
use baton::contract::{ContainerDevices, PodRef, key};
use baton::decide::scheduler::BindResult;
use baton::runtime::clock;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use tokio::sync::Semaphore;

use crate::pods::{self, Batch, Shape};
use crate::server::{NAMESPACE, Server};
use crate::{bound, wait};

/// Requests under way, as the scheduler has by default.
const AT_ONCE: usize = 64;

/// Posts `bindings` (annotations by pod name) for fresh pods of the same names; returns bound pods per second, seen as the
/// scheduler's are.
pub async fn post(server: &Server, bindings: &BTreeMap<String, BTreeMap<String, String>>) -> f64 {
    let client = &server.client;
    let (count, shape) = (bindings.len(), Shape::OneGpu);
    pods::create(client, Batch { name: "worker", count, shape, on: None, gangs_of: None }).await;
    let all: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let fresh = all.list_metadata(&ListParams::default()).await.unwrap();
    let uids: BTreeMap<String, String> =
        fresh.items.iter().map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect();
    let seen = tokio::spawn(bound::all(client.clone(), bindings.len(), None));
    // A client of its own: its connections are opened by the first requests, as the scheduler's are.
    let client = baton::cluster::client::connect(Some(&server.kubeconfig)).await.unwrap();
    let binder = PodWriter::new(client, SelectedLabels::default());
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let began = clock::mono();
    for (name, annotations) in bindings {
        let split = ContainerDevices::parse(&annotations[key::CONTAINER_DEVICES]).unwrap().unwrap();
        let permit = permits.clone().acquire_owned().await.unwrap();
        let (binder, pod, annotations) =
            (binder.clone(), PodRef::new(NAMESPACE, name, &uids[name]), annotations.clone());
        tokio::spawn(async move {
            let result = binder.bind(&pod, &split.node, &annotations).await;
            assert!(matches!(result, BindResult::Done), "{pod}: {result:?}");
            drop(permit);
        });
    }
    wait::until("every Binding is answered", std::time::Duration::from_secs(120), async || {
        (permits.available_permits() == AT_ONCE).then_some(())
    })
    .await;
    let posted = clock::mono() - began;
    let seen = seen.await.unwrap();
    pods::delete(&server.client).await;
    bindings.len() as f64 / posted.max(seen.span).as_secs_f64()
}
