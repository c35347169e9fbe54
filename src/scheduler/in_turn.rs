//! Status writes of one pod go out one after the other, and its Binding after them: a condition "not scheduled" that is applied
//! after the Binding would contradict it for good.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::contract::PodUid;

/// Nothing is ever sent: the other end is dropped.
type Ended = oneshot::Receiver<()>;

/// The last write under way of each pod.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Mutex<BTreeMap<PodUid, (u64, Ended)>>>);

/// One write. The next one of the same pod goes out when this is dropped.
#[derive(Debug)]
pub struct Turn {
    turns: Turns,
    pod: PodUid,
    number: u64,
    before: Option<Ended>,
    _running: oneshot::Sender<()>,
}

impl Turns {
    /// Takes the next turn of a pod; wait for it with [`Turn::come`].
    pub fn take(&self, pod: &PodUid) -> Turn {
        let (running, ended) = oneshot::channel();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.get(pod).map_or(0, |(number, _)| number + 1);
        let before = all.insert(pod.clone(), (number, ended)).map(|(_, ended)| ended);
        Turn { turns: self.clone(), pod: pod.clone(), number, before, _running: running }
    }
}

impl Turn {
    /// Waits until the write before this one has ended.
    pub async fn come(&mut self) {
        if let Some(before) = &mut self.before {
            before.await.ok();
            self.before = None;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut all = self.turns.0.lock().unwrap_or_else(PoisonError::into_inner);
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
    async fn a_pods_turns_come_one_after_the_other_and_other_pods_do_not_wait() {
        let turns = Turns::default();
        let pod = PodUid::new("a");
        let first = turns.take(&pod);
        let (mut second, mut other) = (turns.take(&pod), turns.take(&PodUid::new("b")));
        assert!(second.come().now_or_never().is_none());
        assert!(other.come().now_or_never().is_some());
        let mut second = turns.take(&pod);
        drop(first);
        assert!(second.come().now_or_never().is_none(), "the one between has not ended");
        drop(other);
    }

    #[tokio::test]
    async fn what_has_ended_is_forgotten() {
        let turns = Turns::default();
        let pod = PodUid::new("a");
        let mut first = turns.take(&pod);
        first.come().await;
        let mut second = turns.take(&pod);
        drop(first);
        second.come().await;
        drop(second);
        assert!(turns.0.lock().unwrap().is_empty());
    }
}
