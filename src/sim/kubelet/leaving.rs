//! How a pod leaves: its containers, then its sandbox, then its cgroup.
//!
//! ```text
//! SIGTERM to all ──► ended, or SIGKILL after the grace ──► sandbox ends: cgroup empty ──► cgroup removed
//!    ▲                     │ the runtime has gone
//!    └── runtime is back ──┘
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::machine::Machine;

/// No stop has less grace, whatever a deletion says.
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// Grace of a pod that a restarted kubelet finds and the API server does not have.
const ORPHANS_GRACE: Duration = Duration::from_secs(1);
/// From the last container's end to the sandbox's.
const SANDBOX_ENDS: Duration = Duration::from_millis(60);
/// An empty cgroup stays this long, up to 0.2 s more.
const CGROUP_STAYS: Duration = Duration::from_millis(500);

/// How long a pod's containers may take: what its deletion says, else what it says itself.
pub(super) fn grace(pod: &Pod) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let seconds = asked.or_else(|| pod.spec.as_ref()?.termination_grace_period_seconds).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).max(LEAST_GRACE)
}

/// Stops a pod's containers and its sandbox. A second call for the same pod shortens nothing.
pub(super) async fn stop(machine: &Machine, uid: &str, grace: Duration) {
    let (runtime, periods) = (&machine.runtime, &machine.options.periods);
    loop {
        runtime.until_usable().await;
        runtime.stop_containers(uid, periods.scaled(grace));
        if runtime.until_ended(uid).await {
            break;
        }
    }
    if runtime.sandbox(uid).is_some_and(|sandbox| sandbox.ready) {
        tokio::time::sleep(periods.scaled(SANDBOX_ENDS)).await;
        runtime.until_usable().await;
    }
    runtime.end_sandbox(uid);
}

/// Removes a pod's empty cgroup.
pub(super) async fn remove_cgroup(machine: &Machine, uid: &str) {
    if machine.runtime.cgroups.dir(uid).is_none() {
        return;
    }
    let stays = CGROUP_STAYS.mul_f64(1.0 + 0.4 * machine.random(fastrand::Rng::f64));
    tokio::time::sleep(machine.options.periods.scaled(stays)).await;
    machine.runtime.cgroups.remove(uid);
}

/// After a restart: what runs and is not listed any more is stopped, some time after the first pods were admitted.
pub(super) fn stop_orphans(machine: &Arc<Machine>, listed: &BTreeSet<String>) {
    let daemon = machine.options.daemon_uid.as_deref();
    let pods = machine.runtime.pods().into_iter();
    for uid in pods.filter(|uid| !listed.contains(uid) && daemon != Some(uid.as_str())) {
        let stopping = machine.clone();
        let relist = machine.options.periods.scaled(machine.options.periods.relist);
        let pause = relist.mul_f64(machine.random(fastrand::Rng::f64));
        machine.spawn(async move {
            tokio::time::sleep(pause).await;
            stop(&stopping, &uid, ORPHANS_GRACE).await;
            remove_cgroup(&stopping, &uid).await;
            stopping.runtime.remove(&uid);
        });
    }
}
