//! Giving a pod its devices: per container, per resource in random order, preferred devices asked and devices allocated.

use baton_runtime::clock;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use tonic::Status;

use super::choice::{self, Claim, Refusal, Step};
use super::grants::{Ids, Reusable};
use super::lifecycle::{Role, containers};
use super::machine::Machine;
use super::quantity::amount;
use super::{locked, wire};

/// Why a container did not get its devices; the text is what a kubelet writes into the pod's status.
#[derive(Debug, thiserror::Error)]
pub(super) enum AllocateError {
    /// The choice failed.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The plugin refused to say what it prefers.
    #[error("device plugin GetPreferredAllocation rpc failed with err: {}", wire::go_status(.0))]
    Preferred(Status),
    /// The plugin refused to allocate.
    #[error("{}", wire::go_status(.0))]
    Allocate(Status),
    /// The plugin refused to let the container start.
    #[error("device plugin PreStartContainer rpc failed with err: {}", wire::go_status(.0))]
    PreStart(Status),
    /// The plugin is known, but away.
    #[error("endpoint {0} has been stopped")]
    Stopped(String),
    /// The plugin is not known any more.
    #[error("endpoint not found in cache for a registered resource: {0}")]
    NoEndpoint(String),
    /// The plugin's answer has no container.
    #[error("no containers return in allocation response")]
    EmptyAnswer,
    /// The plugin wants to see the start of a container that holds nothing.
    #[error("no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}")]
    NothingHeld {
        /// Pod uid.
        uid: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
    },
    /// The checkpoint cannot be written.
    #[error("failed to write checkpoint file \"kubelet_internal_checkpoint\": {0}")]
    Checkpoint(std::io::Error),
}

impl AllocateError {
    /// The text where the kubelet unwraps gRPC errors: in a container's waiting state.
    pub fn unwrapped(&self) -> String {
        match self {
            Self::Allocate(status) => status.message().to_owned(),
            other => other.to_string(),
        }
    }
}

/// Gives every container of a pod its devices: init containers in order, then app containers.
pub(super) async fn allocate_pod(machine: &Arc<Machine>, pod: &Pod) -> Result<(), AllocateError> {
    for (role, container) in containers(pod) {
        allocate_container(machine, pod, role, container).await?;
    }
    Ok(())
}

/// Gives one container its devices, from its pod's reusable ones first.
pub(super) async fn allocate_container(
    machine: &Arc<Machine>,
    pod: &Pod,
    role: Role,
    container: &Container,
) -> Result<(), AllocateError> {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let mut reusable = {
        // What another pod's containers left is forgotten.
        let mut left = locked(&machine.reusable);
        match left.take().filter(|(of, _)| *of == uid) {
            Some((_, reusable)) => reusable,
            None => Reusable::default(),
        }
    };
    let mut changed = false;
    let mut freed = false;
    for (resource, required) in limits(machine, container) {
        {
            let mut state = locked(&machine.state);
            if !state.devices.is_plugin_resource(&resource) {
                continue;
            }
            if !std::mem::replace(&mut freed, true) {
                state.free_inactive();
            }
        }
        changed |= allocate_resource(machine, &uid, &container.name, &resource, required, &reusable).await?;
    }
    if changed {
        machine.write_checkpoint().map_err(AllocateError::Checkpoint)?;
    }
    let state = locked(&machine.state);
    let held = state.devices.grants.container(&uid, &container.name);
    if role == Role::Init {
        reusable.leave(held);
    } else {
        reusable.take(held);
    }
    *locked(&machine.reusable) = Some((uid, reusable));
    Ok(())
}

