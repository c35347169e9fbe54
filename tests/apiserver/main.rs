//! The simulated API server: it answers as the recorded Kubernetes 1.36 one, serves a real kubectl, and does what the recording
//! does not show (races, deletion, watches, custom kinds, faults), asked by bare HTTP and by kube-rs over TLS.
#![cfg(feature = "sim")]
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // a test may

mod compare;
mod conformance;
mod custom;
mod deletes;
mod failures;
mod forward;
mod http;
mod kubectl;
mod policies;
#[path = "../harness/kubectl.rs"]
mod program;
mod server;
#[path = "../harness/skip.rs"]
mod skip;
mod tokens;
mod watches;
mod writes;
