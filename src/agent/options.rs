//! Everything an operator can choose of the node daemon: plain fields with the documented defaults. Flags, environment and
//! file are read elsewhere and end here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_contract::name::{check_annotation_key, check_daemon_namespace, check_node_name, check_subdomain};
use baton_contract::word::word_enum;
use baton_contract::{LockFormat, ShareIsolation, key};
use baton_decide::handoff::{IdMismatch, UnassignedPods};
pub use baton_decide::health::MigStrategy;
use baton_decide::health::{PortPolicy, XidAction, xid_named};
use baton_decide::lock::LockMode;
use baton_decide::nics::NicSelector;
use baton_runtime::admin::PortOptions;
use baton_runtime::options::{OptionError, named};
use baton_runtime::timings::{Timed, ms, s, timings};

word_enum! {
    /// How devices reach a container.
    DeviceListStrategy {
        /// CDI names in the CRI field (containerd ≥ 1.7.2, CRI-O ≥ 1.28).
        CdiCri = "cdi-cri",
        /// CDI names in container annotations, for older runtimes.
        CdiAnnotations = "cdi-annotations",
        /// `NVIDIA_VISIBLE_DEVICES` in the environment, for the NVIDIA runtime.
        Envvar = "envvar",
        /// Mounts below `/var/run/nvidia-container-devices`, for the NVIDIA runtime.
        VolumeMounts = "volume-mounts",
    }
}

word_enum! {
    /// What names a GPU in environment and volume mounts.
    DeviceIdStrategy {
        /// The UUID.
        Uuid = "uuid",
        /// The driver's index of the moment.
        Index = "index",
    }
}

/// The node daemon's configuration. [`Default`] holds what the documentation states; [`Self::validate`] is called before
/// anything starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    /// Name of this node in the cluster. No default.
    pub node_name: String,
    /// Credentials file; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the agents' Leases.
    pub namespace: String,
    /// Every place that is read or written.
    pub paths: AgentPaths,
    /// Its addresses.
    pub ports: PortOptions,

    /// Which MIG devices are offered, and under which names.
    pub mig_strategy: MigStrategy,
    /// End with an error when NVML cannot be used; otherwise wait, retry and offer no GPU until it can.
    pub fail_on_init_error: bool,
    /// Offer `koordinator.sh/gpu`, `gpu-core`, `gpu-memory-ratio` and `gpu.shared` beside whole GPUs.
    pub gpu_sharing: bool,
    /// What holds GPU shares to their limits.
    pub share_isolation: ShareIsolation,
    /// Directory of HAMi-core's `libvgpu.so` and `ld.so.preload`, under the same name on the host; containers write below it.
    pub hami_core_dir: PathBuf,
    /// Checksum of the library; empty where any will do.
    pub hami_core_sha256: String,
    /// Directory of the MPS control daemon's files on the host, laid out as NVIDIA's: `<resource name>/pipe`, `shm`.
    pub mps_root: PathBuf,
    /// Offer `koordinator.sh/rdma`.
    pub rdma: bool,
    /// Which NICs are handed out; empty for all but the one that carries the node's default route.
    pub rdma_select: NicSelector,
    /// Resource name of their own for virtual functions, one id each; empty where they are shares of their NIC.
    pub rdma_vf_resource: String,
    /// Which ports of a NIC must be active for it to be healthy.
    pub rdma_port_policy: PortPolicy,

    /// How devices reach a container; at least one.
    pub device_list_strategy: Vec<DeviceListStrategy>,
    /// Add device nodes to the answer, whatever the strategy.
    pub pass_device_specs: bool,
    /// What names a GPU in environment and volume mounts.
    pub device_id_strategy: DeviceIdStrategy,
    /// Kind of the CDI names of GPUs. Any other than `koordinator.sh/gpu` means that another program writes that spec.
    pub cdi_kind: String,

    /// Node annotation of the node lock.
    pub node_lock_key: String,
    /// How the scheduler writes the lock; all formats are read.
    pub node_lock_format: LockFormat,
    /// Whether the lock is part of every hand-off.
    pub node_lock: LockMode,
    /// Schedulers whose assignments are trusted under `node_lock: auto`.
    pub scheduler_names: Vec<String>,
    /// What happens when the kubelet chose other ids than the assignment.
    pub id_mismatch: IdMismatch,
    /// What happens to pods without an assignment.
    pub unassigned_pods: UnassignedPods,
    /// One series per container and GPU that it has a part of.
    pub pod_metrics: bool,
    /// Report the NUMA node of devices to the kubelet. Its topology manager may then hide the assigned ids.
    pub numa_hints: bool,
    /// Refuse to start a container whose committed devices are not the assignment.
    pub verify_before_start: bool,

    /// What each XID means.
    pub xid: XidOptions,
    /// Windows of the judgement of devices.
    pub periods: AgentPeriods,
    /// What is fixed.
    pub timings: AgentTimings,
}

