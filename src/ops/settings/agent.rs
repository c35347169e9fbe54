//! The keys of the node daemon.

use super::log::{Daemon, by_from_str, field, log};
use crate::agent::options::AgentOptions;
use crate::agent::options::{DeviceIdStrategy, DeviceListStrategy, MigStrategy};
use crate::decide::handoff::{IdMismatch, LockMode, UnassignedPods};
use crate::decide::health::PortPolicy;
use crate::ops::config::Setting;

by_from_str!(DeviceIdStrategy, DeviceListStrategy, IdMismatch, LockMode, MigStrategy, PortPolicy, UnassignedPods);

/// Every key of `baton device-plugin`, in the order of its help.
pub fn agent() -> Vec<Setting<Daemon<AgentOptions>>> {
    [identity(), places(), devices(), answer(), handoff(), health(), periods(), log()].into_iter().flatten().collect()
}

type Settings = Vec<Setting<Daemon<AgentOptions>>>;

fn identity() -> Settings {
    vec![
        field!("node-name", "NAME", "Name of this node in the cluster; required", options.node_name),
        field!("namespace", "NAMESPACE", "Namespace of the node daemons' Leases", options.namespace),
        field!(
            "kubeconfig",
            "FILE",
            "Credentials for the API server; none is the pod's service account",
            options.kubeconfig
        ),
        field!(
            "listen",
            "ADDRESS",
            "Address of /livez, /readyz, /metrics and /ledger over plain HTTP; none opens no port",
            options.listen
        ),
    ]
}

fn places() -> Settings {
    vec![
        field!("kubelet-dir", "DIR", "The kubelet's device-plugins directory", options.paths.kubelet_dir),
        field!(
            "pod-resources-socket",
            "FILE",
            "The kubelet's pod-resources socket",
            options.paths.pod_resources_socket
        ),
        field!("sysfs-root", "DIR", "Where sysfs is mounted", options.paths.sysfs_root),
        field!("proc-root", "DIR", "Where procfs is mounted", options.paths.proc_root),
        field!(
            "dev-root",
            "DIR",
            "Where device nodes are on this host; containers see them below /dev",
            options.paths.dev_root
        ),
        field!(
            "nvidia-driver-root" | "driver-root",
            "DIR",
            "Root below which the driver's user-space libraries are; /run/nvidia/driver with the driver container",
            options.paths.driver_root
        ),
        field!(
            "host-driver-root",
            "DIR",
            "The driver root as the host names it, for a daemon in a container; none when the names are the same",
            options.paths.host_driver_root
        ),
        field!(
            "nvml-library",
            "FILE",
            "The NVML library; none searches the loader's path, then known directories below the driver root",
            options.paths.nvml_library
        ),
        field!(
            "gpu-recording",
            "FILE",
            "JSON recording of a GPU scan to read instead of NVML, to reproduce a report",
            options.paths.gpu_recording
        ),
        field!("cdi-root", "DIR", "Where CDI specs are written", options.paths.cdi_root),
        field!(
            "state-dir",
            "DIR",
            "The ledger, the GPUs that an XID keeps out of service, and the lock that keeps a second daemon of this node waiting",
            options.paths.state_dir
        ),
    ]
}

fn devices() -> Settings {
    vec![
        field!(
            "mig-strategy",
            "none|single|mixed",
            "MIG devices are not offered, offered as nvidia.com/gpu, or offered under their profile's name",
            options.mig_strategy
        ),
        field!(
            "fail-on-init-error",
            "BOOL",
            "End with an error when NVML cannot be used; false waits, retries and offers no GPU until it can",
            options.fail_on_init_error
        ),
        field!(
            "gpu-sharing",
            "BOOL",
            "Offer koordinator.sh/gpu, gpu-core, gpu-memory-ratio and gpu.shared beside whole GPUs",
            options.gpu_sharing
        ),
        field!("rdma", "BOOL", "Offer koordinator.sh/rdma", options.rdma),
        field!(
            "mps",
            "BOOL",
            "MPS runs on this node: shares get its limits in their environment and reach its control daemon",
            options.mps
        ),
        field!(
            "mps-root",
            "DIR",
            "Directory of the MPS control daemon on the host, with nvidia.com/gpu/pipe and shm in it as NVIDIA's lays it out",
            options.mps_root
        ),
    ]
}

