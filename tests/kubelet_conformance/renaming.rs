//! Which recorded device id stands for which simulated one.
//!
//! Ids are the same on both sides, except where the kubelet chose at random: then the chosen ones of both sides stand for each
//! other, and so do the rest of the ids it chose from. The renaming is kept as classes: pairs of equally large sets whose
//! members cannot be distinguished yet. Two sets are the same when every class lies in both of them wholly or not at all.

use super::prelude::*;

pub type Ids = BTreeSet<String>;

#[derive(Debug, Clone)]
pub struct Renaming {
    classes: Vec<(Ids, Ids)>,
}

impl Renaming {
    /// Every id stands for itself.
    pub fn identity(ids: impl IntoIterator<Item = String>) -> Self {
        let alone = |id: String| (Ids::from([id.clone()]), Ids::from([id]));
        Self { classes: ids.into_iter().map(alone).collect() }
    }

    pub fn same(&self, recorded: &Ids, simulated: &Ids) -> bool {
        let known = |id: &&String| !self.classes.iter().any(|(a, b)| a.contains(*id) || b.contains(*id));
        let strangers = |ids: &Ids| ids.iter().filter(known).cloned().collect::<Vec<_>>();
        strangers(recorded) == strangers(simulated)
            && self.classes.iter().all(|(a, b)| {
                let count = a.intersection(recorded).count();
                count == b.intersection(simulated).count() && (count == 0 || count == a.len())
            })
    }

    /// The kubelet chose at random from a pool. False when the pools or the numbers chosen differ.
    pub fn chosen(&mut self, pools: (&Ids, &Ids), chosen: (&Ids, &Ids)) -> bool {
        let inside = chosen.0.is_subset(pools.0) && chosen.1.is_subset(pools.1);
        if !inside || chosen.0.len() != chosen.1.len() || !self.same(pools.0, pools.1) {
            return false;
        }
        self.classes.retain(|(a, _)| a.is_disjoint(pools.0));
        let rest = (&(pools.0 - chosen.0), &(pools.1 - chosen.1));
        for (a, b) in [chosen, rest] {
            if !a.is_empty() {
                self.classes.push((a.clone(), b.clone()));
            }
        }
        true
    }
}

/// A JSON list of ids.
pub fn ids(value: &Value) -> Ids {
    value.as_array().into_iter().flatten().map(|id| id.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_random_choice_renames_and_nothing_else_does() {
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Ids>();
    let mut renaming = Renaming::identity(set(&["a", "b", "c"]));
    assert!(!renaming.same(&set(&["a"]), &set(&["b"])));
    assert!(renaming.chosen((&set(&["a", "b"]), &set(&["a", "b"])), (&set(&["a"]), &set(&["b"]))));
    assert!(renaming.same(&set(&["a"]), &set(&["b"])));
    assert!(renaming.same(&set(&["b", "c"]), &set(&["a", "c"])));
    assert!(!renaming.same(&set(&["a", "c"]), &set(&["a", "c"])));
    assert!(!renaming.chosen((&set(&["a"]), &set(&["a"])), (&set(&["a"]), &set(&["a"]))));
}
