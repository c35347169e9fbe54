//! Waiting for conditions, never for time.

use std::time::Duration;

use baton::runtime::clock;

/// Calls `condition` until it gives a value; panics after `deadline`, naming `what`.
pub async fn until<T>(what: &str, deadline: Duration, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let start = clock::mono();
    let poll = async {
        loop {
            if let Some(value) = condition().await {
                return value;
            }
            // A look costs processor time, which what is waited for needs: the longer it takes, the fewer.
            let pause =
                (clock::mono().saturating_sub(start) / 16).clamp(Duration::from_millis(5), Duration::from_millis(25));
            tokio::time::sleep(pause).await;
        }
    };
    match tokio::time::timeout(deadline, poll).await {
        Ok(value) => value,
        Err(tokio::time::error::Elapsed { .. }) => panic!("waited {deadline:?} in vain: {what}"),
    }
}
