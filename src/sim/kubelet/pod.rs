//! One pod as the kubelet knows it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::Notify;

use super::locked;

/// A pod, its latest object and where it is in its life.
#[derive(Debug)]
pub(super) struct PodHandle {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    latest: Mutex<Arc<Pod>>,
    /// Wakes the pod's worker.
    pub wake: Notify,
    /// A worker is running.
    pub working: AtomicBool,
    /// Its phase is Succeeded or Failed.
    pub terminal: AtomicBool,
    /// Its containers are being stopped, or are to be.
    pub terminating: AtomicBool,
    /// Its containers and its sandbox have been stopped for good.
    pub over: AtomicBool,
    /// Nothing of it is left on the node.
    pub cleaned: AtomicBool,
    /// It has left the API server.
    pub removed: AtomicBool,
    /// Another client has written a terminal phase, and the kubelet's own status will be written again.
    pub correcting: AtomicBool,
}

impl PodHandle {
    pub fn new(pod: Pod) -> Self {
        let terminal = is_terminal(phase(&pod));
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            latest: Mutex::new(Arc::new(pod)),
            wake: Notify::new(),
            working: AtomicBool::new(false),
            terminal: AtomicBool::new(terminal),
            terminating: AtomicBool::new(false),
            over: AtomicBool::new(terminal),
            cleaned: AtomicBool::new(terminal),
            removed: AtomicBool::new(false),
            correcting: AtomicBool::new(false),
        }
    }

    /// The latest object.
    pub fn pod(&self) -> Arc<Pod> {
        locked(&self.latest).clone()
    }

    /// Takes over a newer object.
    pub fn update(&self, pod: Pod) {
        *locked(&self.latest) = Arc::new(pod);
    }

    /// Whether it counts for devices and PodResources. A terminal phase in the API ends that, by any client and whatever
    /// still runs.
    pub fn is_active(&self) -> bool {
        let [over, terminal, terminating] =
            [&self.over, &self.terminal, &self.terminating].map(|flag| flag.load(Ordering::SeqCst));
        let terminal = terminal || is_terminal(phase(&self.pod()));
        !over && (!terminal || terminating)
    }

    /// Processes are left of a pod whose phase is terminal: they are to be stopped.
    pub fn stop_what_is_left(&self) {
        self.terminating.store(true, Ordering::SeqCst);
        self.over.store(false, Ordering::SeqCst);
        self.cleaned.store(false, Ordering::SeqCst);
    }

    /// Whether it must be stopped.
    pub fn is_to_be_stopped(&self) -> bool {
        self.removed.load(Ordering::SeqCst) || self.is_deleting() || self.terminating.load(Ordering::SeqCst)
    }

    /// Whether the API server waits for it to be gone.
    pub fn is_deleting(&self) -> bool {
        self.pod().metadata.deletion_timestamp.is_some()
    }

    /// `namespace/name`
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// A pod's phase in the API.
pub(super) fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// Whether a phase is a last one.
pub(super) fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}
