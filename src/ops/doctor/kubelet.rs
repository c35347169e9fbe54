//! The kubelet: its directory, its registration socket, other plugins in the directory, pod-resources, and the cgroups of pods.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;

use super::report::Finding;
use crate::say::amount;
use baton_agent::AgentOptions;
use baton_agent::handoff::PodResourcesClient;
use baton_agent::kubelet::directory::KUBELET_SOCKET;
use baton_agent::node_handoff::cgroups;
use baton_decide::handoff::PodResources;
use baton_decide::lock::LockMode;
use baton_runtime::clock;

/// Longest wait for pod-resources: a throttled kubelet answers again within a second.
const PATIENCE: Duration = Duration::from_secs(2);

pub async fn look(options: &AgentOptions) -> Vec<Finding> {
    let directory = &options.paths.kubelet_dir;
    let mut findings = vec![place(directory)];
    if directory.is_dir() {
        findings.push(registration(directory));
        findings.push(others(directory));
    }
    findings.push(pod_resources(options).await);
    findings.push(pod_cgroups(options));
    findings
}

/// Whether it is seen when processes of a pod have ended.
fn pod_cgroups(options: &AgentOptions) -> Finding {
    match cgroups(options).seen_at() {
        Ok(own) => Finding::ok("pod-cgroups", format!("the cgroups of pods are seen: {}", own.display())),
        Err(why) => {
            let advice = "run this in the daemon's container, and mount the host's /sys/fs/cgroup there at /run/cgroup, as the manifests do; without it a pod that is deleted by force keeps its devices for a minute beyond its grace period";
            Finding::warn("pod-cgroups", why, advice)
        }
    }
}

fn place(directory: &Path) -> Finding {
    let shown = directory.display();
    if !directory.is_dir() {
        let advice = "every kubelet makes it when it starts, whatever its --root-dir: is this a node? in a container, mount it there";
        return Finding::fail("kubelet-dir", format!("{shown} is no directory"), advice);
    }
    match rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::ok("kubelet-dir", format!("{shown} can be written")),
        Err(error) => {
            let advice = "the daemon's sockets lie here: run it as root, and mount the directory writable";
            Finding::fail("kubelet-dir", format!("{shown} cannot be written: {error}"), advice)
        }
    }
}

fn registration(directory: &Path) -> Finding {
    let socket = directory.join(KUBELET_SOCKET);
    let shown = socket.display();
    let advice = "start the kubelet; the daemon registers by itself within a second of its start";
    match std::fs::metadata(&socket) {
        Err(error) => return Finding::fail("kubelet-socket", format!("{shown}: {error}"), advice),
        Ok(meta) if !meta.file_type().is_socket() => {
            let advice = "remove it and restart the kubelet, which makes its socket there";
            return Finding::fail("kubelet-socket", format!("{shown} is no socket"), advice);
        }
        Ok(_) => {}
    }
    match UnixStream::connect(&socket) {
        Ok(_) => Finding::ok("kubelet-socket", format!("{shown} answers")),
        Err(error) => {
            Finding::fail("kubelet-socket", format!("{shown} exists and no process listens: {error}"), advice)
        }
    }
}

/// Two plugins of one resource name put each other out of service. Only a socket that answers is a plugin that runs.
fn others(directory: &Path) -> Finding {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let suspect = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        let ours = name.starts_with("baton-") || name == KUBELET_SOCKET;
        !ours && ["nvidia", "gpu", "rdma", "koordinator", "hami"].iter().any(|word| name.contains(word))
    };
    let mut found: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| suspect(path) && UnixStream::connect(path).is_ok())
        .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
        .collect();
    found.sort();
    if found.is_empty() {
        return Finding::ok("other-plugin", "no other plugin of GPUs or NICs is here");
    }
    let advice = "two plugins of one resource name put each other out of service: take the other one off this node (its DaemonSet's node selector) if it offers nvidia.com/gpu, koordinator.sh/* or MIG names";
    Finding::warn("other-plugin", format!("other plugins answer here: {}", found.join(", ")), advice)
}

async fn pod_resources(options: &AgentOptions) -> Finding {
    let socket = &options.paths.pod_resources_socket;
    let shown = socket.display();
    match PodResourcesClient::new(socket).list(clock::mono() + PATIENCE).await {
        PodResources::Listed(listing) => {
            Finding::ok("pod-resources", format!("{shown} lists {}", amount(listing.pods.len(), "pod")))
        }
        PodResources::Silent => {
            let advice = "it throttles callers beyond 100 a second, or the kubelet is down; the daemon calls again within the budget of a call and then refuses it, and the pod fails";
            Finding::warn("pod-resources", format!("{shown} lists no pods now"), advice)
        }
        PodResources::Missing => {
            let advice = "mount the directory pod-resources of the kubelet's --root-dir (/var/lib/kubelet, on k0s /var/lib/k0s/kubelet) into the daemon, and give --pod-resources-socket where it is elsewhere; without it a pod gets its devices only if it holds the node lock (--node-lock=always) and no other pod on the node can be asking for as many";
            Finding::bad(options.node_lock == LockMode::Auto, "pod-resources", format!("{shown} is not there"), advice)
        }
    }
}