/// Every place that the daemon reads or writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentPaths {
    /// The kubelet's device-plugins directory.
    pub kubelet_dir: PathBuf,
    /// The kubelet's pod-resources socket.
    pub pod_resources_socket: PathBuf,
    /// Root of sysfs.
    pub sysfs_root: PathBuf,
    /// Root of procfs.
    pub proc_root: PathBuf,
    /// The host's network in procfs, for its routing tables; `None` where procfs is the host's.
    pub host_net_dir: Option<PathBuf>,
    /// Root of the device nodes.
    pub dev_root: PathBuf,
    /// Root of the driver's user-space files.
    pub driver_root: PathBuf,
    /// The same directory as the host names it, for a daemon in a container; `None` when the names are the same.
    pub host_driver_root: Option<PathBuf>,
    /// The NVML library; `None` searches for it.
    pub nvml_library: Option<PathBuf>,
    /// A JSON recording of a GPU scan that is read instead of NVML.
    pub gpu_recording: Option<PathBuf>,
    /// Where CDI spec files are written.
    pub cdi_root: PathBuf,
    /// Ledger and the lock against a second daemon.
    pub state_dir: PathBuf,
}

/// What each XID means: defaults, changed by a table and by NVIDIA's two environment variables.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct XidOptions {
    /// XID to `ignore`, `warn`, `unhealthy`, `needs-reset` or `needs-reboot`.
    pub actions: BTreeMap<u64, String>,
    /// `DP_DISABLE_HEALTHCHECKS`: `all`, `xids`, or a comma list of XIDs to ignore.
    pub disable: String,
    /// `DP_ENABLE_HEALTHCHECKS`: `all`, or a comma list of XIDs to act on again.
    pub enable: String,
}

/// Windows of the judgement of devices, which depend on the hardware and its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentPeriods {
    /// Clean probes must span at least this before an unhealthy GPU is healthy again.
    pub recovery_window: Duration,
    /// It takes no new pods for so long; twice as long each time.
    pub suspect_min: Duration,
}

timings! {
    /// The times that the node daemon fixes.
    AgentTimings {
        /// The whole machine is scanned: hot-plug, MIG re-partition and driver reload are rare, and no event reports them.
        rescan: s(60),
        /// GPUs without events and NIC ports are polled: twice while a link must be down for.
        health_poll: s(5),
        /// A link that was up counts as down when it has stayed so for this long: a cable that is moved, a port that is trained again.
        link_down: s(10),
        /// An unhealthy GPU is probed: three clean probes fill the default window.
        recovery_probe: s(20),
        /// Three pods that the machine fails within this make the device or the node suspect: pods that start one after the other.
        suspect_window: s(300),
        /// A suspect device or node is tried again at the latest after this, so that a false suspicion costs half an hour at most.
        suspect_max: s(1800),
        /// The kubelet's directory is looked at, beside inotify, which may lose events.
        kubelet_poll: s(5),
        /// One registration: the kubelet dials back inside it and gives up after 10 s.
        register_timeout: s(12),
        /// Shortest pause after a failed registration: a kubelet that starts is there soon.
        backoff_min: ms(200),
        /// Longest pause after failed registrations: a node without device pods for half a minute more is no loss.
        backoff_max: s(30),
        /// The Lease is renewed, three times within the time after which the scheduler counts the daemon as gone.
        heartbeat: s(30),
        /// Ledger, kubelet and annotations are compared: what events missed is found within a heartbeat.
        verify: s(30),
        /// A watch of the API server is renewed after this; one that is silent five seconds longer is dead.
        watch_timeout: s(120),
        /// One answer to the kubelet, which may wait for the API server and for processes that end.
        rpc_budget: s(2),
        /// NVML is tried again after it could not be used: a driver container that loads is noticed soon.
        nvml_retry: s(10),
        /// An NVML query that takes longer makes its GPU unhealthy: a busy driver may take a second.
        nvml_deadline: s(5),
        /// A read in sysfs that takes longer makes its NIC unhealthy: it takes microseconds otherwise.
        nic_deadline: s(2),
        /// The node lock is checked again for a holder that is served, after a release whose request failed.
        unlock_retry: s(5),
        /// Calls in progress at SIGTERM: longer than one answer takes.
        shutdown_grace: s(3),
    }
}

