//! One run of a container: what it was started with, a virtual process and its end.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use baton_contract::deviceplugin::ContainerAllocateResponse;

/// Exit code of a process that SIGKILL ended.
pub const KILLED: i32 = 137;

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

impl Exit {
    /// An end with an exit code.
    pub fn new(at: Duration, code: i32) -> Self {
        Self { at, code, reason: if code == 0 { "Completed" } else { "Error" } }
    }
}

/// What a process does on SIGTERM: it ends after a while, with a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnTerm {
    /// How long it takes.
    pub takes: Duration,
    /// How it ends then.
    pub code: i32,
}

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

/// One run of a container.
#[derive(Debug, Clone, Default)]
pub struct Instance {
    /// `containerd://…`
    pub id: String,
    /// Monotonic start.
    pub started_at: Duration,
    /// Wall-clock start.
    pub started: Timestamp,
    /// Its end, known in advance for a process with a run time and for one that is being stopped.
    pub exit: Option<Exit>,
    /// Earlier runs of this container.
    pub restarts: i32,
    /// What it was started with.
    pub injected: Injected,
    /// Its answer to SIGTERM.
    pub on_term: OnTerm,
    /// Its place in the history.
    pub run: usize,
    /// Ends of its own: its work is done, or it answers SIGTERM.
    pub own_ends: Vec<Exit>,
    /// SIGKILL, come or to come.
    pub kill: Option<Exit>,
    /// In uninterruptible sleep: no signal reaches it.
    pub frozen: bool,
    /// When it woke last.
    pub thawed_at: Duration,
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

    /// SIGTERM now, SIGKILL after `grace`. A stop that is under way keeps its times.
    pub fn stop(&mut self, now: Duration, grace: Duration) {
        if self.kill.is_none() {
            self.kill = Some(Exit::new(now + grace, KILLED));
            self.own_ends.push(Exit::new(now + self.on_term.takes, self.on_term.code));
        }
        self.settle(now);
    }

    /// It ends with a code now.
    pub fn end(&mut self, now: Duration, code: i32) {
        self.kill = Some(Exit::new(now, code));
        self.settle(now);
    }

    /// Who was to kill it has gone.
    pub fn spare(&mut self, now: Duration) {
        self.kill.take_if(|kill| kill.at > now);
        self.settle(now);
    }

    /// No signal reaches it from now on.
    pub fn freeze(&mut self, now: Duration) {
        self.frozen = true;
        self.settle(now);
    }

    /// What came meanwhile reaches it now.
    pub fn thaw(&mut self, now: Duration) {
        self.frozen = false;
        self.thawed_at = now;
        self.settle(now);
    }

    fn settle(&mut self, now: Duration) {
        if self.exited(now).is_some() {
            return;
        }
        let first = self.own_ends.iter().chain(&self.kill).min_by_key(|exit| exit.at).cloned();
        let late = |exit: Exit| Exit { at: exit.at.max(self.thawed_at), ..exit };
        self.exit = first.filter(|_| !self.frozen).map(late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn slow() -> Instance {
        Instance { on_term: OnTerm { takes: s(12), code: 0 }, ..Instance::default() }
    }

    #[test]
    fn a_process_that_needs_longer_than_its_grace_is_killed() {
        let mut process = slow();
        process.stop(s(1), s(2));
        assert_eq!(process.exit, Some(Exit { at: s(3), code: KILLED, reason: "Error" }));
        let mut process = slow();
        process.stop(s(1), s(30));
        assert_eq!(process.exit, Some(Exit { at: s(13), code: 0, reason: "Completed" }));
    }

    #[test]
    fn a_second_stop_shortens_nothing() {
        let mut process = slow();
        process.stop(s(1), s(30));
        process.stop(s(4), s(2));
        assert_eq!(process.exit.map(|exit| exit.at), Some(s(13)));
    }

    #[test]
    fn without_a_runtime_nobody_kills_but_sigterm_was_heard() {
        let mut process = slow();
        process.stop(s(1), s(2));
        process.spare(s(2));
        assert_eq!(process.exit.as_ref().map(|exit| exit.at), Some(s(13)));
        process.stop(s(5), s(2));
        assert_eq!(process.exit.map(|exit| exit.at), Some(s(7)));
    }

    #[test]
    fn a_frozen_process_ends_when_it_wakes() {
        let mut process = slow();
        process.freeze(s(1));
        process.stop(s(2), s(2));
        assert_eq!(process.exit, None);
        process.thaw(s(25));
        assert_eq!(process.exit, Some(Exit { at: s(25), code: KILLED, reason: "Error" }));
    }
}
