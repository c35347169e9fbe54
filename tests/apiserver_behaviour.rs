//! What the simulated API server does beyond the recording: races, deletion, watches, custom kinds, faults; asked by bare
//! HTTP and by kube-rs over TLS.
#![allow(clippy::unchecked_time_subtraction, clippy::default_trait_access)] // a test reads its clock in order and names no defaults

#[path = "apiserver/cluster.rs"]
mod cluster;
#[path = "apiserver/custom.rs"]
mod custom;
#[path = "apiserver/deletes.rs"]
mod deletes;
#[path = "apiserver/failures.rs"]
mod failures;
#[path = "apiserver/http.rs"]
mod http;
#[path = "apiserver/watches.rs"]
mod watches;
#[path = "apiserver/writes.rs"]
mod writes;
