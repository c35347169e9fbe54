//! The event thread: waits inside NVML and hands each event on at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError as Wrapped;

use super::raw;
use super::raw::{EVENT_DOUBLE_BIT_ECC, EVENT_XID, Events, RawEvent};
use super::worker::{self, Ended};
use crate::hardware::provider::{EventKind, EventSink, GpuEvent, NvmlError};

/// A GPU that events are asked of: its handle's identity and its UUID.
pub(super) type Heard = (usize, String);

/// A running event thread. Dropping it stops the thread at its next wake-up; nothing is delivered after the drop.
pub(super) struct Listening {
    /// GPUs whose events arrive.
    pub uuids: BTreeSet<String>,
    stop: Arc<AtomicBool>,
    ended: Ended,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Listening {
    /// Stops the thread and waits for at most `longest` until it has left NVML.
    pub fn finish(self, longest: Duration) {
        self.stop.store(true, Ordering::Release);
        self.ended.wait(longest);
    }
}

/// Why a GPU's events are not heard.
pub(super) enum Deaf {
    /// It can deliver none.
    Unsupported(String),
    /// It is at fault now; worth another try later.
    Faulty,
}

/// Asks for the events that the GPU at `index` supports. Runs on the query thread, before the set is waited on.
pub(super) fn register(nvml: &Nvml, index: u32, events: &Events) -> Result<Heard, Deaf> {
    let device = nvml.device_by_index(index).map_err(deaf)?;
    let uuid = device.uuid().map_err(deaf)?;
    let supported = device.supported_event_types().map_err(deaf)?.bits();
    let kinds = supported & (EVENT_XID | EVENT_DOUBLE_BIT_ECC);
    if kinds & EVENT_XID == 0 {
        return Err(Deaf::Unsupported("it supports no XID events".to_owned()));
    }
    events.register(&device, kinds).map_err(deaf)?;
    Ok((raw::handle_id(&device), uuid))
}

fn deaf(error: Wrapped) -> Deaf {
    match error {
        Wrapped::NotSupported | Wrapped::FailedToLoadSymbol(_) | Wrapped::FunctionNotFound => {
            Deaf::Unsupported(error.to_string())
        }
        _ => Deaf::Faulty,
    }
}

/// Starts the thread over a set with all of `heard` registered.
pub(super) fn listen(
    events: Arc<Events>,
    heard: Vec<Heard>,
    sink: EventSink,
    wait: Duration,
) -> Result<Listening, NvmlError> {
    let (alive, ended) = worker::life();
    let stop = Arc::new(AtomicBool::new(false));
    let uuids = heard.iter().map(|(_, uuid)| uuid.clone()).collect();
    let stopped = stop.clone();
    worker::spawn("nvml-events", move || {
        let _alive = alive;
        let events = events;
        run(&events, &heard, &sink, wait, &stopped);
    })?;
    Ok(Listening { uuids, stop, ended })
}

fn run(events: &Events, heard: &[Heard], sink: &EventSink, wait: Duration, stop: &AtomicBool) {
    let millis = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1);
    while !stop.load(Ordering::Acquire) {
        let waited = events.wait(millis);
        if stop.load(Ordering::Acquire) {
            return;
        }
        match waited {
            Ok(None) => {}
            Ok(Some(event)) => translate(&event, heard).into_iter().for_each(|event| sink(event)),
            // NVML repeats this answer without waiting for as long as the GPU is lost; the probes find out which.
            Err(_) => {
                sink(GpuEvent { uuid: None, mig: None, kind: EventKind::Lost });
                thread::park_timeout(wait);
            }
        }
    }
}

/// `None` for kinds that were not asked for.
fn translate(event: &RawEvent, heard: &[Heard]) -> Option<GpuEvent> {
    let kind = match event.kind {
        EVENT_XID => EventKind::Xid(event.data),
        EVENT_DOUBLE_BIT_ECC => EventKind::DoubleBitEcc,
        _ => return None,
    };
    let uuid = heard.iter().find(|(handle, _)| *handle == event.device).map(|(_, uuid)| uuid.clone());
    Some(GpuEvent { uuid, mig: event.mig, kind })
}
