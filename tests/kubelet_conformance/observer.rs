//! A node whose every sign of a leaving pod is written down: API events, PodResources, checkpoint, cgroups and processes; and
//! the device plugin of the recordings, which may hold a container's start until the device is free.

use std::pin::Pin;
use std::sync::Mutex;

use baton::contract::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use baton::contract::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, ContainerPreferredAllocationResponse, Device,
    DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use futures::{Stream, StreamExt};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use tokio::net::UnixListener;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::plugin::dial;
use super::prelude::*;
use super::timeline::Line;

pub const GPU: &str = "example.com/gpu";

/// What was seen, in order.
#[derive(Clone)]
pub struct Notes {
    begin: Duration,
    lines: Arc<Mutex<Vec<Line>>>,
    last: Arc<Mutex<BTreeMap<(String, String), String>>>,
}

impl Notes {
    fn new() -> Self {
        Self { begin: clock::mono(), lines: Arc::default(), last: Arc::default() }
    }

    /// Real seconds since the begin.
    pub fn now(&self) -> f64 {
        clock::mono().saturating_sub(self.begin).as_secs_f64()
    }

    pub fn lines(&self) -> Vec<Line> {
        self.lines.lock().unwrap().clone()
    }

    /// Forgets the lines, not what was seen last.
    pub fn clear(&self) {
        self.lines.lock().unwrap().clear();
    }

    fn say(&self, what: &str, name: &str, is: &str) {
        self.say_at(self.now(), what, name, is);
    }

    fn say_at(&self, at: f64, what: &str, name: &str, is: &str) {
        let (what, name, is) = (what.to_owned(), name.to_owned(), is.to_owned());
        self.lines.lock().unwrap().push(Line { at, what, name, is });
    }

    /// Notes what changed of one kind: name → what it is now. What is missing is gone.
    fn sample(&self, at: f64, what: &str, now: BTreeMap<String, String>) {
        let mut changed = Vec::new();
        {
            let mut last = self.last.lock().unwrap();
            let gone: Vec<_> =
                last.keys().filter(|(kind, name)| kind == what && !now.contains_key(name)).cloned().collect();
            for key in gone {
                last.remove(&key);
                changed.push((key.1, "GONE".to_owned()));
            }
            for (name, is) in now {
                if last.insert((what.to_owned(), name.clone()), is.clone()).as_ref() != Some(&is) {
                    changed.push((name, is));
                }
            }
        }
        changed.iter().for_each(|(name, is)| self.say_at(at, what, name, is));
    }
}

/// The node's observer and its plugin.
pub struct Observer {
    pub notes: Notes,
    /// Ids that the plugin prefers, call by call, where they are free: chance is as it was.
    pub wanted: Arc<Mutex<Vec<String>>>,
    pub names: Arc<Mutex<BTreeMap<String, String>>>,
    /// Deleted pods that left a cgroup behind in that moment.
    pub left_behind: Arc<Mutex<BTreeSet<String>>>,
    kubelet: Arc<Kubelet>,
    gate: Option<Duration>,
    stop: CancellationToken,
}

impl Observer {
    /// `gate`: how long the plugin waits in PreStartContainer; `cut` tells when the observer's own watch is cut off.
    pub fn start(
        kubelet: Arc<Kubelet>,
        client: kube::Client,
        gate: Option<Duration>,
        cut: watch::Receiver<bool>,
        pause: Duration,
    ) -> Self {
        let stop = CancellationToken::new();
        let observer = Self {
            notes: Notes::new(),
            wanted: Arc::default(),
            names: Arc::default(),
            left_behind: Arc::default(),
            kubelet,
            gate,
            stop: stop.clone(),
        };
        let events =
            events(observer.notes.clone(), client, cut, observer.kubelet.clone(), observer.left_behind.clone());
        let files = files(observer.notes.clone(), observer.kubelet.clone(), observer.names.clone(), pause);
        let listed = listed(observer.notes.clone(), observer.kubelet.clone(), pause);
        tokio::spawn(stop.clone().run_until_cancelled_owned(events));
        tokio::spawn(stop.clone().run_until_cancelled_owned(files));
        tokio::spawn(stop.run_until_cancelled_owned(listed));
        observer
    }

