//! A kubelet, as recorded: it admits one pod at a time, in the order of their creation, asks for each container and name, keeps the
//! answers in its checkpoint, and starts the containers. What runs outlives it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use baton::contract::{DeviceId, PodRef, PodUid};
use baton::decide::handoff::{EntryKey, ListedContainers, ListedPod, PodListing, StoredAnswer};
use baton::decide::node::CallEvent;
use baton::decide::pod::{ContainerKind, ExpectedCall, HandoffPod, Phase};
use jiff::Timestamp;

use super::calls::NO_PERMIT;
use super::faults::Mend;
use super::machine::{Answer, answered};
use super::runtime::Runs;
use super::store::Change;
use super::{Fault, Happening, Reader, System};
use crate::harness::gangs::end;
use crate::harness::wall;

/// A pod's own; where its watch shows its deletion by force; and no less than that.
const GRACE: Duration = Duration::from_secs(30);
const LEAST_GRACE: Duration = Duration::from_secs(2);
/// Tries of a start that the daemon refuses, before the owner of the pod reads why: minutes.
const OWNER_READS: u32 = 12;
/// Between two calls of one admission.
const CALL: Duration = Duration::from_millis(2);

/// One kubelet, its checkpoint and the node's runtime.
#[derive(Default)]
pub struct Kubelet {
    pub is_up: bool,
    /// The daemon's plugins are registered.
    pub is_registered: bool,
    /// It has admitted what its first list had: until then it frees no ids.
    is_ready: bool,
    /// The names are those of a plugin, by the checkpoint or a registration.
    knows_plugin: bool,
    cursor: usize,
    known: BTreeMap<PodUid, HandoffPod>,
    /// What did not run of the pods that did when it started: of these it asks for no other container.
    waited: BTreeMap<PodUid, BTreeSet<Box<str>>>,
    /// When it goes on with what is to be resized.
    resizes: BTreeMap<PodUid, Duration>,
    /// What it has resized, and not said yet.
    resized: BTreeSet<PodUid>,
    /// What it manages and lists. A pod leaves it with its API object, or with a terminal phase, whatever of it runs.
    active: BTreeMap<PodUid, Admission>,
    /// Pods that run although another client has written that they have failed, and when it writes that they run.
    parked: BTreeMap<PodUid, Duration>,
    rejected: BTreeSet<PodUid>,
    /// Pods whose containers have ended, as the runtime knows them, and when they did.
    ended: BTreeMap<PodUid, Duration>,
    /// Those whose end it has not looked at yet.
    exited: BTreeMap<PodUid, PodRef>,
    /// Pods that are deleted and have no process.
    stopping: BTreeMap<PodUid, (PodRef, Duration)>,
    /// Its watch is broken: it lists again.
    pub was_cut: bool,
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
    /// Its ids are free: only the file has it, until the next call.
    is_freed: bool,
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
    /// PodResources; `None` while it does not run. It frees the ids of pods that are not managed any more.
    pub fn listing(&mut self) -> Option<PodListing> {
        if !self.is_up {
            return None;
        }
        for (key, grant) in &mut self.checkpoint {
            grant.is_freed |= self.is_ready && !self.active.contains_key(&key.uid);
        }
        let pods = self.active.iter().map(|(uid, admission)| {
            let mut containers = ListedContainers::new();
            let listed = admission.pod.containers.iter().filter(|container| container.kind != ContainerKind::Init);
            for container in listed {
                let own = |key: &EntryKey| key.uid == *uid && key.container == container.name;
                let held = self.checkpoint.iter().filter(|(key, grant)| own(key) && !grant.is_freed);
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
        let stored = |grant: &Grant| StoredAnswer {
            devices: devices(&grant.answer),
            ids: grant.ids.iter().map(|id| id.as_str().into()).collect(),
            encoded: grant.answer.clone(),
        };
        self.checkpoint.iter().map(|(key, grant)| (key.clone(), stored(grant))).collect()
    }

    /// What pods that it manages have: what runs, and what will.
    pub fn held(&self) -> BTreeMap<PodUid, Vec<(Box<str>, String, i64)>> {
        let mut held: BTreeMap<PodUid, Vec<_>> = BTreeMap::new();
        for (uid, runs) in &self.runtime {
            held.insert(uid.clone(), runs.devices.clone());
        }
        for uid in self.active.keys() {
            let own = held.entry(uid.clone()).or_default();
            let new = self.granted(uid).into_iter().filter(|(name, ..)| own.iter().all(|(other, ..)| other != name));
            own.extend(new.collect::<Vec<_>>());
        }
        held
    }

    pub fn granted(&self, uid: &PodUid) -> Vec<(Box<str>, String, i64)> {
        let is_own = |key: &EntryKey, grant: &Grant| key.uid == *uid && !grant.init && !grant.is_freed;
        let own = self.checkpoint.iter().filter(|(key, grant)| is_own(key, grant));
        own.flat_map(|(key, grant)| {
            answered(&grant.answer).into_iter().map(|(id, amount)| (key.container.clone(), id, amount))
        })
        .collect()
    }

    /// Of its calls for this pod, those of which it has not the ids.
    fn without_ids<'a>(&'a self, pod: &'a HandoffPod) -> impl Iterator<Item = ExpectedCall<'a>> {
        let has = |call: &ExpectedCall<'_>| {
            let key = EntryKey::new(&pod.pod.uid, &call.container.name, call.resource);
            self.checkpoint.get(&key).is_some_and(|grant| !grant.is_freed)
        };
        pod.expected_calls(|_| true).filter(move |call| !has(call))
    }

    /// It has lost ids of the pod.
    pub fn lacks_ids(&self, uid: &PodUid) -> bool {
        self.active.get(uid).is_some_and(|of| of.calls.is_empty() && self.without_ids(&of.pod).next().is_some())
    }

    /// Its ids for one container, by resource name.
    pub fn ids_of(&self, uid: &PodUid, container: &str) -> Vec<(String, Vec<String>)> {
        let is_own = |key: &EntryKey, grant: &Grant| {
            key.uid == *uid && *key.container == *container && !grant.is_freed && !grant.ids.is_empty()
        };
        let own = self.checkpoint.iter().filter(|(key, grant)| is_own(key, grant));
        own.map(|(key, grant)| (key.resource.to_string(), grant.ids.iter().cloned().collect())).collect()
    }

    /// It starts the containers of this pod.
    pub fn manages(&self, uid: &PodUid) -> bool {
        self.active.get(uid).is_some_and(|admission| admission.calls.is_empty())
    }

    /// The pod's sandbox is about to be made.
    pub fn is_starting(&self, uid: &PodUid) -> bool {
        self.active.get(uid).is_some_and(|admission| admission.starts.is_some())
    }

    /// The processes of a pod have ended, as the runtime knows it.
    pub fn has_exited(&mut self, pod: &PodRef, now: Duration) {
        self.ended.insert(pod.uid.clone(), now);
        self.exited.insert(pod.uid.clone(), pod.clone());
    }

    /// Nothing runs any more.
    pub fn goes_down(&mut self) -> impl Iterator<Item = PodUid> {
        std::mem::take(&mut self.runtime).into_keys()
    }

    /// All calls of the pod are answered, or it was refused.
    pub fn is_settled(&self, pod: &HandoffPod) -> bool {
        let uid = &pod.pod.uid;
        let has = |call: ExpectedCall<'_>| {
            self.checkpoint.contains_key(&EntryKey::new(uid, &call.container.name, call.resource))
        };
        self.rejected.contains(uid)
            || self.ended.contains_key(uid)
            || self.runtime.contains_key(uid)
            || pod.expected_calls(|_| true).all(has)
    }

    /// It manages the pod no more. The ids are free; the file keeps them until the next call.
    fn leaves(&mut self, uid: &PodUid) {
        self.active.remove(uid);
        self.stopping.remove(uid);
        self.parked.remove(uid);
        self.resizes.remove(uid);
        self.resized.remove(uid);
    }

    fn forget(&mut self, uid: &PodUid) {
        self.leaves(uid);
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
            // Containers that wait are asked for again.
            let waiting = kubelet.runtime.values().filter(|runs| !runs.waits.is_empty());
            self.judges.in_any_order.extend(waiting.map(|runs| runs.pod.uid.clone()));
        }
        let Kubelet { is_up, knows_plugin, ended, exited, checkpoint, runtime, .. } = std::mem::take(kubelet);
        *kubelet = Kubelet { is_up, knows_plugin, ended, exited, checkpoint, runtime, ..Kubelet::default() };
        kubelet.runtime.values_mut().for_each(Runs::calls_end);
        let waits = |runs: &Runs| runs.waits.keys().cloned().collect();
        kubelet.waited = kubelet.runtime.iter().map(|(uid, runs)| (uid.clone(), waits(runs))).collect();
        self.start_kubelet(node);
        let registers = self.soon(200, 1200);
        let life = self.machines[node].kubelet_life;
        self.after(registers, Happening::Mend(Mend::Registration { node, life }));
    }

