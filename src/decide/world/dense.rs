//! `Dense`: a map by ids that count up from 0 and are never used again; the ids of nodes and pods.
//!
//! A look-up is two steps, however many entries there are. Entries lie in pages; a page without entries is given back, so that
//! ids whose records are gone cost next to nothing. A copy of the map shares its pages until one of both changes them, so that a
//! snapshot of 200,000 pods costs as much as its 12,500 pages.

use std::marker::PhantomData;
use std::sync::Arc;

/// A node. The number is never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A pod. The number is never given to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId(pub u64);

/// Slots of a page.
const PAGE: usize = 16;

/// An id that counts up from 0.
pub trait DenseId: Copy {
    /// Its number; too large for any map where it does not fit.
    fn number(self) -> usize;
    /// The id of that number.
    fn of(number: usize) -> Self;
}

impl DenseId for NodeId {
    fn number(self) -> usize {
        self.0 as usize
    }
    fn of(number: usize) -> Self {
        Self(number as u32)
    }
}

impl DenseId for PodId {
    fn number(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
    fn of(number: usize) -> Self {
        Self(number as u64)
    }
}

/// A map by dense ids, in the order of the ids.
#[derive(Debug, Clone)]
pub struct Dense<I, T> {
    pages: Vec<Option<Arc<Page<T>>>>,
    entries: usize,
    ids: PhantomData<I>,
}

#[derive(Debug, Clone)]
struct Page<T> {
    slots: [Option<T>; PAGE],
    entries: usize,
}

impl<I, T> Default for Dense<I, T> {
    fn default() -> Self {
        Self { pages: Vec::new(), entries: 0, ids: PhantomData }
    }
}

impl<I: DenseId, T: Clone> Dense<I, T> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// `true` without entries.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The entry of `id`.
    pub fn get(&self, id: I) -> Option<&T> {
        let number = id.number();
        self.pages.get(number / PAGE)?.as_ref()?.slots[number % PAGE].as_ref()
    }

    /// The entry of `id`, to be changed.
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        let number = id.number();
        // Without an entry there is nothing to change, and no reason to copy the page.
        self.get(id)?;
        Arc::make_mut(self.pages.get_mut(number / PAGE)?.as_mut()?).slots[number % PAGE].as_mut()
    }

    /// Enters a value; returns the former one.
    pub fn insert(&mut self, id: I, value: T) -> Option<T> {
        let number = id.number();
        if self.pages.len() <= number / PAGE {
            self.pages.resize_with(number / PAGE + 1, || None);
        }
        let empty = || Arc::new(Page { slots: [const { None }; PAGE], entries: 0 });
        let page = Arc::make_mut(self.pages[number / PAGE].get_or_insert_with(empty));
        let former = page.slots[number % PAGE].replace(value);
        if former.is_none() {
            page.entries += 1;
            self.entries += 1;
        }
        former
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: I) -> Option<T> {
        let number = id.number();
        self.get(id)?;
        let home = self.pages.get_mut(number / PAGE)?;
        let page = Arc::make_mut(home.as_mut()?);
        let value = page.slots[number % PAGE].take()?;
        page.entries -= 1;
        if page.entries == 0 {
            *home = None;
        }
        self.entries -= 1;
        Some(value)
    }

    /// Every entry, by id.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        let pages = self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.as_ref()?)));
        pages.flat_map(|(at, page)| {
            let slots = page.slots.iter().enumerate();
            slots.filter_map(move |(slot, value)| Some((I::of(at * PAGE + slot), value.as_ref()?)))
        })
    }

    /// Every entry, by id, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        let pages =
            self.pages.iter_mut().enumerate().filter_map(|(at, page)| Some((at, Arc::make_mut(page.as_mut()?))));
        pages.flat_map(|(at, page)| {
            let slots = page.slots.iter_mut().enumerate();
            slots.filter_map(move |(slot, value)| Some((I::of(at * PAGE + slot), value.as_mut()?)))
        })
    }

    /// Every value, by id.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_says_what_an_ordered_map_says(steps in proptest::collection::vec((0u32..200, any::<bool>(), 0u8..9), 0..300)) {
            let (mut dense, mut ordered) = (Dense::default(), BTreeMap::new());
            let (half, mut copies) = (steps.len() / 2, None);
            for (at, (id, enters, value)) in steps.into_iter().enumerate() {
                let id = NodeId(id);
                if at == half {
                    copies = Some((dense.clone(), ordered.clone()));
                }
                if enters {
                    prop_assert_eq!(dense.insert(id, value), ordered.insert(id, value));
                } else {
                    prop_assert_eq!(dense.remove(id), ordered.remove(&id));
                }
                prop_assert_eq!((dense.len(), dense.is_empty()), (ordered.len(), ordered.is_empty()));
                prop_assert_eq!(dense.get(id), ordered.get(&id));
                prop_assert_eq!(dense.get_mut(id), ordered.get_mut(&id));
            }
            if let Some((dense, ordered)) = copies {
                prop_assert!(dense.iter().eq(ordered.iter().map(|(id, value)| (*id, value))), "a copy stays as it was");
            }
            let all: Vec<(NodeId, u8)> = dense.iter().map(|(id, value)| (id, *value)).collect();
            prop_assert_eq!(&all, &ordered.into_iter().collect::<Vec<_>>());
            prop_assert!(dense.iter_mut().map(|(id, value)| (id, *value)).eq(all.iter().copied()));
            all.iter().for_each(|(id, _)| _ = dense.remove(*id));
            prop_assert!(dense.pages.iter().all(Option::is_none), "a page without entries is given back");
            prop_assert_eq!(dense.get(NodeId(u32::MAX)), None);
        }
    }
}
