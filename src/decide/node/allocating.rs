//! The life of one Allocate call: [`super`] has its states.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::effect::{BuildAnswer, CallAnswer, CallEffect, CallEffects, CallReport, ServedCall};
use super::hand_off::HandOff;
use super::reads::{CallReads, ReadFailure, ReadStep};
use super::seen::Facts;
use crate::handoff::rebuild::is_share;
use crate::handoff::{
    Admission, AllocateCall, AllocateContext, AllocateOutcome, AllocateRefusal, AllocateRule, EntryKey, IdentifiedBy,
    LedgerEntry, LiveReads, NewGrant, PodResources, decide, passed_by,
};
use crate::health::{Blame, ServeOutcome};
use baton_contract::{PodUid, Shared};

/// Kept from the budget so that the error still reaches the kubelet in time.
const RESERVE: Duration = Duration::from_millis(50);

/// How a call is decided: [`decide`], but for daemons that are wrong on purpose.
pub type Decide = fn(&AllocateContext<'_>, &AllocateCall<'_>, Option<&EntryKey>) -> AllocateOutcome;

/// The time that a call has.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    /// Of the whole call.
    pub budget: Duration,
    /// Until when it must be decided, monotonic.
    pub deadline: Duration,
}

impl Time {
    /// Of a call that began at `began` (monotonic).
    pub fn new(began: Duration, budget: Duration) -> Self {
        Self { budget, deadline: began + budget.saturating_sub(RESERVE) }
    }

    /// Half of it: a preference is not worth more.
    #[must_use]
    pub fn half(self, began: Duration) -> Self {
        Self { deadline: began + self.deadline.saturating_sub(began) / 2, ..self }
    }

    /// Until when the kubelet is asked for its pods: one that goes on throttling must not use up the time of the live reads that the
    /// decision may need.
    pub(super) fn list_until(self, now: Duration) -> Duration {
        let reads = self.budget / 4;
        self.deadline.saturating_sub(reads).max(self.deadline.min(now + reads))
    }

    /// The refusal of a call whose time is over.
    pub fn too_late(self, resource: &str) -> AllocateRefusal {
        let why = format!(
            "not decided within {:?}: the API server or the kubelet's PodResources did not answer in time; delete and re-create the pod",
            self.budget
        );
        AllocateRefusal::without_pod(AllocateRule::Deadline, resource, why)
    }
}

/// One Allocate call.
#[derive(Debug)]
pub struct Allocating {
    resource: Box<str>,
    ids: Vec<String>,
    time: Time,
    decide: Decide,
    /// What the preference call just before has found.
    known: Option<EntryKey>,
    resources: Arc<PodResources>,
    reads: CallReads,
    step: CallStep,
}

#[derive(Debug)]
enum CallStep {
    Deciding,
    /// Its pod and devices are known.
    Granting(Granting),
    /// The ledger has it, its file does not yet.
    Recorded(Box<Recorded>),
}

#[derive(Debug)]
enum Granting {
    New(Box<NewGrant>),
    Again(EntryKey, IdentifiedBy),
}

#[derive(Debug)]
struct Recorded {
    key: EntryKey,
    /// The entry as it was.
    before: Option<LedgerEntry>,
    answer: CallAnswer,
    /// What follows the answer.
    follows: CallEffects,
    served: Option<ServeOutcome>,
}

impl Allocating {
    /// A call on the socket of `resource` with at least one id.
    pub fn new(resource: &str, ids: Vec<String>, time: Time) -> Self {
        Self {
            resource: resource.into(),
            ids,
            time,
            decide,
            known: None,
            resources: Arc::new(PodResources::Silent),
            reads: CallReads::new(time.deadline),
            step: CallStep::Deciding,
        }
    }

    /// The same, decided in another way.
    #[must_use]
    pub fn decided_by(self, decide: Decide) -> Self {
        Self { decide, ..self }
    }

    /// Its turn has come.
    pub fn begin(&mut self, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        match of.preferred(&self.resource, &self.ids, facts.mono) {
            Some((key, resources)) => {
                (self.known, self.resources) = (Some(key), resources);
                self.decides(of, facts)
            }
            None => vec![CallEffect::List { until: self.time.list_until(facts.mono) }],
        }
    }

