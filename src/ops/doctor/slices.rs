//! Whether a driver of dynamic resource allocation hands out this node's GPUs too.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ListParams};

use super::report::Finding;
use baton_cluster::client::status_code;
use baton_cluster::resource_slice::LightSlice;
use baton_decide::world::SliceFacts;
use baton_runtime::words;

const CHECK: &str = "other-gpu-driver";
const PATIENCE: Duration = Duration::from_secs(5);

/// One line.
pub async fn look(client: &Client, node: &str) -> Finding {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let unread = |why: String| {
        Finding::warn(CHECK, format!("the ResourceSlices cannot be read: {why}"), "see the lines permission")
    };
    let slices = Api::<LightSlice>::all(client.clone());
    let slices = match tokio::time::timeout(PATIENCE, slices.list(&of_node)).await {
        Ok(Ok(slices)) => slices.items,
        Ok(Err(error)) if status_code(&error) == Some(404) => {
            return Finding::ok(CHECK, "this API server serves no ResourceSlices (Kubernetes 1.34 and later do)");
        }
        Ok(Err(error)) => return unread(words(&error)),
        Err(_) => return unread(format!("no answer within {} s", PATIENCE.as_secs())),
    };
    let here = slices.iter().filter_map(LightSlice::facts).filter(|slice| *slice.node == *node);
    let drivers: BTreeSet<_> =
        here.map(|slice| slice.driver).filter(|driver| SliceFacts::is_gpu_driver(driver)).collect();
    match drivers.first() {
        None => Finding::ok(CHECK, "no other driver offers GPUs of this node"),
        Some(driver) => Finding::fail(
            CHECK,
            format!(
                "AnotherGpuDriver: {driver} offers this node's GPUs by ResourceSlices: the scheduler sends no pod with devices here"
            ),
            "one of the two must leave the node: take that driver's DaemonSet off it (its ResourceSlices go with it), or \
             `kubectl label node NODE baton.io/device-plugin=off`",
        ),
    }
}
