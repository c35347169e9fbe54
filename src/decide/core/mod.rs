//! What every kind of scheduling uses, single pods, gangs and TYJobs alike: the queue, rules and the choice of a node by them, reserved
//! room, preemption, earmarks, timers, what is reported, and the requests to the cluster. Each owner has its own file and private
//! state; a `Context` lends all of them (`context.rs` has the table). Nothing in here knows bind attempts, gangs or TYJobs.

pub(super) mod agenda;
pub(super) mod context;
pub(super) mod cost;
pub mod earmarks;
pub(super) mod effect;
pub(super) mod extend;
pub(super) mod min_resources;
mod other_schedulers;
pub(super) mod placing;
mod policies;
pub(super) mod preemption;
pub mod queue;
pub(super) mod reporter;
pub(super) mod reservations;
pub mod rules;
pub mod select;
mod settings;
mod silent_nodes;
pub(super) mod timers;

pub use effect::{
    BindResult, Effect, EffectResult, Effects, JobScheduleStatus, JobWriteResult, LockResult, PodGroupWrite, Ticket,
};
pub use extend::{DeviceFits, NodeVictims};
pub use other_schedulers::{
    OTHER_SCHEDULER_AFTER, OtherSchedulers, controller_of, other_scheduler_text, wants_of_another,
};
pub use policies::{EarmarkPolicy, GangPolicy, JobPolicy, MetricWeights, OnBindFailure, RetryPolicy};
pub use select::shape::PodShape;
pub use settings::{BindStats, Config, GroupStats, JobStats, NodeSearch, Stats};
pub use timers::Moment;
