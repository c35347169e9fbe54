//! The daemon beside a kubelet that it does not know: the one whose device-plugins directory is in `BATON_KUBELET_DIR`, else a
//! simulated one. Needs no rights on the kubelet's API server.

use baton::contract::podresources::AllocatableResourcesRequest;
use baton::contract::podresources::pod_resources_lister_client::PodResourcesListerClient;
use baton::sim::hardware::{NodeSpec, VirtualNode};
use baton::sim::kubelet::{Kubelet, KubeletOptions};
use hyper_util::rt::TokioIo;
use tonic::transport::Endpoint;

use crate::harness::cluster::agent_command;
use crate::harness::control_plane::{ControlPlane, NewerFlags};
use crate::prelude::*;

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_takes_every_registration_and_lists_every_device() {
    let dir = tempfile::Builder::new().prefix("bt").tempdir_in("/tmp").unwrap();
    let control_plane = ControlPlane::start(dir.path(), &NewerFlags::NONE).await;
    let kubeconfig = control_plane.kubeconfig(dir.path());
    let client = baton::cluster::client::connect(Some(&kubeconfig)).await.unwrap();
    let hardware = VirtualNode::create(dir.path().join("hw"), NodeSpec::new("node")).unwrap();
    let given = std::env::var_os("BATON_KUBELET_DIR").map(PathBuf::from);
    let simulated = match given {
        Some(_) => None,
        None => {
            let mut options = KubeletOptions::new("node", dir.path().join("k"), client);
            options.set_machine(&hardware.sysfs_root(), &hardware.proc_root());
            Some(Kubelet::start(options).await.unwrap())
        }
    };
    let kubelet_dir = given.unwrap_or_else(|| dir.path().join("k/device-plugins"));
    let pod_resources = kubelet_dir.parent().unwrap().join("pod-resources/kubelet.sock");
    eprintln!("kubelet: {} ({})", kubelet_dir.display(), if simulated.is_some() { "simulated" } else { "given" });
    let of_kubelet = [kubelet_dir, pod_resources.clone()];
    let command = agent_command(["node", "default"], dir.path(), &hardware, of_kubelet, &kubeconfig, &[]);
    let agent = Daemon::start(command, dir.path().join("agent.log"));
    until("the kubelet has every registration", SOON, async || {
        agent.get("/readyz").await?.starts_with("HTTP/1.1 200").then_some(())
    })
    .await;
    let ids = until("the kubelet lists the GPUs", SOON, async || {
        let ids = allocatable(&pod_resources).await?;
        (!ids.is_empty()).then_some(ids)
    })
    .await;
    assert_eq!(ids, hardware.gpu_uuids().into_iter().collect());
}

/// Ids of whole GPUs that the kubelet can hand out.
async fn allocatable(socket: &std::path::Path) -> Option<BTreeSet<String>> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.ok()?;
    let answer = PodResourcesListerClient::new(channel).get_allocatable_resources(AllocatableResourcesRequest {}).await;
    let devices = answer.ok()?.into_inner().devices.into_iter();
    Some(devices.filter(|entry| entry.resource_name == key::NVIDIA_GPU).flat_map(|entry| entry.device_ids).collect())
}
