//! The scheduler daemon, in process, against an API server over real sockets; the tests play the nodes' agents.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so

mod bind;
mod cluster;
mod crash;
mod custom_plugin;
#[path = "../cluster/daemon.rs"]
#[allow(dead_code)] // other tests use more of it
mod daemon;
mod explained;
mod faults;
mod feeds;
mod gang_docs;
mod gang_feeds;
mod gang_stage;
mod gang_status;
mod gangs;
mod killed;
mod volumes;
