//! The container runtime: sandboxes and virtual processes. It outlives kubelet restarts; a reboot empties it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;

use super::cgroups::Cgroups;
use super::history::ProcessRun;
use super::instance::{Exit, Injected, Instance, OnTerm};
use super::locked;
use super::pod::PodHandle;
use super::process::Process;
use baton_runtime::clock;

/// The shortest and the longest time until the kubelet calls a runtime again that is back.
const FOUND_AGAIN: (Duration, Duration) = (Duration::from_millis(600), Duration::from_secs(3));

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
    pub started_here: BTreeSet<String>,
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

/// What a process is started with.
pub struct Launch<'a> {
    /// Its pod.
    pub pod: &'a PodHandle,
    /// Its container's name.
    pub container: &'a str,
    /// What it does.
    pub process: Process,
    /// Answer to SIGTERM where the process has none of its own; real time.
    pub on_term: OnTerm,
    /// Real seconds for each of the process's seconds.
    pub scale: f64,
    /// The plugins' answers.
    pub injected: Injected,
    /// Device ids by resource.
    pub devices: BTreeMap<String, BTreeSet<String>>,
}

/// The runtime of one node.
#[derive(Debug, Default)]
pub struct Runtime {
    inner: Mutex<RuntimeState>,
    /// An end has come nearer or gone farther, or the runtime has gone or come back.
    changed: Notify,
    /// The pods' cgroups.
    pub(super) cgroups: Cgroups,
}

#[derive(Debug, Default)]
struct RuntimeState {
    sandboxes: BTreeMap<String, Sandbox>,
    made: u64,
    history: Vec<ProcessRun>,
    /// Since when it does not answer.
    down_since: Option<Duration>,
    /// When the kubelet has found it again.
    usable_at: Duration,
}

impl RuntimeState {
    /// Changes a pod's processes that run, and tells the history.
    fn change(&mut self, uid: &str, only: Option<&str>, change: impl Fn(&mut Instance)) -> usize {
        let now = clock::mono();
        let Some(sandbox) = self.sandboxes.get_mut(uid) else { return 0 };
        let wanted = |name: &str| only.is_none_or(|only| only == name);
        let mut changed = 0;
        for (_, instance) in sandbox.containers.iter_mut().filter(|(name, _)| wanted(name)) {
            if instance.exited(now).is_none() {
                change(instance);
                changed += 1;
                if let Some(run) = self.history.get_mut(instance.run) {
                    run.ended = instance.exit.as_ref().map(|exit| exit.at);
                }
            }
        }
        changed
    }

    fn change_all(&mut self, change: impl Fn(&mut Instance)) {
        for uid in self.sandboxes.keys().cloned().collect::<Vec<_>>() {
            self.change(&uid, None, &change);
        }
    }
}

impl Runtime {
    /// A runtime without pods.
    pub(super) fn new(cgroups: Cgroups) -> Self {
        Self { cgroups, ..Self::default() }
    }

    /// A pod's sandbox, as it stands.
    pub fn sandbox(&self, uid: &str) -> Option<Sandbox> {
        locked(&self.inner).sandboxes.get(uid).cloned()
    }

    /// Every running container as (uid, container).
    pub fn running(&self) -> BTreeSet<(String, String)> {
        let now = clock::mono();
        let inner = locked(&self.inner);
        let each = inner.sandboxes.iter().flat_map(|(uid, sandbox)| {
            let names = sandbox.containers.keys().filter(move |name| sandbox.is_running(name, now));
            names.map(move |name| (uid.clone(), name.clone()))
        });
        each.collect()
    }

    /// Every process so far, in the order of their starts.
    pub fn history(&self) -> Vec<ProcessRun> {
        let now = clock::mono();
        let mut history = locked(&self.inner).history.clone();
        history.iter_mut().for_each(|run| run.ended = run.ended.filter(|at| *at <= now));
        history
    }

    /// Pods of which anything is left: a sandbox that runs, or a cgroup.
    pub fn pods(&self) -> BTreeSet<String> {
        let inner = locked(&self.inner);
        let ready = inner.sandboxes.iter().filter(|(_, sandbox)| sandbox.ready).map(|(uid, _)| uid.clone());
        ready.chain(self.cgroups.uids()).collect()
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
        self.cgroups.occupy(uid);
    }

    /// Starts a container.
    pub fn start(&self, launch: Launch<'_>) {
        let Launch { pod, container, process, on_term, scale, injected, devices } = launch;
        let mut inner = locked(&self.inner);
        inner.made += 1;
        let id = format!("containerd://{:064x}", fnv(&format!("{}/{container}/{}", pod.uid, inner.made)));
        let now = clock::now();
        let exit = process.runs.map(|runs| Exit::new(now.mono + runs.mul_f64(scale), process.exit_code));
        // A process that says how long it needs to stop takes SIGTERM well.
        let on_term = process.stops.map_or(on_term, |stops| OnTerm { takes: stops.mul_f64(scale), code: 0 });
        let RuntimeState { sandboxes, history, .. } = &mut *inner;
        let Some(sandbox) = sandboxes.get_mut(&pod.uid) else { return };
        let last = sandbox.containers.remove(container);
        let restarts = last.as_ref().map_or(0, |last| last.restarts + 1);
        if let Some(last) = last {
            sandbox.previous.insert(container.to_owned(), last);
        }
        sandbox.started_here.insert(container.to_owned());
        let instance = Instance {
            id,
            started_at: now.mono,
            started: now.wall,
            own_ends: exit.iter().cloned().collect(),
            exit,
            restarts,
            injected,
            on_term,
            run: history.len(),
            ..Instance::default()
        };
        history.push(ProcessRun {
            uid: pod.uid.clone(),
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            container: container.to_owned(),
            injected: instance.injected.clone(),
            devices,
            started: now.mono,
            ended: instance.exit.as_ref().map(|exit| exit.at),
        });
        sandbox.containers.insert(container.to_owned(), instance);
    }

