//! TYJobs in the cycle: one item of the queue places all waiting jobs in their order; places are reservations in the world
//! until the controller's pods take them over.
//!
//! ```text
//!   job ──review──▶ waiting ──cycle──▶ places (reserved) ──pod appears──▶ taken over: hold, lock, Binding
//!    ▲                 ▲                  │
//!    │                 └──── void ◀───────┤ node vanished · not used in time
//!    └── status written ◀─────────────────┘ all of them: another attempt, job over or gone
//! ```
//!
//! What is decided is kept in a record per job and written into the job's status; after a restart the records are made from
//! the status alone.

mod explain;
mod place;
pub mod placement;
mod record;
mod review;
mod round;
pub mod stages;
mod table;
mod take;
mod write;

pub use explain::{JobExplanation, NodeRating, SeatExplanation};
pub(in crate::decide) use record::JobDesk;
pub use record::{JobHalf, JobPlace, JobPolicy, JobRecord, JobWriteResult};
pub(in crate::decide) use take::JobRoute;
