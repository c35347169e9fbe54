//! What a node daemon remembers from one call of its kubelet to the next.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::seen::Facts;
use crate::handoff::rebuild::learn;
use crate::handoff::{
    Admission, AllocateContext, AllocateRefusal, AllocateRule, EntryKey, LIST_SETTLES, Ledger, LiveReads, PodResources,
    Processes,
};

/// How long the identification of a GetPreferredAllocation holds for the Allocate that follows with the ids it answered.
const PREFERENCE_HOLDS: Duration = Duration::from_secs(1);

/// The ledger, and what was seen of calls and processes since this daemon or its kubelet has started.
#[derive(Debug, Clone, Default)]
pub struct HandOff {
    pub(super) ledger: Ledger,
    pub(super) processes: Processes,
    /// The first half of the call that is expected next.
    preference: Option<LastPreference>,
    /// Monotonic: until then no pod is known by the watches alone, because the call of an unknown pod has failed.
    unsure_until: Duration,
}

/// The last preference call.
#[derive(Debug, Clone)]
pub(super) struct LastPreference {
    pub resource: Box<str>,
    pub ids: BTreeSet<String>,
    pub at: Duration,
    pub key: EntryKey,
    pub resources: Arc<PodResources>,
}

/// What happens beside calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEvent {
    /// The kubelet has started again: it admits its pods again.
    KubeletStarted,
    /// It has taken a registration, at this time (wall).
    Registered(Timestamp),
    /// A call has failed at this time (monotonic) before it was looked at: its pod is rejected for good, and it is not known which.
    Lapsed(Duration),
}

impl HandOff {
    /// Of a daemon that has just started: what the kubelet did before is not known.
    pub fn begin(ledger: Ledger) -> Self {
        let mut begun = Self::resume(ledger);
        begun.ledger.kubelet_starts();
        begun
    }

    /// One that goes on.
    pub fn resume(ledger: Ledger) -> Self {
        Self { ledger, ..Self::default() }
    }

    /// What was handed out.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Where the processes of pods are.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Takes in what happened since the call before.
    pub fn event(&mut self, event: CallEvent) {
        match event {
            CallEvent::KubeletStarted => {
                self.ledger.kubelet_starts();
                self.preference = None;
            }
            CallEvent::Registered(at) => self.ledger.registered(at),
            CallEvent::Lapsed(at) => self.rejected_unknown(at),
        }
    }

    /// The kubelet has rejected a pod for good, and it is not known which: the next call may be its successor's.
    pub(super) fn rejected_unknown(&mut self, now: Duration) {
        self.unsure_until = self.unsure_until.max(now + LIST_SETTLES);
    }

    /// A refused call: its pods are rejected.
    pub(super) fn refused(&mut self, refusal: &AllocateRefusal, now: Duration) {
        let is_known = !refusal.pods.is_empty() && refusal.rule != AllocateRule::Ambiguous;
        if !is_known {
            self.rejected_unknown(now);
        }
        let useless = refusal.rule.makes_lock_useless();
        let how = if useless { Admission::Unusable } else { Admission::Refused };
        self.ledger.ends(refusal.pods.iter().filter(|_| is_known).map(|pod| pod.uid.clone()), how);
    }

    /// Remembers what a preference call has found, for the Allocate that follows.
    pub(super) fn prefers(&mut self, preference: LastPreference) {
        self.preference = Some(preference);
    }

    /// What the preference call just before has found, if this is the call that it prepared.
    pub(super) fn preferred(
        &mut self,
        resource: &str,
        ids: &[String],
        now: Duration,
    ) -> Option<(EntryKey, Arc<PodResources>)> {
        let last = self.preference.take()?;
        let is_it = *last.resource == *resource
            && now.saturating_sub(last.at) <= PREFERENCE_HOLDS
            && last.ids.len() == ids.len()
            && ids.iter().all(|id| last.ids.contains(id));
        is_it.then_some((last.key, last.resources))
    }

    /// Brings what the kubelet lists into the ledger: it settles intents, and shows pods that were re-admitted without a call.
    pub(super) fn take_in(&mut self, resources: &PodResources, facts: &Facts<'_>) -> TakenIn {
        let settled = self.ledger.settle(resources);
        let learned = resources
            .listing()
            .is_some_and(|listing| learn(&mut self.ledger, facts.node, &facts.seen.pods, listing, facts.inventory));
        TakenIn { learned, changed: settled || learned }
    }

    /// What a decision is made from.
    pub fn context<'a>(
        &'a self,
        facts: &Facts<'a>,
        resources: &'a PodResources,
        live_reads: &'a LiveReads,
    ) -> AllocateContext<'a> {
        let seen = facts.seen;
        let settled = (seen.pods_listed + LIST_SETTLES).max(self.unsure_until);
        AllocateContext {
            node: facts.node,
            pods: &seen.pods,
            lock: &seen.lock,
            resources,
            ledger: &self.ledger,
            inventory: facts.inventory,
            live_reads,
            watching: seen.is_watching() && facts.mono >= settled,
            now: facts.wall,
            policy: facts.policy,
        }
    }
}

/// What a list of the kubelet has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenIn {
    /// Devices in use were learned.
    pub(super) learned: bool,
    /// The ledger is another one.
    pub(super) changed: bool,
}
