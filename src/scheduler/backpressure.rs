//! How far decisions may run ahead of the requests that they lead to. Without a bound, thousands of pods decided while the API
//! server answers a few would keep all their annotations in memory, the last of them would be decided on a world that is long
//! past, and a pod of high priority would wait behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Counts the lock writes and Bindings without an answer yet, those that still wait to be sent included.
#[derive(Debug)]
pub struct Backpressure {
    count: AtomicUsize,
    limit: usize,
    freed: Notify,
    ended: Notify,
}

/// One counted request; it ends when this is dropped.
#[derive(Debug)]
pub struct CountedRequest(Arc<Backpressure>);

impl Backpressure {
    /// Decisions pause while `limit` requests are counted.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { count: AtomicUsize::new(0), limit, freed: Notify::new(), ended: Notify::new() })
    }

    /// Counts one more, whether or not there is room: its decision is already made.
    pub fn count(self: &Arc<Self>) -> CountedRequest {
        self.count.fetch_add(1, Ordering::AcqRel);
        CountedRequest(self.clone())
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

    /// Returns when no request is counted. One task waits at a time.
    pub async fn idle(&self) {
        while self.count.load(Ordering::Acquire) > 0 {
            self.ended.notified().await;
        }
    }
}

impl Drop for CountedRequest {
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
        let backpressure = Backpressure::new(2);
        let mut requests: Vec<CountedRequest> = (0..3).map(|_| backpressure.count()).collect();
        assert!(!backpressure.has_room());
        let mut room = Box::pin(backpressure.room());
        assert!((&mut room).now_or_never().is_none());
        requests.pop();
        assert!((&mut room).now_or_never().is_none(), "two are left");
        requests.pop();
        assert!((&mut room).now_or_never().is_some());
        assert!(backpressure.has_room());
    }

    #[tokio::test]
    async fn room_that_came_before_a_task_waited_is_found() {
        let backpressure = Backpressure::new(1);
        drop(backpressure.count());
        assert!(backpressure.room().now_or_never().is_some());
    }

    #[tokio::test]
    async fn it_is_idle_when_no_request_is_left() {
        let backpressure = Backpressure::new(4);
        let requests = [backpressure.count(), backpressure.count()];
        let mut idle = Box::pin(backpressure.idle());
        assert!((&mut idle).now_or_never().is_none());
        drop(requests);
        assert!((&mut idle).now_or_never().is_some() && backpressure.idle().now_or_never().is_some());
    }
}