    /// Serves the plugin and registers it.
    pub async fn serve_plugin(&self) {
        let dir = self.kubelet.options().device_plugins_dir();
        let socket = dir.join("gpu.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let plugin = Plugin {
            notes: self.notes.clone(),
            wanted: self.wanted.clone(),
            kubelet: self.kubelet.clone(),
            gate: self.gate,
        };
        let stop = self.stop.clone();
        tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(plugin));
            let _ =
                server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), stop.cancelled_owned()).await;
        });
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "gpu.sock".into(),
            resource_name: GPU.into(),
            options: None,
        };
        RegistrationClient::new(dial(dir.join("kubelet.sock")).await).register(request).await.unwrap();
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A watch as any client has one: cut off, it lists again and hears of no deletion.
async fn events(
    notes: Notes,
    client: kube::Client,
    mut cut: watch::Receiver<bool>,
    kubelet: Arc<Kubelet>,
    left_behind: Arc<Mutex<BTreeSet<String>>>,
) {
    let pods: Api<Pod> = Api::namespaced(client, "default");
    loop {
        cut.wait_for(|cut| !cut).await.unwrap();
        let list = pods.list(&ListParams::default()).await.unwrap();
        for pod in &list.items {
            note_event(&notes, "ADDED", pod);
        }
        let mut stream =
            pods.watch(&WatchParams::default(), &list.metadata.resource_version.unwrap()).await.unwrap().boxed();
        loop {
            let event = tokio::select! {
                _ = cut.wait_for(|cut| *cut) => break,
                event = stream.next() => event,
            };
            match event {
                Some(Ok(WatchEvent::Added(pod))) => note_event(&notes, "ADDED", &pod),
                Some(Ok(WatchEvent::Modified(pod))) => note_event(&notes, "MODIFIED", &pod),
                Some(Ok(WatchEvent::Deleted(pod))) => {
                    if kubelet.cgroup(pod.metadata.uid.as_deref().unwrap()).is_some() {
                        left_behind.lock().unwrap().insert(pod.metadata.name.clone().unwrap());
                    }
                    note_event(&notes, "DELETED", &pod);
                }
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                None => return,
                other => panic!("the observer's watch: {other:?}"),
            }
        }
    }
}

fn note_event(notes: &Notes, kind: &str, pod: &Pod) {
    let status = pod.status.clone().unwrap_or_default();
    let mut text = format!("{kind} {}", status.phase.unwrap_or_default());
    if let Some(reason) = status.reason {
        text += &format!(" {reason}");
    }
    if pod.metadata.deletion_timestamp.is_some() {
        text += &format!(" deleting({}s)", pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
    }
    for container in status.container_statuses.into_iter().flatten() {
        let state = container.state.unwrap_or_default();
        let state = match (state.running, state.terminated) {
            (Some(_), _) => "running",
            (_, Some(_)) => "terminated",
            _ => "waiting",
        };
        text += &format!(" {}={state}", container.name);
    }
    notes.say("api", pod.metadata.name.as_deref().unwrap(), &text);
}

/// Looks at the cgroup tree, the checkpoint and the processes.
async fn files(notes: Notes, kubelet: Arc<Kubelet>, names: Arc<Mutex<BTreeMap<String, String>>>, pause: Duration) {
    let root = kubelet.options().cgroup_root.clone().unwrap();
    loop {
        let at = notes.now();
        let by_uid = names.lock().unwrap().clone();
        let mut found = BTreeMap::new();
        pod_cgroups(&root, &mut found);
        let of = |uid: &String| by_uid.get(uid).cloned();
        let cgroups = found.into_iter().filter_map(|(uid, is)| Some((of(&uid)?, is.to_owned()))).collect();
        let processes = kubelet.processes();
        let processes = processes.iter().map(|run| (format!("{}/{}", run.name, run.container), "runs".to_owned()));
        notes.sample(at, "process", processes.collect());
        notes.sample(at, "cgroup", cgroups);
        if let Ok(text) = std::fs::read_to_string(kubelet.options().checkpoint_file()) {
            let content: Value = serde_json::from_str(&text).unwrap();
            notes.sample(at, "checkpoint", checkpoint(&content, &by_uid));
        }
        tokio::time::sleep(pause).await;
    }
}

/// Pod uid → `occupied` or `empty`, from the files alone, whatever the layout.
fn pod_cgroups(dir: &Path, found: &mut BTreeMap<String, &'static str>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        if name.starts_with('.') || !path.is_dir() {
            continue;
        }
        let pod = name.trim_end_matches(".slice");
        let Some(uid) = pod.strip_prefix("pod").or_else(|| pod.split_once("-pod").map(|(_, uid)| uid)) else {
            pod_cgroups(&path, found);
            continue;
        };
        let read = |file: &str| std::fs::read_to_string(path.join(file)).ok();
        let occupied = match (read("cgroup.events"), read("pids.current")) {
            (Some(events), _) => events.contains("populated 1"),
            (_, Some(count)) => count.trim() != "0",
            // It went away between the two looks.
            _ => continue,
        };
        found.insert(uid.replace('_', "-"), if occupied { "occupied" } else { "empty" });
    }
}

