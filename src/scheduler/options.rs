//! Everything an operator can choose of the scheduler: plain fields with the documented defaults. Flags, environment and file
//! are read elsewhere and end here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::extender::ExtenderOptions;
use super::gang::GangOptions;
use super::tyjob::JobOptions;
use crate::contract::name::{check_annotation_key, check_label_name, check_subdomain};
use crate::contract::{LockFormat, key};
use crate::decide::lock::ExpiredHolder;
use crate::decide::scheduler::LockMode;
use crate::decide::scheduler::rules::RegistryError;
use crate::decide::scheduler::rules::plugins::{
    DefaultSet, NodesWithoutAgent, PluginChoice, RatioConfig, RatioError, default_plugins,
};
use crate::runtime::options::{self, OptionError};

/// The scheduler's configuration. [`Options::validate`] is called before anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Pods with this `spec.schedulerName` are ours.
    pub scheduler_name: String,
    /// Further names that are ours.
    pub more_scheduler_names: Vec<String>,
    /// Credentials file; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agents' Leases and, unless said otherwise, of our own.
    pub namespace: String,
    /// Admin HTTP address: probes, metrics, `/explain`. `None` opens none.
    pub listen: Option<SocketAddr>,

    /// Node annotation of the node lock.
    pub node_lock_key: String,
    /// How the lock is written; all formats are read.
    pub node_lock_format: LockFormat,
    /// When the lock is taken.
    pub node_lock: LockMode,
    /// Age from which a lock is suspect.
    pub node_lock_expiry: Duration,
    /// What happens to a live holder of an expired lock.
    pub expired_holder: ExpiredHolder,
    /// What becomes of device pods on nodes without a live agent.
    pub nodes_without_agent: NodesWithoutAgent,

    /// `RequestedToCapacityRatio`: points (utilization 0..=100, score 0..=10), ascending.
    pub ratio_shape: Vec<(i64, i64)>,
    /// `RequestedToCapacityRatio`: weights by resource name; `nvidia.com/gpu` stands for GPUs under any name.
    pub ratio_weights: Vec<(String, i64)>,
    /// Which plugins are enabled, and the arguments of the others.
    pub plugins: PluginChoice,

    /// How gangs are treated.
    pub gangs: GangOptions,
    /// How TYJobs are placed.
    pub jobs: JobOptions,
    /// kube-scheduler's calls.
    pub extender: ExtenderOptions,

    /// Run only while holding the Lease. Off for a single scheduler in tests.
    pub leader_elect: bool,
    /// Name of our Lease.
    pub lease_name: String,
    /// Who we are in the Lease; empty makes a name from host and process.
    pub identity: String,
    /// Every period and window.
    pub periods: Periods,
    /// Requests to the API server at once.
    pub concurrency: usize,
}

/// Every period and window of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// A Lease unchanged for this long is free.
    pub lease_duration: Duration,
    /// A leader that could not renew for this long stops.
    pub lease_renew_deadline: Duration,
    /// Pause between tries of the Lease.
    pub lease_retry: Duration,
    /// An agent's Lease unchanged for this long is stale.
    pub agent_stale: Duration,
    /// An expired lock is acted on only when the agent has been live for this long.
    pub agent_settled: Duration,
    /// A lock of ours that nobody pursues is released when it stood unchanged for this long.
    pub lock_abandoned: Duration,
    /// Locks are looked over.
    pub lock_sweep: Duration,
    /// First pause of a pod after a failure.
    pub backoff: Duration,
    /// Longest pause of a pod after failures.
    pub backoff_max: Duration,
    /// A bind that fails in a way that may pass is tried for this long.
    pub bind_limit: Duration,
    /// One Binding request may take this long.
    pub bind_timeout: Duration,
    /// A condition whose reason stays is rewritten at most this often.
    pub condition_pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler_name: "baton-scheduler".into(),
            more_scheduler_names: Vec::new(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            listen: Some(([0, 0, 0, 0], 9403).into()),
            node_lock_key: key::NODE_LOCK.into(),
            node_lock_format: LockFormat::default(),
            node_lock: LockMode::default(),
            node_lock_expiry: Duration::from_secs(300),
            expired_holder: ExpiredHolder::default(),
            nodes_without_agent: NodesWithoutAgent::default(),
            ratio_shape: vec![(0, 0), (100, 10)],
            ratio_weights: vec![(key::NVIDIA_GPU.into(), 4), ("cpu".into(), 1), ("memory".into(), 1)],
            plugins: PluginChoice::default(),
            gangs: GangOptions::default(),
            jobs: JobOptions::default(),
            extender: ExtenderOptions::default(),
            leader_elect: true,
            lease_name: "baton-scheduler".into(),
            identity: String::new(),
            periods: Periods::default(),
            concurrency: 64,
        }
    }
}

