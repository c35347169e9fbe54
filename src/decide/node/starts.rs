//! Whether containers of served pods start: what the container runtime makes of the answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::handoff::NodePods;
use crate::health::ServeOutcome;
use baton_contract::PodUid;

/// What was reported of each pod.
#[derive(Debug, Default)]
pub struct Starts {
    reported: BTreeMap<PodUid, bool>,
    has_looked: bool,
}

impl Starts {
    /// What is new of the pods in `served`: each is reported once while it waits and once when it runs. Those that run at the first look
    /// started before this daemon: they say nothing of what is wrong since.
    pub fn look(&mut self, pods: &NodePods, served: &BTreeSet<&PodUid>) -> Vec<ServeOutcome> {
        let mut outcomes = Vec::new();
        self.reported.retain(|uid, _| served.contains(uid));
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        for pod in pods.iter().filter(|pod| served.contains(&pod.pod.uid)) {
            let mut with_devices =
                pod.containers.iter().filter(|of| of.request.as_ref().is_ok_and(|request| !request.names.is_empty()));
            let failed = with_devices.clone().any(|of| of.lacks_devices);
            let runs = with_devices.any(|of| of.running);
            let is_news = (failed || runs) && self.reported.insert(pod.pod.uid.clone(), failed) != Some(failed);
            if is_news && (failed || !is_first) {
                let (namespace, pod) = (pod.pod.key.namespace.clone(), pod.pod.key.name.clone());
                let failed = failed.then_some(ServeOutcome::StartFailed { namespace, pod });
                outcomes.push(failed.unwrap_or(ServeOutcome::Started));
            }
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{AssignmentText, ContainerKind, HandoffPod, Phase, PodContainer};
    use baton_contract::{ContainerRequest, PodRef, Quantity, key};

    fn pod(name: &str, running: bool, lacks_devices: bool) -> HandoffPod {
        let main = PodContainer {
            name: "main".into(),
            kind: ContainerKind::App,
            request: ContainerRequest::judge(Some((key::NVIDIA_GPU, Quantity::units(1)))),
            running,
            started: running,
            lacks_devices,
            ended: None,
            dra_backed: Vec::new(),
        };
        HandoffPod {
            pod: PodRef::new("ml", name, name),
            node: Some("n".into()),
            scheduler_name: "".into(),
            phase: Phase::Running,
            deleting: None,
            grace_seconds: 30,
            scheduled_condition: true,
            resizing: false,
            created: jiff::Timestamp::UNIX_EPOCH,
            containers: vec![main].into(),
            assignment: AssignmentText::default(),
        }
    }

    #[test]
    fn a_pod_that_ran_before_this_daemon_is_no_proof_that_containers_start() {
        let mut pods = NodePods::default();
        for pod in [pod("old", true, false), pod("stuck", false, true)] {
            pods.apply(pod);
        }
        let uids = ["old", "stuck", "new"].map(PodUid::new);
        let served: BTreeSet<_> = uids.iter().collect();
        let mut starts = Starts::default();
        let failed = ServeOutcome::StartFailed { namespace: "ml".into(), pod: "stuck".into() };
        assert_eq!(starts.look(&pods, &served), [failed]);
        assert_eq!(starts.look(&pods, &served), []);
        pods.apply(pod("new", true, false));
        assert_eq!(starts.look(&pods, &served), [ServeOutcome::Started]);
        pods.apply(pod("stuck", true, false));
        assert_eq!(starts.look(&pods, &served), [ServeOutcome::Started], "its device is back");
    }
}
