//! A thread that looks at things at a steady pace and disturbs nobody while nothing changes.
//!
//! A timer on the runtime would wake its thread, a second one for whatever may block, and the first again for the answer. Here
//! one wake-up serves all looks that are due, and only news goes further. A look that does not come back can be left behind
//! ([`Sentry::relieve`]): the others go on.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock;

/// Its looks need little; only touched pages count.
const STACK: usize = 256 << 10;

/// Looks at something and tells whoever waits for news. `false` when nobody does any more.
pub type Look = Box<dyn FnMut() -> bool + Send>;

/// The thread. It ends when the last clone is dropped, after the look in hand.
#[derive(Clone)]
pub struct Sentry {
    hold: Arc<Hold>,
}

/// Closes the posts with the last clone.
struct Hold(Arc<Posts>);

#[derive(Default)]
struct Posts {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    posts: Vec<Post>,
    closed: bool,
    /// How many threads were left behind: a thread of an earlier shift takes no look any more.
    shift: u64,
}

struct Post {
    period: Duration,
    due: Duration,
    look: Look,
}

impl Sentry {
    /// Starts the thread; it sleeps until there is something to look at.
    pub fn start() -> std::io::Result<Self> {
        let posts = Arc::new(Posts::default());
        posts.stand(0)?;
        Ok(Self { hold: Arc::new(Hold(posts)) })
    }

    /// Looks every `period` from now on, together with everything else of that period. A look may block; the others wait for
    /// it then, until it is left behind.
    pub fn every(&self, period: Duration, look: Look) {
        let due = clock::mono() + clock::until_tick(period);
        self.hold.0.lock().posts.push(Post { period, due, look });
        self.hold.0.changed.notify_all();
    }

    /// Puts another thread in the place of one that does not come back from its look. The look in hand stays with the old
    /// thread, which ends when it comes back; if it is still wanted then, the new thread goes on with it.
    pub fn relieve(&self) -> std::io::Result<()> {
        let shift = {
            let mut state = self.hold.0.lock();
            state.shift += 1;
            state.shift
        };
        self.hold.0.stand(shift)
    }
}

impl std::fmt::Debug for Sentry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentry").finish_non_exhaustive()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Looks may own what their owners wait for.
        state.posts.clear();
        self.0.changed.notify_all();
    }
}

impl Posts {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stand(self: &Arc<Self>, shift: u64) -> std::io::Result<()> {
        let posts = self.clone();
        thread::Builder::new().name("sentry".to_owned()).stack_size(STACK).spawn(move || posts.watch(shift)).map(drop)
    }

    fn watch(&self, shift: u64) {
        let mut state = self.lock();
        while !state.closed && state.shift == shift {
            let next = state.posts.iter().enumerate().min_by_key(|(_, post)| post.due).map(|(at, post)| (at, post.due));
            let left = next.map(|(at, due)| (at, due.saturating_sub(clock::mono())));
            state = match left {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some((at, Duration::ZERO)) => {
                    let mut post = state.posts.swap_remove(at);
                    drop(state);
                    let wanted = (post.look)();
                    post.due = clock::mono() + clock::until_tick(post.period);
                    let mut state = self.lock();
                    if wanted && !state.closed {
                        state.posts.push(post);
                        // Another thread may stand here by now.
                        if state.shift != shift {
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
    fn looks_are_repeated_until_nobody_wants_them_and_end_with_the_sentry() {
        let sentry = Sentry::start().unwrap();
        let (tell, told) = channel();
        let mut left = 3;
        let short = tell.clone();
        sentry.every(
            Duration::from_millis(5),
            Box::new(move || {
                left -= 1;
                short.send("short").unwrap();
                left > 0
            }),
        );
        sentry.every(Duration::from_millis(20), Box::new(move || tell.send("long").is_ok()));
        let seen: Vec<&str> = told.iter().take(20).collect();
        assert_eq!(seen.iter().filter(|who| **who == "short").count(), 3);
        drop(sentry);
        // The thread drops its looks, and with them the last sender.
        assert!(told.iter().all(|who| who == "long"));
    }

    #[test]
    fn a_look_that_hangs_is_left_behind_and_taken_up_again_when_it_comes_back() {
        let sentry = Sentry::start().unwrap();
        let (tell, told) = channel();
        let (open, gate) = channel::<()>();
        let hangs = tell.clone();
        let mut begun = false;
        sentry.every(
            Duration::from_millis(5),
            Box::new(move || {
                if !std::mem::replace(&mut begun, true) {
                    hangs.send("hangs").unwrap();
                    gate.recv().unwrap();
                }
                hangs.send("back").is_ok()
            }),
        );
        assert_eq!(told.recv().unwrap(), "hangs");
        sentry.every(Duration::from_millis(5), Box::new(move || tell.send("other").is_ok()));
        sentry.relieve().unwrap();
        assert!(told.iter().take(5).all(|who| who == "other"), "the others go on");
        open.send(()).unwrap();
        assert_eq!(told.iter().filter(|who| *who == "back").take(3).count(), 3);
        drop(sentry);
        assert!(told.iter().all(|_| true), "both threads end");
    }
}