    pub fn registers(&mut self, node: usize) {
        let machine = &mut self.machines[node];
        if machine.daemon.as_ref().is_some_and(|daemon| daemon.hand_off.is_some()) {
            (machine.kubelet.is_registered, machine.kubelet.knows_plugin) = (true, true);
            self.plugin_sees(node, CallEvent::KubeletStarted);
            self.plugin_sees(node, CallEvent::Registered(wall(self.now)));
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
        let is_first = kubelet.cursor == 0;
        let lists = std::mem::take(&mut kubelet.was_cut) || is_first;
        let (from, end) = (kubelet.cursor, self.store.end());
        let until = if lists { end } else { self.reads_until(node, from, end) };
        let changes = if lists { self.store.list(end) } else { self.store.between(from, until).to_vec() };
        let kubelet = &mut self.machines[node].kubelet;
        kubelet.cursor = until;
        let before = if lists { std::mem::take(&mut kubelet.known) } else { BTreeMap::new() };
        let mut removed = Vec::new();
        for change in changes {
            match change {
                Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name) => {
                    kubelet.known.insert(pod.handoff.pod.uid.clone(), pod.handoff.clone());
                }
                Change::PodGone(pod) => removed.extend(kubelet.known.remove(&pod.handoff.pod.uid)),
                _ => {}
            }
        }
        removed.extend(before.into_values().filter(|pod| !kubelet.known.contains_key(&pod.pod.uid)));
        for pod in removed {
            self.pod_goes(node, &pod, if lists { GRACE } else { LEAST_GRACE });
        }
        if is_first {
            // They are in no API object: a kubelet that starts gives them little time.
            let kubelet = &self.machines[node].kubelet;
            let orphans = kubelet.runtime.keys().filter(|uid| !kubelet.known.contains_key(*uid)).cloned();
            for uid in orphans.collect::<Vec<_>>() {
                let grace = self.soon(1000, 2000);
                self.stop_processes(node, &uid, grace);
            }
        }
        self.kubelet_works(node, life);
    }

