//! The keys of the central scheduler.

use super::gang::gangs;
use super::log::{Daemon, by_from_str, field, log};
use super::tyjob::tyjobs;
use crate::decide::lock::ExpiredHolder;
use crate::decide::scheduler::LockMode;
use crate::decide::scheduler::rules::plugins::NodesWithoutAgent;
use crate::ops::config::Setting;
use crate::scheduler::Options;
use crate::scheduler::extender::GangPods;

by_from_str!(LockMode, ExpiredHolder, NodesWithoutAgent, GangPods);

/// Every key of `baton scheduler`, in the order of its help.
pub fn scheduler() -> Vec<Setting<Daemon<Options>>> {
    [identity(), lock(), placing(), gangs(), tyjobs(), extender(), leading(), periods(), log()]
        .into_iter()
        .flatten()
        .collect()
}

type Settings = Vec<Setting<Daemon<Options>>>;

fn identity() -> Settings {
    vec![
        field!("scheduler-name", "NAME", "Pods with this spec.schedulerName are scheduled", options.scheduler_name),
        field!("more-scheduler-names", "LIST", "Further such names", options.more_scheduler_names),
        field!(
            "namespace",
            "NAMESPACE",
            "Namespace of the Leases: the node daemons' and this one's",
            options.namespace
        ),
        field!(
            "kubeconfig",
            "FILE",
            "Credentials for the API server; none is the pod's service account",
            options.kubeconfig
        ),
        field!(
            "listen",
            "ADDRESS",
            "Address of /livez, /readyz, /metrics, and of what `baton get` and `baton explain` ask, over plain HTTP; none opens no port",
            options.listen
        ),
        field!("concurrency", "COUNT", "Requests to the API server at once", options.concurrency),
    ]
}

fn lock() -> Settings {
    vec![
        field!("node-lock-key", "KEY", "Node annotation of the node lock", options.node_lock_key),
        field!(
            "node-lock-format",
            "uid|triple|timestamp",
            "How the lock is written; every format is read",
            options.node_lock_format
        ),
        field!(
            "node-lock",
            "always|auto",
            "Lock the node for every bind, or only where its node daemon cannot identify the calling pod without it",
            options.node_lock
        ),
        field!("node-lock-expiry", "DURATION", "Age from which a lock is suspect", options.node_lock_expiry),
        field!(
            "expired-holder",
            "evict|wait",
            "A live pod that holds an expired lock and was never served: evict it, or wait for an operator",
            options.expired_holder
        ),
    ]
}

fn placing() -> Settings {
    vec![
        field!(
            "nodes-without-agent",
            "refuse|plain",
            "Device pods on nodes without a live node daemon: refuse, or count allocatable only, as kube-scheduler does",
            options.nodes_without_agent
        ),
        field!(
            "ratio-shape",
            "UTILIZATION=SCORE,…",
            "RequestedToCapacityRatio: points of the line from utilization (0 to 100) to score (0 to 10); 0=0,100=10 packs",
            options.ratio_shape
        ),
        field!(
            "ratio-weights",
            "RESOURCE=WEIGHT,…",
            "RequestedToCapacityRatio: weights of the resources; nvidia.com/gpu stands for GPUs under any name",
            options.ratio_weights
        ),
    ]
}

fn extender() -> Settings {
    vec![
        field!(
            "extender-listen",
            "ADDRESS",
            "Address of the extender that kube-scheduler calls; plain HTTP on loopback, TLS elsewhere; none opens no port",
            options.extender.listen
        ),
        field!("extender-tls-cert", "FILE", "The extender's certificate chain, PEM", options.extender.tls_cert),
        field!("extender-tls-key", "FILE", "The private key of that certificate, PEM", options.extender.tls_key),
        field!(
            "extender-client-ca",
            "FILE",
            "Authorities of the client certificates that the extender accepts, PEM",
            options.extender.client_ca
        ),
        field!(
            "extender-gang",
            "refuse|ignore",
            "Gang pods that kube-scheduler asks for: refuse, or place them one by one",
            options.extender.gang
        ),
        field!(
            "extender-scheduler-names",
            "LIST",
            "spec.schedulerName of the pods that kube-scheduler binds through the extender",
            options.extender.scheduler_names
        ),
        field!(
            "bind-wait",
            "DURATION",
            "Longest wait of kube-scheduler's bind for the node's lock; keep it below its httpTimeout",
            options.extender.bind_wait
        ),
    ]
}

fn leading() -> Settings {
    vec![
        field!("leader-elect", "BOOL", "Work only while holding the Lease", options.leader_elect),
        field!("lease-name", "NAME", "Name of the Lease", options.lease_name),
        field!(
            "identity",
            "NAME",
            "Name of this process in the Lease; unset makes one from host and process",
            options.identity
        ),
        field!("lease-duration", "DURATION", "A Lease unchanged for this long is free", options.periods.lease_duration),
        field!(
            "lease-renew-deadline",
            "DURATION",
            "A leader that could not renew for this long stops",
            options.periods.lease_renew_deadline
        ),
        field!("lease-retry", "DURATION", "Pause between tries of the Lease", options.periods.lease_retry),
    ]
}

fn periods() -> Settings {
    vec![
        field!(
            "agent-stale",
            "DURATION",
            "A node daemon's Lease unchanged for this long is stale",
            options.periods.agent_stale
        ),
        field!(
            "agent-settled",
            "DURATION",
            "An expired lock is acted on only when the node's daemon has been live for this long",
            options.periods.agent_settled
        ),
        field!(
            "lock-abandoned",
            "DURATION",
            "A lock of this scheduler that no bind uses is released when it stood unchanged for this long",
            options.periods.lock_abandoned
        ),
        field!("lock-sweep", "DURATION", "All node locks are checked", options.periods.lock_sweep),
        field!("backoff", "DURATION", "First pause of a pod after a failure", options.periods.backoff),
        field!("backoff-max", "DURATION", "Longest pause of a pod after failures", options.periods.backoff_max),
        field!(
            "bind-limit",
            "DURATION",
            "A bind whose failure may pass is tried for this long",
            options.periods.bind_limit
        ),
        field!("bind-timeout", "DURATION", "Longest Binding request", options.periods.bind_timeout),
        field!(
            "condition-pause",
            "DURATION",
            "A condition whose reason stays is rewritten at most this often",
            options.periods.condition_pause
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_back_as_itself() {
        for setting in scheduler() {
            let mut daemon = Daemon::<Options>::default();
            let shown = (setting.show)(&daemon);
            (setting.set)(&mut daemon, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            assert_eq!(daemon, Daemon::default(), "{}", setting.name);
        }
    }

    #[test]
    fn a_shape_is_read_as_points() {
        let mut daemon = Daemon::<Options>::default();
        let settings = scheduler();
        let shape = settings.iter().find(|setting| setting.name == "ratio-shape").unwrap();
        (shape.set)(&mut daemon, "0=10, 50=5,100=0").unwrap();
        assert_eq!(daemon.options.ratio_shape, [(0, 10), (50, 5), (100, 0)]);
        assert!((shape.set)(&mut daemon, "0").unwrap_err().contains("key=value"));
    }
}
