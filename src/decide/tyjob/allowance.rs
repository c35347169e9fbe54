//! What the namespace of a job may still use: its ResourceQuotas without what is used and what TYJobs have reserved there.

use crate::contract::quota::{Amounts, QuotaRules};
use crate::contract::{PodKey, Shared};
use crate::decide::world::{Place, World};

use super::TyJobs;
use super::placement::{JobFacts, JobPart};

/// The quotas of a namespace, with what places of TYJobs take of each.
#[derive(Debug, Clone, Default)]
pub struct Allowance(Vec<(Shared<QuotaRules>, Amounts)>);

/// What one pod takes of the quotas that count it.
#[derive(Debug, Clone)]
pub struct QuotaCharge {
    usage: Amounts,
    /// Positions in the [`Allowance`].
    counted: Vec<usize>,
}

impl Allowance {
    /// Without any place.
    fn of(world: &World, namespace: &str) -> Self {
        Self(world.quotas_in(namespace).map(|quota| (quota.clone(), Amounts::new())).collect())
    }

    /// What a pod of this part takes. The error is what admission would answer to every such pod.
    pub fn charge(&self, world: &World, namespace: &str, part: &JobPart) -> Result<QuotaCharge, String> {
        let ask = world.admit(namespace, &part.ask)?;
        let all = self.0.iter().enumerate();
        let counted: Vec<usize> = all.filter(|(_, (quota, _))| quota.counts(&ask)).map(|(at, _)| at).collect();
        match counted.iter().find_map(|at| self.0[*at].0.refusal(&ask)) {
            Some(refusal) => Err(refusal),
            None => Ok(QuotaCharge { usage: ask.usage(), counted }),
        }
    }

    /// Why there is no room for one more pod.
    pub fn excess(&self, charge: &QuotaCharge) -> Option<String> {
        charge.counted.iter().map(|at| &self.0[*at]).find_map(|(quota, reserved)| quota.excess(&charge.usage, reserved))
    }

    /// Enters the places of this many pods.
    pub fn reserve(&mut self, charge: &QuotaCharge, pods: u32) {
        for at in &charge.counted {
            let reserved = &mut self.0[*at].1;
            for (name, amount) in &charge.usage {
                let known = reserved.entry(name.clone()).or_default();
                *known = known.plus(amount.times(pods));
            }
        }
    }

    /// The first quota that use and places together exceed.
    fn exceeded(&self) -> Option<&QuotaRules> {
        self.0.iter().find(|(quota, reserved)| quota.is_exceeded(reserved)).map(|(quota, _)| &**quota)
    }
}

impl TyJobs {
    /// What a namespace may still use.
    pub fn allowance(&self, world: &World, namespace: &str) -> Allowance {
        self.allowance_without(world, namespace, &[])
    }

    /// The same, as if these jobs had no places.
    fn allowance_without(&self, world: &World, namespace: &str, without: &[&PodKey]) -> Allowance {
        let mut allowance = Allowance::of(world, namespace);
        if allowance.0.is_empty() {
            return allowance;
        }
        let here = self.records.range(PodKey::new(namespace, "")..).take_while(|(key, _)| *key.namespace == *namespace);
        for (key, record) in here.filter(|(key, _)| !without.contains(key)) {
            let Some(job) = world.job(key) else { continue };
            let Ok(spec) = &job.spec else { continue };
            let mut pods = vec![0; spec.parts.len()];
            let reserved = record.places.iter().filter(|(_, place)| place.reservation.is_some());
            let reserved = reserved.map(|(pod, _)| &**pod).filter(|pod| !is_charged(world, job, pod));
            for seat in reserved.chain(record.start.fresh()).filter_map(|pod| spec.seat(&key.name, pod)) {
                pods[seat.part] += 1;
            }
            for (part, pods) in spec.parts.iter().zip(pods).filter(|(_, pods)| *pods > 0) {
                if let Ok(charge) = allowance.charge(world, namespace, part) {
                    allowance.reserve(&charge, pods);
                }
            }
        }
        allowance
    }

    /// The jobs whose places have to go so that use and places are within the quotas of the namespace, with the quota that each
    /// exceeds: those without a leader, the last of their order first.
    pub(super) fn beyond_quota(&self, world: &World, namespace: &str) -> Vec<(PodKey, Box<str>)> {
        let mut beyond: Vec<(PodKey, Box<str>)> = Vec::new();
        let here = world.jobs().filter(|(key, _)| *key.namespace == *namespace);
        let mut holders: Vec<&JobFacts> = here
            .filter(|(key, job)| {
                let leader = job.spec.as_ref().ok().and_then(|spec| spec.seats(&key.name).next());
                let started = job.leads() || leader.is_some_and(|seat| is_charged(world, job, &seat.pod));
                !started && self.records.get(*key).is_some_and(|record| record.reservations() > 0)
            })
            .map(|(_, job)| &**job)
            .collect();
        let priority = |job: &JobFacts| job.spec.as_ref().map_or(0, |spec| spec.priority);
        holders.sort_by_key(|job| (priority(job), std::cmp::Reverse((job.created, job.job.key.clone()))));
        for job in holders {
            let without: Vec<&PodKey> = beyond.iter().map(|(key, _)| key).collect();
            let allowance = self.allowance_without(world, namespace, &without);
            let Some(quota) = allowance.exceeded() else { break };
            beyond.push((job.job.key.clone(), quota.name.clone()));
        }
        beyond
    }
}

/// A pod of the job has this name and has not ended: quotas count the pod already, so its place does not count beside it.
pub(super) fn is_charged(world: &World, job: &JobFacts, pod: &str) -> bool {
    let pod = world.pod_by_key(&PodKey::new(&job.job.key.namespace, pod));
    pod.is_some_and(|pod| {
        let ours = pod.facts.spec.job.as_ref().is_some_and(|claim| claim.uid == job.job.uid);
        ours && pod.place != Place::Ended
    })
}