/// One resource of one container. Returns whether devices were handed out.
async fn allocate_resource(
    machine: &Arc<Machine>,
    uid: &str,
    container: &str,
    resource: &str,
    required: usize,
    reusable: &Reusable,
) -> Result<bool, AllocateError> {
    let affinity = machine.controls.affinity(resource);
    let step = {
        let mut state = locked(&machine.state);
        let running_since_before =
            !state.sources_ready && state.running_at_start.contains(&(uid.to_owned(), container.to_owned()));
        let claim = Claim { uid, container, resource, required, running_since_before };
        let reusable = reusable.of(resource);
        machine.random(|rng| choice::begin(&mut state.devices, claim, &reusable, affinity.as_ref(), rng))?
    };
    let ids = match step {
        Step::Nothing => return Ok(false),
        Step::Chosen(ids) => ids,
        Step::Ask(question) => {
            let preferred = if asks_preferred(machine, resource)? {
                let plugin = plugin(machine, resource)?;
                let answer = plugin.preferred(
                    unordered(machine, &question.offered),
                    unordered(machine, &question.must_include),
                    question.size(),
                );
                answer.await.map_err(AllocateError::Preferred)?
            } else {
                Ids::new()
            };
            let mut state = locked(&machine.state);
            machine.random(|rng| choice::finish(&mut state.devices, question, &preferred, rng))?
        }
    };
    let answer = match plugin(machine, resource) {
        Ok(plugin) => {
            let begin = clock::mono();
            let answer = plugin.allocate(ids.clone()).await.map_err(AllocateError::Allocate);
            machine.controls.note_allocate(clock::mono().saturating_sub(begin));
            answer
        }
        Err(error) => Err(error),
    };
    let mut state = locked(&machine.state);
    let answer = answer.inspect_err(|_| state.devices.forget_reservations())?;
    let answer = answer.container_responses.into_iter().next().ok_or(AllocateError::EmptyAnswer)?;
    state.devices.grant(uid, container, resource, &ids, answer);
    Ok(true)
}

/// Ids in random order, as Go iterates a set.
fn unordered(machine: &Machine, ids: &Ids) -> Vec<String> {
    let mut ids: Vec<String> = ids.iter().cloned().collect();
    machine.random(|rng| rng.shuffle(&mut ids));
    ids
}

/// A container's limits in random order, as Go iterates a map.
fn limits(machine: &Machine, container: &Container) -> Vec<(String, usize)> {
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let mut limits: Vec<(String, usize)> = limits
        .into_iter()
        .flatten()
        .map(|(name, quantity)| (name.clone(), usize::try_from(amount(&quantity.0)).unwrap_or(0)))
        .collect();
    machine.random(|rng| rng.shuffle(&mut limits));
    limits
}

fn asks_preferred(machine: &Machine, resource: &str) -> Result<bool, AllocateError> {
    let state = locked(&machine.state);
    let endpoint = state.devices.endpoints.get(resource);
    let endpoint = endpoint.ok_or_else(|| AllocateError::NoEndpoint(resource.to_owned()))?;
    let available = endpoint.options.as_ref().is_some_and(|options| options.get_preferred_allocation_available);
    Ok(available && !machine.controls.skips_preferred())
}

fn plugin(machine: &Machine, resource: &str) -> Result<Arc<super::endpoint::Plugin>, AllocateError> {
    locked(&machine.plugins).called(resource).ok_or_else(|| AllocateError::Stopped(resource.to_owned()))
}

/// Right before a container starts: the plugins that asked for it are called, and devices that were never given (their
/// plugin registered after the pod's admission) are given now.
pub(super) async fn before_start(
    machine: &Arc<Machine>,
    pod: &Pod,
    role: Role,
    container: &Container,
) -> Result<(), AllocateError> {
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    let mut missing = false;
    for (resource, required) in limits(machine, container) {
        if required == 0 || !locked(&machine.state).devices.is_plugin_resource(&resource) {
            continue;
        }
        pre_start(machine, &uid, &container.name, &resource).await?;
        let state = locked(&machine.state);
        let active = state.pods.get(&uid).is_some_and(|pod| pod.is_active());
        missing |= active && state.devices.grants.ids(&uid, &container.name, &resource).is_none();
    }
    if missing {
        allocate_container(machine, pod, role, container).await?;
    }
    Ok(())
}

async fn pre_start(machine: &Machine, uid: &str, container: &str, resource: &str) -> Result<(), AllocateError> {
    let held = {
        let state = locked(&machine.state);
        let endpoint = state.devices.endpoints.get(resource);
        let endpoint = endpoint.ok_or_else(|| AllocateError::NoEndpoint(resource.to_owned()))?;
        if !endpoint.options.as_ref().is_some_and(|options| options.pre_start_required) {
            return Ok(());
        }
        state.devices.grants.ids(uid, container, resource)
    };
    let held = held.ok_or_else(|| AllocateError::NothingHeld {
        uid: uid.to_owned(),
        container: container.to_owned(),
        resource: resource.to_owned(),
    })?;
    let plugin = plugin(machine, resource);
    let timeout = machine.options.periods.pre_start_timeout;
    match plugin {
        Ok(plugin) => plugin.pre_start(unordered(machine, &held), timeout).await.map_err(AllocateError::PreStart),
        Err(error) => Err(AllocateError::PreStart(Status::unknown(error.to_string()))),
    }
}
