//! Everything an operator can choose of the job controller: plain fields with the documented defaults.

use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_cluster::leadership::LeaderOptions;
use baton_contract::name::check_label_name;
use baton_decide::controller::ControllerPolicy;
use baton_runtime::admin::{AdminListen, PortOptions};
use baton_runtime::options::{self, OptionError};
use baton_runtime::timings::{Timed, s, timings};

/// The controller's configuration. [`ControllerOptions::validate`] is called before anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerOptions {
    /// `spec.schedulerName` of the pods that are made: the scheduler that places TYJobs.
    pub scheduler_name: String,
    /// Credentials file; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its addresses.
    pub ports: PortOptions,
    /// How it runs for leadership.
    pub leader: LeaderOptions,
    /// What is fixed.
    pub timings: ControllerTimings,
}

timings! {
    /// The times that the TYJob controller fixes.
    ControllerTimings {
        /// First pause of a job after a failed request: a conflict is over at once.
        backoff: s(1),
        /// Longest pause of a job after failed requests: a quota that is raised is noticed within a minute.
        backoff_max: s(60),
        /// Every job is reconciled, even without a change, in case a watch lost one.
        resync: s(300),
    }
}

impl Timed for ControllerOptions {
    fn times(&mut self) -> Vec<(&'static str, &mut Duration)> {
        [self.timings.times(), self.leader.timings.times()].into_iter().flatten().collect()
    }
    fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            scheduler_name: "baton-scheduler".into(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            // Nothing is asked of it but probes and metrics.
            ports: PortOptions { listen: AdminListen::None, ..PortOptions::on(0, 9404, 9424) },
            leader: LeaderOptions::of_lease("baton-controller"),
            timings: ControllerTimings::default(),
        }
    }
}

impl ControllerOptions {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionError> {
        options::filled(&[("scheduler-name", &self.scheduler_name), ("namespace", &self.namespace)])?;
        options::named("--namespace", check_label_name("namespace", &self.namespace))?;
        self.ports.validate()
    }

    /// What the controller that decides needs of them.
    pub fn settings(&self) -> ControllerPolicy {
        let ControllerTimings { backoff, backoff_max, resync } = self.timings;
        ControllerPolicy { scheduler_name: self.scheduler_name.as_str().into(), backoff, backoff_max, resync }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_bad_value_is_named() {
        assert_eq!(ControllerOptions::default().validate(), Ok(()));
        let said = |options: ControllerOptions| options.validate().unwrap_err().to_string();
        assert!(
            said(ControllerOptions { scheduler_name: String::new(), ..ControllerOptions::default() })
                .contains("scheduler-name")
        );
        assert!(
            said(ControllerOptions { namespace: "A_b".into(), ..ControllerOptions::default() }).contains("\"A_b\"")
        );
    }
}
