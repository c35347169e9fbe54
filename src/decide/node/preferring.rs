//! The life of one GetPreferredAllocation call: it steers the kubelet to the assigned devices, and never fails. What is not known is
//! filled with available ids.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::allocating::{Time, listed};
use super::effect::{CallEffect, CallEffects, CallReport};
use super::hand_off::{HandOff, LastPreference};
use super::reads::{CallReads, ReadStep};
use super::seen::Facts;
use crate::handoff::prefer::{Preference, PreferenceOrder, pick, preference};
use crate::handoff::{AllocateCall, PodResources};

/// What the kubelet asks for.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Ids to choose from.
    pub available: Vec<String>,
    /// Those of them that must be chosen.
    pub must: Vec<String>,
    /// How many.
    pub size: usize,
}

impl Wish {
    /// The ids where nothing is known of the caller.
    pub fn of_any(&self) -> Vec<String> {
        pick(&PreferenceOrder::default(), &self.available, &self.must, self.size)
    }
}

/// One GetPreferredAllocation call.
#[derive(Debug)]
pub struct Preferring {
    resource: Box<str>,
    wish: Wish,
    time: Time,
    /// It is the only wish of its call: what is found out holds for the Allocate that follows.
    only: bool,
    resources: Arc<PodResources>,
    reads: CallReads,
}

impl Preferring {
    /// A call on the socket of `resource`, the `only` one of its kind.
    pub fn new(resource: &str, wish: Wish, time: Time, only: bool) -> Self {
        let resources = Arc::new(PodResources::Silent);
        Self { resource: resource.into(), wish, time, only, resources, reads: CallReads::new(time.deadline) }
    }

    /// What to answer where nothing is known in time.
    pub fn unknown(&self) -> Vec<String> {
        self.wish.of_any()
    }

    /// Its turn has come.
    pub fn begin(&self, facts: &Facts<'_>) -> CallEffects {
        vec![CallEffect::List { until: self.time.list_until(facts.mono) }]
    }

    /// The last effect was performed.
    pub fn report(&mut self, report: CallReport, of: &mut HandOff, facts: &Facts<'_>) -> CallEffects {
        let (mut effects, step) = match report {
            CallReport::Listed(resources) => {
                let effects = listed(of, &resources, facts);
                self.resources = Arc::new(resources);
                (effects, ReadStep::Decide)
            }
            CallReport::Waited { news } => (CallEffects::new(), self.reads.waited(news, facts)),
            CallReport::Read(result) => (CallEffects::new(), self.reads.read(result, facts)),
            CallReport::Built(_) | CallReport::Written(_) => return CallEffects::new(),
        };
        effects.push(self.goes_on(step, of, facts));
        effects
    }

    fn goes_on(&mut self, step: ReadStep, of: &mut HandOff, facts: &Facts<'_>) -> CallEffect {
        match step {
            ReadStep::Await { since, until } => CallEffect::Await { since, until },
            ReadStep::Read(wanted) => CallEffect::Read(wanted),
            ReadStep::Failed(..) => CallEffect::Prefer(self.wish.of_any()),
            ReadStep::Decide => self.decides(of, facts),
        }
    }

    fn decides(&mut self, of: &mut HandOff, facts: &Facts<'_>) -> CallEffect {
        let count = i64::try_from(self.wish.size).unwrap_or(i64::MAX);
        let call = AllocateCall { resource: &self.resource, count, ids: &[] };
        match preference(&of.context(facts, &self.resources, self.reads.fresh()), &call) {
            Preference::NeedLive(wanted) => {
                let step = self.reads.want(wanted, facts);
                self.goes_on(step, of, facts)
            }
            Preference::Order(order, key) => {
                let ids = pick(&order, &self.wish.available, &self.wish.must, self.wish.size);
                if let Some(key) = key.filter(|_| self.only) {
                    let known: BTreeSet<String> = ids.iter().cloned().collect();
                    let (resource, resources) = (self.resource.clone(), self.resources.clone());
                    of.prefers(LastPreference { resource, ids: known, at: facts.mono, key, resources });
                }
                CallEffect::Prefer(ids)
            }
        }
    }
}
