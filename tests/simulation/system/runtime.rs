//! The processes of a node's pods: a truth that no product code reads. What runs outlives every kubelet and daemon, and a pod's cgroup
//! shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use baton::contract::{PodRef, PodUid};
use baton::decide::handoff::CgroupLook;
use baton::decide::pod::Phase;

use super::housekeeping::Gate;
use super::{Fault, Happening, System};

/// No pod is given as long to end.
const FOR_EVER: Duration = Duration::from_secs(3600);
/// A container's start waits for so long at most once nothing runs on its devices.
const WAITS: Duration = Duration::from_secs(25);
/// The same where the cgroup of a pod that has left was never seen while it ran: its grace and a minute more.
const WAITS_UNSEEN: Duration = Duration::from_secs(100);

/// A pod whose sandbox is there.
#[derive(Debug, Clone)]
pub struct Runs {
    pub pod: PodRef,
    /// What its processes use, by container.
    pub devices: Vec<(Box<str>, String, i64)>,
    /// When it ends by itself; never, while a container of it has not started once.
    ends: Duration,
    /// How long its processes take to end once they are asked to.
    pub needs: Duration,
    /// When they end, once they were asked: no later request shortens that.
    pub stop: Option<Duration>,
    /// Until then they cannot be killed.
    pub stuck: Duration,
    /// When its containers ended last.
    pub ended: BTreeMap<Box<str>, Duration>,
    /// Containers that do not run.
    pub waits: BTreeMap<Box<str>, Start>,
    has_started: bool,
}

/// A container that is to start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Start {
    at: Duration,
    pub tries: u32,
    /// Since when the kubelet waits for the daemon's answer, and of which daemon.
    call: Option<(Duration, u64)>,
    /// Since when nothing runs on its devices, and it waits nevertheless.
    free: Option<Duration>,
}

impl Runs {
    fn end(&self) -> Duration {
        self.ends.min(self.stop.unwrap_or(Duration::MAX)).max(self.stuck)
    }

    /// The kubelet that waited for an answer is gone.
    pub fn calls_end(&mut self) {
        self.waits.values_mut().for_each(|start| (start.call, start.free) = (None, None));
    }

    /// The API server may show the pod running: each container has started once.
    pub const fn has_started(&self) -> bool {
        self.has_started
    }

    /// A container of it ends, and starts again later.
    pub fn container_ends(&mut self, container: &str, now: Duration, at: Duration) {
        self.devices.retain(|(name, ..)| **name != *container);
        self.ended.insert(container.into(), now);
        self.waits.insert(container.into(), Start { at, ..Start::default() });
    }
}

impl System {
    /// The sandbox of a pod is made; its containers start one by one.
    pub fn pod_begins(&mut self, node: usize, pod: &PodRef) {
        let needs = if self.strikes(Fault::EndsLate) { FOR_EVER } else { self.soon(100, 3000) };
        let kubelet = &mut self.machines[node].kubelet;
        let devices = kubelet.granted(&pod.uid);
        let start = Start { at: self.now, ..Start::default() };
        let waits: BTreeMap<Box<str>, Start> = devices.iter().map(|(name, ..)| (name.clone(), start)).collect();
        let runs = Runs {
            pod: pod.clone(),
            devices: Vec::new(),
            ends: Duration::MAX,
            needs,
            stop: None,
            stuck: Duration::ZERO,
            ended: BTreeMap::new(),
            waits,
            has_started: false,
        };
        let is_up = runs.waits.is_empty();
        kubelet.runtime.insert(pod.uid.clone(), runs);
        self.watch_start(&pod.uid, !devices.is_empty());
        if is_up {
            self.all_started(node, pod);
        }
    }

    fn all_started(&mut self, node: usize, pod: &PodRef) {
        let ends = self.now + self.jobs.lifetime(pod);
        if let Some(runs) = self.machines[node].kubelet.runtime.get_mut(&pod.uid) {
            (runs.ends, runs.has_started) = (ends, true);
        }
        self.says(node, pod, Some(Phase::Running));
        self.watch_processes(node, &pod.uid);
    }

