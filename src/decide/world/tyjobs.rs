//! TYJobs in the world, and room that is reserved for pods that are not made yet.
//!
//! A reserved place is a pod record of its own kind: assumed on its node and charged like any pod, but not found by the name of the
//! pod that it stands for. So every rule sees the room of the node as taken.

use crate::devices::Held;
use crate::world::tyjob_facts::{JobFacts, JobIdentity, PriorityClassFacts};
use baton_contract::{PodKey, Shared};

use super::devices::exclusive_of;
use super::event::{Changes, Wake};
use super::pod::{Place, Pod, PodFacts};
use super::state::World;
use super::{NodeId, PodId};

impl World {
    /// One job.
    pub fn job(&self, key: &PodKey) -> Option<&Shared<JobFacts>> {
        self.jobs.get(key)
    }

    /// Every job, by namespace and name.
    pub fn jobs(&self) -> impl Iterator<Item = (&PodKey, &Shared<JobFacts>)> {
        self.jobs.iter()
    }

    /// The priority that admission gives a pod which names this class and these values itself, and whether it never
    /// preempts. The error is what admission would answer.
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
                let known = self.priority_classes.get(name).copied().or_else(|| built_in(name));
                Some(known.ok_or_else(|| format!("no PriorityClass with name {name} was found"))?)
            }
            // Of several defaults the lowest counts.
            None => {
                self.priority_classes.values().filter(|class| class.default).min_by_key(|class| class.value).copied()
            }
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

    /// A PriorityClass came, changed or is gone: the priority of TYJobs' pods follows it.
    pub(super) fn priority_class(&mut self, name: Box<str>, class: Option<PriorityClassFacts>, changes: &mut Changes) {
        match class {
            Some(class) => drop(self.priority_classes.insert(name, class)),
            None => drop(self.priority_classes.remove(&name)),
        }
        if !self.jobs.is_empty() {
            changes.wake = Wake::QUOTA;
            changes.quotas.extend(self.jobs.keys().map(|job| job.namespace.clone()));
            changes.quotas.dedup();
        }
        for (key, known) in &mut self.jobs {
            let mut facts = (**known).clone();
            facts.rate(&self.priority_classes);
            if **known != facts {
                *known = facts.into();
                changes.jobs.push(key.clone());
            }
        }
    }

    pub(super) fn job_set(&mut self, mut facts: JobFacts, changes: &mut Changes) {
        facts.rate(&self.priority_classes);
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

    pub(super) fn job_gone(&mut self, job: JobIdentity, changes: &mut Changes) {
        // Another TYJob may have its name by now.
        if self.jobs.get(&job.key).is_some_and(|known| known.job.uid == job.uid) {
            self.jobs.remove(&job.key);
            changes.jobs.push(job.key);
        }
    }

    /// Notes the job of a pod that came, changed or goes.
    pub(super) fn note_job(&self, id: PodId, changes: &mut Changes) {
        let pod = self.pods.get(id);
        let claim = pod.and_then(|pod| Some((pod.key(), pod.facts.spec.job.as_ref()?)));
        changes.jobs.extend(claim.map(|(key, claim)| PodKey::new(&key.namespace, &claim.name)));
    }

    /// Reserves room on a node for a pod that is not there yet.
    pub fn reserve_place(&mut self, mut facts: PodFacts, node: NodeId, devices: Option<Held>) -> PodId {
        let id = PodId(self.next_pod);
        self.next_pod += 1;
        self.shared.specs.intern(&mut facts.spec);
        self.shared.containers.intern(&mut facts.handoff.containers);
        let exclusive = exclusive_of(&facts);
        let mut pod = Pod { place: Place::Assumed(node), devices, exclusive, ..Pod::unplaced(id, facts) };
        let amounts = &mut self.shared.amounts;
        pod.devices.iter_mut().for_each(|held| held.share(|value| amounts.intern(value)));
        self.pods.insert(id, Box::new(pod));
        self.generation += 1;
        self.charge(id);
        id
    }

    /// Gives back what [`World::reserve_place`] reserved.
    pub fn cancel_place(&mut self, id: PodId) {
        self.discharge(id);
        let Some(pod) = self.pods.remove(id) else { return };
        self.generation += 1;
        if let Some(node) = pod.node() {
            self.note_left(node);
        }
    }
}
