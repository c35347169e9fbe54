//! What schedulers and controllers have in common: a process that runs for a Lease, as `cluster::leadership` does.

use std::time::Duration;

use baton::cluster::lease::{LeaseConfig, LeaseJudge, LeaseMove};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;

use super::{Candidate, Fault, Happening, Mutant, Reader, System};
use crate::harness::wall;

/// Between two tries to lead.
const RETRY: Duration = Duration::from_secs(2);
/// A request is under way for less: it may be late, and is tried again.
const UNDER_WAY: Duration = Duration::from_secs(60);
/// A leader leads for as long after it has read its Lease last.
pub const LEADS: Duration = Duration::from_secs(10);

/// A process that may lead.
pub struct Process {
    /// Counts its starts; what belongs to an earlier one has no receiver.
    pub life: u64,
    pub is_up: bool,
    /// Its watches have something for it.
    pub has_news: bool,
    /// Its clock is ahead of the others by so much.
    pub skew: SignedDuration,
    /// Until then requests may be under way that were decided by a clock that was wrong.
    pub wrong: Duration,
    pub lease: LeaseJudge,
    /// It has read its Lease since that was made.
    has_read: bool,
}

/// A candidate's work on its Lease.
#[derive(Debug)]
pub enum LeaseStep {
    /// It runs for leadership.
    Campaign,
    /// Its write arrives.
    Write { lease: Box<Lease>, version: Option<String>, sent: Duration },
    /// The version that was stored; `None` after a conflict.
    Answer { won: Option<String>, sent: Duration },
}

impl Candidate {
    /// Which Lease it runs for.
    fn lease(self) -> usize {
        usize::from(matches!(self, Self::Controller(_)))
    }

    pub fn words(self) -> String {
        match self {
            Self::Scheduler(at) => format!("scheduler {at}"),
            Self::Controller(at) => format!("controller {at}"),
        }
    }
}

impl Process {
    /// Not started yet.
    pub fn new(who: Candidate) -> Self {
        let lease = Self::judge(who, 0);
        Self {
            life: 0,
            is_up: false,
            has_news: false,
            skew: SignedDuration::ZERO,
            wrong: Duration::ZERO,
            lease,
            has_read: false,
        }
    }

    fn judge(who: Candidate, life: u64) -> LeaseJudge {
        let name = ["scheduler", "controller"][who.lease()];
        LeaseJudge::new(LeaseConfig::new("baton", name, &format!("{}-{life}", who.words())))
    }

    /// Its clock jumps.
    pub fn jumps(&mut self, skew: SignedDuration, now: Duration) {
        if self.skew != SignedDuration::ZERO {
            self.wrong = now + UNDER_WAY;
        }
        self.skew = skew;
    }

    /// What it does now may rest on a wrong time.
    pub fn may_be_wrong(&self, now: Duration) -> bool {
        self.skew != SignedDuration::ZERO || now < self.wrong
    }

    /// The next start of the same program.
    pub fn next(&self, who: Candidate) -> Self {
        let life = self.life + 1;
        let lease = Self::judge(who, life);
        Self { life, is_up: true, has_news: true, skew: self.skew, wrong: self.wrong, lease, has_read: false }
    }
}

impl System {
    pub fn process(&mut self, who: Candidate) -> &mut Process {
        match who {
            Candidate::Scheduler(at) => &mut self.schedulers[at].process,
            Candidate::Controller(at) => &mut self.controllers[at].process,
        }
    }

    /// A fresh process lists, and runs for its Lease.
    pub fn begins(&mut self, who: Candidate) {
        let life = self.process(who).life;
        let (listed, campaign) = (self.soon(50, 500), self.soon(10, 1500));
        self.note(|| format!("{} starts", who.words()));
        self.after(listed, Happening::News(Reader::Candidate(who), life));
        self.after(campaign, Happening::Lease { who, life, step: LeaseStep::Campaign });
    }

    pub fn stop(&mut self, who: Candidate) {
        let process = self.process(who);
        (process.is_up, process.life) = (false, process.life + 1);
        self.note(|| format!("{} is killed", who.words()));
    }

