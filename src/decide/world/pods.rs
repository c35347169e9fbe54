//! The table of pods: by uid, by name and by the time of their bind; and which were deleted lately.

use std::collections::{BTreeSet, VecDeque};

use baton_contract::{PodKey, PodUid};

use super::PodId;
use super::dense::Dense;
use super::finder::Finder;
use super::pod::{Place, Pod};

/// Deletions that are remembered. For a lock whose holder was deleted earlier, the holder is read live.
const DELETED: usize = 1024;

/// Pods, and places that are reserved for pods that are not made yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods {
    next: u64,
    all: Dense<PodId, Box<Pod>>,
    by_uid: Finder,
    by_key: Finder,
    /// Bound pods by the time in their annotation.
    by_stamp: Finder,
    /// Those whose `status.nominatedNodeName` is set.
    nominated: BTreeSet<PodId>,
    /// The latest deletions, oldest first.
    deleted: VecDeque<PodUid>,
}

impl Pods {
    pub fn get(&self, id: PodId) -> Option<&Pod> {
        self.all.get(id).map(|pod| &**pod)
    }

    pub fn get_mut(&mut self, id: PodId) -> Option<&mut Pod> {
        self.all.get_mut(id).map(|pod| &mut **pod)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Pod> {
        self.all.values().map(|pod| &**pod)
    }

    pub fn id(&self, uid: &PodUid) -> Option<PodId> {
        let is_it = |id: &PodId| self.get(*id).is_some_and(|pod| pod.facts.handoff.pod.uid == *uid);
        self.by_uid.candidates(uid).find(is_it)
    }

    pub fn by_key(&self, key: &PodKey) -> Option<&Pod> {
        self.by_key.candidates(key).filter_map(|id| self.get(id)).find(|pod| pod.key() == key)
    }

    /// The newest pod with that bind time: only a copied annotation makes several pods carry one time.
    pub fn by_stamp(&self, nanos: &str) -> Option<&Pod> {
        let pods = self.by_stamp.candidates(nanos).filter_map(|id| self.get(id));
        pods.filter(|pod| pod.facts.handoff.assignment.bind_timestamp.as_deref() == Some(nanos)).last()
    }

    pub fn nominated(&self) -> impl Iterator<Item = &Pod> {
        self.nominated.iter().filter_map(|id| self.get(*id)).filter(|pod| pod.place == Place::Waiting)
    }

    /// `true` when a watch has reported the deletion of this very pod, not long ago.
    pub fn was_deleted(&self, uid: &PodUid) -> bool {
        self.id(uid).is_none() && self.deleted.contains(uid)
    }

    /// An id that no pod has had.
    pub fn next_id(&mut self) -> PodId {
        let id = PodId(self.next);
        self.next += 1;
        id
    }

    /// Enters a pod in the place of its former record.
    pub fn insert(&mut self, pod: Pod) -> Option<Box<Pod>> {
        let (id, handoff) = (pod.id, &pod.facts.handoff);
        let old = self.all.get(id);
        if old.is_none() {
            self.by_uid.enter(&handoff.pod.uid, id);
            self.by_key.enter(&handoff.pod.key, id);
        }
        if let Some(stamp) = old.and_then(|old| old.facts.handoff.assignment.bind_timestamp.as_deref()) {
            self.by_stamp.leave(stamp, id);
        }
        if let (Some(stamp), Place::Bound(_)) = (&handoff.assignment.bind_timestamp, pod.place)
            && !stamp.is_empty()
        {
            self.by_stamp.enter(&**stamp, id);
        }
        if pod.facts.spec.nominated.is_some() && matches!(pod.place, Place::Waiting | Place::Assumed(_)) {
            self.nominated.insert(id);
        } else {
            self.nominated.remove(&id);
        }
        self.all.insert(id, Box::new(pod))
    }

    /// Enters a reserved place: no uid, name or time finds it.
    pub fn insert_place(&mut self, pod: Pod) {
        self.all.insert(pod.id, Box::new(pod));
    }

    /// Takes a pod or a place out.
    pub fn remove(&mut self, id: PodId) -> Option<Box<Pod>> {
        let pod = self.all.remove(id)?;
        let handoff = &pod.facts.handoff;
        self.nominated.remove(&id);
        self.by_uid.leave(&handoff.pod.uid, id);
        self.by_key.leave(&handoff.pod.key, id);
        if let Some(stamp) = &handoff.assignment.bind_timestamp {
            self.by_stamp.leave(&**stamp, id);
        }
        Some(pod)
    }

    /// A watch has reported the deletion of this pod.
    pub fn remember_deletion(&mut self, uid: PodUid) {
        if self.deleted.len() == DELETED {
            self.deleted.pop_front();
        }
        self.deleted.push_back(uid);
    }
}
