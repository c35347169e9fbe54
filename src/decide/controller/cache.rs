//! Cache of what the watches have shown: TYJobs, the pods that they control, and nodes. An update answers which TYJobs it
//! concerns.

use std::collections::{BTreeMap, BTreeSet};

use super::effect::{ControllerEvent, OwnedPod, ShownJob};
use crate::tyjob::stages::{NodeReachability, PodView, older};
use baton_contract::tyjob::TyJob;

/// Namespace and name.
pub type JobKey = (String, String);

/// Everything that the watches and the answers to writes have shown.
#[derive(Debug, Default)]
pub struct JobCache {
    jobs: BTreeMap<JobKey, ShownJob>,
    /// Keys of TYJobs by uid.
    keys: BTreeMap<String, JobKey>,
    /// Pods by uid.
    pods: BTreeMap<String, OwnedPod>,
    /// Pod uids by TYJob uid. Pods may be shown before their TYJob.
    pods_by_job: BTreeMap<String, BTreeSet<String>>,
    nodes: BTreeMap<String, NodeReachability>,
    /// Uids of TYJobs and pods that are gone: an answer that comes later than the watch must not bring them back.
    tombstones: BTreeSet<String>,
}

impl JobCache {
    /// Applies what a watch, or the answer to a request, shows; answers the TYJobs that it concerns.
    pub(super) fn apply(&mut self, event: ControllerEvent) -> Vec<JobKey> {
        match event {
            ControllerEvent::Job(shown) => self.update_job(*shown).into_iter().collect(),
            ControllerEvent::JobGone(namespace, name) => {
                let key = (namespace, name);
                if let Some(gone) = self.jobs.remove(&key) {
                    self.keep_tombstone(gone);
                }
                vec![key]
            }
            ControllerEvent::Pod(pod) => self.update_pod(*pod),
            ControllerEvent::PodGone(uid) => self.remove_pod(&uid),
            ControllerEvent::Node(name, reach) => self.update_node(name, Some(reach)),
            ControllerEvent::NodeGone(name) => self.update_node(name, None),
        }
    }

    /// Updates a TYJob from the watch or from the answer to a write. An older version than the known one changes nothing.
    fn update_job(&mut self, shown: ShownJob) -> Option<JobKey> {
        let meta = &shown.job.metadata;
        let key = (meta.namespace.clone()?, meta.name.clone()?);
        let (uid, version) = (meta.uid.clone()?, meta.resource_version.as_deref());
        if self.tombstones.contains(&uid) {
            return None;
        }
        if let Some(known) = self.jobs.get(&key)
            && known.job.metadata.uid.as_ref() == Some(&uid)
            && older(number(version), number(known.job.metadata.resource_version.as_deref()))
        {
            return None;
        }
        if let Some(former) = self.jobs.insert(key.clone(), shown)
            && former.job.metadata.uid.as_ref() != Some(&uid)
        {
            self.keep_tombstone(former);
        }
        self.keys.insert(uid, key.clone());
        Some(key)
    }

    /// Marks a TYJob as gone. The answer to a request under way may still show it, and must not hide a new TYJob of its name.
    fn keep_tombstone(&mut self, gone: ShownJob) {
        let uid = gone.job.metadata.uid.unwrap_or_default();
        self.keys.remove(&uid);
        self.tombstones.insert(uid);
    }

    /// Updates a pod from the watch or from the answer to a write.
    fn update_pod(&mut self, pod: OwnedPod) -> Vec<JobKey> {
        let uid = pod.view.uid.clone();
        let known = self.pods.get(&uid);
        if self.tombstones.contains(&uid) || known.is_some_and(|known| older(pod.view.version, known.view.version)) {
            return Vec::new();
        }
        let mut concerned: BTreeSet<JobKey> = BTreeSet::new();
        let former = known.and_then(|known| known.job_uid.clone());
        if former != pod.job_uid
            && let Some(former) = former
        {
            concerned.extend(self.keys.get(&former).cloned());
            self.detach(&former, &uid);
        }
        if let Some(job) = &pod.job_uid {
            concerned.extend(self.keys.get(job).cloned());
            self.pods_by_job.entry(job.clone()).or_default().insert(uid.clone());
        }
        self.pods.insert(uid, pod);
        concerned.into_iter().collect()
    }

