//! Takes the lock away when its holder is served or will never be; off the RPC path, tried again until it is done.

use std::sync::Arc;
use std::time::Duration;

use super::metrics::Word;
use super::service::HandoffService;
use crate::cluster::node_lock::LockWrite;
use crate::contract::{LockRead, PodKey};
use crate::decide::lock::{LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
use crate::decide::pod::HandoffPod;
use crate::runtime::{Backoff, clock, words};

/// Between two live reads of a holder that the watch does not show.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// A bind follows its lock within milliseconds: so long an unknown holder is not asked for.
const BIND_FOLLOWS: Duration = Duration::from_secs(1);
/// Nothing to do and the watches run: only news matter.
const QUIET: Duration = Duration::from_mins(1);
/// A release that failed is tried again after this, and then ever more slowly.
const RETRY_MIN: Duration = Duration::from_millis(200);

/// What is known of a holder that is not among this node's pods.
struct Asked {
    raw: Box<str>,
    at: Duration,
    found: Option<HandoffPod>,
}

/// Runs until it is dropped. `pace` is the longest wait between two looks at the lock.
pub async fn run(service: Arc<HandoffService>, pace: Duration) {
    let mut changes = service.parts.view.changes();
    let mut backoff = Backoff::new(RETRY_MIN, pace);
    let mut asked: Option<Asked> = None;
    // The lock whose holder the watch does not show, and since when.
    let mut standing: Option<(Box<str>, Duration)> = None;
    let mut looked = clock::mono();
    loop {
        let wait = match step(&service, &mut asked, &mut standing, &mut looked, pace).await {
            Step::Rest => {
                backoff.succeed();
                let seen = service.parts.view.seen();
                let quiet = seen.pods_watching && seen.node_watching && seen.lock == LockRead::Free;
                if quiet { QUIET } else { pace }
            }
            Step::Soon => BIND_FOLLOWS,
            Step::AskAgain => {
                backoff.succeed();
                ASK_AGAIN.min(pace)
            }
            Step::Failed => {
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
    let mut changes = service.parts.view.changes();
    let mut was_watching = service.parts.view.is_watching();
    loop {
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let is_watching = service.parts.view.is_watching();
        if is_watching && !was_watching {
            return;
        }
        was_watching = is_watching;
    }
}

enum Step {
    Rest,
    Soon,
    AskAgain,
    Failed,
}

async fn step(
    service: &HandoffService,
    asked: &mut Option<Asked>,
    standing: &mut Option<(Box<str>, Duration)>,
    looked: &mut Duration,
    pace: Duration,
) -> Step {
    if !service.is_ready() || !service.parts.view.is_synced() {
        return Step::Rest;
    }
    // A watch that broke brings no news: look at the lock itself.
    if !service.parts.view.is_watching() && clock::mono().saturating_sub(*looked) >= pace {
        *looked = clock::mono();
        match service.parts.world.lock().await {
            Ok(lock) => service.parts.view.apply_lock(lock),
            Err(_) => return Step::Failed,
        }
    }
    let lock = service.parts.view.seen().lock.clone();
    match judge(service, &lock, asked.as_ref()).await {
        ReleaseIntent::Keep if asked.as_ref().is_some_and(|asked| Some(&*asked.raw) == lock.raw()) => Step::AskAgain,
        ReleaseIntent::Keep => Step::Rest,
        ReleaseIntent::ReadHolder(key) => {
            let now = clock::mono();
            let raw = lock.raw().unwrap_or_default();
            if standing.as_ref().is_none_or(|(value, _)| **value != *raw) {
                *standing = Some((raw.into(), now));
            }
            let since = standing.as_ref().map_or(now, |(_, since)| *since);
            if now.saturating_sub(since) < BIND_FOLLOWS {
                return Step::Soon;
            }
            ask(service, &lock, &key, asked).await
        }
        ReleaseIntent::Release { raw, reason } => release(service, &lock, &raw, reason).await,
    }
}

async fn judge(service: &HandoffService, lock: &LockRead, asked: Option<&Asked>) -> ReleaseIntent {
    let books = service.books.lock().await;
    let Some(books) = books.as_ref() else { return ReleaseIntent::Keep };
    let fresh =
        asked.filter(|asked| Some(&*asked.raw) == lock.raw() && clock::mono().saturating_sub(asked.at) < ASK_AGAIN);
    let live = match fresh {
        None => LiveHolder::NotRead,
        Some(Asked { found: None, .. }) => LiveHolder::NotFound,
        Some(Asked { found: Some(pod), .. }) => LiveHolder::Found(pod),
    };
    let inventory = service.parts.inventory.load();
    let seen = service.parts.view.seen();
    let progress = |pod: &HandoffPod| books.ledger.progress(pod, &inventory, &books.unusable);
    judge_release(lock, &service.settings.node, seen.pods.iter(), live, progress, clock::wall())
}

/// Reads the holder; whether it is gone is judged at the next step.
async fn ask(service: &HandoffService, lock: &LockRead, key: &PodKey, asked: &mut Option<Asked>) -> Step {
    let found = match service.parts.world.pod(key).await {
        Ok(found) => found,
        Err(error) => {
            tracing::debug!(error = words(&error), "the lock's holder could not be read");
            return Step::Failed;
        }
    };
    *asked = Some(Asked { raw: lock.raw().unwrap_or_default().into(), at: clock::mono(), found });
    match judge(service, lock, asked.as_ref()).await {
        ReleaseIntent::Release { raw, reason } => release(service, lock, &raw, reason).await,
        _ => Step::AskAgain,
    }
}

async fn release(service: &HandoffService, lock: &LockRead, raw: &str, reason: ReleaseReason) -> Step {
    match service.parts.world.release(raw).await {
        Ok(LockWrite::Done) => {
            let metrics = &service.parts.metrics;
            metrics.released.get_or_create(&Word { reason: reason.word() }).inc();
            if let LockRead::Held { value, .. } = lock {
                metrics.lock_held_seconds.observe(clock::wall().duration_since(value.time).as_secs_f64());
            }
            tracing::info!(lock = raw, reason = %reason, "node lock released");
            // Unless the watch has already brought a newer value.
            let mut seen = service.parts.view.seen();
            if seen.lock == *lock {
                seen.lock = LockRead::Free;
            }
            Step::Rest
        }
        Ok(LockWrite::Contended(now)) => {
            service.parts.view.apply_lock(now);
            Step::Rest
        }
        Err(error) => {
            tracing::warn!(error = words(&error), "the node lock could not be released; trying again");
            Step::Failed
        }
    }
}
