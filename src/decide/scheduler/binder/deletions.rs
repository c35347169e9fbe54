//! How many live pods may be deleted for their locks (docs/lock.md, "When the holder does not come").

use std::collections::VecDeque;
use std::time::Duration;

use crate::world::NodeId;

/// Most deletions within a minute.
pub(super) const MOST: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// How long nothing is deleted after so many.
const SUSPENDED: Duration = Duration::from_secs(600);

/// The deletions of live pods for their locks.
#[derive(Debug, Clone, Default)]
pub(super) struct Deletions {
    /// Where and when, in order of time.
    made: VecDeque<(NodeId, Duration)>,
    /// Nothing is deleted before.
    suspended_until: Duration,
    /// It was said that they are suspended.
    said: bool,
}

impl Deletions {
    /// Notes one more, if it may be: not more than one for each node and expiry of a lock, and not more than [`MOST`] a minute. What
    /// deletes more than that is no rule against accidents any more: nothing is deleted until [`SUSPENDED`] after the last one.
    pub(super) fn allow(&mut self, node: NodeId, now: Duration, expiry: Duration) -> bool {
        let kept = expiry.max(MINUTE);
        while self.made.front().is_some_and(|(_, at)| now >= *at + kept) {
            self.made.pop_front();
        }
        let here = self.made.iter().any(|(on, at)| *on == node && now < *at + expiry);
        if here || now < self.suspended_until {
            return false;
        }
        self.made.push_back((node, now));
        if self.made.iter().filter(|(_, at)| now < *at + MINUTE).count() >= MOST {
            (self.suspended_until, self.said) = (now + SUSPENDED, false);
        }
        true
    }

    /// Whether to say now that they are suspended: once each time.
    pub(super) fn say_suspended(&mut self, now: Duration) -> bool {
        now < self.suspended_until && !std::mem::replace(&mut self.said, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(300);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    /// One deletion on a node of its own at each of these seconds.
    fn after(seconds: impl IntoIterator<Item = u64>) -> (Deletions, u32) {
        let mut deletions = Deletions::default();
        let allowed = |(node, second)| deletions.allow(NodeId(node), at(second), EXPIRY);
        let allowed = (0..).zip(seconds).map(allowed).filter(|allowed| *allowed).count();
        (deletions, u32::try_from(allowed).unwrap())
    }

    #[test]
    fn ten_within_a_minute_suspend_them_for_ten_minutes_after_the_last() {
        let (mut deletions, allowed) = after((0..12).map(|n| n * 6));
        assert_eq!(allowed, 10, "the tenth is 54 s after the first");
        for second in [54, 60, 120, 653] {
            assert!(!deletions.allow(NodeId(50), at(second), EXPIRY), "{second}");
        }
        assert!(deletions.allow(NodeId(50), at(654), EXPIRY));
    }

    #[test]
    fn nine_in_a_minute_or_ten_in_more_suspend_nothing() {
        for (tenth, suspended) in [(59, true), (60, false)] {
            let (mut deletions, allowed) = after((0..9).chain([tenth]));
            assert_eq!((allowed, deletions.allow(NodeId(50), at(tenth + 1), EXPIRY)), (10, !suspended), "{tenth}");
        }
        assert_eq!(after((0..40).map(|n| n * 7)).1, 40, "nine a minute for as long as it takes");
    }

    #[test]
    fn each_burst_is_suspended_and_said_once() {
        let mut deletions = after([0]).0;
        assert!(!deletions.say_suspended(at(0)), "one is no burst");
        for (burst, begin) in [0, 700].into_iter().enumerate() {
            for n in 0..10 {
                let node = NodeId(u32::try_from(100 * (burst + 1) + n).unwrap());
                assert_eq!(
                    deletions.allow(node, at(begin), EXPIRY),
                    begin > 0 || n < 9,
                    "{begin} {n}: one was made before"
                );
            }
            assert!(!deletions.clone().say_suspended(at(begin + 600)), "it is over then");
            assert!(deletions.say_suspended(at(begin + 599)));
            assert!(!deletions.say_suspended(at(begin + 599)));
            assert!(!deletions.allow(NodeId(1), at(begin + 599), EXPIRY));
        }
    }

    #[test]
    fn a_node_loses_one_pod_for_each_expiry() {
        // A shorter one than a minute, too: the burst is known all the same.
        for expiry in [EXPIRY, Duration::from_secs(3600), Duration::from_secs(5)] {
            let mut deletions = Deletions::default();
            assert!(deletions.allow(NodeId(1), at(0), expiry));
            assert!(deletions.allow(NodeId(2), at(0), expiry), "another node's do not count");
            assert!(!deletions.allow(NodeId(1), (at(0) + expiry).saturating_sub(Duration::from_secs(1)), expiry));
            for times in 1..9 {
                assert!(deletions.allow(NodeId(1), at(0) + expiry * times, expiry));
            }
            assert_eq!(deletions.allow(NodeId(3), at(0) + expiry * 8, expiry), expiry >= MINUTE);
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut deletions = after([0, 1]).0;
        assert!(deletions.allow(NodeId(8), at(300), EXPIRY));
        assert_eq!(deletions.made.len(), 2);
    }
}
