//! Placement of TYJobs, decided on values: which jobs are tried, in which order, which node a pod gets, what is kept of an
//! attempt, and when a job can never fit. The scheduler ([`crate::scheduler`]) runs these on the world.

mod classify;
mod folded;
mod order;
mod room;
mod score;
mod unfit;

pub use crate::world::tyjob_facts::{
    JobFacts, JobIdentity, JobPart, JobSpec, PriorityClassFacts, PriorityClasses, ScheduledCondition, Seat,
};
pub use classify::{AttemptResult, JobClass, PlacedPods, Situation, classify, verdict};
pub use folded::{Folded, GPU_PERCENT, GpuSize};
pub use order::{Ranked, Share, dominant_share, order};
pub use room::{Guests, KnownRooms, is_plain, room_for};
pub use score::{Metric, Rank, Utilisation};
pub use unfit::{NodeOffer, PartDemand, unfit};
