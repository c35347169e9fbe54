//! When this node's lock goes: once its holder is served, or will never be; off the path of calls, tried again until it is done.
//!
//! | state | moved by | effects |
//! | --- | --- | --- |
//! | rests | news, an answer, its time | looks at the lock |
//! | looks | the watches are broken for some time | read the lock live |
//! | | the holder is unknown here, for a second | read the holder live |
//! | | the holder is served, gone, or will not be served | release exactly this value |
//! | releases | done, or another value stands | rests |
//! | | failed | publish that the lock stands, if its holder is served; look again later |

use std::time::Duration;

use super::hand_off::HandOff;
use super::seen::Facts;
use crate::lock::{LiveHolder, ReleaseIntent, ReleaseReason, judge_release};
use crate::pod::HandoffPod;
use baton_contract::{LockRead, PodKey};

/// Between two live reads of a holder that the watch does not show.
const ASK_AGAIN: Duration = Duration::from_secs(3);
/// A bind follows its lock within milliseconds: so long an unknown holder is not asked for.
const BIND_FOLLOWS: Duration = Duration::from_secs(1);
/// Nothing to do and the watches run: only news matter.
const QUIET: Duration = Duration::from_mins(1);
/// What failed is tried again after this, and then ever more slowly.
pub const RETRY_MIN: Duration = Duration::from_millis(200);

/// What became of the lock of a holder that was served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServedLock {
    /// There is none.
    Released,
    /// This value could not be removed so far.
    Stands(Box<str>),
}

impl ServedLock {
    /// The value that stands.
    pub fn raw(self) -> Option<Box<str>> {
        match self {
            Self::Released => None,
            Self::Stands(raw) => Some(raw),
        }
    }
}

/// One thing to do. Only the last of several has a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnlockEffect {
    /// Publish what became of the lock of a served holder.
    Say(ServedLock),
    /// Read the lock live into what is seen. Report: [`UnlockReport::LockRead`].
    ReadLock,
    /// Read the holder live. Report: [`UnlockReport::HolderRead`].
    ReadHolder(PodKey),
    /// Remove exactly this value. Report: [`UnlockReport::Released`].
    Release {
        /// The value.
        raw: Box<str>,
        /// Why.
        reason: ReleaseReason,
    },
    /// Look again after this time, or when there are news.
    Rest(Duration),
    /// Look again after a while that grows from one failure to the next, or when a broken watch runs again.
    RestAfterFailure,
}

/// What came of an effect.
#[derive(Debug, Clone)]
pub enum UnlockReport {
    /// The lock was read.
    LockRead {
        /// It was.
        read: bool,
    },
    /// The holder as the API server has it; `None` where it did not answer.
    HolderRead(Option<Option<Box<HandoffPod>>>),
    /// The value was removed, or is not there any more; `false` where that is not known.
    Released(bool),
}

/// What is known of a holder that is not among this node's pods.
#[derive(Debug, Clone)]
struct HolderRead {
    raw: Box<str>,
    at: Duration,
    found: Option<Box<HandoffPod>>,
}

/// Looks after the lock of one node.
#[derive(Debug, Clone)]
pub struct Unlocking {
    /// The longest wait between two looks while there is a lock.
    pace: Duration,
    read: Option<HolderRead>,
    /// The lock whose holder the watch does not show, and since when.
    strange: Option<(Box<str>, Duration)>,
    /// When a lock that no watch brings was read last.
    looked: Duration,
    /// What was said of the lock of a served holder.
    said: Option<ServedLock>,
    /// What is being removed, and why.
    releasing: Option<(Box<str>, ReleaseReason)>,
}

impl Unlocking {
    /// Begins at `now` (monotonic).
    pub fn new(pace: Duration, now: Duration) -> Self {
        Self { pace, read: None, strange: None, looked: now, said: None, releasing: None }
    }

    /// What was said of the lock of a served holder; `None` until it was looked at.
    pub fn said(&self) -> Option<&ServedLock> {
        self.said.as_ref()
    }

    /// Looks at the lock; `of` once it is known what was handed out.
    pub fn look(&mut self, of: Option<&HandOff>, facts: &Facts<'_>) -> Vec<UnlockEffect> {
        let Some(of) = of.filter(|_| facts.seen.is_synced()) else { return vec![self.rest(facts)] };
        // A watch that broke brings no news: look at the lock itself.
        if !facts.seen.is_watching() && facts.mono.saturating_sub(self.looked) >= self.pace {
            self.looked = facts.mono;
            return vec![UnlockEffect::ReadLock];
        }
        self.judge(of, facts)
    }