impl Default for Periods {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
            lease_duration: s(15),
            lease_renew_deadline: s(10),
            lease_retry: s(2),
            agent_stale: s(90),
            agent_settled: s(30),
            lock_abandoned: s(30),
            lock_sweep: s(10),
            backoff: s(1),
            backoff_max: s(10),
            bind_limit: s(60),
            bind_timeout: s(10),
            condition_pause: s(10),
        }
    }
}

/// Why a configuration cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// An option that other daemons have, too.
    #[error(transparent)]
    Common(#[from] OptionError),
    /// Shape or weights.
    #[error(transparent)]
    Ratio(#[from] RatioError),
    /// Plugins that cannot work together.
    #[error(transparent)]
    Plugins(#[from] RegistryError),
    /// kube-scheduler's calls.
    #[error("{0}")]
    Extender(String),
    /// How gangs are treated.
    #[error("{0}")]
    Gangs(String),
    /// How TYJobs are placed.
    #[error("{0}")]
    Jobs(String),
}

impl Options {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let words = [
            ("scheduler-name", &*self.scheduler_name),
            ("namespace", &*self.namespace),
            ("node-lock-key", &*self.node_lock_key),
            ("lease-name", &*self.lease_name),
        ];
        options::filled(&words)?;
        options::named("--namespace", check_label_name("namespace", &self.namespace))?;
        options::named("--lease-name", check_subdomain("Lease name", &self.lease_name))?;
        options::named("--node-lock-key", check_annotation_key("node lock key", &self.node_lock_key))?;
        let p = &self.periods;
        options::above_zero(&[
            ("lease-retry", p.lease_retry),
            ("agent-stale", p.agent_stale),
            ("lock-sweep", p.lock_sweep),
            ("backoff", p.backoff),
            ("bind-timeout", p.bind_timeout),
            ("node-lock-expiry", self.node_lock_expiry),
        ])?;
        options::concurrency(self.concurrency)?;
        options::ascending(&[
            ("lease-retry", p.lease_retry),
            ("lease-renew-deadline", p.lease_renew_deadline),
            ("lease-duration", p.lease_duration),
        ])?;
        self.extender.validate().map_err(|error| OptionsError::Extender(error.to_string()))?;
        if let Some(problem) = self.gangs.problem() {
            return Err(OptionsError::Gangs(problem));
        }
        if let Some(problem) = self.jobs.problem() {
            return Err(OptionsError::Jobs(problem));
        }
        default_plugins(&self.plugin_set()?)?;
        Ok(())
    }

    /// What the plugins are made from.
    pub fn plugin_set(&self) -> Result<DefaultSet, OptionsError> {
        let ratio = RatioConfig::new(self.ratio_shape.clone(), self.ratio_weights.clone())?;
        Ok(DefaultSet { without_agent: self.nodes_without_agent, ratio, choice: self.plugins.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_bad_value_is_named() {
        assert_eq!(Options::default().validate(), Ok(()));
        let mut options = Options { scheduler_name: String::new(), ..Options::default() };
        assert!(options.validate().unwrap_err().to_string().contains("scheduler-name"));
        options = Options::default();
        options.periods.lease_renew_deadline = Duration::from_secs(20);
        assert!(options.validate().unwrap_err().to_string().contains("lease-duration"));
        options = Options { ratio_shape: vec![(0, 11)], ..Options::default() };
        assert!(options.validate().is_err());
        let said = |options: Options| options.validate().unwrap_err().to_string();
        for key in ["a/b/c", "x y"] {
            let said = said(Options { node_lock_key: key.into(), ..Options::default() });
            assert!(said.contains("--node-lock-key") && said.contains(key), "{said}");
        }
        assert!(said(Options { namespace: "A_b".into(), ..Options::default() }).contains("\"A_b\""));
        assert!(said(Options { concurrency: usize::MAX, ..Options::default() }).contains("at most 4096"));
    }
}
