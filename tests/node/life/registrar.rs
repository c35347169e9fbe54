//! The kubelet's registration socket by hand: what it answers, whether it dials back, and what was registered.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;

use baton::contract::deviceplugin as api;
use baton::contract::deviceplugin::registration_server::{Registration, RegistrationServer};
use http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};
use tower::Service as _;

use super::test_node::PATIENCE;
use crate::prelude::*;

/// What one registration comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Refuse,
    /// Yes, and ListAndWatch is never opened.
    Forget,
    /// Yes, and ListAndWatch is opened and ended after its first list.
    Drop,
    /// Yes, and ListAndWatch stays open.
    Hold,
}

/// What was registered, and how.
#[derive(Debug, Default)]
pub struct Seen {
    /// Resource name and endpoint of each registration, with what it came to.
    pub registrations: Vec<(String, String, Answer)>,
    /// `:authority` of every request.
    pub authorities: Vec<String>,
    /// Streams that are held open.
    pub held: usize,
}

/// A listening registration socket. It ends when dropped; its file stays, as a killed kubelet's does.
pub struct Registrar {
    reported: Arc<Mutex<Seen>>,
    stop: CancellationToken,
}

#[derive(Clone)]
struct Service {
    directory: PathBuf,
    script: Arc<Mutex<VecDeque<Answer>>>,
    reported: Arc<Mutex<Seen>>,
    stop: CancellationToken,
}

impl Registrar {
    /// Listens at `socket`; plugins are dialled below `directory`. Answers by `script`, and from its end on as a kubelet does.
    pub fn start(socket: &Path, directory: &Path, script: &[Answer]) -> Self {
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(socket);
        let (reported, stop) = (Arc::<Mutex<Seen>>::default(), CancellationToken::new());
        let service = Service {
            directory: directory.to_owned(),
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            reported: reported.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(accept(UnixListener::bind(socket).unwrap(), service));
        Self { reported, stop }
    }

    pub fn reported<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.reported.lock().unwrap())
    }

    /// What each registration came to, in order.
    pub fn answers(&self) -> Vec<Answer> {
        self.reported(|reported| reported.registrations.iter().map(|(.., answer)| *answer).collect())
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves every connection, and writes down which authority each request names.
async fn accept(listener: UnixListener, service: Service) {
    let stop = service.stop.clone();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted.unwrap().0,
        };
        let (reported, ended) = (service.reported.clone(), stop.clone());
        let server = RegistrationServer::new(service.clone());
        let noted = tower::service_fn(move |request: Request<_>| {
            let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
            reported.lock().unwrap().authorities.push(authority);
            server.clone().call(request)
        });
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new()).http2_only();
            let connection = builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(noted));
            tokio::select! {
                () = ended.cancelled() => {}
                _ = connection => {}
            }
        });
    }
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(&self, request: tonic::Request<api::RegisterRequest>) -> Result<Response<api::Empty>, Status> {
        let request = request.into_inner();
        let answer = self.script.lock().unwrap().pop_front().unwrap_or(Answer::Hold);
        let reported = (request.resource_name, request.endpoint.clone(), answer);
        self.reported.lock().unwrap().registrations.push(reported);
        if answer == Answer::Refuse {
            return Err(Status::unknown("the device manager is not ready"));
        }
        if answer != Answer::Forget {
            tokio::spawn(self.clone().watch(self.directory.join(request.endpoint), answer));
        }
        Ok(Response::new(api::Empty {}))
    }
}

impl Service {
    /// Opens ListAndWatch as the kubelet does after its yes.
    async fn watch(self, endpoint: PathBuf, answer: Answer) {
        let mut plugin = DevicePluginClient::new(dial(&endpoint, PATIENCE).await.unwrap());
        let mut lists = plugin.list_and_watch(api::Empty {}).await.unwrap().into_inner();
        lists.message().await.unwrap();
        if answer == Answer::Drop {
            return;
        }
        self.reported.lock().unwrap().held += 1;
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = async { while let Ok(Some(_)) = lists.message().await {} } => {}
        }
        self.reported.lock().unwrap().held -= 1;
    }
}
