//! The pods of this node by the watch and live reads, with each pod's assignment frozen at its first bound version.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::listing::{ListedContainers, ListedResources};
use super::refusal::PodNotice;
use crate::pod::{AssignmentText, HandoffPod};
use baton_contract::{EventReason, PodKey, PodUid};

/// What the last object of a pod says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastSeen {
    /// Its kubelet has written that it has ended.
    Ended,
    /// A container runs.
    Running,
    /// No container runs, and one may be about to; or nothing is known of it.
    Waiting,
}

/// Pods of one node, by uid. Two pods of one name can be here while one replaces the other.
#[derive(Debug, Clone, Default)]
pub struct NodePods {
    pods: BTreeMap<PodUid, HandoffPod>,
    edited: BTreeMap<PodUid, AssignmentText>,
    /// The devices that the pods' own statuses name, where the kubelet writes them there.
    reported: BTreeMap<PodUid, ListedContainers>,
    /// Pods that are not here any more, until they are forgotten. A uid never comes back.
    gone: BTreeMap<PodUid, GonePod>,
}

#[derive(Debug, Clone, Copy)]
struct GonePod {
    last: LastSeen,
    /// The watch has shown the deletion: the server's own word for this uid, unlike its absence from a list, which may be an old one.
    is_deleted: bool,
}

impl NodePods {
    /// Takes in one version of a pod. The assignment of the first version with a node name stays: later edits of its keys
    /// are ignored and reported once per edit.
    pub fn apply(&mut self, mut pod: HandoffPod) -> Option<PodNotice> {
        let uid = pod.pod.uid.clone();
        let mut notice = None;
        if let Some(known) = self.pods.get(&uid)
            && known.node.is_some()
            && known.assignment != pod.assignment
        {
            if self.edited.get(&uid) != Some(&pod.assignment) {
                self.edited.insert(uid.clone(), pod.assignment.clone());
                let note =
                    "the pod's device assignment was edited after the bind; the edit is ignored, the devices stay";
                notice = Some(PodNotice::new(pod.pod.clone(), EventReason::AssignmentEdited, note.to_owned()));
            }
            pod.assignment = known.assignment.clone();
        } else {
            self.edited.remove(&uid);
        }
        self.pods.insert(uid, pod);
        notice
    }

    /// Takes in the devices that the status of a known pod names.
    pub fn report(&mut self, uid: &PodUid, reported: ListedContainers) {
        if self.pods.contains_key(uid) && !reported.is_empty() {
            self.reported.insert(uid.clone(), reported);
        } else {
            self.reported.remove(uid);
        }
    }

    /// The devices that the pod's status names for one container; `None` where it names none.
    pub fn reported(&self, uid: &PodUid, container: &str) -> Option<&ListedResources> {
        self.reported.get(uid)?.get(container)
    }

    /// A live read of `key`: whatever else was known under that name is gone.
    pub fn apply_live(&mut self, key: &PodKey, found: Option<HandoffPod>) -> Option<PodNotice> {
        let keep = found.as_ref().map(|pod| pod.pod.uid.clone());
        self.retain(|pod| pod.pod.key != *key || Some(&pod.pod.uid) == keep.as_ref());
        found.and_then(|pod| self.apply(pod))
    }

    /// The watch says that this pod is deleted.
    pub fn remove(&mut self, uid: &PodUid) {
        self.gone.insert(uid.clone(), GonePod { last: self.last_seen(uid), is_deleted: true });
        self.pods.remove(uid);
        self.edited.remove(uid);
        self.reported.remove(uid);
    }

    /// The watch has shown that this pod is deleted.
    pub fn is_deleted(&self, uid: &PodUid) -> bool {
        self.gone.get(uid).is_some_and(|gone| gone.is_deleted)
    }

    /// The API server does not have this pod any more, or has it as ended.
    pub fn has_left(&self, uid: &PodUid) -> bool {
        self.by_uid(uid).is_none_or(|pod| pod.phase.is_terminal())
    }

    /// What the last object of this pod says of its containers.
    pub fn last_seen(&self, uid: &PodUid) -> LastSeen {
        match self.pods.get(uid) {
            Some(pod) if pod.any_runs() => LastSeen::Running,
            // Another client may write a phase while the first container is being started.
            Some(pod) if pod.has_ended() && pod.has_started() => LastSeen::Ended,
            Some(_) => LastSeen::Waiting,
            None => self.gone.get(uid).map_or(LastSeen::Waiting, |gone| gone.last),
        }
    }

    /// Forgets the pods that are gone and that `asked_for` does not accept.
    pub fn forget_gone(&mut self, asked_for: impl Fn(&PodUid) -> bool) {
        self.gone.retain(|uid, _| asked_for(uid));
    }

