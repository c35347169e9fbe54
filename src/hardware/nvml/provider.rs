//! The GPU provider over NVML: scans and probes with deadlines, and keeps the event thread on every GPU that answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;

use super::events::{self, Deaf, EventThread, EventWait};
use super::library::{self, NvmlOptions};
use super::raw::Events;
use super::read::{self, Failed, Frame};
use super::worker::{QueryThread, Started, ThreadEnd, Unanswered};
use crate::bdf::Bdf;
use crate::gpu::{Fault, GpuFault, GpuInfo, GpuPair, GpuScan, NvLinks, part_doubles};
use crate::pci;
use crate::provider::{EventKind, EventSink, GpuEvent, GpuProvider, NvmlError, Probe};
use crate::question::Question;
use crate::tree::Tree;
use baton_contract::HealthReason;

/// Hanging calls beside which another one is begun: each keeps a thread. After one more NVML is not asked until one returns.
const MAX_HUNG: usize = 2;

/// NVML behind its two threads. Loads the library at the first question and again after it failed as a whole, so a driver
/// that comes later, goes, or is replaced needs no restart.
pub struct NvmlProvider {
    options: NvmlOptions,
    sink: EventSink,
    inner: Mutex<NvmlState>,
}

#[derive(Default)]
struct NvmlState {
    worker: Option<QueryThread>,
    hung: Vec<HungCall>,
    listening: Option<EventThread>,
    /// UUIDs by index as of the last scan: what a GPU that does not answer is called.
    known: BTreeMap<u32, String>,
    /// UUIDs by address, of every GPU seen so far.
    names: BTreeMap<Bdf, String>,
    links: BTreeMap<String, NvLinks>,
    /// Topology is read once per set of GPUs.
    pairs: (Vec<String>, Vec<GpuPair>),
    unsupported: BTreeSet<String>,
    /// What the sink got last for each GPU: whether its events arrive.
    reported: BTreeMap<String, bool>,
    /// Functions bound to the driver when NVML started.
    bound: Option<BTreeSet<Bdf>>,
    /// Scans in a row with a lost GPU. NVML keeps calling it lost until it starts again.
    lost: u32,
}

/// A call left behind.
struct HungCall {
    about: About,
    ended: ThreadEnd,
}

/// What a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum About {
    /// NVML's own start.
    Start,
    /// How many GPUs there are.
    Machine,
    /// A set of events.
    Events,
    Gpu {
        index: Option<u32>,
        uuid: Option<String>,
    },
}

/// A question without an answer.
enum Silence {
    /// The call hangs; it was left behind and another thread took over.
    Hangs,
    /// Nothing can be asked any more.
    Whole(NvmlError),
}