/// Name → `container=map[numa:[ids]]`, as Go prints it.
fn checkpoint(content: &Value, names: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut shown: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in content["Data"]["PodDeviceEntries"].as_array().into_iter().flatten() {
        let Some(name) = names.get(entry["PodUID"].as_str().unwrap()) else { continue };
        let maps = entry["DeviceIDs"].as_object().unwrap().iter().map(|(numa, ids)| {
            let ids: Vec<&str> = ids.as_array().unwrap().iter().filter_map(Value::as_str).collect();
            format!("{numa}:[{}]", ids.join(" "))
        });
        let text = format!("{}=map[{}]", entry["ContainerName"].as_str().unwrap(), maps.collect::<Vec<_>>().join(" "));
        shown.entry(name.clone()).or_default().insert(text);
    }
    shown.into_iter().map(|(name, texts)| (name, Vec::from_iter(texts).join(" "))).collect()
}

/// Asks PodResources; a call that fails says nothing.
async fn listed(notes: Notes, kubelet: Arc<Kubelet>, pause: Duration) {
    let mut client = PodResourcesListerClient::new(dial(kubelet.options().pod_resources_socket()).await);
    loop {
        let at = notes.now();
        match client.list(ListPodResourcesRequest {}).await {
            Ok(list) => {
                let pods = list.into_inner().pod_resources.into_iter().map(|pod| {
                    let mut held: Vec<String> = pod
                        .containers
                        .into_iter()
                        .filter(|container| !container.devices.is_empty())
                        .map(|container| {
                            let ids = container.devices.into_iter().flat_map(|devices| devices.device_ids);
                            format!(" {}={}", container.name, ids.collect::<Vec<_>>().join(","))
                        })
                        .collect();
                    held.sort();
                    (pod.name, format!("listed{}", held.concat()))
                });
                notes.sample(at, "podresources", pods.collect());
            }
            Err(status) if status.code() == tonic::Code::ResourceExhausted => {}
            Err(_) => client = PodResourcesListerClient::new(dial(kubelet.options().pod_resources_socket()).await),
        }
        tokio::time::sleep(pause).await;
    }
}

#[derive(Clone)]
struct Plugin {
    notes: Notes,
    wanted: Arc<Mutex<Vec<String>>>,
    kubelet: Arc<Kubelet>,
    gate: Option<Duration>,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.gate.is_some(),
            get_preferred_allocation_available: true,
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let (messages, stream) = tokio::sync::mpsc::channel(1);
        let device = |n| Device { id: format!("gpu-{n}"), health: "Healthy".into(), topology: None };
        let devices = (0..4).map(device).collect();
        tokio::spawn(async move {
            let _ = messages.send(Ok(ListAndWatchResponse { devices })).await;
            messages.closed().await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        let wanted = self.wanted.lock().unwrap().first().cloned();
        let device_i_ds = request.available_device_i_ds.into_iter().filter(|id| Some(id) == wanted.as_ref()).collect();
        let container_responses = vec![ContainerPreferredAllocationResponse { device_i_ds }];
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.remove(0).devices_ids.join(",");
        {
            let mut wanted = self.wanted.lock().unwrap();
            if !wanted.is_empty() {
                wanted.remove(0);
            }
        }
        self.notes.say("allocate", "", &ids);
        let answer = ContainerAllocateResponse {
            envs: [("GPUS".to_owned(), ids)].into(),
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![answer] }))
    }

    /// Waits until no process has any of the devices.
    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let ids: BTreeSet<String> = request.into_inner().devices_ids.into_iter().collect();
        let text = Vec::from_iter(ids.clone()).join(",");
        self.notes.say("prestart-asked", "", &text);
        let deadline = clock::mono() + self.gate.unwrap();
        loop {
            let used = |held: Option<&BTreeSet<String>>| held.is_some_and(|held| !held.is_disjoint(&ids));
            if !self.kubelet.processes().iter().any(|run| used(run.devices.get(GPU))) {
                self.notes.say("prestart-ok", "", &text);
                return Ok(Response::new(PreStartContainerResponse {}));
            }
            if clock::mono() >= deadline {
                self.notes.say("prestart-refused", "", &text);
                return Err(Status::unavailable("a process of another pod has the device"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A status as another client writes it.
pub fn gone_status() -> Value {
    json!({"status": {"phase": "Failed", "reason": "Gone"}})
}