    fn remove_pod(&mut self, uid: &str) -> Vec<JobKey> {
        self.tombstones.insert(uid.to_owned());
        let Some(pod) = self.pods.remove(uid) else { return Vec::new() };
        let Some(job) = pod.job_uid else { return Vec::new() };
        self.detach(&job, uid);
        self.keys.get(&job).cloned().into_iter().collect()
    }

    fn detach(&mut self, job: &str, pod: &str) {
        if let Some(pods) = self.pods_by_job.get_mut(job) {
            pods.remove(pod);
            if pods.is_empty() {
                self.pods_by_job.remove(job);
            }
        }
    }

    /// To be called when no request is under way: no answer can show what is gone any more.
    pub(super) fn drop_tombstones(&mut self) {
        self.tombstones.clear();
    }

    fn update_node(&mut self, name: String, reach: Option<NodeReachability>) -> Vec<JobKey> {
        let former = match reach {
            Some(reach) => self.nodes.insert(name.clone(), reach),
            None => self.nodes.remove(&name),
        };
        if former == reach {
            return Vec::new();
        }
        let on_node = self.pods.values().filter(|pod| pod.view.node.as_ref() == Some(&name));
        let jobs: BTreeSet<&String> = on_node.filter_map(|pod| pod.job_uid.as_ref()).collect();
        jobs.into_iter().filter_map(|job| self.keys.get(job).cloned()).collect()
    }

    /// The TYJob of a name.
    pub(super) fn job(&self, key: &JobKey) -> Option<&ShownJob> {
        self.jobs.get(key)
    }

    /// The pod of a uid.
    pub(super) fn pod(&self, uid: &str) -> Option<&PodView> {
        self.pods.get(uid).map(|pod| &pod.view)
    }

    /// All TYJobs.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobKey, &ShownJob)> {
        self.jobs.iter()
    }

    /// The pods that a TYJob controls, each with the reachability of its node.
    pub(super) fn pods_of(&self, job: &TyJob) -> Vec<PodView> {
        let uids = self.pods_by_job.get(job.metadata.uid.as_deref().unwrap_or_default()).into_iter().flatten();
        let mut pods: Vec<PodView> = uids.filter_map(|uid| self.pods.get(uid)).map(|pod| pod.view.clone()).collect();
        for pod in &mut pods {
            if let Some(node) = &pod.node {
                pod.reachability = self.nodes.get(node).copied().unwrap_or(NodeReachability::Gone);
            }
        }
        pods
    }
}

