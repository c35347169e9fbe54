//! What must hold of TYJobs after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use baton::contract::tyjob::{BasicPolicy, Stage, TyJob, TyJobStatus};
use baton::contract::{PodKey, PodRef, PodUid};
use baton::decide::pod::{HandoffPod, Phase};
use baton::decide::world::{JobClaim, PodFacts};

use super::System;
use super::store::job_key;
use crate::harness::wall;

/// An answer and a request may each be on their way for so long that both take this time.
const READ_AND_WRITTEN: Duration = Duration::from_secs(20);

/// What has been seen of TYJobs.
#[derive(Debug, Default)]
pub struct JobRecords {
    /// How those that have ended did.
    ended: BTreeMap<PodKey, Stage>,
    /// Workers whose failure a status counts, by uid.
    counted: BTreeSet<String>,
    /// Pods whose Bindings were sent for a place that their scheduler kept.
    placed: BTreeSet<PodUid>,
}

impl System {
    /// A controller has written a status: a stage that ends a job is never left, a worker's failure is counted once, attempts
    /// only grow, and one ends only when its leader is lost.
    pub fn judge_stage(&mut self, key: &PodKey, before: Option<&TyJobStatus>) {
        let Some(job) = self.store.job(key) else { return };
        let now = job.status.clone().unwrap_or_default();
        if let Some(stage) = now.stage.filter(|stage| stage.is_terminal()) {
            self.judges.jobs.ended.entry(key.clone()).or_insert(stage);
        }
        if let Some(ended) = self.judges.jobs.ended.get(key).filter(|ended| now.stage != Some(**ended)) {
            let what = format!("{key} was {ended:?} and is {:?}", now.stage);
            return self.violates("the end of a TYJob is final", what);
        }
        let is_known = |pod: &str, uid: &str| before.is_some_and(|status| status.replaces(pod, uid));
        let mut counted = now.replaced.iter().filter(|(pod, uid)| !is_known(pod, uid)).map(|(_, uid)| uid.clone());
        if let Some(again) = counted.find(|uid| !self.judges.jobs.counted.insert(uid.clone())) {
            return self.violates("a failure of a worker is counted once", again);
        }
        let former = before.map_or(0, |status| status.attempt);
        if now.attempt < former {
            return self.violates("attempts of a TYJob only grow", format!("{key}: {} after {former}", now.attempt));
        }
        if now.attempt == former {
            return;
        }
        let leader = job.spec.leader_pod(&key.name);
        let lives = |pod: &PodFacts| {
            let of = &pod.handoff;
            let is_his = pod.spec.job.as_ref().is_some_and(|claim| claim.attempt == Some(former));
            let has_node = of.node.as_deref().is_none_or(|node| self.store.has_node(node) && !self.was_gone(node, of));
            is_his && has_node && of.deleting.is_none() && of.phase != Phase::Failed
        };
        let key = PodKey::new(&key.namespace, &leader);
        if self.store.pod(&key).is_some_and(lives) {
            self.violates("an attempt ends only when its leader is lost", format!("{key} lives in attempt {former}"));
        }
    }

    /// A controller whose write comes now may have read that this pod's node is gone.
    fn was_gone(&self, node: &str, pod: &HandoffPod) -> bool {
        let joined = self.machines.iter().find(|machine| *machine.name == *node).and_then(|machine| machine.joined);
        joined.is_some_and(|joined| self.now < joined + READ_AND_WRITTEN && pod.created < wall(joined))
    }

    /// A controller has written the status of a job, as it has read it, over `before`.
    pub fn judge_status(&mut self, read: &TyJob, before: Option<&TyJob>) {
        let version = |job: &TyJob| job.metadata.resource_version.clone();
        if before.is_some_and(|before| version(before) != version(read)) {
            let what = read.metadata.name.clone().unwrap_or_default();
            self.violates("a status is written only over what was read", what);
        }
    }