impl Default for AgentOptions {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            kubeconfig: None,
            namespace: "baton-system".into(),
            paths: AgentPaths::default(),
            ports: PortOptions::on(9412, 9402, 9422),
            mig_strategy: MigStrategy::None,
            fail_on_init_error: true,
            gpu_sharing: true,
            share_isolation: ShareIsolation::None,
            hami_core_dir: "/var/lib/baton/hami-core".into(),
            hami_core_sha256: String::new(),
            mps_root: "/run/nvidia/mps".into(),
            rdma: true,
            rdma_select: NicSelector::default(),
            rdma_vf_resource: String::new(),
            rdma_port_policy: PortPolicy::Any,
            device_list_strategy: vec![DeviceListStrategy::CdiCri],
            pass_device_specs: false,
            device_id_strategy: DeviceIdStrategy::Uuid,
            cdi_kind: OWN_GPU_KIND.into(),
            node_lock_key: key::NODE_LOCK.into(),
            node_lock_format: LockFormat::default(),
            node_lock: LockMode::Always,
            scheduler_names: vec!["baton-scheduler".into()],
            id_mismatch: IdMismatch::ServeAssignment,
            unassigned_pods: UnassignedPods::Deny,
            pod_metrics: false,
            numa_hints: false,
            verify_before_start: false,
            xid: XidOptions::default(),
            periods: AgentPeriods::default(),
            timings: AgentTimings::default(),
        }
    }
}

/// CDI kind of the GPU spec that the daemon writes itself.
pub const OWN_GPU_KIND: &str = "koordinator.sh/gpu";

impl Default for AgentPaths {
    fn default() -> Self {
        Self {
            kubelet_dir: "/var/lib/kubelet/device-plugins".into(),
            pod_resources_socket: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
            sysfs_root: "/sys".into(),
            proc_root: "/proc".into(),
            host_net_dir: None,
            dev_root: "/dev".into(),
            driver_root: "/".into(),
            host_driver_root: None,
            nvml_library: None,
            gpu_recording: None,
            cdi_root: "/var/run/cdi".into(),
            state_dir: "/var/lib/baton".into(),
        }
    }
}

impl Default for AgentPeriods {
    fn default() -> Self {
        Self { recovery_window: s(60), suspect_min: s(60) }
    }
}

impl Timed for AgentOptions {
    fn times(&mut self) -> Vec<(&'static str, &mut Duration)> {
        self.timings.times()
    }
    fn kubeconfig(&self) -> Option<&Path> {
        self.kubeconfig.as_deref()
    }
}

impl AgentOptions {
    /// Schedulers whose pods are served without a node lock.
    pub fn lockless(&self) -> Vec<String> {
        match self.node_lock {
            LockMode::Always => Vec::new(),
            LockMode::Auto => self.scheduler_names.clone(),
        }
    }

