//! What the daemon's addresses answer: is it alive, does it serve, what has it counted, what has it handed out.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::watch;

use super::kubelet::register::dial;
use super::kubelet::{PluginState, PluginStates};
use super::metrics::AgentMetrics;
use super::node_handoff::{Handoff, LedgerLine};
use baton_contract::deviceplugin::Empty;
use baton_contract::deviceplugin::device_plugin_client::DevicePluginClient;
use baton_runtime::admin::Answers;

/// Longest time for the call to ourselves.
const SELF_CALL: Duration = Duration::from_secs(5);

/// Known from the start, filled while the daemon comes up.
#[derive(Default)]
pub struct AdminState {
    phase: watch::Sender<&'static str>,
    serving: OnceLock<ServingState>,
}

/// What there is once the daemon serves.
pub struct ServingState {
    /// State of every resource name.
    pub states: watch::Receiver<PluginStates>,
    /// Path of one of our sockets; there is none, or no file, while the kubelet is absent, or while there is nothing to register.
    pub socket: watch::Receiver<Option<PathBuf>>,
    /// The hand-off.
    pub handoff: Arc<dyn Handoff>,
    /// Why no device is offered although there may be some; `None` where it is known what there is.
    pub lacks: watch::Receiver<Option<String>>,
}

impl AdminState {
    /// What the daemon is doing before it serves.
    pub fn set_phase(&self, phase: &'static str) {
        tracing::debug!(phase, "starting");
        self.phase.send_replace(phase);
    }

    /// The daemon serves from here on.
    pub fn serve(&self, serving: ServingState) {
        // Set once by the one start of the daemon.
        let _ = self.serving.set(serving);
    }

    /// Alive: a call to ourselves, through the socket that the kubelet uses, is answered.
    pub async fn live(&self) -> Result<String, String> {
        let Some(serving) = self.serving.get() else { return Ok(format!("starting: {}", *self.phase.borrow())) };
        let newest = serving.socket.borrow().clone();
        let Some(socket) = newest.filter(|socket| socket.exists()) else {
            return Ok("no socket: the kubelet is absent, or there is nothing to register".to_owned());
        };
        let call = async {
            let channel = dial(&socket, SELF_CALL).await.map_err(|error| error.to_string())?;
            let options = DevicePluginClient::new(channel).get_device_plugin_options(Empty {}).await;
            options.map_err(|status| status.to_string())
        };
        match tokio::time::timeout(SELF_CALL, call).await {
            Ok(Ok(_)) => Ok("ok".to_owned()),
            Ok(Err(error)) => Err(format!("a call to {} failed: {error}", socket.display())),
            Err(_) => Err(format!("a call to {} was not answered within {SELF_CALL:?}", socket.display())),
        }
    }

    /// Ready: the kubelet has every resource name, with a device or with the certainty that there is none.
    pub fn ready(&self) -> Result<String, String> {
        let Some(serving) = self.serving.get() else { return Err(format!("starting: {}", *self.phase.borrow())) };
        let states = serving.states.borrow();
        let waiting: Vec<String> = states
            .iter()
            .filter_map(|(name, state)| match state {
                PluginState::Registered => None,
                PluginState::Waiting(why) => Some(format!("{name}: {why}")),
            })
            .collect();
        if let Some(lacks) = serving.lacks.borrow().as_ref().filter(|_| waiting.is_empty()) {
            return Err(format!("registered without a device: {lacks}"));
        }
        if states.is_empty() {
            Ok("nothing to register: this machine has no device".to_owned())
        } else if waiting.is_empty() {
            Ok(format!("registered: {}", states.keys().map(|name| &**name).collect::<Vec<_>>().join(", ")))
        } else {
            Err(waiting.join("\n"))
        }
    }

    fn ledger(&self) -> String {
        let lines: Vec<LedgerLine> = self.serving.get().map(|serving| serving.handoff.ledger()).unwrap_or_default();
        serde_json::to_string(&lines).unwrap_or_default()
    }

    /// What the kubelet lists, to be compared with the ledger.
    async fn listed(&self) -> Response {
        let listed = match self.serving.get() {
            Some(serving) => serving.handoff.listed().await,
            None => None,
        };
        match listed {
            Some(lines) => Json(lines).into_response(),
            None => (StatusCode::SERVICE_UNAVAILABLE, "the kubelet's PodResources does not answer\n").into_response(),
        }
    }
}

/// What probes and questions are answered.
pub fn answers(state: Arc<AdminState>, metrics: Arc<AgentMetrics>) -> Answers {
    let (live, ready, ledger, listed) = (state.clone(), state.clone(), state.clone(), state);
    let json = [(header::CONTENT_TYPE, "application/json")];
    Answers {
        live: Arc::new(move || {
            let live = live.clone();
            Box::pin(async move { live.live().await })
        }),
        ready: Arc::new(move || {
            let ready = ready.ready();
            Box::pin(async move { ready })
        }),
        leading: None,
        metrics: Arc::new(move || metrics.print()),
        questions: Router::new()
            .route("/ledger", get(move || async move { (json, ledger.ledger()) }))
            .route("/kubelet", get(move || async move { listed.listed().await })),
        paths: &["/ledger", "/kubelet"],
    }
}