    /// Ends a container, or all of a pod, at once. Returns how many were running.
    pub fn end(&self, uid: &str, container: Option<&str>, code: i32) -> usize {
        let now = clock::mono();
        self.changing(|inner| inner.change(uid, container, |instance| instance.end(now, code)))
    }

    /// Stops all containers of a pod together: SIGTERM now, SIGKILL after `grace`.
    pub fn stop_containers(&self, uid: &str, grace: Duration) {
        let now = clock::mono();
        self.changing(|inner| inner.change(uid, None, |instance| instance.stop(now, grace)));
    }

    /// Lets no signal reach a pod's processes. Returns how many run.
    pub fn freeze(&self, uid: &str) -> usize {
        let now = clock::mono();
        self.changing(|inner| inner.change(uid, None, |instance| instance.freeze(now)))
    }

    /// Lets all signals that came reach them. Returns how many run.
    pub fn thaw(&self, uid: &str) -> usize {
        let now = clock::mono();
        self.changing(|inner| inner.change(uid, None, |instance| instance.thaw(now)))
    }

    /// No stop waits to kill a process any more.
    pub fn spare(&self) {
        let now = clock::mono();
        self.changing(|inner| inner.change_all(|instance| instance.spare(now)));
    }

    /// The runtime does not answer. Processes go on, and are not killed.
    pub fn go_down(&self) {
        locked(&self.inner).down_since.get_or_insert(clock::mono());
        self.spare();
    }

    /// The runtime is back. The kubelet finds it the later, the longer it was away.
    pub fn come_back(&self, scale: f64) {
        let now = clock::mono();
        self.changing(|inner| {
            let Some(since) = inner.down_since.take() else { return };
            let longest = FOUND_AGAIN.1.mul_f64(scale);
            let pause = now.saturating_sub(since).mul_f64(0.3).clamp(FOUND_AGAIN.0.mul_f64(scale), longest);
            inner.usable_at = now + pause;
        });
    }

    /// Whether the kubelet can reach it.
    pub fn is_usable(&self) -> bool {
        let inner = locked(&self.inner);
        inner.down_since.is_none() && inner.usable_at <= clock::mono()
    }

    /// Waits until the kubelet can reach it.
    pub async fn until_usable(&self) {
        self.until(|inner, now| match inner.down_since {
            Some(_) => Standing::Unknown,
            None if inner.usable_at > now => Standing::Not(inner.usable_at),
            None => Standing::Is(()),
        })
        .await;
    }

    /// Waits until all containers of a pod have ended; `false` when the runtime has gone before.
    pub async fn until_ended(&self, uid: &str) -> bool {
        self.until(|inner, now| {
            if inner.down_since.is_some() {
                return Standing::Is(false);
            }
            let Some(sandbox) = inner.sandboxes.get(uid).filter(|sandbox| sandbox.any_running(now)) else {
                return Standing::Is(true);
            };
            sandbox.next_exit(now).map_or(Standing::Unknown, Standing::Not)
        })
        .await
    }

    /// The sandbox's own process ends, after its containers.
    pub fn end_sandbox(&self, uid: &str) {
        if let Some(sandbox) = locked(&self.inner).sandboxes.get_mut(uid) {
            sandbox.ready = false;
        }
        self.cgroups.vacate(uid);
    }

    /// Forgets a pod that is gone.
    pub fn remove(&self, uid: &str) {
        locked(&self.inner).sandboxes.remove(uid);
    }

    /// Power off: everything that ran ends with code 255, and no sandbox is ready.
    pub fn power_off(&self) {
        let now = clock::mono();
        let mut inner = locked(&self.inner);
        inner.change_all(|instance| instance.exit = Some(Exit { at: now, code: 255, reason: "Unknown" }));
        inner.sandboxes.values_mut().for_each(|sandbox| sandbox.ready = false);
        inner.down_since = None;
        drop(inner);
        self.cgroups.clear();
    }

    fn changing<T>(&self, change: impl FnOnce(&mut RuntimeState) -> T) -> T {
        let changed = change(&mut locked(&self.inner));
        self.changed.notify_waiters();
        changed
    }

    async fn until<T>(&self, look: impl Fn(&RuntimeState, Duration) -> Standing<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let now = clock::mono();
            let standing = look(&locked(&self.inner), now);
            match standing {
                Standing::Is(value) => return value,
                Standing::Not(until) => {
                    let pause = until.saturating_sub(now) + Duration::from_millis(1);
                    let _ = tokio::time::timeout(pause, changed).await;
                }
                Standing::Unknown => changed.await,
            }
        }
    }
}

/// How what is waited for stands.
enum Standing<T> {
    Is(T),
    /// Not before this time, as things are.
    Not(Duration),
    /// When is not known.
    Unknown,
}

/// A stable hash for made-up ids.
pub(super) fn fnv(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}
