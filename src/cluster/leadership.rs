//! Leadership by a Lease: only the leader may write, and the end of its leadership is known before it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::lease::{Candidate, LeaseState};
use super::restored::{LeaseError, Restored};
use baton_runtime::{clock, words};

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
pub async fn campaign(
    mut candidate: Candidate,
    leadership: Leadership,
    changed: watch::Sender<u64>,
    stop: CancellationToken,
) -> Result<(), Restored> {
    let (retry, deadline) = (candidate.config().retry, candidate.config().renew_deadline);
    let mut led = false;
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
    if let Err(error) = candidate.release(clock::wall()).await {
        tracing::warn!(
            error = words(&error),
            "the Lease could not be given away; the next leader waits until it expires"
        );
    }
    Ok(())
}

/// Waits until a campaign ends because the store was restored.
pub async fn restored(campaigning: &mut Option<JoinHandle<Result<(), Restored>>>) -> Restored {
    if let Some(task) = campaigning {
        let ended = task.await;
        *campaigning = None;
        if let Ok(Err(restored)) = ended {
            return restored;
        }
    }
    std::future::pending().await
}
