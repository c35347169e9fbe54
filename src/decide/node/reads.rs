//! How a call learns what its decision lacks: it lets the watch catch up first, once in a call, and then asks the API server.
//!
//! ```text
//!            the decision wants live reads            no news
//!   decided ───────────────────────────────▶ waiting ─────────▶ reading ──▶ read: decided again
//!      ▲                                       │  ▲                │
//!      └─────────── news of a watch ───────────┘  └── no answer ───┘ ──▶ no time is left: failed
//! ```

use std::time::Duration;

use super::seen::Facts;
use crate::handoff::LiveReads;

/// The kubelet and this daemon see a pod at the same moment; where the kubelet's call comes first, the watch follows within
/// milliseconds. Asking the API server takes longer than that.
const HEAD_START: Duration = Duration::from_millis(10);
/// Between two attempts to read live.
const ASK_AGAIN: Duration = Duration::from_millis(75);
/// Live reads that decisions of one call may ask for one after another.
const MOST_READS: usize = 5;

/// Why a live read brought nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFailure {
    /// The API server answered with this error.
    Unavailable(String),
    /// It did not answer in time, or decisions asked for one read after another.
    OutOfTime,
}

/// What comes next.
#[derive(Debug)]
pub enum ReadStep {
    /// Wait for a version of what is seen other than `since`, at most until then (monotonic).
    Await {
        /// The version that was decided on.
        since: u64,
        /// Monotonic.
        until: Duration,
    },
    /// Read these live.
    Read(LiveReads),
    /// Decide again.
    Decide,
    /// What was wanted, and why it is not known.
    Failed(LiveReads, ReadFailure),
}

/// The live reads of one call.
#[derive(Debug)]
pub struct CallReads {
    deadline: Duration,
    fresh: LiveReads,
    wanted: LiveReads,
    made: usize,
    /// Until when the watch may catch up; set when something is missed for the first time.
    head_start: Option<Duration>,
    /// The version that was decided on last, or that a failed read has left.
    since: u64,
    /// After a read that failed: the API server is not asked again before this.
    not_before: Duration,
}

impl CallReads {
    /// Of a call that must be decided before `deadline` (monotonic).
    pub fn new(deadline: Duration) -> Self {
        Self {
            deadline,
            fresh: LiveReads::default(),
            wanted: LiveReads::default(),
            made: 0,
            head_start: None,
            since: 0,
            not_before: Duration::ZERO,
        }
    }

    /// What was read live so far.
    pub fn fresh(&self) -> &LiveReads {
        &self.fresh
    }

    /// A decision on `facts` lacks these.
    pub fn want(&mut self, wanted: LiveReads, facts: &Facts<'_>) -> ReadStep {
        self.since = facts.version;
        self.wanted = wanted;
        if self.made == MOST_READS {
            return ReadStep::Failed(LiveReads::default(), ReadFailure::OutOfTime);
        }
        let until = *self.head_start.get_or_insert(self.deadline.min(facts.mono + HEAD_START));
        if facts.seen.is_watching() && facts.mono < until {
            return ReadStep::Await { since: self.since, until };
        }
        self.ask(facts)
    }

    /// The wait is over.
    pub fn waited(&mut self, news: bool, facts: &Facts<'_>) -> ReadStep {
        if news { ReadStep::Decide } else { self.ask(facts) }
    }

    /// The API server was asked.
    pub fn read(&mut self, result: Result<(), ReadFailure>, facts: &Facts<'_>) -> ReadStep {
        let wanted = std::mem::take(&mut self.wanted);
        let Err(failure) = result else {
            self.made += 1;
            self.fresh.add(wanted);
            return ReadStep::Decide;
        };
        // The kubelet fails a pod for good: an answer that did not come once is asked for again while there is time, and the watch may
        // bring it meanwhile. What this read has brought is no news.
        self.not_before = facts.mono + ASK_AGAIN;
        self.since = facts.version;
        if self.not_before + ASK_AGAIN > self.deadline {
            return ReadStep::Failed(wanted, failure);
        }
        self.wanted = wanted;
        self.ask(facts)
    }

    fn ask(&self, facts: &Facts<'_>) -> ReadStep {
        if facts.mono < self.not_before {
            return ReadStep::Await { since: self.since, until: self.not_before };
        }
        ReadStep::Read(self.wanted.clone())
    }
}
