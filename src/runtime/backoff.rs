//! Jittered exponential back-off as a value: the caller sleeps and gives the randomness.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Doubling delays between two bounds. The first delay is about `min`; none is longer than `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
}

impl Backoff {
    /// Delays from `min`, doubled at each failure, up to `max`.
    pub const fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, failures: 0 }
    }

    /// The delay before the next try, and counts one failure. `jitter` in 0..1 takes up to half of the delay away, so that
    /// many processes that failed together do not come back together.
    pub fn fail(&mut self, jitter: f64) -> Duration {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let delay = self.min.checked_mul(factor).unwrap_or(self.max).min(self.max);
        self.failures = self.failures.saturating_add(1).min(31);
        delay.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }

    /// [`Self::fail`] with a random jitter.
    pub fn fail_randomly(&mut self) -> Duration {
        self.fail(jitter())
    }

    /// After a success the next failure waits `min` again.
    pub fn succeed(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success (saturates at 31).
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// A number in 0..1, different at each call. Not for secrets: it only spreads load.
pub fn jitter() -> f64 {
    // Every RandomState has its own key, seeded once per thread from the operating system.
    let bits = RandomState::new().build_hasher().finish() >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_limit_and_start_over_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
        let delays: Vec<_> = (0..10).map(|_| backoff.fail(0.0).as_millis()).collect();
        assert_eq!(delays, [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        backoff.succeed();
        assert_eq!(backoff.fail(0.0), Duration::from_millis(200));
    }

    #[test]
    fn jitter_takes_at_most_half() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        assert_eq!(backoff.fail(1.0), Duration::from_millis(500));
        for _ in 0..1000 {
            let delay = backoff.fail_randomly();
            assert!(delay >= Duration::from_millis(500) && delay <= Duration::from_secs(1), "{delay:?}");
        }
        assert!((0..64).map(|_| jitter().to_bits()).collect::<std::collections::BTreeSet<_>>().len() > 32);
    }

    #[test]
    fn thousands_of_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::MAX);
        for _ in 0..5000 {
            backoff.fail(0.0);
        }
    }
}
