//! A pod's worker: reports its status, starts what is to be started, stops it in the end. One task for each pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::instance::{Injected, OnTerm};
use super::lifecycle::{self, BackOffs, RestartPolicy, Role};
use super::machine::Machine;
use super::pod::PodHandle;
use super::process::Process;
use super::runtime::Launch;
use super::status::{self, Observed, Waiting};
use super::{admission, leaving, locked, pod};
use baton_runtime::clock;

/// Exit code of a process that SIGTERM ended.
const TERMINATED: i32 = 143;
/// From the making of a pod's cgroup to its sandbox.
const SANDBOX_TAKES: Duration = Duration::from_millis(100);

struct Worker {
    since: Duration,
    waiting: Waiting,
    back_offs: BackOffs,
    past_deadline: bool,
}

/// How far a pod is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopStage {
    Running,
    Stopping,
    Over,
}

/// Starts a pod's worker unless one is running.
pub(super) fn start(machine: &Arc<Machine>, pod: &Arc<PodHandle>) {
    if pod.working.swap(true, Ordering::SeqCst) {
        return;
    }
    machine.spawn(run(machine.clone(), pod.clone()));
}

async fn run(machine: Arc<Machine>, pod: Arc<PodHandle>) {
    let mut worker =
        Worker { since: clock::mono(), waiting: Waiting::new(), back_offs: BackOffs::default(), past_deadline: false };
    while !pod.is_to_be_stopped() {
        let periods = &machine.options.periods;
        let pause = if machine.runtime.is_usable() {
            worker.sync(&machine, &pod).await
        } else {
            periods.scaled(periods.relist)
        };
        if pod.is_to_be_stopped() {
            break;
        }
        let _ = tokio::time::timeout(pause, pod.wake.notified()).await;
    }
    worker.stop(&machine, &pod).await;
}

impl Worker {
    /// Reports the status, then acts. Returns how long to wait for the next sync.
    async fn sync(&mut self, machine: &Arc<Machine>, pod: &PodHandle) -> Duration {
        let object = pod.pod();
        let periods = &machine.options.periods;
        let status = self.observe(machine, pod, StopStage::Running);
        machine.statuses.put(pod, status);
        let now = clock::mono();
        let deadline = object.spec.as_ref().and_then(|spec| spec.active_deadline_seconds).map(|seconds| {
            let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            (self.since + periods.scaled(seconds)).saturating_sub(now)
        });
        if deadline == Some(Duration::ZERO) {
            self.past_deadline = true;
            pod.terminating.store(true, Ordering::SeqCst);
            return Duration::ZERO;
        }
        let sandbox = machine.runtime.sandbox(&pod.uid);
        let actions = lifecycle::next(&object, sandbox.as_ref(), &self.back_offs, periods.scale, now);
        if actions.over {
            pod.terminating.store(true, Ordering::SeqCst);
            return Duration::ZERO;
        }
        let mut changed = actions.make_sandbox;
        if actions.make_sandbox {
            machine.runtime.cgroups.make(&pod.uid, &status::qos_class(&object));
            tokio::time::sleep(periods.scaled(SANDBOX_TAKES)).await;
            if pod.is_to_be_stopped() {
                return Duration::ZERO;
            }
            machine.runtime.make_sandbox(&pod.uid);
        }
        let (mut failed, mut refused) = (false, false);
        for (name, length) in actions.back_off {
            let text = format!(
                "back-off {} restarting failed container={name} pod={}_{}({})",
                seconds(length),
                pod.name,
                pod.namespace,
                pod.uid
            );
            self.waiting.insert(name, ("CrashLoopBackOff", text));
            failed = true;
        }
        for name in actions.start {
            match self.start_container(machine, pod, &object, &name).await {
                Ok(()) => changed = true,
                Err(text) => {
                    self.waiting.insert(name, ("CreateContainerConfigError", text));
                    (failed, refused) = (true, true);
                }
            }
        }
        // While a plugin took its time, something else came up for the pod: it is looked at again at once.
        changed |= refused && clock::mono().saturating_sub(now) > periods.scaled(periods.sync_backoff);
        let period = if failed { periods.sync_backoff } else { periods.resync };
        let pause = Self::pause(machine, pod, (!changed).then_some(period));
        deadline.map_or(pause, |left| pause.min(left))
    }

    /// Container events are seen at the next relist. `period`: until the next sync where nothing has changed.
    fn pause(machine: &Machine, pod: &PodHandle, period: Option<Duration>) -> Duration {
        let periods = &machine.options.periods;
        let jitter = machine.random(fastrand::Rng::f64);
        let relist = periods.scaled(periods.relist).mul_f64(jitter);
        let Some(period) = period else { return relist };
        let resync = periods.scaled(period).mul_f64(1.0 + jitter / 2.0);
        let now = clock::mono();
        let exit = machine.runtime.sandbox(&pod.uid).and_then(|sandbox| sandbox.next_exit(now));
        exit.map_or(resync, |at| resync.min(at.saturating_sub(now) + relist)) + Duration::from_millis(1)
    }

