//! Waiting for a condition.

#[path = "../harness/cluster/wait.rs"]
mod until;

use std::time::Duration;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until a condition yields a value; fails after [`DEADLINE`].
pub async fn wait<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    until::until(what, DEADLINE, condition).await
}
