//! From an XID inside NVML to those who must know: the kubelet by its lists, the scheduler by the Device object.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use baton::agent::kubelet::register::dial;
use baton::contract::deviceplugin::Empty;
use baton::contract::deviceplugin::device_plugin_client::DevicePluginClient;
use baton::contract::inventory::Device;
use baton::runtime::clock;
use futures::StreamExt as _;
use kube::api::{Api, WatchEvent, WatchParams};
use tokio::sync::mpsc;

use crate::harness::TestCluster;

const PATIENCE: Duration = Duration::from_secs(20);

/// Times of one XID.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Until the last of the lists that name the GPU had come.
    pub lists: Duration,
    /// Until a watcher had the Device object that says it.
    pub object: Duration,
}

/// Who knows, of how many unhealthy GPUs, and since when.
struct News {
    who: String,
    unhealthy: usize,
    at: Duration,
}

/// Reads a plugin's lists and tells of each, on a thread of its own, as a kubelet is a process of its own: the simulated one
/// works on the same lists in this process at the same time, under locks that no reader shall wait for. `false` is sent where
/// the lists have no GPUs.
fn read_lists(socket: PathBuf, seen: mpsc::UnboundedSender<News>, has_gpus: std::sync::mpsc::Sender<bool>) {
    let reading = async move {
        let mut stream = DevicePluginClient::new(dial(&socket, PATIENCE).await.unwrap())
            .max_decoding_message_size(4 << 20)
            .list_and_watch(Empty {})
            .await
            .unwrap()
            .into_inner();
        let first = stream.message().await.unwrap().unwrap();
        let wanted = first.devices.iter().any(|device| device.id.starts_with("GPU-"));
        has_gpus.send(wanted).unwrap();
        let who = socket.display().to_string();
        while let Ok(Some(list)) = if wanted { stream.message().await } else { Ok(None) } {
            let at = clock::mono();
            let mut gpus: BTreeMap<&str, bool> = BTreeMap::new();
            for device in &list.devices {
                let gpu = device.id.split("::").next().unwrap_or_default();
                *gpus.entry(gpu).or_default() |= device.health == "Unhealthy";
            }
            let unhealthy = gpus.values().filter(|sick| **sick).count();
            if seen.send(News { who: who.clone(), unhealthy, at }).is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(reading);
    });
}

/// One XID on each GPU of the first node, one after another.
pub async fn measure(cluster: &TestCluster) -> Vec<Sample> {
    let node = &cluster.nodes[0];
    let (seen, mut news) = mpsc::unbounded_channel();
    let sockets = sockets(&node.kubelet.options().device_plugins_dir());
    let (has_gpus, answers) = std::sync::mpsc::channel();
    let all = sockets.len();
    sockets.into_iter().for_each(|socket| read_lists(socket, seen.clone(), has_gpus.clone()));
    let lists =
        tokio::task::spawn_blocking(move || answers.iter().take(all).filter(|wanted| *wanted).count()).await.unwrap();
    assert_eq!(lists, 5, "whole GPUs, and four names of shares");
    let devices: Api<Device> = Api::all(cluster.client.clone());
    let version = devices.get_metadata(&node.name).await.unwrap().metadata.resource_version.unwrap();
    let mut watch = devices.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    tokio::spawn(async move {
        while let Some(Ok(event)) = watch.next().await {
            let at = clock::mono();
            let (WatchEvent::Added(device) | WatchEvent::Modified(device)) = event else { continue };
            let unhealthy = device.spec.devices.iter().filter(|device| !device.health).count();
            if seen.send(News { who: "object".to_owned(), unhealthy, at }).is_err() {
                return;
            }
        }
    });

    let mut samples = Vec::new();
    for gpu in 0..8 {
        let start = clock::mono();
        node.hardware.xid(gpu, 79).unwrap();
        let mut known: BTreeMap<String, Duration> = BTreeMap::new();
        while known.len() < lists + 1 {
            let news = tokio::time::timeout(PATIENCE, news.recv()).await.expect("every list shows it").unwrap();
            if news.unhealthy == gpu + 1 {
                known.entry(news.who).or_insert(news.at.saturating_sub(start));
            }
        }
        let object = known.remove("object").unwrap();
        samples.push(Sample { lists: known.into_values().max().unwrap(), object });
        // The next comes to a daemon at rest.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    samples
}

fn sockets(directory: &std::path::Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("baton-"))).collect()
}
