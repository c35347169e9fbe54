//! `DeviceFit`: the node's agent serves every name that the pod asks for, and its devices have room; the choice is kept for
//! the Binding.

use std::sync::Arc;

use crate::core::rules::known_request::KnownRequest;
use crate::core::rules::{Claimed, Filter, Outcome, Plugin, PreFilter, Reads, Reserve, Slots, View};
use crate::devices::PodDeviceRequest;
use crate::help::Help;
use crate::shares::ShareRefusal;
use crate::world::devices::{DeviceChoice, DevicePlan, request_of};
use crate::world::{KnownChoices, Node, NodeId, Pod, Resources, Wake};
use baton_contract::word::word_enum;
use baton_contract::{AgentStatus, DeviceType, GpuRequest, LockWord, Shared, key};

use super::resources_fit::{device_shortage, unserved};

word_enum! {
    /// What becomes of device pods on nodes without a live agent.
    #[derive(Default)]
    NodesWithoutAgent {
        /// Such a node takes no device pods.
        #[default]
        Refuse = "refuse",
        /// Allocatable minus requests decides alone, as in kube-scheduler.
        Plain = "plain",
    }
}

/// The rule.
pub struct DeviceFit {
    /// What becomes of nodes without an agent.
    pub without_agent: NodesWithoutAgent,
    /// How the scheduler locks nodes.
    pub lock: LockWord,
}

/// The devices chosen on each node that fits, sorted by node: nodes are judged in that order, so that most entries are appended.
struct Choices(Vec<(NodeId, Arc<DeviceChoice>)>);

/// With room for as many nodes as most decisions judge.
impl Default for Choices {
    fn default() -> Self {
        Self(Vec::with_capacity(16))
    }
}

impl Choices {
    fn put(&mut self, node: NodeId, choice: Arc<DeviceChoice>) {
        if self.0.last().is_none_or(|(last, _)| *last < node) {
            return self.0.push((node, choice));
        }
        match self.0.binary_search_by_key(&node, |(id, _)| *id) {
            Ok(at) => self.0[at].1 = choice,
            Err(at) => self.0.insert(at, (node, choice)),
        }
    }

    /// The choice on one node.
    fn of(&self, node: NodeId) -> Option<&Arc<DeviceChoice>> {
        let at = match self.0.last() {
            Some((last, _)) if *last == node => self.0.len() - 1,
            _ => self.0.binary_search_by_key(&node, |(id, _)| *id).ok()?,
        };
        Some(&self.0[at].1)
    }
}

/// What the Binding says about devices when the pod goes to this node; `None` when it needs to say nothing.
pub fn plan<'a>(slots: &'a Slots, (id, node): (NodeId, &'a Node)) -> Option<DevicePlan<'a>> {
    let choice = choice(slots, id)?;
    Some(node.stock.as_ref()?.plan(choice, slots.get::<Arc<KnownRequest>>()?.request(), &node.name))
}

/// The devices chosen on this node.
pub fn choice(slots: &Slots, node: NodeId) -> Option<&DeviceChoice> {
    slots.get::<Choices>()?.of(node).map(|choice| &**choice)
}

/// Puts another choice in place of the one made for this node: one that leaves room for others.
pub fn choose_instead(slots: &mut Slots, node: NodeId, choice: DeviceChoice) {
    slots.entry::<Choices>().put(node, choice.into());
}

/// Containers of one assignment.
const MAX_CONTAINERS: usize = 256;

/// What `container-devices` of a pod takes at most, in bytes: ids as NVML and the kernel make them, any node's name.
fn most_bytes(request: &PodDeviceRequest) -> usize {
    const HEAD: usize = 300;
    const CONTAINER: usize = 24;
    const GPU: usize = 200;
    const NIC: usize = 144;
    let names = request.names().iter().map(|name| name.len() + CONTAINER);
    let wants = request.shape().wants.iter().map(|want| {
        let gpus = want.gpu.as_ref().map_or(0, GpuRequest::count) as usize;
        gpus * GPU + want.rdma.map_or(0, |nic| nic.count) as usize * NIC
    });
    HEAD + names.chain(wants).sum::<usize>()
}

/// Whether a node's agent serves all names that a pod asks for.
enum Service<'a> {
    All,
    Not(&'a str),
}

/// The last node's agent status and allocatable, if it served all names: identical nodes share both.
#[derive(Default)]
struct LastServed(Option<(Shared<AgentStatus>, Shared<Resources>)>);

impl LastServed {
    fn by<'a>(&mut self, node: &Node, names: &'a [Box<str>]) -> Service<'a> {
        let Some(status) = node.live_agent() else { return Service::Not(names.first().map_or("", |name| name)) };
        let have = node.facts.as_ref().map(|facts| &facts.allocatable);
        if let (Some((like, had)), Some(have)) = (&self.0, have)
            && like.is_same(status)
            && had.is_same(have)
        {
            return Service::All;
        }
        if let Some(name) = names.iter().find(|name| !node.serves(name)) {
            return Service::Not(name);
        }
        self.0 = have.map(|have| (status.clone(), have.clone()));
        Service::All
    }
}

