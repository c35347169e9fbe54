//! A kubelet, as recorded: it admits one pod at a time, in the order of their creation, asks for each container and name, keeps the
//! answers in its checkpoint, and starts the containers. What runs outlives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use baton::contract::{DeviceId, PodRef, PodUid};
use baton::decide::handoff::{EntryKey, ListedContainers, ListedPod, PodListing, StoredAnswer};
use baton::decide::pod::{ContainerKind, HandoffPod, Phase};

use super::faults::Mend;
use super::machine::{Answer, answered};
use super::store::Change;
use super::{Fault, Happening, Reader, System};

/// Between two calls of one admission.
const CALL: Duration = Duration::from_millis(2);

/// One kubelet, its checkpoint and the node's runtime.
#[derive(Default)]
pub struct Kubelet {
    pub is_up: bool,
    /// The daemon's plugins are registered.
    pub is_registered: bool,
    /// The names are those of a plugin, by the checkpoint or a registration.
    knows_plugin: bool,
    cursor: usize,
    known: BTreeMap<PodUid, HandoffPod>,
    active: BTreeMap<PodUid, Admission>,
    rejected: BTreeSet<PodUid>,
    /// Pods whose containers have ended, as the runtime knows them.
    ended: BTreeSet<PodUid>,
    stopping: BTreeMap<PodUid, (PodRef, Duration)>,
    checkpoint: BTreeMap<EntryKey, Grant>,
    pub runtime: BTreeMap<PodUid, Runs>,
}

#[derive(Debug)]
struct Admission {
    pod: HandoffPod,
    calls: VecDeque<(Box<str>, Box<str>, usize)>,
    /// When its containers start, once all calls are answered.
    starts: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Grant {
    ids: BTreeSet<String>,
    answer: Answer,
    init: bool,
}

/// A pod whose containers run.
#[derive(Debug, Clone)]
pub struct Runs {
    pub pod: PodRef,
    /// By container: what it was started with.
    pub devices: Vec<(Box<str>, String, i64)>,
    ends: Duration,
    /// A container that has ended, and when it starts again.
    restarts: Option<(Box<str>, Duration)>,
}

/// What came of the kubelet's question for one resource of one container.
enum Asked {
    /// Its checkpoint has the answer.
    Known,
    Granted,
    /// The name is no plugin's yet.
    NoPlugin,
    Refused(String),
    /// The kubelet was killed meanwhile.
    Killed,
}

/// What a kubelet says of a pod.
#[derive(Debug, Clone)]
pub struct StatusWrite {
    pod: PodRef,
    to: Option<Phase>,
    /// Of the kubelet that refused the pod: a later one admits it again.
    life: Option<u64>,
}

impl Kubelet {
    /// PodResources; `None` while it does not run.
    pub fn listing(&self) -> Option<PodListing> {
        if !self.is_up {
            return None;
        }
        let pods = self.active.iter().map(|(uid, admission)| {
            let mut containers = ListedContainers::new();
            let listed = admission.pod.containers.iter().filter(|container| container.kind != ContainerKind::Init);
            for container in listed {
                let held = self.checkpoint.iter().filter(|(key, _)| key.uid == *uid && key.container == container.name);
                let ids = |grant: &Grant| grant.ids.iter().map(|id| id.as_str().into()).collect();
                containers.insert(
                    container.name.clone(),
                    held.map(|(key, grant)| (key.resource.clone(), ids(grant))).collect(),
                );
            }
            ListedPod { key: admission.pod.pod.key.clone(), containers }
        });
        Some(PodListing { pods: pods.collect(), ..PodListing::default() })
    }

    /// The checkpoint's answers.
    pub fn stored_answers(&self) -> BTreeMap<EntryKey, StoredAnswer> {
        let devices =
            |answer: &Answer| answered(answer).iter().filter_map(|(id, _)| DeviceId::parse(id).ok()).collect();
        let stored = |grant: &Grant| StoredAnswer { devices: devices(&grant.answer), encoded: grant.answer.clone() };
        self.checkpoint.iter().map(|(key, grant)| (key.clone(), stored(grant))).collect()
    }

