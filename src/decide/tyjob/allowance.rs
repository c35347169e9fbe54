//! What the namespace of a job may still use: its ResourceQuotas without what is used and what TYJobs have reserved there.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::world::{Place, Resources, World};
use baton_contract::quota::{Amounts, QuotaRules};
use baton_contract::{PodKey, Quantity, Shared};

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
    /// Why admission refuses such a pod however little is used. What places of such pods hold is charged to every quota.
    refusal: Option<String>,
}

impl QuotaCharge {
    /// The charge of a place beside the pod that has its name: quotas count what that pod asks for already, whatever its template
    /// says. Limits are covered where it asks for as much of the resource as the template.
    pub fn beside(&self, present: &Resources) -> Self {
        let asked = |resource: &str| match resource {
            "cpu" => Quantity::millis(present.milli_cpu),
            "memory" => Quantity::units(present.memory),
            "ephemeral-storage" => Quantity::units(present.ephemeral),
            name => Quantity::units(present.scalar.get(name).unwrap_or(0)),
        };
        let rest = |name: &str, amount: Quantity| match name.split_once('.') {
            _ if ["pods", "count/pods"].contains(&name) => Quantity::ZERO,
            Some(("limits", resource)) => {
                let wanted = self.usage.get(&*format!("requests.{resource}"));
                if asked(resource) >= wanted.copied().unwrap_or(amount) { Quantity::ZERO } else { amount }
            }
            Some(("requests", resource)) => amount.beyond(asked(resource)),
            _ => amount.beyond(asked(name)),
        };
        let usage = self.usage.iter().map(|(name, amount)| (name.clone(), rest(name, *amount))).collect();
        Self { usage, counted: self.counted.clone(), refusal: None }
    }
}

impl Allowance {
    /// Without any place.
    fn of(world: &World, namespace: &str) -> Self {
        Self(world.quotas_in(namespace).map(|quota| (quota.clone(), Amounts::new())).collect())
    }

    /// What a pod of this part takes.
    pub fn charge(&self, world: &World, namespace: &str, part: &JobPart) -> QuotaCharge {
        let refused = |refusal| {
            let counted = (0..self.0.len()).collect();
            QuotaCharge { usage: part.ask.usage(), counted, refusal: Some(refusal) }
        };
        let ask = match world.admit(namespace, &part.ask) {
            Ok(ask) => ask,
            Err(refusal) => return refused(refusal),
        };
        let all = self.0.iter().enumerate();
        let counted: Vec<usize> = all.filter(|(_, (quota, _))| quota.counts(&ask)).map(|(at, _)| at).collect();
        match counted.iter().find_map(|at| self.0[*at].0.refusal(&ask)) {
            Some(refusal) => refused(refusal),
            None => QuotaCharge { usage: ask.usage(), counted, refusal: None },
        }
    }

    /// Why there is no room for one more pod.
    pub fn excess(&self, charge: &QuotaCharge) -> Option<String> {
        let quotas = charge.counted.iter().map(|at| &self.0[*at]);
        let mut excesses = quotas.filter_map(|(quota, reserved)| quota.excess(&charge.usage, reserved));
        charge.refusal.clone().or_else(|| excesses.next())
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

    /// The first quota that use and places together exceed, by an amount that is lower in `less`.
    fn exceeded_beyond(&self, less: &Self) -> Option<&QuotaRules> {
        let both = self.0.iter().zip(&less.0);
        let mut lowered = both.filter(|((quota, reserved), (_, less))| {
            quota.exceeded(reserved).any(|name| less.get(name) != reserved.get(name))
        });
        lowered.next().map(|((quota, _), _)| &**quota)
    }

    fn is_exceeded(&self) -> bool {
        self.0.iter().any(|(quota, reserved)| quota.exceeded(reserved).next().is_some())
    }
}

/// Which places an [`Allowance`] is without.
#[derive(Default)]
struct Without<'a> {
    /// All of these jobs.
    jobs: &'a [&'a PodKey],
    /// Those whose pods were made a moment ago.
    fresh: bool,
}

impl TyJobs {
    /// What a namespace may still use.
    pub fn allowance(&self, world: &World, namespace: &str, now: Timestamp) -> Allowance {
        self.allowance_without(world, namespace, now, &Without::default())
    }