impl NvmlProvider {
    /// A provider that has not touched NVML yet. `sink` is called on the event thread, and during a scan for what a scan
    /// learns about events; it must not block nor call the provider.
    pub fn new(options: NvmlOptions, sink: EventSink) -> Self {
        Self { options, sink, inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, NvmlState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// GPUs whose events arrive at the sink; the others must be polled. For tests, as [`NvmlProvider::hanging`]: nothing else shows it.
    pub fn listening(&self) -> BTreeSet<String> {
        let inner = self.lock();
        inner.listening.as_ref().map(|listening| listening.uuids.clone()).unwrap_or_default()
    }

    /// The library in use, as the loader was given it; `None` while NVML is not started.
    pub fn library(&self) -> Option<PathBuf> {
        let inner = self.lock();
        inner.worker.as_ref().map(|worker| worker.library.clone())
    }

    /// NVML calls that hang now.
    pub fn hanging(&self) -> usize {
        let mut inner = self.lock();
        inner.forget_ended();
        inner.hung.len()
    }
}

impl GpuProvider for NvmlProvider {
    fn scan(&self) -> Result<GpuScan, NvmlError> {
        self.lock().scan(&self.options, &self.sink)
    }

    fn probe(&self, uuid: &str) -> Result<Probe, NvmlError> {
        self.lock().probe(&self.options, uuid)
    }
}

impl NvmlState {
    fn scan(&mut self, options: &NvmlOptions, sink: &EventSink) -> Result<GpuScan, NvmlError> {
        let bound = options.sysfs.as_ref().and_then(|sysfs| pci::nvidia_functions(&Tree::open(sysfs).ok()?));
        // A dead GPU must not restart NVML at every scan, nor may one that came back wait for hours.
        let look_again = self.lost.is_power_of_two() || (self.lost > 0 && self.lost.is_multiple_of(15));
        if look_again || bound != self.bound {
            self.close(options);
        }
        let frame = self.frame(options).map_err(|error| match error {
            NvmlError::NoLibrary { tried, .. } => {
                NvmlError::NoLibrary { tried, bound: bound.as_ref().map_or(0, BTreeSet::len) }
            }
            error => error,
        })?;
        self.bound = bound;
        if frame.count > read::MOST_GPUS {
            let path = self.worker.as_ref().map(|worker| worker.library.clone()).unwrap_or_default();
            let what = format!("nvmlDeviceGetCount_v2 answers {} GPUs, which cannot be", frame.count);
            return Err(NvmlError::Failed { path, what });
        }
        let (mut gpus, mut faults) = (Vec::new(), Vec::new());
        for (index, answer) in self.gpus(options, frame.count)? {
            match answer {
                Ok(gpu) => gpus.push(gpu),
                Err(Failed { uuid, bdf, fault }) => faults.push(GpuFault { index: Some(index), uuid, bdf, fault }),
            }
        }
        let (mut gpus, doubles) = part_doubles(gpus);
        faults.extend(doubles);
        let lost = faults.iter().any(|fault| fault.fault == Fault::Lost);
        self.lost = if lost { self.lost.saturating_add(1) } else { 0 };
        self.name(&gpus, &mut faults);
        self.remember(&gpus, &faults);
        gpus.sort_by_key(|gpu: &GpuInfo| gpu.bdf);
        let pairs = self.pairs(options, &mut gpus)?;
        self.listen(options, sink, &gpus)?;
        let Frame { driver_version, nvml_version, cuda_version, .. } = frame;
        Ok(GpuScan { driver_version, nvml_version, cuda_version, gpus, pairs, faults })
    }

    fn probe(&mut self, options: &NvmlOptions, uuid: &str) -> Result<Probe, NvmlError> {
        let silent = Probe { outcome: Err(Fault::Timeout(millis(options.deadline))) };
        let hangs = |about: &About| matches!(about, About::Gpu { uuid: Some(hung), .. } if hung == uuid);
        self.forget_ended();
        if self.hung.iter().any(|hung| hangs(&hung.about)) {
            return Ok(silent);
        }
        let index = self.known.iter().find(|(_, known)| *known == uuid).map(|(index, _)| *index);
        let about = About::Gpu { index, uuid: Some(uuid.to_owned()) };
        let asked = uuid.to_owned();
        match self.ask(options, about, move |nvml| read::probe(nvml, &asked)) {
            Ok(outcome) => Ok(Probe { outcome }),
            Err(Silence::Hangs) => Ok(silent),
            Err(Silence::Whole(error)) => Err(error),
        }
    }

    /// Versions and count; NVML is started again when it does not answer as a whole.
    fn frame(&mut self, options: &NvmlOptions) -> Result<Frame, NvmlError> {
        let mut again = true;
        loop {
            match self.ask(options, About::Machine, |nvml| read::frame(nvml)) {
                Ok(Ok(frame)) => return Ok(frame),
                Ok(Err(error)) => {
                    let path = self.worker.as_ref().map(|worker| worker.library.clone()).unwrap_or_default();
                    self.close(options);
                    if !again {
                        return Err(library::refusal(&error, &path));
                    }
                    again = false;
                }
                // Asked again only where it came back meanwhile.
                Err(Silence::Hangs) => self.answerable(options)?,
                Err(Silence::Whole(error)) => return Err(error),
            }
        }
    }

    /// Every GPU by index, or why not. They are asked for in one go; a GPU that a call hangs on is left out, and not asked again
    /// until the call returns.
    fn gpus(&mut self, options: &NvmlOptions, count: u32) -> Result<BTreeMap<u32, Result<GpuInfo, Failed>>, NvmlError> {
        let fault = || Fault::Timeout(millis(options.deadline));
        let silent = || Err(Failed { uuid: None, bdf: None, fault: fault() });
        let hangs = |index: &u32| {
            let is_it = |about: &About| matches!(about, About::Gpu { index: Some(hung), .. } if hung == index);
            self.hung.iter().any(|hung| is_it(&hung.about))
        };
        let (hung, mut left): (Vec<u32>, Vec<u32>) = (0..count).partition(hangs);
        let mut found: BTreeMap<u32, Result<GpuInfo, Failed>> =
            hung.into_iter().map(|index| (index, silent())).collect();
        while !left.is_empty() {
            let about = |index: &u32| About::Gpu { index: Some(*index), uuid: self.known.get(index).cloned() };
            let abouts: Vec<About> = left.iter().map(about).collect();
            let (wanted, links) = (left.clone(), self.links.clone());
            let (answers, silence) = self.ask_each(options, &abouts, move |nvml, answer| {
                let known = |uuid: &str| links.get(uuid).cloned();
                // The caller has stopped waiting when one of them hung.
                let _ = wanted.into_iter().all(|index| answer(read::gpu(nvml, index, &known)));
            });
            let unanswered = left.split_off(answers.len());
            found.extend(left.into_iter().zip(answers));
            left = unanswered;
            match silence {
                None => {}
                Some(Silence::Hangs) => drop(found.insert(left.remove(0), silent())),
                Some(Silence::Whole(error)) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Gives faults the names and addresses that their GPUs had, and adds the GPUs that the kernel has and NVML keeps silent about.
    fn name(&self, gpus: &[GpuInfo], faults: &mut Vec<GpuFault>) {
        let answered = |uuid: &&String| gpus.iter().any(|gpu| gpu.uuid == **uuid);
        for fault in faults.iter_mut() {
            // Indexes shift when a GPU leaves; a UUID that answered elsewhere is not this one.
            let known = || match fault.bdf {
                Some(bdf) => self.names.get(&bdf),
                None => fault.index.and_then(|index| self.known.get(&index)),
            };
            fault.uuid = fault.uuid.clone().or_else(|| known().filter(|uuid| !answered(uuid)).cloned());
            let place = || self.names.iter().find(|(_, uuid)| Some(*uuid) == fault.uuid.as_ref()).map(|(bdf, _)| *bdf);
            fault.bdf = fault.bdf.or_else(place);
        }
        // A GPU whose address is not known may be any of the functions: none of them is another GPU.
        let places = gpus.iter().map(|gpu| gpu.bdf).chain(faults.iter().map(|fault| fault.bdf));
        let Some(places) = places.collect::<Option<BTreeSet<Bdf>>>() else { return };
        for bdf in self.bound.iter().flatten().filter(|bdf| !places.contains(bdf)) {
            let uuid = self.names.get(bdf).cloned();
            faults.push(GpuFault { index: None, uuid, bdf: Some(*bdf), fault: Fault::Unlisted(*bdf) });
        }
    }

    fn remember(&mut self, gpus: &[GpuInfo], faults: &[GpuFault]) {
        let silent = faults.iter().filter_map(|fault| Some((fault.index?, fault.uuid.clone()?)));
        self.known = gpus.iter().map(|gpu| (gpu.index, gpu.uuid.clone())).chain(silent).collect();
        for gpu in gpus {
            self.names.extend(gpu.bdf.map(|bdf| (bdf, gpu.uuid.clone())));
            // Links that are known in part are asked for again.
            if gpu.unanswered.iter().all(|seen| seen.question.reason() != HealthReason::LinksUnknown) {
                self.links.entry(gpu.uuid.clone()).or_insert_with(|| gpu.nvlink.clone());
            }
        }
    }

    fn pairs(&mut self, options: &NvmlOptions, gpus: &mut [GpuInfo]) -> Result<Vec<GpuPair>, NvmlError> {
        let uuids: Vec<String> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        if self.pairs.0 == uuids {
            return Ok(self.pairs.1.clone());
        }
        let (mut pairs, mut complete) = (Vec::new(), true);
        let indexes: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
        for (at, index) in indexes.iter().copied().enumerate() {
            let others = indexes[at + 1..].to_vec();
            let about = About::Gpu { index: Some(index), uuid: Some(uuids[at].clone()) };
            let levels = match self.ask(options, about, move |nvml| read::levels(nvml, index, &others)) {
                Ok(levels) => levels,
                Err(Silence::Hangs) => {
                    complete = false;
                    continue;
                }
                Err(Silence::Whole(error)) => return Err(error),
            };
            for (other, level) in levels {
                let Some(other) = indexes.iter().position(|index| *index == other) else { continue };
                match level {
                    Ok(level) => pairs.push(GpuPair { a: uuids[at].clone(), b: uuids[other].clone(), level }),
                    Err(why) => {
                        complete = false;
                        gpus[at].note(Question::Topology, why.clone());
                        gpus[other].note(Question::Topology, why);
                    }
                }
            }
        }
        self.pairs = if complete { (uuids, pairs.clone()) } else { Default::default() };
        Ok(pairs)
    }

    /// Sees to it that the events of all of `gpus` arrive, and says of which they cannot.
    fn listen(&mut self, options: &NvmlOptions, sink: &EventSink, gpus: &[GpuInfo]) -> Result<(), NvmlError> {
        let before = self.listening.as_ref().map(|listening| listening.uuids.clone()).unwrap_or_default();
        let mut wanted: Vec<(u32, String)> = gpus.iter().map(|gpu| (gpu.index, gpu.uuid.clone())).collect();
        wanted.retain(|(_, uuid)| !self.unsupported.contains(uuid));
        if wanted.iter().all(|(_, uuid)| before.contains(uuid)) {
            return Ok(());
        }
        // Those that are heard are heard on until a new set is there.
        while !wanted.is_empty() {
            let events = match self.event_set(options)? {
                Ok(events) => events,
                Err(why) => {
                    wanted.iter().for_each(|(_, uuid)| self.silent(sink, uuid, &why));
                    return Ok(());
                }
            };
            let mut registered = Vec::new();
            let mut hangs = None;
            for (index, uuid) in &wanted {
                let about = About::Gpu { index: Some(*index), uuid: Some(uuid.clone()) };
                let (index, set) = (*index, events.clone());
                match self.ask(options, about, move |nvml| events::register(nvml, index, &set)) {
                    Ok(Ok(gpu)) => registered.push(gpu),
                    Ok(Err(why)) => self.silent(sink, uuid, &why),
                    Err(Silence::Hangs) => {
                        self.silent(sink, uuid, &Deaf::Faulty("NVML hangs when asked for its events".to_owned()));
                        hangs = Some(uuid.clone());
                        break;
                    }
                    Err(Silence::Whole(error)) => return Err(error),
                }
            }
            // The hanging call still has the set in its hands, so the others get a new one.
            if let Some(uuid) = hangs {
                wanted.retain(|(_, other)| *other != uuid);
                continue;
            }
            if registered.is_empty() {
                drop(self.ask(options, About::Events, move |_| drop(events)));
                return Ok(());
            }
            let waiting = EventWait { longest: options.event_wait, clock: options.clock };
            let listening = events::listen(events, registered, sink.clone(), waiting)?;
            for uuid in &listening.uuids {
                if self.reported.insert(uuid.clone(), true) != Some(true) {
                    sink(GpuEvent { uuid: Some(uuid.clone()), mig: None, kind: EventKind::Listening });
                }
            }
            self.listening = Some(listening);
            return Ok(());
        }
        Ok(())
    }

    /// A new set of events, or why there is none.
    fn event_set(&mut self, options: &NvmlOptions) -> Result<Result<Arc<Events>, Deaf>, NvmlError> {
        let hangs = || Err(Deaf::Faulty("NVML hangs when asked for a set of events".to_owned()));
        // One more call would be one more that hangs.
        if self.hung.iter().any(|hung| hung.about == About::Events) {
            return Ok(hangs());
        }
        match self.ask(options, About::Events, |nvml| Events::new(nvml.clone()).map(Arc::new)) {
            Ok(made) => Ok(made.map_err(events::deaf)),
            Err(Silence::Hangs) => Ok(hangs()),
            Err(Silence::Whole(error)) => Err(error),
        }
    }

    /// The GPU is polled from here on: while NVML runs where it can deliver no events, otherwise until a later scan's try succeeds.
    fn silent(&mut self, sink: &EventSink, uuid: &str, deaf: &Deaf) {
        let (Deaf::Unsupported(why) | Deaf::Faulty(why)) = deaf;
        if matches!(deaf, Deaf::Unsupported(_)) {
            self.unsupported.insert(uuid.to_owned());
        }
        if self.reported.insert(uuid.to_owned(), false) != Some(false) {
            sink(GpuEvent { uuid: Some(uuid.to_owned()), mig: None, kind: EventKind::Silent(why.clone()) });
        }
    }

    /// Shuts NVML down, as far as no call hangs in it; the next question starts it again.
    fn close(&mut self, options: &NvmlOptions) {
        if let Some(listening) = self.listening.take() {
            listening.finish(options.event_wait + options.deadline);
        }
        if let Some(worker) = self.worker.take() {
            worker.finish().wait(options.deadline);
        }
        self.bound = None;
        self.links.clear();
        self.unsupported.clear();
    }

    /// An error while NVML as a whole hangs, or too many calls do: each question would be one more that hangs.
    fn answerable(&mut self, options: &NvmlOptions) -> Result<(), NvmlError> {
        self.forget_ended();
        for call in &self.hung {
            match call.about {
                About::Start => return Err(timeout("its own start", options.init_deadline)),
                About::Machine => return Err(timeout("how many GPUs there are", options.deadline)),
                About::Events | About::Gpu { .. } => {}
            }
        }
        if self.hung.len() > MAX_HUNG { Err(NvmlError::Exhausted(self.hung.len())) } else { Ok(()) }
    }

    fn forget_ended(&mut self) {
        self.hung.retain(|hung| !hung.ended.is_set());
    }

    /// Asks on the query thread, starting NVML first where needed.
    fn ask<T: Send + 'static>(
        &mut self,
        options: &NvmlOptions,
        about: About,
        question: impl FnOnce(&Arc<Nvml>) -> T + Send + 'static,
    ) -> Result<T, Silence> {
        let asked = self.ask_each(options, &[about], move |nvml, answer| {
            answer(question(nvml));
        });
        let (answers, silence) = asked;
        answers.into_iter().next().ok_or(silence.unwrap_or(Silence::Hangs))
    }

    /// Asks about each of `abouts` in one go; the answers that came, and why there are no more.
    fn ask_each<T: Send + 'static>(
        &mut self,
        options: &NvmlOptions,
        abouts: &[About],
        questions: impl FnOnce(&Arc<Nvml>, &dyn Fn(T) -> bool) + Send + 'static,
    ) -> (Vec<T>, Option<Silence>) {
        let ready = self.answerable(options).and_then(|()| self.worker.take().map_or_else(|| self.start(options), Ok));
        let worker = match ready {
            Ok(worker) => worker,
            Err(error) => return (Vec::new(), Some(Silence::Whole(error))),
        };
        let (answers, why) = worker.ask_each(options.deadline, abouts.len(), questions);
        let Some(why) = why else {
            self.worker = Some(worker);
            return (answers, None);
        };
        let about = abouts.get(answers.len()).cloned().unwrap_or(About::Machine);
        let silence = self.leave(worker, why, about);
        (answers, Some(silence))
    }

    /// Goes on without a thread that does not answer.
    fn leave(&mut self, worker: QueryThread, why: Unanswered, about: About) -> Silence {
        if matches!(why, Unanswered::Ended) {
            let what = "the query thread ended unexpectedly".to_owned();
            return Silence::Whole(NvmlError::Failed { path: worker.library, what });
        }
        let full = self.hung.len() >= MAX_HUNG;
        let (ended, another) = worker.replace();
        self.hung.push(HungCall { about, ended });
        match another {
            _ if full => Silence::Whole(NvmlError::Exhausted(self.hung.len())),
            Ok(another) => {
                self.worker = Some(another);
                Silence::Hangs
            }
            Err(error) => Silence::Whole(error),
        }
    }

    fn start(&mut self, options: &NvmlOptions) -> Result<QueryThread, NvmlError> {
        match QueryThread::start(options) {
            Started::Ready(worker) => Ok(worker),
            Started::Refused(error) => Err(error),
            Started::Hangs(ended) => {
                self.hung.push(HungCall { about: About::Start, ended });
                Err(timeout("its own start", options.init_deadline))
            }
        }
    }
}

/// NVML as a whole did not answer.
fn timeout(what: &str, within: Duration) -> NvmlError {
    NvmlError::Timeout { what: what.to_owned(), millis: millis(within) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
