//! The workers: made once the leader has an address, replaced when they fail, counted until enough are ready.

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use super::effect::{JobEffect, PodEffect};
use super::pod::pod_of;
use super::restarts::is_spent;
use super::view::{NodeReachability, PodView};
use crate::pod::Phase;
use baton_contract::EventReason;
use baton_contract::tyjob::{Allocation, Stage, TyJobStatus, WorkerEnd};

/// What the workers of a job come to.
#[derive(Debug, Default)]
pub(super) struct WorkerCount {
    /// Ready, or succeeded.
    good: i64,
    /// Failed, and of a set at its limit.
    lost: i64,
}

impl Draft<'_> {
    /// Makes, replaces and counts workers, and moves the stage by the count.
    pub(super) fn workers(&mut self, leader: &PodView) {
        let WorkerCount { good, lost } = self.count_workers();
        let wanted = i64::from(self.spec.min_workers_num);
        let total = self.spec.total_workers();
        if total - lost < wanted {
            let message = format!(
                "{lost} of {total} workers failed for good (restartLimit {}): minWorkersNum {wanted} cannot be reached",
                self.spec.restart_limit
            );
            return self.end(Stage::Failed, message);
        }
        self.make_workers();
        if self.status.stage == Some(Stage::Starting) && leader.ready && good >= wanted {
            self.status.stage = Some(Stage::Running);
        }
        let status = &mut self.status;
        status.message = Some(match (status.stage, &status.leader_address) {
            (Some(Stage::Running), _) => format!("{good} of {total} workers are ready"),
            (_, None) => match &leader.image {
                Some(image) => format!("the leader {} has no image: {}", leader.name, image.reason),
                None => format!("the leader {} is made and has no address yet", leader.name),
            },
            (_, Some(_)) if leader.ready => format!("{good} of {total} workers are ready, {wanted} are needed"),
            (_, Some(_)) => format!("the leader {} is not ready yet", leader.name),
        });
    }

    /// Counts, and decides what becomes of failed workers: each failure is counted once, by its uid, before the pod goes.
    pub(super) fn count_workers(&mut self) -> WorkerCount {
        let pods = self.pods_by_name();
        let limit = self.spec.restart_limit;
        let mut tally = WorkerCount::default();
        let mut events = Vec::new();
        let mut wanted = BTreeSet::new();
        let status = &mut self.status;
        for member in self.spec.members(self.name).skip(1) {
            wanted.insert(member.name.clone());
            let set = member.worker_set.unwrap_or_default();
            let spent = status.worker_set_restarts.get(set).copied().unwrap_or(0) >= limit;
            match status.ended_workers.get(&member.name) {
                Some(WorkerEnd::Succeeded) => {
                    tally.good += 1;
                    continue;
                }
                Some(WorkerEnd::Failed) if spent => {
                    tally.lost += 1;
                    continue;
                }
                // The limit was raised since.
                Some(WorkerEnd::Failed) => drop(status.ended_workers.remove(&member.name)),
                None => {}
            }
            let Some(pod) = pods.get(member.name.as_str()) else { continue };
            let replaced = status.replaces(&pod.name, &pod.uid);
            let restarts = status.worker_set_restarts.get(set).copied().unwrap_or(0);
            match pod.phase {
                Phase::Succeeded => {
                    tally.good += 1;
                    status.ended_workers.insert(member.name, WorkerEnd::Succeeded);
                }
                _ if !replaced && is_spent(&self.restarted, pod, restarts, limit) => {
                    tally.lost += 1;
                    let text = format!(
                        "{} failed for good: a container in it ends again and again; {restarts} restarts of {set}, and \
                         restartLimit is {limit}",
                        member.name
                    );
                    events.push((EventReason::WorkerFailed, text));
                    status.ended_workers.insert(member.name, WorkerEnd::Failed);
                }
                // One that is being deleted did not fail by itself: it is made again without being counted.
                Phase::Failed if !replaced && pod.deleting.is_none() => {
                    let (reason, text) = count_failure(status, pod, set, limit);
                    tally.lost += i64::from(reason == EventReason::WorkerFailed);
                    events.push((reason, text));
                }
                Phase::Pending | Phase::Running if pod.ready && pod.deleting.is_none() => tally.good += 1,
                _ => {}
            }
        }
        status.ended_workers.retain(|name, _| wanted.contains(name));
        status.replaced.retain(|name, _| wanted.contains(name));
        status.ready_workers = i32::try_from(tally.good).unwrap_or(i32::MAX);
        for (reason, text) in events {
            self.warning(reason, text);
        }
        tally
    }

    /// Makes missing workers that have a place, and removes those that are replaced or have lost their node.
    fn make_workers(&mut self) {
        let pods = self.pods_by_name();
        let places: BTreeMap<&str, &Allocation> = {
            let attempt = self.status.attempt;
            let present = self.status.allocations.iter().filter(|place| place.attempt == attempt);
            present.map(|place| (place.pod.as_str(), place)).collect()
        };
        let held: BTreeSet<&str> = self.pods.iter().map(|pod| pod.name.as_str()).collect();
        let address = self.status.leader_address.as_deref();
        let mut effects = Vec::new();
        for member in self.spec.members(self.name).skip(1) {
            match self.status.ended_workers.get(&member.name) {
                Some(WorkerEnd::Failed) => {
                    // One that failed by its containers still runs.
                    let alive = pods.get(member.name.as_str()).filter(|pod| !pod.phase.is_terminal());
                    effects.extend(alive.and_then(|pod| delete(pod)));
                    continue;
                }
                Some(WorkerEnd::Succeeded) => continue,
                None => {}
            }
            let place = places.get(member.name.as_str());
            match (pods.get(member.name.as_str()), place, address) {
                (Some(pod), place, _) => effects.extend(self.tend(pod, place.copied())),
                (None, Some(place), Some(_)) if !held.contains(member.name.as_str()) => {
                    let body = pod_of(self.view, &self.spec, &member, place, address);
                    effects.push(JobEffect::Pod(PodEffect::Create { name: member.name, body }));
                }
                _ => {}
            }
        }
        self.effects.append(&mut effects);
    }

    /// What a pod that exists needs.
    pub(super) fn tend(&self, pod: &PodView, place: Option<&Allocation>) -> Option<JobEffect> {
        if pod.deleting.is_some() {
            return None;
        }
        if self.status.replaces(&pod.name, &pod.uid) || pod.reachability == NodeReachability::Gone {
            return delete(pod);
        }
        let place = place.filter(|place| pod.node.is_none() && pod.allocation.as_deref() != Some(&place.node))?;
        Some(JobEffect::Pod(PodEffect::Reserve {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            node: place.node.clone(),
        }))
    }
}

