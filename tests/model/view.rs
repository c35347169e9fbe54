//! The small numbers of a state as values of the shipping types, and back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::{AgentStatus, DeviceId, DeviceType, Holder, Identity, LockRead, LockValue, PodKey, PodUid};
use baton::decide::handoff::exceptions::exceptions;
use baton::decide::handoff::{
    CallState, ContainerSlot, EntryKey, Ledger, LedgerEntry as Granted, ListedPod, NodePods, PodListing, PodResources,
    StoredAnswer,
};
use baton::decide::lock::{LockMatch, Lookup, ReleaseReason, names};
use baton::decide::node::{UnlockEffect, UnlockReport, Unlocking};
use baton::decide::pod::{ContainerKind, Deletion, HandoffPod, Phase as PodPhase};

use super::agent::NOW;
use super::coverage::Branch;
use super::machine::Handoff;
use super::setup::{DEVICE_NAMES, GPU, NODE_NAMES, Shape, container, entry, number_of, time_of, wall};
use super::state::{Entry, Life, Lock, NODES, NONE, PODS, Phase, State};

/// The place of a grant since the kubelet last started; what is before may be repeated.
const SINCE: u64 = 10;

/// All pods of the API server, for judging a lock's holder.
pub struct Api(pub Vec<HandoffPod>);

impl Lookup for Api {
    fn by_key(&self, key: &PodKey) -> Option<&HandoffPod> {
        self.0.iter().find(|pod| pod.pod.key == *key)
    }
    fn by_bind_timestamp(&self, nanos: &str) -> Option<&HandoffPod> {
        self.0.iter().find(|pod| pod.assignment.bind_timestamp.as_deref() == Some(nanos))
    }
}

impl Handoff {
    /// The pod object as the shipping functions see it; `None` when the API server has none.
    pub fn pod(&self, state: &State, pod: usize) -> Option<HandoffPod> {
        let is = &state.pods[pod];
        if !is.exists() {
            return None;
        }
        let mut made = self.setup.table.pods[pod].clone();
        made.phase = match is.phase {
            Phase::Pending => PodPhase::Pending,
            Phase::Running => PodPhase::Running,
            Phase::Succeeded => PodPhase::Succeeded,
            Phase::Failed => PodPhase::Failed,
        };
        let hour = std::time::Duration::from_secs(3600);
        made.deleting = match is.life {
            Life::Deleting => Some(Deletion { at: wall() + hour, grace_seconds: 30 }),
            Life::PastGrace => Some(Deletion { at: wall() - hour, grace_seconds: 30 }),
            _ => None,
        };
        if let Some(bound) = is.bound {
            let mut devices = bound.devices;
            devices[0] = is.edited.unwrap_or(devices[0]);
            made.node = Some(NODE_NAMES[usize::from(bound.node)].into());
            made.assignment = self.setup.assignment(pod, bound.node, devices, bound.time);
        }
        for of in made.containers.iter_mut() {
            of.running = is.phase == Phase::Running && of.kind != ContainerKind::Init;
        }
        Some(made)
    }

    /// Everything in the API.
    pub fn api(&self, state: &State) -> Api {
        Api((0..PODS).filter_map(|pod| self.pod(state, pod)).collect())
    }

