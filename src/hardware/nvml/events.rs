//! The event thread: waits inside NVML and hands each event on at once.
//!
//! A library may answer without waiting: NVML does so for as long as a GPU is lost, and a library that only claims to have
//! events does so always. The thread pauses then by itself, so that it takes no processor.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError as Wrapped;

use super::raw;
use super::raw::{EVENT_XID, Events, RawEvent};
use super::worker::{self, ThreadEnd};
use crate::provider::{EventKind, EventSink, GpuEvent, NvmlError};

/// A GPU that events are asked of: its handle's identity and its UUID.
pub(super) type RegisteredGpu = (usize, String);

/// Between two waits that the library does not wait in.
const PAUSE: Duration = Duration::from_millis(100);

/// A running event thread. Dropping it stops the thread at its next wake-up; what it is woken up with is still delivered,
/// because no other thread gets it.
pub(super) struct EventThread {
    /// GPUs whose events arrive.
    pub uuids: BTreeSet<String>,
    stop: Arc<AtomicBool>,
    ended: ThreadEnd,
}

impl Drop for EventThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl EventThread {
    /// Stops the thread and waits for at most `longest` until it has left NVML.
    pub fn finish(self, longest: Duration) {
        self.stop.store(true, Ordering::Release);
        self.ended.wait(longest);
    }
}

/// Why a GPU's events do not arrive.
pub(super) enum Deaf {
    /// It can deliver none.
    Unsupported(String),
    /// Something is at fault now; worth another try later.
    Faulty(String),
}

/// Asks for the XIDs of the GPU at `index`, and for no ECC errors: an XID tells of each of those, and in which MIG instance it is.
/// Runs on the query thread, before the set is waited on.
pub(super) fn register(nvml: &Nvml, index: u32, events: &Events) -> Result<RegisteredGpu, Deaf> {
    let device = nvml.device_by_index(index).map_err(deaf)?;
    let uuid = device.uuid().map_err(deaf)?;
    if device.supported_event_types().map_err(deaf)?.bits() & EVENT_XID == 0 {
        return Err(Deaf::Unsupported("it supports no XID events".to_owned()));
    }
    events.register(&device, EVENT_XID).map_err(deaf)?;
    Ok((raw::handle_id(&device), uuid))
}

/// Which of the two `error` is, whichever call it comes from.
pub(super) fn deaf(error: Wrapped) -> Deaf {
    match error {
        Wrapped::NotSupported | Wrapped::FailedToLoadSymbol(_) | Wrapped::FunctionNotFound => {
            Deaf::Unsupported(error.to_string())
        }
        _ => Deaf::Faulty(error.to_string()),
    }
}

/// Starts the thread over a set with all of `registered` registered.
pub(super) fn listen(
    events: Arc<Events>,
    registered: Vec<RegisteredGpu>,
    sink: EventSink,
    waiting: EventWait,
) -> Result<EventThread, NvmlError> {
    let (alive, ended) = worker::life();
    let stop = Arc::new(AtomicBool::new(false));
    let uuids = registered.iter().map(|(_, uuid)| uuid.clone()).collect();
    let stopped = stop.clone();
    worker::spawn("nvml-events", move || {
        let _alive = alive;
        let events = events;
        run(&events, &registered, &sink, &waiting, &stopped);
    })?;
    Ok(EventThread { uuids, stop, ended })
}

/// How the thread waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventWait {
    /// Longest single wait.
    pub longest: Duration,
    /// Monotonic time.
    pub clock: Option<fn() -> Duration>,
}

impl EventWait {
    /// Waits inside the library; also returns whether it came back with nothing long before the time.
    fn once(&self, events: &Events) -> (Result<Option<raw::RawEvent>, Wrapped>, bool) {
        let millis = u32::try_from(self.longest.as_millis()).unwrap_or(u32::MAX).max(1);
        let began = self.clock.map(|now| now());
        let waited = events.wait(millis);
        let took = self.clock.zip(began).map(|(now, began)| now().saturating_sub(began));
        let early = matches!(waited, Ok(None)) && took.is_some_and(|took| took < self.longest / 2);
        (waited, early)
    }
}

fn run(events: &Events, registered: &[RegisteredGpu], sink: &EventSink, waiting: &EventWait, stop: &AtomicBool) {
    let all = |kind: &EventKind| {
        registered
            .iter()
            .for_each(|(_, uuid)| sink(GpuEvent { uuid: Some(uuid.clone()), mig: None, kind: kind.clone() }));
    };
    // NVML repeats "lost" without waiting; the probes that it starts are not to be.
    let repeats = (waiting.longest.as_millis() / PAUSE.as_millis()).max(1);
    let mut lost = 0;
    while !stop.load(Ordering::Acquire) {
        let (waited, early) = waiting.once(events);
        match waited {
            Ok(None) if early => thread::park_timeout(PAUSE),
            Ok(None) => lost = 0,
            Ok(Some(event)) => translate(&event, registered, events).into_iter().for_each(|event| sink(event)),
            Err(error) => match deaf(error) {
                // It let events be asked for and has no way to deliver them.
                Deaf::Unsupported(why) => return all(&EventKind::Silent(why)),
                // The probes find out which.
                Deaf::Faulty(_) => {
                    if lost % repeats == 0 && !stop.load(Ordering::Acquire) {
                        sink(GpuEvent { uuid: None, mig: None, kind: EventKind::Lost });
                    }
                    lost += 1;
                    thread::park_timeout(PAUSE);
                }
            },
        }
    }
}

/// `None` for kinds that were not asked for. An event whose GPU is unknown applies to every GPU.
fn translate(event: &RawEvent, registered: &[RegisteredGpu], events: &Events) -> Option<GpuEvent> {
    if event.kind != EVENT_XID {
        return None;
    }
    let known = registered.iter().find(|(handle, _)| *handle == event.handle_id()).map(|(_, uuid)| uuid.clone());
    let uuid = known.or_else(|| {
        let uuid = events.uuid(event).ok()?;
        registered.iter().any(|(_, other)| *other == uuid).then_some(uuid)
    });
    Some(GpuEvent { uuid, mig: event.mig, kind: EventKind::Xid(event.data) })
}
