//! A timer that any thread sets and clears without waking another thread: the runtime is woken only when it expires.
//!
//! A timer of the runtime that another thread sets wakes the runtime's thread to register it. This one is the kernel's: a timer
//! that is cleared in time costs no wake-up.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::unix::AsyncFd;

/// Sets the timer. Clones set the same one.
#[derive(Clone, Debug)]
pub struct Alarm(Arc<OwnedFd>);

/// Waits for the timer.
#[derive(Debug)]
pub struct Rings(AsyncFd<Arc<OwnedFd>>);

/// A timer that is not set. Must be called on a runtime.
#[allow(deprecated)] // `new` trusts that the descriptor stays open and the same; that of an `Arc<OwnedFd>` does
pub fn alarm() -> std::io::Result<(Alarm, Rings)> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = Arc::new(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?);
    Ok((Alarm(timer.clone()), Rings(AsyncFd::new(timer)?)))
}

impl Alarm {
    /// Rings once after `left`, and not at what was set before.
    pub fn set(&self, left: Duration) {
        // Zero would clear it.
        let left = left.max(Duration::from_nanos(1));
        self.put(Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
    }

    /// Does not ring.
    pub fn clear(&self) {
        self.put(Timespec { tv_sec: 0, tv_nsec: 0 });
    }

    fn put(&self, it_value: Timespec) {
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // It fails only for what is no timer or no time.
        let _ = rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once);
    }
}

impl Rings {
    /// Waits until it rings. Cancel-safe.
    pub async fn next(&mut self) {
        while let Ok(mut ready) = self.0.readable().await {
            let read = ready.try_io(|timer| Ok(rustix::io::read(timer.get_ref(), &mut [0_u8; 8])?));
            if read.is_ok_and(|read| read.is_ok()) {
                return;
            }
        }
        // The runtime is ending.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_rings_once_when_it_is_set_and_not_when_it_is_cleared() {
        let (alarm, mut rings) = alarm().unwrap();
        alarm.set(Duration::from_millis(1));
        rings.next().await;
        alarm.set(Duration::from_millis(1));
        alarm.clear();
        let again = alarm.clone();
        let late = std::thread::spawn(move || again.set(Duration::from_millis(30)));
        let heard = tokio::time::timeout(Duration::from_secs(20), rings.next());
        assert!(heard.await.is_ok(), "another thread set it");
        late.join().unwrap();
    }
}