    /// What pods really have: what runs, and what will.
    pub fn held(&self) -> BTreeMap<PodUid, Vec<(Box<str>, String, i64)>> {
        let mut held: BTreeMap<PodUid, Vec<_>> = BTreeMap::new();
        for (uid, runs) in &self.runtime {
            held.insert(uid.clone(), runs.devices.clone());
        }
        for uid in self.active.keys().filter(|uid| !self.runtime.contains_key(*uid)) {
            held.insert(uid.clone(), self.granted(uid));
        }
        held
    }

    fn granted(&self, uid: &PodUid) -> Vec<(Box<str>, String, i64)> {
        let own = self.checkpoint.iter().filter(|(key, grant)| key.uid == *uid && !grant.init);
        own.flat_map(|(key, grant)| {
            answered(&grant.answer).into_iter().map(|(id, amount)| (key.container.clone(), id, amount))
        })
        .collect()
    }

    /// All calls of the pod are answered, or it was refused.
    pub fn is_settled(&self, pod: &HandoffPod) -> bool {
        let uid = &pod.pod.uid;
        let has = |call: baton::decide::pod::ExpectedCall<'_>| {
            self.checkpoint.contains_key(&EntryKey::new(uid, &call.container.name, call.resource))
        };
        self.rejected.contains(uid)
            || self.ended.contains(uid)
            || self.runtime.contains_key(uid)
            || pod.expected_calls(|_| true).all(has)
    }

    fn forget(&mut self, uid: &PodUid) {
        self.active.remove(uid);
        self.checkpoint.retain(|key, _| key.uid != *uid);
    }
}

impl System {
    pub fn start_kubelet(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        machine.kubelet_life += 1;
        (machine.kubelet.is_up, machine.kubelet_has_news, machine.kubelet.cursor) = (true, true, 0);
        let life = machine.kubelet_life;
        let listed = self.soon(50, 1500);
        self.after(listed, Happening::News(Reader::Kubelet(node), life));
    }

    /// Memory goes; checkpoint and containers stay, and the plugins have to register again.
    pub fn restart_kubelet(&mut self, node: usize, checkpoint_lost: bool) {
        self.note(|| {
            format!("kubelet of n{node} restarts{}", if checkpoint_lost { " without its checkpoint" } else { "" })
        });
        let kubelet = &mut self.machines[node].kubelet;
        if checkpoint_lost {
            kubelet.checkpoint.clear();
            kubelet.knows_plugin = false;
        }
        kubelet.active.clear();
        kubelet.known.clear();
        kubelet.rejected.clear();
        kubelet.stopping.clear();
        kubelet.is_registered = false;
        self.start_kubelet(node);
        let registers = self.soon(200, 1200);
        let life = self.machines[node].kubelet_life;
        self.after(registers, Happening::Mend(Mend::Registration { node, life }));
    }

    pub fn registers(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.daemon.as_ref().is_some_and(|daemon| daemon.ledger.is_some()) {
            (machine.kubelet.is_registered, machine.kubelet.knows_plugin) = (true, true);
            self.admits_again(node);
        } else if machine.daemon.is_some() {
            let life = machine.kubelet_life;
            self.after(Duration::from_millis(300), Happening::Mend(Mend::Registration { node, life }));
        }
    }