    /// Whether what is due for a process does not reach it: its life has ended, or it does not run now and goes on later.
    pub(super) fn is_held(&mut self, who: Candidate, life: u64, happening: impl FnOnce() -> Happening) -> bool {
        let process = self.process(who);
        if !process.is_up || process.life != life {
            return true;
        }
        let Some(until) = self.faults.paused_until(who, self.now) else { return false };
        self.at(until, happening());
        true
    }

    pub fn lease_step(&mut self, who: Candidate, life: u64, step: LeaseStep) {
        match step {
            LeaseStep::Campaign => self.campaign(who, life),
            LeaseStep::Write { lease, version, sent } => self.lease_arrives(who, life, *lease, version, sent),
            LeaseStep::Answer { won, sent } => {
                let again = || Happening::Lease { who, life, step: LeaseStep::Answer { won: won.clone(), sent } };
                if self.is_held(who, life, again) {
                    return;
                }
                let lease = &mut self.process(who).lease;
                if let Some(version) = won {
                    lease.won(Some(version), sent);
                    self.judge_leader(who);
                }
                self.goes_on(who);
            }
        }
    }

    fn campaign(&mut self, who: Candidate, life: u64) {
        if self.is_held(who, life, || Happening::Lease { who, life, step: LeaseStep::Campaign }) {
            return;
        }
        let pause = RETRY + self.soon(0, 50);
        self.after(pause, Happening::Lease { who, life, step: LeaseStep::Campaign });
        if self.faults.is_cut(Reader::Candidate(who), self.now) {
            return;
        }
        let (now, wall) = (self.now, wall(self.now) + self.process(who).skew);
        let read = self.store.leases[who.lease()].clone();
        let version = read.as_ref().and_then(|lease| lease.metadata.resource_version.clone());
        self.process(who).has_read |= read.is_some();
        match self.process(who).lease.judge(read, now, wall) {
            LeaseMove::Create(lease) | LeaseMove::Replace(lease) => {
                let pause = self.soon(1, 20);
                let step = LeaseStep::Write { lease, version, sent: now };
                self.after(pause, Happening::Lease { who, life, step });
            }
            LeaseMove::Follow { .. } => {}
        }
        self.goes_on(who);
    }

    fn lease_arrives(&mut self, who: Candidate, life: u64, lease: Lease, version: Option<String>, sent: Duration) {
        let is_lost = self.faults.cannot_send(Reader::Candidate(who), self.now);
        if is_lost || self.strikes(Fault::ServerError) {
            return;
        }
        let stands = self.store.leases[who.lease()].as_ref();
        let stands = stands.and_then(|lease| lease.metadata.resource_version.clone());
        let version = if self.is(Mutant::LeaseWithoutVersion) { stands } else { version };
        let won = self.store.put_lease(who.lease(), lease, version.as_deref());
        if won.is_some() && version.is_none() {
            let deleted = self.faults.lease_deleted.filter(|at| self.now < *at + LEADS);
            if who.lease() == 0 && !self.process(who).has_read && deleted.is_some() {
                self.history.sometimes("a scheduler that starts takes a Lease that was deleted");
                self.faults.two_lead = Some(self.now);
            }
            // The others have read one that was deleted since, if any.
            self.schedulers.iter_mut().for_each(|of| of.process.has_read = false);
        }
        let now = self.now;
        let renews = won.is_some() && self.process(who).lease.leads(now);
        if !renews {
            let how = if won.is_some() { "writes" } else { "loses the race for" };
            self.note(|| format!("{} {how} the Lease", who.words()));
        }
        if self.faults.cannot_hear(Reader::Candidate(who), self.now) {
            return;
        }
        let mut pause = self.soon(1, 20);
        if self.strikes(Fault::LateAnswer) {
            pause += self.soon(500, 12_000);
        }
        self.after(pause, Happening::Lease { who, life, step: LeaseStep::Answer { won, sent } });
    }

    /// Its event loop looks at leadership and at what is due.
    pub fn goes_on(&mut self, who: Candidate) {
        match who {
            Candidate::Scheduler(at) => self.turn_now(at),
            Candidate::Controller(at) => self.controller_turns(at),
        }
    }
}