    /// The last effect was performed.
    pub fn report(&mut self, report: CallReport, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        match report {
            CallReport::Listed(resources) => {
                let mut effects = listed(of, &resources, facts);
                self.resources = Arc::new(resources);
                effects.extend(self.decides(of, facts));
                effects
            }
            CallReport::Waited { news } => {
                let step = self.reads.waited(news, facts);
                self.goes_on(step, of, facts)
            }
            CallReport::Read(result) => {
                let step = self.reads.read(result, facts);
                self.goes_on(step, of, facts)
            }
            CallReport::Built(answer) => self.built(answer, of),
            CallReport::Written(result) => self.written(result, of),
        }
    }

    /// What its decisions rest on.
    pub fn context<'a>(&'a self, of: &'a HandOff, facts: &Facts<'a>) -> AllocateContext<'a> {
        of.context(facts, &self.resources, self.reads.fresh())
    }

    /// As its decisions see it.
    pub fn call(&self) -> AllocateCall<'_> {
        let count = i64::try_from(self.ids.len()).unwrap_or(i64::MAX);
        AllocateCall { resource: &self.resource, count, ids: &self.ids }
    }

    fn decides(&mut self, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        let context = self.context(of, facts);
        let outcome = (self.decide)(&context, &self.call(), self.known.as_ref());
        match outcome {
            AllocateOutcome::NeedLive(wanted) => {
                let step = self.reads.want(wanted, facts);
                self.goes_on(step, of, facts)
            }
            AllocateOutcome::Serve(grant) => {
                let passed = passed_by(&context, &grant.entry.pod.uid);
                of.ledger.ends(passed, Admission::Over);
                let build = BuildAnswer { entry: grant.entry.clone(), shares: grant.shares };
                self.step = CallStep::Granting(Granting::New(grant));
                vec![CallEffect::Build(Box::new(build))]
            }
            AllocateOutcome::Repeat { key, how } => {
                let passed = passed_by(&context, &key.uid);
                of.ledger.ends(passed, Admission::Over);
                let Some(entry) = of.ledger.get(&key) else { return is_gone(&key) };
                let build = BuildAnswer { entry: entry.clone(), shares: is_share(entry) };
                self.step = CallStep::Granting(Granting::Again(key, how));
                vec![CallEffect::Build(Box::new(build))]
            }
            AllocateOutcome::Refuse(refusal) => {
                of.refused(&refusal, facts.mono);
                refuses(refusal)
            }
        }
    }

    fn goes_on(&mut self, step: ReadStep, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        match step {
            ReadStep::Decide => self.decides(of, facts),
            ReadStep::Await { since, until } => vec![CallEffect::Await { since, until }],
            ReadStep::Read(wanted) => vec![CallEffect::Read(wanted)],
            ReadStep::Failed(wanted, failure) => self.failed(&wanted, failure, of, facts),
        }
    }

    /// The kubelet rejects its pod, which may be one of those that could not be read: it has done with these, whichever it asked for.
    fn failed(&self, wanted: &LiveReads, failure: ReadFailure, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        let pods = wanted.pods.iter().flat_map(|key| facts.seen.pods.of_key(key));
        let rejected: Vec<PodUid> = pods.map(|pod| pod.pod.uid.clone()).collect();
        of.rejected_unknown(facts.mono);
        of.ledger.ends(rejected, Admission::Refused);
        refuses(match failure {
            ReadFailure::OutOfTime => self.time.too_late(&self.resource),
            ReadFailure::Unavailable(error) => {
                let why = format!(
                    "the API server is needed to decide and did not answer: {error}; delete and re-create the pod"
                );
                AllocateRefusal::without_pod(AllocateRule::ApiUnavailable, &self.resource, why)
            }
        })
    }

    /// The ledger is written before the answer leaves.
    fn built(&mut self, answer: Result<Vec<u8>, String>, of: &mut HandOff) -> CallEffects {
        let CallStep::Granting(granting) = std::mem::replace(&mut self.step, CallStep::Deciding) else {
            return Vec::new();
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(why) => return self.not_built(&granting, &why, of),
        };
        let recorded = match granting {
            Granting::New(grant) => record(*grant, answer, of),
            Granting::Again(key, how) => {
                let Some(before) = of.ledger.stored().get(&key).cloned() else { return is_gone(&key) };
                repeat(key, before, (&self.ids, how), answer, of)
            }
        };
        self.step = CallStep::Recorded(Box::new(recorded));
        vec![CallEffect::Write]
    }

    fn not_built(&self, granting: &Granting, why: &str, of: &mut HandOff) -> CallEffects {
        let entry = match granting {
            Granting::New(grant) => Some(&grant.entry),
            Granting::Again(key, _) => of.ledger.get(key),
        };
        let Some(LedgerEntry { pod, container, .. }) = entry else { return Vec::new() };
        let refusal = AllocateRefusal::of(AllocateRule::Answer, pod, container, &self.resource, why);
        let rejected = [pod.uid.clone()];
        of.ledger.ends(rejected, Admission::Refused);
        refuses(refusal)
    }

    /// The answer leaves; then the lock may go.
    fn written(&mut self, result: Result<(), String>, of: &mut HandOff) -> CallEffects {
        let CallStep::Recorded(recorded) = std::mem::replace(&mut self.step, CallStep::Deciding) else {
            return Vec::new();
        };
        let Recorded { key, before, answer, follows, served } = *recorded;
        let Err(error) = result else {
            let mut effects: CallEffects = served.map(CallEffect::Outcome).into_iter().collect();
            effects.push(CallEffect::Answer(Ok(answer)));
            effects.extend(follows);
            return effects;
        };
        of.ledger.forget(&key);
        before.into_iter().for_each(|before| of.ledger.restore(before));
        of.ledger.ends([key.uid.clone()], Admission::Refused);
        let mut effects = CallEffects::new();
        if let Some(ServeOutcome::Served(devices)) = &served
            && let Some((kind, _)) = devices.first()
        {
            let why = format!("the ledger cannot be written ({error})").into();
            effects.push(CallEffect::Outcome(ServeOutcome::Failed { blame: Blame::Node(kind.clone()), why }));
        }
        let why = format!(
            "container {}: the grant could not be written to the ledger ({error}); free space in --state-dir and re-create the pod",
            key.container
        );
        effects.extend(refuses(AllocateRefusal::without_pod(AllocateRule::Ledger, &key.resource, why)));
        effects
    }
}

