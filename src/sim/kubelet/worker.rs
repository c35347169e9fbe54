//! A pod's worker: reports its status, starts what is to be started, stops it in the end. One task for each pod.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::lifecycle::{self, BackOffs, RestartPolicy, Role};
use super::machine::Machine;
use super::pod::PodHandle;
use super::process::Process;
use super::runtime::Injected;
use super::status::{self, Observed, Waiting};
use super::{admission, locked};
use baton_runtime::clock;

/// Exit code of a process stopped by SIGTERM.
const TERMINATED: i32 = 143;

#[derive(Default)]
struct Worker {
    waiting: Waiting,
    back_offs: BackOffs,
}

/// Starts a pod's worker unless one is running.
pub(super) fn start(machine: &Arc<Machine>, pod: &Arc<PodHandle>) {
    if pod.working.swap(true, Ordering::SeqCst) {
        return;
    }
    machine.spawn(run(machine.clone(), pod.clone()));
}

async fn run(machine: Arc<Machine>, pod: Arc<PodHandle>) {
    let mut worker = Worker::default();
    while !pod.is_to_be_stopped() {
        let pause = worker.sync(&machine, &pod).await;
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
        let status = self.observe(machine, pod, false);
        machine.statuses.put(pod, status);
        let now = clock::mono();
        let sandbox = machine.runtime.sandbox(&pod.uid);
        let actions = lifecycle::next(&object, sandbox.as_ref(), &self.back_offs, periods.scale, now);
        if actions.over {
            pod.terminating.store(true, Ordering::SeqCst);
            return Duration::ZERO;
        }
        let mut changed = actions.make_sandbox;
        if actions.make_sandbox {
            machine.runtime.make_sandbox(&pod.uid);
        }
        let mut failed = false;
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
                    failed = true;
                }
            }
        }
        Self::pause(machine, pod, changed, failed)
    }

    /// Container events are seen at the next relist; a failed sync is repeated after its back-off.
    fn pause(machine: &Machine, pod: &PodHandle, changed: bool, failed: bool) -> Duration {
        let periods = &machine.options.periods;
        let jitter = machine.random(fastrand::Rng::f64);
        let relist = periods.scaled(periods.relist).mul_f64(jitter);
        if changed {
            return relist;
        }
        let period = if failed { periods.sync_backoff } else { periods.resync };
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
        let mut injected = Injected::default();
        if let Some(grants) = locked(&machine.state).devices.grants.container(&pod.uid, name) {
            let mut answers: Vec<_> = grants.values().map(|grant| &grant.answer).collect();
            machine.random(|rng| rng.shuffle(&mut answers));
            for answer in answers {
                injected.merge(answer);
            }
        }
        let periods = &machine.options.periods;
        let ran_before = machine.runtime.sandbox(&pod.uid).is_some_and(|sandbox| sandbox.started_here.contains(name));
        let process = Process::of(object, container, role == Role::Init);
        machine.runtime.start(&pod.uid, name, process, periods.scale, injected);
        self.waiting.remove(name);
        if ran_before {
            self.back_offs.restarted(name, periods.crash_backoff, periods.crash_backoff_max);
        }
        Ok(())
    }

    fn observe(&self, machine: &Machine, pod: &PodHandle, stopping: bool) -> PodStatus {
        let now = clock::now();
        let before = machine.statuses.current(pod);
        let sandbox = machine.runtime.sandbox(&pod.uid);
        let state = locked(&machine.state);
        status::build(&Observed {
            pod: &pod.pod(),
            sandbox: sandbox.as_ref(),
            waiting: &self.waiting,
            devices: &state.devices,
            before: before.as_ref(),
            stopping,
            host_ip: &machine.options.host_ip,
            now: now.mono,
            wall: now.wall,
        })
    }

    /// Stops every container within the grace period, reports the last status and frees the pod's devices.
    async fn stop(&self, machine: &Machine, pod: &PodHandle) {
        pod.terminating.store(true, Ordering::SeqCst);
        let object = pod.pod();
        let grace = object.metadata.deletion_grace_period_seconds;
        let grace = grace.or_else(|| object.spec.as_ref()?.termination_grace_period_seconds).unwrap_or(30);
        let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        let periods = &machine.options.periods;
        let delay = periods.scaled(periods.stop_delay.min(grace));
        for (_, container) in lifecycle::containers(&object) {
            machine.runtime.end(&pod.uid, &container.name, TERMINATED, delay);
        }
        let now = clock::mono();
        let running = machine.runtime.sandbox(&pod.uid).is_some_and(|sandbox| sandbox.any_running(now));
        if running {
            machine.statuses.put(pod, self.observe(machine, pod, true));
            tokio::time::sleep(delay).await;
        }
        let mut last = self.observe(machine, pod, true);
        if matches!(last.phase.as_deref(), Some("Pending" | "Running")) {
            // Containers that were never started leave no exit code; the pod did not do its work.
            let finished =
                RestartPolicy::of(&object) != RestartPolicy::Always && last.phase.as_deref() == Some("Running");
            last.phase = Some(if finished { "Succeeded" } else { "Failed" }.to_owned());
        }
        let removed = pod.removed.load(Ordering::SeqCst);
        if !removed {
            machine.statuses.put(pod, last);
        }
        pod.terminal.store(true, Ordering::SeqCst);
        pod.over.store(true, Ordering::SeqCst);
        locked(&machine.state).free_inactive();
        if removed {
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
