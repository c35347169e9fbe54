//! A kubelet's calls for devices: the life of each is `decide::node`'s, its effects are performed here.

use std::collections::BTreeSet;
use std::time::Duration;

use baton::agent::AgentTimings;
use baton::agent::handoff::ledger_file;
use baton::contract::PodKey;
use baton::decide::handoff::{
    AllocateContext, AllocateOutcome, AllocateRefusal, AllocateRule, EntryKey, Ledger, LedgerEntry, PodListing,
    PodResources, decide,
};
use baton::decide::node::publishing::PAUSE;
use baton::decide::node::{
    Allocating, BuildAnswer, CallEffect, CallEffects, CallReport, Facts, HandOff, Preferring, ReadFailure, Time, Wish,
};

use super::daemon::{Daemon, Task};
use super::machine::{Answer, Machine, encoded, since_boot};
use super::store::Swap;
use super::{Fault, Happening, Mutant, Reader, System};
use crate::harness::wall;

/// A call that is not looked at in time.
pub const NO_PERMIT: &str = "DeadlineExceeded";
const KILLED: &str = "the daemon was killed";

/// One call while it is performed.
struct Performed {
    /// What its process reads as the time: it waits while nothing else happens.
    at: Duration,
    /// Before this fault's effect the process is killed.
    killed: Option<Fault>,
    /// What is granted.
    key: Option<EntryKey>,
    answer: Option<Result<Answer, String>>,
    /// An adapter that is wrong writes later.
    unwritten: bool,
}

impl System {
    /// Lends the machine of a node what its daemon sees; `None` while that has no ledger.
    pub fn with_hand_off<T>(
        &mut self,
        node: usize,
        at: Duration,
        look: impl FnOnce(&mut HandOff, &Facts<'_>) -> T,
    ) -> Option<T> {
        let runs = !self.faults.is_cut(Reader::Daemon(node), self.now);
        let healthy = self.is(Mutant::HealthIgnored).then(|| {
            let mut inventory = self.machines[node].inventory.clone();
            inventory.devices.values_mut().for_each(|device| device.healthy = true);
            inventory
        });
        let Machine { name, policy, inventory, daemon, .. } = &mut self.machines[node];
        let Daemon { hand_off, seen, .. } = daemon.as_mut()?;
        (seen.pods_watching, seen.node_watching) = (runs, runs);
        let inventory = healthy.as_ref().unwrap_or(inventory);
        let facts = Facts { node: name, policy, seen, version: 0, inventory, mono: at, wall: wall(at) };
        Some(look(hand_off.as_mut()?, &facts))
    }

    /// GetPreferredAllocation.
    pub fn prefer(
        &mut self,
        node: usize,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let time = Time::new(self.now, AgentTimings::default().rpc_budget).half(self.now);
        let wish = Wish { available: available.to_vec(), must: must.to_vec(), size };
        let mut call = Preferring::new(resource, wish, time, true);
        let mut of = Performed { at: self.now, killed: None, key: None, answer: None, unwritten: false };
        let mut effects = self.with_hand_off(node, of.at, |_, facts| call.begin(facts)).unwrap_or_default();
        loop {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                if let CallEffect::Prefer(ids) = effect {
                    return ids;
                }
                report = self.performs(node, effect, &mut of);
            }
            let Some(report) = report else { return call.unknown() };
            effects = self.with_hand_off(node, of.at, |of, facts| call.report(report, of, facts)).unwrap_or_default();
        }
    }

    /// Allocate.
    pub fn allocate(&mut self, node: usize, resource: &str, ids: &[String]) -> Result<Answer, String> {
        let faults = [Fault::KilledBeforeWriting, Fault::KilledBeforeAnswering];
        let killed = faults.into_iter().find(|fault| self.strikes(*fault));
        if self.is(Mutant::GateSharesPermits) && self.waiting_starts(node) > 0 {
            return Err(NO_PERMIT.to_owned());
        }
        let mut of = Performed { at: self.now, killed, key: None, answer: None, unwritten: false };
        self.performs_all(node, resource, ids, &mut of);
        if killed.is_some() && self.machines[node].daemon.is_some() {
            self.killed_in_call(node);
        }
        of.answer.unwrap_or_else(|| Err(KILLED.to_owned()))
    }

