//! The container runtime: sandboxes and virtual processes. It outlives kubelet restarts; a reboot empties it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::locked;
use super::process::Process;
use baton_contract::deviceplugin::ContainerAllocateResponse;
use baton_runtime::clock;

/// What a container was started with: the plugins' answers, merged; of two values for a key the first stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Injected {
    /// Environment variables. The pod's own win over these.
    pub envs: BTreeMap<String, String>,
    /// Host path by container path.
    pub device_nodes: BTreeMap<String, String>,
    /// Host path by container path.
    pub mounts: BTreeMap<String, String>,
    /// Annotations for the container runtime.
    pub annotations: BTreeMap<String, String>,
    /// Fully qualified CDI device names.
    pub cdi_devices: Vec<String>,
}

impl Injected {
    /// Adds a resource's answer.
    pub fn merge(&mut self, answer: &ContainerAllocateResponse) {
        fn add<'a>(to: &mut BTreeMap<String, String>, from: impl Iterator<Item = (&'a String, &'a String)>) {
            for (key, value) in from {
                to.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        add(&mut self.envs, answer.envs.iter());
        add(&mut self.device_nodes, answer.devices.iter().map(|node| (&node.container_path, &node.host_path)));
        add(&mut self.mounts, answer.mounts.iter().map(|mount| (&mount.container_path, &mount.host_path)));
        add(&mut self.annotations, answer.annotations.iter());
        self.cdi_devices.extend(answer.cdi_devices.iter().map(|device| device.name.clone()));
        self.cdi_devices.dedup();
    }
}

/// The end of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// When, on the monotonic clock.
    pub at: Duration,
    /// Exit code.
    pub code: i32,
    /// The runtime's word for it: `Completed` or `Error`.
    pub reason: &'static str,
}

/// One run of a container.
#[derive(Debug, Clone)]
pub struct Instance {
    /// `containerd://…`
    pub id: String,
    /// Monotonic start.
    pub started_at: Duration,
    /// Wall-clock start.
    pub started: Timestamp,
    /// Its end, known in advance for a process with a run time.
    pub exit: Option<Exit>,
    /// Earlier runs of this container.
    pub restarts: i32,
    /// What it was started with.
    pub injected: Injected,
}

impl Instance {
    /// The end, when it has come.
    pub fn exited(&self, now: Duration) -> Option<&Exit> {
        self.exit.as_ref().filter(|exit| exit.at <= now)
    }

    /// Wall-clock time of the end.
    pub fn finished(&self, exit: &Exit) -> Timestamp {
        self.started + exit.at.saturating_sub(self.started_at)
    }
}

/// A pod's sandbox and its containers' last two runs.
#[derive(Debug, Clone, Default)]
pub struct Sandbox {
    /// Pod address.
    pub ip: String,
    /// False after a reboot: containers are listed, but must be started in a new sandbox.
    pub ready: bool,
    /// Last run of each container.
    pub containers: BTreeMap<String, Instance>,
    /// The run before.
    pub previous: BTreeMap<String, Instance>,
    /// Containers started in this sandbox (not in one before a reboot).
    pub started_here: std::collections::BTreeSet<String>,
}

impl Sandbox {
    /// Whether a container is running.
    pub fn is_running(&self, container: &str, now: Duration) -> bool {
        self.ready && self.containers.get(container).is_some_and(|instance| instance.exited(now).is_none())
    }

    /// Whether anything is running.
    pub fn any_running(&self, now: Duration) -> bool {
        self.ready && self.containers.values().any(|instance| instance.exited(now).is_none())
    }

    /// The next end that lies ahead.
    pub fn next_exit(&self, now: Duration) -> Option<Duration> {
        let ends = self.containers.values().filter_map(|instance| Some(instance.exit.as_ref()?.at));
        ends.filter(|at| *at > now).min()
    }
}

/// The runtime of one node.
#[derive(Debug, Default)]
pub struct Runtime {
    inner: Mutex<Sandboxes>,
}

