//! How old a lock is.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::LockValue;

/// Clocks that are kept by NTP differ by less.
const CLOCKS: Duration = Duration::from_secs(2);

/// How old a lock is by the time in it: the one place where that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockAge {
    /// It has been standing for so long.
    Since(Duration),
    /// Its time is so far in the future: how long it has been standing cannot be known.
    Ahead(Duration),
}

impl LockAge {
    /// What is wrong with a time in the future.
    pub const AHEAD: &'static str = "a clock is wrong, the writer's or the reader's, so its age is not known";

    /// Of the lock of this value, which was just written where its time is ahead by no more than clocks differ.
    pub fn of(value: &LockValue, wall: Timestamp) -> Self {
        let age = wall.duration_since(value.time);
        match Duration::try_from(age) {
            Ok(age) => Self::Since(age),
            Err(_) if age.unsigned_abs() <= CLOCKS => Self::Since(Duration::ZERO),
            Err(_) => Self::Ahead(age.unsigned_abs()),
        }
    }

    /// How long it has been standing, where that is known.
    pub fn known(self) -> Option<Duration> {
        match self {
            Self::Since(age) => Some(age),
            Self::Ahead(_) => None,
        }
    }

    /// By how much its time differs from the reader's.
    pub fn distance(self) -> Duration {
        let (Self::Since(by) | Self::Ahead(by)) = self;
        by
    }
}

/// After the lock's holder: `for 47 s`.
impl fmt::Display for LockAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Since(age) => write!(f, "for {} s", age.as_secs()),
            Self::Ahead(by) => write!(f, "with a time {} s in the future", by.as_secs()),
        }
    }
}