    /// A pod is made for a TYJob: it is a member, and there is a place for it. Until the leader's pod is there, a job has all the places
    /// that its policy asks for or none; afterwards each pod keeps its place or waits for another.
    pub fn judge_made(&mut self, job: &TyJob, pod: &PodFacts) {
        let (of, attempt) = (&pod.handoff.pod.key, pod.spec.job.as_ref().and_then(|claim| claim.attempt));
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let is_member = job.spec.members(name).any(|member| *member.name == *of.name);
        let status = job.status.clone().unwrap_or_default();
        let has_place = status.allocations.iter().any(|place| *place.pod == *of.name && Some(place.attempt) == attempt);
        if !is_member || !has_place {
            return self.violates("no pod of a TYJob is made without a place", of.to_string());
        }
        let wanted = match job.spec.scheduler_policy.basic_policy {
            BasicPolicy::Gang => job.spec.total_workers(),
            _ => i64::from(job.spec.min_workers_num),
        };
        let placed = status.allocations.iter().filter(|place| Some(place.attempt) == attempt).count() as i64;
        if *of.name == *job.spec.leader_pod(name) && placed < 1 + wanted {
            let what = format!("the leader of {name} is made with {placed} places of {}", 1 + wanted);
            self.violates("a TYJob starts with all the places that it asks for", what);
        }
    }

    /// A scheduler sends the Binding of a pod: whether it keeps a place there for it, which it may not have written yet.
    pub fn watch_place(&mut self, at: usize, pod: &PodRef, node: &str) {
        let claim = self.store.of(pod).and_then(|facts| facts.spec.job.clone());
        let key = claim.as_ref().map(|claim| PodKey::new(&pod.key.namespace, &claim.name));
        let record = key.and_then(|key| self.schedulers[at].scheduler().tyjobs().records().get(&key));
        let record = record.filter(|record| claim.is_some_and(|claim| claim.attempt == Some(record.attempt)));
        let place = record.and_then(|record| record.places.get(&pod.key.name));
        if place.is_some_and(|place| *place.node == *node) {
            self.judges.jobs.placed.insert(pod.uid.clone());
        }
    }

    /// A pod of a TYJob was bound: to a place that the job's status shows, or that its scheduler kept when it sent the Binding and had
    /// not written yet. A leader that follows takes the places of bound pods from their nodes.
    pub fn judge_place(&mut self, pod: &HandoffPod, claim: &JobClaim) {
        let key = PodKey::new(&pod.pod.key.namespace, &claim.name);
        let Some(job) = self.store.job(&key).cloned() else { return };
        let status = job.status.clone().unwrap_or_default();
        let is_over = status.stage.is_some_and(Stage::is_terminal) || job.metadata.deletion_timestamp.is_some();
        if Some(status.attempt) != claim.attempt || is_over {
            return; // its attempt has ended meanwhile, and the pod goes
        }
        let mut here = status.allocations.iter().filter(|place| place.attempt == status.attempt);
        let shown = here.find(|place| *place.pod == *pod.pod.key.name).map(|place| place.node.as_str());
        if shown.is_none() && !self.judges.jobs.placed.contains(&pod.pod.uid) {
            let what = format!("{} is bound to {:?}", pod.pod.key, pod.node);
            return self.violates("no pod of a TYJob is bound without a place", what);
        }
        if pod.node.as_deref() != shown {
            self.history.sometimes("a pod of a TYJob is bound before its status shows the place");
        }
    }

    /// A controller sends a request.
    pub fn judge_sender(&mut self, at: usize) {
        if !self.controllers[at].process.lease.leads(self.now) {
            self.violates("only a controller that leads sends requests", format!("controller {at}"));
        }
    }

