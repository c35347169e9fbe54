//! Equal values stored once: pods of one template say the same thing thousands of times.

use std::collections::BTreeSet;

use baton_contract::Shared;

/// Values that are stored once. A value that is not held any more is dropped after a while.
#[derive(Debug, Clone)]
pub struct Interner<T> {
    values: BTreeSet<Shared<T>>,
    /// Number of values at which unused ones are looked for.
    sweep_at: usize,
}

/// Fewer values are not worth looking through.
const LEAST: usize = 256;

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), sweep_at: LEAST }
    }
}

impl<T: Ord + Clone> Interner<T> {
    /// Replaces `value` by its stored equal; stores it when it is the first.
    pub fn intern(&mut self, value: &mut Shared<T>) {
        if let Some(known) = self.values.get(value) {
            *value = known.clone();
            return;
        }
        if self.values.len() >= self.sweep_at {
            self.values.retain(|value| value.holders() > 1);
            // Each value is looked at as often as values are added, on average.
            self.sweep_at = LEAST.max(self.values.len() * 2);
        }
        self.values.insert(value.clone());
    }

    /// Number of values.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_stored_once_and_go_when_they_are_unused() {
        let mut interner = Interner::default();
        let mut kept: Vec<Shared<usize>> = Vec::new();
        for at in 0..10 * LEAST {
            let mut value = Shared::from(at % 7);
            interner.intern(&mut value);
            kept.push(value);
        }
        assert!(kept.chunks(7).all(|chunk| chunk[0].is_same(&kept[0])));
        assert_eq!(interner.len(), 7);
        drop(kept);
        (0..10 * LEAST).for_each(|at| interner.intern(&mut Shared::from(at)));
        assert!(interner.len() <= 2 * LEAST, "{} unused values are kept", interner.len());
    }
}