fn answer() -> Settings {
    vec![
        field!(
            "device-list-strategy",
            "LIST",
            "How devices reach a container; comma list of cdi-cri, cdi-annotations, envvar, volume-mounts",
            options.device_list_strategy
        ),
        field!(
            "pass-device-specs",
            "BOOL",
            "Add device nodes to the answer, whatever the strategy",
            options.pass_device_specs
        ),
        field!(
            "device-id-strategy",
            "uuid|index",
            "What names a GPU in environment and volume mounts",
            options.device_id_strategy
        ),
        field!(
            "cdi-kind",
            "VENDOR/CLASS",
            "Kind of the CDI names of GPUs; nvidia.com/gpu uses the spec that NVIDIA's toolkit wrote",
            options.cdi_kind
        ),
    ]
}

fn handoff() -> Settings {
    vec![
        field!("node-lock-key", "KEY", "Node annotation of the node lock", options.node_lock_key),
        field!(
            "node-lock-format",
            "uid|triple|timestamp",
            "How the scheduler writes the lock; every format is read",
            options.node_lock_format
        ),
        field!(
            "node-lock",
            "always|auto",
            "The lock is part of every hand-off, or only where the calling pod cannot be identified without it",
            options.node_lock
        ),
        field!(
            "scheduler-names",
            "LIST",
            "Schedulers whose assignments are trusted under --node-lock=auto",
            options.scheduler_names
        ),
        field!(
            "unassigned-pods",
            "deny|serve",
            "Pods that no scheduler assigned devices to: refuse, or serve the kubelet's choice when it is free",
            options.unassigned_pods
        ),
        field!(
            "id-mismatch",
            "serve-assignment|reject",
            "When the kubelet chose other ids than the assignment: the answer follows the assignment, or is an error",
            options.id_mismatch
        ),
        field!(
            "numa-hints",
            "BOOL",
            "Tell the kubelet the NUMA node of devices; its topology manager may then hide the assigned ids",
            options.numa_hints
        ),
        field!(
            "verify-before-start",
            "BOOL",
            "Refuse to start a container whose committed devices are not the assignment",
            options.verify_before_start
        ),
    ]
}

fn health() -> Settings {
    vec![
        field!(
            "xid-actions",
            "XID=ACTION,…",
            "What an XID means: ignore, warn, unhealthy, needs-reset or needs-reboot",
            options.xid.actions
        ),
        field!(
            "dp-disable-healthchecks",
            "all|xids|LIST",
            "XIDs to ignore, as NVIDIA's plugin reads it",
            options.xid.disable
        ),
        field!(
            "dp-enable-healthchecks",
            "all|LIST",
            "XIDs to act on although they are ignored by default",
            options.xid.enable
        ),
        field!("rdma-port-policy", "any|all", "Which ports of a NIC must be active", options.rdma_port_policy),
    ]
}

