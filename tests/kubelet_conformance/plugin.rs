//! A device plugin that records every call with its arguments and with what PodResources said at that moment, and that can
//! be set to fail, to be slow or to end its stream. The same plugin made the recordings.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Mutex;

use baton::contract::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use baton::contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use super::prelude::*;

/// What both plugins saw, in order.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<Value>>>);

impl Log {
    pub fn push(&self, record: Value) {
        self.0.lock().unwrap().push(record);
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn since(&self, from: usize) -> Vec<Value> {
        self.0.lock().unwrap()[from..].to_vec()
    }
}

/// One plugin process.
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    short: &'static str,
    resource: String,
    ids: Vec<String>,
    root: PathBuf,
    control: watch::Sender<Value>,
    log: Log,
    /// Lets a slow Allocate answer.
    pub release: Notify,
    running: Mutex<CancellationToken>,
    endpoint: Mutex<String>,
}

impl Plugin {
    pub fn new(short: &'static str, count: usize, root: &Path, log: Log) -> Self {
        Self(Arc::new(Inner {
            short,
            resource: format!("example.com/{short}"),
            ids: (0..count).map(|n| format!("{short}-{n}")).collect(),
            root: root.to_owned(),
            control: watch::Sender::new(json!({})),
            log,
            release: Notify::new(),
            running: Mutex::default(),
            endpoint: Mutex::new(format!("{short}.sock")),
        }))
    }

    /// Serves on another socket, beside an instance that has the usual one.
    pub fn on_socket(self, name: &'static str) -> Self {
        name.clone_into(&mut self.0.endpoint.lock().unwrap());
        self
    }

    /// Replaces how it behaves.
    pub fn control(&self, set: Value) {
        self.0.control.send_replace(set);
    }

    pub fn release(&self) {
        self.0.release.notify_one();
    }

    /// Serves and registers; when its own socket is deleted it starts over. A stream that it ended itself it leaves ended.
    pub async fn start(&self) {
        let stop = CancellationToken::new();
        *self.0.running.lock().unwrap() = stop.clone();
        let plugin = self.clone();
        let serving = plugin.serve(stop.clone());
        plugin.register().await;
        tokio::spawn(plugin.watch_own_socket(stop, serving));
    }

    pub fn stop(&self) {
        self.0.running.lock().unwrap().cancel();
    }

    fn socket(&self) -> PathBuf {
        self.0.root.join("device-plugins").join(&*self.0.endpoint.lock().unwrap())
    }

    /// A server whose connections all end when it stops.
    fn serve(&self, stop: CancellationToken) -> CancellationToken {
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let own = stop.child_token();
        let service = DevicePluginServer::new(Service { inner: self.0.clone(), stop: own.clone() });
        let ended = own.clone();
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            server
                .serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended.cancelled_owned())
                .await
                .unwrap();
        });
        own
    }

    async fn register(&self) {
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: self.0.endpoint.lock().unwrap().clone(),
            resource_name: self.0.resource.clone(),
            options: None,
        };
        let kubelet = dial(self.0.root.join("device-plugins/kubelet.sock")).await;
        RegistrationClient::new(kubelet).register(request).await.unwrap();
        self.record(json!({"rpc": "Register"}));
    }

    async fn watch_own_socket(self, stop: CancellationToken, mut serving: CancellationToken) {
        let mut poll = tokio::time::interval(Duration::from_millis(10));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = poll.tick() => {}
            }
            if !self.socket().exists() {
                self.record(json!({"event": "own socket gone"}));
                serving.cancel();
                serving = self.serve(stop.clone());
                self.register().await;
            }
        }
    }

    fn record(&self, record: Value) {
        self.0.record(record);
    }
}

struct Service {
    inner: Arc<Inner>,
    stop: CancellationToken,
}

impl Inner {
    fn record(&self, mut record: Value) {
        record["plugin"] = json!(self.short);
        self.log.push(record);
    }

    fn set(&self) -> Value {
        self.control.borrow().clone()
    }