/// What is remembered from one node, and one pod of a shape, to the next.
#[derive(Default)]
struct FilterMemory {
    served: LastServed,
    choices: KnownChoices,
}

/// The rule's name.
pub const NAME: &str = "DeviceFit";
/// What may bring room for devices.
pub const ROOM: Wake = Wake::POD_FREED.or(Wake::DEVICES).or(Wake::NODE_ADDED);

impl Plugin for DeviceFit {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads(&self, _: &Pod, _: &Slots) -> Reads {
        Reads::Node
    }
}

impl PreFilter for DeviceFit {
    fn pre_filter(&self, _: View<'_>, pod: &Pod, slots: &mut Slots) -> Outcome {
        // No rule can judge what is not here, and this one is always enabled.
        if let Some(why) = &pod.facts.spec.too_large {
            return Outcome::never(NAME, why.to_string(), Wake::NONE).helped_by(Help::SmallerPod);
        }
        if !pod.asks_for_devices() {
            return Outcome::Fit;
        }
        let known = slots.kept::<Option<Arc<KnownRequest>>>().clone();
        let beside = pod.facts.spec.annotation_bytes as usize;
        if let Some(known) = known.filter(|known| beside == 0 && known.is_of(pod)) {
            debug_assert_eq!(Ok(known.request()), request_of(pod).as_ref(), "pods of one shape want the same devices");
            slots.put(known);
            return Outcome::Fit;
        }
        match request_of(pod) {
            Err(problem) => Outcome::never(NAME, problem.to_string(), Wake::NONE),
            Ok(request) if most_bytes(&request) > key::MAX_ANNOTATION || request.names().len() > MAX_CONTAINERS => {
                let (bytes, containers) = (most_bytes(&request), request.names().len());
                let text = format!(
                    "the devices of {containers} containers may take {bytes} bytes of an assignment, which has room for {} bytes and {MAX_CONTAINERS} containers: split the pod",
                    key::MAX_ANNOTATION
                );
                Outcome::never(NAME, text, Wake::NONE)
            }
            // The assignment is written in two forms, with a few short annotations.
            Ok(request) if beside + 2 * most_bytes(&request) > key::MAX_ANNOTATIONS => {
                let text = format!(
                    "the pod's annotations have {beside} of {} bytes, and its assignment may take {}: shorten them",
                    key::MAX_ANNOTATIONS,
                    2 * most_bytes(&request)
                );
                Outcome::never(NAME, text, Wake::NONE)
            }
            Ok(request) => {
                let wanted = Arc::new(KnownRequest::new(pod, request));
                *slots.kept() = Some(wanted.clone());
                slots.put(wanted);
                Outcome::Fit
            }
        }
    }
}

/// Why no pod with devices comes to a node whose GPUs `driver` offers, too.
pub fn another_driver(driver: &str) -> String {
    format!("AnotherGpuDriver: {driver} offers the node's GPUs by ResourceSlices")
}

