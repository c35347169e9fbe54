//! Pods that must go: of another attempt, too many, of a job that ended or is being deleted, and those that cannot go alone.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::draft::Draft;
use super::effect::{JobEffect, PodEffect};
use super::view::{NodeReachability, PodView};
use baton_contract::tyjob::{CleanPodPolicy, keys};

/// The garbage collector's finalizer while it takes an owner's name from what is to live on.
const ORPHAN: &str = "orphan";
/// A terminating pod of a node that is silent for longer than this counts as dead.
const SILENCE: SignedDuration = SignedDuration::from_secs(5 * 60);

impl Draft<'_> {
    /// While the job lives: pods of another attempt and workers beyond their count go.
    pub(super) fn sweep(&mut self) {
        let wanted: BTreeSet<String> = self.spec.members(self.name).map(|member| member.name).collect();
        let attempt = Some(self.status.attempt);
        self.remove(|pod| pod.attempt != attempt || !wanted.contains(&pod.name));
    }

    /// When the job has ended: by its policy.
    pub(super) fn clean(&mut self) {
        match self.spec.clean_pod_policy {
            CleanPodPolicy::All => self.remove(|_| true),
            CleanPodPolicy::Running => self.remove(|pod| !pod.phase.is_terminal()),
            CleanPodPolicy::None => {}
        }
    }

    /// When the job is being deleted: every pod, then the finalizer, once the scheduler has given the places back too.
    pub(super) fn leave(&mut self) {
        let has = |finalizer: &str| self.view.job.metadata.finalizers.iter().flatten().any(|name| name == finalizer);
        // `--cascade=orphan`: the garbage collector takes the job's name from its pods, which run on.
        let (orphans, ours) = (has(ORPHAN), has(keys::FINALIZER));
        self.remove(|_| !orphans);
        if ours && self.pods.is_empty() && self.status.allocations.is_empty() {
            self.effects.push(JobEffect::RemoveFinalizer);
        }
    }

    /// Deletes the pods that match and are not being deleted, and by force every terminating one that no kubelet will confirm.
    fn remove(&mut self, unwanted: impl Fn(&PodView) -> bool) {
        for pod in self.pods {
            match pod.deleting {
                None if unwanted(pod) => self.delete_once(PodEffect::delete(pod)),
                None => {}
                Some(deadline) => match dead_at(pod, deadline) {
                    Some(at) if at <= self.now => self.delete_once(PodEffect::force_delete(pod)),
                    Some(at) => self.effects.push(JobEffect::Wake { at }),
                    None => {}
                },
            }
        }
    }

    fn delete_once(&mut self, effect: PodEffect) {
        let effect = JobEffect::Pod(effect);
        if !self.effects.contains(&effect) {
            self.effects.push(effect);
        }
    }
}

/// When a terminating pod counts as dead although its kubelet is silent; `None` while the node reports.
fn dead_at(pod: &PodView, deadline: Timestamp) -> Option<Timestamp> {
    match pod.reachability {
        NodeReachability::There => None,
        NodeReachability::Gone => Some(deadline),
        NodeReachability::UnreachableSince(since) => {
            let silent = since.saturating_add(SILENCE).unwrap_or(Timestamp::MAX);
            // One second later: "over" is more than.
            Some(deadline.max(silent.saturating_add(SignedDuration::from_secs(1)).unwrap_or(silent)))
        }
    }
}
