//! Opens the ledger at start; then settles it, drops what ended, and compares it with what the kubelet says.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::stored_answers;
use super::ledger_file::{LedgerFile, LoadedLedger, StateDir};
use super::service::{HandoffService, HandoffState};
use baton_contract::{PodKey, PodUid};
use baton_decide::handoff::leaving::add_leaving;
use baton_decide::handoff::rebuild::rebuild;
use baton_decide::handoff::{CgroupLook, LastSeen, Leaving, Ledger, PodListing, PodResources};
use baton_decide::node::following::{GATHER, LOOK_SELDOM};
use baton_decide::node::{CompareEffect, Comparing, FollowEffect, FollowReport, Following, HandOff};
use baton_runtime::{Backoff, clock};

/// Time for PodResources outside of calls.
const LIST_BUDGET: Duration = Duration::from_secs(2);
/// The kubelet is looked for again after this at first.
const KUBELET_AGAIN: Duration = Duration::from_millis(200);
/// A kubelet that does not offer PodResources by then has none. Whatever it shows later is learned before the next grant.
const KUBELET_COMES: Duration = Duration::from_secs(10);
impl HandoffService {
    /// Makes the ledger known: from its file in `state`, or from PodResources and the pods' annotations when that is lost,
    /// torn or of another boot. Then calls are served.
    pub async fn open(&self, state: StateDir, boot_id: &str) {
        match self.context.cgroups.seen_at() {
            Ok(own) => tracing::info!(own = %own.display(), "the cgroups of pods are seen"),
            Err(why) => tracing::warn!(
                why,
                "the cgroups of pods are not seen: a pod that is deleted by force keeps its devices for a minute beyond its grace period"
            ),
        }
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

    /// Waits for the pods and for the kubelet's PodResources. A kubelet without PodResources shows when it calls: then the pods'
    /// annotations alone must do.
    async fn rebuild(&self) -> Ledger {
        // Before anything is asked of the kubelet: a list makes it forget the pods that have gone, and the next thing that it hears of
        // this daemon makes it write its checkpoint without them, although their processes may run on.
        let mut answers = stored_answers(&self.settings.kubelet_dir);
        self.context.view.synced_before(Duration::MAX).await;
        let mut backoff = Backoff::new(KUBELET_AGAIN, LIST_BUDGET);
        let mut has_called = false;
        let give_up = clock::mono() + KUBELET_COMES;
        let (pods, mut listing) = loop {
            // Before the list: one that ends and goes meanwhile is listed as a pod that is known.
            let pods = self.context.view.seen().pods.clone();
            match self.context.pod_resources.list(clock::mono() + LIST_BUDGET).await {
                PodResources::Listed(listing) => break (pods, listing),
                PodResources::Missing if has_called || clock::mono() >= give_up => {
                    tracing::warn!(
                        "the kubelet has no PodResources: devices in use are known by the pods' annotations alone"
                    );
                    break (pods, PodListing::default());
                }
                PodResources::Missing | PodResources::Silent => {}
            }
            tokio::select! {
                () = self.call_waits.notified() => has_called = true,
                () = tokio::time::sleep(backoff.fail_randomly()) => {}
            }
        };
        // The kubelet may have started later.
        answers.extend(stored_answers(&self.settings.kubelet_dir));
        listing.answers = answers;
        let inventory = self.context.inventory.load();
        let mut ledger = rebuild(&self.settings.node, &pods, &listing, &inventory);
        let now = clock::now();
        let state = Leaving { at: now.wall, since: now.mono, last: LastSeen::Running };
        // What cannot be seen is not known to have gone.
        let occupied = |uid: &PodUid| !matches!(self.context.cgroups.look(uid), CgroupLook::Empty | CgroupLook::Absent);
        add_leaving(&mut ledger, &pods, &listing.answers, &inventory, occupied, state);
        ledger
    }
}

/// Runs until it is dropped: follows every change of the pods, and the processes of those that have left; verifies every `period`.
pub async fn run(service: Arc<HandoffService>, period: Duration) {
    let mut changes = service.context.view.changes();
    let mut comparing = Comparing::default();
    let mut next_verify = clock::mono() + clock::until_tick(period);
    // Once after the start: the ledger may have pods that have left.
    let mut next_look = Some(clock::mono() + GATHER);
    loop {
        let next = next_look.map_or(next_verify, |look| look.min(next_verify));
        let wait = next.saturating_sub(clock::mono());
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
            compare(&service, &mut comparing).await;
        }
        next_look = follow(&service).await.map(|pause| clock::mono() + pause);
    }
}

