//! What plugins keep from one extension point to the next within one cycle of one pod.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;

/// One value per type.
#[derive(Default)]
pub struct Slots(BTreeMap<TypeId, Box<dyn Any>>);

impl Slots {
    /// Stores a value in place of an earlier one of its type.
    pub fn put<T: Any>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(value));
    }

    /// The value of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }

    /// The value of this type, made when it is not there.
    ///
    /// # Panics
    /// Never: a value is only ever filed under its own type.
    pub fn entry<T: Any + Default>(&mut self) -> &mut T {
        let slot = self.0.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(T::default()));
        slot.downcast_mut().expect("a slot holds a value of the type that it is filed under")
    }

    /// Takes the value of this type out.
    pub fn take<T: Any>(&mut self) -> Option<T> {
        Some(*self.0.remove(&TypeId::of::<T>())?.downcast().ok()?)
    }
}
