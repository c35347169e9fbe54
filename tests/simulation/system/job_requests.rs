//! What the API server shows to TYJob controllers, and answers to their requests.

use baton::cluster::pod::LightPod;
use baton::contract::tyjob::{TyJob, TyJobStatus, condition, keys};
use baton::contract::{PodKey, PodUid};
use baton::decide::controller::{ControllerEvent, ControllerReport, JobRequest, OwnedPod, RequestFailure};
use baton::decide::pod::Phase;
use baton::decide::tyjob::stages::{CreateFailure, NodeReachability, PodEffect, PodView};
use baton::decide::world::PodFacts;
use serde_json::Value;

use super::store::{Change, job_key, shown};
use super::{Fault, Mutant, System};
use crate::harness::wall;

/// The controller's record of a pod. Its annotation of the reserved node stands among its labels here.
fn owned((pod, version): (&PodFacts, u64)) -> OwnedPod {
    let (of, claim) = (&pod.handoff, pod.spec.job.as_ref());
    // As the feed has it: one that ends well because it was asked to end has failed.
    let phase = if of.deleting.is_some() && of.phase == Phase::Succeeded { Phase::Failed } else { of.phase };
    let view = PodView {
        name: of.pod.key.name.to_string(),
        uid: of.pod.uid.to_string(),
        attempt: claim.and_then(|claim| claim.attempt),
        phase,
        ready: phase == Phase::Running,
        ip: (phase == Phase::Running).then(|| "10.0.0.7".to_owned()),
        node: of.node.as_deref().map(str::to_owned),
        allocation: pod.spec.labels.get(keys::ALLOCATION).cloned(),
        deleting: of.deleting.as_ref().map(|deletion| deletion.at),
        version: i64::try_from(version).unwrap_or(0),
        failure: (phase == Phase::Failed).then(|| "refused".to_owned()),
        ..PodView::default()
    };
    OwnedPod { job_uid: claim.map(|claim| claim.uid.to_string()), view }
}

/// What a watch of a controller shows.
pub fn event(change: Change) -> Option<ControllerEvent> {
    let name = |key: &PodKey| (key.namespace.to_string(), key.name.to_string());
    Some(match change {
        Change::Job(job) => ControllerEvent::Job(Box::new(shown(&job.job))),
        Change::JobGone(job) => {
            let (namespace, name) = name(&job.facts.job.key);
            ControllerEvent::JobGone(namespace, name)
        }
        Change::Pod(pod, version) if pod.spec.job.is_some() => ControllerEvent::Pod(Box::new(owned((&pod, version)))),
        Change::PodGone(pod) if pod.spec.job.is_some() => ControllerEvent::PodGone(pod.handoff.pod.uid.to_string()),
        Change::Node(node) => ControllerEvent::Node(node.name.to_string(), NodeReachability::There),
        Change::NodeGone(node) => ControllerEvent::NodeGone(node.to_string()),
        _ => return None,
    })
}

/// The answer to a status that is stored.
pub fn stored(job: &TyJob, status: &TyJobStatus) -> ControllerReport {
    let job = TyJob { status: Some(status.clone()), ..job.clone() };
    ControllerReport::Written(Box::new(shown(&job)))
}

impl System {
    /// It is not known whether it was done.
    pub fn lost(&self, job: &TyJob, request: &JobRequest) -> ControllerReport {
        match request {
            JobRequest::WriteStatus(status) if self.is(Mutant::LostStatusCounts) => stored(job, status),
            _ => ControllerReport::Failed(RequestFailure::Unknown),
        }
    }

