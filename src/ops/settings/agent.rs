//! The keys of the node daemon.

use super::log::{DaemonSettings, by_from_str, log, settings};
use super::ports::{admin, ports};
use crate::config::Setting;
use baton_agent::options::AgentOptions;
use baton_agent::options::{DeviceIdStrategy, DeviceListStrategy, MigStrategy};
use baton_contract::ShareIsolation;
use baton_decide::handoff::{IdMismatch, UnassignedPods};
use baton_decide::health::PortPolicy;
use baton_decide::nics::NicSelector;

by_from_str!(DeviceIdStrategy, DeviceListStrategy, IdMismatch, MigStrategy);
by_from_str!(NicSelector, PortPolicy, UnassignedPods, ShareIsolation);

/// Every key of `baton device-plugin`, in the order of its help.
pub fn agent() -> Vec<Setting<DaemonSettings<AgentOptions>>> {
    let admin: AgentSettings = admin!("9412", "/ledger and /kubelet");
    [identity(), admin, ports!(), machine(), pods(), log()].into_iter().flatten().collect()
}

type AgentSettings = Vec<Setting<DaemonSettings<AgentOptions>>>;

fn identity() -> AgentSettings {
    settings! {
        "node-name" "NAME" options.node_name "Name of this node in the cluster; required";
        "namespace" "NAMESPACE" options.namespace "Namespace of Baton's daemons; the node daemons' Leases are in <NAMESPACE>-nodes";
        "kubeconfig" "FILE" options.kubeconfig "Credentials for the API server; none is the pod's service account";
    }
}

fn machine() -> AgentSettings {
    settings! {
        // Where things are.
        "kubelet-dir" "DIR" options.paths.kubelet_dir "The kubelet's device-plugins directory";
        "pod-resources-socket" "FILE" options.paths.pod_resources_socket "The kubelet's pod-resources socket";
        "sysfs-root" "DIR" options.paths.sysfs_root "Where sysfs is mounted";
        "proc-root" "DIR" options.paths.proc_root "Where procfs is mounted";
        "host-net-dir" "DIR" options.paths.host_net_dir
            "The host's /proc/1/net as this process sees it, for the default route; none is 1/net below --proc-root";
        "dev-root" "DIR" options.paths.dev_root "Where device nodes are on this host; containers see them below /dev";
        "nvidia-driver-root" | "driver-root" "DIR" options.paths.driver_root
            "Root below which the driver's user-space libraries are; /run/nvidia/driver with the driver container";
        "host-driver-root" "DIR" options.paths.host_driver_root
            "The driver root as the host names it, for a daemon in a container; none when the names are the same";
        "nvml-library" "FILE" options.paths.nvml_library
            "The NVML library; none searches the loader's path, then known directories below the driver root";
        "gpu-recording" "FILE" options.paths.gpu_recording
            "JSON recording of a GPU scan to read instead of NVML, to reproduce a report";
        "cdi-root" "DIR" options.paths.cdi_root "Where CDI specs are written";
        "state-dir" "DIR" options.paths.state_dir
            "The ledger, what an XID or failed pods keep out of service, and the lock that keeps a second daemon of this node waiting";
        // Which devices there are to have.
        "mig-strategy" "none|single|mixed" options.mig_strategy
            "MIG devices are not offered, offered as nvidia.com/gpu, or offered under their profile's name";
        "fail-on-init-error" "BOOL" options.fail_on_init_error
            "End with an error when NVML cannot be used; false waits, retries and offers no GPU until it can";
        "gpu-sharing" "BOOL" options.gpu_sharing
            "Offer koordinator.sh/gpu, gpu-core, gpu-memory-ratio and gpu.shared beside whole GPUs";
        "rdma" "BOOL" options.rdma "Offer koordinator.sh/rdma";
        "rdma-select" "TERM,…" options.rdma_select
            "Which NICs are served, as mlx5_*,linkType=infiniband,!mlx5_bond_0: device or interface, ifName, linkType, vendor, driver, pciAddress, and ! to exclude; without a term that asks for NICs, all but the one that carries the node's default route";
        "rdma-vf-resource" "NAME" options.rdma_vf_resource
            "Serve SR-IOV virtual functions as this resource, one id each, for the SR-IOV CNI; their NICs are then not served themselves";
        "share-isolation" "none|hami-core|mps" options.share_isolation
            "Experimental: what holds GPU shares to their limits: nothing, HAMi-core's library, or the node's MPS control daemon";
        "hami-core-dir" "DIR" options.hami_core_dir
            "Directory of HAMi-core's libvgpu.so and ld.so.preload, under the same name on the host; containers with a share write below it";
        "hami-core-sha256" "HEX" options.hami_core_sha256
            "SHA-256 of libvgpu.so: with another one no share is served; none takes any";
        "mps-root" "DIR" options.mps_root
            "Directory of the MPS control daemon on the host, with nvidia.com/gpu/pipe and shm in it as NVIDIA's lays it out";
        // How a container gets them.
        "device-list-strategy" "LIST" options.device_list_strategy
            "How devices reach a container; comma list of cdi-cri, cdi-annotations, envvar, volume-mounts";
        "pass-device-specs" "BOOL" options.pass_device_specs "Add device nodes to the answer, whatever the strategy";
        "device-id-strategy" "uuid|index" options.device_id_strategy "What names a GPU in environment and volume mounts";
        "cdi-kind" "VENDOR/CLASS" options.cdi_kind
            "Kind of the CDI names of GPUs; nvidia.com/gpu uses the spec that NVIDIA's toolkit wrote";
    }
}

