//! The decisions against plain values: devices, pods, gangs and TYJobs. Every step checks all invariants again.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so
#![allow(missing_docs)] // modules of tests

mod devices;
#[path = "../harness/dice.rs"]
#[allow(dead_code)] // other tests use more of it
mod dice;
mod fields;
mod gang;
#[path = "../harness/scheduler/mod.rs"]
mod harness;
mod parity;
mod prelude;
mod scheduler;
mod tyjob;
