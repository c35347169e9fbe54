//! A thread that polls at fixed periods.
//!
//! A timer on the runtime would wake its thread, a second one for what may block, and the first again for the answer. Here one
//! wake-up serves all polls that are due, and only a change is sent on. While a poll hangs, the others can go on in a new thread
//! ([`PollThread::replace`]).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock;

/// Polls need little; only touched pages count.
const STACK: usize = 256 << 10;

/// Reads something and sends what changed. `false` when it is no longer wanted.
pub type Poll = Box<dyn FnMut() -> bool + Send>;

/// The thread. It ends when the last clone is dropped, after the poll under way.
#[derive(Clone)]
pub struct PollThread {
    closer: Arc<CloseOnDrop>,
}

struct CloseOnDrop(Arc<Polls>);

#[derive(Default)]
struct Polls {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    polls: Vec<PeriodicPoll>,
    closed: bool,
    /// How often the thread was replaced: a thread of an earlier generation takes no poll any more.
    generation: u64,
}

struct PeriodicPoll {
    period: Duration,
    due: Duration,
    poll: Poll,
}

impl PollThread {
    /// Starts the thread; it sleeps until there is something to poll.
    pub fn start() -> std::io::Result<Self> {
        let polls = Arc::new(Polls::default());
        polls.spawn(0)?;
        Ok(Self { closer: Arc::new(CloseOnDrop(polls)) })
    }

    /// Polls every `period` from now on, together with everything else of that period. A poll may block; the others wait for
    /// it, until the thread is replaced.
    pub fn every(&self, period: Duration, poll: Poll) {
        let due = clock::mono() + clock::until_tick(period);
        self.closer.0.lock().polls.push(PeriodicPoll { period, due, poll });
        self.closer.0.changed.notify_all();
    }

    /// Starts another thread in place of one that hangs in a poll. That poll stays with the old thread, which ends when the poll
    /// returns; if it is still wanted then, the new thread goes on with it.
    pub fn replace(&self) -> std::io::Result<()> {
        let generation = {
            let mut state = self.closer.0.lock();
            state.generation += 1;
            state.generation
        };
        self.closer.0.spawn(generation)
    }
}

impl std::fmt::Debug for PollThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollThread").finish_non_exhaustive()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Polls may own what their owners wait for.
        state.polls.clear();
        self.0.changed.notify_all();
    }
}

impl Polls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(self: &Arc<Self>, generation: u64) -> std::io::Result<()> {
        let polls = self.clone();
        thread::Builder::new().name("poll".to_owned()).stack_size(STACK).spawn(move || polls.run(generation)).map(drop)
    }

    fn run(&self, generation: u64) {
        let mut state = self.lock();
        while !state.closed && state.generation == generation {
            let first =
                state.polls.iter().enumerate().min_by_key(|(_, poll)| poll.due).map(|(at, poll)| (at, poll.due));
            let left = first.map(|(at, due)| (at, due.saturating_sub(clock::mono())));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some((at, Duration::ZERO)) => {
                    let mut next = state.polls.swap_remove(at);
                    drop(state);
                    let wanted = (next.poll)();
                    next.due = clock::mono() + clock::until_tick(next.period);
                    let mut state = self.lock();
                    if wanted && !state.closed {
                        state.polls.push(next);
                        // Another thread may wait here by now.
                        if state.generation != generation {
                            self.changed.notify_all();
                        }
                    }
                    state
                }
                Some((_, left)) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn polls_are_repeated_while_they_are_wanted_and_end_with_the_thread() {
        let poll_thread = PollThread::start().unwrap();
        let (sender, receiver) = channel();
        let mut left = 3;
        let short = sender.clone();
        poll_thread.every(
            Duration::from_millis(5),
            Box::new(move || {
                left -= 1;
                short.send("short").unwrap();
                left > 0
            }),
        );
        poll_thread.every(Duration::from_millis(20), Box::new(move || sender.send("long").is_ok()));
        let seen: Vec<&str> = receiver.iter().take(20).collect();
        assert_eq!(seen.iter().filter(|who| **who == "short").count(), 3);
        drop(poll_thread);
        // The thread drops its polls, and with them the last sender.
        assert!(receiver.iter().all(|who| who == "long"));
    }

    #[test]
    fn a_poll_that_hangs_holds_up_no_other_in_a_new_thread_and_goes_on_when_it_returns() {
        let poll_thread = PollThread::start().unwrap();
        let (sender, receiver) = channel();
        let (open, gate) = channel::<()>();
        let hangs = sender.clone();
        let mut begun = false;
        poll_thread.every(
            Duration::from_millis(5),
            Box::new(move || {
                if !std::mem::replace(&mut begun, true) {
                    hangs.send("hangs").unwrap();
                    gate.recv().unwrap();
                }
                hangs.send("back").is_ok()
            }),
        );
        assert_eq!(receiver.recv().unwrap(), "hangs");
        poll_thread.every(Duration::from_millis(5), Box::new(move || sender.send("other").is_ok()));
        poll_thread.replace().unwrap();
        assert!(receiver.iter().take(5).all(|who| who == "other"), "the others go on");
        open.send(()).unwrap();
        assert_eq!(receiver.iter().filter(|who| *who == "back").take(3).count(), 3);
        drop(poll_thread);
        assert!(receiver.iter().all(|_| true), "both threads end");
    }
}
