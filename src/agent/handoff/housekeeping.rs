//! Opens the ledger at start; then settles it, drops what ended, and compares it with what the kubelet says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::stored_answers;
use super::ledger_file::{LedgerFile, LoadedLedger, StateDir};
use super::service::HandoffService;
use baton_contract::{EventReason, PodKey, PodUid};
use baton_decide::handoff::rebuild::{adopt, rebuild};
use baton_decide::handoff::verify::{ADMITTED_WITHOUT_DEVICES, verify};
use baton_decide::handoff::{Ledger, PodListing, PodNotice, PodResources};
use baton_runtime::{Backoff, clock};

/// Time for PodResources outside of calls.
const LIST_BUDGET: Duration = Duration::from_secs(2);
/// The kubelet is looked for again after this at first.
const KUBELET_AGAIN: Duration = Duration::from_millis(200);
/// A kubelet that does not offer PodResources by then has none. Whatever it shows later is learned before the next grant.
const KUBELET_COMES: Duration = Duration::from_secs(10);
/// Changes are gathered for this long before the ledger is looked through.
const GATHER: Duration = Duration::from_millis(200);

impl HandoffService {
    /// Makes the ledger known: from its file in `state`, or from PodResources and the pods' annotations when that is lost,
    /// torn or of another boot. Then calls are served.
    pub async fn open(&self, state: StateDir, boot_id: &str) {
        let mut file = LedgerFile::new(state, boot_id);
        let ledger = match file.load() {
            LoadedLedger::Ledger(ledger) => {
                tracing::info!(entries = ledger.len(), "ledger read");
                ledger
            }
            LoadedLedger::Lost(why) => {
                tracing::info!(why, "the ledger is rebuilt from PodResources and the pods' annotations");
                let rebuilt = self.rebuild().await;
                tracing::info!(entries = rebuilt.len(), "ledger rebuilt");
                if let Err(error) = file.save(&rebuilt) {
                    tracing::warn!(%error, "the rebuilt ledger could not be written");
                }
                rebuilt
            }
        };
        self.begin(ledger, file).await;
    }

    /// Waits for the kubelet's PodResources, and for the pods unless the kubelet lists no device at all. A kubelet without
    /// PodResources shows when it calls: then the pods' annotations alone must do.
    async fn rebuild(&self) -> Ledger {
        let mut backoff = Backoff::new(KUBELET_AGAIN, LIST_BUDGET);
        let mut has_called = false;
        let give_up = clock::mono() + KUBELET_COMES;
        let mut listing = loop {
            match self.context.pod_resources.list(clock::mono() + LIST_BUDGET).await {
                PodResources::Listed(listing) => break listing,
                PodResources::Unavailable if has_called || clock::mono() >= give_up => {
                    tracing::warn!(
                        "the kubelet has no PodResources: devices in use are known by the pods' annotations alone"
                    );
                    break PodListing::default();
                }
                PodResources::Unavailable | PodResources::Throttled => {}
            }
            tokio::select! {
                () = self.call_waits.notified() => has_called = true,
                () = tokio::time::sleep(backoff.fail_randomly()) => {}
            }
        };
        self.context.view.synced_before(Duration::MAX).await;
        listing.answers = stored_answers(&self.settings.kubelet_dir);
        // After the pods: the lock of one that is known to be bound was set before.
        let pods = self.context.view.seen().pods.clone();
        let lock = self.context.api.lock().await.ok();
        let inventory = self.context.inventory.load();
        rebuild(&self.settings.node, &pods, &listing, &inventory, lock.as_ref())
    }
}

/// Runs until it is dropped: expires on every change of the pods, verifies every `period`.
pub async fn run(service: Arc<HandoffService>, period: Duration) {
    let mut changes = service.context.view.changes();
    let mut reported: BTreeSet<(PodUid, EventReason, String)> = BTreeSet::new();
    let mut next_verify = clock::mono() + clock::until_tick(period);
    loop {
        let wait = next_verify.saturating_sub(clock::mono());
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                tokio::time::sleep(GATHER).await;
            }
            () = tokio::time::sleep(wait) => {}
        }
        changes.borrow_and_update();
        if clock::mono() >= next_verify {
            next_verify = clock::mono() + clock::until_tick(period);
            verify_once(&service, &mut reported).await;
        }
        expire(&service).await;
    }
}