    fn killed_in_call(&mut self, node: usize) {
        self.kill_daemon(node);
        let pause = self.soon(500, 20_000);
        self.after(pause, Happening::Mend(super::faults::Mend::Daemon(node)));
    }

    fn performs_all(&mut self, node: usize, resource: &str, ids: &[String], of: &mut Performed) {
        let time = Time::new(self.now, AgentTimings::default().rpc_budget);
        let mut call = Allocating::new(resource, ids.to_vec(), time);
        let Some(mut effects) = self.with_hand_off(node, of.at, |hand_off, facts| call.begin(hand_off, facts)) else {
            of.answer = Some(Err("not serving".to_owned()));
            return;
        };
        while !effects.is_empty() && self.violation.is_none() {
            let mut report = None;
            for effect in std::mem::take(&mut effects) {
                let is_last = match &effect {
                    CallEffect::Write => of.killed == Some(Fault::KilledBeforeWriting),
                    CallEffect::Answer(Ok(_)) => of.killed == Some(Fault::KilledBeforeAnswering),
                    _ => false,
                };
                if is_last {
                    return self.killed_in_call(node);
                }
                report = self.performs(node, effect, of);
            }
            let Some(report) = report else { return };
            let next = self.with_hand_off(node, of.at, |hand_off, facts| {
                let effects = call.report(report, hand_off, facts);
                let refused = refusal_of(&effects).map(|refusal| refusal.text.clone());
                let before = || HandOff::resume(hand_off.ledger().clone());
                (refused.filter(|_| serves_without_left(&call, &before(), facts)), effects)
            });
            let (wrongly, next) = next.unwrap_or_default();
            effects = next;
            if let Some(text) = wrongly {
                self.violates("no admission fails because of a pod that has left", format!("n{node}: {text}"));
            }
        }
    }

    /// What is reported, where that is asked for.
    fn performs(&mut self, node: usize, effect: CallEffect, of: &mut Performed) -> Option<CallReport> {
        match effect {
            CallEffect::List { .. } => {
                let mut listed = self.listed(node);
                if self.is(Mutant::ListsAfterDeciding)
                    && let Some(daemon) = &mut self.machines[node].daemon
                {
                    listed =
                        daemon.listed_before.replace(listed).unwrap_or(PodResources::Listed(PodListing::default()));
                }
                return Some(CallReport::Listed(listed));
            }
            CallEffect::Await { until, .. } => {
                of.at = of.at.max(until);
                return Some(CallReport::Waited { news: false });
            }
            CallEffect::Read(wanted) => {
                if self.faults.is_cut(Reader::Daemon(node), self.now) {
                    return Some(CallReport::Read(Err(ReadFailure::Unavailable("it is cut off".to_owned()))));
                }
                self.history.sometimes("a call reads live");
                if !self.is(Mutant::LiveReadsSkipped) {
                    self.reads(node, &wanted.pods, wanted.node);
                }
                return Some(CallReport::Read(Ok(())));
            }
            CallEffect::Build(grant) => {
                of.key = Some(grant.entry.key());
                if self.is(Mutant::UnlocksBeforeGranting) {
                    self.unlocks_early(&self.machines[node].name.clone(), "a node daemon");
                }
                return Some(CallReport::Built(Ok(self.builds(node, &grant))));
            }
            CallEffect::Write if self.is(Mutant::AnswersBeforeWriting) => {
                of.unwritten = true;
                return Some(CallReport::Written(Ok(())));
            }
            CallEffect::Write => {
                if self.is(Mutant::UnlocksBeforeWriting) && self.is_served(node, of) {
                    self.unlocks_early(&self.machines[node].name.clone(), "a node daemon");
                }
                let written = self.writes(node, of);
                let is_written = self.is(Mutant::AnswersUnwritten);
                return Some(CallReport::Written(if is_written { Ok(()) } else { written }));
            }
            CallEffect::Answer(answer) => {
                self.answers(node, answer.map(|answer| answer.encoded), of);
                if std::mem::take(&mut of.unwritten) {
                    if of.killed == Some(Fault::KilledBeforeWriting) {
                        self.killed_in_call(node);
                    } else {
                        drop(self.writes(node, of));
                    }
                }
            }
            CallEffect::Unlock => self.later(node, Duration::from_millis(1), Task::Unlock),
            CallEffect::Publish => self.later(node, PAUSE, Task::Publish),
            CallEffect::Learned => self.history.sometimes("devices in use are learned from the kubelet"),
            CallEffect::Log(served) => {
                if served.mismatch {
                    self.history.sometimes("the kubelet chose other ids than the assigned ones");
                }
                if served.again {
                    self.history.sometimes("a call is repeated");
                }
            }
            CallEffect::Outcome(_) | CallEffect::Notice(_) | CallEffect::Prefer(_) => {}
        }
        None
    }

