//! Process plumbing without a domain word: telemetry, shutdown, back-off, the only clock, admin HTTP.

pub mod admin;
pub mod backoff;
pub mod clock;
pub mod shutdown;
pub mod telemetry;

pub use backoff::Backoff;