    /// A relist: pods that are not in it are gone.
    pub fn replace(&mut self, pods: Vec<HandoffPod>) -> Vec<PodNotice> {
        let uids: BTreeSet<PodUid> = pods.iter().map(|pod| pod.pod.uid.clone()).collect();
        self.retain(|pod| uids.contains(&pod.pod.uid));
        pods.into_iter().filter_map(|pod| self.apply(pod)).collect()
    }

    fn retain(&mut self, keep: impl Fn(&HandoffPod) -> bool) {
        for uid in self.pods.values().filter(|pod| !keep(pod)).map(|pod| pod.pod.uid.clone()).collect::<Vec<_>>() {
            self.gone.insert(uid.clone(), GonePod { last: self.last_seen(&uid), is_deleted: false });
            self.pods.remove(&uid);
        }
        let pods = &self.pods;
        self.edited.retain(|uid, _| pods.contains_key(uid));
        self.reported.retain(|uid, _| pods.contains_key(uid));
    }

    /// The pod of this uid.
    pub fn by_uid(&self, uid: &PodUid) -> Option<&HandoffPod> {
        self.pods.get(uid)
    }

    /// The pod's assignment was edited after its first bound version.
    pub fn is_edited(&self, uid: &PodUid) -> bool {
        self.edited.contains_key(uid)
    }

    /// The pod with its assignment as the API server has it now.
    pub fn current(&self, uid: &PodUid) -> Option<HandoffPod> {
        let mut pod = self.pods.get(uid)?.clone();
        if let Some(edited) = self.edited.get(uid) {
            pod.assignment = edited.clone();
        }
        Some(pod)
    }

    /// Pods of this name.
    pub fn of_key<'a>(&'a self, key: &PodKey) -> impl Iterator<Item = &'a HandoffPod> {
        self.pods.values().filter(move |pod| pod.pod.key == *key)
    }

    /// All pods, by uid.
    pub fn iter(&self) -> impl Iterator<Item = &HandoffPod> {
        self.pods.values()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{gpu_pod, with_assignment};
    use super::*;

    #[test]
    fn the_first_bound_version_of_an_assignment_counts_and_an_edit_is_reported_once() {
        let mut pods = NodePods::default();
        let first = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-0"])]);
        assert_eq!(pods.apply(first.clone()), None);
        let edited = with_assignment(gpu_pod("a", 1), &[("main", &["GPU-7"])]);
        let notice = pods.apply(edited.clone()).unwrap();
        assert_eq!(notice.reason, EventReason::AssignmentEdited);
        assert_eq!(pods.apply(edited), None, "the same edit again");
        assert_eq!(pods.by_uid(&first.pod.uid).unwrap().assignment, first.assignment);
    }

    #[test]
    fn a_live_read_drops_the_predecessor_of_the_same_name() {
        let mut pods = NodePods::default();
        let old = gpu_pod("a", 1);
        let mut new = gpu_pod("a", 1);
        new.pod.uid = PodUid::new("a-second");
        pods.apply(old.clone());
        pods.apply_live(&old.pod.key, Some(new.clone()));
        assert_eq!(pods.iter().map(|pod| pod.pod.uid.clone()).collect::<Vec<_>>(), [new.pod.uid]);
        pods.apply_live(&old.pod.key, None);
        assert_eq!(pods.iter().count(), 0);
    }

    #[test]
    fn only_the_watch_shows_a_pod_deleted_and_it_is_remembered_while_asked_for() {
        let mut pods = NodePods::default();
        let pod = gpu_pod("a", 1);
        let uid = pod.pod.uid.clone();
        pods.apply(pod.clone());
        pods.replace(vec![]);
        assert!(pods.by_uid(&uid).is_none() && !pods.is_deleted(&uid), "a list may be an old one");
        pods.apply(pod);
        pods.remove(&uid);
        pods.forget_gone(|asked| *asked == uid);
        assert!(pods.is_deleted(&uid));
        pods.forget_gone(|_| false);
        assert!(!pods.is_deleted(&uid));
    }

    #[test]
    fn a_status_that_names_no_device_any_more_takes_back_what_it_named() {
        let mut pods = NodePods::default();
        let uid = gpu_pod("a", 1).pod.uid;
        let named = || ListedContainers::from([("main".into(), ListedResources::default())]);
        pods.report(&uid, named());
        assert_eq!(pods.reported(&uid, "main"), None, "the pod is not known");
        pods.apply(gpu_pod("a", 1));
        pods.report(&uid, named());
        assert!(pods.reported(&uid, "main").is_some());
        pods.report(&uid, ListedContainers::default());
        assert_eq!(pods.reported(&uid, "main"), None);
    }
}
