//! What the watches have shown: jobs, the pods that they control, and nodes. Answers which jobs a message concerns.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::job_feed::{JobMessage, OwnedPod, RawJob};
use crate::contract::tyjob::{InvalidField, TyJob};
use crate::decide::tyjob::stages::{NodeSight, PodView};

/// Namespace and name.
pub type JobKey = (String, String);

/// A job as it was shown last.
#[derive(Debug, Clone)]
pub struct SeenJob {
    /// The object.
    pub job: TyJob,
    /// The part of its spec that does not fit the type.
    pub unreadable: Option<InvalidField>,
}

/// Everything that was shown.
#[derive(Debug, Default)]
pub struct Sight {
    jobs: BTreeMap<JobKey, SeenJob>,
    /// Jobs by uid.
    keys: BTreeMap<String, JobKey>,
    /// Pods by uid.
    pods: BTreeMap<String, OwnedPod>,
    /// Pod uids by job uid. Pods may be shown before their job.
    crews: BTreeMap<String, BTreeSet<String>>,
    nodes: BTreeMap<String, NodeSight>,
    /// Uids of jobs and pods that are gone, for reports that come later than the watch.
    buried: BTreeSet<String>,
}

impl Sight {
    /// Takes a message in; answers the jobs that it concerns.
    pub fn fold(&mut self, message: JobMessage) -> Vec<JobKey> {
        match message {
            JobMessage::Job(raw) => self.saw_job(*raw).into_iter().collect(),
            JobMessage::JobGone(namespace, name) => {
                let key = (namespace, name);
                if let Some(gone) = self.jobs.remove(&key) {
                    self.bury(gone);
                }
                vec![key]
            }
            JobMessage::Pod(_, pod) => self.saw_pod(*pod),
            JobMessage::PodGone(uid) => self.lost_pod(&uid),
            JobMessage::Node(name, sight) => self.saw_node(name, Some(sight)),
            JobMessage::NodeGone(name) => self.saw_node(name, None),
            JobMessage::Synced(_) => Vec::new(),
        }
    }

    /// A job from the watch or from the answer to a write; an older version than the known one changes nothing.
    pub fn saw_job(&mut self, raw: RawJob) -> Option<JobKey> {
        let meta = &raw.metadata;
        let key = (meta.namespace.clone()?, meta.name.clone()?);
        let (uid, version) = (meta.uid.clone()?, meta.resource_version.clone());
        if self.buried.contains(&uid) {
            return None;
        }
        if let Some(known) = self.jobs.get(&key)
            && known.job.metadata.uid.as_ref() == Some(&uid)
            && older(version.as_deref(), known.job.metadata.resource_version.as_deref())
        {
            return None;
        }
        match raw.read() {
            Ok((job, unreadable)) => {
                if let Some(former) = self.jobs.insert(key.clone(), SeenJob { job, unreadable })
                    && former.job.metadata.uid.as_ref() != Some(&uid)
                {
                    self.bury(former);
                }
                self.keys.insert(uid, key.clone());
                Some(key)
            }
            Err(error) => {
                tracing::error!(job = format!("{}/{}", key.0, key.1), %error, "this job cannot be read and is left alone");
                None
            }
        }
    }

    /// A job is gone. The answer to a request that was under way may still show it, and must not hide a job of its name.
    fn bury(&mut self, gone: SeenJob) {
        let uid = gone.job.metadata.uid.unwrap_or_default();
        self.keys.remove(&uid);
        self.buried.insert(uid);
    }

    /// A pod from the watch or from the answer to a write.
    pub fn saw_pod(&mut self, pod: OwnedPod) -> Vec<JobKey> {
        let uid = pod.view.uid.clone();
        let known = self.pods.get(&uid);
        if self.buried.contains(&uid) || known.is_some_and(|known| older(Some(&pod.version), Some(&known.version))) {
            return Vec::new();
        }
        let mut concerned: BTreeSet<JobKey> = BTreeSet::new();
        let former = known.and_then(|known| known.job_uid.clone());
        if former != pod.job_uid
            && let Some(former) = former
        {
            concerned.extend(self.keys.get(&former).cloned());
            self.leave(&former, &uid);
        }
        if let Some(job) = &pod.job_uid {
            concerned.extend(self.keys.get(job).cloned());
            self.crews.entry(job.clone()).or_default().insert(uid.clone());
        }
        self.pods.insert(uid, pod);
        concerned.into_iter().collect()
    }

    fn lost_pod(&mut self, uid: &str) -> Vec<JobKey> {
        self.buried.insert(uid.to_owned());
        let Some(pod) = self.pods.remove(uid) else { return Vec::new() };
        let Some(job) = pod.job_uid else { return Vec::new() };
        self.leave(&job, uid);
        self.keys.get(&job).cloned().into_iter().collect()
    }

    fn leave(&mut self, job: &str, pod: &str) {
        if let Some(crew) = self.crews.get_mut(job) {
            crew.remove(pod);
            if crew.is_empty() {
                self.crews.remove(job);
            }
        }
    }

    /// Nothing is under way any more that could report what is gone.
    pub fn forget_buried(&mut self) {
        self.buried.clear();
    }

