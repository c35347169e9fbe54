//! The scheduling cycle as pure functions: choose a node, reserve it, lock, bind, and answer every report.
//!
//! ```text
//!   queue ──select──▶ reserved ──Permit──▶ binder: volumes ──▶ lock queue ──▶ locking ──▶ binding ──▶ bound
//!     ▲                  │                   │      ▲              │             │
//!     │                  │                   │      └── contended ─┘             │
//!     └──── room given back ◀────────────────┴────────── final failure ◀─────────┘
//! ```
//!
//! [`Scheduler`] routes events, time and reports to the owners of its state; the owners are lent a [`Context`].

pub mod binder;
pub mod context;
pub mod effect;
pub mod extend;
pub mod preemption;
pub mod queue;
pub mod reporter;
pub mod reservations;
pub mod rules;
pub mod schedule_one;
#[allow(clippy::module_inception)] // the router, in the folder of what it routes to
mod scheduler;
pub mod select;
pub mod settings;
pub mod timers;

pub use binder::{BindAnswer, BindAttempt, BindVerdict, LockQueue, RequestId, Stage};
pub use context::Context;
pub use effect::{BindResult, Effect, Effects, LockResult, PodGroupWrite, Report, Ticket};
pub use extend::{Fits, Room};
pub use preemption::Nomination;
pub use reservations::Reservation;
pub use rules::{Candidate, Victim};
pub use schedule_one::JOB;
pub use scheduler::Scheduler;
pub use select::choose::{Choice, Diagnosis, choose};
pub use select::index::Index;
pub use select::shape::PodShape;
pub use settings::{Config, LockMode, Search, Stats};
pub use timers::Moment;
