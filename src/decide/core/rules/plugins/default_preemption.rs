//! `DefaultPreemption`: of the nodes where others could make room, the one where that costs least.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::core::rules::{Plugin, PostFilter, PreemptionCandidate, Victim};

/// The rule.
pub struct DefaultPreemption;

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        "DefaultPreemption"
    }
}

impl PostFilter for DefaultPreemption {
    fn pick<'a>(&self, candidates: &'a [PreemptionCandidate]) -> Option<&'a PreemptionCandidate> {
        cheapest(candidates)
    }
}

/// Fewest broken budgets, then the lowest highest priority, then the smallest sum of priorities (each counted from the lowest
/// possible one, so that more victims cost more), then the fewest victims, then the youngest among the most important
/// victims, then the oldest node.
pub fn cheapest(candidates: &[PreemptionCandidate]) -> Option<&PreemptionCandidate> {
    candidates.iter().min_by_key(|candidate| (EvictionCost::of(candidate.victims.iter()), candidate.node))
}

/// What it costs to evict some pods; compared field by field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionCost {
    broken_budgets: usize,
    highest: Option<i32>,
    priorities: i64,
    victims: usize,
    earliest: Reverse<Option<Timestamp>>,
}

impl EvictionCost {
    /// Of these.
    pub fn of<'a>(victims: impl Iterator<Item = &'a Victim> + Clone) -> Self {
        let highest = victims.clone().map(|victim| victim.priority).max();
        let important = victims.clone().filter(|victim| Some(victim.priority) == highest);
        Self {
            broken_budgets: victims.clone().filter(|victim| victim.breaks_budget).count(),
            highest,
            priorities: victims.clone().map(|victim| i64::from(victim.priority) - i64::from(i32::MIN)).sum(),
            victims: victims.count(),
            earliest: Reverse(important.map(|victim| victim.created).min()),
        }
    }

    /// No budget is broken, and no victim is more important than this.
    pub fn is_least(&self, lowest: i32) -> bool {
        self.broken_budgets == 0 && self.highest.is_none_or(|highest| highest <= lowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{NodeId, PodId};

    /// Victims as (priority, second of creation, breaks a budget).
    fn candidate(node: u32, victims: &[(i32, i64, bool)]) -> PreemptionCandidate {
        let victim = |&(priority, second, breaks_budget): &(i32, i64, bool)| Victim {
            pod: PodId(0),
            priority,
            created: Timestamp::from_second(second).unwrap(),
            breaks_budget,
        };
        PreemptionCandidate { node: NodeId(node), victims: victims.iter().map(victim).collect() }
    }

    #[test]
    fn the_cheapest_node_is_found_by_each_rule_in_turn() {
        // The first of each pair is cheaper, for the reason given.
        let pairs = [
            ("no budget is broken", candidate(2, &[(9, 0, false), (9, 0, false)]), candidate(1, &[(1, 0, true)])),
            (
                "the most important victim is less important",
                candidate(2, &[(3, 0, false); 3]),
                candidate(1, &[(4, 0, false)]),
            ),
            (
                "the sum is smaller",
                candidate(2, &[(4, 0, false), (1, 0, false)]),
                candidate(1, &[(4, 0, false), (2, 0, false)]),
            ),
            ("fewer leave", candidate(2, &[(-5, 0, false)]), candidate(1, &[(-5, 0, false), (-6, 0, false)])),
            ("the victim is younger", candidate(2, &[(4, 9, false)]), candidate(1, &[(4, 8, false)])),
            ("the node is older", candidate(1, &[(4, 9, false)]), candidate(2, &[(4, 9, false)])),
            ("no pod has to leave", candidate(2, &[]), candidate(1, &[(i32::MIN, 9, false)])),
        ];
        for (why, cheap, dear) in pairs {
            assert_eq!(cheapest(&[cheap.clone(), dear.clone()]), Some(&cheap), "{why}");
            assert_eq!(cheapest(&[dear, cheap.clone()]), Some(&cheap), "{why}, in the other order");
        }
        assert_eq!(cheapest(&[]), None);
    }
}