    fn saw_node(&mut self, name: String, sight: Option<NodeSight>) -> Vec<JobKey> {
        let former = match sight {
            Some(sight) => self.nodes.insert(name.clone(), sight),
            None => self.nodes.remove(&name),
        };
        if former == sight {
            return Vec::new();
        }
        let on_node = self.pods.values().filter(|pod| pod.view.node.as_ref() == Some(&name));
        let jobs: BTreeSet<&String> = on_node.filter_map(|pod| pod.job_uid.as_ref()).collect();
        jobs.into_iter().filter_map(|job| self.keys.get(job).cloned()).collect()
    }

    /// A job.
    pub fn job(&self, key: &JobKey) -> Option<&SeenJob> {
        self.jobs.get(key)
    }

    /// Every job.
    pub fn jobs(&self) -> impl Iterator<Item = (&JobKey, &SeenJob)> {
        self.jobs.iter()
    }

    /// The pods that a job controls, with the sight of their nodes.
    pub fn crew(&self, job: &TyJob) -> Vec<PodView> {
        let uids = self.crews.get(job.metadata.uid.as_deref().unwrap_or_default()).into_iter().flatten();
        uids.filter_map(|uid| self.pods.get(uid)).map(|pod| self.sighted(pod.view.clone())).collect()
    }

    /// The sight of a pod's node.
    fn sighted(&self, mut view: PodView) -> PodView {
        if let Some(node) = &view.node {
            view.sight = self.nodes.get(node).copied().unwrap_or(NodeSight::Gone);
        }
        view
    }
}

/// `true` when a version is known to be older than another. They are numbers that grow; anything else is never older.
fn older(version: Option<&str>, than: Option<&str>) -> bool {
    let number = |text: Option<&str>| text?.parse::<u64>().ok();
    matches!((number(version), number(than)), (Some(version), Some(than)) if version < than)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::job_feed::JobPod;
    use crate::contract::tyjob::keys;

    fn job(uid: &str, version: &str) -> RawJob {
        serde_json::from_value(json!({
            "metadata": { "name": "rl", "namespace": "a", "uid": uid, "resourceVersion": version }, "spec": {},
        }))
        .unwrap()
    }

    fn pod(uid: &str, version: &str, job: &str, node: &str) -> OwnedPod {
        let owner =
            json!({ "apiVersion": keys::API_VERSION, "kind": "TYJob", "name": "rl", "uid": job, "controller": true });
        let pod: JobPod = serde_json::from_value(json!({
            "metadata": {
                "name": uid, "namespace": "a", "uid": uid, "resourceVersion": version, "ownerReferences": [owner],
            },
            "spec": { "nodeName": node },
        }))
        .unwrap();
        pod.facts()
    }

    fn key() -> JobKey {
        ("a".to_owned(), "rl".to_owned())
    }

    #[test]
    fn pods_that_are_shown_before_their_job_are_its_crew() {
        let mut sight = Sight::default();
        assert_eq!(sight.saw_pod(pod("p", "1", "j", "")), []);
        assert_eq!(sight.saw_job(job("j", "2")), Some(key()));
        assert_eq!(sight.crew(&sight.job(&key()).unwrap().job.clone()).len(), 1);
        assert_eq!(sight.fold(JobMessage::PodGone("p".to_owned())), [key()]);
        assert_eq!(sight.crew(&sight.job(&key()).unwrap().job.clone()).len(), 0);
    }

    #[test]
    fn an_older_version_and_a_buried_pod_change_nothing() {
        let mut sight = Sight::default();
        sight.saw_job(job("j", "12"));
        assert_eq!(sight.saw_job(job("j", "9")), None);
        assert_eq!(sight.saw_job(job("k", "5")), Some(key()), "another object of the name");
        sight.saw_pod(pod("p", "7", "k", ""));
        assert_eq!(sight.saw_pod(pod("p", "6", "k", "")), []);
        sight.fold(JobMessage::PodGone("p".to_owned()));
        assert_eq!(sight.saw_pod(pod("p", "8", "k", "")), [], "a report that is later than the watch");
    }

    #[test]
    fn a_job_that_is_gone_does_not_come_back_in_place_of_the_next_one_of_its_name() {
        for told_gone in [true, false] {
            let mut sight = Sight::default();
            sight.saw_job(job("j", "12"));
            if told_gone {
                sight.fold(JobMessage::JobGone("a".to_owned(), "rl".to_owned()));
                assert_eq!(sight.saw_job(job("j", "13")), None, "the answer that took its finalizer off");
                assert!(sight.job(&key()).is_none());
            }
            assert_eq!(sight.saw_job(job("k", "15")), Some(key()));
            assert_eq!(sight.saw_job(job("j", "14")), None, "the same, later still");
            assert_eq!(sight.job(&key()).unwrap().job.metadata.uid.as_deref(), Some("k"));
            assert_eq!(sight.saw_job(job("k", "16")), Some(key()));
        }
    }

    #[test]
    fn a_nodes_end_concerns_the_jobs_on_it() {
        let mut sight = Sight::default();
        sight.saw_job(job("j", "1"));
        sight.fold(JobMessage::Node("n".to_owned(), NodeSight::There));
        sight.saw_pod(pod("p", "2", "j", "n"));
        assert_eq!(sight.fold(JobMessage::Node("n".to_owned(), NodeSight::There)), []);
        assert_eq!(sight.fold(JobMessage::NodeGone("n".to_owned())), [key()]);
        let seen = sight.job(&key()).unwrap().job.clone();
        assert_eq!(sight.crew(&seen)[0].sight, NodeSight::Gone);
    }
}
