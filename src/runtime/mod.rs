//! Process plumbing without a domain word: telemetry, shutdown, back-off, the only clock, admin HTTP.

pub mod clock;
