//! What follows from an answer and need not come before it: the log line, counters, events, the release of the lock, the
//! copy of the ledger that others read. The kubelet admits the node's pods one at a time and waits for the answer.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::api::HandoffApi;
use super::metrics::{HandoffMetrics, ReasonLabel};
use baton_contract::{DeviceId, Shared};
use baton_decide::handoff::{LedgerEntry, PodNotice};
use baton_runtime::vital;

/// Receives what was answered.
pub(super) struct FollowUp {
    api: Arc<dyn HandoffApi>,
    metrics: HandoffMetrics,
    /// Something was served or refused: the lock may have to go.
    lock_matters: Notify,
    /// Counts changes of the ledger.
    changes: watch::Sender<u64>,
}

/// A call that was answered with devices.
pub(super) struct ServedCall {
    /// The log line's verb.
    pub what: &'static str,
    /// The grant.
    pub entry: Option<Shared<LedgerEntry>>,
    /// How the caller was identified.
    pub how: &'static str,
    /// The kubelet chose other devices.
    pub mismatch: bool,
    /// Events to write.
    pub notices: Vec<PodNotice>,
    /// Entries of the ledger now.
    pub entries: usize,
}

impl FollowUp {
    pub fn new(api: Arc<dyn HandoffApi>, metrics: HandoffMetrics) -> Self {
        Self { api, metrics, lock_matters: Notify::new(), changes: watch::Sender::new(0) }
    }

    /// Announces every change of the ledger.
    pub fn ledger_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The ledger is another one now.
    pub fn ledger_changed(&self) {
        self.changes.send_modify(|version| *version += 1);
    }

    /// The lock may have to go.
    pub fn lock_matters(&self) {
        self.lock_matters.notify_one();
    }

    /// Waits until the lock may have to go.
    pub async fn until_lock_matters(&self) {
        self.lock_matters.notified().await;
    }

    /// Does the rest once the answer that is being returned has been written to the kubelet's socket.
    pub fn spawn(self: &Arc<Self>, served: ServedCall) {
        let this = self.clone();
        vital::spawn("what follows an answer", async move {
            // Behind everything that is ready to run, the connection with the answer among it.
            tokio::task::yield_now().await;
            this.perform(served);
        });
    }

    fn perform(&self, served: ServedCall) {
        // The lock first: the next pod of the node waits for it.
        self.lock_matters();
        self.ledger_changed();
        self.metrics.ledger_entries.set(served.entries as i64);
        self.metrics.identified.get_or_create(&ReasonLabel { reason: served.how }).inc();
        if served.mismatch {
            self.metrics.id_mismatches.inc();
        }
        served.notices.into_iter().for_each(|notice| self.api.report(notice));
        if let Some(entry) = &served.entry {
            log(served.what, entry, served.how);
        }
    }
}

/// One line for each grant.
fn log(what: &str, entry: &LedgerEntry, how: &'static str) {
    let devices: Vec<&str> = entry.devices().map(DeviceId::as_str).collect();
    let LedgerEntry { pod, container, resource, .. } = entry;
    tracing::info!(pod = %pod.key, uid = %pod.uid, container = &**container, resource = &**resource, devices = devices.join(","), how, "{what}");
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::BoxFuture;

    use super::*;
    use crate::handoff::HandoffApiError;
    use baton_cluster::node_lock::LockWrite;
    use baton_contract::{LockRead, PodKey, PodRef};
    use baton_decide::pod::HandoffPod;

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
            self.0.lock().unwrap().push(notice.reason);
        }
    }

    #[tokio::test]
    async fn nothing_that_follows_an_answer_comes_before_it_is_written() {
        let ear = Arc::new(Ear::default());
        let after = Arc::new(FollowUp::new(ear.clone(), HandoffMetrics::default()));
        let mut changes = after.ledger_changes();
        let notices = vec![PodNotice::new(PodRef::new("default", "p", "u"), "IdMismatch", "other ids".into())];
        after.spawn(ServedCall { what: "served", entry: None, how: "lock", mismatch: true, notices, entries: 3 });
        // The connection: ready to run when the call returns, and it has to wake up another task to write.
        let (seen, heard) = (changes.clone(), ear.clone());
        let connection = tokio::spawn(async move {
            let writer = tokio::spawn(async move { (*seen.borrow(), heard.0.lock().unwrap().len()) });
            writer.await.unwrap()
        });
        assert_eq!(connection.await.unwrap(), (0, 0));
        changes.changed().await.unwrap();
        after.until_lock_matters().await;
        assert_eq!(*ear.0.lock().unwrap(), ["IdMismatch"]);
        assert_eq!((after.metrics.id_mismatches.get(), after.metrics.ledger_entries.get()), (1, 3));
    }
}