    async fn start_container(
        &mut self,
        machine: &Arc<Machine>,
        pod: &PodHandle,
        object: &Pod,
        name: &str,
    ) -> Result<(), String> {
        let all = lifecycle::containers(object);
        let Some((role, container)) = all.into_iter().find(|(_, container)| container.name == name) else {
            return Ok(());
        };
        let started = admission::before_start(machine, object, role, container).await;
        started.map_err(|error| error.unwrapped())?;
        if pod.is_to_be_stopped() {
            return Ok(());
        }
        let mut injected = Injected::default();
        let mut devices = BTreeMap::new();
        if let Some(grants) = locked(&machine.state).devices.grants.container(&pod.uid, name) {
            let mut answers: Vec<_> = grants.values().map(|grant| &grant.answer).collect();
            machine.random(|rng| rng.shuffle(&mut answers));
            for answer in answers {
                injected.merge(answer);
            }
            devices = grants.iter().map(|(resource, grant)| (resource.clone(), grant.ids())).collect();
        }
        let periods = &machine.options.periods;
        let now = clock::mono();
        let before = machine.runtime.sandbox(&pod.uid).filter(|sandbox| sandbox.started_here.contains(name));
        let ended =
            before.map(|sandbox| sandbox.containers.get(name).and_then(|c| c.exited(now)).map_or(now, |exit| exit.at));
        let process = Process::of(object, container, role == Role::Init);
        let on_term = OnTerm { takes: periods.scaled(periods.stop_delay), code: TERMINATED };
        let scale = periods.scale;
        machine.runtime.start(Launch { pod, container: name, process, on_term, scale, injected, devices });
        self.waiting.remove(name);
        if let Some(ended) = ended {
            self.back_offs.restarted(name, ended, now, periods);
        }
        Ok(())
    }

    fn observe(&self, machine: &Machine, pod: &PodHandle, stage: StopStage) -> PodStatus {
        let now = clock::now();
        let before = machine.statuses.current(pod);
        let sandbox = machine.runtime.sandbox(&pod.uid);
        let state = locked(&machine.state);
        let mut status = status::build(&Observed {
            pod: &pod.pod(),
            sandbox: sandbox.as_ref(),
            waiting: &self.waiting,
            devices: &state.devices,
            before: before.as_ref(),
            stopping: stage != StopStage::Running,
            host_ip: &machine.options.host_ip,
            now: now.mono,
            wall: now.wall,
        });
        drop(state);
        if stage != StopStage::Over && pod::is_terminal(status.phase.as_deref()) {
            // Not before the sandbox has ended, too.
            status.phase = before.and_then(|before| before.phase).or(Some("Pending".to_owned()));
        }
        status
    }

    /// Stops every container within the grace period, reports the last status, frees the pod's devices and cleans up.
    async fn stop(&self, machine: &Machine, pod: &PodHandle) {
        pod.terminating.store(true, Ordering::SeqCst);
        let object = pod.pod();
        let periods = &machine.options.periods;
        let sandbox = machine.runtime.sandbox(&pod.uid).filter(|sandbox| sandbox.ready);
        if sandbox.as_ref().is_some_and(|sandbox| sandbox.any_running(clock::mono())) {
            machine.statuses.put(pod, self.observe(machine, pod, StopStage::Stopping));
        } else if sandbox.is_some() {
            // Containers have ended by themselves: the sandbox runs until the next look.
            tokio::time::sleep(periods.scaled(periods.relist)).await;
        }
        leaving::stop(machine, &pod.uid, leaving::grace(&object)).await;
        let mut last = self.observe(machine, pod, StopStage::Over);
        if matches!(last.phase.as_deref(), Some("Pending" | "Running")) {
            // Containers that were never started leave no exit code; the pod did not do its work.
            let finished =
                RestartPolicy::of(&object) != RestartPolicy::Always && last.phase.as_deref() == Some("Running");
            last.phase = Some(if finished { "Succeeded" } else { "Failed" }.to_owned());
        }
        if self.past_deadline {
            last.phase = Some("Failed".to_owned());
            last.reason = Some("DeadlineExceeded".to_owned());
            last.message = Some("Pod was active on the node longer than the specified deadline".to_owned());
        }
        if !pod.removed.load(Ordering::SeqCst) {
            machine.statuses.put(pod, last);
        }
        pod.terminal.store(true, Ordering::SeqCst);
        pod.over.store(true, Ordering::SeqCst);
        leaving::remove_cgroup(machine, &pod.uid).await;
        pod.cleaned.store(true, Ordering::SeqCst);
        if pod.removed.load(Ordering::SeqCst) {
            machine.runtime.remove(&pod.uid);
        } else if pod.is_deleting() {
            machine.statuses.delete(pod);
        }
    }
}

/// A duration as Go prints it: `10s`, `2m40s`, `5m0s`.
fn seconds(length: Duration) -> String {
    let seconds = length.as_secs();
    if seconds < 60 { format!("{seconds}s") } else { format!("{}m{}s", seconds / 60, seconds % 60) }
}
