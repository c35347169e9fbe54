//! A TYJob controller as a process: the controller that ships, its watches, its requests and their answers, as `tyjob::event_loop`
//! handles them.

use std::sync::Arc;
use std::time::Duration;

use baton::cluster::requests::ANSWER;
use baton::contract::tyjob::TyJob;
use baton::decide::controller::{
    ControllerEffect, ControllerEvent, ControllerReport, EffectId, JobController, JobRequest,
};
use baton::decide::scheduler::Moment;
use baton::tyjob::ControllerOptions;

use super::job_requests::{event, stored};
use super::process::Process;
use super::store::{Change, JOBS, PODS, Watches};
use super::{Candidate, Fault, Happening, Mutant, Reader, System};
use crate::harness::wall;

/// So much later an adapter that is wrong sends what comes first.
const LATER: Duration = Duration::from_secs(5);

/// One controller.
pub struct ControllerProcess {
    pub process: Process,
    term: Option<Term>,
    turn: Option<Duration>,
}

/// What a leader keeps in memory.
struct Term {
    /// Each term has its own.
    number: u64,
    controller: JobController,
    /// Of the watch of TYJobs and nodes, and of that of pods.
    watches: Watches,
    is_synced: bool,
}

/// A request on its way.
#[derive(Debug)]
pub struct Asked {
    to: Return,
    job: Arc<TyJob>,
    request: JobRequest,
}

/// Its answer.
#[derive(Debug)]
pub struct Replied {
    to: Return,
    report: ControllerReport,
}

/// Who waits for an answer.
#[derive(Debug, Clone, Copy)]
struct Return {
    at: usize,
    life: u64,
    term: u64,
    id: EffectId,
}

impl ControllerProcess {
    pub fn new(at: usize) -> Self {
        Self { process: Process::new(Candidate::Controller(at)), term: None, turn: None }
    }
}

impl System {
    /// A fresh process; what an earlier one knew is gone.
    pub fn start_controller(&mut self, at: usize) {
        let who = Candidate::Controller(at);
        let process = self.controllers[at].process.next(who);
        self.controllers[at] = ControllerProcess { process, ..ControllerProcess::new(at) };
        self.begins(who);
    }

    /// The watches of a leader, or the lists with which its term begins.
    pub fn news_for_controller(&mut self, at: usize, life: u64) {
        let who = Candidate::Controller(at);
        if self.is_held(who, life, || Happening::News(Reader::Candidate(who), life)) {
            return;
        }
        self.controllers[at].process.has_news = false;
        let expired = self.faults.lists_again(Reader::Candidate(who));
        let behind = self.one_is_behind(&[JOBS, PODS]);
        let Some(term) = &mut self.controllers[at].term else { return };
        let begins = !std::mem::replace(&mut term.is_synced, true);
        let changes = term.watches.follow(&self.store, (expired || begins).then_some(self.now), behind);
        changes.into_iter().filter_map(event).for_each(|event| term.controller.event(event));
        if begins {
            term.controller.complete();
        }
        if behind.is_some() {
            self.comes_later(Reader::Candidate(who), life);
        }
        self.controller_turns(at);
    }