fn periods() -> Settings {
    vec![
        field!("rescan-period", "DURATION", "The whole machine is scanned again", options.periods.rescan),
        field!(
            "health-poll-period",
            "DURATION",
            "GPUs without events and NIC ports are polled",
            options.periods.health_poll
        ),
        field!("recovery-probe-period", "DURATION", "An unhealthy GPU is probed again", options.periods.recovery_probe),
        field!(
            "recovery-window",
            "DURATION",
            "Clean probes must span this long before an unhealthy GPU is healthy again",
            options.periods.recovery_window
        ),
        field!(
            "kubelet-poll-period",
            "DURATION",
            "The kubelet's directory is polled, beside inotify",
            options.periods.kubelet_poll
        ),
        field!(
            "register-timeout",
            "DURATION",
            "Time for one registration; the kubelet dials back inside it",
            options.periods.register_timeout
        ),
        field!("backoff-min", "DURATION", "Shortest wait after a failed registration", options.periods.backoff_min),
        field!("backoff-max", "DURATION", "Longest wait after a failed registration", options.periods.backoff_max),
        field!("heartbeat-period", "DURATION", "The Lease is renewed", options.periods.heartbeat),
        field!("verify-period", "DURATION", "Ledger, kubelet and annotations are compared", options.periods.verify),
        field!(
            "watch-timeout",
            "DURATION",
            "A watch of the API server is renewed after this; one that is silent five seconds longer is dead",
            options.periods.watch_timeout
        ),
        field!("rpc-budget", "DURATION", "Longest time for an answer to the kubelet", options.periods.rpc_budget),
        field!(
            "nvml-retry-period",
            "DURATION",
            "NVML is tried again after it could not be used",
            options.periods.nvml_retry
        ),
        field!(
            "nvml-deadline",
            "DURATION",
            "A query that takes longer makes its GPU unhealthy",
            options.periods.nvml_deadline
        ),
        field!(
            "nic-deadline",
            "DURATION",
            "A read in sysfs that takes longer makes its NIC unhealthy",
            options.periods.nic_deadline
        ),
        field!(
            "unlock-retry-period",
            "DURATION",
            "The node lock is checked again for a holder that is served",
            options.periods.unlock_retry
        ),
        field!("shutdown-grace", "DURATION", "Time for calls in progress at SIGTERM", options.periods.shutdown_grace),
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_of_a_key_panics_and_what_is_taken_is_shown_as_it_reads_back(
            text in r"(\PC{0,20}|[0-9a-z=,:/. -]{0,30}|(48=ignore|13=warn|79=needs-reset|7|,|all|xids|1m|single){0,4})",
        ) {
            for setting in agent() {
                let (mut daemon, mut again) = (Daemon::<AgentOptions>::default(), Daemon::<AgentOptions>::default());
                if (setting.set)(&mut daemon, &text).is_ok() {
                    let shown = (setting.show)(&daemon);
                    prop_assert_eq!((setting.set)(&mut again, &shown), Ok(()), "{}: {:?}", setting.name, shown);
                    prop_assert_eq!(&again, &daemon, "{}", setting.name);
                }
            }
        }
    }

    #[test]
    fn every_default_reads_back_as_itself() {
        for setting in agent() {
            let mut daemon = Daemon::<AgentOptions>::default();
            let shown = (setting.show)(&daemon);
            (setting.set)(&mut daemon, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
            assert_eq!(daemon, Daemon::default(), "{}", setting.name);
        }
    }

    #[test]
    fn nvidias_names_mean_what_they_mean_there() {
        let settings = agent();
        let mut daemon = Daemon::<AgentOptions>::default();
        for (variable, value) in [
            ("MIG_STRATEGY", "mixed"),
            ("FAIL_ON_INIT_ERROR", "false"),
            ("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver"),
            ("PASS_DEVICE_SPECS", "true"),
            ("DEVICE_LIST_STRATEGY", "envvar,cdi-annotations"),
            ("DEVICE_ID_STRATEGY", "index"),
            ("DP_DISABLE_HEALTHCHECKS", "79"),
            ("NODE_NAME", "node-a"),
        ] {
            let setting = settings.iter().find(|setting| setting.variables().any(|name| name == variable));
            let setting = setting.unwrap_or_else(|| panic!("no setting reads {variable}"));
            (setting.set)(&mut daemon, value).unwrap();
        }
        let options = daemon.options;
        assert_eq!(options.mig_strategy, MigStrategy::Mixed);
        assert!(!options.fail_on_init_error && options.pass_device_specs);
        assert_eq!(options.paths.driver_root.to_str(), Some("/run/nvidia/driver"));
        assert_eq!(options.device_list_strategy, [DeviceListStrategy::Envvar, DeviceListStrategy::CdiAnnotations]);
        assert_eq!(options.device_id_strategy, DeviceIdStrategy::Index);
        assert_eq!((options.xid.disable.as_str(), options.node_name.as_str()), ("79", "node-a"));
    }

    #[test]
    fn no_two_keys_share_a_name() {
        let settings = agent();
        let mut names: Vec<&str> = settings.iter().flat_map(Setting::names).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
