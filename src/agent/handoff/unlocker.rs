//! Takes the lock away when its holder is served or will never be; off the RPC path, tried again until it is done.

use std::sync::Arc;
use std::time::Duration;

use super::service::{HandoffService, ServedLock};
use baton_cluster::node_lock::LockWrite;
use baton_contract::{LockRead, PodKey};
use baton_decide::lock::{LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
use baton_decide::pod::HandoffPod;
use baton_runtime::{Backoff, clock, words};

/// Between two live reads of a holder that the watch does not show.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// A bind follows its lock within milliseconds: so long an unknown holder is not asked for.
const BIND_FOLLOWS: Duration = Duration::from_secs(1);
/// Nothing to do and the watches run: only news matter.
const QUIET: Duration = Duration::from_mins(1);
/// A release that failed is tried again after this, and then ever more slowly.
const RETRY_MIN: Duration = Duration::from_millis(200);

/// What is known of a holder that is not among this node's pods.
struct HolderRead {
    raw: Box<str>,
    at: Duration,
    found: Option<HandoffPod>,
}

/// Runs until it is dropped. `pace` is the longest wait between two looks at the lock.
pub async fn run(service: Arc<HandoffService>, pace: Duration) {
    let mut changes = service.context.view.changes();
    let mut backoff = Backoff::new(RETRY_MIN, pace);
    let mut asked: Option<HolderRead> = None;
    // The lock whose holder the watch does not show, and since when.
    let mut states: Option<(Box<str>, Duration)> = None;
    let mut looked = clock::mono();
    loop {
        let wait = match step(&service, &mut asked, &mut states, &mut looked, pace).await {
            NextStep::Rest => {
                backoff.succeed();
                let seen = service.context.view.seen();
                let quiet = seen.pods_watching && seen.node_watching && seen.lock == LockRead::Free;
                if quiet { QUIET } else { pace }
            }
            NextStep::Soon => BIND_FOLLOWS,
            NextStep::AskAgain => {
                backoff.succeed();
                ASK_AGAIN.min(pace)
            }
            NextStep::Failed => {
                tokio::select! {
                    () = tokio::time::sleep(backoff.fail_randomly()) => {}
                    () = resumed(&service) => {}
                }
                continue;
            }
        };
        tokio::select! {
            () = service.after.until_lock_matters() => {}
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Resolves when a watch that was broken runs again: the API server is back.
async fn resumed(service: &HandoffService) {
    let mut changes = service.context.view.changes();
    let mut was_watching = service.context.view.is_watching();
    loop {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let is_watching = service.context.view.is_watching();
        if is_watching && !was_watching {
            return;
        }
        was_watching = is_watching;
    }
}

enum NextStep {
    Rest,
    Soon,
    AskAgain,
    Failed,
}

async fn step(
    service: &HandoffService,
    asked: &mut Option<HolderRead>,
    states: &mut Option<(Box<str>, Duration)>,
    looked: &mut Duration,
    pace: Duration,
) -> NextStep {
    if !service.is_ready() || !service.context.view.is_synced() {
        return NextStep::Rest;
    }
    // A watch that broke brings no news: look at the lock itself.
    if !service.context.view.is_watching() && clock::mono().saturating_sub(*looked) >= pace {
        *looked = clock::mono();
        match service.context.api.lock().await {
            Ok(lock) => service.context.view.apply_lock(lock),
            Err(_) => return NextStep::Failed,
        }
    }
    let lock = service.context.view.seen().lock.clone();
    let intent = judge(service, &lock, asked.as_ref()).await;
    match &intent {
        // A daemon that starts may have tried before: a scheduler must not take the holder for unserved until the first try is over.
        ReleaseIntent::Release { raw, reason: ReleaseReason::Served } if service.unreleased.borrow().is_none() => {
            service.say_served_lock(ServedLock::Stands(raw.clone()));
        }
        ReleaseIntent::Release { reason: ReleaseReason::Served, .. } => {}
        _ => service.say_served_lock(ServedLock::Released),
    }
    match intent {
        ReleaseIntent::Keep if asked.as_ref().is_some_and(|asked| Some(&*asked.raw) == lock.raw()) => {
            NextStep::AskAgain
        }
        ReleaseIntent::Keep => NextStep::Rest,
        ReleaseIntent::ReadHolder(key) => {
            let now = clock::mono();
            let raw = lock.raw().unwrap_or_default();
            if states.as_ref().is_none_or(|(value, _)| **value != *raw) {
                *states = Some((raw.into(), now));
            }
            let since = states.as_ref().map_or(now, |(_, since)| *since);
            if now.saturating_sub(since) < BIND_FOLLOWS {
                return NextStep::Soon;
            }
            ask(service, &lock, &key, asked).await
        }
        ReleaseIntent::Release { raw, reason } => release(service, &lock, &raw, reason).await,
    }
}

async fn judge(service: &HandoffService, lock: &LockRead, asked: Option<&HolderRead>) -> ReleaseIntent {
    let state = service.state.lock().await;
    let Some(state) = state.as_ref() else { return ReleaseIntent::Keep };
    let fresh =
        asked.filter(|asked| Some(&*asked.raw) == lock.raw() && clock::mono().saturating_sub(asked.at) < ASK_AGAIN);
    let live = match fresh {
        None => LiveHolder::NotRead,
        Some(HolderRead { found: None, .. }) => LiveHolder::NotFound,
        Some(HolderRead { found: Some(pod), .. }) => LiveHolder::Found(pod),
    };
    let inventory = service.context.inventory.load();
    let seen = service.context.view.seen();
    let progress =
        |pod: &HandoffPod| state.hand_off.ledger().progress(pod, &inventory, &state.hand_off.marks().unusable);
    judge_release(lock, &service.settings.node, seen.pods.iter(), live, progress, clock::wall())
}

/// Reads the holder; whether it is gone is judged at the next step.
async fn ask(service: &HandoffService, lock: &LockRead, key: &PodKey, asked: &mut Option<HolderRead>) -> NextStep {
    let found = match service.context.api.pod(key).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(error = words(&error), "the lock's holder could not be read");
            return NextStep::Failed;
        }
    };
    *asked = Some(HolderRead { raw: lock.raw().unwrap_or_default().into(), at: clock::mono(), found });
    match judge(service, lock, asked.as_ref()).await {
        ReleaseIntent::Release { raw, reason } => release(service, lock, &raw, reason).await,
        _ => NextStep::AskAgain,
    }
}

async fn release(service: &HandoffService, lock: &LockRead, raw: &str, reason: ReleaseReason) -> NextStep {
    match service.context.api.release(raw).await {
        Ok(LockWrite::Done) => {
            let metrics = &service.context.metrics;
            metrics.released.get_or_create(&[("reason", reason.word())]).inc();
            if let LockRead::Held { value, .. } = lock {
                metrics.lock_held_seconds.observe(clock::wall().duration_since(value.time).as_secs_f64());
            }
            tracing::info!(lock = raw, reason = %reason, "node lock released");
            service.say_served_lock(ServedLock::Released);
            // Unless the watch has already brought a newer value.
            let mut seen = service.context.view.seen();
            if seen.lock == *lock {
                seen.lock = LockRead::Free;
            }
            NextStep::Rest
        }
        Ok(LockWrite::Contended(now)) => {
            service.context.view.apply_lock(now);
            NextStep::Rest
        }
        Err(error) => {
            tracing::warn!(error = words(&error), "the node lock could not be released; trying again");
            if reason == ReleaseReason::Served {
                service.say_served_lock(ServedLock::Stands(raw.into()));
            }
            NextStep::Failed
        }
    }
}
