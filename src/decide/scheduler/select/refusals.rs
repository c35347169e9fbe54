//! What nodes said no with: equal refusals are stored once and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::scheduler::rules::Refusal;

/// Refusals, and how many nodes gave each.
#[derive(Debug, Clone, Default)]
pub(in crate::decide) struct Refusals {
    places: BTreeMap<Arc<Refusal>, usize>,
    /// By place; what nobody says has no count, and its place is given to another.
    counts: Vec<(Arc<Refusal>, usize)>,
    free: Vec<usize>,
}

/// Where a refusal is counted, as long as a node gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decide) struct Said(usize);

impl Refusals {
    /// One more node says this.
    pub fn enter(&mut self, refusal: Refusal) -> Said {
        if let Some(at) = self.places.get(&refusal) {
            self.counts[*at].1 += 1;
            return Said(*at);
        }
        let refusal = Arc::new(refusal);
        let counted = (refusal.clone(), 1);
        let at = if let Some(at) = self.free.pop() {
            self.counts[at] = counted;
            at
        } else {
            self.counts.push(counted);
            self.counts.len() - 1
        };
        self.places.insert(refusal, at);
        Said(at)
    }

    /// One node less says this; what nobody says is forgotten.
    pub fn leave(&mut self, said: Said) {
        let (refusal, count) = &mut self.counts[said.0];
        *count -= 1;
        if *count == 0 {
            self.places.remove(refusal);
            self.free.push(said.0);
        }
    }

    /// What was said.
    pub fn get(&self, said: Said) -> &Refusal {
        &self.counts[said.0].0
    }

    /// Every refusal and its count.
    pub fn counted(&self) -> BTreeMap<Arc<Refusal>, usize> {
        self.places.iter().map(|(refusal, at)| (refusal.clone(), self.counts[*at].1)).collect()
    }
}
