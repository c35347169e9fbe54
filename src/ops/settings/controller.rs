//! The keys of the TYJob controller.

use super::log::{Daemon, log, settings};
use super::ports::ports;
use crate::config::Setting;
use baton_tyjob::ControllerOptions;

/// Every key of `baton controller`, in the order of its help.
pub fn controller() -> Vec<Setting<Daemon<ControllerOptions>>> {
    [work(), ports!(), leading(), log()].into_iter().flatten().collect()
}

type Settings = Vec<Setting<Daemon<ControllerOptions>>>;

fn work() -> Settings {
    settings! {
        "scheduler-name" "NAME" options.scheduler_name
            "spec.schedulerName of the pods that are made: the scheduler that places TYJobs";
        "namespace" "NAMESPACE" options.namespace "Namespace of the Lease";
        "kubeconfig" "FILE" options.kubeconfig "Credentials for the API server; none is the pod's service account";
        "concurrency" "COUNT" options.concurrency "Jobs that are reconciled at once";
        "resync" "DURATION" options.resync "Every job is reconciled, even without a change";
        "backoff" "DURATION" options.backoff "First pause of a job after a failed request";
        "backoff-max" "DURATION" options.backoff_max "Longest pause of a job after failed requests";
    }
}

fn leading() -> Settings {
    settings! {
        "leader-elect" "BOOL" options.leader_elect "Work only while holding the Lease";
        "lease-name" "NAME" options.lease_name "Name of the Lease";
        "identity" "NAME" options.identity "Name of this process in the Lease; unset makes one from host and process";
        "lease-duration" "DURATION" options.lease_duration "A Lease unchanged for this long is free";
        "lease-renew-deadline" "DURATION" options.lease_renew_deadline "A leader that could not renew for this long stops";
        "lease-retry" "DURATION" options.lease_retry "Pause between tries of the Lease";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_back_as_itself() {
        for setting in controller() {
            let mut daemon = Daemon::<ControllerOptions>::default();
            let shown = (setting.show)(&daemon);
            (setting.set)(&mut daemon, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            assert_eq!(daemon, Daemon::default(), "{}", setting.name);
        }
    }
}
