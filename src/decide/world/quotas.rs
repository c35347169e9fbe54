//! What namespaces may use: their ResourceQuotas and LimitRanges, and what admission would make of a pod.

use std::collections::{BTreeMap, BTreeSet};

use baton_contract::quota::{LimitRangeRules, PodAsk, QuotaRules};
use baton_contract::{PodKey, Shared};

use super::finder::within;
use super::tyjob_facts::JobFacts;
use super::tyjobs::Jobs;

/// ResourceQuotas and LimitRanges.
#[derive(Debug, Clone, Default)]
pub(super) struct Quotas {
    all: BTreeMap<PodKey, Shared<QuotaRules>>,
    limit_ranges: BTreeMap<PodKey, LimitRangeRules>,
    /// What the scheduler may not read of the two.
    unreadable: BTreeSet<&'static str>,
}

impl Quotas {
    /// Enters a quota, or takes it out. `true` when that changes what its namespace may use.
    pub fn quota(&mut self, key: PodKey, rules: Option<QuotaRules>) -> bool {
        let changed = self.all.get(&key).map(|known| &**known) != rules.as_ref();
        match rules {
            Some(rules) => drop(self.all.insert(key, rules.into())),
            None => drop(self.all.remove(&key)),
        }
        changed
    }

    /// The same for a LimitRange.
    pub fn limit_range(&mut self, key: PodKey, rules: Option<LimitRangeRules>) -> bool {
        let changed = self.limit_ranges.get(&key) != rules.as_ref();
        match rules {
            Some(rules) => drop(self.limit_ranges.insert(key, rules)),
            None => drop(self.limit_ranges.remove(&key)),
        }
        changed
    }

    /// `true` when it is news whether objects of this name can be read.
    pub fn readable(&mut self, name: &'static str, readable: bool) -> bool {
        if readable { self.unreadable.remove(name) } else { self.unreadable.insert(name) }
    }

    /// Quotas of a namespace, by name.
    pub fn of<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Shared<QuotaRules>> {
        within(&self.all, namespace)
    }

    /// What admission makes of a pod: with the class and the amounts that it gives to it. The error is what admission would answer.
    pub fn admit(&self, jobs: &Jobs, namespace: &str, ask: &PodAsk) -> Result<PodAsk, String> {
        if let Some(name) = self.unreadable.first() {
            return Err(format!(
                "the scheduler may not read {name}, so what the namespace may use is unknown: give it the ClusterRole of its version"
            ));
        }
        let (priority, _) = jobs.admit_priority(ask.class.as_deref(), None, None)?;
        if let Some(given) = ask.priority.filter(|given| *given != i64::from(priority)) {
            return Err(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
                 computed {priority} from the given PriorityClass name: leave spec.priority out"
            ));
        }
        let mut ask = self.filled(namespace, ask);
        ask.class = ask.class.or_else(|| jobs.default_class().map(Box::from));
        match within(&self.limit_ranges, namespace).find_map(|range| range.refusal(&ask)) {
            Some(refusal) => Err(refusal),
            None => Ok(ask),
        }
    }

    /// Lets the pods of a new job ask for what LimitRanges give them.
    pub fn fill_new(&self, job: &mut JobFacts) {
        if within(&self.limit_ranges, &job.job.key.namespace).next().is_some() {
            self.fill(job);
        }
    }

    /// Lets the pods of a job ask for what LimitRanges give them now, and for nothing that they gave before.
    pub fn fill(&self, job: &mut JobFacts) {
        let namespace = job.job.key.namespace.clone();
        job.fill(|ask| self.filled(&namespace, ask));
    }

    fn filled(&self, namespace: &str, ask: &PodAsk) -> PodAsk {
        let mut ask = ask.clone();
        within(&self.limit_ranges, namespace).for_each(|range| range.fill(&mut ask));
        ask
    }
}
