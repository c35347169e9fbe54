//! Pauses that double.

use std::time::Duration;

/// How long to pause after so many failures in a row: the first pause, doubled by each further failure, up to the longest.
pub fn doubled((first, longest): (Duration, Duration), failures: u32) -> Duration {
    first.saturating_mul(1 << failures.min(30)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_doubles_up_to_the_longest_however_many_failures_there_are() {
        let bounds = (Duration::from_secs(1), Duration::from_secs(60));
        let seconds: Vec<u64> = [0, 1, 5, 6, 31, u32::MAX].map(|failures| doubled(bounds, failures).as_secs()).into();
        assert_eq!(seconds, [1, 2, 32, 60, 60, 60]);
        assert_eq!(doubled((Duration::MAX, Duration::MAX), 40), Duration::MAX);
    }
}
