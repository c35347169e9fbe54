//! Preemption: room for a pod that fits nowhere, at the cost of pods of lower priority.
//!
//! ```text
//!   no node fits ──dry run per node──▶ candidates ──PostFilter picks──▶ nominated, victims evicted
//!                                                                          │
//!      tried again when they are gone; meanwhile its room is closed to equal and lower priority
//! ```
//!
//! A gang is never left with fewer members than its minimum: its surplus leaves first, else all of it.
//!
//! A dry run takes pods out of the world's accounts, asks the very rules that decide placement, and puts everything back.

mod dry_run;
mod nominate;
mod units;

pub(in crate::decide) use dry_run::{Lot, candidates, in_order_of_worth, judge_budgets, lots, lower_priority};
pub use nominate::Nomination;
pub(in crate::decide) use units::Units;
