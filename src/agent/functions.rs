//! Virtual functions as a resource of their own: the kubelet chooses, one id is one function, and what the kubelet lists in its
//! PodResources is what the pod has. So the SR-IOV CNI, which multus tells those ids, moves the function that the container was given.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tonic::Status;

use super::answer::{Answerer, ContainerGrant};
use super::kubelet::DeviceCalls;
use baton_contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    PreStartContainerRequest, PreferredAllocationRequest, PreferredAllocationResponse,
};
use baton_contract::{DeviceEntry, DeviceId, DeviceType, PodRef};
use baton_decide::health::ServeOutcome;

/// The calls of one resource name are answered here, all others by `rest`.
pub struct FunctionCalls {
    /// The name.
    pub resource: String,
    /// Builds answers.
    pub answerer: Arc<dyn Answerer>,
    /// Where it is said what became of a call: a machine that fails pods is out of service for these, too.
    pub outcomes: mpsc::Sender<ServeOutcome>,
    /// All other names.
    pub rest: Arc<dyn DeviceCalls>,
}

impl FunctionCalls {
    fn answer(&self, ids: &[String]) -> Result<ContainerAllocateResponse, Status> {
        let entry = |id: &String| {
            let id = DeviceId::parse(id).map_err(|error| Status::invalid_argument(error.to_string()))?;
            Ok((DeviceType::Rdma, DeviceEntry { minor: 0, id, resources: [].into(), extension: None }))
        };
        let grant = ContainerGrant {
            resource: self.resource.as_str().into(),
            // Who calls does not matter: no assignment is looked up.
            pod: PodRef::new("", "", ""),
            container: "".into(),
            entries: ids.iter().map(entry).collect::<Result<_, Status>>()?,
            shares: false,
        };
        let answer = self.answerer.answer(&grant);
        let outcome = match &answer {
            Ok(_) => {
                let given = grant.entries.iter().map(|(kind, entry)| (kind.clone(), entry.id.clone()));
                Some(ServeOutcome::Served(given.collect()))
            }
            Err(error) => {
                let why = error.why.as_str().into();
                error.blame.clone().map(|blame| ServeOutcome::Failed { blame, why })
            }
        };
        // The next outcome says as much where too many wait.
        let _ = outcome.map(|outcome| self.outcomes.try_send(outcome));
        answer.map_err(|error| Status::internal(format!("{}: {error}", self.resource)))
    }
}

impl DeviceCalls for FunctionCalls {
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        request: AllocateRequest,
    ) -> BoxFuture<'a, Result<AllocateResponse, Status>> {
        if resource != self.resource {
            return self.rest.allocate(resource, request);
        }
        let answers = request.container_requests.iter().map(|asked| self.answer(&asked.devices_ids));
        let answers: Result<Vec<_>, Status> = answers.collect();
        if let Err(refused) = &answers {
            tracing::warn!(resource, text = refused.message(), "Allocate refused");
        }
        Box::pin(std::future::ready(answers.map(|container_responses| AllocateResponse { container_responses })))
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a str,
        request: PreferredAllocationRequest,
    ) -> BoxFuture<'a, PreferredAllocationResponse> {
        if resource != self.resource {
            return self.rest.preferred(resource, request);
        }
        let pick = |asked: baton_contract::deviceplugin::ContainerPreferredAllocationRequest| {
            // The lowest addresses: those of one NIC lie side by side.
            let mut free = asked.available_device_i_ds;
            free.retain(|id| !asked.must_include_device_i_ds.contains(id));
            free.sort_unstable();
            let mut ids = asked.must_include_device_i_ds;
            let lacks = usize::try_from(asked.allocation_size).unwrap_or(0).saturating_sub(ids.len());
            ids.extend(free.into_iter().take(lacks));
            ContainerPreferredAllocationResponse { device_i_ds: ids }
        };
        let container_responses = request.container_requests.into_iter().map(pick).collect();
        Box::pin(std::future::ready(PreferredAllocationResponse { container_responses }))
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a str,
        request: PreStartContainerRequest,
    ) -> BoxFuture<'a, Result<(), Status>> {
        if resource != self.resource {
            return self.rest.pre_start(resource, request);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