/// A worker of this set has failed: it is made again, and counted if it failed by itself, until its set is at the limit. Returns what is
/// said of it.
fn count_failure(status: &mut TyJobStatus, pod: &PodView, set: &str, limit: i32) -> (EventReason, String) {
    let (name, why) = (&pod.name, pod.failure.as_deref().unwrap_or("no reason given"));
    if pod.disrupted {
        status.replaced.insert(name.clone(), pod.uid.clone());
        return (EventReason::WorkerDisrupted, format!("{name} was ended from outside: {why}"));
    }
    let restarts = status.worker_set_restarts.entry(set.to_owned()).or_default();
    if *restarts < limit {
        *restarts += 1;
        let text = format!("{name} failed: {why}; restart {restarts} of {limit} of {set}");
        status.replaced.insert(name.clone(), pod.uid.clone());
        return (EventReason::WorkerRestarted, text);
    }
    status.ended_workers.insert(name.clone(), WorkerEnd::Failed);
    (EventReason::WorkerFailed, format!("{name} failed for good: {why}; restartLimit is {limit}"))
}

/// Deletes a pod, unless it is being deleted.
fn delete(pod: &PodView) -> Option<JobEffect> {
    pod.deleting.is_none().then(|| JobEffect::Pod(PodEffect::delete(pod)))
}
