//! What the daemon learns of a machine, on virtual machines with a library of NVML's ABI and a tree in sysfs' shape.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![cfg(feature = "sim")]
// The lint's own exception covers `#[test]` functions and not what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "harness/directory.rs"]
mod directory;
#[path = "harness/nics.rs"]
#[allow(dead_code)] // other crates of tests use more of it
mod fixtures;
#[path = "harness/skip.rs"]
mod skip;

mod hardware {
    pub mod bench;
    mod events;
    mod faults;
    mod files;
    mod footprint;
    mod gpus;
    mod mig;
    mod nics;
    mod parsers;
    mod places;
    mod questions;
    mod real;
}
