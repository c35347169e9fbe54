//! Order of the status writes of one pod: they go out one after the other, and its Binding after them. A condition "not
//! scheduled" that is applied after the Binding would contradict it for good.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use baton_contract::PodUid;

/// Nothing is ever sent: the end of the write drops the other side.
type WriteEnd = oneshot::Receiver<()>;

/// The last write under way of each pod.
#[derive(Debug, Clone, Default)]
pub struct WriteOrder(Arc<Mutex<BTreeMap<PodUid, (u64, WriteEnd)>>>);

/// One write in the order of its pod. The next one goes out when this is dropped.
#[derive(Debug)]
pub struct OrderedWrite {
    order: WriteOrder,
    pod: PodUid,
    number: u64,
    before: Option<WriteEnd>,
    _running: oneshot::Sender<()>,
}

impl WriteOrder {
    /// Enters a write of a pod; wait for its turn with [`OrderedWrite::turn`].
    pub fn enter(&self, pod: &PodUid) -> OrderedWrite {
        let (running, ended) = oneshot::channel();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.get(pod).map_or(0, |(number, _)| number + 1);
        let before = all.insert(pod.clone(), (number, ended)).map(|(_, ended)| ended);
        OrderedWrite { order: self.clone(), pod: pod.clone(), number, before, _running: running }
    }
}

impl OrderedWrite {
    /// Waits until the write before this one has ended.
    pub async fn turn(&mut self) {
        if let Some(before) = &mut self.before {
            before.await.ok();
            self.before = None;
        }
    }
}

impl Drop for OrderedWrite {
    fn drop(&mut self) {
        let mut all = self.order.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&self.pod).is_some_and(|(number, _)| *number == self.number) {
            all.remove(&self.pod);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn a_pods_writes_go_out_one_after_the_other_and_other_pods_do_not_wait() {
        let order = WriteOrder::default();
        let pod = PodUid::new("a");
        let first = order.enter(&pod);
        let (mut second, mut other) = (order.enter(&pod), order.enter(&PodUid::new("b")));
        assert!(second.turn().now_or_never().is_none());
        assert!(other.turn().now_or_never().is_some());
        let mut second = order.enter(&pod);
        drop(first);
        assert!(second.turn().now_or_never().is_none(), "the one between has not ended");
        drop(other);
    }

    #[tokio::test]
    async fn a_pod_without_writes_under_way_is_forgotten() {
        let order = WriteOrder::default();
        let pod = PodUid::new("a");
        let mut first = order.enter(&pod);
        first.turn().await;
        let mut second = order.enter(&pod);
        drop(first);
        second.turn().await;
        drop(second);
        assert!(order.0.lock().unwrap().is_empty());
    }
}
