//! Waiting for a condition.

use std::time::Duration;

use baton::runtime::clock;

/// How long anything may take.
pub const DEADLINE: Duration = Duration::from_secs(15);

/// Waits until a condition yields a value; fails after [`DEADLINE`].
pub async fn wait<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let since = clock::mono();
    let waited = tokio::time::timeout(DEADLINE, waiting).await;
    waited.unwrap_or_else(|_| panic!("waited {:?} for {what}", clock::mono().saturating_sub(since)))
}
