//! Options of the scheduler: plain fields with the documented defaults. `ops` fills them from flags, environment and file.

use std::path::PathBuf;
use std::time::Duration;

use super::extender::ExtenderOptions;
use baton_cluster::leadership::LeaderOptions;
use baton_contract::gang::{MAX_WAIT, MatchPolicy, TimeoutClock};
use baton_contract::name::{check_annotation_key, check_daemon_namespace};
use baton_contract::{LockFormat, LockWord, key};
use baton_decide::gang::{GangPolicy, OnBindFailure};
use baton_decide::lock::LockMode;
use baton_decide::scheduler::earmarks::EarmarkPolicy;
use baton_decide::scheduler::rules::RegistryError;
use baton_decide::scheduler::rules::plugins::{
    DefaultSet, NodesWithoutAgent, PluginChoice, Profile, RatioConfig, RatioError, default_plugins,
};
use baton_decide::tyjob::JobPolicy;
use baton_decide::tyjob::placement::MetricWeights;
use baton_decide::world::gangs::GangDefaults;
use baton_runtime::admin::PortOptions;
use baton_runtime::options::{self, OptionError};

/// The scheduler's configuration. [`SchedulerOptions::validate`] is called before anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Pods with this `spec.schedulerName` are ours.
    pub scheduler_name: String,
    /// Further names that are ours.
    pub more_scheduler_names: Vec<String>,
    /// Credentials file; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agents' Leases and, unless said otherwise, of our own.
    pub namespace: String,
    /// Its addresses.
    pub ports: PortOptions,

    /// Node annotation of the node lock.
    pub node_lock_key: String,
    /// How the lock is written; all formats are read.
    pub node_lock_format: LockFormat,
    /// When the lock is taken.
    pub node_lock: LockMode,
    /// Age from which a lock is suspect.
    pub node_lock_expiry: Duration,
    /// What becomes of device pods on nodes without a live agent.
    pub nodes_without_agent: NodesWithoutAgent,

    /// What scores are for.
    pub profile: Profile,
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
    /// When nodes are kept for what has waited long.
    pub earmarks: EarmarkPolicy,
    /// kube-scheduler's calls.
    pub extender: ExtenderOptions,

    /// How it runs for leadership.
    pub leader: LeaderOptions,
    /// Every period and window.
    pub periods: Periods,
    /// Requests to the API server at once.
    pub concurrency: usize,
}

/// Every period and window of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Periods {
    /// An agent's Lease unchanged for this long is stale.
    pub agent_stale: Duration,
    /// An expired lock is acted on only when the agent has been live for this long.
    pub agent_settled: Duration,
    /// A lock of the scheduler's own without a bind under way is released when it stood unchanged for this long.
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

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            scheduler_name: "baton-scheduler".into(),
            more_scheduler_names: Vec::new(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            ports: PortOptions::on(9413, 9403),
            node_lock_key: key::NODE_LOCK.into(),
            node_lock_format: LockFormat::default(),
            node_lock: LockMode::default(),
            node_lock_expiry: Duration::from_secs(300),
            nodes_without_agent: NodesWithoutAgent::default(),
            profile: Profile::default(),
            ratio_shape: vec![(0, 0), (100, 10)],
            ratio_weights: vec![(key::NVIDIA_GPU.into(), 4), ("cpu".into(), 1), ("memory".into(), 1)],
            plugins: PluginChoice::default(),
            gangs: GangOptions::default(),
            jobs: JobOptions::default(),
            earmarks: EarmarkPolicy::default(),
            extender: ExtenderOptions::default(),
            leader: LeaderOptions::of_lease("baton-scheduler"),
            periods: Periods::default(),
            concurrency: 64,
        }
    }
}

