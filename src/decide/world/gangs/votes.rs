//! Which member decides a value that every member may state: the oldest living one that states a valid value.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

/// Order of members: the living before the ended, then the older, then by name, since pods made within one second are made in the
/// order of their names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberAge {
    /// Terminal or being deleted.
    pub ended: bool,
    /// `metadata.creationTimestamp`.
    pub created: Timestamp,
    /// `metadata.name`, unique among the members of one gang.
    pub name: Arc<str>,
}

/// The values that members state for one field, each change in time logarithmic in their number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Votes<T: Ord> {
    by_age: BTreeMap<MemberAge, T>,
    /// How many living members state each value.
    living: BTreeMap<T, u32>,
}

impl<T: Ord> Default for Votes<T> {
    fn default() -> Self {
        Self { by_age: BTreeMap::new(), living: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Votes<T> {
    pub(super) fn cast(&mut self, rank: &MemberAge, value: Option<&T>) {
        let Some(value) = value else { return };
        if !rank.ended {
            count_in(&mut self.living, value);
        }
        self.by_age.insert(rank.clone(), value.clone());
    }

    pub(super) fn withdraw(&mut self, rank: &MemberAge, value: Option<&T>) {
        let Some(value) = value else { return };
        if !rank.ended {
            count_out(&mut self.living, value);
        }
        self.by_age.remove(rank);
    }

    /// The value that counts. Ended members count only where no member lives.
    pub(super) fn decided(&self, any_lives: bool) -> Option<&T> {
        let (rank, value) = self.by_age.first_key_value()?;
        (!rank.ended || !any_lives).then_some(value)
    }

    /// Living members state different values.
    pub(super) fn disagree(&self) -> bool {
        self.living.len() > 1
    }

    /// Some living member states another value than this.
    pub(super) fn has_other(&self, value: &T) -> bool {
        self.living.keys().any(|stated| stated != value)
    }
}

/// MemberCounts one more of `key`.
pub(super) fn count_in<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => {
            counts.insert(key.clone(), 1);
        }
    }
}

/// MemberCounts one less of `key`; a count of zero is not kept.
pub(super) fn count_out<K: Ord>(counts: &mut BTreeMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(ended: bool, created: i64, name: &str) -> MemberAge {
        MemberAge { ended, created: Timestamp::from_second(created).unwrap(), name: name.into() }
    }

    #[test]
    fn the_oldest_living_member_decides_and_ended_ones_only_where_none_lives() {
        let mut votes = Votes::default();
        let (old, young, dead) = (rank(false, 1, "b"), rank(false, 2, "a"), rank(true, 0, "c"));
        votes.cast(&young, Some(&7));
        votes.cast(&dead, Some(&9));
        assert_eq!((votes.decided(true), votes.disagree()), (Some(&7), false));
        votes.cast(&old, None);
        assert_eq!(votes.decided(true), Some(&7), "who states nothing does not decide");
        votes.cast(&old, Some(&5));
        assert_eq!((votes.decided(true), votes.disagree()), (Some(&5), true));
        votes.withdraw(&old, Some(&5));
        votes.withdraw(&young, Some(&7));
        assert_eq!((votes.decided(true), votes.decided(false), votes.disagree()), (None, Some(&9), false));
    }

    #[test]
    fn the_name_decides_among_members_of_one_second() {
        let mut votes = Votes::default();
        votes.cast(&rank(false, 1, "b"), Some(&2));
        votes.cast(&rank(false, 1, "a"), Some(&1));
        assert_eq!(votes.decided(true), Some(&1));
    }
}
