//! The controller as a value: which jobs are under way, and when the others are due.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::cache::{JobCache, JobKey};
use super::effect::{ControllerCounts, ControllerEffect, ControllerEvent, ControllerReport, EffectId};
use super::reconciliation::{End, Output, Reconciliation, Troubles};
use crate::core::Moment;
use crate::pause::doubled;

/// Jobs that are under way at once: each waits for the API server for most of its time, and more would crowd out its other clients.
const AT_ONCE: usize = 16;
/// A job whose time has come is due this much later: what became so at that time is so by then.
const LATER: Duration = Duration::from_millis(10);

/// What is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerPolicy {
    /// `spec.schedulerName` of the pods.
    pub scheduler_name: Arc<str>,
    /// First pause of a job after a failed request.
    pub backoff: Duration,
    /// Longest pause.
    pub backoff_max: Duration,
    /// Every job is due this often.
    pub resync: Duration,
}

/// What is remembered of a job between reconciliations.
#[derive(Default)]
struct Memory {
    /// Pauses in a row.
    failures: u32,
    /// Pods that could not be made; `None` before the first reconciliation that got as far as making pods.
    troubles: Option<Troubles>,
}

/// When a job is due.
struct DueJob {
    /// Monotonic time; zero for now.
    at: Duration,
    /// Of those that are due, the one that has waited longest is next: a job with many events does not hold back others.
    turn: u64,
}

/// One term of a controller: it begins with nothing, and fresh watches.
pub struct JobController {
    settings: ControllerPolicy,
    cache: JobCache,
    /// Every first list is complete.
    complete: bool,
    /// A job under way may be due again.
    due: BTreeMap<JobKey, DueJob>,
    last_turn: u64,
    under_way: BTreeMap<JobKey, Reconciliation>,
    memory: BTreeMap<JobKey, Memory>,
    /// When all jobs are due.
    resync: Duration,
    last_id: u64,
    counts: ControllerCounts,
}

impl JobController {
    /// A term that begins now.
    pub fn new(settings: ControllerPolicy, now: Moment) -> Self {
        Self {
            resync: now.mono + settings.resync,
            settings,
            cache: JobCache::default(),
            complete: false,
            due: BTreeMap::new(),
            last_turn: 0,
            under_way: BTreeMap::new(),
            memory: BTreeMap::new(),
            last_id: 0,
            counts: ControllerCounts::default(),
        }
    }

    /// A watch shows something.
    pub fn event(&mut self, event: ControllerEvent) {
        for key in self.cache.apply(event) {
            if let Some(under_way) = self.under_way.get_mut(&key) {
                under_way.see(&self.cache, &key);
            }
            self.set_due(key, Duration::ZERO);
        }
    }

    /// The first list of every watch is complete.
    pub fn complete(&mut self) {
        self.complete = true;
        self.all_due();
    }

    /// A request was answered. One that is not waited for is ignored.
    pub fn report(&mut self, of: EffectId, report: ControllerReport) {
        if let Some(under_way) = self.under_way.values_mut().find(|under_way| under_way.is_asked(of)) {
            let shown = under_way.answer(of, report, &mut self.counts);
            shown.into_iter().for_each(|event| self.event(event));
        }
    }

    /// Everything that is to be done now, in this order; `None` once leadership has ended, and this term with it.
    pub fn step(&mut self, now: Moment, leads_until: Duration) -> Option<Vec<ControllerEffect>> {
        if now.mono >= leads_until {
            return None;
        }
        let mut effects = Vec::new();
        if !self.complete {
            return Some(effects);
        }
        if now.mono >= self.resync {
            self.resync = now.mono + self.settings.resync;
            self.all_due();
        }
        for (key, under_way) in std::mem::take(&mut self.under_way) {
            self.advance(key, under_way, now, &mut effects);
        }
        if self.under_way.is_empty() {
            // No answer can show what is gone any more.
            self.cache.drop_tombstones();
        }
        while let Some(key) = self.next(now.mono) {
            self.due.remove(&key);
            let Some(shown) = self.cache.job(&key).cloned() else {
                self.memory.remove(&key);
                continue;
            };
            let pods = self.cache.pods_of(&shown.job);
            let troubles = self.memory.get(&key).and_then(|memory| memory.troubles.clone());
            self.advance(key, Reconciliation::new(shown, pods, troubles), now, &mut effects);
        }
        Some(effects)
    }

