//! Waiting for conditions, never for time.

use std::time::Duration;

/// Calls `condition` until it gives a value; panics after `deadline`, naming `what`.
pub async fn until<T>(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let poll = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    match tokio::time::timeout(deadline, poll).await {
        Ok(value) => value,
        Err(tokio::time::error::Elapsed { .. }) => panic!("waited {deadline:?} in vain: {what}"),
    }
}