    /// An adapter that is wrong does not wait for the answer.
    pub fn unlocks_early(&mut self, node: &str, who: &str) {
        let old = self.store.lock(node).raw().map(Box::from);
        if old.is_some() {
            self.swap(&Swap { node: node.into(), old, new: None }, false, None, || who.to_owned());
        }
    }

    /// Reads pods, and the node's lock, into what its daemon has seen.
    pub fn reads(&mut self, node: usize, pods: &BTreeSet<PodKey>, lock: bool) {
        let mutant = self.plan.mutant;
        let Machine { name, daemon, ran_before, .. } = &mut self.machines[node];
        let Some(Daemon { seen, .. }) = daemon else { return };
        for key in pods {
            seen.pods.apply_live(key, self.store.handoff(key).map(|pod| since_boot(ran_before, mutant, pod)));
        }
        if lock {
            seen.lock = self.store.lock(name);
        }
    }

    fn builds(&mut self, node: usize, grant: &BuildAnswer) -> Answer {
        let entry = &grant.entry;
        if let Some(stored) = &entry.answer {
            return stored.clone();
        }
        let has = &self.machines[node].inventory.devices;
        let mut served = entry.served.iter().map(|(_, entry)| &entry.id);
        let unhealthy = served.find(|id| has.get(*id).is_none_or(|of| !of.healthy)).map(ToString::to_string);
        // A container that starts again keeps what it has, also by a ledger that is rebuilt.
        let ledger = self.machines[node].daemon.as_ref().and_then(Daemon::ledger);
        let again = ledger.and_then(|ledger| ledger.get(&entry.key())).is_some_and(LedgerEntry::was_asked);
        if let Some(id) = unhealthy.filter(|_| !again) {
            self.violates("no device that has failed is served", format!("n{node}: {id} for {}", entry.pod.uid));
        }
        if self.is(Mutant::KubeletChooses) && !entry.served.is_empty() {
            let whole = |id: &str| format!("{}=100", id.split("::").next().unwrap_or_default());
            let chosen: BTreeSet<String> = entry.ids.iter().map(|id| whole(id)).collect();
            return chosen.into_iter().collect::<Vec<_>>().join(",").into_bytes();
        }
        encoded(entry.to_answer())
    }

    fn writes(&mut self, node: usize, of: &Performed) -> Result<(), String> {
        let ledger = self.machines[node].daemon.as_ref().and_then(Daemon::ledger).cloned().unwrap_or_default();
        if !self.save(node, &ledger) {
            self.history.sometimes("the ledger cannot be written");
            return Err("no space left".to_owned());
        }
        if self.is_served(node, of) {
            self.judges.served.extend(of.key.iter().map(|key| key.uid.clone()));
        }
        Ok(())
    }

