//! The extender as kube-scheduler meets it: the shipped binary over HTTP, beside an API server over real sockets; the tests
//! play kube-scheduler and the nodes' agents.

#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so

#[path = "extender/bind.rs"]
mod bind;
#[allow(dead_code)] // shared with the standalone scheduler's tests, which use more of it
#[path = "scheduler_cluster/cluster.rs"]
mod cluster;
#[path = "extender/hostile.rs"]
mod hostile;
#[path = "extender/process.rs"]
mod process;
#[path = "extender/tls.rs"]
mod tls;
#[path = "extender/verbs.rs"]
mod verbs;
