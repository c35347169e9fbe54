//! What nodes said no with: equal refusals are stored once and counted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::decide::framework::Refusal;

/// Refusals, and how many nodes gave each.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals(BTreeMap<Arc<Refusal>, usize>);

impl Refusals {
    /// One more node says this. Keep what is returned: it is what every such node said.
    pub fn enter(&mut self, refusal: Arc<Refusal>) -> Arc<Refusal> {
        let known = self.0.get_key_value(&refusal).map(|(known, _)| known.clone());
        let refusal = known.unwrap_or(refusal);
        *self.0.entry(refusal.clone()).or_insert(0) += 1;
        refusal
    }

    /// One node less says this; what nobody says is forgotten.
    pub fn leave(&mut self, refusal: &Refusal) {
        if let Some(count) = self.0.get_mut(refusal) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(refusal);
            }
        }
    }

    /// Every refusal and its count.
    pub fn counted(&self) -> &BTreeMap<Arc<Refusal>, usize> {
        &self.0
    }
}