    /// What a leading scheduler keeps for TYJobs at rest: places of pods that a job wants, of the whole minimum or of none.
    pub fn judge_places(&mut self, at: usize) {
        let scheduler = self.schedulers[at].scheduler();
        let found = scheduler.tyjobs().records().iter().find_map(|(key, record)| {
            let facts = scheduler.world().job(key)?;
            let (places, Ok(spec)) = (&record.places, &facts.spec) else { return None };
            let names: BTreeSet<_> = spec.seats(&key.name).map(|seat| seat.pod).collect();
            if facts.is_over() && !places.is_empty() || places.keys().any(|pod| !names.contains(pod)) {
                return Some(format!(
                    "scheduler {at} keeps places of {key} that no pod will take: {:?}",
                    places.keys()
                ));
            }
            if facts.leads() || places.is_empty() {
                return None;
            }
            let leader = spec.seats(&key.name).next()?.pod;
            let has_place = places.contains_key(&leader);
            // Its pod may have come, and taken the place.
            let has_pod = scheduler.world().pod_by_key(&PodKey::new(&key.namespace, &leader)).is_some();
            let workers = places.len() as i64 - i64::from(has_place);
            let wanted = if spec.basic == BasicPolicy::Gang { names.len() as i64 - 1 } else { spec.min_workers };
            let is_short = !has_pod && (!has_place || workers < wanted);
            is_short
                .then(|| format!("scheduler {at} keeps {workers} of {wanted} workers of {key}, leader: {has_place}"))
        });
        if let Some(what) = found {
            self.violates("a TYJob holds its minimum or nothing", what);
        }
    }

    /// A pod is being deleted for a TYJob: it is the one that was meant, and the status says why the leader or a worker that failed
    /// goes. Else a controller that ends there would let the job forget what became of it.
    pub fn judge_deletion(&mut self, job: &TyJob, key: &PodKey, uid: &PodUid, is_exact: bool) {
        let Some(found) = self.store.pod(key) else { return };
        let is_meant = found.handoff.pod.uid == *uid;
        let is_ours = found.spec.job.as_ref().is_some_and(|claim| Some(&*claim.uid) == job.metadata.uid.as_deref());
        if !is_exact && !is_meant || is_meant && !is_ours {
            let what = format!("{key} is {}", found.handoff.pod.uid);
            return self.violates("a TYJob deletes only its own pods", what);
        }
        let Some(job) = self.store.job(&job_key(job)).filter(|job| job.metadata.deletion_timestamp.is_none()) else {
            return;
        };
        let status = job.status.clone().unwrap_or_default();
        let is_present = found.spec.job.as_ref().is_some_and(|claim| claim.attempt == Some(status.attempt));
        let is_leader = job.metadata.name.as_deref().is_some_and(|name| job.spec.leader_pod(name) == *key.name);
        let is_counted = status.replaces(&key.name, uid.as_str()) || status.ended_workers.contains_key(&*key.name);
        let is_over = status.stage.is_some_and(Stage::is_terminal) || is_counted && !is_leader;
        let matters = is_leader || found.handoff.phase == Phase::Failed;
        if is_meant && is_present && matters && !is_over && found.handoff.deleting.is_none() {
            self.violates("the status says why a pod of a TYJob goes before it goes", key.to_string());
        }
    }

    /// A finalizer was taken off: no pod of the job is left.
    pub fn judge_job_gone(&mut self, job: &TyJob) {
        let uid = job.metadata.uid.as_deref();
        let left = self.store.pods().find(|pod| pod.spec.job.as_ref().map(|claim| &*claim.uid) == uid);
        if let Some(left) = left.map(|pod| pod.handoff.pod.key.clone()) {
            self.violates("a TYJob goes after its pods", format!("{left} is left"));
        }
    }

    /// Why a job has not come to its end, for people.
    pub fn state_of_job(&self, name: &str) -> String {
        let Some(job) = self.store.job(&PodKey::new("ml", name)) else { return format!("{name} is gone") };
        let status = job.status.clone().unwrap_or_default();
        let condition = status.condition("Scheduled").map(|found| found.message.clone());
        format!(
            "{name} {:?}, {:?}, attempt {}, places {:?}, {:?}, {condition:?}",
            status.stage,
            status.schedule_state,
            status.attempt,
            status.allocations.iter().map(|place| (&place.pod, &place.node)).collect::<Vec<_>>(),
            status.message
        )
    }
}
