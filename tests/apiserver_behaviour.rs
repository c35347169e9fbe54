//! What the simulated API server does beyond the recording: races, deletion, watches, custom kinds, faults; asked by bare
//! HTTP and by kube-rs over TLS.
#![allow(clippy::unchecked_time_subtraction)] // a test reads its clock in order

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
