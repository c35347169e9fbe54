//! Explains one node: whether it takes new pods with devices, and what is on its way there.

use jiff::Timestamp;

use crate::bind::lock_end;
use crate::core::rules::plugins::device_fit::{another_driver, unknown_holders};
use crate::core::timers::Moment;
use crate::help::Help;
use crate::lock::{BoundHolder, DaemonState, HolderState, stands};
use crate::scheduler::Scheduler;
use crate::text::amount;
use crate::world::spec::TaintEffect;
use crate::world::{Node, NodeFacts, Place, Stock, World};
use baton_contract::DeviceType;

use super::advice::by_help;
use super::answer::{DeviceDetail, NodeExplanation};
use super::judged::{NODE, devices_of};

impl Scheduler {
    /// Explains the node of that name; `None` when there is none.
    pub fn explain_node(&self, name: &str, now: Moment) -> Option<NodeExplanation> {
        let world = self.world();
        let id = world.node_id(name)?;
        let node = world.node(id)?;
        let taints = node.facts.as_ref().map(taints).unwrap_or_default();
        let summary = node.stock.as_ref().map(|stock| *stock.pool().summary()).unwrap_or_default();
        let migs = node.stock.as_ref().map_or(0, |stock| stock.pool().devices().migs.len());
        let (gpu, nic) = (DeviceType::Gpu, DeviceType::Rdma);
        let counts = [
            ("GPUs", summary.free_gpus, summary.gpus, &gpu),
            ("MIG devices", summary.free_migs, migs as u32, &gpu),
            ("NICs", summary.free_nics, summary.nics, &nic),
        ];
        let unknown: Vec<_> = unknown_kinds(node).collect();
        let is_given = |kind: &DeviceType| unknown.iter().all(|(of, _)| of != kind);
        let counts = counts.into_iter().filter(|(_, _, all, kind)| *all > 0 && is_given(kind));
        let free: Vec<_> =
            counts.map(|(what, open, all, _)| format!("{} of {all} {what}", open.count_ones())).collect();
        let mut not_given: Vec<_> = unknown.iter().map(|(_, why)| why.clone()).collect();
        let blocked = (free.is_empty() && !not_given.is_empty()).then(|| (not_given.join("; "), Help::Unassigned));
        let refusal = self.closed_to_devices(node, now.wall).or(blocked);
        let shares = node.stock.as_ref().and_then(|stock| stock.shares().unavailable.as_ref());
        not_given.extend(shares.map(|why| format!("GPU shares: SharesUnavailable: {why}")));
        let holder = world.holder(node, now.wall);
        let named = world.lock_pod(node, now.wall);
        let stuck = has_stuck_lock(world, node, now.wall);
        let devices = devices_of(world, node);
        let message = match &refusal {
            Some((why, _)) => format!("takes no new pods with devices: {why}"),
            None if free.is_empty() => "has no devices".to_owned(),
            None if stuck => format!("takes no new pods with devices until its lock is free: {} free then", are(&free)),
            None if matches!(holder, Some(HolderState::Unbound(_) | HolderState::BoundHere(_))) => {
                format!(
                    "takes new pods with devices once the present holder of its lock is served: {} free",
                    are(&free)
                )
            }
            None if summary.gpus > 0 && summary.free_gpus.count_ones() + summary.free_migs.count_ones() == 0 => {
                format!("takes new pods with devices, and no whole GPU is free: {} free", are(&free))
            }
            None => format!("takes new pods with devices: {} free", are(&free)),
        } + &out_of_use(&devices);
        let whose = named.map(|pod| pod.to_string()).or_else(|| node.lock.read.whose());
        let lock = whose.map(|whose| match node.lock_age(now.wall) {
            Some(age) => format!("held by {whose}, {age}"),
            None => whose,
        });
        let end = lock_end(self.scene(now), node).map(|at| format!("; {}", taken_over(&format!("at {at:.0}"))));
        let lock = lock.map(|lock| lock + &end.unwrap_or_default());
        let mut queue: Vec<_> = self.binder().attempts().values().filter(|attempt| attempt.node == id).collect();
        queue.sort_by_key(|attempt| (attempt.since, &attempt.pod.key));
        let waits = queue.iter().filter(|attempt| attempt.queued_since().is_some());
        let pods = node.pods.iter().filter_map(|pod| world.pod(*pod));
        let reserved = pods.filter(|pod| matches!(pod.place, Place::Assumed(_)));
        Some(NodeExplanation {
            node: name.to_owned(),
            takes_devices: refusal.is_none() && !stuck && !free.is_empty(),
            message,
            taints,
            not_given: not_given.into_iter().filter(|_| refusal.is_none()).collect(),
            advice: refusal.and_then(|(_, help)| advice(help, node.daemon(now.wall))).map(|of| of.replace(NODE, name)),
            kept_for: node.kept_for.as_ref().map(ToString::to_string),
            suspect: node.suspect().filter(|(_, heeded)| !heeded).map(|(suspect, _)| suspect.message.to_string()),
            lock,
            waits_for_lock: waits.map(|attempt| attempt.pod.key.to_string()).collect(),
            reserved_for: reserved.map(|pod| pod.key().to_string()).collect(),
            devices,
            generation: world.generation(),
        })
    }