    /// A sync loop that hung takes what it was sent one by one, and admits pods between: also one that has been deleted since.
    fn reads_until(&mut self, node: usize, from: usize, end: usize) -> usize {
        let name = self.machines[node].name.clone();
        let changes = self.store.between(from, end);
        let came =
            |change: &Change| matches!(change, Change::Pod(pod, _) if pod.handoff.node.as_deref() == Some(&*name));
        let went =
            |change: &Change| matches!(change, Change::PodGone(pod) if pod.handoff.node.as_deref() == Some(&*name));
        let first = changes.iter().position(came).map(|at| at + 1);
        let Some(first) = first.filter(|first| changes[*first..].iter().any(went)) else { return end };
        if !self.strikes(Fault::KubeletSlow) {
            return end;
        }
        let until = from + first + self.fate.below((end - from - first) as u32) as usize;
        let life = self.machines[node].kubelet_life;
        self.machines[node].kubelet_has_news = true;
        let later = self.soon(200, 6000);
        self.after(later, Happening::News(Reader::Kubelet(node), life));
        until
    }

    /// The API object of a pod is gone: so is the pod from what is listed, and its ids are free, whatever of it runs.
    fn pod_goes(&mut self, node: usize, pod: &HandoffPod, grace: Duration) {
        let uid = &pod.pod.uid;
        self.machines[node].kubelet.leaves(uid);
        if self.machines[node].kubelet.runtime.contains_key(uid) {
            self.history.sometimes("a pod leaves before its processes");
            self.note(|| format!("n{node}: {} has left, its processes run on", pod.pod.key));
        }
        self.stop_processes(node, uid, grace);
    }