/// Why no pod gets such devices of a node.
pub fn unknown_holders(kind: &DeviceType) -> String {
    format!("which {kind} devices another pod holds or waits for is not known")
}

impl Filter for DeviceFit {
    /// Daemons read every format of the lock, and one key.
    fn closed(&self, node: &Node) -> Option<(String, Help)> {
        let theirs = node.live_agent()?.lock.as_ref().filter(|theirs| theirs.key != self.lock.key)?;
        let text =
            format!("AgentConfig: the node daemon has --node-lock-key={}, the scheduler {}", theirs.key, self.lock.key);
        Some((text, Help::AgentConfig))
    }

    fn filter(&self, _: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let Some((wanted, memory)) = slots.with_kept::<Arc<KnownRequest>, FilterMemory>() else { return Outcome::Fit };
        if let Some(name) = &node.kept_for {
            return Outcome::unfit(NAME, format!("kept for {name}"), ROOM);
        }
        if let Some((_, true)) = node.suspect() {
            let text = "NodeSuspect: the machine has failed pods";
            return Outcome::unfit(NAME, text, Wake::DEVICES).helped_by(Help::NodeSuspect);
        }
        if let Some(driver) = node.gpu_driver() {
            return Outcome::unfit(NAME, another_driver(driver), Wake::DEVICES).helped_by(Help::AnotherGpuDriver);
        }
        if let Some((text, help)) = self.closed(node) {
            return Outcome::unfit(NAME, text, Wake::AGENT).helped_by(help);
        }
        let wake = Wake::AGENT.or(Wake::NODE_ROOM).or(Wake::NODE_ADDED);
        match (memory.served.by(node, wanted.names()), self.without_agent) {
            (Service::All, _) => {}
            // Also beside kube-scheduler, which leaves these names to its extender.
            (_, NodesWithoutAgent::Plain) => {
                let Some(shortage) = device_shortage(&pod.facts.spec.requests, node) else { return Outcome::Fit };
                let (text, help) = shortage.explain(slots);
                return Outcome::unfit(NAME, text, wake.or(ROOM)).helped_by(help);
            }
            (Service::Not(name), _) => {
                let (text, help) = unserved(node, name);
                return Outcome::unfit(NAME, text, wake).helped_by(help);
            }
        }
        let Some(stock) = &node.stock else {
            return Outcome::unfit(NAME, "no device inventory", Wake::DEVICES).helped_by(Help::Inventory);
        };
        if let Some(kind) = wanted.kinds().iter().find(|kind| stock.is_blocked(kind)) {
            return Outcome::unfit(NAME, unknown_holders(&kind), ROOM).helped_by(Help::Unassigned);
        }
        if wanted.request().has_gpu_shares()
            && let Some(refusal) = stock.shares().refusal(pod.facts.spec.wishes.shares.as_deref())
        {
            let (text, help) = match refusal {
                ShareRefusal::Unavailable(_) => (
                    "SharesUnavailable: the limits of GPU shares cannot be enforced".to_owned(),
                    Help::SharesUnavailable,
                ),
                ShareRefusal::Terms(why) => (why, Help::ShareIsolation),
            };
            return Outcome::unfit(NAME, text, Wake::DEVICES.or(Wake::NODE_ADDED)).helped_by(help);
        }
        match memory.choices.choose(stock, wanted.request()) {
            Ok(choice) => {
                slots.entry::<Choices>().put(id, choice);
                Outcome::Fit
            }
            Err(no) => Outcome::unfit(NAME, no.text, ROOM).helped_by(no.help),
        }
    }
}

impl Reserve for DeviceFit {
    fn reserve(&self, view: View<'_>, _: &Pod, id: NodeId, slots: &mut Slots, claimed: &mut Claimed) -> Outcome {
        let wanted = slots.get::<Arc<KnownRequest>>().cloned();
        let choice = slots.get::<Choices>().and_then(|choices| choices.of(id)).cloned();
        let plan = view.world.node(id).and_then(|node| plan(slots, (id, node)));
        claimed.claim_devices(wanted, choice, plan.map(|plan| (plan.held(), plan.annotations())));
        Outcome::Fit
    }
}
