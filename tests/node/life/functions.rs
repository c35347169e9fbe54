//! Virtual functions as a resource of their own: what the kubelet lists is what the container has, and none is given in two ways.

use std::collections::BTreeSet;

use baton::agent::kubelet::register::dial;
use baton::contract::key::RDMA;
use baton::contract::podresources::GetPodResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::sim::hardware::NodeSpec;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::reported::cluster;
use super::test_node::{PATIENCE, TestNode, until};

const NAME: &str = "example.com/rdma-vf";

#[tokio::test]
async fn a_function_has_its_address_as_id_for_the_cni_and_is_given_in_no_other_way() {
    let mut node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("functions") });
    node.options.rdma_vf_resource = NAME.into();
    let cluster = cluster(&mut node).await;
    let daemon = node.shipped();
    node.until(NAME, 8).await;
    let offered = node.offered().await;
    assert!(!offered.contains_key(RDMA), "every NIC of the node has functions: {:?}", offered.keys());
    let all = node.machine.nic_addresses();
    let functions: BTreeSet<String> = all.chunks(3).flat_map(|nic| &nic[1..]).map(ToString::to_string).collect();
    assert_eq!(offered[NAME], functions);
    until("the Device object stands", || !cluster.server().objects("scheduling.koordinator.sh", "devices").is_empty())
        .await;
    let device = cluster.server().objects("scheduling.koordinator.sh", "devices").remove(0);
    for nic in device["spec"]["devices"].as_array().unwrap().iter().filter(|device| device["type"] == "rdma") {
        assert_eq!((&nic["resources"][RDMA], &nic["vfGroups"]), (&json!("0"), &Value::Null), "{nic}");
    }
    until("the node offers them", || cluster.server().objects("", "nodes")[0]["status"]["allocatable"][NAME] == "8")
        .await;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main", "image": "i", "command": ["sleep", "3600"],
            "resources": {"limits": {NAME: "2"}}}]}
    }))
    .unwrap();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    pods.create(&PostParams::default(), &pod).await.unwrap();
    until("it runs", || cluster.kubelet.view().get("default/p").is_some_and(|pod| pod.containers["main"].running))
        .await;
    // As multus asks.
    let channel = dial(&node.options.paths.pod_resources_socket, PATIENCE).await.unwrap();
    let ask = GetPodResourcesRequest { pod_name: "p".into(), pod_namespace: "default".into() };
    let answer = PodResourcesListerClient::new(channel).get(ask).await.unwrap().into_inner().pod_resources.unwrap();
    let ids = answer.containers[0].devices.iter().filter(|of| of.resource_name == NAME).flat_map(|of| &of.device_ids);
    let ids: BTreeSet<String> = ids.cloned().collect();
    assert_eq!(ids, functions.iter().take(2).cloned().collect(), "those of one NIC");
    let given = cluster.kubelet.view()["default/p"].containers["main"].injected.clone().unwrap();
    let variable: BTreeSet<String> =
        given.envs["PCIDEVICE_EXAMPLE_COM_RDMA_VF"].split(',').map(str::to_owned).collect();
    assert_eq!((variable, given.envs.len()), (ids.clone(), 1));
    let names: BTreeSet<String> = ids.iter().map(|id| format!("koordinator.sh/rdma={id}")).collect();
    assert_eq!(given.cdi_devices.iter().cloned().collect::<BTreeSet<_>>(), names);
    let spec = std::fs::read_to_string(node.path("cdi/koordinator.sh-rdma.json")).unwrap();
    assert!(ids.iter().all(|id| spec.contains(id)), "the runtime knows the names");
    // The CNI has moved one of them; another change shows that a scan has been since.
    let taken = all.iter().position(|at| ids.contains(&at.to_string())).unwrap();
    node.machine.lend_nic(taken).unwrap();
    node.machine.remove(0).unwrap();
    node.until("nvidia.com/gpu", 7).await;
    assert!(std::fs::read_to_string(node.path("cdi/koordinator.sh-rdma.json")).unwrap().contains(ids.first().unwrap()));
    daemon.stop().await;
}