impl Default for Periods {
    fn default() -> Self {
        let s = Duration::from_secs;
        Self {
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

/// How gangs are treated where they do not say so themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangOptions {
    /// How long reserved members wait for the others.
    pub waiting_time: Duration,
    /// A longer waiting time of a gang counts as this.
    pub max_waiting_time: Duration,
    /// A higher sub-priority of a pod or gang counts as this.
    pub max_sub_priority: u32,
    /// Which members count.
    pub match_policy: MatchPolicy,
    /// When the wait begins.
    pub timeout_clock: TimeoutClock,
    /// What becomes of the others when one member cannot be bound for good.
    pub on_bind_failure: OnBindFailure,
    /// PodGroups are made for gangs that are named by `pod-group.scheduling.sigs.k8s.io/name`.
    pub auto_create_pod_group: bool,
    /// `spec.schedulingGroup` names gangs, and PodGroups of `scheduling.k8s.io` are read.
    pub scheduling_group: bool,
    /// The condition of a member whose reason stays is rewritten at most this often.
    pub condition_pause: Duration,
}

impl Default for GangOptions {
    fn default() -> Self {
        let (defaults, policy) = (GangDefaults::default(), GangPolicy::default());
        Self {
            waiting_time: defaults.wait,
            max_waiting_time: defaults.max_wait,
            max_sub_priority: defaults.max_sub_priority,
            match_policy: defaults.policy,
            timeout_clock: policy.clock,
            on_bind_failure: policy.on_bind_failure,
            auto_create_pod_group: policy.create_pod_groups,
            scheduling_group: defaults.scheduling_groups,
            condition_pause: policy.condition_pause,
        }
    }
}

impl GangOptions {
    /// What is wrong, by name of the key; `None` when it can work.
    pub fn problem(&self) -> Option<String> {
        let wait = self.waiting_time;
        let most = self.max_waiting_time;
        if most.is_zero() || most > MAX_WAIT {
            return Some(format!("max-waiting-time is {most:?}: give a value above zero and up to 7 days"));
        }
        (wait.is_zero() || wait > most).then(|| {
            format!("gang-waiting-time is {wait:?}: give a value above zero and up to max-waiting-time ({most:?}; at most 7 days)")
        })
    }

    /// What holds where a gang says nothing.
    pub fn defaults(&self) -> GangDefaults {
        GangDefaults {
            wait: self.waiting_time,
            policy: self.match_policy,
            scheduling_groups: self.scheduling_group,
            max_wait: self.max_waiting_time,
            max_sub_priority: self.max_sub_priority,
        }
    }

    /// How groups are treated.
    pub fn policy(&self) -> GangPolicy {
        GangPolicy {
            clock: self.timeout_clock,
            on_bind_failure: self.on_bind_failure,
            condition_pause: self.condition_pause,
            create_pod_groups: self.auto_create_pod_group,
        }
    }
}

/// How TYJobs are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOptions {
    /// Waiting jobs are tried this often.
    pub period: Duration,
    /// A job that does not fit on all known nodes fails after this long.
    pub unfit_grace: Duration,
    /// A place that its pod does not take within this time is void.
    pub reservation_timeout: Duration,
    /// Places without pods are given back this long after the job was placed.
    pub start_limit: Duration,
    /// Weights of `cpu`, `memory` and `nvidia.com/gpu` (GPUs under any name) in node ratings; 1 where not named.
    pub weights: Vec<(String, i64)>,
    /// Weight that `LeaderFirst` gives to GPUs for leaders and to CPU for workers.
    pub raised_weight: u32,
}

impl Default for JobOptions {
    fn default() -> Self {
        let policy = JobPolicy::default();
        Self {
            period: policy.period,
            unfit_grace: policy.unfit_grace,
            reservation_timeout: policy.reservation_timeout,
            start_limit: policy.start_limit,
            weights: ["cpu", "memory", key::NVIDIA_GPU].map(|name| (name.to_owned(), 1)).into(),
            raised_weight: policy.weights.raised,
        }
    }
}

impl JobOptions {
    /// What is wrong, by name of the key; `None` when it can work.
    pub fn problem(&self) -> Option<String> {
        let times = [
            ("job-period", self.period),
            ("reservation-timeout", self.reservation_timeout),
            ("start-limit", self.start_limit),
        ];
        if let Some((name, _)) = times.iter().find(|(_, value)| value.is_zero()) {
            return Some(format!("{name} is zero: give a value above zero"));
        }
        for (at, (name, weight)) in self.weights.iter().enumerate() {
            if !["cpu", "memory", key::NVIDIA_GPU].contains(&name.as_str()) {
                return Some(format!("job-weights names {name}: expected cpu, memory or {}", key::NVIDIA_GPU));
            }
            if !(1..=100).contains(weight) {
                return Some(format!("job-weights gives {name} the weight {weight}: expected 1 to 100"));
            }
            if self.weights[..at].iter().any(|(other, _)| other == name) {
                return Some(format!("job-weights names {name} twice: expected once"));
            }
        }
        let raised = self.raised_weight;
        (!(1..=100).contains(&raised)).then(|| format!("job-raised-weight is {raised}: expected 1 to 100"))
    }

