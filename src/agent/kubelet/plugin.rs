//! The life of one resource name: serve, register, and do both again whenever the kubelet makes it necessary.
//!
//! ```text
//!           kubelet.sock there           Register ok            stream opens
//!  Absent ────────────────────► Calling ─────────────► Waiting ────────────► Registered
//!    ▲                            │ ▲ failed: back-off     │ none in time        │ stream ends, kubelet.sock is another,
//!    └────────────────────────────┘ └──────────────────────┴─────────────────────┘ or our socket is gone
//! ```
//!
//! A registration that the kubelet may have taken uses its socket's name up: the next one has a socket of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::directory::{DirectoryState, KUBELET_SOCKET};
use super::register::{RegisterError, register};
use super::server::PluginServer;
use super::service::{PluginService, Streams, options};
use super::socket::SocketNames;
use baton_contract::deviceplugin::RegisterRequest;
use baton_runtime::{Backoff, clock};

/// A kubelet that replaces a registration closes the old stream just before it opens the new one.
const REPLACING: Duration = Duration::from_millis(100);
/// How long the kubelet may take to notice that a stream has ended.
const NOTICING: Duration = Duration::from_secs(1);
/// A stream that lived shorter counts as a failure, so that a kubelet that refuses our list is not called in a circle.
const SHORT: Duration = Duration::from_secs(10);

/// How one resource name stands with the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginState {
    /// Not registered, and why.
    Waiting(Box<str>),
    /// The kubelet has it, and its stream is open.
    Registered,
}

/// State of every resource name, in order.
pub type PluginStates = BTreeMap<Box<str>, PluginState>;

/// Called with a resource name when the kubelet has taken its registration, and with the reason when it is lost.
pub type OnRegistration = Arc<dyn Fn(&str, Result<(), &str>) + Send + Sync>;

/// Reports the state of one resource name.
#[derive(Clone)]
pub struct StateReporter {
    resource: Box<str>,
    states: Arc<watch::Sender<PluginStates>>,
    on_registration: OnRegistration,
}

impl StateReporter {
    /// For `resource`.
    pub fn new(resource: Box<str>, states: Arc<watch::Sender<PluginStates>>, on_registration: OnRegistration) -> Self {
        Self { resource, states, on_registration }
    }

    /// `true` when the state is another than before.
    pub fn set(&self, state: PluginState) -> bool {
        self.states.send_if_modified(|states| {
            let changed = states.get(&self.resource) != Some(&state);
            if changed {
                states.insert(self.resource.clone(), state.clone());
            }
            changed
        })
    }

    /// The kubelet has taken the registration.
    pub fn registered(&self) {
        (self.on_registration)(&self.resource, Ok(()));
        self.set(PluginState::Registered);
    }

    /// A kubelet that gave no answer, or a broken one, may have taken the registration, and be another one than before.
    pub fn unconfirmed(&self, why: &RegisterError) {
        if why.may_be_taken() {
            (self.on_registration)(&self.resource, Err("Unconfirmed"));
        }
    }

    /// A registration was lost, and why.
    pub fn lost(&self, why: String) {
        (self.on_registration)(&self.resource, Err(&why));
        self.set(PluginState::Waiting(format!("registration lost: {why}").into()));
    }
}

/// One resource name's task.
pub struct ResourcePlugin {
    /// The kubelet's directory.
    pub directory: PathBuf,
    /// Our sockets' file names there.
    pub names: SocketNames,
    /// The kubelet may have a registration by the newest name.
    pub used: bool,
    /// Path of the socket that was opened last, of any resource name.
    pub newest: Arc<watch::Sender<Option<PathBuf>>>,
    /// The five calls.
    pub service: PluginService,
    /// What happens in the directory.
    pub seen: watch::Receiver<DirectoryState>,
    /// Open streams.
    pub streams: watch::Receiver<Streams>,
    /// Where the state is reported.
    pub report: StateReporter,
    /// Waits after failures.
    pub backoff: Backoff,
    /// Time for one Register call.
    pub register_timeout: Duration,
    /// Time for calls in hand at the end.
    pub grace: Duration,
    /// Ends the task.
    pub stop: CancellationToken,
}

/// Why a registration has to be repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    StreamEnded,
    KubeletReplaced,
    SocketGone,
    NeverOpened,
}

impl ResourcePlugin {
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

