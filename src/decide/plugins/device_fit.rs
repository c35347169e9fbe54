//! `DeviceFit`: the node's agent serves every name that the pod asks for, and its devices have room; the choice is kept for
//! the Binding.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::contract::DeviceType;
use crate::decide::framework::{Filter, Outcome, Plugin, PreFilter, Reads, Slots, View};
use crate::decide::help::Help;
use crate::decide::world::devices::{DeviceChoice, DevicePlan, request_of};
use crate::decide::world::{KnownChoices, Node, NodeId, Pod, Wake};

use super::resources_fit::device_shortage;

/// What becomes of device pods where no agent is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodesWithoutAgent {
    /// Such a node takes no device pods.
    #[default]
    Refuse,
    /// Allocatable minus requests decides alone, as in kube-scheduler.
    Plain,
}

/// The rule.
pub struct DeviceFit {
    /// What becomes of nodes without an agent.
    pub without_agent: NodesWithoutAgent,
}

/// The devices chosen on each node that fits.
#[derive(Default)]
pub(super) struct Choices(BTreeMap<NodeId, Arc<DeviceChoice>>);

impl Choices {
    /// The choice on one node.
    pub(super) fn of(&self, node: NodeId) -> Option<&DeviceChoice> {
        self.0.get(&node).map(Arc::as_ref)
    }
}

/// What the Binding says about devices when the pod goes to this node; `None` when it needs to say nothing.
pub fn plan<'a>(slots: &'a Slots, (id, node): (NodeId, &'a Node)) -> Option<DevicePlan<'a>> {
    let choice = slots.get::<Choices>()?.of(id)?;
    Some(node.stock.as_ref()?.plan(choice, &slots.get::<Wanted>()?.request, &node.name))
}

/// Puts another choice in place of the one made for this node: one that leaves room for others.
pub fn choose_instead(slots: &mut Slots, node: NodeId, choice: DeviceChoice) {
    slots.entry::<Choices>().0.insert(node, choice.into());
}

/// Entries of `container-devices` that always stay below the size that annotations are read up to.
const MOST_PARTS: u64 = 320;
/// Containers of one assignment.
const MAX_CONTAINERS: usize = 256;

/// Entries that an assignment will have.
fn parts(request: &crate::decide::alloc::PodDeviceRequest) -> u64 {
    let wants = request.shape().wants.iter();
    let of = |want: &crate::decide::alloc::Want| {
        u64::from(want.gpu.as_ref().map_or(0, crate::contract::GpuRequest::count))
            + u64::from(want.rdma.map_or(0, |nic| nic.count))
    };
    wants.map(of).sum()
}

/// The pod's devices, judged once.
struct Wanted {
    request: crate::decide::alloc::PodDeviceRequest,
    names: Vec<Box<str>>,
    kinds: Vec<DeviceType>,
}

const NAME: &str = "DeviceFit";
const ROOM: Wake = Wake::POD_FREED.or(Wake::DEVICES).or(Wake::NODE_ADDED);

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
        if !pod.asks_for_devices() {
            return Outcome::Fit;
        }
        match request_of(pod) {
            Err(problem) => Outcome::never(NAME, problem.to_string(), Wake::NONE),
            Ok(request) if parts(&request) > MOST_PARTS || request.names().len() > MAX_CONTAINERS => {
                let (parts, containers) = (parts(&request), request.names().len());
                let text = format!(
                    "asks for {parts} device parts in {containers} containers; an assignment holds at most {MOST_PARTS} in {MAX_CONTAINERS}: split the pod"
                );
                Outcome::never(NAME, text, Wake::NONE)
            }
            Ok(request) => {
                let mut names: Vec<Box<str>> =
                    pod.facts.handoff.expected_calls(|_| true).map(|call| call.resource.into()).collect();
                names.sort();
                names.dedup();
                slots.put(Wanted { request, names, kinds: crate::decide::world::devices::kinds_of(pod) });
                Outcome::Fit
            }
        }
    }
}

impl Filter for DeviceFit {
    fn filter(&self, _: View<'_>, pod: &Pod, (id, node): (NodeId, &Node), slots: &mut Slots) -> Outcome {
        let Some(wanted) = slots.get::<Wanted>() else { return Outcome::Fit };
        let served = node.live_agent().map(|_| wanted.names.iter().find(|name| !node.serves(name)));
        let wake = Wake::AGENT.or(Wake::NODE_ROOM).or(Wake::NODE_ADDED);
        match (served, self.without_agent) {
            (Some(None), _) => {}
            // Also where nobody but this rule counts: kube-scheduler leaves these names to its extender.
            (_, NodesWithoutAgent::Plain) => {
                return match device_shortage(&pod.facts.spec.requests, node) {
                    None => Outcome::Fit,
                    Some((text, help)) => Outcome::unfit(NAME, text, wake.or(ROOM)).helped_by(help),
                };
            }
            (None, _) => return Outcome::unfit(NAME, "agent not ready", wake).helped_by(Help::Daemon),
            (Some(Some(name)), _) => {
                let text = format!("agent does not serve {name}");
                return Outcome::unfit(NAME, text, wake).helped_by(Help::Registration);
            }
        }
        let Some(stock) = &node.stock else {
            return Outcome::unfit(NAME, "no device inventory", Wake::DEVICES).helped_by(Help::Inventory);
        };
        if let Some(kind) = wanted.kinds.iter().find(|kind| stock.is_blocked(kind)) {
            let text = format!("a pod without an assignment holds unknown {kind} devices");
            return Outcome::unfit(NAME, text, ROOM).helped_by(Help::Unassigned);
        }
        let request = wanted.request.clone();
        match slots.entry::<KnownChoices>().choose(stock, &request) {
            Ok(choice) => {
                slots.entry::<Choices>().0.insert(id, choice);
                Outcome::Fit
            }
            Err(no) => Outcome::unfit(NAME, no.text, ROOM).helped_by(no.help),
        }
    }
}
