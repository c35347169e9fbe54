//! What a large status forgets: failed pods that are made again and are gone. etcd stores objects of up to 1.5 MiB.

use std::collections::BTreeSet;

use super::draft::Draft;
use baton_contract::tyjob::TyJobStatus;

/// Failed pods that a status names without asking whether they are gone: some 50 KiB.
const KEPT: usize = 512;
/// Those that one step asks for.
const AT_ONCE: usize = 64;

impl Draft<'_> {
    /// Forgets failed pods that no watch shows, where there are many, with a status that is written anyway. A failure that is forgotten
    /// is counted again when its pod is shown after all, so [`rests_on`](super::rests_on()) names these pods: the API server is asked
    /// for each of them before the status is written.
    pub(super) fn forget_replaced(&mut self) {
        let Some(before) = &self.view.job.status else { return };
        if *before == self.status || before.replaced.len() <= KEPT || missing(before, &self.status).next().is_some() {
            return;
        }
        let there: BTreeSet<&str> = self.pods.iter().map(|pod| pod.uid.as_str()).collect();
        let gone = self.status.replaced.iter().filter(|(_, uid)| !there.contains(uid.as_str()));
        let gone: Vec<String> = gone.map(|(pod, _)| pod.clone()).take(AT_ONCE).collect();
        gone.iter().for_each(|pod| drop(self.status.replaced.remove(pod)));
    }
}

/// Names of the pods that a step has forgotten. More at once are no longer asked for by the spec, or of a former attempt.
pub(super) fn forgotten<'a>(before: &'a TyJobStatus, status: &'a TyJobStatus) -> impl Iterator<Item = &'a String> {
    let asks = before.replaced.len() > KEPT && missing(before, status).count() <= AT_ONCE;
    missing(before, status).filter(move |_| asks)
}

fn missing<'a>(before: &'a TyJobStatus, status: &'a TyJobStatus) -> impl Iterator<Item = &'a String> {
    before.replaced.keys().filter(|pod| !status.replaced.contains_key(*pod))
}
