//! The node daemon beside a simulated kubelet over real sockets: its life on a virtual machine whose NVML library and sysfs tree it
//! reads as it does the real ones (`life`), and the hand-off with a scheduler's part played by the test (`handoff`).
#![cfg(feature = "sim")]
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic)] // the lint's own exception covers `#[test]` functions and not what they call
#![allow(missing_docs)] // modules of tests

mod handoff;
#[path = "../harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // other crates of tests use more of it
mod harness;
mod life;
#[path = "../harness/nics.rs"]
#[allow(dead_code)] // other crates of tests use more of it
mod nics;
mod prelude;
#[path = "../harness/skip.rs"]
mod skip;
