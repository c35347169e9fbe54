//! The scheduling engine against a cluster of plain values: every step re-checks all invariants.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so

mod env;
mod explained;
mod extender;
mod gang;
mod gang_devices;
mod gang_edges;
mod gang_env;
mod gang_faults;
mod gang_groups;
mod gang_moves;
mod gang_phases;
mod gang_random;
mod gang_victims;
mod gang_words;
mod gang_work;
mod gatekeepers;
mod indexed;
mod lock_line;
mod packing;
mod placement;
mod preemption;
mod recovery;
mod scores;
mod storage;
mod streams;
mod volumes;