/// One round of following. Returns when to look again, while a pod is leaving.
async fn follow(service: &HandoffService) -> Option<Duration> {
    let mut following = Following::default();
    let mut report = None;
    loop {
        let mut guard = service.state.lock().await;
        // Looks and what follows from them: no call is served between them.
        let asks = loop {
            let of = guard.as_mut().map(|state| &mut state.hand_off);
            let effects = service.with_facts(|facts| match (of, report.take()) {
                (Some(of), Some(report)) => following.report(report, of, facts),
                (of, _) => following.begin(of, facts),
            });
            match perform(service, guard.as_mut(), effects) {
                FollowNext::Report(looks) => report = Some(looks),
                FollowNext::Ask(asks) => break asks,
                FollowNext::Rest(pause) => return pause,
            }
        };
        drop(guard);
        report = Some(match asks {
            FollowAsks::Pods(keys) => FollowReport::Read(read(service, keys).await),
            FollowAsks::Kubelet => {
                FollowReport::Listed(service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await)
            }
        });
    }
}

/// What others are asked for.
enum FollowAsks {
    Pods(BTreeSet<PodKey>),
    Kubelet,
}

enum FollowNext {
    Report(FollowReport),
    Ask(FollowAsks),
    Rest(Option<Duration>),
}

fn perform(service: &HandoffService, state: Option<&mut HandoffState>, effects: Vec<FollowEffect>) -> FollowNext {
    let Some(HandoffState { hand_off, file }) = state else { return FollowNext::Rest(Some(LOOK_SELDOM)) };
    for effect in effects {
        match effect {
            FollowEffect::ForgetGone => {
                service.context.view.seen().pods.forget_gone(|uid| hand_off.ledger().holds(uid));
            }
            FollowEffect::Look(uids) => {
                return FollowNext::Report(FollowReport::Looked(service.looks(uids)));
            }
            FollowEffect::Read(keys) => return FollowNext::Ask(FollowAsks::Pods(keys)),
            FollowEffect::List => return FollowNext::Ask(FollowAsks::Kubelet),
            FollowEffect::Free(pod, hold) => tracing::info!(%pod, ?hold, "left; its devices are free"),
            FollowEffect::Notice(notice) => {
                tracing::warn!(pod = %notice.pod, note = notice.note, "devices are freed unseen");
                service.context.api.report(notice);
            }
            FollowEffect::Write => {
                write(file, hand_off);
                service.retain_answers(hand_off.ledger());
                service.context.metrics.ledger_entries.set(hand_off.ledger().len() as i64);
            }
            FollowEffect::Publish => service.after.ledger_changed(),
            FollowEffect::Rest(pause) => return FollowNext::Rest(pause),
        }
    }
    FollowNext::Rest(Some(LOOK_SELDOM))
}

fn write(file: &mut LedgerFile, hand_off: &HandOff) {
    if let Err(error) = file.save(hand_off.ledger()) {
        tracing::warn!(%error, "the ledger could not be written");
    }
}

/// Reads pods one by one; `false` where the API server does not answer.
async fn read(service: &HandoffService, keys: BTreeSet<PodKey>) -> bool {
    for key in keys {
        match service.context.api.pod(&key).await {
            Ok(Some(pod)) if pod.node.as_deref() != Some(&*service.settings.node) => {}
            Ok(found) => drop(service.context.view.apply_live(&key, found)),
            Err(_) => return false,
        }
    }
    true
}

async fn compare(service: &HandoffService, comparing: &mut Comparing) {
    let resources = service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await;
    let mut state = service.state.lock().await;
    let Some(HandoffState { hand_off, file }) = state.as_mut() else { return };
    let effects = service.with_facts(|facts| comparing.listed(&resources, hand_off, facts));
    if **service.unserved.load() != *comparing.unserved() {
        service.unserved.store(Arc::new(comparing.unserved().clone()));
    }
    for effect in effects {
        match effect {
            CompareEffect::Write => write(file, hand_off),
            CompareEffect::Publish => service.after.ledger_changed(),
            CompareEffect::Notice(notice) => {
                tracing::warn!(pod = %notice.pod, reason = notice.reason.word(), note = notice.note, "divergence");
                service.context.metrics.divergences.get_or_create(&[("reason", notice.reason.word())]).inc();
                service.context.api.report(notice);
            }
        }
    }
}
