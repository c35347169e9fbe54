//! Leadership by a Lease: only the leader may write, and the end of its leadership is known before it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::lease::{LeaseCandidate, LeaseConfig, LeaseState, LeaseTimings};
use super::restored::{LeaseError, Restored};
use baton_runtime::{clock, words};

/// The Lease is given away within this time at shutdown.
const GRACE: Duration = Duration::from_secs(5);

/// How a daemon runs for leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderOptions {
    /// Work only while holding the Lease. Off for a single process in tests.
    pub elect: bool,
    /// Name of the Lease.
    pub lease_name: String,
    /// This process in the Lease; empty makes a name from host and process.
    pub identity: String,
    /// How fast a dead leader is replaced.
    pub timings: LeaseTimings,
}

impl LeaderOptions {
    /// Elections by the Lease of this name, which the program's Role names.
    pub fn of_lease(name: &str) -> Self {
        Self { elect: true, lease_name: name.to_owned(), identity: String::new(), timings: LeaseTimings::default() }
    }

    /// The candidate `identity` for the Lease in `namespace`.
    pub fn config(&self, namespace: &str, identity: &str) -> LeaseConfig {
        LeaseConfig { timings: self.timings, ..LeaseConfig::new(namespace, &self.lease_name, identity) }
    }
}

/// Until when this process leads, shared with everything that writes.
#[derive(Debug, Clone, Default)]
pub struct Leadership(Arc<AtomicU64>);

impl Leadership {
    /// Leads for ever: without elections.
    pub fn forever() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// `true` while writing is allowed.
    pub fn leads(&self, now: Duration) -> bool {
        now < self.until()
    }

    /// Monotonic end of leadership.
    pub fn until(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Acquire))
    }

    fn set(&self, until: Duration) {
        self.0.store(until.as_millis() as u64, Ordering::Release);
    }
}

/// The name of this process in a Lease: the given one, or else one made of the host and the process.
pub fn identity(given: &str, daemon: &str) -> String {
    if !given.is_empty() {
        return given.to_owned();
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { daemon } else { host.trim() };
    // The process id alone repeats in containers; the start time does not.
    format!("{host}_{}_{}", std::process::id(), clock::wall().as_millisecond())
}

/// Runs for leadership until `stop`, then gives the Lease away. `changed` counts every renewal and loss. Ends earlier when the API
/// server's store was restored from a backup.
async fn campaign(
    mut candidate: LeaseCandidate,
    leadership: Leadership,
    changed: watch::Sender<u64>,
    stop: CancellationToken,
) -> Result<(), Restored> {
    let LeaseTimings { lease_retry: retry, lease_renew_deadline: deadline, .. } = candidate.config().timings;
    let (mut led, mut waits) = (false, false);
    loop {
        let before = clock::now();
        let step = tokio::time::timeout(deadline, candidate.step(before.mono, before.wall)).await;
        match step {
            Ok(Ok(LeaseState::Leading)) => {
                // Counted from before the request: the server may have stamped it at any moment since.
                leadership.set(before.mono + deadline);
                if !led {
                    tracing::info!(identity = candidate.config().identity, "leading");
                }
                led = true;
            }
            Ok(Ok(LeaseState::Following { leader })) => {
                leadership.set(Duration::ZERO);
                if leader.is_none() && !std::mem::replace(&mut waits, true) {
                    let LeaseConfig { namespace, name, timings, .. } = candidate.config();
                    let wait = timings.lease_duration;
                    tracing::info!(
                        "there is no Lease {namespace}/{name}: waiting {wait:?}, as its holder may still lead"
                    );
                }
                if led {
                    tracing::warn!(leader, "another process leads now");
                }
                led = false;
            }
            Ok(Err(LeaseError::Restored(restored))) => {
                leadership.set(Duration::ZERO);
                return Err(restored);
            }
            Ok(Err(LeaseError::Api(error))) => {
                tracing::warn!(error = words(&error), "the Lease could not be renewed, trying again");
            }
            Err(_) => tracing::warn!("the Lease could not be renewed in time, trying again"),
        }
        if led && !candidate.leads(clock::mono()) {
            tracing::error!("leadership lost: the Lease could not be renewed");
            led = false;
        }
        changed.send_modify(|version| *version += 1);
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(retry) => {}
        }
    }
    leadership.set(Duration::ZERO);
    changed.send_modify(|version| *version += 1);
    give_away(candidate).await;
    Ok(())
}

async fn give_away(mut candidate: LeaseCandidate) {
    if let Err(error) = candidate.release(clock::wall()).await {
        tracing::warn!(
            error = words(&error),
            "the Lease could not be given away; the next leader waits until it expires"
        );
    }
}

/// A campaign beside the work of a daemon.
pub struct Campaign {
    /// Until when this process leads.
    pub leadership: Leadership,
    /// Counts every renewal and loss; closed without elections.
    pub changed: watch::Receiver<u64>,
    retire: CancellationToken,
    task: Option<JoinHandle<Result<(), Restored>>>,
}

impl Campaign {
    /// Runs for leadership by this Lease; without one this process leads for ever.
    pub fn start(client: Client, lease: Option<LeaseConfig>) -> Self {
        let leadership = if lease.is_some() { Leadership::default() } else { Leadership::forever() };
        let (changed_out, changed) = watch::channel(0);
        let retire = CancellationToken::new();
        let task = lease.map(|config| {
            tokio::spawn(campaign(LeaseCandidate::new(client, config), leadership.clone(), changed_out, retire.clone()))
        });
        Self { leadership, changed, retire, task }
    }

    /// Waits until the campaign ends because the store was restored.
    pub async fn restored(&mut self) -> Restored {
        if let Some(task) = &mut self.task {
            let ended = task.await;
            self.task = None;
            if let Ok(Err(restored)) = ended {
                return restored;
            }
        }
        std::future::pending().await
    }

    /// Gives the Lease away.
    pub async fn end(self) {
        if let Some(task) = self.task {
            self.retire.cancel();
            tokio::time::timeout(GRACE, task).await.ok();
        }
    }
}
