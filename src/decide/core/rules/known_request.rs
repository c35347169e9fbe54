//! What a pod wants of devices, judged once for every pod of its shape with the same containers.

use crate::devices::PodDeviceRequest;
use crate::pod::PodContainer;
use crate::world::Pod;
use crate::world::devices::{DeviceKinds, kinds_of};
use baton_contract::Shared;

/// A pod's request.
#[derive(Debug, PartialEq, Eq)]
pub struct KnownRequest {
    containers: Shared<Vec<PodContainer>>,
    request: PodDeviceRequest,
    names: Shared<Vec<Box<str>>>,
    kinds: DeviceKinds,
}

impl KnownRequest {
    /// What `pod` wants, as its `request` says.
    pub fn new(pod: &Pod, request: PodDeviceRequest) -> Self {
        let calls = pod.facts.handoff.expected_calls(|_| true);
        let mut names: Vec<Box<str>> = calls.map(|call| call.resource.into()).collect();
        names.sort();
        names.dedup();
        Self { containers: pod.facts.handoff.containers.clone(), request, names: names.into(), kinds: kinds_of(pod) }
    }

    /// `true` while the pod's containers are those that were read.
    pub fn is_of(&self, pod: &Pod) -> bool {
        self.containers.is_same(&pod.facts.handoff.containers)
    }

    /// The request.
    pub fn request(&self) -> &PodDeviceRequest {
        &self.request
    }

    /// The device types in it.
    pub fn kinds(&self) -> DeviceKinds {
        self.kinds
    }

    /// Names of the Allocate calls that come for the pod where an agent serves all that it asks for.
    pub fn names(&self) -> &Shared<Vec<Box<str>>> {
        &self.names
    }

    /// The same; `None` when the pod's containers are other ones by now.
    pub fn names_of(&self, pod: &Pod) -> Option<&Shared<Vec<Box<str>>>> {
        self.is_of(pod).then_some(&self.names)
    }
}
