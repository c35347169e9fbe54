//! The simulated Kubernetes API server: one service, used in process and over TCP (plain and TLS, HTTP/1.1 and HTTP/2).
//!
//! [`ApiServer::start`] opens the ports; [`ApiServer::kubeconfig`] lets kubectl, kube-rs and our daemons in;
//! [`ApiServer::faults`] breaks things on command; [`ApiServer::counts`] counts requests by user and kind. It is held to
//! recordings of a real server by `tests/apiserver/conformance.rs`.
//!
//! A request goes `listen` → `dispatch` (who, faults, may they) → `read`, `watch`, `write`/`update`, `delete` or
//! `subresources`; these know objects only as JSON, what they need to know of fields is in `schema`, and what is
//! common to all kinds is in `store`. Writes are judged by `policies` before they are stored. `tidy` is what controllers do behind the API.
//!
//! Left out, and why:
//! * CBOR, answers in protobuf, and bodies in protobuf of kinds that `proto/objects.proto` does not have (415): clients take JSON;
//! * the token volume of a pod's service account, since no container here talks to the API;
//! * logs, exec, proxies, and scale: there is nothing behind them (501); port-forward over SPDY, which kubectl speaks;
//! * admission webhooks, quotas, limit ranges, service addresses, conversion between versions;
//! * controllers: workloads (Deployments, Jobs, …) are stored and nothing more; kept are garbage collection, namespace
//!   removal and the readiness taints of nodes ([`Options`]);
//! * of the CEL rules of custom types, their cost and the check of their types before anything is judged by them;
//! * gzip of answers; time to live of events.

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
mod forward;
mod listen;
mod managed;
mod object;
mod openapi;
mod patch;
mod policies;
mod protobuf;
mod quotas;
mod read;
mod registry;
mod request;
mod resource;
mod reviews;
mod schema;
mod selectors;
mod server;
mod store;
mod subresources;
mod table;
mod tidy;
mod tls;
mod tokens;
mod update;
mod user;
mod validate;
mod watch;
mod write;

pub use auth::Rule;
pub use core::Clock;
pub use counts::{Counted, Counts};
pub use faults::{Blackout, Effect, FaultRule, Faults, RuleId};
pub use server::{ApiServer, Options, StartError};
pub use tls::TlsError;
