//! What a simulated kubelet is started with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cgroups::CgroupLayout;
use super::runtime::fnv;

/// Name, place and pace of one simulated kubelet.
#[derive(Clone)]
pub struct KubeletOptions {
    /// Name of the Node it registers.
    pub node_name: String,
    /// Its directory (`/var/lib/kubelet` of a real one): `device-plugins/` and `pod-resources/` are made inside.
    pub root: PathBuf,
    /// The API server. Only this client is used, so it may be a real one.
    pub client: kube::Client,
    /// Capacity and allocatable of the node beside extended resources, e.g. `cpu: "64"`.
    pub capacity: BTreeMap<String, String>,
    /// Labels of the Node, beside the ones that every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// Seed of everything a real kubelet leaves to hash order or jitter.
    pub seed: u64,
    /// The node's internal address, also every pod's `hostIP`.
    pub host_ip: String,
    /// Where the boot id is written (`<proc_root>/sys/kernel/random/boot_id`); `None`: only the Node object has it.
    pub proc_root: Option<PathBuf>,
    /// Where the cgroup tree is mounted (`/sys/fs/cgroup` of a real machine); `None`: there is none to be seen.
    pub cgroup_root: Option<PathBuf>,
    /// Version and driver of the cgroup tree.
    pub cgroup_layout: CgroupLayout,
    /// Uid of the pod that a node daemon runs as which is a plain process here: the pod has a cgroup, and
    /// `<proc_root>/self/mountinfo` names it.
    pub daemon_uid: Option<String>,
    /// A directory on tmpfs that a reboot empties, usually the CDI directory.
    pub cdi_root: Option<PathBuf>,
    /// Minor version of Kubernetes. It says how registrations of one resource go together: since 1.37 by their sockets.
    pub minor: u32,
    /// Periods, and how much faster than real time they pass.
    pub periods: Periods,
}

impl KubeletOptions {
    /// Options with the capacity of a large GPU machine, seed 1 and a real kubelet's periods.
    pub fn new(node_name: impl Into<String>, root: impl Into<PathBuf>, client: kube::Client) -> Self {
        let capacity = [("cpu", "128"), ("memory", "1024Gi"), ("pods", "250"), ("ephemeral-storage", "1000Gi")];
        Self {
            node_name: node_name.into(),
            root: root.into(),
            client,
            capacity: capacity.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
            labels: BTreeMap::new(),
            seed: 1,
            host_ip: "10.0.0.1".to_owned(),
            proc_root: None,
            cgroup_root: None,
            cgroup_layout: CgroupLayout::default(),
            daemon_uid: None,
            cdi_root: None,
            minor: 36,
            periods: Periods::default(),
        }
    }

    /// Puts what a node daemon reads of its machine below the machine's roots: boot id, cgroups and the daemon's own pod.
    pub fn set_machine(&mut self, sysfs_root: &Path, proc_root: &Path) {
        self.proc_root = Some(proc_root.to_owned());
        self.cgroup_root = Some(sysfs_root.join("fs/cgroup"));
        self.daemon_uid = Some(uuid(&format!("{}/daemon", self.node_name)));
    }

    /// The device plugins' directory.
    pub fn device_plugins_dir(&self) -> PathBuf {
        self.root.join("device-plugins")
    }

    /// The registration socket.
    pub fn registration_socket(&self) -> PathBuf {
        self.device_plugins_dir().join("kubelet.sock")
    }

    /// The PodResources socket.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root.join("pod-resources").join("kubelet.sock")
    }

    /// The device manager's checkpoint.
    pub fn checkpoint_file(&self) -> PathBuf {
        self.device_plugins_dir().join("kubelet_internal_checkpoint")
    }
}

/// A kubelet's periods. The defaults are a real kubelet's; [`Periods::scale`] makes the marked ones pass faster.
#[derive(Debug, Clone)]
pub struct Periods {
    /// Real seconds for each simulated second, for the periods marked *scaled* and for containers' run times.
    pub scale: f64,
    /// How often the node status is written when it changed (scaled).
    pub node_status: Duration,
    /// Also write the node status as soon as devices change. A real kubelet does not.
    pub fast_status: bool,
    /// How often the node's Lease is renewed (real time: it is compared with other processes' clocks).
    pub lease: Duration,
    /// How long a resource stays known after its plugin went away (scaled).
    pub endpoint_grace: Duration,
    /// How often container states are listed: the longest time until a start or an exit is seen (scaled).
    pub relist: Duration,
    /// Wait before a failed pod sync is tried again, up to half as long again (scaled).
    pub sync_backoff: Duration,
    /// Wait between pod syncs when nothing happens, up to half as long again (scaled).
    pub resync: Duration,
    /// First crash-loop back-off; it doubles up to [`Periods::crash_backoff_max`] (both scaled).
    pub crash_backoff: Duration,
    /// Longest crash-loop back-off.
    pub crash_backoff_max: Duration,
    /// How long a container takes to stop after it is asked to, at most its grace period, which is never below 2 s (scaled).
    /// [`STOP_SECONDS`](super::STOP_SECONDS) says it for one pod.
    pub stop_delay: Duration,
    /// How long a terminal phase that another client wrote stands until the kubelet's own status is written again (scaled).
    pub status_sync: Duration,
    /// From the registration socket's opening until the first pods are seen (real time: plugins re-register in it).
    pub source_delay: Duration,
    /// How long a plugin may take to be dialled (real time).
    pub dial_timeout: Duration,
    /// How long PreStartContainer may take (real time).
    pub pre_start_timeout: Duration,
}

impl Default for Periods {
    fn default() -> Self {
        Self {
            scale: 1.0,
            node_status: Duration::from_secs(10),
            fast_status: false,
            lease: Duration::from_secs(10),
            endpoint_grace: Duration::from_mins(5),
            relist: Duration::from_secs(1),
            sync_backoff: Duration::from_secs(10),
            resync: Duration::from_mins(1),
            crash_backoff: Duration::from_secs(10),
            crash_backoff_max: Duration::from_mins(5),
            stop_delay: Duration::ZERO,
            status_sync: Duration::from_secs(9),
            source_delay: Duration::from_secs(1),
            dial_timeout: Duration::from_secs(10),
            pre_start_timeout: Duration::from_secs(30),
        }
    }
}

impl Periods {
    /// The real duration of a simulated one.
    pub fn scaled(&self, simulated: Duration) -> Duration {
        simulated.mul_f64(self.scale)
    }
}

/// A stable uuid for a name.
pub(super) fn uuid(name: &str) -> String {
    let hash = format!("{:032x}", fnv(name));
    [&hash[..8], &hash[8..12], &hash[12..16], &hash[16..20], &hash[20..]].join("-")
}
