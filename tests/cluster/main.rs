//! Our daemons against an API server over real sockets: all of them in a whole cluster (`daemons`), the scheduler alone, as
//! kube-scheduler's extender, and the controller of TYJobs.
#![cfg(feature = "sim")]
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)] // a test that cannot go on says so

mod daemons;
mod extender;
#[path = "../harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // other crates of tests use more of it
mod harness;
#[path = "../harness/helm.rs"]
mod helm;
mod migrate;
mod ports;
mod prelude;
mod scheduler;
#[path = "../harness/skip.rs"]
mod skip;
mod tyjob;