    /// Why it takes no pod with devices, whatever the pod asks for: by the node, or by what the scheduler alone knows.
    pub(super) fn closed_to_devices(&self, node: &Node, wall: Timestamp) -> Option<(String, Help)> {
        if node.facts.is_none() {
            let text = "there is no Node object of this name; what is left of it is deleted with it";
            return Some((text.to_owned(), Help::Rule));
        }
        NodeRecords::of(node, wall).closed().or_else(|| self.closed_besides(node))
    }

    /// The same by what the node's own objects do not say: a rule as the scheduler is set, another driver, and whom the node is kept for.
    pub(super) fn closed_besides(&self, node: &Node) -> Option<(String, Help)> {
        node.stock.as_ref().filter(|stock| stock.lists_devices())?;
        let by_rule = self.rules().enabled().filter.iter().find_map(|rule| rule.closed(node));
        let driver = || node.gpu_driver().map(|driver| (another_driver(driver), Help::AnotherGpuDriver));
        let kept = || node.kept_for.as_ref().map(|name| (format!("it is kept for {name}"), Help::Rule));
        by_rule.or_else(driver).or_else(kept)
    }
}

/// Types of its devices of which no new pod gets one, because what is free is not known, and why.
pub(super) fn unknown_kinds(node: &Node) -> impl Iterator<Item = (DeviceType, String)> {
    let is_blocked = |stock: &Stock, kind: &DeviceType| {
        stock.is_blocked(kind) && stock.states().any(|(of, _)| (of == "rdma") == (*kind == DeviceType::Rdma))
    };
    let kinds = [(DeviceType::Gpu, "GPUs"), (DeviceType::Rdma, "NICs")].into_iter();
    let kinds = kinds.filter(move |(kind, _)| node.stock.as_ref().is_some_and(|stock| is_blocked(stock, kind)));
    kinds.map(|(kind, what)| {
        let why = format!("{what}: {}", unknown_holders(&kind));
        (kind, why)
    })
}

/// What may help a node whose daemon is in this state: where its kubelet is away and there is no daemon, the kubelet comes first.
fn advice(help: Help, daemon: DaemonState) -> Option<String> {
    let first = by_help(help)?;
    let then = by_help(Help::Daemon).filter(|_| help == Help::Kubelet && daemon == DaemonState::NotStarted);
    Some(then.map_or_else(|| first.to_owned(), |then| format!("{first}. {then}")))
}

/// When a lock goes that no pod ends, in the words of the condition of the pods that wait for it. `when`: `at 2026-11-21T02:21:40Z`, or
/// `unchanged after 5m` for who does not know since when it stands.
pub fn taken_over(when: &str) -> String {
    format!("if it still stands {when}, it is taken over")
}