    async fn live(&mut self, listening: &mut Option<PluginServer>) {
        loop {
            self.wait_for_kubelet().await;
            if let Err(error) = self.listen(listening).await {
                tracing::error!(resource = %self.service.resource, %error, "cannot listen; trying again");
                self.report.set(PluginState::Waiting(format!("cannot listen: {error}").into()));
                self.pause().await;
                continue;
            }
            let kubelet = self.seen.borrow_and_update().kubelet;
            let before = self.streams.borrow_and_update().opened;
            let answer = self.register().await;
            self.used = answer.as_ref().err().is_none_or(RegisterError::may_be_taken);
            if let Err(error) = answer {
                self.report.unconfirmed(&error);
                self.report_failure(&error);
                self.pause().await;
                continue;
            }
            let opened_at = clock::mono();
            let lost = if let Some(stream) = self.opened(before).await {
                self.report.registered();
                tracing::info!(resource = %self.service.resource, "registered with the kubelet");
                self.held(kubelet, listening.as_ref(), stream).await
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

    /// Sees to it that we listen, at a path that the kubelet does not have yet. The old server serves its calls in hand to the end.
    ///
    /// The kubelet may still read the old stream. Since Kubernetes 1.37 it refuses a path whose stream it reads, and does not notice the
    /// end of that stream from then on (`connectClient`, `PluginConnected`): so the path is another one. Up to 1.36 the end of any stream
    /// of a resource ends the newest registration of it (`runClient`), while 1.37 compares the paths: so the old stream ends first.
    async fn listen(&mut self, listening: &mut Option<PluginServer>) -> std::io::Result<()> {
        if listening.as_ref().is_some_and(|server| !self.used && server.is_in_place() && !server.is_dead()) {
            return Ok(());
        }
        if let Some(old) = listening.as_ref() {
            self.end_streams(old).await;
        }
        if let Some(old) = listening.take() {
            old.retire(self.grace);
            self.names.advance();
        }
        let path = self.directory.join(self.names.newest());
        *listening = Some(PluginServer::start(path.clone(), self.service.clone())?);
        self.used = false;
        self.newest.send_replace(Some(path));
        Ok(())
    }

    /// Ends the streams, and waits until the kubelet has noticed: it closes their connection then. That would fail calls in hand, and
    /// their pods, so these end before.
    async fn end_streams(&self, old: &PluginServer) {
        // Without a stream no kubelet has anything to notice.
        if self.streams.borrow().open.is_empty() {
            return;
        }
        let _quiet = tokio::time::timeout(self.grace, self.service.quiet()).await;
        old.end_streams(NOTICING).await;
    }

    async fn register(&self) -> Result<(), RegisterError> {
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.names.newest(),
            resource_name: self.service.resource.to_string(),
            options: Some(options()),
        };
        register(&self.directory.join(KUBELET_SOCKET), request, self.register_timeout).await
    }

    /// Waits for a stream that opened after `before`, for as long as for the kubelet's yes: it opens one right after that.
    async fn opened(&mut self, before: u64) -> Option<KubeletStream> {
        let open = self.streams.wait_for(|streams| streams.opened > before);
        let streams = tokio::time::timeout(self.register_timeout, open).await.ok()?.ok()?;
        Some(KubeletStream::since(before, &streams))
    }

    /// Holds until something is lost.
    async fn held(
        &mut self,
        kubelet: Option<super::directory::SocketIdentity>,
        listening: Option<&PluginServer>,
        mut stream: KubeletStream,
    ) -> Lost {
        loop {
            let now = self.seen.borrow_and_update().kubelet;
            if now.is_some() && now != kubelet {
                return Lost::KubeletReplaced;
            }
            if !listening.is_some_and(PluginServer::is_in_place) {
                return Lost::SocketGone;
            }
            tokio::select! {
                changed = self.seen.changed() => {
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
                () = stream.ended(&mut self.streams) => return Lost::StreamEnded,
            }
        }
    }

    fn report_failure(&self, error: &RegisterError) {
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

/// The kubelet's stream. Other processes may open ListAndWatch too (a debugging tool, an exporter); the kubelet never opens one
/// again by itself, so the end of its own must not hide behind theirs. It asks for the options on the same connection first
/// (Kubernetes 1.36, `devicemanager.PluginConnected`); a peer that does not is taken for the kubelet only until another one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KubeletStream {
    /// Number of the stream.
    number: u64,
    asked: bool,
    /// Streams up to this one are of other processes, or over.
    before: u64,
    /// Streams that had been opened when this one was last seen open.
    seen: u64,
}

impl KubeletStream {
    /// The likeliest of those opened after `before`; one that is over already counts as ended.
    fn since(before: u64, streams: &Streams) -> Self {
        let (number, asked) = likeliest(streams, before).unwrap_or((streams.opened, false));
        Self { number, asked, before, seen: number }
    }

    /// Resolves when the stream has ended and no other opens within the time that replacing one takes. Cancel-safe.
    async fn ended(&mut self, streams: &mut watch::Receiver<Streams>) {
        loop {
            let mut now = streams.borrow_and_update().clone();
            if !now.open.contains_key(&self.number) {
                let (seen, asked) = (self.seen, self.asked);
                let next = |streams: &Streams| likeliest(streams, seen).filter(|(_, asks)| *asks || !asked);
                let again = streams.wait_for(|streams| next(streams).is_some());
                let again = tokio::time::timeout(REPLACING, again).await.map(|again| again.ok().map(|now| now.clone()));
                match again {
                    Ok(Some(again)) => now = again,
                    Ok(None) => std::future::pending().await,
                    Err(_) => return,
                }
                *self = Self::since(seen, &now);
            } else if let Some((number, true)) = likeliest(&now, self.before).filter(|_| !self.asked) {
                (self.number, self.asked) = (number, true);
            }
            self.seen = now.opened;
            if streams.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Of the open streams after `before` the first whose connection asked for the options, else the first.
fn likeliest(streams: &Streams, before: u64) -> Option<(u64, bool)> {
    let mut after = streams.open.range(before + 1..).map(|(number, asked)| (*number, *asked));
    after.clone().find(|(_, asked)| *asked).or_else(|| after.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestStreams {
        streams: watch::Sender<Streams>,
        followed: KubeletStream,
    }

    impl TestStreams {
        /// The kubelet's stream is the second one.
        fn new() -> Self {
            let streams = watch::Sender::new(Streams::default());
            let mut streams_of = Self { followed: KubeletStream::since(0, &Streams::default()), streams };
            streams_of.open(false);
            streams_of.open(true);
            streams_of.followed = KubeletStream::since(1, &streams_of.streams.borrow());
            streams_of
        }

        fn open(&mut self, asked: bool) -> u64 {
            self.streams.send_modify(|streams| {
                streams.opened += 1;
                streams.open.insert(streams.opened, asked);
            });
            self.streams.borrow().opened
        }

        fn close(&mut self, number: u64) {
            self.streams.send_modify(|streams| assert!(streams.open.remove(&number).is_some()));
        }

        /// Whether the followed stream is over, when nothing more happens.
        async fn is_over(&mut self) -> bool {
            let mut streams = self.streams.subscribe();
            tokio::time::timeout(REPLACING * 3, self.followed.ended(&mut streams)).await.is_ok()
        }
    }

    #[test]
    fn a_registration_counts_as_lost_where_the_kubelet_may_have_taken_it() {
        let (heard, states) = (Arc::new(std::sync::Mutex::new(0)), Arc::new(watch::Sender::new(PluginStates::new())));
        let count = Arc::clone(&heard);
        let on_registration: OnRegistration =
            Arc::new(move |_, result| *count.lock().unwrap() += result.map_or(1, |()| 9));
        let report = StateReporter::new("nvidia.com/gpu".into(), states, on_registration);
        report.unconfirmed(&RegisterError::Absent(PathBuf::from("kubelet.sock")));
        assert_eq!(*heard.lock().unwrap(), 0, "no request left");
        report.unconfirmed(&RegisterError::Silent(SHORT));
        report.unconfirmed(&RegisterError::Refused(tonic::Status::unavailable("the stream broke")));
        assert_eq!(*heard.lock().unwrap(), 2);
    }

    #[tokio::test]
    async fn other_peoples_streams_do_not_hide_the_end_of_the_kubelets() {
        let mut streams_of = TestStreams::new();
        streams_of.open(false);
        assert!(!streams_of.is_over().await);
        streams_of.close(2);
        assert!(streams_of.is_over().await, "those of before and of meanwhile are still open");
    }

    #[tokio::test]
    async fn a_kubelet_may_replace_its_stream() {
        let mut streams_of = TestStreams::new();
        assert!(!streams_of.is_over().await);
        streams_of.close(2);
        let next = streams_of.open(true);
        assert!(!streams_of.is_over().await);
        streams_of.close(next);
        assert!(streams_of.is_over().await);
    }

    #[tokio::test]
    async fn the_first_stream_counts_as_the_kubelets_until_a_peer_asks_for_the_options() {
        let mut streams_of = TestStreams::new();
        streams_of.close(2);
        let first = streams_of.open(false);
        streams_of.followed = KubeletStream::since(2, &streams_of.streams.borrow());
        assert!(!streams_of.is_over().await);
        let kubelets = streams_of.open(true);
        assert!(!streams_of.is_over().await);
        streams_of.close(first);
        assert!(!streams_of.is_over().await);
        streams_of.close(kubelets);
        assert!(streams_of.is_over().await);
    }
}
