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

/// Time until the next tick of a clock that ticks every `period` since the process started; never zero. Timers of the same
/// period fall on the same tick and cost one wake-up together.
pub fn until_tick(period: Duration) -> Duration {
    left_of(period, mono())
}

fn left_of(period: Duration, now: Duration) -> Duration {
    let period = period.max(Duration::from_millis(1));
    let into = Duration::from_nanos((now.as_nanos() % period.as_nanos()) as u64);
    period.saturating_sub(into)
}

/// Wall time.
pub fn wall() -> Timestamp {
    now().wall
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_of_one_period_falls_on_one_tick() {
        let (second, ms) = (Duration::from_secs, Duration::from_millis);
        assert_eq!(left_of(second(5), second(12)), second(3));
        assert_eq!(left_of(second(5), second(15)), second(5), "a tick that has come is over");
        for now in [ms(0), ms(1), ms(4999), ms(61_234)] {
            assert_eq!((now + left_of(second(30), now)).as_millis() % 30_000, 0);
        }
    }
}
