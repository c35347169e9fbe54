//! Placement of TYJobs: the decisions on values, and the engine against a cluster of plain values.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so
#![allow(dead_code)] // the cluster of plain values has verbs for other tests too

mod classes;
#[path = "../jobs/dice.rs"]
mod dice;
mod docs;
mod edits;
#[path = "../scheduler_decide/env.rs"]
mod env;
mod faults;
mod fit;
#[path = "../scheduler_decide/gang_env.rs"]
mod gang_env;
mod order;
mod placing;
mod scores;
mod stage;
mod streams;
