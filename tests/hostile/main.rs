//! What those write who may not decide: holders of a node's token, tenants, kubelets. Each attack is denied with a message while the
//! admission policies stand, and succeeds once they are removed, so that it is these policies which end it. Beside them everyday
//! traffic, which no policy denies. With `KUBEBUILDER_ASSETS` against a real API server.
#![cfg(feature = "sim")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)] // a test that cannot go on says so

mod believed;
mod everyday;
#[path = "../harness/cluster/mod.rs"]
#[allow(dead_code, unused_imports)] // other crates of tests use more of it
mod harness;
mod node_token;
#[path = "../harness/skip.rs"]
mod skip;
mod standing;
mod tenant;
mod upgrade;
mod visible;
mod world;