    /// One round of the event loop.
    pub fn controller_turns(&mut self, at: usize) {
        let who = Candidate::Controller(at);
        let now = Moment { mono: self.now, wall: wall(self.now) + self.controllers[at].process.skew };
        let ControllerProcess { process, term, .. } = &mut self.controllers[at];
        let (life, until) = (process.life, process.lease.until());
        if term.is_none() && process.lease.leads(now.mono) {
            let controller = JobController::new(ControllerOptions::default().settings(), now);
            *term = Some(Term { number: self.serial, controller, watches: Watches::default(), is_synced: false });
            process.has_news = true;
            self.note(|| format!("controller {at} leads"));
            let listed = self.soon(20, 300);
            self.after(listed, Happening::News(Reader::Candidate(who), life));
        }
        let until = if self.is(Mutant::StaleControllerWrites) { Duration::MAX } else { until };
        let Some(term) = &mut self.controllers[at].term else { return };
        let Some(effects) = term.controller.step(now, until) else {
            self.controllers[at].term = None;
            self.note(|| format!("controller {at} leads no more"));
            return self.history.sometimes("a leading controller steps down");
        };
        let (number, next) = (term.number, term.controller.due().clamp(self.now, until));
        for effect in effects {
            match effect {
                ControllerEffect::Event { reason, .. } => self.history.sometimes(reason.word()),
                ControllerEffect::Request { id, job, request } => {
                    self.sends(Asked { to: Return { at, life, term: number, id }, job, request });
                }
            }
        }
        let controller = &mut self.controllers[at];
        if controller.turn.is_none_or(|turn| turn <= self.now || next < turn) {
            controller.turn = Some(next);
            self.at(next, Happening::ControllerTurn { at, life });
        }
    }

    pub fn controller_turn(&mut self, at: usize, life: u64) {
        if !self.is_held(Candidate::Controller(at), life, || Happening::ControllerTurn { at, life }) {
            self.controllers[at].turn = None;
            self.controller_turns(at);
        }
    }

    fn sends(&mut self, asked: Asked) {
        self.judge_sender(asked.to.at);
        let mut pause = self.soon(1, 20);
        match &asked.request {
            JobRequest::WriteStatus(status) if self.is(Mutant::StatusAssumed) => {
                self.reply(asked.to, stored(&asked.job, status), Duration::ZERO);
            }
            JobRequest::WriteStatus(status) if self.is(Mutant::StatusAfterEffects) => {
                self.reply(asked.to, stored(&asked.job, status), Duration::ZERO);
                pause += LATER;
            }
            _ => {}
        }
        let is_cut = self.faults.cannot_send(Reader::Candidate(Candidate::Controller(asked.to.at)), self.now);
        if is_cut || self.strikes(Fault::LostRequest) {
            return self.reply(asked.to, self.lost(&asked.job, &asked.request), ANSWER);
        }
        if self.strikes(Fault::LateRequest) {
            pause += self.soon(500, 9000);
        }
        self.after(pause, Happening::Asked(Box::new(asked)));
    }

    fn reply(&mut self, to: Return, report: ControllerReport, pause: Duration) {
        self.after(pause, Happening::Replied(Box::new(Replied { to, report })));
    }

    /// A request is at the API server. Its sender may have ended meanwhile.
    pub fn asked(&mut self, asked: Asked) {
        let Asked { to, job, request } = asked;
        let mut pause = self.soon(1, 20);
        if self.strikes(Fault::ServerError) || self.strikes(Fault::TooManyRequests) {
            return self.reply(to, self.lost(&job, &request), pause);
        }
        let who = Candidate::Controller(to.at);
        let report = self.execute_for_job(to.at, &job, &request);
        if self.process(who).life == to.life && self.strikes(Fault::ControllerKilledUnanswered) {
            self.stop(who);
            self.starts_again(who);
        }
        if self.faults.cannot_hear(Reader::Candidate(who), self.now) || self.strikes(Fault::LostAnswer) {
            return self.reply(to, self.lost(&job, &request), ANSWER);
        }
        if self.strikes(Fault::LateAnswer) {
            pause += self.soon(500, 9000);
        }
        self.reply(to, report, pause);
    }

    /// An answer is back at the controller.
    pub fn replied(&mut self, replied: Box<Replied>) {
        let Return { at, life, term: number, id } = replied.to;
        let process = &self.controllers[at].process;
        if !process.is_up || process.life != life {
            return;
        }
        if let Some(until) = self.faults.paused_until(Candidate::Controller(at), self.now) {
            return self.at(until, Happening::Replied(replied));
        }
        if let Some(term) = self.controllers[at].term.as_mut().filter(|term| term.number == number) {
            term.controller.report(id, replied.report);
        }
        self.controller_turns(at);
    }
}
