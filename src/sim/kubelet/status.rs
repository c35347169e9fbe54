//! A pod's status, from its containers.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceHealth, ResourceStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::devices::Devices;
use super::instance::Instance;
use super::lifecycle::{RestartPolicy, Role, containers};
use super::quantity::milli;
use super::runtime::Sandbox;

/// Why a container waits: its last failed start.
pub type Waiting = BTreeMap<String, (&'static str, String)>;

/// What a status is made of.
pub struct Observed<'a> {
    /// The pod's object.
    pub pod: &'a Pod,
    /// Its containers, if any were made.
    pub sandbox: Option<&'a Sandbox>,
    /// Failed starts.
    pub waiting: &'a Waiting,
    /// Who holds which devices.
    pub devices: &'a Devices,
    /// The status reported before.
    pub before: Option<&'a PodStatus>,
    /// The pod is being stopped: nothing will be started any more.
    pub stopping: bool,
    /// The node's address.
    pub host_ip: &'a str,
    /// Monotonic now.
    pub now: Duration,
    /// Wall-clock now.
    pub wall: Timestamp,
}

/// A status of a pod that was refused: no containers, no conditions of its own.
pub fn rejected(pod: &Pod, reason: &str, message: &str) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(qos_class(pod)),
        conditions: pod.status.as_ref().and_then(|status| status.conditions.clone()),
        start_time: pod.status.as_ref().and_then(|status| status.start_time.clone()),
        ..PodStatus::default()
    }
}

/// The status of an admitted pod.
pub fn build(observed: &Observed<'_>) -> PodStatus {
    let Observed { pod, sandbox, before, host_ip, wall, .. } = observed;
    let all = containers(pod);
    let initialized = all.iter().filter(|(role, _)| *role != Role::App).all(|(role, container)| {
        let instance = sandbox.and_then(|sandbox| sandbox.containers.get(&container.name));
        instance.is_some_and(|instance| match (role, instance.exited(observed.now)) {
            (Role::Sidecar, _) => true,
            (_, exit) => exit.is_some_and(|exit| exit.code == 0),
        })
    });
    let one = |(role, container): &(Role, &Container)| container_status(observed, *role, container, initialized);
    let (apps, inits): (Vec<_>, Vec<_>) = all.iter().partition(|(role, _)| *role == Role::App);
    let statuses: Vec<ContainerStatus> = apps.into_iter().map(one).collect();
    let init_statuses: Vec<ContainerStatus> = inits.into_iter().map(one).collect();
    let phase = phase(observed, &statuses, &init_statuses, initialized);
    let terminal = matches!(phase, "Succeeded" | "Failed");
    let sidecars_ready = all
        .iter()
        .filter(|(role, _)| *role == Role::Sidecar)
        .all(|(_, container)| sandbox.is_some_and(|sandbox| sandbox.is_running(&container.name, observed.now)));
    let ready =
        phase == "Running" && !observed.stopping && sidecars_ready && statuses.iter().all(|status| status.ready);
    let not_ready = || {
        let unready: Vec<&str> = statuses.iter().filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
        ("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
    };
    let completed = || ("PodCompleted", String::new());
    let why_not_ready = || if phase == "Succeeded" { completed() } else { not_ready() };
    let sandbox_ready = sandbox.is_some_and(|sandbox| sandbox.ready) && !terminal;
    let kinds = [
        ("PodReadyToStartContainers", sandbox_ready, None),
        ("Initialized", initialized, (phase == "Succeeded").then(completed)),
        ("Ready", ready, (!ready).then(why_not_ready)),
        ("ContainersReady", ready, (!ready).then(why_not_ready)),
        ("PodScheduled", true, None),
    ];
    let conditions = kinds.map(|(kind, value, why)| condition(*before, kind, value, why, *wall));
    let ip = sandbox.map(|sandbox| sandbox.ip.clone()).filter(|ip| !ip.is_empty());
    PodStatus {
        phase: Some(phase.to_owned()),
        conditions: Some(conditions.into()),
        container_statuses: Some(statuses),
        init_container_statuses: Some(init_statuses).filter(|statuses| !statuses.is_empty()),
        host_ip: Some((*host_ip).to_owned()),
        host_ips: Some(vec![HostIP { ip: (*host_ip).to_owned() }]),
        pod_ip: ip.clone(),
        pod_ips: ip.map(|ip| vec![PodIP { ip }]),
        start_time: before.and_then(|before| before.start_time.clone()).or(Some(Time(*wall))),
        qos_class: Some(qos_class(pod)),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

fn condition(
    before: Option<&PodStatus>,
    kind: &str,
    value: bool,
    why: Option<(&str, String)>,
    wall: Timestamp,
) -> PodCondition {
    let status = if value { "True" } else { "False" };
    let old = before.into_iter().filter_map(|before| before.conditions.as_ref()).flatten();
    let same = old.into_iter().find(|old| old.type_ == kind && old.status == status);
    let (reason, message) = why.unzip();
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.map(str::to_owned),
        message: message.filter(|text| !text.is_empty()),
        last_transition_time: same.and_then(|same| same.last_transition_time.clone()).or(Some(Time(wall))),
        ..PodCondition::default()
    }
}

fn phase(
    observed: &Observed<'_>,
    statuses: &[ContainerStatus],
    init_statuses: &[ContainerStatus],
    initialized: bool,
) -> &'static str {
    let policy = RestartPolicy::of(observed.pod);
    let ended = |status: &ContainerStatus| {
        let state = status.state.as_ref().filter(|state| state.terminated.is_some()).or(status.last_state.as_ref());
        state.and_then(|state| state.terminated.as_ref()).map(|terminated| terminated.exit_code)
    };
    let running = statuses.iter().filter(|s| s.state.as_ref().is_some_and(|state| state.running.is_some())).count();
    if !initialized {
        let failed = init_statuses.iter().any(|status| ended(status).is_some_and(|code| code != 0));
        let final_failure = failed && (policy == RestartPolicy::Never || observed.stopping);
        return if final_failure { "Failed" } else { "Pending" };
    }
    let ends: Vec<i32> = statuses
        .iter()
        .filter(|s| s.state.as_ref().is_none_or(|state| state.running.is_none()))
        .filter_map(ended)
        .collect();
    if running + ends.len() < statuses.len() {
        return "Pending";
    }
    let succeeded = ends.iter().all(|code| *code == 0);
    match policy {
        _ if running > 0 => "Running",
        RestartPolicy::Always if !observed.stopping => "Running",
        _ if succeeded => "Succeeded",
        RestartPolicy::OnFailure if !observed.stopping => "Running",
        _ => "Failed",
    }
}

fn container_status(observed: &Observed<'_>, role: Role, container: &Container, initialized: bool) -> ContainerStatus {
    let name = &container.name;
    let sandbox = observed.sandbox;
    let instance = sandbox.and_then(|sandbox| sandbox.containers.get(name));
    let previous = sandbox.and_then(|sandbox| sandbox.previous.get(name));
    let why = observed.waiting.get(name).filter(|_| !observed.stopping);
    let exit = instance.and_then(|instance| instance.exited(observed.now).map(|_| terminated(instance, observed.now)));
    let image = container.image.clone().unwrap_or_default();
    let mut status = ContainerStatus {
        name: name.clone(),
        image_id: image.clone(),
        image,
        container_id: instance.map(|instance| instance.id.clone()),
        restart_count: instance.map_or(0, |instance| instance.restarts),
        last_state: previous.map(|previous| terminated(previous, observed.now)),
        started: Some(false),
        ..ContainerStatus::default()
    };
    match (instance, exit, why) {
        (Some(instance), None, _) => {
            let running = ContainerStateRunning { started_at: Some(Time(instance.started)) };
            status.state = Some(ContainerState { running: Some(running), ..ContainerState::default() });
            status.ready = role != Role::Init;
            status.started = Some(true);
        }
        (_, Some(exit), None) => {
            status.ready = role == Role::Init && exit.terminated.as_ref().is_some_and(|exit| exit.exit_code == 0);
            status.state = Some(exit);
        }
        (_, exit, why) => {
            let waits_for_init = role != Role::App || !initialized || observed.pod_has_init();
            let default = if waits_for_init { "PodInitializing" } else { "ContainerCreating" };
            let reason = why.map_or(default, |(reason, _)| reason).to_owned();
            let message = why.map(|(_, message)| message.clone());
            let waiting = ContainerStateWaiting { reason: Some(reason), message };
            status.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
            status.last_state = exit.or(status.last_state);
        }
    }
    // Real kubelets report devices of app containers only.
    if role == Role::App {
        status.allocated_resources_status = resources(observed, name);
    }
    status
}

impl Observed<'_> {
    fn pod_has_init(&self) -> bool {
        containers(self.pod).iter().any(|(role, _)| *role != Role::App)
    }
}

