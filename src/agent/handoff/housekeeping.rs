//! Opens the ledger at start; then settles it, drops what ended, and compares it with what the kubelet says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::stored_answers;
use super::ledger_file::{LedgerFile, LoadedLedger, StateDir};
use super::service::{HandoffService, HandoffState};
use baton_contract::{EventReason, PodKey, PodRef, PodUid};
use baton_decide::handoff::leaving::{add_leaving, vacated};
use baton_decide::handoff::rebuild::{adopt, rebuild};
use baton_decide::handoff::verify::{ADMITTED_WITHOUT_DEVICES, verify};
use baton_decide::handoff::{
    CgroupLook, Hold, LastSeen, Leaving, Ledger, LedgerEntry, PodListing, PodNotice, PodResources,
};
use baton_decide::pod::HandoffPod;
use baton_runtime::{Backoff, clock};

/// Time for PodResources outside of calls.
const LIST_BUDGET: Duration = Duration::from_secs(2);
/// The kubelet is looked for again after this at first.
const KUBELET_AGAIN: Duration = Duration::from_millis(200);
/// A kubelet that does not offer PodResources by then has none. Whatever it shows later is learned before the next grant.
const KUBELET_COMES: Duration = Duration::from_secs(10);
/// Changes are gathered for this long before the ledger is looked through.
const GATHER: Duration = Duration::from_millis(200);
/// Between two looks at pods that have left: most have gone within the first seconds.
const LOOK_OFTEN: Duration = Duration::from_millis(200);
const LOOK_SELDOM: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(10);

/// What is said of devices that are given back without proof.
const UNSEEN: &str = "the pod's devices are free for other pods: its grace period and a minute have passed since it left. Whether its \
    processes have ended is not known, because its cgroup is not seen on the node (baton doctor, pod-cgroups)";

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
        self.context.view.synced_before(Duration::MAX).await;
        let mut backoff = Backoff::new(KUBELET_AGAIN, LIST_BUDGET);
        let mut has_called = false;
        let give_up = clock::mono() + KUBELET_COMES;
        let (pods, mut listing) = loop {
            // Before the list: one that ends and goes meanwhile is listed as a pod that is known.
            let pods = self.context.view.seen().pods.clone();
            match self.context.pod_resources.list(clock::mono() + LIST_BUDGET).await {
                PodResources::Listed(listing) => break (pods, listing),
                PodResources::Unavailable if has_called || clock::mono() >= give_up => {
                    tracing::warn!(
                        "the kubelet has no PodResources: devices in use are known by the pods' annotations alone"
                    );
                    break (pods, PodListing::default());
                }
                PodResources::Unavailable | PodResources::Throttled => {}
            }
            tokio::select! {
                () = self.call_waits.notified() => has_called = true,
                () = tokio::time::sleep(backoff.fail_randomly()) => {}
            }
        };
        listing.answers = stored_answers(&self.settings.kubelet_dir);
        // After the pods: the lock of one that is known to be bound was set before.
        let lock = self.context.api.lock().await.ok();
        let inventory = self.context.inventory.load();
        let mut ledger = rebuild(&self.settings.node, &pods, &listing, &inventory, lock.as_ref());
        let now = clock::now();
        let state = Leaving { at: now.wall, since: now.mono, last: LastSeen::Running };
        // What cannot be seen is not known to have gone.
        let occupied =
            |uid: &PodUid| matches!(self.context.cgroups.look(uid), CgroupLook::Occupied | CgroupLook::Unknown);
        add_leaving(&mut ledger, &pods, &listing.answers, &inventory, occupied, state);
        ledger
    }
}

/// Runs until it is dropped: follows every change of the pods, and the processes of those that have left; verifies every `period`.
pub async fn run(service: Arc<HandoffService>, period: Duration) {
    let mut changes = service.context.view.changes();
    let mut reported: BTreeSet<(PodUid, EventReason, String)> = BTreeSet::new();
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
            verify_once(&service, &mut reported).await;
        }
        next_look = follow(&service).await.map(|pause| clock::mono() + pause);
    }
}

