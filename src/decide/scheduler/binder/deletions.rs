//! How many live pods may be deleted for their locks (docs/lock.md, "When the holder does not come").

use std::collections::VecDeque;
use std::time::Duration;

use crate::world::NodeId;

/// Pods deleted within a minute before no more are.
pub(super) const MOST: usize = 10;
/// How long none is deleted after the last of so many.
const SUSPENDED: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);

/// The deletions of live pods for their locks.
#[derive(Debug, Clone, Default)]
pub(super) struct Deletions {
    /// In order of time.
    made: VecDeque<(NodeId, Duration)>,
    /// When it was said last that they are suspended.
    said: Option<Duration>,
}

impl Deletions {
    /// Notes one more, if it may be: not more than one for each node and expiry of a lock, and not more than [`MOST`] a minute. What
    /// deletes more than that is no rule against accidents any more: nothing is deleted until [`SUSPENDED`] after the last one.
    pub(super) fn allow(&mut self, node: NodeId, now: Duration, expiry: Duration) -> bool {
        let kept = expiry.max(SUSPENDED);
        while self.made.front().is_some_and(|(_, at)| now >= *at + kept + MINUTE) {
            self.made.pop_front();
        }
        let here = self.made.iter().any(|(on, at)| *on == node && now < *at + expiry);
        if here || self.are_suspended(now) {
            return false;
        }
        self.made.push_back((node, now));
        true
    }

    /// Whether to say now that there are too many: once in [`SUSPENDED`].
    pub(super) fn say_suspended(&mut self, now: Duration) -> bool {
        let due = self.are_suspended(now) && self.said.is_none_or(|at| now >= at + SUSPENDED);
        if due {
            self.said = Some(now);
        }
        due
    }

    fn are_suspended(&self, now: Duration) -> bool {
        let mut burst = self.made.iter().zip(self.made.iter().skip(MOST - 1));
        burst.any(|((_, first), (_, last))| *last < *first + MINUTE)
            && self.made.back().is_some_and(|(_, last)| now < *last + SUSPENDED)
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
        assert_eq!(after((0..9).chain([60])).1, 10);
        assert!(!after((0..9).chain([60])).0.are_suspended(at(60)), "a minute after the first is not within it");
        assert!(after((0..9).chain([59])).0.are_suspended(at(59)));
        assert_eq!(after((0..40).map(|n| n * 7)).1, 40, "nine a minute for as long as it takes");
    }

    #[test]
    fn an_early_burst_counts_also_when_others_came_later() {
        let mut deletions = after((0..10).map(|_| 0)).0;
        assert!(deletions.allow(NodeId(20), at(600), EXPIRY), "the suspension has ended");
        assert!(!deletions.allow(NodeId(21), at(601), EXPIRY), "one more shows that the cause has not");
        assert!(deletions.allow(NodeId(21), at(1200), EXPIRY));
    }

    #[test]
    fn a_node_loses_one_pod_for_each_expiry() {
        for expiry in [EXPIRY, Duration::from_secs(3600)] {
            let mut deletions = Deletions::default();
            assert!(deletions.allow(NodeId(1), at(0), expiry));
            assert!(deletions.allow(NodeId(2), at(0), expiry), "another node's do not count");
            assert!(!deletions.allow(NodeId(1), at(1), expiry));
            assert!(!deletions.allow(NodeId(1), at(0) + expiry - Duration::from_secs(1), expiry));
            assert!(deletions.allow(NodeId(1), at(0) + expiry, expiry));
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let mut deletions = after([0, 1]).0;
        assert!(deletions.allow(NodeId(9), at(659), EXPIRY));
        assert_eq!(deletions.made.len(), 3);
        assert!(deletions.allow(NodeId(8), at(661), EXPIRY));
        assert_eq!(deletions.made.len(), 2, "ten minutes and one after them");
    }

    #[test]
    fn the_suspension_is_said_once_in_ten_minutes() {
        assert!(!after([0]).0.say_suspended(at(0)), "nothing is suspended");
        let mut deletions = after((0..10).map(|_| 0)).0;
        assert!(deletions.say_suspended(at(1)));
        assert!(!deletions.say_suspended(at(2)) && !deletions.say_suspended(at(599)));
        assert!(deletions.allow(NodeId(30), at(600), EXPIRY), "over, and one more");
        assert!(!deletions.say_suspended(at(600)), "not yet ten minutes after the last time");
        assert!(deletions.say_suspended(at(601)));
    }
}
