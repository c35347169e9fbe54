//! Placement of TYJobs, decided on values: which jobs are tried, in which order, which node a pod gets, what is kept of an
//! attempt, and when a job can never fit. The cycle ([`crate::decide::scheduler`]) runs these on the world.

mod classify;
mod folded;
mod order;
mod room;
mod rule;
mod score;
mod share;
mod unfit;

pub use crate::decide::world::tyjob_facts::{
    JobFacts, JobIdentity, JobSpec, Part, PriorityClassFacts, PriorityClasses, Seat, Told,
};
pub use classify::{Class, Situation, classify};
pub use folded::{Folded, GPU_PERCENT};
pub use order::{Ranked, order};
pub use room::{Guests, KnownRooms, is_plain, room_for};
pub use rule::{Tally, Verdict, verdict};
pub use score::{Load, Metric, Rank, Weights};
pub use share::{Share, dominant_share};
pub use unfit::{Demand, Offer, unfit};
