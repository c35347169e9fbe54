//! The keys of the job controller.

use super::log::{Daemon, field, log};
use crate::ops::config::Setting;
use crate::tyjob::Options;

/// Every key of `baton controller`, in the order of its help.
pub fn controller() -> Vec<Setting<Daemon<Options>>> {
    [work(), leading(), log()].into_iter().flatten().collect()
}

type Settings = Vec<Setting<Daemon<Options>>>;

fn work() -> Settings {
    vec![
        field!(
            "scheduler-name",
            "NAME",
            "spec.schedulerName of the pods that are made: the scheduler that places TYJobs",
            options.scheduler_name
        ),
        field!("namespace", "NAMESPACE", "Namespace of the Lease", options.namespace),
        field!(
            "kubeconfig",
            "FILE",
            "Credentials for the API server; none is the pod's service account",
            options.kubeconfig
        ),
        field!(
            "listen",
            "ADDRESS",
            "Address of /livez, /readyz and /metrics over plain HTTP; none opens no port",
            options.listen
        ),
        field!("concurrency", "COUNT", "Jobs that are reconciled at once", options.concurrency),
        field!("resync", "DURATION", "Every job is reconciled, even without a change", options.resync),
        field!("backoff", "DURATION", "First pause of a job after a failed request", options.backoff),
        field!("backoff-max", "DURATION", "Longest pause of a job after failed requests", options.backoff_max),
    ]
}

fn leading() -> Settings {
    vec![
        field!("leader-elect", "BOOL", "Work only while holding the Lease", options.leader_elect),
        field!("lease-name", "NAME", "Name of the Lease", options.lease_name),
        field!(
            "identity",
            "NAME",
            "Name of this process in the Lease; unset makes one from host and process",
            options.identity
        ),
        field!("lease-duration", "DURATION", "A Lease unchanged for this long is free", options.lease_duration),
        field!(
            "lease-renew-deadline",
            "DURATION",
            "A leader that could not renew for this long stops",
            options.lease_renew_deadline
        ),
        field!("lease-retry", "DURATION", "Pause between tries of the Lease", options.lease_retry),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_back_as_itself() {
        for setting in controller() {
            let mut daemon = Daemon::<Options>::default();
            let shown = (setting.show)(&daemon);
            (setting.set)(&mut daemon, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            assert_eq!(daemon, Daemon::default(), "{}", setting.name);
        }
    }
}
