//! Binds that another scheduler asked for: it chose the node, the devices, the lock and the Binding are ours. Each one is a
//! flight like any other; what is special is that somebody waits for its end, and not for long.

use std::time::Duration;

use crate::contract::{LockRead, PodRef};
use crate::decide::scheduler::rules::{Outcome, Slots, View};
use crate::decide::world::{NodeId, Place, PodId};

use super::effect::{Effect, Effects};
use super::engine::{Engine, Timer};
use super::flight::{Cancel, Stage};
use super::settings::Moment;

/// Names one request of a bind; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// The end of a bind that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BindVerdict {
    /// The pod is bound to that node with its devices.
    Bound,
    /// No watch has shown a pod of this uid: tell the world what a live read finds, and ask again.
    Unknown,
    /// It did not come about; no lock of it stays.
    Failed(String),
}

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BindAnswer {
    /// Of the request.
    pub ask: AskId,
    /// What came of it.
    pub verdict: BindVerdict,
}

/// Somebody waits for a flight.
#[derive(Debug, Clone)]
pub(in crate::decide) struct Errand {
    ask: AskId,
    /// Monotonic.
    deadline: Duration,
    wait: Duration,
    /// The latest failure that may pass.
    trouble: Option<String>,
}

impl Errand {
    /// For how long somebody has been waiting.
    pub(in crate::decide) fn waited(&self, now: Moment) -> Duration {
        self.wait.saturating_sub(self.deadline.saturating_sub(now.mono))
    }
}

impl Engine {
    /// Binds `pod` to `node` with devices chosen now, behind those that wait for the same node. The answer comes by
    /// [`Engine::take_answers`], at the latest soon after `wait`, unless a Binding is under way then.
    pub fn ask_bind(&mut self, ask: AskId, pod: &PodRef, node: &str, wait: Duration, now: Moment) -> Effects {
        let mut effects = Effects::new();
        let errand = Errand { ask, deadline: now.mono + wait, wait, trouble: None };
        if let Err(verdict) = self.start_errand(errand, pod, node, now, &mut effects) {
            self.answers.push(BindAnswer { ask, verdict });
        }
        effects
    }

    /// Whoever asked is gone. A bind that is not posted yet leaves the line; a posted one is brought to its end.
    pub fn leave(&mut self, ask: AskId, now: Moment) -> Effects {
        let mut effects = Effects::new();
        let Some(id) = self.errands.iter().find(|(_, errand)| errand.ask == ask).map(|(id, _)| *id) else {
            return effects;
        };
        if self
            .flights
            .get(&id)
            .is_some_and(|flight| matches!(flight.stage, Stage::Preparing | Stage::Line | Stage::Locking(_)))
        {
            self.withdraw(id, "whoever asked for the bind has left".to_owned(), now, &mut effects);
        }
        effects
    }

    /// Answers since the last call.
    pub fn take_answers(&mut self) -> Vec<BindAnswer> {
        std::mem::take(&mut self.answers)
    }

    fn start_errand(
        &mut self,
        errand: Errand,
        pod: &PodRef,
        node_name: &str,
        now: Moment,
        effects: &mut Effects,
    ) -> Result<(), BindVerdict> {
        let failed = |why: String| Err(BindVerdict::Failed(why));
        if !self.leading {
            return failed(
                "this scheduler does not lead, or does not know the whole cluster yet: ask again".to_owned(),
            );
        }
        let Some(id) = self.world.pod_id(&pod.uid) else { return Err(BindVerdict::Unknown) };
        let Some(known) = self.world.pod(id) else { return Err(BindVerdict::Unknown) };
        if *known.key() != pod.key {
            return failed(format!("uid {} is the pod {}, not {}", pod.uid, known.key(), pod.key));
        }
        let Some((target, _)) = self.known_node(node_name) else {
            return failed(format!("node {node_name} is not known"));
        };
        let name_of = |id: NodeId| self.world.node(id).map_or("", |node| &node.name);
        match known.place {
            Place::Bound(at) if at == target => return Err(BindVerdict::Bound),
            Place::Bound(at) => return failed(format!("pod {} is bound to node {} already", pod.key, name_of(at))),
            Place::Ended => return failed(format!("pod {} has ended", pod.key)),
            Place::Assumed(at) => {
                let going = self.flights.get(&id).is_some_and(|flight| flight.cancelled.is_none());
                if at != target || !going {
                    return failed(format!("a bind of pod {} to node {} is under way", pod.key, name_of(at)));
                }
                self.end_errand(id, BindVerdict::Failed("the same bind was asked for again".to_owned()));
                self.wait_for(id, errand);
                return Ok(());
            }
            Place::Waiting => {}
        }
        if known.facts.handoff.deleting.is_some() {
            return failed(format!("pod {} is being deleted", pod.key));
        }
        let facts = known.facts.clone();
        let shadows = self.shadow_nominated(&facts, now);
        let judged = self.judge_bind(id, target, now);
        self.lift(shadows);
        let (slots, outcome) = judged.map_err(BindVerdict::Failed)?;
        match outcome {
            Outcome::Fit => {}
            Outcome::Unfit(no) | Outcome::Never(no) | Outcome::WaitUntil(_, no) => {
                return failed(format!("node {node_name}: {}", no.text));
            }
            Outcome::Fault(text) => return failed(format!("node {node_name}: {text}")),
        }
        self.queue.remove(id);
        self.wait_for(id, errand);
        if self.hold(id, target, slots, now) {
            // Whoever asks has permitted it.
            self.depart(id, now, effects);
            Ok(())
        } else {
            self.errands.remove(&id);
            self.enqueue(id, now, effects);
            failed(format!("node {node_name}: a reservation was refused"))
        }
    }