    /// The watch of one node's agent.
    pub fn node_pods(&self, state: &State, node: usize) -> NodePods {
        let mut pods = NodePods::default();
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            let Some(made) = self.pod(state, pod) else { continue };
            let first = state.books[pod].first;
            if state.pods[pod].edited != first {
                let mut before = state.clone();
                before.pods[pod].edited = first;
                self.pod(&before, pod).into_iter().for_each(|first| drop(pods.apply(first)));
            }
            pods.apply(made);
        }
        pods
    }

    /// The agent's word, in its Lease.
    pub fn status(&self, state: &State, node: usize) -> AgentStatus {
        let is = &state.nodes[node];
        let served = is.mute && self.fate(state, node).is_some_and(|(_, reason)| reason == ReleaseReason::Served);
        let unreleased = is.lock.filter(|_| served).map(|lock| self.lock_text(lock).into());
        AgentStatus {
            version: "1".to_owned(),
            registered: vec![GPU.to_owned()],
            identity: Identity::Exact,
            lockless: None,
            exceptions: None,
            lock: None,
            too_many_exceptions: false,
            ended: false,
            unreleased,
            leaving: [].into(),
            pod_metrics: false,
        }
    }

    /// Devices that the scheduler counts for each pod on a node, a bit each: what the agent says while it is up, else what the annotation
    /// says.
    pub fn counted(&self, state: &State, node: usize) -> [u8; PODS] {
        let here = |pod: usize| state.pods[pod].on(node);
        let books = std::array::from_fn(|pod| if here(pod) { state.books[pod] } else { Default::default() });
        let live = std::array::from_fn(|pod| here(pod) && state.is_live(pod));
        self.memo.counted.of((node, state.nodes[node].agent_up, state.pods, books, live), || {
            let said = state.nodes[node].agent_up.then(|| {
                let (pods, ledger) = (self.node_pods(state, node), self.ledger(state, node));
                let (left, unserved) = (BTreeMap::new(), BTreeSet::new());
                exceptions(NODE_NAMES[node], &pods, ledger.iter(), &left, &unserved, &self.setup.table.inventory[node])
            });
            let said = said.and_then(Result::ok).unwrap_or_default();
            std::array::from_fn(|pod| {
                let is = &state.pods[pod];
                let Some(bound) = is.bound.filter(|_| here(pod) && is.exists() && !is.ended()) else { return 0 };
                if self.setup.shapes[pod] == Shape::Foreign {
                    return 0;
                }
                let uid = &self.setup.table.pods[pod].pod.uid;
                if let Some(held) = said.get(uid) {
                    self.hit(Branch::Excepted);
                    return held.values().flatten().map(|entry| bit(number_of_device(entry.id.as_str()))).sum();
                }
                let mut devices = bound.devices;
                devices[0] = is.edited.unwrap_or(devices[0]);
                let devices: BTreeSet<u8> = devices.into_iter().filter(|device| *device != NONE).collect();
                devices.into_iter().map(bit).sum()
            })
        })
    }

    /// The annotation's text.
    pub fn lock_text(&self, lock: Lock) -> String {
        let of = &self.setup.table.pods[usize::from(lock.pod)].pod;
        let holder = Some(Holder { pod: of.key.clone(), uid: Some(of.uid.clone()) });
        LockValue { time: time_of(lock.pod, lock.time), holder }.print(self.setup.format)
    }

    /// The annotation as read.
    pub fn lock_read(&self, lock: Option<Lock>) -> LockRead {
        LockRead::parse(lock.map(|lock| self.lock_text(lock)).as_deref())
    }

    /// The number behind an annotation's text.
    pub fn lock_of_text(&self, raw: &str) -> Lock {
        let value = LockValue::parse(raw).expect("the model writes well-formed locks");
        let (pod, time) = number_of(value.time);
        Lock { pod, time }
    }

    pub fn number_of_uid(&self, uid: &PodUid) -> Option<usize> {
        self.setup.table.pods.iter().position(|known| known.pod.uid == *uid)
    }

    /// What the kubelet lists. Plain init containers are not listed.
    pub fn listing(&self, state: &State, node: usize) -> PodListing {
        let active = (0..PODS).filter(|pod| state.kube[*pod].active && state.pods[*pod].on(node));
        let pods = active.map(|pod| {
            let kinds = self.setup.kinds(pod).iter().enumerate();
            let containers = kinds.filter(|(_, kind)| **kind != ContainerKind::Init).map(|(at, _)| {
                let ids = state.kube[pod].ids[at].map(|id| (GPU.into(), BTreeSet::from([name(id)])));
                (Box::from(container(at)), BTreeMap::from_iter(ids))
            });
            ListedPod { key: self.setup.table.pods[pod].pod.key.clone(), containers: containers.collect() }
        });
        PodListing { pods: pods.collect(), ..PodListing::default() }
    }

    /// The answers in the kubelet's checkpoint.
    pub fn stored_answers(&self, state: &State, node: usize) -> BTreeMap<EntryKey, StoredAnswer> {
        let here = (0..PODS).filter(|pod| self.setup.checkpoint && state.pods[*pod].on(node));
        let of_pod = here.flat_map(|pod| {
            let uid = &self.setup.table.pods[pod].pod.uid;
            let answers = state.kube[pod].answer.into_iter().enumerate();
            answers.filter_map(move |(at, device)| {
                let id = DeviceId::parse(&name(device?)).expect("a device id");
                let answer =
                    StoredAnswer { devices: BTreeSet::from([id]), encoded: vec![device?], ..StoredAnswer::default() };
                Some((EntryKey::new(uid, container(at), GPU), answer))
            })
        });
        of_pod.collect()
    }

    /// PodResources as this kubelet answers it.
    pub fn resources(&self, state: &State, node: usize) -> PodResources {
        if self.setup.pod_resources { PodResources::Listed(self.listing(state, node)) } else { PodResources::Missing }
    }

    /// The ledger of one node's agent.
    pub fn ledger(&self, state: &State, node: usize) -> Ledger {
        let here = (0..PODS).filter(|pod| state.pods[*pod].on(node));
        let mut ledger = Ledger::of(here.clone().flat_map(|pod| {
            let entries = state.books[pod].entries.iter().enumerate();
            entries.filter_map(move |(at, kept)| {
                let entry = self.granted(pod, at, (*kept)?);
                // The kubelet goes through a pod's containers in their order, and what it may repeat comes before all else.
                let since = if state.books[pod].may_repeat { 0 } else { SINCE };
                Some(Granted { seq: since + at as u64, ..entry })
            })
        }));
        for pod in here {
            let uid = &self.setup.table.pods[pod].pod.uid;
            state.books[pod].admission.into_iter().for_each(|how| ledger.ends([uid.clone()], how));
        }
        ledger
    }

    fn granted(&self, pod: usize, at: usize, kept: Entry) -> Granted {
        let of = &self.setup.table.pods[pod];
        let mut whose = of.pod.clone();
        if kept.orphan {
            whose.uid = PodUid::new(&format!("unknown:{}", whose.key));
        }
        Granted {
            pod: whose,
            container: container(at).into(),
            resource: GPU.into(),
            slot: if kept.orphan {
                ContainerSlot { order: u16::MAX, init: false, sidecar: false }
            } else {
                ContainerSlot::of(of, container(at))
            },
            ids: kept.id.map(name).into_iter().collect(),
            served: [Some(kept.served), kept.also]
                .into_iter()
                .flatten()
                .map(|id| (DeviceType::Gpu, entry(id)))
                .collect(),
            unnamed: [kept.served, kept.also.unwrap_or(kept.served)]
                .into_iter()
                .filter(|device| *device != kept.answer.unwrap_or(kept.served))
                .map(|device| entry(device).id)
                .collect(),
            answer: kept.answer.map(|device| vec![device]),
            state: if kept.asked == 0 { CallState::Held } else { CallState::Listed },
            asked: kept.asked.into(),
            seq: at as u64,
            assigned: !kept.orphan,
            grace_seconds: 30,
        }
    }

    /// Writes a ledger back into the state.
    pub fn keep(&self, state: &mut State, node: usize, ledger: &Ledger) {
        for pod in (0..PODS).filter(|pod| state.pods[*pod].on(node)) {
            state.books[pod].entries = Default::default();
        }
        for granted in ledger.iter() {
            let known = self.number_of_uid(&granted.pod.uid);
            let pod = known.unwrap_or_else(|| self.unknown_to_the_api(state, node, &granted.pod.key));
            let at = usize::from(*granted.container == *container(1));
            let mut served = granted.devices().map(|id| number_of_device(id.as_str()));
            state.books[pod].entries[at] = Some(Entry {
                id: granted.ids.first().map(|id| number_of_device(id)),
                served: served.next().expect("one device"),
                also: served.next(),
                answer: granted.answer.as_ref().map(|encoded| encoded[0]),
                asked: if granted.was_asked() { granted.asked.min(2) as u8 } else { 0 },
                orphan: known.is_none(),
            });
        }
    }

    /// The pod that the kubelet runs under `key` and the API server does not have.
    fn unknown_to_the_api(&self, state: &State, node: usize, key: &PodKey) -> usize {
        let named = |pod: &usize| self.setup.table.pods[*pod].pod.key == *key && state.pods[*pod].on(node);
        (0..PODS).filter(named).find(|pod| !state.pods[*pod].exists()).expect("an orphan has no object")
    }

    /// The lock value that the agent of a node would remove now, and why.
    pub fn fate(&self, state: &State, node: usize) -> Option<(Lock, ReleaseReason)> {
        let lock = state.nodes[node].lock?;
        let books =
            std::array::from_fn(|pod| if state.pods[pod].on(node) { state.books[pod] } else { Default::default() });
        self.memo.fates.of((node, Some(lock), state.pods, books), || {
            self.judged_fate(state, node).map(|(raw, reason)| (self.lock_of_text(&raw), reason))
        })
    }

    fn judged_fate(&self, state: &State, node: usize) -> Option<(Box<str>, ReleaseReason)> {
        let mut books = self.books(state, node);
        if self.setup.flaws.unlock_after_first
            && let LockRead::Held { value, raw } = &books.seen.lock
            && let served = books.hand_off.ledger()
            && let mut holders = books.seen.pods.iter().filter(|pod| names(value, pod) == LockMatch::ThisBind)
            && holders.any(|pod| served.holds(&pod.pod.uid))
        {
            return Some((raw.clone(), ReleaseReason::Served));
        }
        let pace = Duration::from_secs(5);
        let mut unlocking = Unlocking::new(pace, NOW);
        // The holder is read when it has been unknown for a while.
        for now in [NOW, NOW + pace].map(|mono| (mono, wall())) {
            let mut effects = self.step(node, now, &mut books, |of, facts| unlocking.look(Some(of), facts));
            while let Some(effect) = effects.pop() {
                effects = match effect {
                    UnlockEffect::Release { raw, reason } => return Some((raw, reason)),
                    UnlockEffect::ReadHolder(key) => {
                        let report =
                            UnlockReport::HolderRead(Some(self.api(state).by_key(&key).cloned().map(Box::new)));
                        self.step(node, now, &mut books, |of, facts| unlocking.report(report, Some(of), facts))
                    }
                    _ => break,
                };
            }
        }
        None
    }

    /// Nodes by number.
    pub fn nodes() -> std::ops::Range<usize> {
        0..NODES
    }
}

fn number_of_device(id: &str) -> u8 {
    DEVICE_NAMES.iter().position(|name| *name == id).expect("a known device") as u8
}

/// The bit of a device in a set.
pub fn bit(device: u8) -> u8 {
    1 << device
}

/// The kubelet's id of a device.
pub fn name(device: u8) -> Box<str> {
    DEVICE_NAMES[usize::from(device)].into()
}
