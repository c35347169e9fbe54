//! What namespaces may use: their ResourceQuotas and LimitRanges, and what admission would make of a pod.

use std::collections::BTreeMap;

use baton_contract::quota::{LimitRangeRules, PodAsk, QuotaRules};
use baton_contract::{PodKey, Shared};

use super::event::{Changes, Wake};
use super::state::World;

impl World {
    /// Quotas of a namespace, by name.
    pub fn quotas_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Shared<QuotaRules>> {
        within(&self.quotas, namespace)
    }

    /// What admission makes of a pod: with the class and the amounts that it gives to it. The error is what admission would answer.
    pub fn admit(&self, namespace: &str, ask: &PodAsk) -> Result<PodAsk, String> {
        if let Some(name) = self.unreadable.first() {
            return Err(format!(
                "the scheduler may not read {name}, so what the namespace may use is unknown: give it the ClusterRole of its version"
            ));
        }
        let (priority, _) = self.admit_priority(ask.class.as_deref(), None, None)?;
        if let Some(given) = ask.priority.filter(|given| *given != i64::from(priority)) {
            return Err(format!(
                "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller \
                 computed {priority} from the given PriorityClass name: leave spec.priority out"
            ));
        }
        let mut ask = ask.clone();
        let defaults = || self.priority_classes.iter().filter(|(_, class)| class.default);
        ask.class = ask.class.or_else(|| Some(defaults().min_by_key(|(_, class)| class.value)?.0.clone()));
        within(&self.limit_ranges, namespace).for_each(|range| range.fill(&mut ask));
        match within(&self.limit_ranges, namespace).find_map(|range| range.refusal(&ask)) {
            Some(refusal) => Err(refusal),
            None => Ok(ask),
        }
    }

    pub(super) fn quota(&mut self, key: PodKey, rules: Option<QuotaRules>, changes: &mut Changes) {
        let same = self.quotas.get(&key).map(|known| &**known) == rules.as_ref();
        let namespace = key.namespace.clone();
        match rules {
            Some(rules) => drop(self.quotas.insert(key, rules.into())),
            None => drop(self.quotas.remove(&key)),
        }
        self.allowance_changed(namespace, same, changes);
    }

    pub(super) fn limit_range(&mut self, key: PodKey, rules: Option<LimitRangeRules>, changes: &mut Changes) {
        let same = self.limit_ranges.get(&key) == rules.as_ref();
        let namespace = key.namespace.clone();
        match rules {
            Some(rules) => drop(self.limit_ranges.insert(key, rules)),
            None => drop(self.limit_ranges.remove(&key)),
        }
        self.allowance_changed(namespace, same, changes);
    }

    pub(super) fn readable(&mut self, name: &'static str, readable: bool, changes: &mut Changes) {
        let changed = if readable { self.unreadable.remove(name) } else { self.unreadable.insert(name) };
        if changed && !self.jobs.is_empty() {
            changes.wake = Wake::QUOTA;
        }
    }

    /// Only TYJobs read it.
    fn allowance_changed(&self, namespace: Box<str>, same: bool, changes: &mut Changes) {
        if !same && within(&self.jobs, &namespace).next().is_some() {
            changes.wake = Wake::QUOTA;
            changes.quotas.push(namespace);
        }
    }
}

/// Entries of a namespace.
fn within<'a, T>(all: &'a BTreeMap<PodKey, T>, namespace: &'a str) -> impl Iterator<Item = &'a T> {
    let from = all.range(PodKey::new(namespace, "")..);
    from.take_while(move |(key, _)| *key.namespace == *namespace).map(|(_, value)| value)
}