    /// All calls of the pod that calls are in its daemon's ledger.
    fn is_served(&self, node: usize, of: &Performed) -> bool {
        let machine = &self.machines[node];
        let daemon = machine.daemon.as_ref();
        let pod = of.key.as_ref().and_then(|key| daemon?.seen.pods.by_uid(&key.uid));
        let ledger = daemon.and_then(Daemon::ledger);
        pod.zip(ledger).is_some_and(|(pod, ledger)| ledger.fully_served(pod, &machine.inventory))
    }

    fn answers(&mut self, node: usize, answer: Result<Answer, AllocateRefusal>, of: &mut Performed) {
        let answer = answer.map_err(|refusal| {
            self.history.sometimes(refused(refusal.rule));
            // Its pod is rejected: that may end what the lock waits for.
            self.later(node, Duration::from_millis(1), Task::Unlock);
            if self.is(Mutant::UnlocksAfterRefusing) {
                self.unlocks_early(&self.machines[node].name.clone(), "a node daemon");
            }
            refusal.text
        });
        if let (Ok(answer), Some(key)) = (&answer, &of.key) {
            self.judge_written(node, key, answer);
            self.note(|| format!("n{node} serves {} {}: {}", key.uid, key.container, String::from_utf8_lossy(answer)));
        }
        of.answer = Some(answer);
    }

    /// A process that is killed now has left what the next one has to know.
    fn judge_written(&mut self, node: usize, key: &EntryKey, answer: &Answer) {
        let machine = &self.machines[node];
        let file = ledger_file::parse(&machine.disk, &machine.boot.to_string());
        let is_written = |ledger: Ledger| ledger.get(key).is_some_and(|entry| entry.answer.as_ref() == Some(answer));
        if !file.is_ok_and(is_written) {
            let what = format!("n{node}: {} {} has {}", key.uid, key.container, String::from_utf8_lossy(answer));
            self.violates("the ledger's file has what a kubelet was answered", what);
        }
    }

    /// What the kubelet lists.
    pub fn listed(&mut self, node: usize) -> PodResources {
        let throttled = self.strikes(Fault::Throttled) || self.faults.lists_nothing(node, self.now);
        match self.machines[node].kubelet.listing() {
            Some(listing) if !throttled => PodResources::Listed(listing),
            _ => PodResources::Silent,
        }
    }
}

/// A refusal that was decided. Where PodResources does not answer, the call may be that of the pod that has left.
fn refusal_of(effects: &CallEffects) -> Option<&AllocateRefusal> {
    use AllocateRule::{Ambiguous, ApiUnavailable, Deadline, Ledger};
    effects.iter().find_map(|effect| match effect {
        CallEffect::Answer(Err(refusal)) if !matches!(refusal.rule, Ambiguous | ApiUnavailable | Deadline | Ledger) => {
            Some(refusal)
        }
        _ => None,
    })
}

/// The call would be served if the ledger had nothing of pods that have left.
fn serves_without_left(call: &Allocating, of: &HandOff, facts: &Facts<'_>) -> bool {
    let context = call.context(of, facts);
    let has_left = |entry: &&LedgerEntry| {
        entry.leaving().is_some() && !context.ledger.is_live(entry, context.pods, context.resources)
    };
    if !context.ledger.iter().any(|entry| has_left(&entry)) {
        return false;
    }
    let mut ledger = context.ledger.clone();
    context.ledger.iter().filter(has_left).for_each(|entry| ledger.forget(&entry.key()));
    let outcome = decide(&AllocateContext { ledger: &ledger, ..context }, &call.call(), None);
    matches!(outcome, AllocateOutcome::Serve(_) | AllocateOutcome::Repeat { .. })
}

/// A refusal, as something that is rarely seen.
fn refused(rule: AllocateRule) -> &'static str {
    match rule {
        AllocateRule::Lock => "a call without the lock is refused",
        AllocateRule::NoRoom => "a call for a device in use is refused",
        AllocateRule::Ambiguous => "a call that two pods could make is refused",
        AllocateRule::Unidentified => "a call that no pod could make is refused",
        _ => "a call is refused for another reason",
    }
}
