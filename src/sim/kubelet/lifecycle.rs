//! What to do next for an admitted pod, as a function of its spec, its containers and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::options::Periods;
use super::runtime::Sandbox;

/// How a pod restarts its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    /// Whatever happens.
    Always,
    /// After an exit code other than 0.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    /// The pod's policy.
    pub fn of(pod: &Pod) -> Self {
        match pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    fn restarts(self, exit_code: i32) -> bool {
        self == Self::Always || self == Self::OnFailure && exit_code != 0
    }
}

/// A container's part in its pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Runs to its end before the next container starts.
    Init,
    /// An init container that restarts always and runs beside the app containers.
    Sidecar,
    /// An app container.
    App,
}

/// All containers in start order.
pub fn containers(pod: &Pod) -> Vec<(Role, &Container)> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|container| match container.restart_policy.as_deref() {
        Some("Always") => (Role::Sidecar, container),
        _ => (Role::Init, container),
    });
    init.chain(spec.containers.iter().map(|container| (Role::App, container))).collect()
}

/// What the next sync does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Actions {
    /// The pod needs a (new) sandbox first.
    pub make_sandbox: bool,
    /// Containers to start, in order.
    pub start: Vec<String>,
    /// Containers that wait for their back-off, with its length.
    pub back_off: Vec<(String, Duration)>,
    /// The earliest end of a back-off.
    pub retry_at: Option<Duration>,
    /// Everything has run to its end: what still runs (sidecars) is stopped and the pod is over.
    pub over: bool,
}

/// Crash-loop back-off of a pod's containers: current length, and the time after which an end finds it forgotten.
#[derive(Debug, Clone, Default)]
pub struct BackOffs(BTreeMap<String, (Duration, Duration)>);

impl BackOffs {
    /// After the restart of a container that had ended: 10 s, then doubled, and 10 s again after twice the longest.
    pub fn restarted(&mut self, container: &str, ended: Duration, now: Duration, periods: &Periods) {
        let max = periods.crash_backoff_max;
        let next = self.length(container, ended).map_or(periods.crash_backoff, |length| (length * 2).min(max));
        self.0.insert(container.to_owned(), (next, now + periods.scaled(max * 2)));
    }

    fn length(&self, container: &str, ended: Duration) -> Option<Duration> {
        let (length, forgotten) = self.0.get(container)?;
        (ended <= *forgotten).then_some(*length)
    }
}

/// Decides. `scale` is real seconds per back-off second.
pub fn next(pod: &Pod, sandbox: Option<&Sandbox>, back_offs: &BackOffs, scale: f64, now: Duration) -> Actions {
    let policy = RestartPolicy::of(pod);
    let containers = containers(pod);
    let none = Sandbox::default();
    let sandbox_ready = sandbox.is_some_and(|sandbox| sandbox.ready);
    let sandbox = sandbox.unwrap_or(&none);
    let mut actions = Actions { make_sandbox: !sandbox_ready, ..Actions::default() };

    if !sandbox_ready && !sandbox.containers.is_empty() && policy == RestartPolicy::Never {
        // A sandbox lost under a pod that must not restart: the pod is over.
        return Actions { over: true, ..Actions::default() };
    }
    // A container of an earlier sandbox counts as not started.
    let instance =
        |name: &str| sandbox.containers.get(name).filter(|_| sandbox.started_here.contains(name) && sandbox_ready);
    let initialized =
        containers.iter().any(|(role, container)| *role == Role::App && instance(&container.name).is_some());
    let try_start = |name: &str, actions: &mut Actions| {
        let ended = instance(name).and_then(|instance| instance.exited(now)).map(|exit| exit.at);
        let wait = ended.and_then(|ended| {
            let length = back_offs.length(name, ended)?;
            Some((length, ended + length.mul_f64(scale)))
        });
        match wait {
            Some((length, until)) if now < until => {
                actions.back_off.push((name.to_owned(), length));
                actions.retry_at = Some(actions.retry_at.map_or(until, |at| at.min(until)));
            }
            _ => actions.start.push(name.to_owned()),
        }
    };

    for (role, container) in containers.iter().filter(|(role, _)| *role != Role::App) {
        let name = &container.name;
        match (role, instance(name).map(|instance| instance.exited(now))) {
            (Role::Sidecar, Some(None)) => {}
            (Role::Sidecar, Some(Some(_))) => try_start(name, &mut actions),
            (_, None) if initialized && *role == Role::Init => {}
            (_, None) => {
                actions.start.push(name.clone());
                return actions;
            }
            (_, Some(None)) => return actions,
            (_, Some(Some(exit))) if exit.code == 0 => {}
            _ if initialized => {}
            (_, Some(Some(_))) if policy == RestartPolicy::Never => {
                return Actions { over: true, ..Actions::default() };
            }
            (_, Some(Some(_))) => {
                try_start(name, &mut actions);
                return actions;
            }
        }
    }
    let mut running = 0;
    for (_, container) in containers.iter().filter(|(role, _)| *role == Role::App) {
        match instance(&container.name).map(|instance| instance.exited(now)) {
            None => actions.start.push(container.name.clone()),
            Some(None) => running += 1,
            Some(Some(exit)) if policy.restarts(exit.code) => try_start(&container.name, &mut actions),
            Some(Some(_)) => {}
        }
    }
    let app = |name: &String| containers.iter().any(|(role, container)| *role == Role::App && container.name == *name);
    let pending = actions.start.iter().chain(actions.back_off.iter().map(|(name, _)| name)).any(app);
    if running == 0 && !pending {
        return Actions { over: true, ..Actions::default() };
    }
    actions
}

#[cfg(test)]
mod tests;
