//! Virtual functions as a resource of their own: what the kubelet lists is what the container has, and none is given in two ways.

use baton::contract::podresources::GetPodResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;

use super::reported::reporting;
use super::test_node::{PATIENCE, TestNode, until};
use crate::prelude::*;

const NAME: &str = "example.com/rdma-vf";

#[tokio::test]
async fn a_function_has_its_address_as_id_for_the_cni_and_is_given_in_no_other_way() {
    let mut node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("functions") });
    node.options.rdma_vf_resource = NAME.into();
    let (cluster, daemon) = reporting(&mut node).await;
    node.until(NAME, 8).await;
    let offered = node.offered().await;
    assert!(!offered.contains_key(RDMA), "every NIC of the node has functions: {:?}", offered.keys());
    let all = node.machine.nic_addresses();
    let functions: BTreeSet<String> = all.chunks(3).flat_map(|nic| &nic[1..]).map(ToString::to_string).collect();
    assert_eq!(offered[NAME], functions);
    cluster.until_reported().await;
    for nic in cluster.nics() {
        assert_eq!((&nic["resources"][RDMA], &nic["vfGroups"]), (&json!("0"), &Value::Null), "{nic}");
    }
    cluster.until_allocatable(NAME, "8").await;
    cluster.create("p", NAME, 2, json!([])).await;
    until("it runs", || cluster.runs("p")).await;
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
    let runtime_knows = || {
        let spec = node.cdi("rdma");
        ids.iter().all(|id| spec.contains(id))
    };
    assert!(runtime_knows(), "the runtime knows the names");
    // The CNI has moved them, all of their NIC; another change shows that a scan has been since.
    let taken: Vec<usize> = (0..all.len()).filter(|at| ids.contains(&all[*at].to_string())).collect();
    taken.iter().for_each(|at| node.machine.lend_nic(*at).unwrap());
    node.machine.remove(0).unwrap();
    node.until("nvidia.com/gpu", 7).await;
    assert!(runtime_knows());
    daemon.stop().await;
    node.until(NAME, 0).await;
    // A daemon that has never seen them: a container that starts again asks its runtime for the same names, and their NIC is not free.
    let daemon = node.shipped();
    node.until(NAME, 8).await;
    assert!(runtime_knows());
    let offered = node.offered().await;
    assert_eq!((offered.get(RDMA), &offered[NAME]), (None, &functions), "no NIC, and every function");
    daemon.stop().await;
}

#[tokio::test]
async fn a_function_that_a_pod_has_as_a_part_of_its_nic_is_the_pods_until_it_ends() {
    let mut node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("held") });
    node.options.rdma_vf_resource = NAME.into();
    let all = node.machine.nic_addresses();
    let held = DeviceId::parse(&all[1].to_string()).unwrap();
    node.handoff.functions.lock().unwrap().insert(held.clone());
    let (_kubelet, daemon) = node.start(NAME, 7).await;
    assert!(!node.offered().await[NAME].contains(held.as_str()));
    node.handoff.functions.lock().unwrap().clear();
    node.until(NAME, 8).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_machine_that_fails_pods_with_functions_is_suspect_too() {
    let mut node = TestNode::new(NodeSpec { vfs_per_nic: 2, ..NodeSpec::new("failing") });
    node.options.rdma_vf_resource = NAME.into();
    node.options.timings.rescan = std::time::Duration::from_millis(200);
    let (cluster, daemon) = reporting(&mut node).await;
    node.until(NAME, 8).await;
    cluster.until_reported().await;
    std::fs::remove_dir_all(node.path("cdi")).unwrap();
    std::fs::write(node.path("cdi"), "a file in the place of the directory").unwrap();
    let suspect = || cluster.condition("NodeSuspect").is_some_and(|of| of["status"] == "True");
    // Pods that came before the daemon had tried to write were served.
    for at in 0..8 {
        if suspect() {
            break;
        }
        let name = format!("p{at}");
        cluster.create(&name, NAME, 1, json!([])).await;
        let status = |name: &str| {
            let all = cluster.server().objects("", "pods");
            all.iter().find(|pod| pod["metadata"]["name"] == name).map(|pod| pod["status"]["phase"].clone())
        };
        until("the kubelet has decided", || {
            status(&name).is_some_and(|phase| phase == "Failed") || cluster.runs(&name)
        })
        .await;
    }
    until("the node is suspect", suspect).await;
    daemon.stop().await;
}