    /// The last effect was performed.
    pub fn report(&mut self, report: UnlockReport, of: Option<&HandOff>, facts: &Facts<'_>) -> Vec<UnlockEffect> {
        let Some(of) = of else { return vec![self.rest(facts)] };
        match report {
            UnlockReport::LockRead { read: true } => self.judge(of, facts),
            UnlockReport::HolderRead(Some(found)) => {
                let raw = self.strange.as_ref().map(|(raw, _)| raw.clone()).unwrap_or_default();
                self.read = Some(HolderRead { raw, at: facts.mono, found });
                self.judge(of, facts)
            }
            UnlockReport::LockRead { read: false } | UnlockReport::HolderRead(None) => {
                vec![UnlockEffect::RestAfterFailure]
            }
            UnlockReport::Released(true) => {
                self.releasing = None;
                let said = self.say(ServedLock::Released);
                said.into_iter().chain([self.rest(facts)]).collect()
            }
            UnlockReport::Released(false) => {
                let served = self.releasing.take().filter(|(_, reason)| *reason == ReleaseReason::Served);
                let said = served.and_then(|(raw, _)| self.say(ServedLock::Stands(raw)));
                said.into_iter().chain([UnlockEffect::RestAfterFailure]).collect()
            }
        }
    }

    fn judge(&mut self, of: &HandOff, facts: &Facts<'_>) -> Vec<UnlockEffect> {
        let lock = &facts.seen.lock;
        let is_of = |read: &&HolderRead| Some(&*read.raw) == lock.raw();
        let read = self.read.as_ref().filter(is_of);
        let live = match read.filter(|read| facts.mono.saturating_sub(read.at) < ASK_AGAIN) {
            None => LiveHolder::NotRead,
            Some(HolderRead { found: None, .. }) => LiveHolder::NotFound,
            Some(HolderRead { found: Some(pod), .. }) => LiveHolder::Found(pod),
        };
        let progress = |pod: &HandoffPod| of.ledger.progress(pod, facts.inventory);
        let intent = judge_release(lock, facts.node, facts.seen.pods.iter(), live, progress, facts.wall);
        let was_read = read.is_some();
        let said = match &intent {
            // A daemon that starts may have tried before: a scheduler must not take the holder for unserved until the first try is over.
            ReleaseIntent::Release { raw, reason: ReleaseReason::Served } if self.said.is_none() => {
                self.say(ServedLock::Stands(raw.clone()))
            }
            ReleaseIntent::Release { reason: ReleaseReason::Served, .. } => None,
            _ => self.say(ServedLock::Released),
        };
        let next = match intent {
            ReleaseIntent::Keep if was_read => UnlockEffect::Rest(ASK_AGAIN.min(self.pace)),
            ReleaseIntent::Keep => self.rest(facts),
            ReleaseIntent::ReadHolder(key) => self.stranger(key, lock, facts.mono),
            ReleaseIntent::Release { raw, reason } => {
                self.releasing = Some((raw.clone(), reason));
                UnlockEffect::Release { raw, reason }
            }
        };
        said.into_iter().chain([next]).collect()
    }

    /// The watch does not show the holder.
    fn stranger(&mut self, key: PodKey, lock: &LockRead, now: Duration) -> UnlockEffect {
        let raw = lock.raw().unwrap_or_default();
        let since = match &self.strange {
            Some((value, since)) if **value == *raw => *since,
            _ => {
                self.strange = Some((raw.into(), now));
                now
            }
        };
        if now.saturating_sub(since) < BIND_FOLLOWS {
            UnlockEffect::Rest(BIND_FOLLOWS)
        } else {
            UnlockEffect::ReadHolder(key)
        }
    }

    fn say(&mut self, now: ServedLock) -> Option<UnlockEffect> {
        let is_news = self.said.as_ref() != Some(&now);
        is_news.then(|| UnlockEffect::Say(self.said.insert(now).clone()))
    }

    fn rest(&self, facts: &Facts<'_>) -> UnlockEffect {
        let is_quiet = facts.seen.is_watching() && facts.seen.lock == LockRead::Free;
        UnlockEffect::Rest(if is_quiet { QUIET } else { self.pace })
    }
}
