//! The cluster in numbers, for metrics: devices by pool, type and state, and nodes on which something is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::core::timers::Moment;
use crate::devices::HeldDevice;
use crate::lock::{DaemonState, Delay};
use crate::pod::{ContainerKind, PodContainer};
use crate::scheduler::Scheduler;
use crate::world::{DeviceState, Node, Place, Pod, World};
use baton_contract::{DeviceType, GpuRequest, PodKey, key};

use super::node::has_stuck_lock;

/// Labels by which clouds and node groups name a pool of nodes; of machines with none of them the kind of machine counts.
const POOLS: &str = "karpenter.sh/nodepool,cloud.google.com/gke-nodepool,eks.amazonaws.com/nodegroup,kubernetes.azure.com/agentpool,\
                     node.kubernetes.io/instance-type";

/// The nodes and their devices.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fleet<'a> {
    /// Devices by node pool, type and state. Reserved ones count as held.
    pub devices: BTreeMap<(&'a str, &'static str, DeviceState), u32>,
    /// Most GPUs that are free on one node, by node pool.
    pub largest_free: BTreeMap<&'a str, u32>,
    /// Nodes by the state of their daemon, in its word.
    pub daemons: BTreeMap<&'static str, u32>,
    /// Nodes with devices whose daemon does not serve, and its state.
    pub faults: Vec<(&'a str, &'static str)>,
    /// Nodes with a lock that stands for longer than a hand-off can take, as long as this process has seen it.
    pub stuck: Vec<(&'a str, Duration)>,
}

impl Scheduler {
    /// The cluster as this scheduler knows it.
    pub fn fleet(&self, now: Moment) -> Fleet<'_> {
        let closed = |node: &Node| self.closed_to_devices(node, now.wall).is_some();
        Fleet::of(self.world(), now, |node| closed(node) || has_stuck_lock(self.world(), node, now.wall))
    }
}

impl<'a> Fleet<'a> {
    /// Of this world; a node that is `closed` gives no device now.
    fn of(world: &'a World, now: Moment, closed: impl Fn(&Node) -> bool) -> Self {
        let states = [DaemonState::Missing, DaemonState::Unregistered, DaemonState::Fresh].map(DaemonState::word);
        let mut fleet = Self::default();
        fleet
            .daemons
            .extend(states.into_iter().chain(["gone", "stale", "late", "stopped", "away"]).map(|state| (state, 0)));
        world.nodes().for_each(|(_, node)| fleet.count(node, &closed, now.wall));
        let age = |node: &'a Node| Some((&*node.name, now.mono.saturating_sub(node.lock.first_seen)));
        let locked = world.locked().filter_map(|id| age(world.node(id)?));
        fleet.stuck = locked.filter(|(_, age)| Delay::of(*age) == Delay::Stuck).collect();
        fleet
    }

    fn count(&mut self, node: &'a Node, closed: &impl Fn(&Node) -> bool, wall: Timestamp) {
        let daemon = node.daemon(wall);
        *self.daemons.entry(daemon.word()).or_default() += 1;
        let Some(stock) = node.stock.as_ref().filter(|stock| stock.lists_devices()) else { return };
        if !daemon.serves() && node.facts.is_some() {
            self.faults.push((&node.name, daemon.word()));
        }
        let pool = node.facts.as_ref().and_then(|facts| facts.domain(POOLS)).unwrap_or("none");
        let off = closed(node);
        let seen = |state| if off && state == DeviceState::Free { DeviceState::Off } else { state };
        let states: Vec<_> = stock.states().map(|(kind, state)| (kind, seen(state))).collect();
        // This is done every second for all nodes: devices side by side are mostly alike.
        for alike in states.chunk_by(PartialEq::eq) {
            let [(kind, state), ..] = alike else { continue };
            *self.devices.entry((pool, kind, *state)).or_default() += alike.len() as u32;
        }
        let free = states.iter().filter(|of| **of == ("gpu", DeviceState::Free)).count() as u32;
        let largest = self.largest_free.entry(pool).or_default();
        *largest = free.max(*largest);
    }
}