fn resources(observed: &Observed<'_>, container: &str) -> Option<Vec<ResourceStatus>> {
    let uid = observed.pod.metadata.uid.as_deref().unwrap_or_default();
    let held = observed.devices.grants.container(uid, container);
    let Some(held) = held else {
        // Once reported, it stays in the status, also after the devices were freed.
        let before = observed.before?.container_statuses.as_ref()?;
        return before.iter().find(|status| status.name == container)?.allocated_resources_status.clone();
    };
    let each = held.iter().map(|(resource, grant)| {
        let health =
            |id: &String| if observed.devices.is_healthy(resource, id) { "Healthy" } else { "Unhealthy" }.to_owned();
        let devices = grant.ids().into_iter().map(|id| ResourceHealth {
            health: Some(health(&id)),
            resource_id: id,
            ..ResourceHealth::default()
        });
        ResourceStatus { name: resource.clone(), resources: Some(devices.collect()) }
    });
    Some(each.collect())
}

fn terminated(instance: &Instance, now: Duration) -> ContainerState {
    let exit = instance.exited(now);
    let terminated = ContainerStateTerminated {
        container_id: Some(instance.id.clone()),
        exit_code: exit.map_or(137, |exit| exit.code),
        reason: Some(exit.map_or("Error", |exit| exit.reason).to_owned()),
        started_at: Some(Time(instance.started)),
        finished_at: exit.map(|exit| Time(instance.finished(exit))),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// The pod's quality of service, as the API server set it or would.
pub fn qos_class(pod: &Pod) -> String {
    if let Some(class) = pod.status.as_ref().and_then(|status| status.qos_class.clone()) {
        return class;
    }
    let mut any = false;
    let mut guaranteed = true;
    for (_, container) in containers(pod) {
        let resources = container.resources.clone().unwrap_or_default();
        let (limits, requests) = (resources.limits.unwrap_or_default(), resources.requests.unwrap_or_default());
        for name in ["cpu", "memory"] {
            let limit = limits.get(name).map_or(0, |quantity| milli(&quantity.0));
            let request = requests.get(name).map_or(limit, |quantity| milli(&quantity.0));
            any |= limit > 0 || request > 0;
            guaranteed &= limit > 0 && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
    .to_owned()
}