/// Lets entries of pods that have left go once their processes have. A pod that the watch does not show, and has not shown deleted, is
/// read live first. Returns when to look again, while a pod is leaving.
async fn follow(service: &HandoffService) -> Option<Duration> {
    if !service.is_ready() || !service.context.view.is_synced() || !service.context.view.is_watching() {
        return Some(LOOK_SELDOM);
    }
    let (mut changed, asks, absent) = {
        let mut state = service.state.lock().await;
        let state = state.as_mut()?;
        let changed = look(service, state);
        let mut seen = service.context.view.seen();
        seen.pods.forget_gone(|uid| state.hand_off.ledger().holds(uid));
        let new = state
            .hand_off
            .ledger()
            .iter()
            .filter(|entry| seen.pods.has_left(&entry.pod.uid) != entry.leaving().is_some());
        let new: Vec<_> = new.collect();
        let gone = new
            .iter()
            .filter(|entry| seen.pods.by_uid(&entry.pod.uid).is_none() && !seen.pods.is_deleted(&entry.pod.uid));
        let hand_off = &state.hand_off;
        let vacated = vacated(hand_off.ledger(), hand_off.processes(), clock::mono()).next().is_some();
        (changed, !new.is_empty() || vacated, gone.map(|entry| entry.pod.key.clone()).collect::<BTreeSet<PodKey>>())
    };
    for key in absent {
        match service.context.api.pod(&key).await {
            Ok(Some(pod)) if pod.node.as_deref() != Some(&*service.settings.node) => {}
            Ok(found) => {
                service.context.view.apply_live(&key, found);
            }
            Err(_) => return Some(LOOK_SELDOM),
        }
    }
    let resources =
        if asks { Some(service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await) } else { None };
    let mut state = service.state.lock().await;
    let state = state.as_mut()?;
    // Reads and list took their time.
    let now = clock::now();
    changed |= {
        let seen = service.context.view.seen();
        state.hand_off.forget_marks(&seen);
        let (ledger, _) = state.hand_off.parts();
        let adopted = adopt(ledger, &service.settings.node, &seen.pods);
        let moved = resources.as_ref().is_some_and(|of| ledger.follow(&seen.pods, of, (now.mono, now.wall)));
        adopted || moved
    };
    changed |= look(service, state);
    // A kubelet that does not answer may want a pod again.
    if resources.is_some_and(|resources| resources != PodResources::Throttled) {
        changed |= drop_vacated(service, state, now.mono);
    }
    if changed {
        if let Err(error) = state.file.save(state.hand_off.ledger()) {
            tracing::warn!(%error, "the ledger could not be written");
        }
        service.retain_answers(state.hand_off.ledger());
        service.context.metrics.ledger_entries.set(state.hand_off.ledger().len() as i64);
        service.after.ledger_changed();
    }
    let (ledger, processes) = state.hand_off.parts();
    processes.retain(|uid| ledger.holds(uid));
    let latest = state.hand_off.ledger().iter().filter_map(|entry| Some(entry.leaving()?.since)).max()?;
    Some(if now.mono < latest + SOON { LOOK_OFTEN } else { LOOK_SELDOM })
}

/// Drops the entries whose pods have left and whose processes have gone. `true` when there was one.
fn drop_vacated(service: &HandoffService, state: &mut HandoffState, now: Duration) -> bool {
    let (ledger, processes) = state.hand_off.parts();
    let vacated = vacated(ledger, processes, now);
    let vacated: Vec<_> = vacated.map(|(entry, hold)| (entry.key(), entry.pod.clone(), hold)).collect();
    for (key, pod, hold) in &vacated {
        tracing::info!(%pod, container = &*key.container, resource = &*key.resource, ?hold, "left; its devices are free");
        ledger.forget(key);
    }
    let unseen: BTreeSet<&PodRef> =
        vacated.iter().filter(|(.., hold)| *hold == Hold::Unseen).map(|(_, pod, _)| pod).collect();
    for pod in unseen {
        tracing::warn!(%pod, "{UNSEEN}");
        service.context.api.report(PodNotice::new(pod.clone(), EventReason::DevicesFreedUnseen, UNSEEN.to_owned()));
    }
    !vacated.is_empty()
}

/// Looks at the cgroups of pods that have left, and of each other pod until its processes are found: what is never found is not known to
/// be gone. `true` when the ledger changed.
fn look(service: &HandoffService, state: &mut HandoffState) -> bool {
    let (ledger, processes) = state.hand_off.parts();
    let pods: BTreeMap<PodUid, bool> = {
        let seen = service.context.view.seen();
        let runs = |uid: &PodUid| seen.pods.by_uid(uid).is_some_and(HandoffPod::any_runs);
        let is_due = |entry: &&LedgerEntry| {
            let uid = &entry.pod.uid;
            entry.leaving().is_some() || seen.pods.has_left(uid) || !processes.is_found(uid)
        };
        ledger.iter().filter(is_due).map(|entry| (entry.pod.uid.clone(), runs(&entry.pod.uid))).collect()
    };
    let now = clock::mono();
    let mut changed = false;
    for (uid, runs) in pods {
        let look = service.context.cgroups.look(&uid);
        processes.saw(&uid, look, runs, now);
        changed |= look == CgroupLook::Occupied && ledger.runs(&uid);
    }
    changed
}

async fn verify_once(service: &HandoffService, reported: &mut BTreeSet<(PodUid, EventReason, String)>) {
    let resources = service.context.pod_resources.list(clock::mono() + LIST_BUDGET).await;
    let Some(listing) = resources.listing() else { return };
    let found: Vec<PodNotice> = {
        let mut state = service.state.lock().await;
        let Some(state) = state.as_mut() else { return };
        let taken = service.with_facts(|facts| state.hand_off.take_in(&resources, facts));
        if taken.changed {
            service.after.ledger_changed();
            if let Err(error) = state.file.save(state.hand_off.ledger()) {
                tracing::warn!(%error, "the ledger could not be written");
            }
        }
        let inventory = service.context.inventory.load();
        let seen = service.context.view.seen();
        verify(&service.settings.node, &seen.pods, listing, state.hand_off.ledger(), &inventory)
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