    /// Looks at them when they end.
    pub fn watch_processes(&mut self, node: usize, uid: &PodUid) {
        let end = self.machines[node].kubelet.runtime.get(uid).map(Runs::end);
        if let Some(at) = end.filter(|at| *at < Duration::MAX) {
            self.at(at.max(self.now), Happening::Processes(node));
        }
    }

    /// Processes have ended: the cgroup is empty, and goes a little later.
    pub fn processes_end(&mut self, node: usize) {
        let runtime = &self.machines[node].kubelet.runtime;
        let due = runtime.values().filter(|runs| runs.end() <= self.now).map(|runs| runs.pod.clone());
        for pod in due.collect::<Vec<_>>() {
            // Sometimes an unmount hangs.
            let stays = if self.pace.below(20) == 0 { 30_000 } else { 500 + self.pace.below(200) };
            let until = self.now + Duration::from_millis(u64::from(stays));
            let machine = &mut self.machines[node];
            machine.cgroups.insert(pod.uid.clone(), until);
            machine.kubelet.runtime.remove(&pod.uid);
            machine.kubelet.has_exited(&pod, self.now);
            self.note(|| format!("n{node}: processes of {} have ended", pod.uid));
            let seen = self.now + self.soon(1, 100);
            self.look_again(node, seen);
        }
    }

    /// The kubelet asks the processes of a pod to end within `grace`.
    pub fn stop_processes(&mut self, node: usize, uid: &PodUid, grace: Duration) {
        let down = self.machines[node].runtime_down;
        let back = if down > self.now { down + self.soon(1000, 5000) } else { Duration::ZERO };
        let now = self.now;
        let Some(runs) = self.machines[node].kubelet.runtime.get_mut(uid).filter(|runs| runs.stop.is_none()) else {
            return;
        };
        runs.stop = Some((now + runs.needs.min(grace)).max(back));
        self.watch_processes(node, uid);
    }

    /// What a daemon sees of a pod's cgroup.
    pub fn look_at(&self, node: usize, uid: &PodUid) -> CgroupLook {
        let machine = &self.machines[node];
        if self.now < machine.cgroups_hidden {
            CgroupLook::Unknown
        } else if machine.kubelet.runtime.contains_key(uid) {
            CgroupLook::Occupied
        } else if machine.cgroups.get(uid).is_some_and(|until| self.now < *until) || machine.kubelet.is_starting(uid) {
            CgroupLook::Empty
        } else {
            CgroupLook::Absent
        }
    }

    /// Containers that are due.
    pub fn try_starts(&mut self, node: usize) {
        let kubelet = &self.machines[node].kubelet;
        let ready = kubelet.runtime.values().filter(|runs| runs.stop.is_none() && kubelet.manages(&runs.pod.uid));
        let due: Vec<(PodRef, Box<str>)> = ready
            .flat_map(|runs| {
                let due = runs.waits.iter().filter(|(_, start)| start.at <= self.now);
                due.map(|(name, _)| (runs.pod.clone(), name.clone()))
            })
            .collect();
        let life = self.machines[node].kubelet_life;
        for (pod, container) in due {
            if self.machines[node].kubelet_life == life {
                self.try_start(node, &pod, &container);
            }
        }
    }

    fn start(&mut self, node: usize, uid: &PodUid, container: &str) -> Option<&mut Start> {
        self.machines[node].kubelet.runtime.get_mut(uid)?.waits.get_mut(container)
    }