    fn judge_bind(&self, id: PodId, target: NodeId, now: Moment) -> Result<(Slots, Outcome), String> {
        let gone = || "the pod or the node is gone".to_owned();
        let (pod, node) = (self.world.pod(id).ok_or_else(gone)?, self.world.node(target).ok_or_else(gone)?);
        let view = View { world: &self.world, now: now.mono };
        let mut slots = self.prepare(view, pod)?;
        let outcome = self.judge_ours(view, pod, (target, node), &mut slots);
        Ok((slots, outcome))
    }

    fn wait_for(&mut self, id: PodId, errand: Errand) {
        self.timers.insert((errand.deadline, Timer::Errand(id)));
        self.errands.insert(id, errand);
    }

    /// The time for a bind that was asked for is over.
    pub(in crate::decide) fn errand_due(&mut self, id: PodId, now: Moment, effects: &mut Effects) {
        let Some(errand) = self.errands.get(&id).filter(|errand| errand.deadline <= now.mono) else { return };
        let Some(flight) = self.flights.get(&id) else { return };
        let (node, wait) = (&flight.node_name, errand.wait);
        let mut why = match flight.stage {
            Stage::Preparing => format!("the pod's volumes were not ready on node {node} within {wait:?}"),
            Stage::Line => format!("waited {wait:?} for the lock of node {node}, {}", self.held_by(flight.node)),
            Stage::Locking(_) => format!("the lock of node {node} could not be written within {wait:?}"),
            _ => format!("the Binding to node {node} did not come about within {wait:?}"),
        };
        if let Some(trouble) = &errand.trouble {
            why = format!("{why}: {trouble}");
        }
        self.withdraw(id, why, now, effects);
    }

    fn held_by(&self, node: NodeId) -> String {
        match self.world.node(node).map(|node| &node.lock.read) {
            Some(LockRead::Held { raw, .. } | LockRead::Malformed { raw }) => format!("which {raw:?} holds"),
            _ => "for which others wait".to_owned(),
        }
    }

    /// Ends a flight as soon as it is known that its pod is not bound.
    fn withdraw(&mut self, id: PodId, why: String, now: Moment, effects: &mut Effects) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        match flight.stage {
            Stage::Preparing | Stage::Line | Stage::Locking(_) | Stage::Binding(_) | Stage::Reading => {
                self.cancel(id, Cancel::Requeue(why), now, effects);
            }
            // A Binding went out and its answer is not known.
            Stage::BindAgain => {
                flight.cancelled = Some(Cancel::Requeue(why));
                flight.stage = Stage::Reading;
                effects.push(Effect::ReadPod { pod: flight.pod.key.clone() });
            }
            Stage::ReadAgain => flight.cancelled = Some(Cancel::Requeue(why)),
        }
    }

    /// Answers whoever waits for this pod's flight. `false` when nobody does.
    pub(in crate::decide) fn end_errand(&mut self, id: PodId, verdict: BindVerdict) -> bool {
        let Some(errand) = self.errands.remove(&id) else { return false };
        self.answers.push(BindAnswer { ask: errand.ask, verdict });
        true
    }

    pub(in crate::decide) fn fail_errand(&mut self, id: PodId, why: &str) -> bool {
        self.end_errand(id, BindVerdict::Failed(why.to_owned()))
    }

    /// All of them fail: this process does not lead any more.
    pub(in crate::decide) fn fail_errands(&mut self) {
        let ids: Vec<PodId> = self.errands.keys().copied().collect();
        for id in ids {
            self.fail_errand(id, "this scheduler does not lead any more");
        }
    }

    /// Remembers a failure that may pass, for the answer.
    pub(in crate::decide) fn note_trouble(&mut self, id: PodId, trouble: &str) {
        if let Some(errand) = self.errands.get_mut(&id) {
            errand.trouble = Some(trouble.to_owned());
        }
    }
}
