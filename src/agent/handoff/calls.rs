//! The kubelet's three deciding calls, as the plugins' servers make them.

use futures::future::BoxFuture;
use tonic::Status;

use super::service::HandoffService;
use crate::agent::kubelet::DeviceCalls;
use crate::contract::deviceplugin::{
    AllocateRequest, AllocateResponse, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse,
};

impl DeviceCalls for HandoffService {
    fn allocate<'a>(
        &'a self,
        resource: &'a str,
        request: AllocateRequest,
    ) -> BoxFuture<'a, Result<AllocateResponse, Status>> {
        Box::pin(self.allocate(resource, request))
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a str,
        request: PreferredAllocationRequest,
    ) -> BoxFuture<'a, PreferredAllocationResponse> {
        Box::pin(self.preferred(resource, request))
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a str,
        request: PreStartContainerRequest,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(self.pre_start(resource, request))
    }
}