    pub fn look_again(&mut self, node: usize, at: Duration) {
        let life = self.machines[node].kubelet_life;
        self.at(at.max(self.now), Happening::Kubelet { node, life });
    }

    pub fn says(&mut self, node: usize, pod: &PodRef, to: Option<Phase>) {
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
                // Its last object says that nothing runs.
                self.store.change(&pod, |facts| {
                    if !facts.handoff.phase.is_terminal() {
                        facts.handoff.phase = Phase::Failed;
                    }
                    facts.handoff.containers.iter_mut().for_each(|container| container.running = false);
                });
                self.store.remove(&pod);
            }
            return;
        };
        let machine = &mut self.machines[node];
        let runs = machine.kubelet.runtime.get(&pod.uid);
        let (is_up, has_started) = (runs.is_some(), runs.is_some_and(Runs::has_started));
        let is_foreign = self.judges.foreign.contains(&pod.uid) && (is_up || to.is_terminal());
        if self.store.of(&pod).is_none_or(|facts| facts.handoff.phase.is_terminal() && !is_foreign) {
            return;
        }
        if is_up {
            machine.ran_before.remove(&pod.uid);
        }
        let ended = machine.kubelet.ended.get(&pod.uid).copied().filter(|_| to == Phase::Succeeded);
        let waits: BTreeSet<Box<str>> = runs.into_iter().flat_map(|runs| runs.waits.keys().cloned()).collect();
        let ends = runs.map(|runs| runs.ended.clone()).unwrap_or_default();
        let is_resized = machine.kubelet.resized.remove(&pod.uid);
        let to = if to == Phase::Running && is_up && !has_started { Phase::Pending } else { to };
        self.note(|| format!("n{node}: {} is {to:?}", pod.key));
        self.moved();
        self.store.change(&pod, |facts| {
            match ended {
                Some(at) => end(facts, to, at),
                None => facts.handoff.phase = to,
            }
            facts.spec.refused |= to == Phase::Failed;
            facts.handoff.resizing &= !is_resized;
            for container in facts.handoff.containers.iter_mut() {
                let ended = ends.get(&container.name).map(|at| wall(*at).as_second());
                container.ended = ended.map(|at| Timestamp::from_second(at).unwrap());
                let is_up = !waits.contains(&container.name);
                // The status of a pod that its kubelet refuses shows no container, although some may run: what they did is not seen.
                container.started = to != Phase::Failed && (container.started || is_up || to != Phase::Pending);
                container.running = !to.is_terminal() && container.kind != ContainerKind::Init && is_up;
            }
        });
    }

    /// A container of a pod that runs ends, and starts again in a while.
    pub fn container_ends(&mut self, node: usize) {
        let runtime = &self.machines[node].kubelet.runtime;
        let ready = runtime.values().filter(|runs| runs.waits.is_empty() && runs.stop.is_none());
        let all: Vec<(PodRef, Box<str>)> =
            ready.flat_map(|runs| runs.devices.iter().map(|(name, ..)| (runs.pod.clone(), name.clone()))).collect();
        if all.is_empty() {
            return;
        }
        let (pod, container) = all[self.fate.below(all.len() as u32) as usize].clone();
        let (now, at) = (self.now, self.now + self.soon(500, 20_000));
        self.note(|| format!("n{node}: container {container} of {} ends", pod.key));
        self.says(node, &pod, Some(Phase::Running));
        if let Some(runs) = self.machines[node].kubelet.runtime.get_mut(&pod.uid) {
            runs.container_ends(&container, now, at);
        }
        self.look_again(node, at);
    }

    /// It has the ids of a container that starts. It asks for none outside of an admission: a container that it has lost the ids of does
    /// not start any more, and its owner reads why.
    pub fn has_all(&mut self, node: usize, pod: &PodRef, container: &str) -> bool {
        let kubelet = &self.machines[node].kubelet;
        let Some(admission) = kubelet.active.get(&pod.uid).filter(|of| of.calls.is_empty()) else { return false };
        if kubelet.without_ids(&admission.pod).all(|call| *call.container.name != *container) {
            return true;
        }
        self.note(|| format!("n{node}: container {container} of {} has no ids", pod.key));
        let lives = self.store.of(pod).is_some_and(|facts| facts.handoff.deleting.is_none());
        let start = self.machines[node].kubelet.runtime.get(&pod.uid).and_then(|runs| runs.waits.get(container));
        if lives && start.is_some_and(|start| start.tries >= OWNER_READS) {
            self.history.sometimes("a pod that cannot start any more is made again by its owner");
            self.note(|| format!("{} is deleted by its owner", pod.key));
            self.store.delete(&pod.key, Some(&pod.uid), wall(self.now));
        }
        false
    }

    /// Pods that are resized, up to 1.36: their missing ids are asked for, whatever runs, before an admission `begins` or at their time.
    /// What is refused is tried again later.
    fn resize_pods(&mut self, node: usize, begins: bool) {
        let kubelet = &mut self.machines[node].kubelet;
        if !begins && kubelet.active.values().any(|of| !of.calls.is_empty()) {
            return;
        }
        let is_to_be = |pod: &&HandoffPod| {
            let uid = &pod.pod.uid;
            pod.resizing
                && !kubelet.resized.contains(uid)
                && kubelet.active.get(uid).is_some_and(|of| of.calls.is_empty())
        };
        let mut due: Vec<HandoffPod> = kubelet.known.values().filter(is_to_be).cloned().collect();
        for pod in &due {
            if !self.machines[node].kubelet.resizes.contains_key(&pod.pod.uid) {
                let most = if self.pace.below(2) == 0 { 10 } else { 20_000 };
                let at = self.now + self.soon(1, most);
                self.machines[node].kubelet.resizes.insert(pod.pod.uid.clone(), at);
                self.look_again(node, at);
            }
        }
        due.retain(|pod| begins || self.machines[node].kubelet.resizes[&pod.pod.uid] <= self.now);
        let life = self.machines[node].kubelet_life;
        for pod in due {
            let uid = &pod.pod.uid;
            let mut calls = pod.expected_calls(|_| true);
            let ends = calls.find_map(|call| {
                let asked = self.ask(node, &pod, &call.container.name, call.resource, call.count as usize);
                if matches!(asked, Asked::Granted) {
                    self.history.sometimes("a kubelet asks for a pod that it resizes");
                }
                matches!(asked, Asked::Refused(_) | Asked::Killed).then_some(asked)
            });
            if self.machines[node].kubelet_life != life {
                return;
            }
            if let Some(Asked::Refused(why)) = ends {
                self.note(|| format!("n{node}: {} is not resized: {why}", pod.pod.key));
                let at = self.now + self.soon(10_000, 60_000);
                self.machines[node].kubelet.resizes.insert(uid.clone(), at);
                self.look_again(node, at);
            } else {
                self.machines[node].kubelet.resized.insert(uid.clone());
                self.says(node, &pod.pod, Some(Phase::Running));
            }
        }
    }

    /// Everything that is due on a node.
    pub fn kubelet_works(&mut self, node: usize, life: u64) {
        if self.machines[node].kubelet_life != life || !self.machines[node].kubelet.is_up {
            return;
        }
        self.look_at_exits(node);
        self.park_pods(node);
        self.stop_pods(node);
        self.run_pods(node);
        self.try_starts(node);
        self.resize_pods(node, false);
        self.admit(node);
    }

    /// Pods whose processes have ended.
    fn look_at_exits(&mut self, node: usize) {
        let kubelet = &mut self.machines[node].kubelet;
        if kubelet.cursor == 0 {
            return;
        }
        for (uid, pod) in std::mem::take(&mut kubelet.exited) {
            let kubelet = &mut self.machines[node].kubelet;
            match kubelet.known.get(&uid).map(|known| known.deleting.is_some()) {
                Some(true) => self.pod_is_over(node, &pod),
                Some(false) => {
                    kubelet.leaves(&uid);
                    self.says(node, &pod, Some(Phase::Succeeded));
                }
                None => kubelet.leaves(&uid),
            }
        }
    }

    fn pod_is_over(&mut self, node: usize, pod: &PodRef) {
        let (kubelet, now) = (&mut self.machines[node].kubelet, self.now);
        kubelet.leaves(&pod.uid);
        kubelet.known.remove(&pod.uid);
        kubelet.ended.entry(pod.uid.clone()).or_insert(now);
        self.says(node, pod, None);
    }

    /// Pods that another client says to have failed are not listed, although they run. They are not stopped: in a while the kubelet writes
    /// that they run, and manages them again, without their ids.
    fn park_pods(&mut self, node: usize) {
        let kubelet = &mut self.machines[node].kubelet;
        let failed = kubelet.known.values().filter(|pod| pod.phase.is_terminal()).map(|pod| pod.pod.clone());
        for pod in failed.collect::<Vec<_>>() {
            let kubelet = &mut self.machines[node].kubelet;
            let runs = kubelet.runtime.get(&pod.uid).is_some_and(|runs| runs.stop.is_none());
            if !runs {
                // It has not started, or has ended.
                if kubelet.active.contains_key(&pod.uid) {
                    kubelet.leaves(&pod.uid);
                    kubelet.ended.entry(pod.uid.clone()).or_insert(self.now);
                }
                continue;
            }
            if let Some(at) = kubelet.parked.get(&pod.uid) {
                if *at <= self.now {
                    kubelet.parked.insert(pod.uid.clone(), Duration::MAX);
                    self.says(node, &pod, Some(Phase::Running));
                }
                continue;
            }
            let at = self.now + self.soon(8500, 9500);
            let kubelet = &mut self.machines[node].kubelet;
            kubelet.active.remove(&pod.uid);
            kubelet.parked.insert(pod.uid.clone(), at);
            self.look_again(node, at);
        }
        let kubelet = &mut self.machines[node].kubelet;
        let back = kubelet.known.values().filter(|pod| !pod.phase.is_terminal());
        let back: Vec<HandoffPod> = back.filter(|pod| kubelet.parked.contains_key(&pod.pod.uid)).cloned().collect();
        for pod in back {
            let kubelet = &mut self.machines[node].kubelet;
            kubelet.parked.remove(&pod.pod.uid);
            let lacks = kubelet.checkpoint.iter().all(|(key, grant)| key.uid != pod.pod.uid || grant.is_freed);
            kubelet.active.insert(pod.pod.uid.clone(), Admission { pod, calls: VecDeque::new(), starts: None });
            self.history.sometimes("a pod comes back after a phase that another client wrote");
            if lacks {
                self.history.sometimes("a pod comes back without its ids");
            }
        }
    }

    /// Pods that are being deleted are stopped.
    fn stop_pods(&mut self, node: usize) {
        let kubelet = &self.machines[node].kubelet;
        let leaving = kubelet.known.values().filter(|pod| pod.deleting.is_some()).map(|pod| pod.pod.clone());
        for pod in leaving.collect::<Vec<_>>() {
            if self.machines[node].kubelet.runtime.contains_key(&pod.uid) {
                self.stop_processes(node, &pod.uid, GRACE);
            } else if !self.machines[node].kubelet.stopping.contains_key(&pod.uid) {
                let at = self.now + self.soon(100, 3000);
                self.machines[node].kubelet.stopping.insert(pod.uid.clone(), (pod, at));
                self.look_again(node, at);
            }
        }
        let kubelet = &self.machines[node].kubelet;
        let due = kubelet.stopping.values().filter(|(_, at)| *at <= self.now).map(|(pod, _)| pod.clone());
        for pod in due.collect::<Vec<_>>() {
            self.pod_is_over(node, &pod);
        }
    }

    /// Pods that are admitted start.
    fn run_pods(&mut self, node: usize) {
        let kubelet = &self.machines[node].kubelet;
        let due = |of: &&Admission| {
            let uid = &of.pod.pod.uid;
            of.starts.is_some_and(|at| at <= self.now)
                && !kubelet.runtime.contains_key(uid)
                && !kubelet.stopping.contains_key(uid)
        };
        let starting: Vec<PodRef> = kubelet.active.values().filter(due).map(|of| of.pod.pod.clone()).collect();
        let down = self.machines[node].runtime_down;
        for pod in starting {
            let later = (self.now < down).then(|| down + self.soon(500, 3000));
            if let Some(admission) = self.machines[node].kubelet.active.get_mut(&pod.uid) {
                admission.starts = later;
            }
            match later {
                Some(at) => self.look_again(node, at),
                None => self.pod_begins(node, &pod),
            }
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
            let was_here = kubelet.rejected.contains(uid) || kubelet.ended.contains_key(uid);
            !over && !was_here && !kubelet.active.contains_key(uid) && !kubelet.parked.contains_key(uid)
        };
        let next = kubelet.known.values().filter(waits).min_by_key(|pod| (pod.created, pod.pod.key.clone())).cloned();
        kubelet.is_ready |= kubelet.cursor > 0 && next.is_none();
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
        if let Some(waited) = kubelet.waited.get(&uid) {
            calls.retain(|(container, ..)| waited.contains(container));
        }
        let runs = kubelet.runtime.contains_key(&uid);
        kubelet.active.insert(uid.clone(), Admission { pod, calls: calls.into(), starts: None });
        if runs {
            self.history.sometimes("a kubelet finds a pod running");
        } else {
            self.admitted(node, &uid);
        }
        if self.pace.below(2) == 0 {
            self.resize_pods(node, true);
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
        if kubelet.checkpoint.get(&key).is_some_and(|grant| !grant.is_freed) {
            return Asked::Known;
        }
        let active: BTreeSet<&PodUid> = kubelet.active.keys().collect();
        let is_held = |uid: &PodUid| !kubelet.is_ready || active.contains(uid);
        kubelet.checkpoint.retain(|key, grant| is_held(&key.uid) && !grant.is_freed);
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
        if answer.as_ref().is_err_and(|why| why == NO_PERMIT) {
            self.violates("no admission fails because a start waits", format!("n{node}: {}", pod.pod.key));
        }
        if self.strikes(Fault::KubeletKilledInCall) {
            self.history.sometimes("a kubelet is killed in a call");
            self.restart_kubelet(node, false);
            return Asked::Killed;
        }
        match answer {
            Err(why) => Asked::Refused(why),
            Ok(answer) => {
                let ids = ids.into_iter().collect();
                let grant = Grant { ids, answer, init: init(container), is_freed: false };
                let devices = answered(&grant.answer);
                if self.store.of(&pod.pod).is_some() {
                    self.judge_devices(node, &pod.pod, container, devices.iter().map(|(id, amount)| (id, *amount)));
                } else {
                    self.history.sometimes("a kubelet asks for a pod that has left");
                }
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
        // One that had a sandbox belongs to no API object now.
        let grace = self.soon(1000, 2000);
        self.stop_processes(node, &pod.pod.uid, grace);
        self.says(node, &pod.pod, Some(Phase::Failed));
        self.look_again(node, self.now + CALL);
    }
}