    /// Checks what can be checked without looking at the machine.
    pub fn validate(&self) -> Result<(), OptionError> {
        let bad = |option, problem: String| Err(OptionError::value(option, problem));
        if self.node_name.is_empty() {
            return bad("--node-name", "is empty; set it, or NODE_NAME from spec.nodeName by the downward API".into());
        }
        named("--node-name", check_node_name(&self.node_name))?;
        named("--namespace", check_daemon_namespace(&self.namespace))?;
        if self.device_list_strategy.is_empty() {
            return bad("--device-list-strategy", "is empty; cdi-cri is the default".into());
        }
        match self.cdi_kind.split_once('/') {
            Some((vendor, class)) if check_subdomain("vendor", vendor).is_ok() && is_cdi_class(class) => {}
            _ => return bad("--cdi-kind", format!("{:?} is no CDI kind; expected vendor/class", self.cdi_kind)),
        }
        named("--node-lock-key", check_annotation_key("node lock key", &self.node_lock_key))?;
        if self.scheduler_names.iter().all(String::is_empty) && self.node_lock == LockMode::Auto {
            return bad("--scheduler-names", "is empty; --node-lock=auto trusts only named schedulers".into());
        }
        for (option, path) in [("--mps-root", &self.mps_root), ("--hami-core-dir", &self.hami_core_dir)] {
            if !path.is_absolute() {
                return bad(option, format!("{} is not absolute", path.display()));
            }
        }
        if !self.rdma_vf_resource.is_empty() {
            named("--rdma-vf-resource", check_vf_resource(&self.rdma_vf_resource))?;
        }
        let digest = &self.hami_core_sha256;
        if !digest.is_empty() && (digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            return bad(
                "--hami-core-sha256",
                format!("{digest:?} is no SHA-256; `sha256sum libvgpu.so` prints its 64 digits"),
            );
        }
        if self.share_isolation != ShareIsolation::None && !self.gpu_sharing {
            let problem = format!("{} limits GPU shares, and --gpu-sharing=false offers none", self.share_isolation);
            return bad("--share-isolation", problem);
        }
        self.ports.validate()?;
        self.xid.table()?;
        for (option, text) in
            [("--dp-disable-healthchecks", &self.xid.disable), ("--dp-enable-healthchecks", &self.xid.enable)]
        {
            let mut words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
            if let Some(word) = words.find(|word| xid_named(word).is_none()) {
                return bad(option, format!("{word:?} is no XID; expected all, or numbers such as 48,79"));
            }
        }
        if self.periods.suspect_min.is_zero() {
            return Err(OptionError::Zero("--suspect-min"));
        }
        self.paths.validate()
    }

    /// The daemon itself names the device nodes of GPUs: in its CDI spec or in the answer. Otherwise a runtime does.
    pub fn names_gpu_nodes(&self) -> bool {
        self.pass_device_specs || self.gives_driver()
    }

    /// The driver's files reach containers by this daemon's CDI spec.
    pub fn gives_driver(&self) -> bool {
        !self.foreign_cdi() && self.by_cdi()
    }

    /// Devices reach containers by CDI names, alone or beside other ways.
    pub fn by_cdi(&self) -> bool {
        let by_cdi =
            |s: &DeviceListStrategy| matches!(s, DeviceListStrategy::CdiCri | DeviceListStrategy::CdiAnnotations);
        self.device_list_strategy.iter().any(by_cdi)
    }

    /// `true` when another program writes the CDI spec of GPUs (the NVIDIA toolkit, say).
    pub fn foreign_cdi(&self) -> bool {
        self.cdi_kind != OWN_GPU_KIND
    }
}

impl AgentPaths {
    /// Where this process sees a path of the host.
    pub fn of_host(&self, path: &Path) -> PathBuf {
        let below = self.host_driver_root.as_ref().and_then(|root| path.strip_prefix(root).ok());
        below.map_or_else(|| path.to_owned(), |below| self.driver_root.join(below))
    }

    fn validate(&self) -> Result<(), OptionError> {
        for (option, path) in [
            ("--kubelet-dir", &self.kubelet_dir),
            ("--pod-resources-socket", &self.pod_resources_socket),
            ("--sysfs-root", &self.sysfs_root),
            ("--proc-root", &self.proc_root),
            ("--dev-root", &self.dev_root),
            ("--nvidia-driver-root", &self.driver_root),
            ("--cdi-root", &self.cdi_root),
            ("--state-dir", &self.state_dir),
        ] {
            if !path.is_absolute() {
                return Err(OptionError::value(option, format!("{} is not absolute", path.display())));
            }
        }
        let longest = self.kubelet_dir.as_os_str().len() + 1 + super::kubelet::SOCKET_NAME_MAX;
        if longest > super::kubelet::SOCKET_PATH_MAX {
            let problem = format!(
                "{} is {} bytes too long: socket paths below it may have {} bytes",
                self.kubelet_dir.display(),
                longest - super::kubelet::SOCKET_PATH_MAX,
                super::kubelet::SOCKET_PATH_MAX
            );
            return Err(OptionError::value("--kubelet-dir", problem));
        }
        Ok(())
    }
}

