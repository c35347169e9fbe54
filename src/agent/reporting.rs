//! Reports to the cluster: Device object and labels when they change, the Lease every half minute and at once when what is served
//! changes. The API server may be away for as long as it likes; nothing else waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::kubelet::{PluginState, PluginStates};
use baton_cluster::agent_lease::AgentLease;
use baton_cluster::inventory::{InventoryWriter, Published};
use baton_cluster::restored::{LeaseError, Restored};
use baton_contract::{AgentStatus, Identity, LockWord};
use baton_decide::node::HandoffStatus;
use baton_runtime::{Backoff, clock, words};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// Publishes the inventory: now, on every change, and when another writer changed it (compared every `period`, on the tick that
/// all of this period share).
pub async fn inventory(mut writer: InventoryWriter, mut now: watch::Receiver<Arc<Published>>, period: Duration) {
    let mut backoff = BACKOFF;
    loop {
        let wanted = now.borrow_and_update().clone();
        let pause = match writer.publish(&wanted).await {
            Ok(written) => {
                backoff.succeed();
                if written.device || written.labels {
                    tracing::info!(devices = wanted.devices.len(), ?written, "inventory published");
                }
                clock::until_tick(period)
            }
            Err(error) => {
                let pause = backoff.fail_randomly();
                log(&error, backoff.failures(), "the inventory cannot be published; trying again");
                pause
            }
        };
        if let Ok(Err(_)) = tokio::time::timeout(pause, now.changed()).await {
            return;
        }
    }
}

/// Renews the Lease: every `period`, and at once when a registration, the way of identification or the hand-off's status changes. When the
/// registrations have ended, it says a last time that there is none, and that it has ended. Ends earlier when the API server's store was restored.
pub async fn lease(
    mut lease: AgentLease,
    mut states: watch::Receiver<PluginStates>,
    mut identity: watch::Receiver<Identity>,
    mut handoff: watch::Receiver<Option<HandoffStatus>>,
    (lockless, lock, pod_metrics): (Vec<String>, LockWord, bool),
    period: Duration,
) -> Result<(), Restored> {
    let mut backoff = BACKOFF;
    let own = (&*lockless, &lock, pod_metrics);
    loop {
        let held = handoff.borrow_and_update().clone();
        let status = status(&states.borrow_and_update(), *identity.borrow_and_update(), own, held);
        let pause = match lease.renew(&status, clock::wall()).await {
            Ok(()) => {
                backoff.succeed();
                clock::until_tick(period)
            }
            Err(LeaseError::Restored(restored)) => return Err(restored),
            Err(LeaseError::Api(error)) => {
                let pause = backoff.fail_randomly().min(period);
                log(&error, backoff.failures(), "the node daemon's Lease cannot be renewed; trying again");
                pause
            }
        };
        let changed = async {
            loop {
                let ended = tokio::select! {
                    changed = states.changed() => changed.is_err(),
                    changed = identity.changed() => changed.is_err(),
                    changed = handoff.changed() => changed.is_err(),
                };
                let held = handoff.borrow().clone();
                // Reasons for waiting change often; the Lease says only what is registered.
                if ended || self::status(&states.borrow(), *identity.borrow(), own, held) != status {
                    return ended;
                }
            }
        };
        if let Ok(true) = tokio::time::timeout(pause, changed).await {
            break;
        }
    }
    let held = handoff.borrow().clone();
    let status = AgentStatus { ended: true, ..status(&PluginStates::new(), *identity.borrow(), own, held) };
    if let Err(LeaseError::Api(error)) = lease.renew(&status, clock::wall()).await {
        log(&error, 1, "the Lease still names what was registered");
    }
    Ok(())
}

fn log(error: &kube::Error, failures: u32, what: &str) {
    // The first is news; the rest is the same outage.
    if failures == 1 {
        tracing::warn!(error = words(error), "{what}");
    } else {
        tracing::debug!(error = words(error), failures, "{what}");
    }
}

/// What the Lease says. Pods of the schedulers in `lockless` are served without a node lock.
pub fn status(
    states: &PluginStates,
    identity: Identity,
    (lockless, lock, pod_metrics): (&[String], &LockWord, bool),
    handoff: Option<HandoffStatus>,
) -> AgentStatus {
    // As long as it is not known what pods hold, the node takes no device pods.
    let known = handoff.is_some();
    let registered = states.iter().filter(|(_, state)| known && **state == PluginState::Registered);
    AgentStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        registered: registered.map(|(name, _)| name.to_string()).collect(),
        identity,
        lockless: Some(lockless.to_vec()),
        lock: Some(lock.clone()),
        too_many_exceptions: false,
        ended: false,
        pod_metrics,
        unreleased: handoff.as_ref().and_then(|of| of.unreleased.clone()),
        leaving: handoff.as_ref().map(|of| of.leaving.clone()).unwrap_or_default(),
        exceptions: handoff.map(|of| of.exceptions),
    }
}
