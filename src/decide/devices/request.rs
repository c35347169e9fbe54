//! `PodDeviceRequest`: everything a pod asks of a node's devices, over all its containers, and the shape that equal requests
//! share.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::wishes::Wishes;
use crate::pod::{ContainerKind, PodContainer};
use baton_contract::{AllocationError, ContainerRequest, GpuRequest, RdmaRequest, RequestError};

/// Why a pod's request can be served by no node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestProblem {
    /// A container breaks a rule of the contract.
    #[error("container {container}: {error}")]
    Container {
        /// Container name.
        container: Box<str>,
        /// The rule.
        error: RequestError,
    },
    /// A hint annotation cannot be read.
    #[error(transparent)]
    Hint(#[from] AllocationError),
}

/// What one container asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerDeviceRequest {
    /// When it runs.
    pub kind: ContainerKind,
    /// GPUs.
    pub gpu: Option<GpuRequest>,
    /// NICs.
    pub rdma: Option<RdmaRequest>,
}

impl Hash for ContainerDeviceRequest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.kind as u8).hash(state);
        self.gpu.hash(state);
        self.rdma.hash(state);
    }
}

/// What a request asks for, without the names: equal shapes get equal answers from equal pools, so answers can be cached by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Containers that ask for devices: init containers and sidecars in spec order, then app containers in spec order.
    pub wants: Box<[ContainerDeviceRequest]>,
    /// Wishes.
    pub wishes: Wishes,
}

/// The devices that one pod asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDeviceRequest {
    names: Arc<[Box<str>]>,
    shape: Arc<Shape>,
}

impl PodDeviceRequest {
    /// From the pod's containers in the kubelet's order (init containers and sidecars first). Containers without devices are
    /// left out.
    pub fn new<'a>(
        containers: impl IntoIterator<Item = (&'a str, ContainerKind, &'a ContainerRequest)>,
        wishes: Wishes,
    ) -> Self {
        let (mut names, mut wants) = (Vec::<Box<str>>::new(), Vec::new());
        for (name, kind, request) in containers {
            if request.gpu.is_none() && request.rdma.is_none() {
                continue;
            }
            names.push(name.into());
            wants.push(ContainerDeviceRequest { kind, gpu: request.gpu.clone(), rdma: request.rdma });
        }
        Self { names: names.into(), shape: Arc::new(Shape { wants: wants.into(), wishes }) }
    }

    /// From containers as the hand-off sees them; the first container that breaks a rule is named. A container whose devices
    /// all come from a DRA claim is left out.
    pub fn of_containers(containers: &[PodContainer], wishes: Wishes) -> Result<Self, RequestProblem> {
        let mut judged = Vec::with_capacity(containers.len());
        for container in containers {
            let mut names = container.request.iter().flat_map(|request| request.names.keys()).peekable();
            // What a DRA claim serves instead is not ours to choose.
            if names.peek().is_some() && names.all(|name| container.dra_backed.contains(name)) {
                continue;
            }
            let request = container.request.as_ref().map_err(|error| RequestProblem::Container {
                container: container.name.clone(),
                error: error.clone(),
            })?;
            judged.push((&*container.name, container.kind, request));
        }
        Ok(Self::new(judged, wishes))
    }

    /// The pod asks for no device.
    pub fn is_empty(&self) -> bool {
        self.shape.wants.is_empty()
    }

    /// Some container asks for parts of GPUs.
    pub fn has_gpu_shares(&self) -> bool {
        self.shape.wants.iter().any(|want| matches!(want.gpu, Some(GpuRequest::Share { .. })))
    }

    /// What equal requests share.
    pub fn shape(&self) -> &Arc<Shape> {
        &self.shape
    }

    /// Names of the containers that ask for devices, in the order of the shape's wants.
    pub fn names(&self) -> &[Box<str>] {
        &self.names
    }
}
