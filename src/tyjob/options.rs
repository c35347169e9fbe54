//! Everything an operator can choose of the job controller: plain fields with the documented defaults.

use std::path::PathBuf;
use std::time::Duration;

use baton_contract::name::{check_label_name, check_subdomain};
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
    /// Work only while holding the Lease. Off for a single controller in tests.
    pub leader_elect: bool,
    /// Name of the Lease.
    pub lease_name: String,
    /// Who we are in the Lease; empty makes a name from host and process.
    pub identity: String,
    /// A Lease unchanged for this long is free.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops.
    pub lease_renew_deadline: Duration,
    /// Pause between tries of the Lease.
    pub lease_retry: Duration,
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
            leader_elect: true,
            lease_name: "baton-controller".into(),
            identity: String::new(),
            lease_duration: s(15),
            lease_renew_deadline: s(10),
            lease_retry: s(2),
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
        let words = [
            ("scheduler-name", &*self.scheduler_name),
            ("namespace", &*self.namespace),
            ("lease-name", &*self.lease_name),
        ];
        options::filled(&words)?;
        options::named("--namespace", check_label_name("namespace", &self.namespace))?;
        options::named("--lease-name", check_subdomain("Lease name", &self.lease_name))?;
        options::above_zero(&[("lease-retry", self.lease_retry), ("backoff", self.backoff), ("resync", self.resync)])?;
        options::concurrency(self.concurrency)?;
        self.ports.validate(|option, problem| OptionError::Name { option, problem })?;
        options::ascending(&[
            ("lease-retry", self.lease_retry),
            ("lease-renew-deadline", self.lease_renew_deadline),
            ("lease-duration", self.lease_duration),
        ])
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
            said(ControllerOptions { lease_name: "x y".into(), ..ControllerOptions::default() })
                .contains("--lease-name")
        );
        let late = ControllerOptions { lease_renew_deadline: Duration::from_secs(20), ..ControllerOptions::default() };
        assert!(said(late).contains("lease-duration"));
    }
}