/// Its lock stands until something is done or it is taken over: no new pod with devices comes meanwhile.
pub(super) fn has_stuck_lock(world: &World, node: &Node, wall: Timestamp) -> bool {
    let Some(holder) = world.holder(node, wall) else { return false };
    let bound = world.lock_pod(node, wall).and_then(|pod| world.pod_by_key(&pod));
    let bound = bound.map(|pod| BoundHolder::of(&node.lock.read, &pod.facts.handoff, node.agent_status()));
    stands(&node.lock.read, &holder, bound.unwrap_or_default(), wall)
}

/// `2 of 8 GPUs and 1 of 4 NICs are`.
fn are(parts: &[String]) -> String {
    let verb = if parts.len() == 1 && parts[0].starts_with("1 ") { "is" } else { "are" };
    match parts {
        [first @ .., last] if !first.is_empty() => format!("{} and {last} {verb}", first.join(", ")),
        _ => format!("{} {verb}", parts.join("")),
    }
}

/// `; 1 GPU is out of service; 2 NICs are cordoned`; nothing where all devices are in use.
fn out_of_use(devices: &[DeviceDetail]) -> String {
    let words = |is: &dyn Fn(&DeviceDetail) -> bool, state: &str| {
        let kinds = [("gpu", "GPU"), ("mig", "MIG device"), ("rdma", "NIC")];
        let counts = kinds.map(|(kind, what)| (devices.iter().filter(|of| of.kind == kind && is(of)).count(), what));
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let parts: Vec<String> = counts.map(|(count, what)| amount(count, what)).collect();
        if parts.is_empty() { String::new() } else { format!("; {} {state}", are(&parts)) }
    };
    words(&|of| !of.healthy, "out of service") + &words(&|of| of.healthy && of.cordon.is_some(), "cordoned")
}

/// What a node's own objects say that may keep all pods with devices away. The scheduler and `baton get` fill it, and one rule judges.
#[derive(Debug, Clone, Copy)]
pub struct NodeRecords<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its daemon.
    pub daemon: DaemonState,
    /// Its Device object lists some; `None` without that object.
    pub lists_devices: Option<bool>,
    /// Why the cordons on its devices cannot be read.
    pub unreadable_cordons: Option<&'a str>,
    /// Why its daemon calls it suspect, where that is heeded.
    pub suspect: Option<&'a str>,
    /// Its pods hold more than the daemon's Lease can say.
    pub too_many_exceptions: bool,
}

impl<'a> NodeRecords<'a> {
    /// As the scheduler sees the node.
    pub(super) fn of(node: &'a Node, wall: Timestamp) -> Self {
        let stock = node.stock.as_ref();
        Self {
            name: &node.name,
            daemon: node.daemon(wall),
            lists_devices: stock.map(Stock::lists_devices),
            unreadable_cordons: stock.and_then(Stock::unreadable_cordons),
            suspect: node.suspect().filter(|(_, heeded)| *heeded).map(|(suspect, _)| &*suspect.message),
            too_many_exceptions: node.live_agent().is_some_and(|status| status.too_many_exceptions),
        }
    }

    /// Why it takes no pod with devices, and what may help.
    pub fn closed(&self) -> Option<(String, Help)> {
        let say = |text: &str, help| Some((text.to_owned(), help));
        let Some(lists_devices) = self.lists_devices else {
            return self.fault().or_else(|| say("the node daemon has published no devices", Help::Inventory));
        };
        if let Some(why) = self.unreadable_cordons {
            return say(why, Help::Rule);
        }
        if let Some(why) = self.suspect {
            return Some((format!("it is suspect: {why}"), Help::NodeSuspect));
        }
        if !lists_devices {
            return None;
        }
        let many = "the pods there hold more than the node daemon's Lease can say";
        self.fault().or_else(|| say(many, Help::Daemon).filter(|_| self.too_many_exceptions))
    }

    fn fault(&self) -> Option<(String, Help)> {
        self.daemon.fault(self.name).filter(|_| !self.daemon.serves()).map(|fault| (fault, self.daemon.help()))
    }
}

/// Taints that a pod has to tolerate.
fn taints(facts: &NodeFacts) -> Vec<String> {
    let hard = facts.taints.iter().filter(|taint| taint.effect != TaintEffect::PreferNoSchedule);
    hard.map(ToString::to_string).collect()
}