/// Versions are numbers that grow; 0 for any other text.
fn number(version: Option<&str>) -> i64 {
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(uid: &str, version: &str) -> ShownJob {
        let meta = json!({ "name": "rl", "namespace": "a", "uid": uid, "resourceVersion": version });
        let (job, unreadable) = TyJob::read(&json!({ "metadata": meta, "spec": {} })).unwrap();
        ShownJob { job, unreadable }
    }

    fn pod(uid: &str, version: i64, job: &str, node: &str) -> OwnedPod {
        let node = (!node.is_empty()).then(|| node.to_owned());
        let view = PodView { name: uid.to_owned(), uid: uid.to_owned(), node, version, ..PodView::default() };
        OwnedPod { job_uid: Some(job.to_owned()), view }
    }

    fn key() -> JobKey {
        ("a".to_owned(), "rl".to_owned())
    }

    #[test]
    fn pods_that_are_shown_before_their_job_are_found_with_it() {
        let mut cache = JobCache::default();
        assert_eq!(cache.update_pod(pod("p", 1, "j", "")), []);
        assert_eq!(cache.update_job(job("j", "2")), Some(key()));
        assert_eq!(cache.pods_of(&cache.job(&key()).unwrap().job.clone()).len(), 1);
        assert_eq!(cache.apply(ControllerEvent::PodGone("p".to_owned())), [key()]);
        assert_eq!(cache.pods_of(&cache.job(&key()).unwrap().job.clone()).len(), 0);
    }

    #[test]
    fn an_older_version_and_a_deleted_pod_change_nothing() {
        let mut cache = JobCache::default();
        cache.update_job(job("j", "12"));
        assert_eq!(cache.update_job(job("j", "9")), None);
        assert_eq!(cache.update_job(job("k", "5")), Some(key()), "another object of the name");
        cache.update_pod(pod("p", 7, "k", ""));
        assert_eq!(cache.update_pod(pod("p", 6, "k", "")), []);
        cache.apply(ControllerEvent::PodGone("p".to_owned()));
        assert_eq!(cache.update_pod(pod("p", 8, "k", "")), [], "an answer that is later than the watch");
    }

    #[test]
    fn a_job_that_is_gone_does_not_come_back_in_place_of_the_next_one_of_its_name() {
        for shown_gone in [true, false] {
            let mut cache = JobCache::default();
            cache.update_job(job("j", "12"));
            if shown_gone {
                cache.apply(ControllerEvent::JobGone("a".to_owned(), "rl".to_owned()));
                assert_eq!(cache.update_job(job("j", "13")), None, "the answer that took its finalizer off");
                assert!(cache.job(&key()).is_none());
            }
            assert_eq!(cache.update_job(job("k", "15")), Some(key()));
            assert_eq!(cache.update_job(job("j", "14")), None, "the same, later still");
            assert_eq!(cache.job(&key()).unwrap().job.metadata.uid.as_deref(), Some("k"));
            assert_eq!(cache.update_job(job("k", "16")), Some(key()));
        }
    }

    #[test]
    fn a_nodes_end_concerns_the_jobs_on_it() {
        let mut cache = JobCache::default();
        cache.update_job(job("j", "1"));
        cache.apply(ControllerEvent::Node("n".to_owned(), NodeReachability::There));
        cache.update_pod(pod("p", 2, "j", "n"));
        assert_eq!(cache.apply(ControllerEvent::Node("n".to_owned(), NodeReachability::There)), []);
        assert_eq!(cache.apply(ControllerEvent::NodeGone("n".to_owned())), [key()]);
        let seen = cache.job(&key()).unwrap().job.clone();
        assert_eq!(cache.pods_of(&seen)[0].reachability, NodeReachability::Gone);
    }
    #[test]
    fn a_pod_that_another_job_controls_now_concerns_both() {
        let mut cache = JobCache::default();
        let mut other = job("k", "1");
        other.job.metadata.name = Some("other".to_owned());
        cache.update_job(job("j", "1"));
        cache.update_job(other.clone());
        assert_eq!(cache.update_pod(pod("p", 1, "j", "")), [key()]);
        assert_eq!(cache.update_pod(pod("p", 2, "j", "")), [key()]);
        assert_eq!(cache.update_pod(pod("p", 3, "k", "")), [("a".to_owned(), "other".to_owned()), key()]);
        assert_eq!((cache.pods_of(&job("j", "1").job).len(), cache.pods_of(&other.job).len()), (0, 1));
    }

    #[test]
    fn what_is_gone_is_remembered_while_an_answer_may_show_it() {
        let mut cache = JobCache::default();
        cache.update_job(job("j", "1"));
        cache.apply(ControllerEvent::JobGone("a".to_owned(), "rl".to_owned()));
        assert_eq!(cache.update_job(job("j", "1")), None);
        cache.drop_tombstones();
        assert_eq!(cache.update_job(job("j", "1")), Some(key()), "nothing is kept for ever");
    }
}
