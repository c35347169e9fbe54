//! The simulated Kubernetes API server: one service, used in process and over TCP (plain and TLS, HTTP/1.1 and HTTP/2).
//!
//! [`ApiServer::start`] opens the ports; [`ApiServer::kubeconfig`] lets kubectl, kube-rs and our daemons in;
//! [`ApiServer::faults`] breaks things on command; [`ApiServer::counts`] tells who asked for what. It is held to
//! recordings of a real server by `tests/apiserver_conformance.rs`.
//!
//! A request goes `listen` → `dispatch` (who, faults, may they) → `read`, `watch`, `write`/`update`, `delete` or
//! `subresources`; these know objects only as JSON, what they need to know of fields is in `schema`, and what is
//! common to all kinds is in `store`. `tidy` is what controllers do behind the API.

mod admission;
mod auth;
mod builtin;
mod codec;
mod core;
mod counts;
mod defaults;
mod definitions;
mod delete;
mod discovery;
mod dispatch;
mod events;
mod failure;
mod faults;
mod listen;
mod managed;
mod object;
mod openapi;
mod patch;
mod read;
mod registry;
mod request;
mod schema;
mod selectors;
mod server;
mod store;
mod subresources;
mod table;
mod tidy;
mod tls;
mod update;
mod validate;
mod watch;
mod write;

pub use auth::Rule;
pub use core::Clock;
pub use counts::{Counted, Counts};
pub use faults::{Blackout, Effect, FaultRule, Faults, RuleId};
pub use server::{ApiServer, Options, StartError};
pub use tls::TlsError;
