//! Whether containers of served pods start: what the container runtime makes of the answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::handoff::NodePods;
use crate::health::ServeOutcome;
use baton_contract::PodUid;

/// What was reported of each pod.
#[derive(Debug, Default)]
pub struct Starts {
    /// Every pod that was served, and whether it failed when it was reported last. A pod stays here while the API server has it: one that
    /// is never restarted ends when its start fails, and the ledger may drop it before the next look.
    reported: BTreeMap<PodUid, Option<bool>>,
    has_looked: bool,
}

impl Starts {
    /// What is new of the pods that are in `served` or were: each is reported once when its start fails and once when it runs. Those that
    /// run at the first look started before this daemon: they say nothing of what is wrong since.
    pub fn look(&mut self, pods: &NodePods, served: &BTreeSet<&PodUid>) -> Vec<ServeOutcome> {
        let mut outcomes = Vec::new();
        self.reported.retain(|uid, _| served.contains(uid) || pods.by_uid(uid).is_some());
        for uid in served {
            self.reported.entry((*uid).clone()).or_default();
        }
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        for pod in pods.iter() {
            let Some(reported) = self.reported.get_mut(&pod.pod.uid) else { continue };
            let mut with_devices =
                pod.containers.iter().filter(|of| of.request.as_ref().is_ok_and(|request| !request.names.is_empty()));
            let failed = with_devices.clone().any(|of| of.lacks_devices);
            let runs = with_devices.any(|of| of.running);
            let is_news = (failed || runs) && reported.replace(failed) != Some(failed);
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

    #[test]
    fn a_start_that_ends_its_pod_counts_once_although_its_entry_has_gone() {
        let ended = |name: &str| HandoffPod { phase: Phase::Failed, ..pod(name, false, true) };
        let failed = |name: &str| ServeOutcome::StartFailed { namespace: "ml".into(), pod: name.into() };
        let uids = ["at-once", "waited"].map(PodUid::new);
        let (served, gone) = (uids.iter().collect(), BTreeSet::new());
        let mut pods = NodePods::default();
        let mut starts = Starts::default();
        for pod in [pod("at-once", false, false), pod("waited", false, true), ended("before-this-daemon")] {
            pods.apply(pod);
        }
        assert_eq!(starts.look(&pods, &served), [failed("waited")]);
        for pod in [ended("at-once"), ended("waited")] {
            pods.apply(pod);
        }
        assert_eq!(starts.look(&pods, &gone), [failed("at-once")]);
        assert_eq!(starts.look(&pods, &gone), []);
        pods.remove(&uids[0]);
        assert_eq!(starts.look(&pods, &gone), []);
        assert_eq!(starts.reported.len(), 1, "a pod that is deleted is forgotten");
    }
}
