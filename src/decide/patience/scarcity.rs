//! Which nodes pods compete for that may go to few nodes only.

use std::collections::BTreeMap;

use super::kind::PodKind;

/// Rounds in which demand moves to where there is less of it; the result settles within a few.
const ROUNDS: usize = 8;
/// Most that a class counts for: one that only few pods can use is not kept empty for them.
const MOST: f64 = 4.0;

/// A class of nodes, by the bits of the selectors that admit them, and its number of GPUs.
pub type NodeClass = (u64, u32);

/// How much more demand a GPU of each class has than one of the class with the least, when every kind spreads over what it may use,
/// in inverse proportion to the demand there. Empty where no kind is limited.
pub fn scarcity(parts: &BTreeMap<PodKind, f64>, classes: &[NodeClass]) -> Vec<(u64, f64)> {
    let classes: Vec<NodeClass> = classes.iter().copied().filter(|(_, gpus)| *gpus > 0).collect();
    if classes.len() < 2 {
        return Vec::new();
    }
    let mut demand = vec![1.0; classes.len()];
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; classes.len()];
        for (kind, part) in parts {
            let pull = |((class, gpus), demand): (&NodeClass, &f64)| {
                if class >> kind.selector & 1 == 0 { 0.0 } else { f64::from(*gpus) / f64::max(*demand, 1e-9) }
            };
            let pulls: Vec<f64> = classes.iter().zip(&demand).map(pull).collect();
            let sum: f64 = pulls.iter().sum();
            if sum > 0.0 {
                for ((next, pull), (_, gpus)) in next.iter_mut().zip(&pulls).zip(&classes) {
                    *next += part * kind.demand() * pull / sum / f64::from(*gpus);
                }
            }
        }
        demand = next;
    }
    let least = demand.iter().copied().fold(f64::INFINITY, f64::min).max(1e-9);
    classes.iter().zip(&demand).map(|((class, _), demand)| (*class, (demand / least - 1.0).min(MOST))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: u64 = 1;
    const SPECIAL: u64 = 0b11;

    fn scarce(limited: f64) -> Vec<(u64, f64)> {
        let kind = |selector| PodKind { gpus: 1, share: 100, milli_cpu: 0, memory: 0, selector };
        let parts = BTreeMap::from([(kind(0), 1.0 - limited), (kind(1), limited)]);
        scarcity(&parts, &[(ANY, 90), (SPECIAL, 10)])
    }

    #[test]
    fn a_class_is_scarce_when_limited_kinds_ask_for_more_than_its_part() {
        let most = |limited| scarce(limited)[1].1;
        assert!(most(0.05) < 0.5, "the others give way: {:?}", scarce(0.05));
        assert!(most(0.2) > 1.0 && most(0.2) < most(0.25), "{:?}", scarce(0.2));
        assert!((most(0.9) - MOST).abs() < 1e-9);
        assert!(scarce(0.2)[0].1.abs() < 1e-9);
    }

    #[test]
    fn one_class_is_never_scarce() {
        let kind = PodKind { gpus: 1, share: 100, milli_cpu: 0, memory: 0, selector: 1 };
        assert!(scarcity(&BTreeMap::from([(kind, 1.0)]), &[(ANY, 8)]).is_empty());
        assert!(scarcity(&BTreeMap::from([(kind, 1.0)]), &[(ANY, 8), (SPECIAL, 0)]).is_empty());
    }
}