    /// What the API server does.
    pub fn execute_for_job(&mut self, at: usize, job: &TyJob, request: &JobRequest) -> ControllerReport {
        let key = job_key(job);
        match request {
            JobRequest::ReadNode(name) => ControllerReport::NodeRead(self.store.has_node(name)),
            JobRequest::ReadPod(_) if self.is(Mutant::LeaderGoneByWatch) => ControllerReport::PodRead(None),
            JobRequest::ReadPod(name) => {
                let found = self.store.versioned(&PodKey::new(&key.namespace, name)).map(owned);
                let ours = found.filter(|pod| pod.job_uid.is_some() && pod.job_uid == job.metadata.uid);
                let known = job.status.as_ref().and_then(|status| status.leader_address.as_ref());
                let lives = |of: &PodView| of.deleting.is_none() && !of.phase.is_terminal() && of.ip.as_ref() == known;
                if ours.as_ref().is_some_and(|pod| lives(&pod.view)) {
                    self.history.sometimes("the leader of a job is there, which its controller has not been shown");
                }
                ControllerReport::PodRead(ours.map(Box::new))
            }
            JobRequest::WriteStatus(status) => self.status_of_job(at, job, status),
            JobRequest::AddFinalizer => {
                let on = |job: &mut TyJob| job.metadata.finalizers = Some(vec![keys::FINALIZER.to_owned()]);
                self.store.write_job(job, false, on)
            }
            JobRequest::ListPods if self.is(Mutant::FinalizerByWatch) => ControllerReport::PodsListed(Vec::new()),
            JobRequest::ListPods => {
                let left: Vec<OwnedPod> = self.pods_of_job(job).collect();
                if !left.is_empty() {
                    self.history.sometimes("a late pod keeps the finalizer on its job");
                }
                ControllerReport::PodsListed(left)
            }
            JobRequest::RemoveFinalizer => {
                let write = self.store.write_job(job, false, |job| job.metadata.finalizers = None);
                self.note(|| format!("controller {at} lets {key} go: {}", words(&write)));
                if matches!(write, ControllerReport::Written(_)) {
                    self.judge_job_gone(job);
                }
                write
            }
            JobRequest::Pod(PodEffect::Create { name, body }) => {
                let made = self.make_for_job(job, name, body);
                self.note(|| format!("controller {at} makes {name}: {}", words(&made)));
                made
            }
            JobRequest::Pod(PodEffect::Delete { name, uid, version, force }) => {
                let (key, uid) = (PodKey::new(&key.namespace, name), PodUid::new(uid));
                let of = (!self.is(Mutant::JobDeletesWithoutUid)).then_some(&uid);
                let found = self.store.versioned(&key);
                match found.filter(|(pod, _)| pod.handoff.pod.uid == uid || of.is_none()) {
                    None => return ControllerReport::PodGone(uid.as_str().to_owned()),
                    Some((_, now)) if of.is_some() && now != *version as u64 => return ControllerReport::Conflict,
                    Some(_) => {}
                }
                self.note(|| format!("controller {at} deletes {name}"));
                self.judge_deletion(job, &key, &uid, of.is_some());
                if *force && let Some(pod) = self.store.pod(&key).filter(|pod| pod.handoff.pod.uid == uid) {
                    let pod = pod.handoff.pod.clone();
                    self.store.remove(&pod);
                } else {
                    self.store.delete(&key, of, wall(self.now));
                }
                ControllerReport::Deleted
            }
            JobRequest::Pod(PodEffect::Reserve { name, uid, node }) => {
                let found = self.store.pod(&PodKey::new(&key.namespace, name));
                if let Some(pod) = found.map(|pod| pod.handoff.pod.clone()).filter(|pod| pod.uid.as_str() == uid) {
                    self.store.change(&pod, |facts| {
                        facts.spec.labels.insert(keys::ALLOCATION.to_owned(), node.clone());
                    });
                }
                ControllerReport::Reserved
            }
        }
    }

    fn status_of_job(&mut self, at: usize, job: &TyJob, status: &TyJobStatus) -> ControllerReport {
        if self.strikes(Fault::Conflict) {
            return ControllerReport::Conflict;
        }
        let (key, blind) = (job_key(job), self.is(Mutant::StatusWithoutVersion));
        let before = self.store.job(&key).cloned();
        let write = self.store.write_job(job, blind, |job| {
            let former = job.status.take().unwrap_or_default();
            let mut status = status.clone();
            // The scheduler's half has another owner.
            (status.schedule_state, status.allocations) = (former.schedule_state, former.allocations);
            status.conditions.retain(|found| found.type_ != condition::SCHEDULED);
            let theirs = former.conditions.into_iter();
            status.conditions.extend(theirs.filter(|found| found.type_ == condition::SCHEDULED));
            job.status = Some(status);
        });
        self.note(|| {
            let (stage, attempt) = (status.stage, status.attempt);
            format!("controller {at} writes {key} {stage:?}, attempt {attempt}: {}", words(&write))
        });
        if matches!(write, ControllerReport::Written(_)) {
            self.judge_status(job, before.as_ref());
            self.judge_stage(&key, before.and_then(|job| job.status).as_ref());
        }
        write
    }

    fn pods_of_job<'a>(&'a self, job: &'a TyJob) -> impl Iterator<Item = OwnedPod> + 'a {
        let uid = job.metadata.uid.as_deref();
        let ours = move |pod: &&PodFacts| pod.spec.job.as_ref().map(|claim| &*claim.uid) == uid;
        let found = self.store.pods().filter(ours);
        found.filter_map(|pod| self.store.versioned(&pod.handoff.pod.key)).map(owned)
    }

    fn make_for_job(&mut self, job: &TyJob, name: &str, body: &Value) -> ControllerReport {
        let key = PodKey::new(job.metadata.namespace.as_deref().unwrap_or_default(), name);
        if let Some(found) = self.store.versioned(&key).map(owned) {
            if found.job_uid.is_none() || found.job_uid != job.metadata.uid {
                return ControllerReport::NotMade(CreateFailure::Foreign("it is another's".to_owned()));
            }
            let attempt = body["metadata"]["labels"][keys::ATTEMPT].as_str().and_then(|text| text.parse().ok());
            let is_same = found.view.attempt == attempt && found.view.deleting.is_none();
            return if is_same {
                ControllerReport::Made(Box::new(found))
            } else {
                ControllerReport::Held(Box::new(found))
            };
        }
        if self.strikes(Fault::Forbidden) {
            return ControllerReport::NotMade(CreateFailure::Refused("403".to_owned()));
        }
        let mut facts = serde_json::from_value::<LightPod>(body.clone()).unwrap().facts();
        facts.handoff.pod = self.jobs.next_pod(name);
        facts.handoff.created = wall(self.now);
        let node = body["metadata"]["annotations"][keys::ALLOCATION].as_str().unwrap_or_default();
        facts.spec.labels.insert(keys::ALLOCATION.to_owned(), node.to_owned());
        self.judge_made(job, &facts);
        self.store.put(facts);
        ControllerReport::Made(Box::new(owned(self.store.versioned(&key).unwrap())))
    }
}

fn words(report: &ControllerReport) -> String {
    match report {
        ControllerReport::Written(_) | ControllerReport::Made(_) => "done".to_owned(),
        ControllerReport::Held(_) => "the former one is not gone".to_owned(),
        other => format!("{other:?}"),
    }
}
