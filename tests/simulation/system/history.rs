//! What has happened, as a hash of everything and the last lines of it, and how often what is rare was seen.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

/// Branches that some of the seeds of the ordinary run must pass.
pub const RARE: &[&str] = &[
    "a call is repeated",
    "a call reads live",
    "a kubelet finds a pod running",
    "a kubelet is killed in a call",
    "a leader steps down",
    "a leading controller steps down",
    "a ledger with entries is rebuilt",
    "a pod comes back after a phase that another client wrote",
    "a pod comes back without its ids",
    "a pod is pinned to a node with a forged assignment",
    "a pod is preempted",
    "a pod runs without its devices, and its daemon says so",
    "a request has no answer in time",
    "a start waits for a pod that has left",
    "the holder of a lock is read live",
    "the ledger cannot be written",
    "the release of a lock is tried again",
];

/// Branches that some of a thousand seeds must pass.
pub const RAREST: &[&str] = &[
    "a call that two pods could make is refused",
    "a ledger is rebuilt with a leaving pod",
    "a late pod keeps the finalizer on its job",
    "a member waits for others that have ended and are gone: the group is made again",
    "a pod of a TYJob is bound before its status shows the place",
    "a scheduler that leads no more is kept from writing",
    "an old lock that names a running pod is forged",
    "devices are freed unseen",
    "devices in use are learned from the kubelet",
    "the last member of a gang is made again when the others have succeeded",
    "the leader of a job is there, which its controller has not been shown",
    "the waiting time of a gang is over",
];

/// The history of one run.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Of every line and its time.
    pub hash: u64,
    /// Lines.
    pub steps: u64,
    /// The last of them.
    pub last: VecDeque<String>,
    most: usize,
    /// By name: how often.
    pub seen: BTreeMap<&'static str, u64>,
}

impl History {
    /// Keeps so many of the last lines.
    pub fn keeping(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub fn note(&mut self, at: Duration, line: &str) {
        let line = format!("{:>9.3} s  {line}", at.as_secs_f64());
        let seed = if self.steps == 0 { 0xcbf2_9ce4_8422_2325 } else { self.hash };
        self.hash = line.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        self.steps += 1;
        if self.last.len() == self.most {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// This rare branch was passed.
    pub fn sometimes(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Whose finding it is.
    pub judge: &'static str,
    /// What was found.
    pub what: String,
    /// The number of the line after which it was found.
    pub step: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}, judge \"{}\": {}", self.step, self.judge, self.what)
    }
}
