//! Where pods come from: a watch on this node's pods, handled by one serial loop, as a kubelet's sync loop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::mpsc;

use super::machine::Machine;
use super::pod::PodHandle;
use super::{admission, leaving, locked, predicates, status, worker};

/// Events handled at once when the loop was busy.
const BATCH: usize = 4096;

/// Starts watching and handling.
pub(super) fn run(machine: &Arc<Machine>) {
    let (events, incoming) = mpsc::unbounded_channel();
    let handling = machine.clone();
    machine.spawn(async move {
        // A real kubelet waits for its node before it asks for pods; plugins register meanwhile.
        tokio::time::sleep(handling.options.periods.source_delay).await;
        let watching = handling.clone();
        handling.spawn(async move { watch(&watching, events).await });
        handle(&handling, incoming).await;
    });
}

async fn watch(machine: &Machine, events: mpsc::UnboundedSender<watcher::Event<Pod>>) {
    let pods: Api<Pod> = Api::all(machine.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", machine.options.node_name));
    let mut cut = machine.controls.cut();
    loop {
        if cut.wait_for(|cut| !cut).await.is_err() {
            return;
        }
        // Who was cut off lists again: what was deleted meanwhile is missing, and no event tells of it.
        let mut stream = watcher(pods.clone(), config.clone()).default_backoff().boxed();
        loop {
            let next = tokio::select! {
                _ = cut.wait_for(|cut| *cut) => break,
                next = stream.try_next() => next,
            };
            match next {
                Ok(Some(event)) => {
                    if events.send(event).is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                Err(error) => tracing::warn!(%error, "cannot watch pods, will retry"),
            }
        }
    }
}

async fn handle(machine: &Arc<Machine>, mut events: mpsc::UnboundedReceiver<watcher::Event<Pod>>) {
    let mut listing: Option<Vec<Pod>> = None;
    let mut batch = Vec::new();
    while events.recv_many(&mut batch, BATCH).await > 0 {
        let mut seen = Vec::new();
        for event in batch.drain(..) {
            match event {
                watcher::Event::Init => listing = Some(Vec::new()),
                watcher::Event::InitApply(pod) => listing.get_or_insert_default().push(pod),
                watcher::Event::InitDone => {
                    apply(machine, std::mem::take(&mut seen)).await;
                    let listed = listing.take().unwrap_or_default();
                    let there: BTreeSet<_> = listed.iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
                    // First what is gone, then what is new: a successor gets its predecessor's devices at once.
                    let known: Vec<_> = locked(&machine.state).pods.values().cloned().collect();
                    known.iter().filter(|pod| !there.contains(&pod.uid)).for_each(|pod| remove(machine, pod));
                    apply(machine, listed).await;
                    if !std::mem::replace(&mut locked(&machine.state).sources_ready, true) {
                        leaving::stop_orphans(machine, &there);
                    }
                }
                watcher::Event::Apply(pod) => seen.push(pod),
                watcher::Event::Delete(pod) => {
                    apply(machine, std::mem::take(&mut seen)).await;
                    let uid = pod.metadata.uid.clone().unwrap_or_default();
                    let known = locked(&machine.state).pods.get(&uid).cloned();
                    if let Some(known) = known {
                        known.update(pod);
                        remove(machine, &known);
                    }
                }
            }
        }
        apply(machine, seen).await;
    }
}

/// Updates first, then additions by creation time.
async fn apply(machine: &Arc<Machine>, pods: Vec<Pod>) {
    let mut added: Vec<Arc<PodHandle>> = Vec::new();
    for pod in pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known = locked(&machine.state).pods.get(&uid).cloned();
        match known.or_else(|| added.iter().find(|new| new.uid == uid).cloned()) {
            Some(known) => {
                known.update(pod);
                if !added.iter().any(|new| new.uid == uid) {
                    updated(machine, &known);
                }
            }
            None => added.push(Arc::new(PodHandle::new(pod))),
        }
    }
    added.sort_by_key(|pod| pod.pod().metadata.creation_timestamp.clone());
    for pod in added {
        add(machine, &pod).await;
    }
}

fn updated(machine: &Arc<Machine>, pod: &Arc<PodHandle>) {
    if pod.cleaned.load(Ordering::SeqCst) {
        if pod.is_deleting() {
            machine.statuses.delete(pod);
        }
    } else if pod.is_deleting() {
        pod.wake.notify_one();
    }
    if machine.statuses.is_overwritten(pod) && !pod.correcting.swap(true, Ordering::SeqCst) {
        let (correcting, pod) = (machine.clone(), pod.clone());
        machine.spawn(async move {
            let periods = &correcting.options.periods;
            tokio::time::sleep(periods.scaled(periods.status_sync)).await;
            pod.correcting.store(false, Ordering::SeqCst);
            correcting.statuses.write_again(&pod);
        });
    }
}

/// Admits a new pod. It is known (and active) from here on, before its devices are.
async fn add(machine: &Arc<Machine>, pod: &Arc<PodHandle>) {
    if pod.over.load(Ordering::SeqCst) && machine.runtime.pods().contains(&pod.uid) {
        pod.stop_what_is_left();
        locked(&machine.state).pods.insert(pod.uid.clone(), pod.clone());
        worker::start(machine, pod);
        return;
    }
    locked(&machine.state).pods.insert(pod.uid.clone(), pod.clone());
    if pod.over.load(Ordering::SeqCst) {
        updated(machine, pod);
        return;
    }
    if let Some(delay) = machine.controls.admission_delay() {
        tokio::time::sleep(delay).await;
    }
    let object = pod.pod();
    let refusal = match admission::allocate_pod(machine, &object).await {
        Err(error) => Some((
            "UnexpectedAdmissionError".to_owned(),
            format!("Allocate failed due to {error}, which is unexpected"),
        )),
        Ok(()) => predicates::refusal(machine, &object),
    };
    match refusal {
        Some((reason, message)) => {
            tracing::info!(pod = pod.key(), reason, message, "rejected a pod");
            machine.statuses.put(pod, status::rejected(&object, &reason, &message));
            pod.terminal.store(true, Ordering::SeqCst);
            pod.over.store(true, Ordering::SeqCst);
            pod.cleaned.store(true, Ordering::SeqCst);
            updated(machine, pod);
        }
        None => worker::start(machine, pod),
    }
}

/// A pod has left the API server: PodResources does not list it any more, and its containers are stopped. The next pod may be given its
/// devices, however long they take.
fn remove(machine: &Arc<Machine>, pod: &Arc<PodHandle>) {
    pod.removed.store(true, Ordering::SeqCst);
    locked(&machine.state).pods.remove(&pod.uid);
    machine.statuses.forget(&pod.uid);
    pod.wake.notify_one();
    if !pod.working.load(Ordering::SeqCst) || pod.cleaned.load(Ordering::SeqCst) {
        machine.runtime.remove(&pod.uid);
    }
}
