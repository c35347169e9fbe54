//! Options of the scheduler: plain fields with the documented defaults. `ops` fills them from flags, environment and file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::extender::ExtenderOptions;
use baton_cluster::leadership::LeaderOptions;
use baton_contract::gang::{MAX_WAIT, MatchPolicy, TimeoutClock, TopologyLayer};
use baton_contract::name::{check_annotation_key, check_daemon_namespace};
use baton_contract::{LockFormat, LockWord, key};
use baton_decide::core::EarmarkPolicy;
use baton_decide::core::JobPolicy;
use baton_decide::core::MetricWeights;
use baton_decide::core::queue::QueuePolicy;
use baton_decide::core::rules::RegistryError;
use baton_decide::core::rules::plugins::{
    DefaultSet, NodesWithoutAgent, PluginChoice, Profile, RatioConfig, RatioError, default_plugins,
};
use baton_decide::core::{GangPolicy, OnBindFailure, RetryPolicy};
use baton_decide::lock::{LockMode, LockPolicy};
use baton_decide::scheduler::Config;
use baton_decide::world::WorldPolicy;
use baton_decide::world::gangs::GangDefaults;
use baton_runtime::admin::PortOptions;
use baton_runtime::options::{self, OptionError};
use baton_runtime::timings::{Timed, s, timings};

/// The scheduler's configuration. [`SchedulerOptions::validate`] is called before anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Pods with one of these `spec.schedulerName`s are ours; events are written under the first.
    pub scheduler_names: Vec<String>,
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
    /// A TYJob that does not fit on all known nodes, as if they were empty, fails after this long.
    pub unfit_grace: Duration,
    /// Weights of the resources when TYJobs' policies rate nodes.
    pub job_weights: MetricWeights,
    /// When nodes are kept for what has waited long.
    pub earmarks: EarmarkPolicy,
    /// Pods of a device that the hardware has failed, and pods that run without their devices, are evicted.
    pub evict_on_fault: bool,
    /// kube-scheduler's calls.
    pub extender: ExtenderOptions,

    /// How it runs for leadership.
    pub leader: LeaderOptions,
    /// What is fixed.
    pub timings: SchedulerTimings,
    /// Requests to the API server at once.
    pub concurrency: usize,
}

timings! {
    /// The times that the scheduler fixes. A reason that is not here stands at the policy that has the value.
    SchedulerTimings {
        /// A node daemon's Lease unchanged for this long is stale: three renewals have failed.
        agent_stale: WorldPolicy::default().agent_stale,
        /// An expired lock is acted on only when the node's daemon has been live for this long: it releases what it serves first.
        agent_settled: LockPolicy::default().agent_settled,
        /// A Binding that was posted, by this leader or the one before, may be made for this long.
        lock_abandoned: Config::default().abandoned,
        /// All node locks are checked: often enough that each of the times above is kept to a third.
        lock_sweep: Config::default().sweep,
        /// First pause of a pod after a failure.
        backoff: QueuePolicy::default().backoff,
        /// Longest pause of a pod after failures, as kube-scheduler's.
        backoff_max: QueuePolicy::default().backoff_max,
        /// A bind whose failure may pass is tried for this long: a restart of the API server passes.
        bind_limit: RetryPolicy::default().limit,
        /// One Binding request: a loaded API server answers within it.
        bind_timeout: s(10),
        /// A condition whose reason stays is rewritten at most this often: its text is for people.
        condition_pause: Config::default().condition_pause,
        /// The same for members of a gang, of which there are hundreds.
        gang_condition_pause: GangPolicy::default().condition_pause,
        /// Waiting TYJobs are tried this often, beside useful events.
        job_period: JobPolicy::default().period,
        /// The place of a TYJob's pod is void when the pod does not take it within this time: the controller makes it at once.
        reservation_timeout: JobPolicy::default().reservation_timeout,
        /// Places of a TYJob whose pods are not made within this time are given back.
        start_limit: JobPolicy::default().start_limit,
        /// A device that the hardware has failed has this long to come back before its pods are evicted: three clean probes over a
        /// minute, and a reset by hand.
        fault_grace: s(300),
        /// Longest wait of kube-scheduler's bind for the node's lock: below the httpTimeout that its configuration gives the extender.
        bind_wait: s(10),
    }
}

impl Timed for SchedulerOptions {
    fn times(&mut self) -> Vec<(&'static str, &mut Duration)> {
        [self.timings.times(), self.leader.timings.times()].into_iter().flatten().collect()
    }
    fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self {
            scheduler_names: vec!["baton-scheduler".into()],
            kubeconfig: None,
            namespace: "baton-system".into(),
            ports: PortOptions::on(9413, 9403, 9423),
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
            unfit_grace: JobPolicy::default().unfit_grace,
            job_weights: MetricWeights::default(),
            earmarks: EarmarkPolicy::default(),
            evict_on_fault: false,
            extender: ExtenderOptions::default(),
            leader: LeaderOptions::of_lease("baton-scheduler"),
            timings: SchedulerTimings::default(),
            concurrency: 64,
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
    /// Layers in which gangs can be gathered, outermost first.
    pub topology_layers: Vec<TopologyLayer>,
}

impl Default for GangOptions {
    fn default() -> Self {
        let (defaults, policy) = (GangDefaults::default(), GangPolicy::default());
        Self {
            waiting_time: defaults.wait,
            max_waiting_time: defaults.max_wait,
            match_policy: defaults.policy,
            timeout_clock: policy.clock,
            on_bind_failure: policy.on_bind_failure,
            auto_create_pod_group: policy.create_pod_groups,
            scheduling_group: defaults.scheduling_groups,
            topology_layers: TopologyLayer::defaults(),
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
            layers: self.topology_layers.clone().into(),
        }
    }

    /// How groups are treated.
    pub fn policy(&self, condition_pause: Duration) -> GangPolicy {
        GangPolicy {
            clock: self.timeout_clock,
            on_bind_failure: self.on_bind_failure,
            condition_pause,
            create_pod_groups: self.auto_create_pod_group,
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
}

impl SchedulerOptions {
    /// Checks what types cannot.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let words = [
            ("scheduler-name", self.scheduler_names.first().map_or("", String::as_str)),
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
        options::above_zero(&[("node-lock-expiry", self.node_lock_expiry)])?;
        options::concurrency(self.concurrency)?;
        self.extender.validate().map_err(|error| OptionsError::Extender(error.to_string()))?;
        if let Some(problem) = self.gangs.problem() {
            return Err(OptionsError::Gangs(problem));
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
        for names in [vec![], vec![String::new()]] {
            let options = SchedulerOptions { scheduler_names: names, ..SchedulerOptions::default() };
            assert!(options.validate().unwrap_err().to_string().contains("scheduler-name"));
        }
        let options = SchedulerOptions { ratio_shape: vec![(0, 11)], ..SchedulerOptions::default() };
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
}
