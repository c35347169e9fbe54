//! The query thread: runs questions one after another and can be left behind when one hangs.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;

use super::library::{self, NvmlOptions};
use crate::provider::NvmlError;

/// Stack of the NVML threads: the library's own needs are small, and only touched pages count.
pub(super) const STACK: usize = 1024 * 1024;

type Job = Box<dyn FnOnce(&Arc<Nvml>) + Send>;

/// A running query thread. Dropping it lets the thread end after the job in hand.
pub(super) struct QueryThread {
    jobs: Sender<Job>,
    ended: ThreadEnd,
    /// The library as the loader was given it.
    pub library: PathBuf,
    /// Weak, because the last owner shuts NVML down: that must be one of its own threads.
    nvml: Weak<Nvml>,
}

/// Shows whether a thread has ended: its end of the channel goes with it, also when it panics.
pub(super) struct ThreadEnd(Receiver<()>);

impl ThreadEnd {
    pub fn is_set(&self) -> bool {
        matches!(self.0.try_recv(), Err(TryRecvError::Disconnected))
    }

    /// Waits for the end, for at most `longest`.
    pub fn wait(&self, longest: Duration) -> bool {
        matches!(self.0.recv_timeout(longest), Err(RecvTimeoutError::Disconnected))
    }
}

/// Held by a thread for as long as it lives.
pub(super) type Alive = Sender<()>;

pub(super) fn life() -> (Alive, ThreadEnd) {
    let (alive, ended) = mpsc::channel();
    (alive, ThreadEnd(ended))
}

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The deadline passed; the thread is still inside the call.
    Hangs,
    /// The thread is gone: a panic inside the question.
    Ended,
}

/// What starting a worker came to.
pub(super) enum Started {
    Ready(QueryThread),
    Refused(NvmlError),
    /// Starting NVML itself hangs.
    Hangs(ThreadEnd),
}

impl QueryThread {
    /// Starts a thread that loads NVML and then answers.
    pub fn start(options: &NvmlOptions) -> Started {
        let (alive, ended) = life();
        let (jobs, queue) = mpsc::channel::<Job>();
        let (sender, answered) = mpsc::sync_channel(1);
        let for_thread = options.clone();
        let started = spawn("nvml-query", move || {
            let _alive = alive;
            match library::open(&for_thread) {
                Ok((nvml, path)) => {
                    let nvml = Arc::new(nvml);
                    // The caller has stopped waiting when the deadline has passed; then there is nothing to serve either.
                    if sender.send(Ok((Arc::downgrade(&nvml), path))).is_ok() {
                        serve(&nvml, &queue);
                    }
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        });
        if let Err(error) = started {
            return Started::Refused(error);
        }
        match answered.recv_timeout(options.init_deadline) {
            Ok(Ok((nvml, library))) => Started::Ready(Self { jobs, ended, library, nvml }),
            Ok(Err(error)) => Started::Refused(error),
            Err(RecvTimeoutError::Timeout) => Started::Hangs(ended),
            Err(RecvTimeoutError::Disconnected) => Started::Refused(panicked()),
        }
    }

    /// Leaves the thread to the call it hangs in and starts another over the same library.
    pub fn replace(self) -> (ThreadEnd, Result<Self, NvmlError>) {
        let another = self.another();
        (self.ended, another)
    }

    fn another(&self) -> Result<Self, NvmlError> {
        let (alive, ended) = life();
        let (jobs, queue) = mpsc::channel::<Job>();
        // The hanging thread owns the library; when it returned meanwhile the library may be gone.
        let nvml = self.nvml.upgrade().ok_or_else(panicked)?;
        let (weak, library) = (Arc::downgrade(&nvml), self.library.clone());
        spawn("nvml-query", move || {
            let _alive = alive;
            let nvml = nvml;
            serve(&nvml, &queue);
        })?;
        Ok(Self { jobs, ended, library, nvml: weak })
    }

    /// Runs `questions` on the thread, which is woken once for them all, and waits for `count` answers, for each at most
    /// `deadline`: those that came, and why there are no more. The callback is `false` when the caller has stopped waiting.
    pub fn ask_each<T: Send + 'static>(
        &self,
        deadline: Duration,
        count: usize,
        questions: impl FnOnce(&Arc<Nvml>, &dyn Fn(T) -> bool) + Send + 'static,
    ) -> (Vec<T>, Option<Unanswered>) {
        let (sender, answered) = mpsc::channel();
        let job: Job = Box::new(move |nvml| questions(nvml, &|answer| sender.send(answer).is_ok()));
        let mut answers = Vec::with_capacity(count);
        if self.jobs.send(job).is_err() {
            return (answers, Some(Unanswered::Ended));
        }
        while answers.len() < count {
            match answered.recv_timeout(deadline) {
                Ok(answer) => answers.push(answer),
                Err(RecvTimeoutError::Timeout) => return (answers, Some(Unanswered::Hangs)),
                Err(RecvTimeoutError::Disconnected) => return (answers, Some(Unanswered::Ended)),
            }
        }
        (answers, None)
    }

    /// Lets the thread end after the job in hand; NVML is shut down when no other thread uses it.
    pub fn finish(self) -> ThreadEnd {
        self.ended
    }
}

fn serve(nvml: &Arc<Nvml>, queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        job(nvml);
    }
}

/// A thread of the NVML pair; the error is the system's lack of threads.
pub(super) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), NvmlError> {
    let spawned = thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body);
    spawned.map(drop).map_err(|error| NvmlError::Failed { path: name.into(), what: format!("no thread: {error}") })
}

fn panicked() -> NvmlError {
    NvmlError::Failed { path: "nvml-query".into(), what: "the query thread ended unexpectedly".to_owned() }
}
