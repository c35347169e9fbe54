//! Compares PodResources, ledger, annotations and statuses after the grants: what contradicts is said once.

use std::collections::BTreeSet;

use super::hand_off::HandOff;
use super::seen::Facts;
use crate::handoff::verify::{ADMITTED_WITHOUT_DEVICES, verify};
use crate::handoff::{PodNotice, PodResources};
use baton_contract::{EventReason, PodUid};

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompareEffect {
    /// Write the ledger to its file.
    Write,
    /// The ledger, or what contradicts it, is another one.
    Publish,
    /// Write an event for what was not found before.
    Notice(PodNotice),
}

/// What the comparisons have found so far.
#[derive(Debug, Clone, Default)]
pub struct Comparing {
    reported: BTreeSet<(PodUid, EventReason, String)>,
    unserved: BTreeSet<PodUid>,
}

impl Comparing {
    /// Pods that run although no call was made for them, as the last comparison has proven.
    pub fn unserved(&self) -> &BTreeSet<PodUid> {
        &self.unserved
    }

    /// Pods that the last comparison has said something of.
    pub fn reported(&self) -> impl Iterator<Item = &PodUid> {
        self.reported.iter().map(|(uid, ..)| uid)
    }

    /// The kubelet has listed its pods.
    pub fn listed(&mut self, resources: &PodResources, of: &mut HandOff, facts: &Facts<'_>) -> Vec<CompareEffect> {
        let Some(listing) = resources.listing() else { return Vec::new() };
        let mut effects = Vec::new();
        if of.take_in(resources, facts).changed {
            effects.extend([CompareEffect::Write, CompareEffect::Publish]);
        }
        let found = verify(facts.node, &facts.seen.pods, listing, &of.ledger, facts.inventory);
        let without = found.iter().filter(|notice| notice.reason == ADMITTED_WITHOUT_DEVICES);
        let unserved: BTreeSet<PodUid> = without.map(|notice| notice.pod.uid.clone()).collect();
        if unserved != self.unserved {
            self.unserved = unserved;
            effects.push(CompareEffect::Publish);
        }
        let of_notice = |notice: &PodNotice| (notice.pod.uid.clone(), notice.reason, notice.note.clone());
        let now: BTreeSet<_> = found.iter().map(of_notice).collect();
        let news = found.into_iter().filter(|notice| !self.reported.contains(&of_notice(notice)));
        effects.extend(news.map(CompareEffect::Notice));
        self.reported = now;
        effects
    }
}
