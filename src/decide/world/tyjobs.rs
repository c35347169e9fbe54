//! The table of TYJobs, and the PriorityClasses that their pods' priority follows.

use std::collections::BTreeMap;

use crate::world::tyjob_facts::{JobFacts, JobIdentity, PriorityClassFacts, PriorityClasses};
use baton_contract::{PodKey, Shared};

use super::changes::{Changes, Wake};
use super::finder::within;

/// TYJobs, and the PriorityClasses that admission gives to pods.
#[derive(Debug, Clone, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<PodKey, Shared<JobFacts>>,
    classes: PriorityClasses,
}

impl Jobs {
    pub fn get(&self, key: &PodKey) -> Option<&Shared<JobFacts>> {
        self.jobs.get(key)
    }

    /// By namespace and name.
    pub fn iter(&self) -> impl Iterator<Item = (&PodKey, &Shared<JobFacts>)> {
        self.jobs.iter()
    }

    /// See [`World::admit_priority`](super::World::admit_priority).
    pub fn admit_priority(
        &self,
        class: Option<&str>,
        priority: Option<i32>,
        never: Option<bool>,
    ) -> Result<(i32, bool), String> {
        let system = |name: &str| match name {
            "system-cluster-critical" => Some(2_000_000_000),
            "system-node-critical" => Some(2_000_001_000),
            _ => None,
        };
        let built_in =
            |name: &str| Some(PriorityClassFacts { value: system(name)?, default: false, never_preempts: false });
        let found = match class {
            Some(name) => {
                let known = self.classes.get(name).copied().or_else(|| built_in(name));
                Some(known.ok_or_else(|| format!("no PriorityClass with name {name} was found"))?)
            }
            None => self.default_class().and_then(|name| self.classes.get(name)).copied(),
        };
        let (value, never_of_class) = found.map_or((0, false), |class| (class.value, class.never_preempts));
        match (class, priority) {
            (Some(name), Some(given)) if given != value => {
                return Err(format!("spec.priority is {given}, but PriorityClass {name} gives {value}: leave it out"));
            }
            // A priority without a class: an administrator tries out what would happen with it.
            (None, Some(given)) => return Ok((given, never.unwrap_or(false))),
            _ => {}
        }
        if class.is_some() && never.is_some_and(|never| never != never_of_class) {
            return Err(
                "spec.preemptionPolicy is another one than that of the pod's PriorityClass: leave it out".to_owned()
            );
        }
        Ok((value, never.unwrap_or(never_of_class)))
    }

    /// The class of pods that name none. Of several defaults the lowest counts.
    pub fn default_class(&self) -> Option<&str> {
        let defaults = self.classes.iter().filter(|(_, class)| class.default);
        Some(defaults.min_by_key(|(_, class)| class.value)?.0)
    }

    pub fn any(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// What this namespace may use changed. Only TYJobs read it.
    pub fn allowance_changed(&self, namespace: Option<Box<str>>, changes: &mut Changes) {
        if let Some(namespace) = namespace
            && within(&self.jobs, &namespace).next().is_some()
        {
            changes.wake = Wake::QUOTA;
            changes.quotas.push(namespace);
        }
    }

    /// A PriorityClass came, changed or is gone: the priority of TYJobs' pods follows it.
    pub fn priority_class(&mut self, name: Box<str>, class: Option<PriorityClassFacts>, changes: &mut Changes) {
        match class {
            Some(class) => drop(self.classes.insert(name, class)),
            None => drop(self.classes.remove(&name)),
        }
        if !self.jobs.is_empty() {
            changes.wake = Wake::QUOTA;
            changes.quotas.extend(self.jobs.keys().map(|job| job.namespace.clone()));
            changes.quotas.dedup();
        }
        let classes = &self.classes;
        change(self.jobs.iter_mut(), changes, |facts| facts.rate(classes));
    }

    /// A LimitRange of the namespace came, changed or is gone: what TYJobs' pods ask for follows it.
    pub fn limits_changed(&mut self, namespace: &str, changes: &mut Changes, fill: impl Fn(&mut JobFacts)) {
        change(self.jobs.iter_mut().filter(|(key, _)| *key.namespace == *namespace), changes, fill);
    }

    pub fn set(&mut self, mut facts: JobFacts, changes: &mut Changes) {
        facts.rate(&self.classes);
        let key = facts.job.key.clone();
        let known = self.jobs.get(&key);
        // The answer to a write may be ahead of the watch.
        let late = |old: &JobFacts| old.job == facts.job && facts.version < old.version;
        if known.is_some_and(|old| late(old) || **old == facts) {
            return;
        }
        self.jobs.insert(key.clone(), facts.into());
        changes.jobs.push(key);
    }

    pub fn gone(&mut self, job: JobIdentity, changes: &mut Changes) {
        // Another TYJob may have its name by now.
        if self.jobs.get(&job.key).is_some_and(|known| known.job.uid == job.uid) {
            self.jobs.remove(&job.key);
            changes.jobs.push(job.key);
        }
    }
}

/// Edits these jobs, and tells which are others by that.
fn change<'a>(
    jobs: impl Iterator<Item = (&'a PodKey, &'a mut Shared<JobFacts>)>,
    changes: &mut Changes,
    edit: impl Fn(&mut JobFacts),
) {
    for (key, known) in jobs {
        let mut facts = (**known).clone();
        edit(&mut facts);
        if **known != facts {
            *known = facts.into();
            changes.jobs.push(key.clone());
        }
    }
}
