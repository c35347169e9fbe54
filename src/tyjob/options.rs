//! Everything an operator can choose of the job controller: plain fields with the documented defaults.

use std::path::PathBuf;
use std::time::Duration;

use baton_cluster::leadership::LeaderOptions;
use baton_contract::name::check_label_name;
use baton_runtime::admin::PortOptions;
use baton_runtime::options::{self, OptionError};

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
    /// First pause of a job after a failed request.
    pub backoff: Duration,
    /// Longest pause of a job after failed requests.
    pub backoff_max: Duration,
    /// Every job is looked at this often, whether something happened or not.
    pub resync: Duration,
    /// Jobs that are worked on at once.
    pub concurrency: usize,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            scheduler_name: "baton-scheduler".into(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            ports: PortOptions::on(9414, 9404),
            leader: LeaderOptions::of_lease("baton-controller"),
            backoff: s(1),
            backoff_max: s(60),
            resync: s(300),
            concurrency: 16,
        }
    }
}

impl ControllerOptions {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionError> {
        options::filled(&[("scheduler-name", &self.scheduler_name), ("namespace", &self.namespace)])?;
        options::named("--namespace", check_label_name("namespace", &self.namespace))?;
        options::above_zero(&[("backoff", self.backoff), ("resync", self.resync)])?;
        options::concurrency(self.concurrency)?;
        self.ports.validate()?;
        self.leader.validate()
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
        assert!(said(ControllerOptions { concurrency: 0, ..ControllerOptions::default() }).contains("concurrency"));
        assert!(
            said(ControllerOptions { concurrency: usize::MAX, ..ControllerOptions::default() })
                .contains("at most 4096")
        );
        assert!(
            said(ControllerOptions { namespace: "A_b".into(), ..ControllerOptions::default() }).contains("\"A_b\"")
        );
        assert!(
            said(ControllerOptions { leader: LeaderOptions::of_lease("x y"), ..ControllerOptions::default() })
                .contains("--lease-name")
        );
        let leader =
            LeaderOptions { renew_deadline: Duration::from_secs(20), ..LeaderOptions::of_lease("baton-controller") };
        let late = ControllerOptions { leader, ..ControllerOptions::default() };
        assert!(said(late).contains("lease-duration"));
    }
}
