//! What follows an answer happens beside it.

use std::sync::Mutex;

use futures::future::BoxFuture;

use super::*;
use baton_cluster::node_lock::LockWrite;
use baton_contract::{LockRead, PodKey, PodRef};
use baton_decide::handoff::{CallState, ContainerSlot, IdentifiedBy, PodNotice};
use baton_decide::pod::HandoffPod;
use baton_runtime::metrics::MetricSet;

/// Records events; nothing is read from it.
#[derive(Default)]
struct Ear(Mutex<Vec<&'static str>>);

impl HandoffApi for Ear {
    fn pod<'a>(&'a self, _: &'a PodKey) -> BoxFuture<'a, Result<Option<HandoffPod>, HandoffApiError>> {
        unreachable!("nothing is read after an answer")
    }
    fn lock(&self) -> BoxFuture<'_, Result<LockRead, HandoffApiError>> {
        unreachable!("nothing is read after an answer")
    }
    fn release<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<LockWrite, HandoffApiError>> {
        unreachable!("the unlocker is only woken up")
    }
    fn report(&self, notice: PodNotice) {
        self.0.lock().unwrap().push(notice.reason.word());
    }
}

#[tokio::test]
async fn nothing_that_follows_an_answer_comes_before_it_is_written() {
    let ear = Arc::new(Ear::default());
    let after =
        Arc::new(FollowUp::new(ear.clone(), HandoffMetrics::new(&mut MetricSet::new("baton")), mpsc::channel(1).0));
    let mut changes = after.changes.subscribe();
    let reason = baton_contract::EventReason::DeviceIdMismatch;
    let pod = PodRef::new("default", "p", "u");
    let notice = PodNotice::new(pod.clone(), reason, "other ids".into());
    let slot = ContainerSlot { order: 0, init: false, sidecar: false };
    let entry = LedgerEntry::new(&pod, "main", "nvidia.com/gpu", slot, vec![], vec![], CallState::Answered).into();
    let served = ServedCall { entry, again: false, how: IdentifiedBy::Lock, mismatch: true, entries: 3 };
    let effects =
        [CallEffect::Unlock, CallEffect::Publish, CallEffect::Log(Box::new(served)), CallEffect::Notice(notice)];
    after.spawn(effects.into_iter());
    // The connection: ready to run when the call returns, and it has to wake up another task to write.
    let (seen, heard) = (changes.clone(), ear.clone());
    let connection = tokio::spawn(async move {
        let writer = tokio::spawn(async move { (*seen.borrow(), heard.0.lock().unwrap().len()) });
        writer.await.unwrap()
    });
    assert_eq!(connection.await.unwrap(), (0, 0));
    changes.changed().await.unwrap();
    after.until_lock_matters().await;
    assert_eq!(*ear.0.lock().unwrap(), ["DeviceIdMismatch"]);
    assert_eq!((after.metrics.id_mismatches.get(), after.metrics.ledger_entries.get()), (1, 3));
}
