//! The keys of the central scheduler.

use super::log::{DaemonSettings, by_from_str, log, settings};
use super::ports::{admin, leading, ports};
use crate::config::{Setting, Value};
use baton_contract::gang::{MatchPolicy, key};
use baton_contract::gang::{TimeoutClock, TopologyLayer};
use baton_decide::core::OnBindFailure;
use baton_decide::core::rules::plugins::{NodesWithoutAgent, Profile};
use baton_decide::lock::LockMode;
use baton_scheduler::SchedulerOptions;
use baton_scheduler::extender::GangPods;

by_from_str!(LockMode, NodesWithoutAgent, Profile, GangPods, TimeoutClock, OnBindFailure, TopologyLayer);

impl Value for MatchPolicy {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(key::MATCH_POLICY, text).map_err(|bad| format!("{text:?} {}", bad.rule))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// Every key of `baton scheduler`, in the order of its help.
pub fn scheduler() -> Vec<Setting<DaemonSettings<SchedulerOptions>>> {
    let admin: SchedulerSettings = admin!("9413", "what `baton get` and `baton explain` ask");
    [identity(), admin, ports!(), work(), leading!(), log()].into_iter().flatten().collect()
}

type SchedulerSettings = Vec<Setting<DaemonSettings<SchedulerOptions>>>;

fn identity() -> SchedulerSettings {
    settings! {
        "scheduler-name" "LIST" options.scheduler_names
            "Pods with one of these spec.schedulerNames are scheduled; events are written under the first";
        "namespace" "NAMESPACE" options.namespace "Namespace of this daemon and its Lease; the node daemons' Leases are in <NAMESPACE>-nodes";
        "kubeconfig" "FILE" options.kubeconfig "Credentials for the API server; none is the pod's service account";
        "concurrency" "COUNT" options.concurrency "Requests to the API server at once";
    }
}

fn work() -> SchedulerSettings {
    settings! {
        "node-lock-key" "KEY" options.node_lock_key "Node annotation of the node lock";
        "node-lock-format" "uid|triple|timestamp" options.node_lock_format "How the lock is written; every format is read";
        "node-lock" "always|auto" options.node_lock
            "Lock the node for every bind, or only where its node daemon cannot identify the calling pod without it";
        "node-lock-expiry" "DURATION" options.node_lock_expiry "Age from which a lock is suspect";
        // Where pods go.
        "nodes-without-agent" "refuse|plain" options.nodes_without_agent
            "Device pods on nodes without a live node daemon: refuse, or count allocatable only, as kube-scheduler does";
        "profile" "binpack|utilization" options.profile
            "What scores are for: fill one node after the other, or keep what typical pods need (GpuPatience), so that more GPUs can be handed out";
        // Gangs.
        "gang-waiting-time" "DURATION" options.gangs.waiting_time
            "How long reserved members of a gang wait for the others, where the gang does not say; up to 7 days";
        "max-waiting-time" "DURATION" options.gangs.max_waiting_time
            "A longer waiting time that a gang states counts as this; up to 7 days";
        "gang-match-policy" "POLICY" options.gangs.match_policy
            "Which members count for a gang that does not say: only-waiting, waiting-and-running, waiting-running-succeed or once-satisfied";
        "timeout-clock" "holding|pending" options.gangs.timeout_clock
            "A gang's wait begins when a member is reserved, or with the first failed attempt of a complete gang";
        "on-bind-failure" "solo|evictGang" options.gangs.on_bind_failure
            "A member that cannot be bound for good: it alone is tried again, or the others are deleted";
        "auto-create-pod-group" "BOOL" options.gangs.auto_create_pod_group
            "Make the PodGroup of a gang that is named by pod-group.scheduling.sigs.k8s.io/name";
        "scheduling-group" "BOOL" options.gangs.scheduling_group
            "Read spec.schedulingGroup of pods and the PodGroups of scheduling.k8s.io";
        "topology-layers" "LIST" options.gangs.topology_layers
            "Node labels in whose domains gangs can be gathered, outermost first; NAME=LABEL gives a layer a name";
        // Who has waited, and who cannot run.
        "age-after" "DURATION" options.earmarks.after
            "A gang or pod that has waited this long for devices has nodes kept for it; 0s means never";
        "age-share" "PERCENT" options.earmarks.share "At most this part of all GPUs (and of NICs) is kept";
        "evict-on-fault" "BOOL" options.evict_on_fault
            "Evict pods of a GPU with an XID that the hardware causes, and pods that run without their devices, after five minutes, with budgets, one node at a time";
        "unfit-grace" "DURATION" options.unfit_grace
            "A TYJob that does not fit on all known nodes, as if they were empty, fails after this long";
        // The extender.
        "extender-listen" "ADDRESS" options.extender.listen
            "Address of the extender that kube-scheduler calls; plain HTTP on loopback, TLS elsewhere; none opens no port";
        "extender-tls-dir" "DIR" options.extender.tls_dir
            "Directory of the extender's tls.crt, tls.key and ca.crt, the authority of its clients, as a Secret is mounted";
        "extender-client-name" "LIST" options.extender.client_names
            "Names of the clients that the extender accepts: the common name of their certificates, or dns:NAME or uri:NAME";
        "extender-gang" "refuse|ignore" options.extender.gang
            "Gang pods that kube-scheduler asks for: refuse, or place them one by one";
        "extender-scheduler-names" "LIST" options.extender.scheduler_names
            "spec.schedulerName of the pods that kube-scheduler binds through the extender";
    }
}
