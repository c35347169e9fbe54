//! The PodResources service on `pod-resources/kubelet.sock`, with the kubelet's rate limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::controls::PodResourcesMode;
use super::lifecycle::{Role, containers};
use super::machine::{KubeletState, Machine};
use super::{locked, wire};
use baton_contract::podresources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use baton_contract::podresources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, NumaNode,
    NumaTopology, PodResources,
};
use baton_runtime::clock;

/// Calls allowed per second, and at once.
const RATE: f64 = 100.0;
const BURST: f64 = 10.0;

/// Serves while the controls let it.
pub(super) fn serve(machine: &Arc<Machine>) {
    let socket = machine.options.pod_resources_socket();
    let service = PodResourcesService { machine: Arc::downgrade(machine), bucket: Arc::default() };
    let mut mode = machine.controls.pod_resources();
    let stopping = machine.stopping();
    machine.spawn(async move {
        loop {
            let absent = |mode: &PodResourcesMode| *mode == PodResourcesMode::Absent;
            if mode.wait_for(|mode| !absent(mode)).await.is_err() {
                return;
            }
            let made = socket.parent().map_or(Ok(()), std::fs::create_dir_all);
            let listener = match made
                .map_err(|error| error.to_string())
                .and_then(|()| wire::listen(&socket).map_err(|error| error.to_string()))
            {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(error, "cannot serve PodResources");
                    return;
                }
            };
            let server =
                tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(service.clone()));
            let incoming = UnixListenerStream::new(listener);
            tokio::select! {
                _ = server.serve_with_incoming_shutdown(incoming, stopping.clone().cancelled_owned()) => {}
                _ = mode.wait_for(absent) => {}
            }
            let _ = std::fs::remove_file(&socket);
        }
    });
}

#[derive(Clone)]
struct PodResourcesService {
    machine: Weak<Machine>,
    bucket: Arc<Mutex<Bucket>>,
}

/// A token bucket: 10 calls at once, 100 a second.
#[derive(Debug)]
struct Bucket {
    tokens: f64,
    at: Duration,
}

impl Default for Bucket {
    fn default() -> Self {
        Self { tokens: BURST, at: Duration::ZERO }
    }
}

impl Bucket {
    fn take(&mut self, now: Duration) -> bool {
        let gained = now.saturating_sub(self.at).as_secs_f64() * RATE;
        self.tokens = (self.tokens + gained).min(BURST);
        self.at = now;
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

impl PodResourcesService {
    async fn admit(&self) -> Result<Arc<Machine>, Status> {
        let machine = self.machine.upgrade().ok_or_else(|| Status::unavailable("the kubelet is stopping"))?;
        let mode = *machine.controls.pod_resources().borrow();
        let rejected = || Status::resource_exhausted("rejected by rate limit");
        match mode {
            PodResourcesMode::Throttled => return Err(rejected()),
            PodResourcesMode::Slow(by) => tokio::time::sleep(by).await,
            PodResourcesMode::Normal | PodResourcesMode::Absent | PodResourcesMode::Written => {}
        }
        if locked(&self.bucket).take(clock::mono()) { Ok(machine) } else { Err(rejected()) }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesService {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        let machine = self.admit().await?;
        let pod_resources = {
            let mut state = locked(&machine.state);
            let mut pods: Vec<Arc<Pod>> = state.active().map(|pod| pod.pod()).collect();
            state.free_inactive();
            machine.random(|rng| rng.shuffle(&mut pods));
            pods.iter().map(|pod| resources(&state, pod)).collect()
        };
        if *machine.controls.pod_resources().borrow() == PodResourcesMode::Written {
            machine.write_checkpoint().map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let machine = self.admit().await?;
        let state = locked(&machine.state);
        let devices = state.devices.health.iter().flat_map(|(resource, health)| {
            let numa = |id: &String| (id.clone(), state.devices.numa_nodes(resource, id));
            entries(resource, health.healthy.iter().map(numa).collect())
        });
        let devices = devices.collect();
        Ok(Response::new(AllocatableResourcesResponse { devices, cpu_ids: Vec::new(), memory: Vec::new() }))
    }

    async fn get(&self, request: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        let machine = self.admit().await?;
        let GetPodResourcesRequest { pod_name: name, pod_namespace: namespace } = request.into_inner();
        let pod = machine.pod_named(&namespace, &name);
        let pod = pod.ok_or_else(|| Status::unknown(format!("pod {name} in namespace {namespace} not found")))?;
        let resources = resources(&locked(&machine.state), &pod.pod());
        Ok(Response::new(GetPodResourcesResponse { pod_resources: Some(resources) }))
    }
}

/// Sidecars and app containers with what they hold; plain init containers are not listed.
fn resources(state: &KubeletState, pod: &Pod) -> PodResources {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let listed = containers(pod).into_iter().filter(|(role, _)| *role != Role::Init);
    let containers = listed.map(|(_, container)| {
        let held = state.devices.grants.container(uid, &container.name);
        let devices = held.into_iter().flatten().flat_map(|(resource, grant)| entries(resource, grant.numa_of_ids()));
        ContainerResources { name: container.name.clone(), devices: devices.collect(), ..ContainerResources::default() }
    });
    PodResources {
        name: pod.metadata.name.clone().unwrap_or_default(),
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        containers: containers.collect(),
    }
}

/// One entry for each id and NUMA node.
fn entries(resource: &str, numa_of_ids: BTreeMap<String, Vec<i64>>) -> Vec<ContainerDevices> {
    let entry = |id: &String, topology| ContainerDevices {
        resource_name: resource.to_owned(),
        device_ids: vec![id.clone()],
        topology,
    };
    let each = numa_of_ids.iter().flat_map(|(id, nodes)| {
        if nodes.is_empty() {
            return vec![entry(id, None)];
        }
        let on = |node: &i64| entry(id, Some(NumaTopology { nodes: vec![NumaNode { id: *node }] }));
        nodes.iter().map(on).collect()
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_calls_pass_at_once_and_a_hundred_a_second() {
        let mut bucket = Bucket::default();
        let now = Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| bucket.take(now)).count(), 10);
        assert!(!bucket.take(now + Duration::from_millis(9)));
        assert!(bucket.take(now + Duration::from_millis(19)));
    }

    #[test]
    fn a_device_of_two_numa_nodes_is_listed_twice() {
        let entries = entries("a.b/c", BTreeMap::from([("x".to_owned(), vec![0, 1]), ("y".to_owned(), vec![])]));
        let nodes: Vec<_> = entries
            .iter()
            .map(|entry| (entry.device_ids[0].as_str(), entry.topology.as_ref().map(|topology| topology.nodes[0].id)))
            .collect();
        assert_eq!(nodes, [("x", Some(0)), ("x", Some(1)), ("y", None)]);
    }
}
