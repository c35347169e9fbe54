//! The feasible nodes of every recorded case equal those that a real kube-scheduler found with its default filters, and the
//! ratings of every plugin that both have equal its scores.
//!
//! `BATON_FIXTURES` names another directory of the same layout.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test that cannot go on says so

#[path = "kube_scheduler/feasible.rs"]
mod feasible;
#[path = "kube_scheduler/scores.rs"]
mod scores;
#[path = "kube_scheduler/world.rs"]
mod world;