impl XidOptions {
    /// The actions of the table.
    pub fn table(&self) -> Result<BTreeMap<u64, XidAction>, OptionError> {
        let read = |(xid, action): (&u64, &String)| match action.parse() {
            Ok(action) => Ok((*xid, action)),
            Err(error) => Err(OptionError::value("--xid-actions", format!("XID {xid}: {error}"))),
        };
        self.actions.iter().map(read).collect()
    }
}

fn check_vf_resource(name: &str) -> Result<(), String> {
    let qualified =
        name.split_once('/').is_some_and(|(domain, _)| domain.contains('.') && !domain.ends_with("kubernetes.io"));
    if !qualified || check_annotation_key("resource name", name).is_err() {
        return Err(format!("{name:?} is no extended resource; expected domain/name, say example.com/rdma-vf"));
    }
    if key::is_device_resource(name) {
        return Err(format!("{name} has another meaning; take a name of your own domain"));
    }
    Ok(())
}

fn is_cdi_class(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> AgentOptions {
        AgentOptions { node_name: "node-a".into(), ..AgentOptions::default() }
    }

    #[test]
    fn the_defaults_need_only_a_node_name() {
        assert_eq!(good().validate(), Ok(()));
        assert!(AgentOptions::default().validate().unwrap_err().to_string().contains("NODE_NAME"));
    }

    #[test]
    fn what_cannot_work_is_refused_naming_flag_and_value() {
        type Break = fn(&mut AgentOptions);
        let cases: [(Break, &str, &str); 19] = [
            (|o| o.node_name = "a".repeat(242), "--node-name", "longer than 241"),
            (|o| o.namespace = "a".repeat(58), "--namespace", "longer than 57"),
            (|o| o.node_name = "Node_A".into(), "--node-name", "Node_A"),
            (|o| o.node_name = "a..b".into(), "--node-name", "a..b"),
            (|o| o.namespace = "a.b".into(), "--namespace", "a.b"),
            (|o| o.node_lock_key = "x y".into(), "--node-lock-key", "x y"),
            (|o| o.device_list_strategy.clear(), "--device-list-strategy", "empty"),
            (|o| o.cdi_kind = "gpu".into(), "--cdi-kind", "vendor/class"),
            (|o| o.node_lock_key = "a/b/c".into(), "--node-lock-key", "a/b/c"),
            (|o| o.paths.state_dir = "state".into(), "--state-dir", "not absolute"),
            (|o| o.paths.kubelet_dir = format!("/{}", "k".repeat(90)).into(), "--kubelet-dir", "too long"),
            (|o| drop(o.xid.actions.insert(48, "explode".into())), "--xid-actions", "explode"),
            (|o| o.xid.disable = "foo;bar".into(), "--dp-disable-healthchecks", "foo;bar"),
            (|o| o.xid.enable = "79, xid48".into(), "--dp-enable-healthchecks", "\"xid48\""),
            (|o| o.hami_core_sha256 = "abc".into(), "--hami-core-sha256", "sha256sum"),
            (
                |o| (o.share_isolation, o.gpu_sharing) = (ShareIsolation::Mps, false),
                "--share-isolation",
                "--gpu-sharing=false",
            ),
            (|o| o.rdma_vf_resource = key::RDMA.into(), "--rdma-vf-resource", "another meaning"),
            (|o| o.rdma_vf_resource = "vf".into(), "--rdma-vf-resource", "domain/name"),
            (|o| o.periods.suspect_min = Duration::ZERO, "--suspect-min", "zero"),
        ];
        for (break_it, option, part) in cases {
            let mut options = good();
            break_it(&mut options);
            let error = options.validate().unwrap_err().to_string();
            assert!(error.contains(option) && error.contains(part), "{error}");
        }
    }
}