fn pods() -> AgentSettings {
    settings! {
        // Which pod is served, and with what.
        "node-lock-key" "KEY" options.node_lock_key "Node annotation of the node lock";
        "node-lock-format" "uid|triple|timestamp" options.node_lock_format
            "How the scheduler writes the lock; every format is read";
        "node-lock" "always|auto" options.node_lock
            "The lock is part of every hand-off, or only where the calling pod cannot be identified without it";
        "scheduler-names" "LIST" options.scheduler_names "Schedulers whose assignments are trusted under --node-lock=auto";
        "unassigned-pods" "deny|serve" options.unassigned_pods
            "Pods that no scheduler assigned devices to: refuse, or serve the kubelet's choice when it is free";
        "pod-metrics" "BOOL" options.pod_metrics
            "Show baton_node_pod_device_share, one series per container and GPU that it has a part of: it joins with dcgm-exporter's";
        "id-mismatch" "serve-assignment|reject" options.id_mismatch
            "When the kubelet chose other ids than the assignment: the answer follows the assignment, or is an error";
        "numa-hints" "BOOL" options.numa_hints
            "Report the NUMA node of devices to the kubelet, whose topology manager may then hide the assigned ids";
        "verify-before-start" "BOOL" options.verify_before_start
            "Refuse to start a container whose committed devices are not the assignment";
        // What takes devices out of service.
        "xid-actions" "XID=ACTION,…" options.xid.actions
            "What an XID means: ignore, warn, unhealthy, needs-reset or needs-reboot";
        "dp-disable-healthchecks" "all|xids|LIST" options.xid.disable "XIDs to ignore, as NVIDIA's plugin reads it";
        "dp-enable-healthchecks" "all|LIST" options.xid.enable "XIDs to act on although they are ignored by default";
        "rdma-port-policy" "any|all" options.rdma_port_policy "Which ports of a NIC must be active";
        "recovery-window" "DURATION" options.periods.recovery_window
            "Clean probes must span this long before an unhealthy GPU is healthy again";
        "suspect-min" "DURATION" options.periods.suspect_min
            "A device or node is suspect when the machine has failed three pods within five minutes, and takes no new pods for this long; twice as long each time, up to half an hour";
    }
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
                let (mut daemon, mut again) = (DaemonSettings::<AgentOptions>::default(), DaemonSettings::<AgentOptions>::default());
                if (setting.set)(&mut daemon, &text).is_ok() {
                    let shown = (setting.show)(&daemon);
                    prop_assert_eq!((setting.set)(&mut again, &shown), Ok(()), "{}: {:?}", setting.name, shown);
                    prop_assert_eq!(&again, &daemon, "{}", setting.name);
                }
            }
        }
    }

    #[test]
    fn nvidias_names_mean_what_they_mean_there() {
        let settings = agent();
        let mut daemon = DaemonSettings::<AgentOptions>::default();
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