    fn allowance_without(&self, world: &World, namespace: &str, now: Timestamp, without: &Without<'_>) -> Allowance {
        let mut allowance = Allowance::of(world, namespace);
        if allowance.0.is_empty() {
            return allowance;
        }
        let here = self.records.range(PodKey::new(namespace, "")..).take_while(|(key, _)| *key.namespace == *namespace);
        for (key, record) in here.filter(|(key, _)| !without.jobs.contains(key)) {
            let Some(job) = world.job(key) else { continue };
            let Ok(spec) = &job.spec else { continue };
            let fresh: BTreeSet<&str> = if without.fresh { BTreeSet::new() } else { record.start.fresh().collect() };
            let mut whole = vec![0; spec.parts.len()];
            let mut beside: Vec<(usize, &Resources)> = Vec::new();
            for seat in fresh.iter().filter_map(|pod| spec.seat(&key.name, pod)) {
                whole[seat.part] += 1;
            }
            let reserved =
                record.places.iter().filter(|(pod, place)| place.reservation.is_some() && !fresh.contains(&***pod));
            for seat in reserved.filter_map(|(pod, _)| spec.seat(&key.name, pod)) {
                match present(world, job, &seat.pod, now) {
                    Some(present) => beside.push((seat.part, present)),
                    None => whole[seat.part] += 1,
                }
            }
            for (at, part) in spec.parts.iter().enumerate() {
                let mut present = beside.iter().filter(|(part, _)| *part == at).peekable();
                if whole[at] == 0 && present.peek().is_none() {
                    continue;
                }
                let charge = allowance.charge(world, namespace, part);
                allowance.reserve(&charge, whole[at]);
                present.for_each(|(_, present)| allowance.reserve(&charge.beside(present), 1));
            }
        }
        allowance
    }

    /// The jobs without a leader whose places have to go, and why: admission would refuse their pods, or use and places are beyond a
    /// quota of the namespace. Of the latter the last of their order go, as far as that helps.
    pub(super) fn beyond_quota(&self, world: &World, namespace: &str, now: Timestamp) -> Vec<(PodKey, String)> {
        let here = world.jobs().filter(|(key, _)| *key.namespace == *namespace);
        let mut holders: Vec<&JobFacts> = here
            .filter(|(key, job)| {
                let leader = job.spec.as_ref().ok().and_then(|spec| spec.seats(&key.name).next());
                let started = job.leads() || leader.is_some_and(|seat| present(world, job, &seat.pod, now).is_some());
                !started && self.records.get(*key).is_some_and(|record| record.reservations() > 0)
            })
            .map(|(_, job)| &**job)
            .collect();
        let quotas = Allowance::of(world, namespace);
        let mut beyond: Vec<(PodKey, String)> = Vec::new();
        holders.retain(|job| {
            let refusal = self.refusal(world, &quotas, job);
            beyond.extend(refusal.clone().map(|why| (job.job.key.clone(), why)));
            refusal.is_none()
        });
        let priority = |job: &JobFacts| job.spec.as_ref().map_or((0, 0), |spec| (spec.pod_priority(), spec.priority));
        holders.sort_by_key(|job| (priority(job), std::cmp::Reverse((job.created, job.job.key.clone()))));
        for job in holders {
            let mut jobs: Vec<&PodKey> = beyond.iter().map(|(key, _)| key).collect();
            let with = self.allowance_without(world, namespace, now, &Without { jobs: &jobs, fresh: true });
            if !with.is_exceeded() {
                break;
            }
            jobs.push(&job.job.key);
            let less = self.allowance_without(world, namespace, now, &Without { jobs: &jobs, fresh: true });
            if let Some(quota) = with.exceeded_beyond(&less) {
                let why = format!("ResourceQuota {} allows less than is used and reserved", quota.name);
                beyond.push((job.job.key.clone(), why));
            }
        }
        beyond
    }

    /// Why admission refuses a pod of the job for which room is reserved.
    fn refusal(&self, world: &World, quotas: &Allowance, job: &JobFacts) -> Option<String> {
        let (spec, record) = (job.spec.as_ref().ok()?, self.records.get(&job.job.key)?);
        let reserved = record.places.iter().filter(|(_, place)| place.reservation.is_some());
        let seats = reserved.filter_map(|(pod, _)| spec.seat(&job.job.key.name, pod));
        let parts: BTreeSet<usize> = seats.map(|seat| seat.part).collect();
        parts.iter().find_map(|at| quotas.charge(world, &job.job.key.namespace, &spec.parts[*at]).refusal)
    }
}

/// What the pod of the job that has this name asks for. Quotas count it until it has ended or its grace period is over.
pub fn present<'a>(world: &'a World, job: &JobFacts, pod: &str, now: Timestamp) -> Option<&'a Resources> {
    let pod = world.pod_by_key(&PodKey::new(&job.job.key.namespace, pod))?;
    let ours = pod.facts.spec.job.as_ref().is_some_and(|claim| claim.uid == job.job.uid);
    // Quotas wait for the grace period once more from the deletion timestamp, which is its end already.
    let gone =
        pod.facts.handoff.deleting.is_some_and(|deletion| {
            now.duration_since(deletion.at) > SignedDuration::from_secs(deletion.grace_seconds)
        });
    (ours && !gone && pod.place != Place::Ended).then_some(&pod.facts.spec.requests)
}
