//! Takes the lock away when its holder is served or will never be, as `decide::node` decides; off the RPC path, tried again until it is
//! done.

use std::sync::Arc;
use std::time::Duration;

use super::service::HandoffService;
use baton_cluster::node_lock::LockWrite;
use baton_contract::{LockRead, PodKey};
use baton_decide::lock::{LockAge, ReleaseReason};
use baton_decide::node::unlocking::RETRY_MIN;
use baton_decide::node::{Facts, HandOff, UnlockEffect, UnlockReport, Unlocking};
use baton_decide::pod::HandoffPod;
use baton_runtime::{Backoff, clock, words};

/// Runs until it is dropped. `pace` is the longest wait between two looks at the lock.
pub async fn run(service: Arc<HandoffService>, pace: Duration) {
    let mut changes = service.context.view.changes();
    let mut backoff = Backoff::new(RETRY_MIN, pace);
    let mut unlocking = Unlocking::new(pace, clock::mono());
    loop {
        let Some(wait) = turn(&service, &mut unlocking).await else {
            tokio::select! {
                () = tokio::time::sleep(backoff.fail_randomly()) => {}
                () = resumed(&service) => {}
            }
            continue;
        };
        backoff.succeed();
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

/// One look at the lock, and what follows from it. Returns when to look again; `None` after a failure.
async fn turn(service: &HandoffService, unlocking: &mut Unlocking) -> Option<Duration> {
    let mut effects = step(service, |of, facts| unlocking.look(of, facts)).await;
    loop {
        let mut report = None;
        for effect in std::mem::take(&mut effects) {
            match effect {
                UnlockEffect::Say(lock) => drop(service.unreleased.send_replace(Some(lock))),
                UnlockEffect::ReadLock => report = Some(UnlockReport::LockRead { read: read_lock(service).await }),
                UnlockEffect::ReadHolder(key) => {
                    report = Some(UnlockReport::HolderRead(read_holder(service, &key).await));
                }
                UnlockEffect::Release { raw, reason } => {
                    report = Some(UnlockReport::Released(release(service, &raw, reason).await));
                }
                UnlockEffect::Rest(wait) => return Some(wait),
                UnlockEffect::RestAfterFailure => return None,
            }
        }
        let report = report?;
        effects = step(service, |of, facts| unlocking.report(report, of, facts)).await;
    }
}

/// Between two calls: one in hand may serve the holder.
async fn step<T>(service: &HandoffService, look: impl FnOnce(Option<&HandOff>, &Facts<'_>) -> T) -> T {
    let state = service.state.lock().await;
    service.with_facts(|facts| look(state.as_ref().map(|state| &state.hand_off), facts))
}

async fn read_lock(service: &HandoffService) -> bool {
    let read = service.context.api.lock().await;
    read.map(|lock| service.context.view.apply_lock(lock)).is_ok()
}

async fn read_holder(service: &HandoffService, key: &PodKey) -> Option<Option<Box<HandoffPod>>> {
    let found = service.context.api.pod(key).await.map(|pod| pod.map(Box::new));
    found.inspect_err(|error| tracing::debug!(error = words(error), "the lock's holder could not be read")).ok()
}

/// `false` where the API server did not answer.
async fn release(service: &HandoffService, raw: &str, reason: ReleaseReason) -> bool {
    match service.context.api.release(raw).await {
        Ok(LockWrite::Done) => {
            let metrics = &service.context.metrics;
            metrics.released.get_or_create(&[("reason", reason.word())]).inc();
            if let LockRead::Held { value, .. } = LockRead::parse(Some(raw))
                && let Some(age) = LockAge::of(&value, clock::wall()).known()
            {
                metrics.lock_held_seconds.observe(age.as_secs_f64());
            }
            tracing::info!(lock = raw, reason = %reason, "node lock released");
            service.context.view.seen().lock_released(raw);
            true
        }
        Ok(LockWrite::Contended(now)) => {
            service.context.view.apply_lock(now);
            true
        }
        Err(error) => {
            tracing::warn!(error = words(&error), "the node lock could not be released; trying again");
            false
        }
    }
}
