//! The scheduling cycle as pure functions: choose a node, reserve it, lock, bind, and handle the result of each request.
//!
//! ```text
//!   queue ──select──▶ reserved ──Permit──▶ binder: volumes ──▶ lock queue ──▶ locking ──▶ binding ──▶ bound
//!     ▲                  │                   │      ▲              │             │
//!     │                  │                   │      └── contended ─┘             │
//!     └──── room released ◀──────────────────┴────────── final failure ◀─────────┘
//! ```
//!
//! [`Scheduler`] routes events, time and results to the owners of its state; `scheduler.rs` says which owner owns what.

pub(super) mod binder;
pub(super) mod context;
pub mod earmarks;
pub(super) mod effect;
pub(super) mod extend;
mod other_schedulers;
pub(super) mod preemption;
pub mod queue;
pub(super) mod reporter;
pub(super) mod reservations;
pub mod rules;
mod schedule_one;
#[allow(clippy::module_inception)] // the router, in the folder of what it routes to
mod scheduler;
pub mod select;
mod served;
mod settings;
pub(super) mod timers;

pub use binder::{BindAnswer, BindAttempt, BindVerdict, RequestId};
pub use effect::{BindResult, Effect, EffectResult, Effects, LockResult, PodGroupWrite, Ticket};
pub use extend::{DeviceFits, NodeVictims};
pub use other_schedulers::{OTHER_SCHEDULER_AFTER, controller_of, other_scheduler_text, wants_of_another};
pub use scheduler::Scheduler;
pub use select::shape::PodShape;
pub use settings::{Config, NodeSearch, Stats};
pub use timers::Moment;
