//! A thread that looks at things at a steady pace and disturbs nobody while nothing changes.
//!
//! A timer on the runtime would wake its thread, a second one for whatever may block, and the first again for the answer. Here
//! one wake-up serves all looks that are due, and only news goes further.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::clock;

/// Its looks need little; only touched pages count.
const STACK: usize = 256 << 10;

/// Looks at something and tells whoever waits for news. `false` when nobody does any more.
pub type Look = Box<dyn FnMut() -> bool + Send>;

/// The thread. It ends when this is dropped, after the look in hand.
#[derive(Debug, Clone)]
pub struct Sentry {
    posts: Sender<Post>,
}

struct Post {
    period: Duration,
    due: Duration,
    look: Look,
}

impl Sentry {
    /// Starts the thread; it sleeps until there is something to look at.
    pub fn start() -> std::io::Result<Self> {
        let (posts, new) = channel();
        thread::Builder::new().name("sentry".to_owned()).stack_size(STACK).spawn(move || watch(&new))?;
        Ok(Self { posts })
    }

    /// Looks every `period` from now on, together with everything else of that period. A look may block; the others wait for
    /// it then.
    pub fn every(&self, period: Duration, look: Look) {
        let due = clock::mono() + clock::until_tick(period);
        // The thread lives as long as this.
        let _ = self.posts.send(Post { period, due, look });
    }
}

fn watch(new: &Receiver<Post>) {
    let mut posts: Vec<Post> = Vec::new();
    loop {
        let next = posts.iter().map(|post| post.due).min();
        let came = match next {
            Some(due) => new.recv_timeout(due.saturating_sub(clock::mono())),
            None => new.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match came {
            Ok(post) => posts.push(post),
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let now = clock::mono();
                posts.retain_mut(|post| {
                    if post.due > now {
                        return true;
                    }
                    let wanted = (post.look)();
                    post.due = clock::mono() + clock::until_tick(post.period);
                    wanted
                });
            }
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
}
