//! What becomes of pods beside calls: whether containers of served pods start, and which pods the kubelet refuses without a call.

use std::collections::{BTreeMap, BTreeSet};

use crate::handoff::NodePods;
use crate::handoff::assignment::kind_of;
use crate::health::{Blame, ServeOutcome};
use crate::pod::HandoffPod;
use baton_contract::PodUid;

/// What was reported of each pod.
#[derive(Debug, Default)]
pub struct Starts {
    reported: BTreeMap<PodUid, bool>,
    has_looked: bool,
}

impl Starts {
    /// What is new of the pods in `served`, and of those that the kubelet has refused by itself: each is reported once while it waits, once
    /// when it runs and once when it is refused. What runs or is refused at the first look was so before this daemon: it says nothing of
    /// what is wrong since.
    pub fn look(&mut self, pods: &NodePods, served: &BTreeSet<&PodUid>) -> Vec<ServeOutcome> {
        let mut outcomes = Vec::new();
        self.reported.retain(|uid, _| served.contains(uid) || pods.by_uid(uid).is_some());
        let is_first = !std::mem::replace(&mut self.has_looked, true);
        for (pod, refused) in pods.iter().filter_map(|pod| Some((pod, refused(pod)?))) {
            let is_news = self.reported.insert(pod.pod.uid.clone(), true).is_none();
            outcomes.extend(Some(refused).filter(|_| is_news && !is_first));
        }
        for pod in pods.iter().filter(|pod| served.contains(&pod.pod.uid) && pod.refusal.is_none()) {
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

/// A scheduler has assigned devices to the pod, and the kubelet has none for it: the next one would fare no better.
fn refused(pod: &HandoffPod) -> Option<ServeOutcome> {
    let why = pod.refusal.as_ref().filter(|_| pod.scheduled_condition && pod.assignment.device_allocated.is_some())?;
    let requests = pod.containers.iter().filter_map(|of| of.request.as_ref().ok());
    let names = requests.flat_map(|request| request.names.keys());
    let name = names.max_by_key(|name| (why.contains(&***name), name.len()))?;
    let why = format!("the kubelet refused pod {} without asking for devices: {why}", pod.pod.key);
    Some(ServeOutcome::Failed { blame: Blame::Node(kind_of(name)), why: why.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{AssignmentText, ContainerKind, Phase, PodContainer};
    use baton_contract::{ContainerRequest, DeviceType, PodRef, Quantity, key};

    fn pod(name: &str, running: bool, lacks_devices: bool) -> HandoffPod {
        let main = PodContainer {
            name: "main".into(),
            kind: ContainerKind::App,
            request: ContainerRequest::judge(Some((key::NVIDIA_GPU, Quantity::units(1)))),
            running,
            started: running,
            lacks_devices,
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
            refusal: None,
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
    fn pods_that_a_kubelet_refuses_without_a_call_make_their_node_suspect() {
        let refused = |name: &str, resource: &str| {
            let text = format!(
                "Pod was rejected: Allocate failed due to requested number of devices unavailable for {resource}. Requested: 1, \
                 Available: 0, which is unexpected"
            );
            let mut pod = HandoffPod { phase: Phase::Failed, refusal: Some(text.into()), ..pod(name, false, false) };
            pod.assignment.device_allocated = Some("{}".into());
            let mut main = pod.containers[0].clone();
            let names = [(key::NVIDIA_GPU, 1), (key::RDMA, 100)];
            main.request = ContainerRequest::judge(names.map(|(name, amount)| (name, Quantity::units(amount))));
            HandoffPod { containers: vec![main].into(), ..pod }
        };
        let (mut pods, mut starts, served) = (NodePods::default(), Starts::default(), BTreeSet::new());
        pods.apply(refused("old", key::RDMA));
        assert_eq!(starts.look(&pods, &served), [], "from before this daemon");
        let foreign = HandoffPod { assignment: AssignmentText::default(), ..refused("foreign", key::RDMA) };
        let pinned = HandoffPod { scheduled_condition: false, ..refused("pinned", key::RDMA) };
        [foreign, pinned].into_iter().for_each(|pod| _ = pods.apply(pod));
        assert_eq!(starts.look(&pods, &served), [], "what no scheduler assigned is no proof");
        let mut suspicion = crate::health::Suspicion::default();
        let mut went = Vec::new();
        for name in ["a", "b", "c"] {
            pods.apply(refused(name, key::RDMA));
            let [outcome] = starts.look(&pods, &served).try_into().unwrap();
            assert_eq!(starts.look(&pods, &served), [], "once each");
            let ServeOutcome::Failed { blame, why } = &outcome else { panic!("{outcome:?}") };
            assert_eq!((blame, why.contains("Available: 0")), (&Blame::Node(DeviceType::Rdma), true), "{why}");
            // A GPU is served in between, as the first call of the same pod may be.
            let gpu = (DeviceType::Gpu, baton_contract::DeviceId::parse("GPU-1").unwrap());
            suspicion.note(ServeOutcome::Served([gpu].into()), std::time::Duration::ZERO);
            went.push(suspicion.note(outcome, std::time::Duration::ZERO));
        }
        assert_eq!(went, [false, false, true], "a node whose machine fails pods costs three of them");
    }
}
