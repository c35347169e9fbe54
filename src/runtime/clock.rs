//! The only "now" of the process. Decisions take times as values; adapters read them here.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic time since the process started: for ages, deadlines and expiry.
    pub mono: Duration,
    /// Wall time: only for what is written on a wire.
    pub wall: Timestamp,
}

/// Reads both clocks.
#[allow(clippy::disallowed_methods)] // the one place that may
pub fn now() -> Now {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    Now { mono: START.get_or_init(Instant::now).elapsed(), wall: Timestamp::now() }
}

/// Monotonic time since the process started.
pub fn mono() -> Duration {
    now().mono
}

/// Wall time.
pub fn wall() -> Timestamp {
    now().wall
}
