//! SIGTERM and SIGINT become a cancelled token; a second signal ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled at the first SIGTERM or SIGINT. At the second one the process exits with status 130, for an
/// operator who does not want to wait. Must be called inside a tokio runtime.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            }
        };
        let name = next().await;
        tracing::info!(signal = name, "shutting down: finishing what is under way");
        cancel.cancel();
        let name = next().await;
        tracing::warn!(signal = name, "second signal: exiting at once");
        std::process::exit(130);
    });
    Ok(token)
}
