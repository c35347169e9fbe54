//! The life of one resource name: serve, register, and do both again whenever the kubelet makes it necessary.
//!
//! ```text
//!           kubelet.sock there           Register ok            stream opens
//!  Absent ────────────────────► Calling ─────────────► Waiting ────────────► Registered
//!    ▲                            │ ▲ failed: back-off     │ none in time        │ stream ends, kubelet.sock is another,
//!    └────────────────────────────┘ └──────────────────────┴─────────────────────┘ or our socket is gone
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::directory::{KUBELET_SOCKET, Seen};
use super::plugins::{PluginState, Report};
use super::register::{RegisterError, register};
use super::server::Listening;
use super::service::{Service, Streams, options};
use crate::contract::deviceplugin::RegisterRequest;
use crate::runtime::{Backoff, clock};

/// A kubelet that replaces a registration closes the old stream just before it opens the new one.
const REPLACING: Duration = Duration::from_millis(100);
/// A stream that lived shorter counts as a failure, so that a kubelet that refuses our list is not called in a circle.
const SHORT: Duration = Duration::from_secs(10);

/// One resource name's task.
pub struct Plugin {
    /// The kubelet's directory.
    pub directory: PathBuf,
    /// Our socket's file name there.
    pub endpoint: String,
    /// The five calls.
    pub service: Service,
    /// What happens in the directory.
    pub seen: watch::Receiver<Seen>,
    /// Open streams.
    pub streams: watch::Receiver<Streams>,
    /// Where the state is told.
    pub report: Report,
    /// Waits after failures.
    pub backoff: Backoff,
    /// Time for one Register call.
    pub register_timeout: Duration,
    /// Time for calls in hand at the end.
    pub grace: Duration,
    /// Ends the task.
    pub stop: CancellationToken,
}

/// Why a registration has to be made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    StreamEnded,
    KubeletReplaced,
    SocketGone,
    NeverOpened,
}

impl Plugin {
    /// Runs until `stop`.
    pub async fn run(mut self) {
        let mut listening = None;
        let stop = self.stop.clone();
        tokio::select! {
            () = self.live(&mut listening) => {}
            () = stop.cancelled() => {}
        }
        if let Some(listening) = listening {
            listening.finish(self.grace).await;
        }
    }

    async fn live(&mut self, listening: &mut Option<Listening>) {
        loop {
            self.wait_for_kubelet().await;
            let kubelet = self.seen.borrow_and_update().kubelet;
            if let Err(error) = self.listen(listening) {
                tracing::error!(resource = %self.service.resource, %error, "cannot listen; trying again");
                self.report.set(PluginState::Waiting(format!("cannot listen: {error}").into()));
                self.pause().await;
                continue;
            }
            let before = self.streams.borrow_and_update().opened;
            if let Err(error) = self.register().await {
                self.tell(&error);
                self.pause().await;
                continue;
            }
            let opened_at = clock::mono();
            let lost = if self.opened(before).await {
                self.report.set(PluginState::Registered);
                tracing::info!(resource = %self.service.resource, "registered with the kubelet");
                self.held(kubelet, listening.as_ref()).await
            } else {
                Lost::NeverOpened
            };
            self.report.lost(format!("{lost:?}"));
            tracing::warn!(resource = %self.service.resource, why = ?lost, "registration lost; registering again");
            match lost {
                Lost::KubeletReplaced | Lost::SocketGone => self.backoff.succeed(),
                Lost::StreamEnded if clock::mono().saturating_sub(opened_at) >= SHORT => self.backoff.succeed(),
                Lost::StreamEnded | Lost::NeverOpened => self.pause().await,
            }
        }
    }

    async fn wait_for_kubelet(&mut self) {
        if self.seen.borrow().kubelet.is_some() {
            return;
        }
        let path = self.directory.join(KUBELET_SOCKET);
        let absent = RegisterError::Absent(path);
        if self.report.set(PluginState::Waiting(absent.to_string().into())) {
            tracing::warn!(resource = %self.service.resource, "{absent}");
        }
        // The watcher outlives every plugin; if it did not, there would be nothing left to wait for.
        if self.seen.wait_for(|seen| seen.kubelet.is_some()).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Sees to it that we listen at our path. A server whose file was deleted serves its calls in hand to the end.
    fn listen(&self, listening: &mut Option<Listening>) -> std::io::Result<()> {
        if listening.as_ref().is_some_and(|server| server.is_in_place() && !server.is_dead()) {
            return Ok(());
        }
        if let Some(old) = listening.take() {
            old.retire(self.grace);
        }
        let path = self.directory.join(&self.endpoint);
        *listening = Some(Listening::start(path, self.service.clone())?);
        Ok(())
    }

    async fn register(&self) -> Result<(), RegisterError> {
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.service.resource.to_string(),
            options: Some(options(self.service.pre_start)),
        };
        register(&self.directory.join(KUBELET_SOCKET), request, self.register_timeout).await
    }

    /// Waits for a stream that opened after `before`, for as long as for the kubelet's yes: it opens one right after that.
    async fn opened(&mut self, before: u64) -> bool {
        let open = self.streams.wait_for(|streams| streams.opened > before);
        matches!(tokio::time::timeout(self.register_timeout, open).await, Ok(Ok(_)))
    }

    /// Holds until something is lost.
    async fn held(&mut self, kubelet: Option<super::directory::SocketIdentity>, listening: Option<&Listening>) -> Lost {
        loop {
            let now = self.seen.borrow_and_update().kubelet;
            if now.is_some() && now != kubelet {
                return Lost::KubeletReplaced;
            }
            if !listening.is_some_and(Listening::is_in_place) {
                return Lost::SocketGone;
            }
            tokio::select! {
                changed = self.seen.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                () = all_ended(&mut self.streams) => return Lost::StreamEnded,
            }
        }
    }

    fn tell(&self, error: &RegisterError) {
        let first = self.report.set(PluginState::Waiting(error.to_string().into()));
        if first {
            tracing::warn!(resource = %self.service.resource, "{error}");
        }
    }

    /// Waits after a failure; a new kubelet ends the wait, because what failed was the old one.
    async fn pause(&mut self) {
        let delay = self.backoff.fail_randomly();
        let kubelet = self.seen.borrow_and_update().kubelet;
        let other = self.seen.wait_for(|seen| seen.kubelet != kubelet);
        if let Ok(Ok(_)) = tokio::time::timeout(delay, other).await {
            self.backoff.succeed();
        }
    }
}

/// Resolves when no stream is open and none opens within the time that replacing one takes.
async fn all_ended(streams: &mut watch::Receiver<Streams>) {
    loop {
        if streams.wait_for(|streams| streams.open == 0).await.is_err() {
            std::future::pending::<()>().await;
        }
        let again = streams.wait_for(|streams| streams.open > 0);
        if tokio::time::timeout(REPLACING, again).await.is_err() {
            return;
        }
    }
}

/// The service of a plugin and the receiver of its streams.
pub fn with_streams(make: impl FnOnce(Arc<watch::Sender<Streams>>) -> Service) -> (Service, watch::Receiver<Streams>) {
    let (sender, receiver) = watch::channel(Streams::default());
    (make(Arc::new(sender)), receiver)
}