/// Drops the entries of pods that ended. A pod that the watch does not show, and has not shown deleted, is read live first.
async fn expire(service: &HandoffService) {
    if !service.is_ready() || !service.context.view.is_synced() || !service.context.view.is_watching() {
        return;
    }
    let absent: BTreeSet<PodKey> = {
        let state = service.state.lock().await;
        let Some(state) = state.as_ref() else { return };
        let mut seen = service.context.view.seen();
        seen.pods.forget_deleted(|uid| state.ledger.holds(uid));
        let ended = state
            .ledger
            .iter()
            .filter(|entry| seen.pods.by_uid(&entry.pod.uid).is_none_or(|pod| pod.phase.is_terminal()));
        let ended: Vec<_> = ended.collect();
        if ended.is_empty() {
            return;
        }
        let gone = ended
            .into_iter()
            .filter(|entry| seen.pods.by_uid(&entry.pod.uid).is_none() && !seen.pods.is_deleted(&entry.pod.uid));
        gone.map(|entry| entry.pod.key.clone()).collect()
    };
    for key in absent {
        match service.context.api.pod(&key).await {
            Ok(Some(pod)) if pod.node.as_deref() != Some(&*service.settings.node) => {}
            Ok(found) => {
                service.context.view.apply_live(&key, found);
            }
            Err(_) => return,
        }
    }
    let resources = service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await;
    let mut state = service.state.lock().await;
    let Some(state) = state.as_mut() else { return };
    let (dropped, adopted) = {
        let seen = service.context.view.seen();
        let adopted = adopt(&mut state.ledger, &service.settings.node, &seen.pods);
        state.passed.retain(|uid| seen.pods.by_uid(uid).is_some());
        state.may_repeat.retain(|uid| seen.pods.by_uid(uid).is_some());
        state.unusable.retain(|uid| seen.pods.by_uid(uid).is_some());
        (state.ledger.expire(&seen.pods, &resources), adopted)
    };
    for entry in &dropped {
        tracing::info!(pod = %entry.pod, container = &*entry.container, resource = &*entry.resource, "ended; its devices are free");
    }
    if adopted || !dropped.is_empty() {
        if let Err(error) = state.file.save(&state.ledger) {
            tracing::warn!(%error, "the ledger could not be written");
        }
        service.retain_answers(&state.ledger);
        service.context.metrics.ledger_entries.set(state.ledger.len() as i64);
        service.after.ledger_changed();
    }
}

async fn verify_once(service: &HandoffService, reported: &mut BTreeSet<(PodUid, EventReason, String)>) {
    let resources = service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await;
    let Some(listing) = resources.listing() else { return };
    let found: Vec<PodNotice> = {
        let mut state = service.state.lock().await;
        let Some(state) = state.as_mut() else { return };
        if service.take_in(state, &resources)
            && let Err(error) = state.file.save(&state.ledger)
        {
            tracing::warn!(%error, "the ledger could not be written");
        }
        let inventory = service.context.inventory.load();
        let seen = service.context.view.seen();
        verify(&service.settings.node, &seen.pods, listing, &state.ledger, &inventory)
    };
    let unserved: BTreeSet<PodUid> = found
        .iter()
        .filter(|notice| notice.reason == ADMITTED_WITHOUT_DEVICES)
        .map(|notice| notice.pod.uid.clone())
        .collect();
    if **service.unserved.load() != unserved {
        service.unserved.store(Arc::new(unserved));
        service.after.ledger_changed();
    }
    let now: BTreeSet<_> = found.iter().map(|n| (n.pod.uid.clone(), n.reason, n.note.clone())).collect();
    for notice in found {
        if !reported.contains(&(notice.pod.uid.clone(), notice.reason, notice.note.clone())) {
            tracing::warn!(pod = %notice.pod, reason = notice.reason.word(), note = notice.note, "divergence");
            service.context.metrics.divergences.get_or_create(&[("reason", notice.reason.word())]).inc();
            service.context.api.report(notice);
        }
    }
    *reported = now;
}
