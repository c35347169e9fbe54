//! Which pods are evicted because their devices have failed: those of a device with an XID that the hardware causes, and those that
//! run without their devices. Off by default. One node at a time, one eviction at a time, after a grace in which the device may come
//! back; budgets put an eviction off.
//!
//! ```text
//!   fault seen ──grace──▶ due ──the node's turn──▶ asked ──▶ gone: the next pod, and when none is left the next node
//!                                                    └─────▶ put off by a budget: asked again, and the turn ends in the end
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton_contract::inventory::Device;
use baton_contract::key::EVICT_ON_FAULT;
use baton_contract::{DeviceId, HealthReason, PodRef, PodUid};

use super::xid::{XIDS, XidOrigin};
use crate::devices::Held;
use crate::pod::Phase;
use crate::world::gangs::Gang;
use crate::world::spec::FaultVictims;
use crate::world::{Node, Place, Pod, World};

/// A budget that put an eviction off is asked again after this time.
const AGAIN: Duration = Duration::from_secs(30);
/// A node whose pods cannot be evicted gives its turn to the next one after this time.
const TURN: Duration = Duration::from_secs(600);
/// Most letters of a fault that a message repeats: a Device object says what it likes.
const WORDS: usize = 300;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultStep {
    /// Ask for the eviction of this pod, and report the answer.
    Evict(PodRef, String),
    /// Tell this pod's owner why it is left alone.
    Spare(PodRef, String),
}

/// How an eviction was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultAnswer {
    /// The pod is being deleted, or gone.
    Done,
    /// Not now.
    PutOff,
}

/// A device that the hardware has failed, as it was first seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FailedDevice {
    since: Duration,
    words: String,
}

/// The node whose pods are evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FaultTurn {
    node: Box<str>,
    since: Duration,
}

/// Faults, and the evictions that they lead to.
#[derive(Debug, Default)]
pub struct FaultEvictions {
    grace: Duration,
    /// By node.
    failed: BTreeMap<Box<str>, BTreeMap<DeviceId, FailedDevice>>,
    /// Pods that run without their devices, since when.
    bare: BTreeMap<PodUid, Duration>,
    turn: Option<FaultTurn>,
    /// The node that had its turn last.
    last: Box<str>,
    /// When each pod was asked for last.
    asked: BTreeMap<PodUid, Duration>,
    /// The eviction that has no answer yet.
    open: Option<PodUid>,
    /// Pods of which it was reported why they are left alone.
    spared: BTreeSet<PodUid>,
}

impl FaultEvictions {
    /// Evicts after `grace`.
    pub fn new(grace: Duration) -> Self {
        Self { grace, ..Self::default() }
    }

    /// A Device object was read.
    pub fn see(&mut self, object: &Device, now: Duration) {
        let Some(node) = object.metadata.name.as_deref() else { return };
        let before = self.failed.remove(node).unwrap_or_default();
        let failed = object.spec.devices.iter().filter_map(|info| {
            let condition = info.health_condition().filter(|condition| !info.health && condition.status == "False")?;
            let xid = hardware_xid(&condition.reason, &condition.message)?;
            let since = before.get(&info.id).map_or(now, |known| known.since);
            let place = info.bus_id().map(|pci| format!(" at {pci}")).unwrap_or_default();
            let words: String = condition.message.chars().take(WORDS).collect();
            let words = if words.contains(&format!("XID {xid}")) { words } else { format!("XID {xid}") };
            Some((info.id.clone(), FailedDevice { since, words: format!("{}{place}: {words}", info.id) }))
        });
        let failed: BTreeMap<_, _> = failed.collect();
        if !failed.is_empty() {
            self.failed.insert(node.into(), failed);
        }
    }

    /// A Device object is gone.
    pub fn forget(&mut self, node: &str) {
        self.failed.remove(node);
    }

    /// This process does not lead any more: evictions under way are another one's.
    pub fn rest(&mut self) {
        (self.turn, self.open) = (None, None);
        self.bare.clear();
    }

    /// The eviction of this pod was answered.
    pub fn answered(&mut self, pod: &PodUid, answer: &FaultAnswer, now: Duration) {
        if self.open.as_ref() == Some(pod) {
            self.open = None;
            self.asked.insert(pod.clone(), now);
        }
        if *answer == FaultAnswer::Done {
            self.spared.remove(pod);
        }
    }

