//! What plugins keep from one extension point to the next within one cycle of one pod.

use std::any::{Any, TypeId};

/// One value per type. A cycle has a handful of them, so they are looked for one by one.
#[derive(Default)]
pub struct Slots(Vec<(TypeId, Box<dyn Any>)>);

impl Slots {
    fn at<T: Any>(&self) -> Option<usize> {
        self.0.iter().position(|(id, _)| *id == TypeId::of::<T>())
    }

    /// Stores a value in place of an earlier one of its type.
    pub fn put<T: Any>(&mut self, value: T) {
        let value = Box::new(value);
        match self.at::<T>() {
            Some(at) => self.0[at].1 = value,
            None => self.0.push((TypeId::of::<T>(), value)),
        }
    }

    /// The value of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0[self.at::<T>()?].1.downcast_ref()
    }

    /// The value of this type, made when it is not there.
    ///
    /// # Panics
    /// Never: a value is only ever filed under its own type.
    pub fn entry<T: Any + Default>(&mut self) -> &mut T {
        let at = self.at::<T>().unwrap_or_else(|| {
            self.0.push((TypeId::of::<T>(), Box::new(T::default())));
            self.0.len() - 1
        });
        self.0[at].1.downcast_mut().expect("a slot holds a value of the type that it is filed under")
    }

    /// Takes the value of this type out.
    pub fn take<T: Any>(&mut self) -> Option<T> {
        Some(*self.0.swap_remove(self.at::<T>()?).1.downcast().ok()?)
    }
}