    /// When the next step is due, if nothing happens before.
    pub fn due(&self) -> Duration {
        let is_full = !self.complete || self.under_way.len() >= AT_ONCE;
        let waits = self.due.iter().filter(|(key, _)| !is_full && !self.under_way.contains_key(*key));
        waits.map(|(_, due)| due.at).min().unwrap_or(self.resync).min(self.resync)
    }

    /// What the watches have shown.
    pub const fn cache(&self) -> &JobCache {
        &self.cache
    }

    /// Jobs that are due, now or later.
    pub fn waiting(&self) -> usize {
        self.due.len()
    }

    /// What has happened since the last call.
    pub fn take_counts(&mut self) -> ControllerCounts {
        std::mem::take(&mut self.counts)
    }

    fn all_due(&mut self) {
        let all: Vec<JobKey> = self.cache.jobs().map(|(key, _)| key.clone()).collect();
        all.into_iter().for_each(|key| self.set_due(key, Duration::ZERO));
    }

    /// At that time or earlier. A job that is due already keeps its turn.
    fn set_due(&mut self, key: JobKey, at: Duration) {
        self.last_turn += 1;
        let due = self.due.entry(key).or_insert(DueJob { at, turn: self.last_turn });
        due.at = due.at.min(at);
    }

    /// A job to begin with now. None is under way twice.
    fn next(&self, now: Duration) -> Option<JobKey> {
        if self.under_way.len() >= AT_ONCE {
            return None;
        }
        let may_begin = self.due.iter().filter(|(key, due)| due.at <= now && !self.under_way.contains_key(*key));
        may_begin.min_by_key(|(_, due)| due.turn).map(|(key, _)| key.clone())
    }

    /// Sends what may be sent of a job; the end of its reconciliation says when it is due again.
    fn advance(&mut self, key: JobKey, mut job: Reconciliation, now: Moment, effects: &mut Vec<ControllerEffect>) {
        let mut out = Output {
            scheduler_name: &self.settings.scheduler_name,
            wall: now.wall,
            last_id: &mut self.last_id,
            counts: &mut self.counts,
            effects,
        };
        if !job.advance(&mut out) {
            self.under_way.insert(key, job);
            return;
        }
        let End { troubles, is_news, wake, again, failed, made } = job.end();
        self.counts.failures += u64::from(failed);
        let has_trouble = troubles.as_ref().is_some_and(|troubles| !troubles.is_empty());
        let memory = self.memory.entry(key.clone()).or_default();
        memory.troubles = troubles;
        if is_news {
            self.set_due(key, Duration::ZERO);
            return;
        }
        let wake = wake.map(|at| Duration::try_from(at.duration_since(now.wall)).unwrap_or_default() + LATER);
        memory.failures = if made { 0 } else { memory.failures };
        let pause = (again || has_trouble).then(|| pause(&self.settings, &key, memory.failures));
        memory.failures = if pause.is_some() { memory.failures.saturating_add(1) } else { 0 };
        if let Some(pause) = pause.into_iter().chain(wake).min() {
            self.set_due(key, now.mono + pause);
        }
    }
}

