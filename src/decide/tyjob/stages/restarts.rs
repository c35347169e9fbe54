//! Restarts of containers inside their pods, counted once each: into `restarts` for the leader, into `workerSetRestarts` for a worker.
//!
//! The status says which numbers of the kubelet are counted already, by pod, and is written before any pod is deleted. So a
//! restart is counted neither again by another controller, nor by a report that comes late.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use super::view::PodView;
use baton_contract::tyjob::CountedRestarts;

impl<'a> Draft<'a> {
    /// Counts what is new in the job's pods, whatever their attempt.
    pub(super) fn count_restarts(&mut self) {
        let mut pods: Vec<&'a PodView> = self.pods.iter().filter(|pod| !pod.container_restarts.is_empty()).collect();
        pods.sort_by_key(|pod| pod.version);
        let (status, spec) = (&mut self.status, &self.spec);
        for pod in pods {
            let Some(set) = spec.set_of(self.name, &pod.name) else { continue };
            let known = status.counted_restarts.get(&pod.name);
            if known.is_some_and(|known| older(pod.version, known.version)) {
                continue;
            }
            let known = known.filter(|known| known.uid == pod.uid).map(|known| &known.containers);
            let (containers, more) = advance(known, &pod.container_restarts);
            if more > 0 {
                let sum = match set {
                    None => &mut status.restarts,
                    Some(set) => status.worker_set_restarts.entry(set.to_owned()).or_default(),
                };
                *sum = sum.saturating_add(more);
                self.restarted.insert(&pod.uid);
            }
            if more > 0 || known.is_some_and(|known| *known != containers) {
                let counted = CountedRestarts { uid: pod.uid.clone(), version: pod.version, containers };
                status.counted_restarts.insert(pod.name.clone(), counted);
            }
        }
        status.counted_restarts.retain(|pod, _| spec.set_of(self.name, pod).is_some());
    }
}

/// The numbers with what is new in them, and how many restarts that adds. A smaller number than before begins at zero: the kubelet
/// has lost its count. A container that is not reported keeps its number.
fn advance(known: Option<&BTreeMap<String, i32>>, now: &BTreeMap<String, i32>) -> (BTreeMap<String, i32>, i32) {
    let (mut counted, mut more) = (known.cloned().unwrap_or_default(), 0_i32);
    for (container, now) in now {
        let before = counted.insert(container.clone(), *now).unwrap_or(0);
        more = more.saturating_add(if *now < before { *now } else { *now - before });
    }
    (counted, more)
}

/// `true` when a `resourceVersion` is known to be older than another; 0 is not known.
pub fn older(version: i64, than: i64) -> bool {
    version != 0 && version < than
}

/// The pod fails for good by its containers: `restarts`, of the leader or of the worker's set, are beyond the limit with those
/// that this step counts, or they are at the limit and a container waits for the next one.
pub(super) fn is_spent(restarted: &BTreeSet<&str>, pod: &PodView, restarts: i32, limit: i32) -> bool {
    restarts > limit && restarted.contains(pod.uid.as_str())
        || restarts >= limit && pod.crash_loops && pod.deleting.is_none()
}