/// What the pods of one namespace have and want, in percent of GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamespaceUse {
    /// Pods on nodes hold it, or it is reserved for them.
    pub held: i64,
    /// Pods without a node ask for it.
    pub waiting: i64,
}

/// Every namespace with pods that have or want GPUs, and the pods that have waited for longer than `least`.
pub fn namespaces(
    world: &World,
    least: Duration,
    wall: Timestamp,
) -> (BTreeMap<&str, NamespaceUse>, Vec<(Duration, &PodKey)>) {
    let (mut uses, mut waits) = (BTreeMap::<&str, NamespaceUse>::new(), Vec::new());
    for pod in world.pods().filter(|pod| pod.place != Place::Ended && pod.asks_for_devices()) {
        let of = uses.entry(&pod.key().namespace).or_default();
        if let Some(node) = pod.node().and_then(|node| world.node(node)) {
            of.held += held(node, pod);
            continue;
        }
        of.waiting += wanted(&pod.facts.handoff.containers);
        let waited = Duration::try_from(wall.duration_since(pod.facts.handoff.created)).unwrap_or_default();
        waits.extend((waited > least).then(|| (waited, pod.key())));
    }
    (uses, waits)
}

fn held(node: &Node, pod: &Pod) -> i64 {
    let held = node.holders().of(pod).map(|held| held.of_kind(&DeviceType::Gpu)).unwrap_or_default();
    held.iter().map(HeldDevice::percent).sum()
}

/// Most that the containers ask for at once, in percent of GPUs; of shares that are asked for in bytes, what they ask of compute.
fn wanted(containers: &[PodContainer]) -> i64 {
    let of = |container: &PodContainer| match container.request.as_ref().ok().and_then(|of| of.gpu.as_ref()) {
        Some(GpuRequest::Whole { count } | GpuRequest::Mig { count, .. }) => i64::from(*count) * key::WHOLE,
        Some(GpuRequest::Share { count, core, ratio, .. }) => i64::from(*count) * (*core).max(ratio.unwrap_or(0)),
        None => 0,
    };
    let (init, run): (Vec<_>, Vec<_>) = containers.iter().partition(|container| container.kind == ContainerKind::Init);
    run.into_iter().map(of).sum::<i64>().max(init.into_iter().map(of).max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::node::NodeRecords;
    use super::*;
    use crate::world::{NodeFacts, WorldEvent};

    #[test]
    fn a_node_whose_daemon_is_silent_has_no_free_gpus_and_is_named() {
        let now = Moment { mono: Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
        let gpu = |minor: i32, health: bool| {
            serde_json::json!({"type": "gpu", "id": format!("GPU-{minor}"), "minor": minor, "health": health,
                "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}})
        };
        let device = serde_json::json!({"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device",
            "metadata": {"name": "a"}, "spec": {"devices": [gpu(0, true), gpu(1, false), gpu(2, true)]}});
        let labels = [("eks.amazonaws.com/nodegroup".into(), "a100".into())].into_iter().collect();
        let facts = NodeFacts { name: "a".into(), labels, ..NodeFacts::default() };
        let mut world = World::default();
        world.apply(WorldEvent::Node(facts), now.mono, now.wall);
        world.apply(WorldEvent::Devices(serde_json::from_value(device).unwrap()), now.mono, now.wall);
        let fleet = Fleet::of(&world, now, |node| NodeRecords::of(node, now.wall).closed().is_some());
        let of = |state| fleet.devices.get(&("a100", "gpu", state)).copied();
        assert_eq!((of(DeviceState::Off), of(DeviceState::Unhealthy), of(DeviceState::Free)), (Some(2), Some(1), None));
        assert_eq!((fleet.largest_free["a100"], fleet.faults), (0, vec![("a", "none")]));
        assert_eq!(fleet.daemons["none"], 1);
    }
}
