//! Whether a driver of dynamic resource allocation hands out this node's GPUs too.

use std::collections::BTreeSet;

use kube::Client;
use kube::api::{Api, ListParams};

use super::objects::{Unread, within};
use super::report::Finding;
use baton_cluster::resource_slice::LightSlice;
use baton_decide::world::SliceFacts;

const CHECK: &str = "other-gpu-driver";

pub async fn look(client: &Client, node: &str) -> Finding {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let slices = Api::<LightSlice>::all(client.clone());
    let slices = match within(slices.list(&of_node)).await {
        Ok(slices) => slices.items,
        Err(Unread { code: Some(404), .. }) => {
            return Finding::ok(CHECK, "this API server serves no ResourceSlices (Kubernetes 1.34 and later do)");
        }
        Err(error) => {
            let found = format!("the ResourceSlices cannot be read: {}", error.text);
            return Finding::warn(CHECK, found, "see the lines permission");
        }
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
