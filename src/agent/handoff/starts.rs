//! Whether containers of served pods start: what the container runtime makes of the answers.

use std::collections::{BTreeMap, BTreeSet};

use baton_contract::PodUid;
use baton_decide::handoff::NodePods;
use baton_decide::health::ServeOutcome;

/// What was said of each pod.
#[derive(Debug, Default)]
pub struct Starts(BTreeMap<PodUid, bool>);

impl Starts {
    /// What is new of the pods in `served`: each is told of once while it waits and once when it runs.
    pub fn look(&mut self, pods: &NodePods, served: &BTreeSet<&PodUid>) -> Vec<ServeOutcome> {
        let mut outcomes = Vec::new();
        self.0.retain(|uid, _| served.contains(uid));
        for pod in pods.iter().filter(|pod| served.contains(&pod.pod.uid)) {
            let mut with_devices =
                pod.containers.iter().filter(|of| of.request.as_ref().is_ok_and(|request| !request.names.is_empty()));
            let failed = with_devices.clone().any(|of| of.lacks_devices);
            let runs = with_devices.any(|of| of.running);
            if (failed || runs) && self.0.insert(pod.pod.uid.clone(), failed) != Some(failed) {
                let (namespace, pod) = (pod.pod.key.namespace.clone(), pod.pod.key.name.clone());
                let failed = failed.then_some(ServeOutcome::StartFailed { namespace, pod });
                outcomes.push(failed.unwrap_or(ServeOutcome::Started));
            }
        }
        outcomes
    }
}