fn is_gone(key: &EntryKey) -> CallEffects {
    refuses(AllocateRefusal::without_pod(AllocateRule::Ledger, &key.resource, "the entry of this call is gone"))
}

/// What the kubelet lists comes into the ledger.
pub(super) fn listed(of: &mut HandOff, resources: &PodResources, facts: &Facts<'_>) -> CallEffects {
    let taken = of.take_in(resources, facts);
    let learned = taken.learned.then_some(CallEffect::Learned);
    learned.into_iter().chain(taken.changed.then_some(CallEffect::Publish)).collect()
}

fn record(grant: NewGrant, answer: Vec<u8>, of: &mut HandOff) -> Recorded {
    let NewGrant { mut entry, how, mismatch, notices, .. } = grant;
    let devices: BTreeSet<_> = entry.served.iter().map(|(kind, device)| (kind.clone(), device.id.clone())).collect();
    entry.answer = Some(answer.clone());
    let key = entry.key();
    let before = of.ledger.get(&key).cloned();
    of.ledger.record(entry);
    let entries = of.ledger.len();
    let served = |entry| ServedCall { entry, again: false, how, mismatch, entries };
    let mut follows = follows(of.ledger.stored().get(&key).cloned().map(served));
    follows.extend(notices.into_iter().map(CallEffect::Notice));
    let answer = CallAnswer { encoded: answer, again: false };
    Recorded { key, before, answer, follows, served: Some(ServeOutcome::Served(devices)) }
}

fn repeat(
    key: EntryKey,
    before: Shared<LedgerEntry>,
    (ids, how): (&[String], IdentifiedBy),
    answer: Vec<u8>,
    of: &mut HandOff,
) -> Recorded {
    of.ledger.repeat(&key, ids.iter().map(|id| id.as_str().into()).collect());
    of.ledger.set_answer(&key, answer.clone());
    let entries = of.ledger.len();
    let follows = follows(Some(ServedCall { entry: before.clone(), again: true, how, mismatch: false, entries }));
    let answer = CallAnswer { encoded: answer, again: true };
    Recorded { key, before: Some((*before).clone()), answer, follows, served: None }
}

/// What comes after an answer with devices: the lock first, because the next pod of the node waits for it.
fn follows(call: Option<ServedCall>) -> CallEffects {
    let log = call.map(|call| CallEffect::Log(Box::new(call)));
    [CallEffect::Unlock, CallEffect::Publish].into_iter().chain(log).collect()
}

/// A refusal, and what follows it.
fn refuses(refusal: AllocateRefusal) -> CallEffects {
    let unlock = refusal.rule.makes_lock_useless().then_some(CallEffect::Unlock);
    let notices: Vec<_> = refusal.notices().map(CallEffect::Notice).collect();
    std::iter::once(CallEffect::Answer(Err(refusal))).chain(unlock).chain(notices).collect()
}