    /// What to do now.
    pub fn next(&mut self, world: &World, now: Duration) -> Vec<FaultStep> {
        self.note_bare(world, now);
        self.asked.retain(|uid, _| world.pod_id(uid).is_some());
        self.spared.retain(|uid| world.pod_id(uid).is_some());
        if self.open.is_some() {
            return Vec::new();
        }
        let mut steps = Vec::new();
        let mut due: BTreeMap<&str, Vec<(&Pod, String)>> = BTreeMap::new();
        for (_, node) in world.nodes() {
            let found = self.due_on(world, node, now, &mut steps);
            if !found.is_empty() {
                due.insert(&node.name, found);
            }
        }
        self.spared.extend(steps.iter().map(|step| match step {
            FaultStep::Evict(pod, _) | FaultStep::Spare(pod, _) => pod.uid.clone(),
        }));
        // Those that are going still hold up the next node.
        let goes = |node: &str| {
            let node = world.node_id(node).and_then(|id| world.node(id));
            let mut pods = node.into_iter().flat_map(|node| &node.pods).filter_map(|id| world.pod(*id));
            pods.any(|pod| pod.facts.handoff.deleting.is_some() && self.asked.contains_key(&pod.facts.handoff.pod.uid))
        };
        if let Some(turn) = &self.turn
            && (now >= turn.since + TURN || !due.contains_key(&*turn.node) && !goes(&turn.node))
        {
            self.last.clone_from(&turn.node);
            self.turn = None;
        }
        if self.turn.is_none() {
            let next = due.keys().find(|node| ***node > *self.last).or_else(|| due.keys().next());
            self.turn = next.map(|node| FaultTurn { node: (*node).into(), since: now });
        }
        let Some(turn) = &self.turn else { return steps };
        let may = |pod: &Pod| {
            let handoff = &pod.facts.handoff;
            let rests = self.asked.get(&handoff.pod.uid).is_none_or(|at| now >= *at + AGAIN);
            handoff.deleting.is_none() && !handoff.phase.is_terminal() && matches!(pod.place, Place::Bound(_)) && rests
        };
        let own = due.remove(&*turn.node).unwrap_or_default();
        let with_gangs = own.iter().flat_map(|(pod, words)| victims(world, pod).into_iter().map(move |of| (of, words)));
        if let Some((pod, words)) = with_gangs.into_iter().find(|(pod, _)| may(pod)) {
            let pod = pod.facts.handoff.pod.clone();
            self.open = Some(pod.uid.clone());
            steps.push(FaultStep::Evict(pod, words.clone()));
        }
        steps
    }

    /// Since when pods run without their devices.
    fn note_bare(&mut self, world: &World, now: Duration) {
        let before = std::mem::take(&mut self.bare);
        for (_, node) in world.nodes() {
            let Some(status) = node.live_agent().filter(|status| status.names_exceptions()) else { continue };
            for uid in status.exceptions.iter().flat_map(BTreeMap::keys).filter(|uid| status.is_unserved(uid)) {
                self.bare.insert(uid.clone(), before.get(uid).copied().unwrap_or(now));
            }
        }
    }

    /// The pods of a node that are due, each with why.
    fn due_on<'a>(
        &self,
        world: &'a World,
        node: &'a Node,
        now: Duration,
        steps: &mut Vec<FaultStep>,
    ) -> Vec<(&'a Pod, String)> {
        let failed = self.failed.get(&node.name);
        // A daemon that is silent may have written its Device object before a repair.
        if node.live_agent().is_none() || failed.is_none() && self.bare.is_empty() {
            return Vec::new();
        }
        let due = |since: &Duration| now >= *since + self.grace;
        let mut found = Vec::new();
        for pod in node.pods.iter().filter_map(|id| world.pod(*id)) {
            let handoff = &pod.facts.handoff;
            if handoff.phase.is_terminal() || handoff.deleting.is_some() || !matches!(pod.place, Place::Bound(_)) {
                continue;
            }
            let held = node.holding(pod).into_iter().flat_map(Held::devices);
            let of_device = held.filter_map(|device| failed?.get(&device.id)).find(|failed| due(&failed.since));
            let is_bare = handoff.phase == Phase::Running && self.bare.get(&handoff.pod.uid).is_some_and(due);
            let why = match of_device {
                Some(failed) => format!("the hardware of its device on {} has failed: {}", node.name, failed.words),
                None if is_bare => format!("it runs on {} without its devices", node.name),
                None => continue,
            };
            let spare = match &pod.facts.spec.on_fault {
                FaultVictims::Pod | FaultVictims::Gang => None,
                FaultVictims::Spared => {
                    Some(format!("it has no controller that makes it again, and no annotation {EVICT_ON_FAULT}"))
                }
                FaultVictims::Unknown(word) => Some(format!("{EVICT_ON_FAULT} is {word:?}: expected pod or gang")),
            };
            match spare {
                None => found.push((pod, why)),
                Some(_) if self.spared.contains(&handoff.pod.uid) => {}
                Some(reason) => {
                    let text = format!("{why}; it is not evicted, because {reason}");
                    steps.push(FaultStep::Spare(handoff.pod.clone(), text));
                }
            }
        }
        found
    }
}

/// The pod, and the members of its gang where it says so.
fn victims<'a>(world: &'a World, pod: &'a Pod) -> Vec<&'a Pod> {
    let gang = world.gangs().gang_of(pod.id).filter(|_| pod.facts.spec.on_fault == FaultVictims::Gang);
    let others = gang.into_iter().flat_map(Gang::members).filter_map(|member| world.pod(member.pod));
    [pod].into_iter().chain(others.filter(|other| other.id != pod.id)).collect()
}

/// The XID that took a device out of service, if the hardware causes it by the table.
fn hardware_xid(reason: &str, message: &str) -> Option<u64> {
    let reasons = [HealthReason::Xid, HealthReason::XidNeedsReset, HealthReason::XidNeedsReboot];
    reasons.iter().find(|of| of.word() == reason)?;
    let (_, rest) = message.split_once("XID ")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    let xid: u64 = digits.parse().ok()?;
    XIDS.iter().find(|rule| rule.xid == xid && rule.origin == XidOrigin::Hardware).map(|rule| rule.xid)
}
