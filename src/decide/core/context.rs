//! All that one call may change, and who may change what of it.
//!
//! | lent | of it an owner may change |
//! |---|---|
//! | `Terms` | nothing: time, settings and rules of the call |
//! | `Scene` | nothing: the world beside the terms |
//! | `&World` | nothing |
//! | `Agenda` | adds what is to be done: queue, timers, steps, effects |
//! | `Placing` | takes and gives back room; queues, wakes, reports and requests nothing |
//! | `Rooms` | gives back room, and adds what follows from it |
//! | `&mut World`, `&mut Reservations` | the accounts of one pod or node, and the nodes to which a group in hand is confined |
//! | `Context` | all of it: attempts, reviews, binds |
//!
//! `Reservations`, `Preemption`, `Earmarks` and `Reporter` change only themselves and what they are lent.

use std::sync::Arc;

use crate::world::{PodFacts, PodId, World};
use baton_contract::ConditionReason;

use super::agenda::{Agenda, NEW_POD, Terms};
use super::earmarks::Earmarks;
use super::placing::{Placing, Rooms};
use super::preemption::Preemption;
use super::queue::{Item, Queue};
use super::reporter::{Reporter, WaitsFor};
use super::reservations::Reservations;
use super::select::index::Index;
use super::settings::Config;

/// All that one call may change, lent to the owner that is called. An owner lends of it to others only what they need.
/// [`Binder`](crate::bind::Binder), [`Gangs`](crate::gang::Gangs) and [`TyJobs`](crate::tyjob::TyJobs) are not in here: they
/// cannot be called by other owners, which leave a [step](super::agenda::Step) for them instead. Nothing in here calls up to those three.
pub struct Context<'a> {
    /// Time, settings and rules.
    pub terms: Terms<'a>,
    /// Facts from watches, and accounts.
    pub world: &'a mut World,
    /// Verdicts on nodes by pod shape.
    pub index: &'a mut Index,
    /// Room of pods that are not being bound yet.
    pub reservations: &'a mut Reservations,
    /// Nominated pods and their victims.
    pub preemption: &'a mut Preemption,
    /// Nodes that are kept for a group or pod.
    pub earmarks: &'a mut Earmarks,
    /// What was reported of pods that wait.
    pub reporter: &'a mut Reporter,
    /// What is to be done.
    pub agenda: &'a mut Agenda,
}

/// The owners whose state a [`Context`] lends.
pub struct LentOwners {
    /// Facts from watches, and accounts.
    pub world: World,
    /// Verdicts on nodes by pod shape.
    pub index: Index,
    /// Room of pods that are not being bound yet.
    pub reservations: Reservations,
    /// Nominated pods and their victims.
    pub preemption: Preemption,
    /// Nodes that are kept for a group or pod.
    pub earmarks: Earmarks,
    /// What was reported of pods that wait.
    pub reporter: Reporter,
    /// What is to be done.
    pub agenda: Agenda,
}

impl LentOwners {
    /// They know nothing yet.
    pub fn new(config: &Config) -> Self {
        Self {
            world: World::new(config.world.clone()),
            index: Index::default(),
            reservations: Reservations::default(),
            preemption: Preemption::default(),
            earmarks: Earmarks::default(),
            reporter: Reporter::default(),
            agenda: Agenda { queue: Queue::new(config.queue), ..Agenda::default() },
        }
    }

    /// What explanations read of them.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            world: self.world.clone(),
            index: Index::default(),
            reservations: self.reservations.clone(),
            preemption: self.preemption.clone(),
            earmarks: self.earmarks.clone(),
            reporter: self.reporter.clone(),
            agenda: Agenda { queue: self.agenda.queue.clone(), ..Agenda::default() },
        }
    }

    /// Lends them for one call.
    pub fn context<'a>(&'a mut self, terms: Terms<'a>) -> Context<'a> {
        Context {
            terms,
            world: &mut self.world,
            index: &mut self.index,
            reservations: &mut self.reservations,
            preemption: &mut self.preemption,
            earmarks: &mut self.earmarks,
            reporter: &mut self.reporter,
            agenda: &mut self.agenda,
        }
    }
}

impl Context<'_> {
    /// Opens the nodes that are kept for less than a pod which another scheduler places; [`Earmarks::close`] must follow.
    pub fn open_for(&mut self, id: Option<PodId>, facts: &PodFacts) {
        let item = Item::Pod(id.unwrap_or(NEW_POD));
        self.earmarks.open_for(self.terms, self.world, &item, facts.spec.priority, facts.spec.deadline);
    }

    /// Reports why a pod waits; see [`Reporter::report`].
    pub fn report(&mut self, id: PodId, reason: ConditionReason, message: impl Into<Arc<str>>, waits: WaitsFor) {
        self.reporter.report(self.terms.scene(self.world), self.agenda, id, reason, &message.into(), waits);
    }

    /// The part that giving room back changes.
    pub fn rooms(&mut self) -> Rooms<'_> {
        Rooms { terms: self.terms, world: self.world, reservations: self.reservations, agenda: self.agenda }
    }

    /// The part that placing pods may change.
    pub fn placing(&mut self) -> Placing<'_> {
        Placing {
            terms: self.terms,
            world: self.world,
            index: self.index,
            reservations: self.reservations,
            preemption: self.preemption,
            stats: &mut self.agenda.stats,
        }
    }
}
