//! The keys of the TYJob controller.

use super::log::{DaemonSettings, log, settings};
use super::ports::{leading, ports};
use crate::config::Setting;
use baton_tyjob::ControllerOptions;

/// Every key of `baton controller`, in the order of its help.
pub fn controller() -> Vec<Setting<DaemonSettings<ControllerOptions>>> {
    [work(), ports!(), leading!(), log()].into_iter().flatten().collect()
}

type ControllerSettings = Vec<Setting<DaemonSettings<ControllerOptions>>>;

fn work() -> ControllerSettings {
    settings! {
        "scheduler-name" "NAME" options.scheduler_name
            "spec.schedulerName of the pods that are made: the scheduler that places TYJobs";
        "namespace" "NAMESPACE" options.namespace "Namespace of the Lease";
        "kubeconfig" "FILE" options.kubeconfig "Credentials for the API server; none is the pod's service account";
    }
}