    pub fn news_for_kubelet(&mut self, node: usize, life: u64) {
        if self.machines[node].kubelet_life != life {
            return;
        }
        self.machines[node].kubelet_has_news = false;
        let name = self.machines[node].name.clone();
        let kubelet = &mut self.machines[node].kubelet;
        let changes =
            if kubelet.cursor == 0 { self.store.list(self.store.end()) } else { self.store.since(kubelet.cursor) };
        kubelet.cursor = self.store.end();
        for change in changes {
            match change {
                Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                    kubelet.known.insert(pod.handoff.pod.uid.clone(), pod.handoff.clone());
                }
                Change::PodGone(pod) => drop(kubelet.known.remove(&pod.handoff.pod.uid)),
                _ => {}
            }
        }
        self.kubelet_works(node, life);
    }

    fn look_again(&mut self, node: usize, at: Duration) {
        let life = self.machines[node].kubelet_life;
        self.at(at.max(self.now), Happening::Kubelet { node, life });
    }

    fn says(&mut self, node: usize, pod: &PodRef, to: Option<Phase>) {
        let life = (to == Some(Phase::Failed)).then_some(self.machines[node].kubelet_life);
        let pause = self.soon(5, 60);
        self.after(pause, Happening::Status(node, StatusWrite { pod: pod.clone(), to, life }));
    }

    pub fn status_arrives(&mut self, node: usize, write: StatusWrite) {
        if write.life.is_some_and(|life| self.machines[node].kubelet_life != life) {
            return;
        }
        if self.faults.is_cut(Reader::Kubelet(node), self.now) {
            return self.after(Duration::from_secs(1), Happening::Status(node, write));
        }
        let StatusWrite { pod, to, .. } = write;
        let Some(to) = to else {
            if self.store.of(&pod).is_some() {
                self.note(|| format!("n{node}: {} is gone", pod.key));
                self.moved();
                self.store.remove(&pod);
            }
            return;
        };
        if self.store.of(&pod).is_none_or(|facts| facts.handoff.phase.is_terminal()) {
            return;
        }
        let machine = &mut self.machines[node];
        let runs = machine.kubelet.runtime.get(&pod.uid);
        if runs.is_some() {
            machine.ran_before.remove(&pod.uid);
        }
        let down = runs.and_then(|runs| runs.restarts.as_ref()).map(|(name, _)| name.clone());
        self.note(|| format!("n{node}: {} is {to:?}", pod.key));
        self.moved();
        self.store.change(&pod, |facts| {
            facts.handoff.phase = to;
            facts.spec.refused |= to == Phase::Failed;
            for container in facts.handoff.containers.iter_mut() {
                let is_up = down.as_ref() != Some(&container.name);
                container.started |= to != Phase::Failed;
                container.running = to == Phase::Running && container.kind != ContainerKind::Init && is_up;
            }
        });
    }

    /// A container of a pod that runs ends, and starts again in a while.
    pub fn container_ends(&mut self, node: usize) {
        let runtime = &self.machines[node].kubelet.runtime;
        let ready = runtime.values().filter(|runs| runs.restarts.is_none());
        let all: Vec<(PodRef, Box<str>)> =
            ready.flat_map(|runs| runs.devices.iter().map(|(name, ..)| (runs.pod.clone(), name.clone()))).collect();
        if all.is_empty() {
            return;
        }
        let (pod, container) = all[self.fate.below(all.len() as u32) as usize].clone();
        let at = self.now + self.soon(500, 20_000);
        self.note(|| format!("n{node}: container {container} of {} ends", pod.key));
        self.says(node, &pod, Some(Phase::Running));
        if let Some(runs) = self.machines[node].kubelet.runtime.get_mut(&pod.uid) {
            runs.restarts = Some((container, at));
        }
        self.look_again(node, at);
    }

    /// It starts again, outside of any admission: the kubelet asks for what its checkpoint has not.
    fn start_again(&mut self, node: usize, pod: &PodRef, container: &str) {
        let life = self.machines[node].kubelet_life;
        let is_granted = self.has_all_again(node, &pod.uid, container);
        if self.machines[node].kubelet_life != life {
            return;
        }
        let at = self.now + self.soon(1000, 10_000);
        let kubelet = &mut self.machines[node].kubelet;
        let own = kubelet.granted(&pod.uid).into_iter().filter(|(name, ..)| **name == *container);
        let own: Vec<_> = own.collect();
        let Some(runs) = kubelet.runtime.get_mut(&pod.uid) else { return };
        if !is_granted {
            runs.restarts = Some((container.into(), at));
            return self.look_again(node, at);
        }
        runs.restarts = None;
        runs.devices.retain(|(name, ..)| **name != *container);
        runs.devices.extend(own);
        self.note(|| format!("n{node}: container {container} of {} runs again", pod.key));
        self.says(node, pod, Some(Phase::Running));
        self.judge_held(node);
    }

    fn has_all_again(&mut self, node: usize, uid: &PodUid, container: &str) -> bool {
        let admission = self.machines[node].kubelet.active.get(uid);
        let Some(pod) = admission.filter(|of| of.calls.is_empty()).map(|of| of.pod.clone()) else { return false };
        let calls: Vec<(String, usize)> = pod
            .expected_calls(|_| true)
            .filter(|call| *call.container.name == *container)
            .map(|call| (call.resource.to_owned(), call.count as usize))
            .collect();
        calls.into_iter().all(|(resource, count)| match self.ask(node, &pod, container, &resource, count) {
            Asked::Known => true,
            Asked::Granted => {
                self.history.sometimes("a container that starts again is asked for once more");
                true
            }
            Asked::NoPlugin | Asked::Refused(_) | Asked::Killed => false,
        })
    }

    /// Everything that is due on a node.
    pub fn kubelet_works(&mut self, node: usize, life: u64) {
        if self.machines[node].kubelet_life != life || !self.machines[node].kubelet.is_up {
            return;
        }
        self.stop_pods(node);
        self.run_pods(node);
        self.admit(node);
    }

    /// Pods that are being deleted, or are gone from the API server, are stopped.
    fn stop_pods(&mut self, node: usize) {
        let kubelet = &self.machines[node].kubelet;
        let leaves = |uid: &PodUid| kubelet.known.get(uid).is_none_or(|pod| pod.deleting.is_some());
        let mut leaving: Vec<PodRef> = Vec::new();
        leaving.extend(kubelet.active.values().map(|admission| admission.pod.pod.clone()));
        leaving.extend(kubelet.runtime.values().map(|runs| runs.pod.clone()));
        leaving.extend(kubelet.known.values().filter(|pod| pod.deleting.is_some()).map(|pod| pod.pod.clone()));
        leaving.retain(|pod| leaves(&pod.uid) && !kubelet.stopping.contains_key(&pod.uid));
        leaving.sort();
        leaving.dedup();
        for pod in leaving {
            let at = self.now + self.soon(100, 3000);
            self.machines[node].kubelet.stopping.insert(pod.uid.clone(), (pod, at));
            self.look_again(node, at);
        }
        let kubelet = &mut self.machines[node].kubelet;
        let due: Vec<PodRef> =
            kubelet.stopping.values().filter(|(_, at)| *at <= self.now).map(|(pod, _)| pod.clone()).collect();
        for pod in due {
            let kubelet = &mut self.machines[node].kubelet;
            kubelet.stopping.remove(&pod.uid);
            kubelet.runtime.remove(&pod.uid);
            kubelet.known.remove(&pod.uid);
            kubelet.ended.insert(pod.uid.clone());
            kubelet.forget(&pod.uid);
            self.says(node, &pod, None);
        }
    }

    /// Containers start and end.
    fn run_pods(&mut self, node: usize) {
        let kubelet = &self.machines[node].kubelet;
        let due = |admission: &Admission| admission.starts.is_some_and(|at| at <= self.now);
        let starting: Vec<PodRef> = kubelet
            .active
            .values()
            .filter(|of| {
                due(of)
                    && !kubelet.runtime.contains_key(&of.pod.pod.uid)
                    && !kubelet.stopping.contains_key(&of.pod.pod.uid)
            })
            .map(|admission| admission.pod.pod.clone())
            .collect();
        for pod in starting {
            let ends = self.now + self.jobs.lifetime(&pod);
            let kubelet = &mut self.machines[node].kubelet;
            let devices = kubelet.granted(&pod.uid);
            let has_devices = !devices.is_empty();
            kubelet.runtime.insert(pod.uid.clone(), Runs { pod: pod.clone(), devices, ends, restarts: None });
            if let Some(admission) = kubelet.active.get_mut(&pod.uid) {
                admission.starts = None;
            }
            self.watch_start(&pod.uid, has_devices);
            self.says(node, &pod, Some(Phase::Running));
            self.look_again(node, ends);
        }
        let kubelet = &self.machines[node].kubelet;
        let ended: Vec<PodRef> =
            kubelet.runtime.values().filter(|runs| runs.ends <= self.now).map(|runs| runs.pod.clone()).collect();
        for pod in ended {
            let kubelet = &mut self.machines[node].kubelet;
            kubelet.runtime.remove(&pod.uid);
            kubelet.ended.insert(pod.uid.clone());
            kubelet.forget(&pod.uid);
            self.says(node, &pod, Some(Phase::Succeeded));
        }
        let kubelet = &self.machines[node].kubelet;
        let again = kubelet.runtime.values().filter(|runs| !kubelet.stopping.contains_key(&runs.pod.uid));
        let again = again.filter_map(|runs| {
            let (container, at) = runs.restarts.as_ref()?;
            (*at <= self.now).then(|| (runs.pod.clone(), container.clone()))
        });
        for (pod, container) in again.collect::<Vec<_>>() {
            self.start_again(node, &pod, &container);
        }
    }

    /// The next call of the pod under admission, or the next pod.
    fn admit(&mut self, node: usize) {
        let kubelet = &mut self.machines[node].kubelet;
        let under = kubelet.active.iter().find(|(_, of)| !of.calls.is_empty()).map(|(uid, _)| uid.clone());
        if let Some(uid) = under {
            self.call(node, &uid);
            return self.look_again(node, self.now + CALL);
        }
        let waits = |pod: &&HandoffPod| {
            let uid = &pod.pod.uid;
            let over = pod.phase.is_terminal() || pod.deleting.is_some();
            let was_here = kubelet.rejected.contains(uid) || kubelet.ended.contains(uid);
            !over && !was_here && !kubelet.active.contains_key(uid)
        };
        let next = kubelet.known.values().filter(waits).min_by_key(|pod| (pod.created, pod.pod.key.clone())).cloned();
        let Some(pod) = next else { return };
        let uid = pod.pod.uid.clone();
        let mut calls: Vec<(Box<str>, Box<str>, usize)> = pod
            .expected_calls(|_| true)
            .map(|call| (call.container.name.clone(), call.resource.into(), call.count as usize))
            .collect();
        // The names of one container are asked for in any order.
        for at in 1..calls.len() {
            if calls[at].0 == calls[at - 1].0 && self.pace.below(2) == 0 {
                calls.swap(at, at - 1);
            }
        }
        let kubelet = &mut self.machines[node].kubelet;
        if kubelet.runtime.contains_key(&uid) {
            calls.clear();
        }
        let runs = kubelet.runtime.get(&uid).map(|runs| runs.ends);
        kubelet.active.insert(uid.clone(), Admission { pod, calls: calls.into(), starts: None });
        match runs {
            Some(ends) => {
                self.look_again(node, ends);
                self.history.sometimes("a kubelet finds a pod running");
            }
            None => self.admitted(node, &uid),
        }
        self.look_again(node, self.now + CALL);
    }

    /// Its containers start in a while, once no call is left.
    fn admitted(&mut self, node: usize, uid: &PodUid) {
        let starts = self.now + self.soon(100, 2000);
        let kubelet = &mut self.machines[node].kubelet;
        if let Some(admission) = kubelet.active.get_mut(uid).filter(|admission| admission.calls.is_empty()) {
            admission.starts = Some(starts);
            self.look_again(node, starts);
        }
    }

    fn call(&mut self, node: usize, uid: &PodUid) {
        let Some(admission) = self.machines[node].kubelet.active.get_mut(uid) else { return };
        let Some((container, resource, count)) = admission.calls.pop_front() else { return };
        let pod = admission.pod.clone();
        match self.ask(node, &pod, &container, &resource, count) {
            Asked::NoPlugin => {
                self.history.sometimes("a pod is admitted without a call");
                self.admitted(node, uid);
            }
            Asked::Known => {
                self.history.sometimes("a pod is admitted again by the checkpoint");
                self.admitted(node, uid);
            }
            Asked::Granted => self.admitted(node, uid),
            Asked::Refused(why) => self.reject(node, &pod, &why),
            Asked::Killed => {}
        }
    }

    /// Asks for one resource of one container.
    fn ask(&mut self, node: usize, pod: &HandoffPod, container: &str, resource: &str, count: usize) -> Asked {
        let kubelet = &mut self.machines[node].kubelet;
        let uid = &pod.pod.uid;
        let key = EntryKey::new(uid, container, resource);
        if !kubelet.knows_plugin {
            return Asked::NoPlugin;
        }
        if !kubelet.is_registered {
            return Asked::Refused("no healthy devices present".to_owned());
        }
        if kubelet.checkpoint.contains_key(&key) {
            return Asked::Known;
        }
        let active: BTreeSet<&PodUid> = kubelet.active.keys().collect();
        kubelet.checkpoint.retain(|key, _| active.contains(&key.uid));
        let init = |name: &str| pod.container(name).is_some_and(|of| of.kind == ContainerKind::Init);
        let machine = &self.machines[node];
        let of_name = || machine.kubelet.checkpoint.iter().filter(move |(key, _)| *key.resource == *resource);
        let must: BTreeSet<String> = if init(container) {
            BTreeSet::new()
        } else {
            let apps: BTreeSet<&String> = of_name()
                .filter(|(key, grant)| key.uid == *uid && !grant.init)
                .flat_map(|(_, grant)| &grant.ids)
                .collect();
            let inits = of_name().filter(|(key, grant)| key.uid == *uid && grant.init);
            inits.flat_map(|(_, grant)| &grant.ids).filter(|id| !apps.contains(id)).take(count).cloned().collect()
        };
        let used: BTreeSet<&String> =
            of_name().flat_map(|(_, grant)| &grant.ids).filter(|id| !must.contains(*id)).collect();
        let healthy = machine.ids(resource, |of| of.healthy);
        let free: Vec<String> = healthy.into_iter().filter(|id| !used.contains(id)).collect();
        if free.len() < count {
            return Asked::Refused("requested number of devices unavailable".to_owned());
        }
        let must: Vec<String> = must.into_iter().collect();
        let ids = if must.len() == count {
            must
        } else if self.strikes(Fault::PreferenceIgnored) {
            let from = self.fate.below((free.len() - count + 1) as u32) as usize;
            let rest = free[from..].iter().chain(&free[..from]).filter(|id| !must.contains(id));
            must.iter().chain(rest).take(count).cloned().collect()
        } else {
            self.prefer(node, resource, &free, &must, count)
        };
        let answer = self.allocate(node, resource, &ids);
        if self.strikes(Fault::KubeletKilledInCall) {
            self.history.sometimes("a kubelet is killed in a call");
            self.restart_kubelet(node, false);
            return Asked::Killed;
        }
        match answer {
            Err(why) => Asked::Refused(why),
            Ok(answer) => {
                let grant = Grant { ids: ids.into_iter().collect(), answer, init: init(container) };
                self.judge_answer(node, pod, container, &grant.answer);
                self.machines[node].kubelet.checkpoint.insert(key, grant);
                self.judge_held(node);
                Asked::Granted
            }
        }
    }

    fn reject(&mut self, node: usize, pod: &HandoffPod, why: &str) {
        self.note(|| format!("n{node} rejects {}: {why}", pod.pod.key));
        let kubelet = &mut self.machines[node].kubelet;
        kubelet.forget(&pod.pod.uid);
        kubelet.rejected.insert(pod.pod.uid.clone());
        self.says(node, &pod.pod, Some(Phase::Failed));
        self.look_again(node, self.now + CALL);
    }
}
