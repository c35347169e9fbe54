//! What live pods were answered, as a world: the rules of `baton audit` judge it.

use std::collections::BTreeSet;
use std::time::Duration;

use baton::contract::inventory::Device;
use baton::contract::{DeviceAllocation, DeviceType, key};
use baton::decide::audit;
use baton::decide::world::{NodeFacts, PodFacts, PodSpec, World, WorldEvent, WorldPolicy};
use serde_json::json;

use super::machine::Handoff;
use super::setup::{DEVICE_NAMES, NODE_NAMES, entry, wall};
use super::state::{CONTAINERS, PODS, State};

/// Devices that each live pod was answered with.
pub type Answers = [[Option<u8>; CONTAINERS]; PODS];

impl Handoff {
    /// No device is answered to two live pods, and what is left is free: by the audit.
    pub fn answers_are_sound(&self, state: &State) -> bool {
        let answers = std::array::from_fn(|pod| if state.is_live(pod) { state.kube[pod].answer } else { [None; 2] });
        self.memo.answers.of(answers, || audit::check(&self.world(&answers)).is_empty())
    }

    fn world(&self, answers: &Answers) -> World {
        let mut world = World::new(WorldPolicy::default());
        let mut tell = |event| world.apply(event, Duration::ZERO, wall());
        for (node, name) in NODE_NAMES.into_iter().enumerate() {
            tell(WorldEvent::Node(NodeFacts { name: name.into(), max_pods: 110, ..NodeFacts::default() }));
            let here = DEVICE_NAMES.iter().enumerate().filter(|(device, _)| self.setup.home[*device] == node);
            let whole = json!({key::GPU_CORE: "100", key::GPU_MEMORY_RATIO: "100"});
            let listed = here.map(
                |(minor, id)| json!({"type": "gpu", "id": id, "minor": minor, "health": true, "resources": whole}),
            );
            let object: Device = serde_json::from_value(json!({
                "apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name},
                "spec": {"devices": listed.collect::<Vec<_>>()},
            }))
            .expect("a Device object");
            tell(WorldEvent::Devices(Box::new(object)));
        }
        for (pod, answer) in answers.iter().enumerate() {
            let devices: BTreeSet<u8> = answer.iter().flatten().copied().collect();
            let Some(first) = devices.first() else { continue };
            let mut handoff = self.setup.table.pods[pod].clone();
            handoff.pod.key.name = format!("pod-{pod}").into();
            handoff.node = Some(NODE_NAMES[self.setup.home[usize::from(*first)]].into());
            let mut merged = DeviceAllocation::default();
            merged.devices.insert(DeviceType::Gpu, devices.into_iter().map(entry).collect());
            handoff.assignment.device_allocated = Some(merged.print().into());
            tell(WorldEvent::Pod(Box::new(PodFacts { handoff, spec: PodSpec::default().into(), rank: None })));
        }
        world
    }
}