#[derive(Debug, Default)]
struct Sandboxes {
    sandboxes: BTreeMap<String, Sandbox>,
    made: u64,
}

impl Runtime {
    /// A pod's sandbox, as it stands.
    pub fn sandbox(&self, uid: &str) -> Option<Sandbox> {
        locked(&self.inner).sandboxes.get(uid).cloned()
    }

    /// Every running container as (uid, container).
    pub fn running(&self) -> std::collections::BTreeSet<(String, String)> {
        let now = clock::mono();
        let inner = locked(&self.inner);
        let each = inner.sandboxes.iter().flat_map(|(uid, sandbox)| {
            let names = sandbox.containers.keys().filter(move |name| sandbox.is_running(name, now));
            names.map(move |name| (uid.clone(), name.clone()))
        });
        each.collect()
    }

    /// Makes a pod's sandbox, or a new one after a reboot.
    pub fn make_sandbox(&self, uid: &str) {
        let mut inner = locked(&self.inner);
        inner.made += 1;
        let ip = format!("10.244.{}.{}", (inner.made / 254) % 256, inner.made % 254 + 1);
        let sandbox = inner.sandboxes.entry(uid.to_owned()).or_default();
        if sandbox.ip.is_empty() {
            sandbox.ip = ip;
        }
        sandbox.ready = true;
        sandbox.started_here.clear();
    }

    /// Starts a container. `scale` is real seconds for each of the process's seconds.
    pub fn start(&self, uid: &str, container: &str, process: Process, scale: f64, injected: Injected) {
        let mut inner = locked(&self.inner);
        inner.made += 1;
        let id = format!("containerd://{:064x}", fnv(&format!("{uid}/{container}/{}", inner.made)));
        let now = clock::now();
        let reason = if process.exit_code == 0 { "Completed" } else { "Error" };
        let exit =
            process.runs.map(|runs| Exit { at: now.mono + runs.mul_f64(scale), code: process.exit_code, reason });
        let Some(sandbox) = inner.sandboxes.get_mut(uid) else { return };
        let last = sandbox.containers.remove(container);
        let restarts = last.as_ref().map_or(0, |last| last.restarts + 1);
        if let Some(last) = last {
            sandbox.previous.insert(container.to_owned(), last);
        }
        sandbox.started_here.insert(container.to_owned());
        let instance = Instance { id, started_at: now.mono, started: now.wall, exit, restarts, injected };
        sandbox.containers.insert(container.to_owned(), instance);
    }

    /// Ends a container after `delay` (sooner if it ends by itself). Returns whether it was running.
    pub fn end(&self, uid: &str, container: &str, code: i32, delay: Duration) -> bool {
        let now = clock::mono();
        let mut inner = locked(&self.inner);
        let Some(sandbox) = inner.sandboxes.get_mut(uid).filter(|sandbox| sandbox.ready) else { return false };
        let Some(instance) = sandbox.containers.get_mut(container) else { return false };
        if instance.exited(now).is_some() {
            return false;
        }
        let at = now + delay;
        if instance.exit.as_ref().is_none_or(|exit| exit.at > at) {
            let reason = if code == 0 { "Completed" } else { "Error" };
            instance.exit = Some(Exit { at, code, reason });
        }
        true
    }

    /// Forgets a pod that is gone.
    pub fn remove(&self, uid: &str) {
        locked(&self.inner).sandboxes.remove(uid);
    }

    /// Power off: everything that ran ends with code 255, and no sandbox is ready.
    pub fn power_off(&self) {
        let now = clock::mono();
        for sandbox in locked(&self.inner).sandboxes.values_mut() {
            for instance in sandbox.containers.values_mut().filter(|instance| instance.exited(now).is_none()) {
                instance.exit = Some(Exit { at: now, code: 255, reason: "Unknown" });
            }
            sandbox.ready = false;
        }
    }
}

/// A stable hash for made-up ids.
pub(super) fn fnv(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}
