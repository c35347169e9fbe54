//! Everything an operator can choose of the job controller: plain fields with the documented defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::contract::name::{BadName, check_label_name, check_subdomain};

/// The controller's configuration. [`Options::validate`] is called before anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// `spec.schedulerName` of the pods that are made: the scheduler that places TYJobs.
    pub scheduler_name: String,
    /// Credentials file; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease.
    pub namespace: String,
    /// Admin HTTP address: probes and metrics. `None` opens none.
    pub listen: Option<SocketAddr>,
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

impl Default for Options {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            scheduler_name: "baton-scheduler".into(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            listen: Some(([0, 0, 0, 0], 9404).into()),
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

/// More requests at a time than an API server answers one client.
const MAX_CONCURRENCY: usize = 4096;

/// Why a configuration cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A field that must not be empty.
    #[error("{0} is empty: give a value")]
    Empty(&'static str),
    /// A field that must be above zero.
    #[error("{0} is zero: give a value above zero")]
    Zero(&'static str),
    /// A name that no API server takes.
    #[error("{option}: {bad}")]
    Name {
        /// The flag.
        option: &'static str,
        /// Why.
        bad: BadName,
    },
    /// A number above what can be served.
    #[error("{option} is {value}: give at most {most}")]
    TooMany {
        /// The flag.
        option: &'static str,
        /// Its value.
        value: usize,
        /// The most.
        most: usize,
    },
    /// Two fields in the wrong order.
    #[error("{low} ({low_value:?}) must be below {high} ({high_value:?})")]
    Order {
        /// The smaller.
        low: &'static str,
        /// Its value.
        low_value: Duration,
        /// The larger.
        high: &'static str,
        /// Its value.
        high_value: Duration,
    },
}

impl Options {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let words = [
            ("scheduler-name", &self.scheduler_name),
            ("namespace", &self.namespace),
            ("lease-name", &self.lease_name),
        ];
        if let Some((name, _)) = words.iter().find(|(_, value)| value.is_empty()) {
            return Err(OptionsError::Empty(name));
        }
        let names = [
            ("--namespace", check_label_name("namespace", &self.namespace)),
            ("--lease-name", check_subdomain("Lease name", &self.lease_name)),
        ];
        for (option, checked) in names {
            checked.map_err(|bad| OptionsError::Name { option, bad })?;
        }
        let above_zero = [("lease-retry", self.lease_retry), ("backoff", self.backoff), ("resync", self.resync)];
        if let Some((name, _)) = above_zero.iter().find(|(_, value)| value.is_zero()) {
            return Err(OptionsError::Zero(name));
        }
        if self.concurrency == 0 {
            return Err(OptionsError::Zero("concurrency"));
        }
        if self.concurrency > MAX_CONCURRENCY {
            let (option, value) = ("--concurrency", self.concurrency);
            return Err(OptionsError::TooMany { option, value, most: MAX_CONCURRENCY });
        }
        let ordered = [
            ("lease-retry", self.lease_retry, "lease-renew-deadline", self.lease_renew_deadline),
            ("lease-renew-deadline", self.lease_renew_deadline, "lease-duration", self.lease_duration),
        ];
        match ordered.into_iter().find(|(_, low, _, high)| low >= high) {
            Some((low, low_value, high, high_value)) => Err(OptionsError::Order { low, low_value, high, high_value }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_bad_value_is_named() {
        assert_eq!(Options::default().validate(), Ok(()));
        let said = |options: Options| options.validate().unwrap_err().to_string();
        assert!(said(Options { scheduler_name: String::new(), ..Options::default() }).contains("scheduler-name"));
        assert!(said(Options { concurrency: 0, ..Options::default() }).contains("concurrency"));
        assert!(said(Options { concurrency: usize::MAX, ..Options::default() }).contains("at most 4096"));
        assert!(said(Options { namespace: "A_b".into(), ..Options::default() }).contains("\"A_b\""));
        assert!(said(Options { lease_name: "x y".into(), ..Options::default() }).contains("--lease-name"));
        let late = Options { lease_renew_deadline: Duration::from_secs(20), ..Options::default() };
        assert!(said(late).contains("lease-duration"));
    }
}