    fn devices(&self) -> BTreeMap<String, &'static str> {
        let set = self.set();
        let sick = |id: &String| set["unhealthy"].as_array().is_some_and(|ids| ids.iter().any(|sick| sick == id));
        self.ids.iter().map(|id| (id.clone(), if sick(id) { "Unhealthy" } else { "Healthy" })).collect()
    }

    /// The highest ids, what must be included first.
    fn preferred(available: &[String], must: &[String], size: usize) -> Vec<String> {
        let mut chosen: Vec<String> = must.to_vec();
        let mut others: Vec<&String> = available.iter().filter(|id| !must.contains(id)).collect();
        others.sort();
        while chosen.len() < size {
            let Some(highest) = others.pop() else { break };
            chosen.push(highest.clone());
        }
        chosen.sort();
        chosen
    }

    /// Pod → container → resource → ids, as PodResources tells.
    async fn pod_resources(&self) -> Value {
        let channel = dial(self.root.join("pod-resources/kubelet.sock")).await;
        let mut client = PodResourcesListerClient::new(channel);
        let answer = loop {
            match client.list(ListPodResourcesRequest {}).await {
                Ok(answer) => break answer.into_inner(),
                // The kubelet allows a hundred calls a second, ten at once.
                Err(status) if status.code() == Code::ResourceExhausted => {
                    assert_eq!(status.message(), "rejected by rate limit");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                Err(status) => panic!("PodResources: {status}"),
            }
        };
        let mut pods = json!({});
        for pod in answer.pod_resources {
            let mut containers = json!({});
            for container in pod.containers {
                let mut resources: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
                for devices in container.devices {
                    assert_eq!(devices.device_ids.len(), 1, "one entry for each id");
                    resources.entry(devices.resource_name).or_default().extend(devices.device_ids);
                }
                containers[container.name] = json!(resources);
            }
            pods[format!("{}/{}", pod.namespace, pod.name)] = containers;
        }
        pods
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        self.inner.record(json!({"rpc": "GetDevicePluginOptions"}));
        let pre_start_required = self.inner.set()["prestart"] == true;
        Ok(Response::new(DevicePluginOptions { pre_start_required, get_preferred_allocation_available: true }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let inner = self.inner.clone();
        let stop = self.stop.clone();
        let (messages, stream) = tokio::sync::mpsc::channel(4);
        inner.record(json!({"rpc": "ListAndWatch", "event": "opened"}));
        tokio::spawn(async move {
            let mut control = inner.control.subscribe();
            let mut last = None;
            loop {
                let devices = inner.devices();
                if last.as_ref() != Some(&devices) {
                    let list = devices.iter().map(|(id, health)| Device {
                        id: id.clone(),
                        health: (*health).to_owned(),
                        topology: None,
                    });
                    inner.record(json!({"rpc": "ListAndWatch", "sent": devices}));
                    let sent = messages.send(Ok(ListAndWatchResponse { devices: list.collect() })).await;
                    if sent.is_err() {
                        break;
                    }
                    last = Some(devices);
                }
                tokio::select! {
                    changed = control.changed() => assert!(changed.is_ok()),
                    () = messages.closed() => break,
                    // A stopped process records nothing any more.
                    () = stop.cancelled() => return,
                }
                if inner.set()["endstream"] == true {
                    inner.record(json!({"rpc": "ListAndWatch", "event": "we end it"}));
                    break;
                }
            }
            inner.record(json!({"rpc": "ListAndWatch", "event": "ended"}));
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let first = &requests[0];
        let (mut available, mut must) = (first.available_device_i_ds.clone(), first.must_include_device_i_ds.clone());
        available.sort();
        must.sort();
        let size = usize::try_from(first.allocation_size).unwrap();
        let mut answer = Inner::preferred(&available, &must, size);
        let mode = self.inner.set()["gpa"].as_str().unwrap_or("ok").to_owned();
        match mode.as_str() {
            "few" => {
                answer.pop();
            }
            "none" => answer.clear(),
            "unknown" => answer.iter_mut().for_each(|id| *id = "no-such-id".into()),
            _ => {}
        }
        let answered = if mode == "error" { json!("error") } else { json!(answer) };
        let view = self.inner.pod_resources().await;
        self.inner.record(json!({
            "rpc": "GetPreferredAllocation", "requests": requests.len(), "available": available, "mustInclude": must,
            "size": size, "podresources": view, "answer": answered,
        }));
        if mode == "error" {
            return Err(Status::internal("recorder: preferred allocation refused"));
        }
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds: answer }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let sorted = |ids: &Vec<String>| ids.iter().cloned().collect::<BTreeSet<_>>();
        let ids: Vec<_> = requests.iter().map(|request| sorted(&request.devices_ids)).collect();
        let mode = self.inner.set()["alloc"].as_str().unwrap_or("ok").to_owned();
        let view = self.inner.pod_resources().await;
        self.inner.record(json!({"rpc": "Allocate", "ids": ids, "podresources": view, "answer": mode}));
        match mode.as_str() {
            "error" => return Err(Status::failed_precondition("recorder: no assignment for this pod")),
            "slow" => {
                self.inner.release.notified().await;
                self.inner.record(json!({"rpc": "Allocate", "ids": ids, "event": "slow answer leaves"}));
            }
            _ => {}
        }
        let answer = |ids: &BTreeSet<String>| ContainerAllocateResponse {
            envs: [(format!("RECORDED_{}", self.inner.short.to_uppercase()), Vec::from_iter(ids.clone()).join(","))]
                .into(),
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse { container_responses: ids.iter().map(answer).collect() }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids: BTreeSet<_> = request.into_inner().devices_ids.into_iter().collect();
        let view = self.inner.pod_resources().await;
        self.inner.record(json!({"rpc": "PreStartContainer", "ids": ids, "podresources": view}));
        if self.inner.set()["prestarterror"] == true {
            return Err(Status::internal("recorder: not yet"));
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Connects to a Unix socket, waiting for it to be there.
pub async fn dial(socket: PathBuf) -> Channel {
    let connect = async {
        loop {
            let socket = socket.clone();
            let connector = tower::service_fn(move |_: tonic::transport::Uri| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            match Endpoint::from_static("http://localhost").connect_with_connector(connector).await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), connect).await.expect("the kubelet's socket within 10 s")
}