    /// The kubelet asks the daemon whether the container may start.
    fn try_start(&mut self, node: usize, pod: &PodRef, container: &str) {
        let (now, daemon) = (self.now, self.machines[node].daemon_life);
        let Some(start) = self.start(node, &pod.uid, container).map(|start| *start) else { return };
        let is_lost = start.call.is_some_and(|(_, of)| of != daemon);
        if is_lost || now < self.machines[node].runtime_down {
            return self.tries_again(node, pod, container);
        }
        if start.call.is_none() && !self.has_all(node, pod, container) {
            return self.tries_again(node, pod, container);
        }
        for (resource, ids) in self.machines[node].kubelet.ids_of(&pod.uid, container) {
            let since = start.call.map_or(now, |(since, _)| since);
            match self.gate(node, &resource, &ids, since) {
                Gate::Open => {}
                Gate::NotReady => return self.tries_again(node, pod, container),
                Gate::Held(users, pause) => return self.start_waits(node, pod, container, (&users, pause)),
            }
        }
        let kubelet = &mut self.machines[node].kubelet;
        let own = kubelet.granted(&pod.uid).into_iter().filter(|(name, ..)| **name == *container);
        let own: Vec<_> = own.collect();
        self.judge_devices(node, pod, container, own.iter().map(|(_, id, amount)| (id, *amount)));
        let kubelet = &mut self.machines[node].kubelet;
        let Some(runs) = kubelet.runtime.get_mut(&pod.uid) else { return };
        runs.waits.remove(container);
        runs.devices.extend(own);
        let (is_up, has_started) = (runs.waits.is_empty(), runs.has_started);
        self.note(|| format!("n{node}: container {container} of {} starts", pod.key));
        if is_up && !has_started {
            self.all_started(node, pod);
        } else {
            self.says(node, pod, Some(Phase::Running));
        }
        self.judge_processes(node);
    }

    /// A start that failed is tried again, ever later.
    fn tries_again(&mut self, node: usize, pod: &PodRef, container: &str) {
        let (first, most) = (self.soon(150, 1000), self.soon(10_000, 15_000));
        let now = self.now;
        let Some(start) = self.start(node, &pod.uid, container) else { return };
        let at = now + (first * 2u32.pow(start.tries.min(6))).min(most);
        *start = Start { at, tries: start.tries + 1, call: None, free: None };
        self.look_again(node, at);
    }

    /// The daemon keeps the call: other pods go on meanwhile.
    fn start_waits(&mut self, node: usize, pod: &PodRef, container: &str, (users, pause): (&[PodUid], Duration)) {
        let machine = &self.machines[node];
        let runtime = &machine.kubelet.runtime;
        // What holds the devices runs, or is to run.
        let lives = |uid: &PodUid| {
            let of = self.store.pods().find(|facts| facts.handoff.pod.uid == *uid);
            runtime.contains_key(uid) || of.is_some_and(|facts| !facts.handoff.phase.is_terminal())
        };
        let is_used = users.iter().any(lives);
        let processes = machine.daemon.as_ref().and_then(|daemon| Some(daemon.hand_off.as_ref()?.processes()));
        let is_found = processes.is_some_and(|processes| users.iter().all(|uid| processes.is_found(uid)));
        let is_seen = self.now >= machine.cgroups_hidden && is_found;
        let (now, daemon) = (self.now, machine.daemon_life);
        let Some(start) = self.start(node, &pod.uid, container) else { return };
        let is_new = start.call.is_none();
        start.call.get_or_insert((now, daemon));
        start.free = if is_used { None } else { Some(start.free.unwrap_or(now)) };
        let waits = start.free.map_or(Duration::ZERO, |free| now - free);
        if is_new {
            self.history.sometimes("a start waits for a pod that has left");
            self.note(|| format!("n{node}: container {container} of {} waits for {users:?}", pod.key));
        }
        if waits > if is_seen { WAITS } else { WAITS_UNSEEN } {
            let what = format!("n{node}: {container} of {} waits for {users:?}, gone for {waits:?}", pod.key);
            return self.violates("a container does not wait for devices that nothing uses", what);
        }
        let at = now + pause;
        if let Some(start) = self.start(node, &pod.uid, container) {
            start.at = at;
        }
        self.look_again(node, at);
    }

    /// Starts for which a daemon keeps a call now.
    pub fn waiting_starts(&self, node: usize) -> usize {
        let runs = self.machines[node].kubelet.runtime.values();
        runs.flat_map(|runs| runs.waits.values()).filter(|start| start.call.is_some()).count()
    }
}
