//! What plugins keep from one extension point to the next within one cycle of one pod, and from one pod to the next.

use std::any::{Any, TypeId};
use std::sync::Arc;

use crate::world::{Confinement, Node, Wake};

use super::outcome::Outcome;

/// One value per type. There are a handful of them, so they are looked for one by one.
#[derive(Default)]
struct TypedValues(Vec<(TypeId, Box<dyn Any + Send>)>);

impl TypedValues {
    fn at<T: Any>(&self) -> Option<usize> {
        self.0.iter().position(|(id, _)| *id == TypeId::of::<T>())
    }

    fn get<T: Any>(&self) -> Option<&T> {
        self.0[self.at::<T>()?].1.downcast_ref()
    }

    fn put<T: Any + Send>(&mut self, value: T) {
        match self.at::<T>() {
            Some(at) => self.0[at].1 = Box::new(value),
            None => self.0.push((TypeId::of::<T>(), Box::new(value))),
        }
    }

    fn entry<T: Any + Send + Default>(&mut self) -> &mut T {
        let at = self.at::<T>().unwrap_or_else(|| {
            self.0.push((TypeId::of::<T>(), Box::new(T::default())));
            self.0.len() - 1
        });
        self.0[at].1.downcast_mut().expect("a slot holds a value of the type that it is filed under")
    }
}

/// What plugins keep from one pod to the next of the same [`PodShape`](crate::core::PodShape): it follows from nothing
/// else of a pod than its shape, or says itself for which pods it holds. Losing it costs time and changes no answer.
#[derive(Default)]
pub struct KeptSlots(TypedValues);

/// One value per type for one cycle, and what is [`KeptSlots`].
#[derive(Default)]
pub struct Slots {
    values: TypedValues,
    kept: KeptSlots,
    within: Option<Arc<Confinement>>,
}

impl Slots {
    /// Slots of a pod whose shape was seen before.
    pub fn with(kept: KeptSlots) -> Self {
        Self { kept, ..Self::default() }
    }

    /// The pod may use no other nodes.
    pub(crate) fn confine(&mut self, to: Option<Arc<Confinement>>) {
        self.within = to;
    }

    /// The nodes that the pod may use; `None` for all.
    pub(crate) fn within(&self) -> Option<&Arc<Confinement>> {
        self.within.as_ref()
    }

    /// Refuses a node that the pod may not use.
    pub(crate) fn outside(&self, node: &Node) -> Option<Outcome> {
        self.within.as_ref().filter(|within| !within.has(node)).map(|within| outside(within))
    }

    /// What all nodes say that the pod may not use.
    pub(crate) fn outside_all(&self) -> Option<Outcome> {
        self.within.as_ref().map(|within| outside(within))
    }

    /// Stores a value in place of an earlier one of its type.
    pub fn put<T: Any + Send>(&mut self, value: T) {
        self.values.put(value);
    }

    /// The value of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.values.get()
    }

    /// The value of this type, made when it is not there.
    pub fn entry<T: Any + Send + Default>(&mut self) -> &mut T {
        self.values.entry()
    }

    /// What is kept of this type, made when it is not there.
    pub fn kept<T: Any + Send + Default>(&mut self) -> &mut T {
        self.kept.0.entry()
    }

    /// The value of one type for this cycle, and what is kept of another one, made when it is not there.
    pub fn with_kept<T: Any, K: Any + Send + Default>(&mut self) -> Option<(&T, &mut K)> {
        Some((self.values.get()?, self.kept.0.entry()))
    }

    /// Goes on with what was kept for the pod's shape.
    pub fn keep(&mut self, kept: KeptSlots) {
        self.kept = kept;
    }

    /// Takes out what is kept, for the next pod.
    pub fn take_kept(&mut self) -> KeptSlots {
        std::mem::take(&mut self.kept)
    }
}

/// What a node says that is outside. It may get another label, and members elsewhere that fix the domain may leave.
fn outside(within: &Confinement) -> Outcome {
    Outcome::never("GangTopology", format!("outside {}", within.name()), Wake::NODE_CHANGED.or(Wake::POD_FREED))
}
