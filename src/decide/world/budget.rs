//! PodDisruptionBudgets: how many pods of a selection may be evicted now.

use crate::contract::PodKey;
use crate::contract::hint::LabelSelector;

use super::pod::Pod;
use super::state::World;

/// What a PodDisruptionBudget says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BudgetFacts {
    /// Which pods of its namespace; `None` selects none.
    pub selector: Option<LabelSelector>,
    /// `status.disruptionsAllowed`.
    pub allowed: i64,
}

impl World {
    /// Budgets that cover this pod.
    pub fn budgets_of<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = (&'a PodKey, &'a BudgetFacts)> {
        self.budgets.iter().filter(|(key, budget)| {
            key.namespace == pod.key().namespace
                && budget.selector.as_ref().is_some_and(|selector| selector.matches(&pod.facts.spec.labels))
        })
    }
}
