//! How far decisions may be ahead of the requests that they lead to. Whoever decides thousands of pods while the API server
//! answers a few keeps all their annotations in memory, decides the last of them on a world that is long past, and lets a pod of
//! high priority wait behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the locks and Bindings that have no answer yet, those that wait to be sent included.
#[derive(Debug)]
pub struct Ahead {
    count: AtomicUsize,
    limit: usize,
    freed: Notify,
    ended: Notify,
}

/// One of them; it ends when this is dropped.
#[derive(Debug)]
pub struct Entered(Arc<Ahead>);

impl Ahead {
    /// Nobody decides while there are `limit` of them.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), limit, freed: Notify::new(), ended: Notify::new() })
    }

    /// Counts one more, whether or not there is room: what is decided is done.
    pub fn enter(self: &Arc<Self>) -> Entered {
        self.count.fetch_add(1, Ordering::AcqRel);
        Entered(self.clone())
    }

    /// More may be decided.
    pub fn has_room(&self) -> bool {
        self.count.load(Ordering::Acquire) < self.limit
    }

    /// Returns when more may be decided. One task waits at a time.
    pub async fn room(&self) {
        while !self.has_room() {
            self.freed.notified().await;
        }
    }

    /// Returns when none is under way. One task waits at a time.
    pub async fn calm(&self) {
        while self.count.load(Ordering::Acquire) > 0 {
            self.ended.notified().await;
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.0.count.fetch_sub(1, Ordering::AcqRel);
        if before == self.0.limit {
            self.0.freed.notify_one();
        }
        if before == 1 {
            self.0.ended.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn there_is_room_again_as_soon_as_fewer_than_the_limit_are_under_way() {
        let ahead = Ahead::new(2);
        let mut entered: Vec<Entered> = (0..3).map(|_| ahead.enter()).collect();
        assert!(!ahead.has_room());
        let mut room = Box::pin(ahead.room());
        assert!((&mut room).now_or_never().is_none());
        entered.pop();
        assert!((&mut room).now_or_never().is_none(), "two are left");
        entered.pop();
        assert!((&mut room).now_or_never().is_some());
        assert!(ahead.has_room());
    }

    #[tokio::test]
    async fn room_that_came_before_anybody_waited_is_found() {
        let ahead = Ahead::new(1);
        drop(ahead.enter());
        assert!(ahead.room().now_or_never().is_some());
    }

    #[tokio::test]
    async fn it_is_calm_when_none_is_left() {
        let ahead = Ahead::new(4);
        let entered = [ahead.enter(), ahead.enter()];
        let mut calm = Box::pin(ahead.calm());
        assert!((&mut calm).now_or_never().is_none());
        drop(entered);
        assert!((&mut calm).now_or_never().is_some() && ahead.calm().now_or_never().is_some());
    }
}
