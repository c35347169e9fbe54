//! The commands that an operator runs, as child processes.
#![cfg(feature = "sim")]
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a test may

mod audit;
// Of the slowest tests: the harness begins them in the order of their names.
#[path = "ui/browser.rs"]
mod browser;
mod chart;
mod chart_source;
mod cli;
mod completion;
mod cordon;
mod demo;
mod demo_kubectl;
mod doctor;
mod get;
#[path = "../harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // other crates of tests use more of it
mod harness;
#[path = "../harness/helm.rs"]
mod helm;
mod manifests;
mod monitoring;
mod picture;
mod prelude;
#[path = "../harness/kubectl.rs"]
mod program;
#[path = "../harness/promql.rs"]
mod promql;
#[cfg(feature = "simulate")]
mod release;
mod simulate;
#[path = "../harness/skip.rs"]
mod skip;
mod terminal;
mod ui;
