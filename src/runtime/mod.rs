//! Process plumbing without a domain word: telemetry, shutdown, back-off, the only clock, addresses.

pub mod admin;
pub mod backoff;
pub mod clock;
pub mod http;
pub mod metrics;
pub mod options;
pub mod shutdown;
pub mod telemetry;
pub mod timings;
pub mod tls;
pub mod vital;
pub mod words;

pub use backoff::Backoff;
pub use words::{words, yaml_words};