/// A pause that doubles with each failure. Up to half of it is taken away, so that jobs that failed together do not come back together.
fn pause(settings: &ControllerPolicy, key: &JobKey, failures: u32) -> Duration {
    let pause = doubled((settings.backoff, settings.backoff_max), failures);
    let mut hasher = DefaultHasher::new();
    (key, failures).hash(&mut hasher);
    pause.mul_f64(1.0 - f64::from(hasher.finish() as u16) / f64::from(u16::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::effect::{JobRequest, OwnedPod, RequestFailure, ShownJob};
    use super::*;
    use crate::pod::Phase;
    use crate::tyjob::stages::{CreateFailure, ImageWait, NodeReachability, PodEffect, PodView};
    use baton_contract::EventReason;
    use baton_contract::tyjob::{Stage, TyJob, condition, keys};

    /// A term that knows so many jobs.
    fn term(jobs: usize, edit: impl Fn(&mut Value)) -> JobController {
        let (backoff, backoff_max, resync) =
            (Duration::from_secs(1), Duration::from_secs(60), Duration::from_secs(300));
        let settings = ControllerPolicy { scheduler_name: "ours".into(), backoff, backoff_max, resync };
        let mut term = JobController::new(settings, moment(0));
        for at in 0..jobs {
            let template = json!({ "spec": { "containers": [{ "name": "main", "image": "i" }] } });
            let part = |name: &str| json!({ "name": name, "template": template });
            let meta =
                json!({ "name": format!("rl{at}"), "namespace": "a", "uid": at.to_string(), "resourceVersion": "1" });
            let spec = json!({ "leader": part("learner"), "workerSets": [part("actor")] });
            let mut job = json!({ "metadata": meta, "spec": spec, "status": {} });
            edit(&mut job);
            let (job, unreadable) = TyJob::read(&job).unwrap();
            term.event(ControllerEvent::Job(Box::new(ShownJob { job, unreadable })));
        }
        term.complete();
        term
    }

    fn moment(seconds: u64) -> Moment {
        Moment { mono: Duration::from_secs(seconds), wall: "2026-01-01T00:00:00Z".parse().unwrap() }
    }

    /// What it sends, and how many events it tells.
    fn step(term: &mut JobController, seconds: u64) -> (Vec<(EffectId, JobRequest)>, usize) {
        let (mut requests, mut events) = (Vec::new(), 0);
        for effect in term.step(moment(seconds), Duration::MAX).unwrap() {
            match effect {
                ControllerEffect::Request { id, request, .. } => requests.push((id, request)),
                ControllerEffect::Event { .. } => events += 1,
            }
        }
        (requests, events)
    }

    #[test]
    fn so_many_jobs_are_under_way_at_once_and_each_of_them_once() {
        let mut term = term(AT_ONCE + 4, |_| {});
        let (first, events) = step(&mut term, 1);
        assert!(first.iter().all(|(_, request)| matches!(request, JobRequest::WriteStatus(_))));
        assert_eq!((first.len(), events), (AT_ONCE, 0), "events wait for the status");
        assert_eq!((term.waiting(), term.cache().jobs().count()), (4, AT_ONCE + 4));
        assert_eq!(term.due(), Duration::from_secs(300), "as long as no one ends");
        term.complete();
        assert_eq!((step(&mut term, 2).0.len(), term.waiting()), (0, AT_ONCE + 4), "all are due again, and wait");
        term.report(first[3].0, ControllerReport::Gone);
        assert_eq!(term.due(), Duration::from_secs(300), "its end is not seen yet");
        assert_eq!(step(&mut term, 3).0.len(), 1);
        assert!(term.step(moment(4), Duration::from_secs(4)).is_none(), "leadership has ended");
    }

    #[test]
    fn a_job_that_is_due_again_lets_those_that_wait_go_first() {
        let mut term = term(AT_ONCE + 1, |_| {});
        let (first, _) = step(&mut term, 1);
        let last = term.due.keys().next().unwrap().clone();
        term.complete();
        term.report(first[0].0, ControllerReport::Gone);
        step(&mut term, 2);
        assert!(term.under_way.contains_key(&last), "{:?}", term.under_way.keys());
    }

    #[test]
    fn so_many_pods_of_a_job_are_deleted_at_once() {
        let mut term = term(1, |job| job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        for at in 0..12 {
            let (name, uid) = (format!("rl0-{at}"), format!("pod-{at}"));
            let view = PodView { name, uid, ..PodView::default() };
            term.event(ControllerEvent::Pod(Box::new(OwnedPod { job_uid: Some("0".to_owned()), view })));
        }
        let (first, _) = step(&mut term, 1);
        assert!(first.iter().all(|(_, request)| matches!(request, JobRequest::Pod(PodEffect::Delete { .. }))));
        assert_eq!(first.len(), 8);
        term.report(first[0].0, ControllerReport::Deleted);
        term.report(first[1].0, ControllerReport::Failed(RequestFailure::Unknown));
        assert_eq!(step(&mut term, 2).0.len(), 2, "none depends on another");
        assert_eq!(term.take_counts().pods_deleted, 1);
    }

    /// It was made and deleted while the watch was broken: no watch shows its end.
    #[test]
    fn a_pod_that_the_api_server_does_not_have_is_forgotten() {
        let mut term = term(1, |job| job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
        let view = PodView { name: "rl0-0".to_owned(), uid: "pod".to_owned(), ..PodView::default() };
        term.event(ControllerEvent::Pod(Box::new(OwnedPod { job_uid: Some("0".to_owned()), view })));
        let (first, _) = step(&mut term, 1);
        term.report(first[0].0, ControllerReport::PodGone("pod".to_owned()));
        let (next, _) = step(&mut term, 2);
        assert!(matches!(&*next, [(_, JobRequest::ListPods)] | []), "{next:?}");
        assert!(term.cache.pod("pod").is_none());
    }

    /// A job whose leader runs and whose workers have places, with these conditions.
    fn placed(sets: &[(&str, u32)], conditions: &Value) -> JobController {
        let mut term = term(1, |job| {
            job["metadata"]["finalizers"] = json!([keys::FINALIZER]);
            let template = job["spec"]["leader"]["template"].clone();
            let worker_set =
                |(name, counts): &(&str, u32)| json!({ "name": name, "counts": counts, "template": template });
            job["spec"]["workerSets"] = sets.iter().map(worker_set).collect();
            let place = |pod: String, role: &str, index: u32| json!({ "pod": pod, "role": role, "index": index, "node": "n", "attempt": 0 });
            let workers = sets.iter().flat_map(|(set, counts)| (0..*counts).map(move |index| (set, index)));
            let workers = workers.map(|(set, index)| place(format!("rl0-{set}-{index}"), "worker", index));
            let leader = place("rl0-learner".to_owned(), "leader", 0);
            let places: Vec<Value> = std::iter::once(leader).chain(workers).collect();
            job["status"] = json!({
                "stage": "Starting", "leaderAddress": "10.0.0.1", "allocations": places,
                "scheduleState": "ScheduledSucceed", "conditions": conditions,
            });
        });
        term.event(ControllerEvent::Node("n".to_owned(), NodeReachability::There));
        let leader = PodView { ready: false, node: Some("n".to_owned()), ..alive("rl0-learner") };
        term.event(ControllerEvent::Pod(shown(leader)));
        term
    }

    fn shown(view: PodView) -> Box<OwnedPod> {
        Box::new(OwnedPod { job_uid: Some("0".to_owned()), view })
    }

    /// Stores the status that these requests ask for; `false` where they ask for none.
    fn stores(term: &mut JobController, requests: &[(EffectId, JobRequest)]) -> bool {
        let [(id, JobRequest::WriteStatus(written))] = requests else { return false };
        let mut job = term.cache.jobs().next().unwrap().1.job.clone();
        job.status = Some((**written).clone());
        term.report(*id, ControllerReport::Written(Box::new(ShownJob { job, unreadable: None })));
        // What was written is a change that makes the job due once more. It shows nothing new here.
        term.due.clear();
        true
    }

    /// The requests for pods, once the status is stored.
    fn pods(term: &mut JobController, seconds: u64) -> Vec<EffectId> {
        let (mut requests, _) = step(term, seconds);
        if stores(term, &requests) {
            requests = step(term, seconds).0;
        }
        assert!(requests.iter().all(|(_, request)| matches!(request, JobRequest::Pod(_))), "{requests:?}");
        requests.into_iter().map(|(id, _)| id).collect()
    }

    /// Answers the request for the job's only worker so. In how many seconds the job is due; `None` where its status says it at once.
    fn tries(term: &mut JobController, seconds: u64, report: ControllerReport) -> Option<f64> {
        let asked = pods(term, seconds);
        let [id] = &*asked else { panic!("{asked:?}") };
        term.report(*id, report);
        let (next, _) = step(term, seconds);
        if stores(term, &next) {
            return None;
        }
        assert!(next.is_empty(), "{next:?}");
        let due = term.due.values().map(|due| due.at).min().unwrap_or(term.resync);
        Some(due.saturating_sub(moment(seconds).mono).as_secs_f64())
    }

    fn refused(why: &str) -> ControllerReport {
        ControllerReport::NotMade(CreateFailure::Refused(why.to_owned()))
    }

    #[test]
    fn a_pod_that_cannot_be_made_is_news_once_and_tried_again_after_pauses_that_grow() {
        let mut term = placed(&[("actor", 1)], &json!([]));
        assert_eq!(tries(&mut term, 1, refused("quota")), None);
        let mut at = 1;
        for longest in [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0] {
            let pause = tries(&mut term, at, refused(&format!("quota, request {at}"))).unwrap();
            assert!((longest / 2.0..=longest).contains(&pause), "{longest}: {pause}");
            at += 100;
        }
        let unknown = tries(&mut term, at, ControllerReport::Failed(RequestFailure::Unknown));
        assert!(unknown.is_some(), "it is not known to be free: {unknown:?}");
        let foreign = ControllerReport::NotMade(CreateFailure::Foreign("b".to_owned()));
        assert_eq!(tries(&mut term, at + 100, foreign), None, "another reason");
        assert!(tries(&mut term, at + 100, refused("quota")).is_some(), "a refusal does not say that the name is free");
        let key = |at: u32| ("a".to_owned(), at.to_string());
        let pauses = (0..50).map(|at| pause(&term.settings, &key(at), 0).as_secs_f64());
        assert!(pauses.into_iter().all(|pause| (0.5..=1.0).contains(&pause)));
    }

    #[test]
    fn a_trouble_of_a_former_term_is_taken_back_once_every_pod_was_tried() {
        let now = "2026-01-01T00:00:00Z";
        for kind in [condition::POD_REFUSED, condition::NAME_CONFLICT] {
            let held =
                json!([{ "type": kind, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": now }]);
            let mut term = placed(&[("actor", 1)], &held);
            let unknown = tries(&mut term, 1, ControllerReport::Failed(RequestFailure::Unknown));
            assert!(unknown.is_some(), "{kind}: the status keeps what it says");
            let mut term = placed(&[("actor", 1)], &held);
            assert_eq!(tries(&mut term, 1, ControllerReport::Conflict), None, "{kind}");
            assert!(tries(&mut term, 1, ControllerReport::Conflict).is_some(), "{kind}: it says so already");
        }
        let mut term = placed(&[("actor", 1)], &json!([]));
        assert!(tries(&mut term, 1, ControllerReport::Conflict).is_some(), "nothing was said");
    }

    #[test]
    fn a_job_without_trouble_is_due_with_all_or_when_its_step_says() {
        let mut term = placed(&[("actor", 1)], &json!([]));
        assert_eq!(tries(&mut term, 1, ControllerReport::Reserved), Some(299.0));
        let mut term = placed(&[("actor", 1)], &json!([]));
        let image = Some(ImageWait { reason: "ErrImagePull".to_owned(), message: "no".to_owned() });
        let leader = PodView { image, phase: Phase::Pending, node: Some("n".to_owned()), ..alive("rl0-learner") };
        term.event(ControllerEvent::Pod(shown(leader)));
        assert_eq!(
            tries(&mut term, 1, ControllerReport::Reserved),
            Some(301.01),
            "the image's patience, a second, and LATER"
        );
    }

    #[test]
    fn all_jobs_are_due_at_every_resync() {
        let mut term = term(1, |_| {});
        for seconds in [1, 300, 600] {
            let (first, _) = step(&mut term, seconds);
            assert_eq!(first.len(), 1, "{seconds}");
            term.report(first[0].0, ControllerReport::Gone);
            let (next, events) = step(&mut term, seconds);
            assert_eq!((next.len(), events), (0, 0), "nothing follows a status of a job that is gone");
            assert_eq!(term.due(), Duration::from_secs((seconds / 300 + 1) * 300));
        }
    }

    #[test]
    fn a_node_that_the_watch_lacks_is_read_and_its_leader_is_lost_when_it_is_gone() {
        for (is_there, stage) in [(true, Stage::Starting), (false, Stage::Rescheduling)] {
            let mut term = placed(&[("actor", 1)], &json!([]));
            term.event(ControllerEvent::NodeGone("n".to_owned()));
            let (reads, _) = step(&mut term, 1);
            let [(id, JobRequest::ReadNode(name))] = &*reads else { panic!("{reads:?}") };
            assert_eq!(name, "n");
            term.report(*id, ControllerReport::NodeRead(is_there));
            let (mut next, _) = step(&mut term, 1);
            if let [(id, JobRequest::ReadPod(_))] = &*next {
                let leader = PodView { node: Some("n".to_owned()), ..alive("rl0-learner") };
                term.report(*id, ControllerReport::PodRead(Some(shown(leader))));
                next = step(&mut term, 1).0;
            }
            let [(_, JobRequest::WriteStatus(status))] = &*next else { panic!("{next:?}") };
            assert_eq!(status.stage, Some(stage));
        }
    }

    #[test]
    fn a_finalizer_goes_when_the_api_server_lists_no_pod() {
        for left in [Vec::new(), vec![*shown(alive("rl0-actor-0"))]] {
            let mut term = term(1, |job| {
                job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
                job["metadata"]["finalizers"] = json!([keys::FINALIZER]);
            });
            let (lists, _) = step(&mut term, 1);
            let [(id, JobRequest::ListPods)] = &*lists else { panic!("{lists:?}") };
            let is_free = left.is_empty();
            term.report(*id, ControllerReport::PodsListed(left));
            let (next, _) = step(&mut term, 1);
            assert_eq!(is_free, matches!(&*next, [(_, JobRequest::RemoveFinalizer)]), "{next:?}");
            assert_eq!(is_free, !matches!(&*next, [(_, JobRequest::Pod(PodEffect::Delete { .. }))]), "{next:?}");
        }
    }

    #[test]
    fn what_was_done_is_counted() {
        let mut term = placed(&[("actor", 12)], &json!([]));
        let first = pods(&mut term, 1);
        term.report(first[0], ControllerReport::Made(shown(alive("rl0-actor-0"))));
        term.report(first[1], ControllerReport::Gone);
        assert_eq!(step(&mut term, 1).0.len(), 2, "pods follow whatever became of others");
        let made = ControllerCounts { steps: 1, status_writes: 1, pods_made: 1, ..ControllerCounts::default() };
        assert_eq!(term.take_counts(), made);
        assert_eq!(term.take_counts(), ControllerCounts::default());
        let mut term = placed(&[("actor", 12)], &json!([]));
        let (status, _) = step(&mut term, 1);
        term.report(status[0].0, ControllerReport::Conflict);
        assert_eq!(step(&mut term, 1).0.len(), 0);
        assert_eq!(term.take_counts(), ControllerCounts { steps: 1, conflicts: 1, ..ControllerCounts::default() });
    }

    #[test]
    fn a_refused_pod_stops_the_creations_of_its_set_and_of_no_other() {
        let mut term = placed(&[("actor", 12), ("judge", 4)], &json!([]));
        let first = pods(&mut term, 1);
        assert_eq!(first.len(), 8);
        term.report(first[0], refused("quota"));
        let (next, _) = step(&mut term, 1);
        let names: Vec<_> = next.iter().map(|(_, request)| request.subject().unwrap().as_str()).collect();
        assert_eq!(names, ["rl0-judge-0"]);
    }

    #[test]
    fn an_invalid_pod_is_tried_again_as_a_refused_one_is() {
        let invalid = || ControllerReport::NotMade(CreateFailure::Invalid("no image".to_owned()));
        let mut term = placed(&[("actor", 12), ("judge", 4)], &json!([]));
        let first = pods(&mut term, 1);
        term.report(first[0], invalid());
        assert_eq!(step(&mut term, 1).0.len(), 1, "the other set");
        let mut term = placed(&[("actor", 1)], &json!([]));
        let mut job = term.cache.jobs().next().unwrap().1.job.clone();
        job.status.get_or_insert_default().stage = Some(Stage::Running);
        term.event(ControllerEvent::Job(Box::new(ShownJob { job, unreadable: None })));
        assert_eq!(tries(&mut term, 1, invalid()), None);
        for (at, longest) in [(100, 1.0), (200, 2.0), (300, 4.0)] {
            let pause = tries(&mut term, at, invalid()).unwrap();
            assert!((longest / 2.0..=longest).contains(&pause), "{longest}: {pause}");
        }
    }

    #[test]
    fn pods_that_are_out_of_date_are_not_made() {
        type Change = fn(&mut JobController, TyJob);
        let edited: Change = |term, mut job| {
            job.metadata.generation = Some(7);
            term.event(ControllerEvent::Job(Box::new(ShownJob { job, unreadable: None })));
        };
        let deleted: Change = |term, mut job| {
            job.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(moment(0).wall));
            term.event(ControllerEvent::Job(Box::new(ShownJob { job, unreadable: None })));
        };
        let failed: Change = |term, _| {
            let leader = PodView { phase: Phase::Failed, version: 9, ..alive("rl0-learner") };
            term.event(ControllerEvent::Pod(shown(leader)));
        };
        let gone: Change = |term, _| term.event(ControllerEvent::PodGone("uid-rl0-learner".to_owned()));
        let written: Change = |term, job| {
            term.event(ControllerEvent::Job(Box::new(ShownJob { job, unreadable: None })));
        };
        for (name, change, more) in [
            ("edited", edited, 0),
            ("deleted", deleted, 0),
            ("failed", failed, 0),
            ("gone", gone, 0),
            ("written", written, 1),
        ] {
            let mut term = placed(&[("actor", 12)], &json!([]));
            let first = pods(&mut term, 1);
            let job = term.cache.jobs().next().unwrap().1.job.clone();
            change(&mut term, job);
            term.report(first[0], ControllerReport::Made(shown(alive("rl0-actor-0"))));
            assert_eq!(step(&mut term, 1).0.len(), more, "{name}");
        }
    }

    #[test]
    fn a_status_that_is_rejected_is_told_and_tried_again_after_a_pause() {
        let invalid = |job: &mut Value| job["spec"]["minWorkersNum"] = 9.into();
        let mut cut_off = term(1, invalid);
        let (first, _) = step(&mut cut_off, 1);
        cut_off.report(first[0].0, ControllerReport::Failed(RequestFailure::Unknown));
        let (next, events) = step(&mut cut_off, 1);
        assert_eq!((next.len(), events), (0, 0), "what is not known to be stored has not happened");
        let mut term = term(1, invalid);
        let (first, _) = step(&mut term, 1);
        term.report(first[0].0, ControllerReport::Failed(RequestFailure::Invalid));
        let (requests, events) = step(&mut term, 1);
        assert_eq!((requests.len(), events), (0, 2), "the warnings of the field and of the end, and nothing else");
        let pause = term.due().saturating_sub(Duration::from_secs(1));
        assert!(pause >= Duration::from_millis(500) && pause <= Duration::from_secs(1), "{pause:?}");
        assert_eq!(step(&mut term, 2).0.len(), 1);
        assert_eq!(term.take_counts(), ControllerCounts { steps: 2, failures: 1, ..ControllerCounts::default() });
    }

    #[test]
    fn a_status_that_is_too_large_is_told_and_tried_again_after_pauses_that_grow() {
        let mut term = term(1, |_| {});
        let mut at = 1;
        for longest in [1.0, 2.0, 4.0, 8.0] {
            let (first, _) = step(&mut term, at);
            let [(id, JobRequest::WriteStatus(_))] = &*first else { panic!("{first:?}") };
            term.report(*id, ControllerReport::Failed(RequestFailure::TooLarge));
            let effects = term.step(moment(at), Duration::MAX).unwrap();
            let [ControllerEffect::Event { warning: true, reason, .. }] = &*effects else { panic!("{effects:?}") };
            assert_eq!(*reason, EventReason::StatusTooLarge);
            let pause = term.due().saturating_sub(moment(at).mono).as_secs_f64();
            assert!((longest / 2.0..=longest).contains(&pause), "{longest}: {pause}");
            at += 20;
        }
    }

    /// A job that has started, with an actor whose first failure is counted, and a watch that shows a former pod of one name.
    fn behind(former: PodView) -> (JobController, TyJob) {
        let mut term = term(1, |job| {
            job["metadata"]["finalizers"] = json!([keys::FINALIZER]);
            job["status"] =
                json!({ "stage": "Running", "leaderAddress": "10.0.0.1", "workerSetRestarts": { "actor": 1 } });
        });
        for name in ["rl0-learner", "rl0-actor-0"] {
            let view = if name == former.name { former.clone() } else { alive(name) };
            term.event(ControllerEvent::Pod(Box::new(OwnedPod { job_uid: Some("0".to_owned()), view })));
        }
        let job = term.cache.jobs().next().unwrap().1.job.clone();
        (term, job)
    }

    fn alive(name: &str) -> PodView {
        let (uid, attempt, ip) = (format!("uid-{name}"), Some(0), Some("10.0.0.1".to_owned()));
        PodView { name: name.to_owned(), uid, attempt, phase: Phase::Running, ready: true, ip, ..PodView::default() }
    }

    #[test]
    fn what_ends_a_pod_counts_when_the_api_server_says_it_of_the_present_one() {
        let former = |name: &str| PodView { uid: "former".to_owned(), ..alive(name) };
        let moved = Some("10.0.0.9".to_owned());
        for former in [
            PodView { deleting: Some(moment(0).wall), ..former("rl0-learner") },
            PodView { phase: Phase::Failed, ..former("rl0-learner") },
            PodView { ip: moved, ..former("rl0-learner") },
            PodView { attempt: Some(1), ..former("rl0-learner") },
            PodView { phase: Phase::Failed, ..former("rl0-actor-0") },
        ] {
            let (mut term, job) = behind(former.clone());
            let (reads, _) = step(&mut term, 1);
            let [(id, JobRequest::ReadPod(name))] = &*reads else { panic!("{former:?}: {reads:?}") };
            assert_eq!(*name, former.name);
            let present = OwnedPod { job_uid: Some("0".to_owned()), view: alive(name) };
            term.report(*id, ControllerReport::PodRead(Some(Box::new(present))));
            let (status, _) = step(&mut term, 1);
            let [(_, JobRequest::WriteStatus(written))] = &*status else { panic!("{former:?}: {status:?}") };
            let (written, before) = (&**written, job.status.unwrap());
            assert_eq!((written.stage, written.attempt), (before.stage, before.attempt), "{former:?}");
            assert_eq!(written.worker_set_restarts, before.worker_set_restarts, "{former:?}");
            assert_eq!(written.leader_address, before.leader_address, "{former:?}");
        }
    }
}