    /// How jobs are treated.
    pub fn policy(&self) -> JobPolicy {
        let of = |name: &str| {
            let found = self.weights.iter().find(|(known, _)| known == name);
            found.and_then(|(_, weight)| u32::try_from(*weight).ok()).unwrap_or(1)
        };
        let (cpu, memory, gpu) = (of("cpu"), of("memory"), of(key::NVIDIA_GPU));
        JobPolicy {
            period: self.period,
            unfit_grace: self.unfit_grace,
            reservation_timeout: self.reservation_timeout,
            start_limit: self.start_limit,
            weights: MetricWeights { cpu, memory, gpu, raised: self.raised_weight },
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

impl SchedulerOptions {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let words = [
            ("scheduler-name", &*self.scheduler_name),
            ("namespace", &*self.namespace),
            ("node-lock-key", &*self.node_lock_key),
        ];
        options::filled(&words)?;
        options::named("--namespace", check_daemon_namespace(&self.namespace))?;
        options::named("--node-lock-key", check_annotation_key("node lock key", &self.node_lock_key))?;
        if !(1..=100).contains(&self.earmarks.share) {
            return Err(OptionsError::Gangs(format!(
                "age-share is {}: expected 1 to 100 percent",
                self.earmarks.share
            )));
        }
        self.ports.validate()?;
        let p = &self.periods;
        options::above_zero(&[
            ("age-limit", self.earmarks.limit),
            ("agent-stale", p.agent_stale),
            ("lock-sweep", p.lock_sweep),
            ("backoff", p.backoff),
            ("bind-timeout", p.bind_timeout),
            ("node-lock-expiry", self.node_lock_expiry),
        ])?;
        options::concurrency(self.concurrency)?;
        self.leader.validate()?;
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

    /// How nodes are locked, as scheduler and node daemons tell each other.
    pub fn lock_word(&self) -> LockWord {
        LockWord::new(&self.node_lock_key, self.node_lock_format)
    }

    /// What the plugins are made from.
    pub fn plugin_set(&self) -> Result<DefaultSet, OptionsError> {
        let ratio = RatioConfig::new(self.ratio_shape.clone(), self.ratio_weights.clone())?;
        let lists = self.plugins.lists.clone().of_profile(self.profile);
        let choice = PluginChoice { lists, ..self.plugins.clone() };
        Ok(DefaultSet { without_agent: self.nodes_without_agent, lock: self.lock_word(), ratio, choice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_a_bad_value_is_named() {
        assert_eq!(SchedulerOptions::default().validate(), Ok(()));
        let mut options = SchedulerOptions { scheduler_name: String::new(), ..SchedulerOptions::default() };
        assert!(options.validate().unwrap_err().to_string().contains("scheduler-name"));
        options = SchedulerOptions::default();
        options.leader.renew_deadline = Duration::from_secs(20);
        assert!(options.validate().unwrap_err().to_string().contains("lease-duration"));
        options = SchedulerOptions { ratio_shape: vec![(0, 11)], ..SchedulerOptions::default() };
        assert!(options.validate().is_err());
        let said = |options: SchedulerOptions| options.validate().unwrap_err().to_string();
        for key in ["a/b/c", "x y"] {
            let said = said(SchedulerOptions { node_lock_key: key.into(), ..SchedulerOptions::default() });
            assert!(said.contains("--node-lock-key") && said.contains(key), "{said}");
        }
        assert!(said(SchedulerOptions { namespace: "A_b".into(), ..SchedulerOptions::default() }).contains("\"A_b\""));
        assert!(
            said(SchedulerOptions { concurrency: usize::MAX, ..SchedulerOptions::default() }).contains("at most 4096")
        );
    }

    #[test]
    fn a_gang_wait_without_end_is_refused() {
        assert_eq!(GangOptions::default().problem(), None);
        for wait in [Duration::ZERO, MAX_WAIT + Duration::from_secs(1)] {
            let options = GangOptions { waiting_time: wait, ..GangOptions::default() };
            assert!(options.problem().unwrap().contains("gang-waiting-time"));
        }
    }

    #[test]
    fn the_job_defaults_are_those_of_the_decisions_and_a_bad_value_is_named() {
        assert_eq!((JobOptions::default().problem(), JobOptions::default().policy()), (None, JobPolicy::default()));
        let with = |weights: &[(&str, i64)]| JobOptions {
            weights: weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            ..JobOptions::default()
        };
        assert_eq!(with(&[("cpu", 3)]).policy().weights, MetricWeights { cpu: 3, ..MetricWeights::default() });
        for bad in [&[("disk", 1)][..], &[("cpu", 0)], &[("cpu", 101)], &[("cpu", 1), ("cpu", 2)]] {
            assert!(with(bad).problem().unwrap().contains("job-weights"));
        }
        assert!(
            JobOptions { period: Duration::ZERO, ..JobOptions::default() }.problem().unwrap().contains("job-period")
        );
        assert!(
            JobOptions { raised_weight: 0, ..JobOptions::default() }.problem().unwrap().contains("job-raised-weight")
        );
    }
}
