//! What the kubelet believes: which container holds which devices, and what its containers were started with.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::instance::Injected;
use super::lifecycle::containers;
use super::machine::KubeletState;
use super::runtime::Runtime;
use baton_runtime::clock;

/// One container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Device ids by resource name, as in the checkpoint.
    pub devices: BTreeMap<String, BTreeSet<String>>,
    /// The plugins' answers by resource name.
    pub answers: BTreeMap<String, Injected>,
    /// What its last run was started with; `None` before the first.
    pub injected: Option<Injected>,
    /// Whether it is running.
    pub running: bool,
    /// How often it was started again.
    pub restarts: i32,
}

/// One pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodView {
    /// Pod uid.
    pub uid: String,
    /// False once it is over: then it holds nothing.
    pub active: bool,
    /// Its containers by name, init containers included.
    pub containers: BTreeMap<String, ContainerView>,
}

impl PodView {
    /// All ids that the pod holds of a resource.
    pub fn devices(&self, resource: &str) -> BTreeSet<String> {
        let of_each = self.containers.values().filter_map(|container| container.devices.get(resource));
        of_each.flatten().cloned().collect()
    }
}

/// Pods by `namespace/name`. Of two pods with one name the active one is shown.
pub type KubeletView = BTreeMap<String, PodView>;

/// Everything as of one moment. The state is borrowed for it, so the time is read after its lock was waited for: by an older
/// time a pod that ended meanwhile would run beside the one that was given its devices.
pub(super) fn view(state: &KubeletState, runtime: &Runtime) -> KubeletView {
    let now = clock::mono();
    let mut pods: Vec<_> = state.pods.values().collect();
    pods.sort_by_key(|pod| pod.is_active());
    let each = pods.into_iter().map(|pod| {
        let object = pod.pod();
        let sandbox = runtime.sandbox(&pod.uid).unwrap_or_default();
        let containers = containers(&object).into_iter().map(|(_, container)| {
            let name = &container.name;
            let held = state.devices.grants.container(&pod.uid, name);
            let instance = sandbox.containers.get(name);
            let answers = held.into_iter().flatten().map(|(resource, grant)| {
                let mut answer = Injected::default();
                answer.merge(&grant.answer);
                (resource.clone(), answer)
            });
            let view = ContainerView {
                devices: held.into_iter().flatten().map(|(resource, grant)| (resource.clone(), grant.ids())).collect(),
                answers: answers.collect(),
                injected: instance.map(|instance| instance.injected.clone()),
                running: sandbox.is_running(name, now),
                restarts: instance.map_or(0, |instance| instance.restarts),
            };
            (name.clone(), view)
        });
        let view = PodView { uid: pod.uid.clone(), active: pod.is_active(), containers: containers.collect() };
        (pod.key(), view)
    });
    each.collect()
}
