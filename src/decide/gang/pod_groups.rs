//! Keeps the status of PodGroups up to date: written when it differs, with the object's `resourceVersion` as precondition, and
//! changes of counts at most once a second. Also creates PodGroups for gangs without one, where the configuration says so, and removes
//! those whose pods have no controller with the last pod.

use std::borrow::Cow;
use std::time::Duration;

use crate::core::agenda::{Agenda, Scene, Terms};
use crate::core::effect::{Effect, PodGroupWrite};
use crate::core::queue::Item;
use crate::core::timers::Timer;
use crate::pause::doubled;
use crate::world::gangs::{
    Gang, GroupAttempts, GroupId, NamedBy, PodGroupFacts, is_rewording, is_same_but_times, status,
};
use baton_contract::gang::{GangId, PodGroupApi, PodGroupStatus};

use super::{Gangs, StatusWrite};

/// Counts change with every member that is bound: writes of them are gathered for this long.
const GATHER: Duration = Duration::from_secs(1);
/// An answer counts as lost after this time.
const LOST: Duration = Duration::from_secs(15);
/// First and longest pause after a failed write.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

impl StatusWrite {
    /// When the object may be given the status that is wanted now; `None` where the API server has dropped the rest of this very write.
    fn due(&self, object: &PodGroupFacts, wanted: &PodGroupStatus, pause: Duration) -> Option<Duration> {
        Some(match &self.stored {
            _ if self.under_way => self.at + LOST,
            None => self.not_before,
            Some(stored) if *stored == object.status && is_same_but_times(&self.wanted, wanted) => return None,
            // The watch will show this write.
            Some(_) if self.version == object.version => self.at + LOST,
            // Another controller has replaced it: two that do not yield write for ever.
            Some(stored) if *stored != object.status => self.at + doubled(RETRY, self.failures),
            Some(_) if is_rewording(&object.status, wanted) => self.at + pause,
            Some(_) => self.at + GATHER,
        })
    }

    /// Failures in a row before the next write of an object that has this status now.
    fn failures_before(&self, status: &PodGroupStatus) -> u32 {
        match &self.stored {
            Some(stored) if stored == status => 0,
            Some(_) => self.failures + 1,
            None => self.failures,
        }
    }
}

impl Gangs {
    /// Writes the status of every PodGroup of a group that is out of date.
    pub fn report_pod_groups(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId) {
        for id in group.gangs() {
            if scene.world.gangs().gang(id).is_some_and(|gang| gang.group() == group) {
                self.report_pod_group(scene, agenda, group, id);
            }
        }
    }

    fn report_pod_group(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId, id: &GangId) {
        let (Some(gang), Some(record)) = (scene.world.gangs().gang(id), self.groups.get_mut(group)) else { return };
        if gang.pod_group().is_some() && gang.counts().all() > 0 {
            // Its creation was answered.
            record.pod_groups.asked.remove(id);
        }
        let written = record.pod_groups.written.get(id);
        if gang.counts().all() == 0
            && let Some(object) = gang.pod_group().filter(|object| object.ours && object.status.phase.is_some())
        {
            let (uid, version) = (object.uid.clone(), object.version.clone());
            if self.may_ask_again(scene.terms, agenda, group, id) {
                agenda.effects.push(Effect::RemovePodGroup { gang: id.clone(), uid, version });
            }
            return;
        }
        let ours = gang.members().any(|member| scene.terms.config.scheduler_names.contains(&member.scheduler));
        if !ours && written.is_none() {
            return;
        }
        let Some(object) = gang.pod_group() else {
            return self.make_pod_group(scene, agenda, group, id);
        };
        if object.api == PodGroupApi::Kubernetes || object.uid.is_empty() {
            return;
        }
        let not_ready = record.not_ready.as_ref().map(|(reason, message)| (*reason, message.as_str()));
        let attempts = GroupAttempts {
            progress: &record.progress,
            next_try: agenda.queue.next_try(Item::Group(group.clone()), scene.terms.now),
            not_ready,
        };
        let mut before = Cow::Borrowed(&object.status);
        if let Some(written) = written.filter(|_| object.status.conditions.is_empty()) {
            // An API server that does not store conditions: those of the last write count.
            before.to_mut().conditions.clone_from(&written.wanted.conditions);
        }
        let wanted = status(gang, attempts, &before, scene.terms.now.wall);
        if wanted == object.status {
            return;
        }
        let pause = scene.terms.config.gangs.condition_pause;
        let due = written.map_or(Some(Duration::ZERO), |written| written.due(object, &wanted, pause));
        let Some(due) = due else { return };
        let failures = written.map_or(0, |written| written.failures_before(&object.status));
        if scene.terms.now.mono < due {
            agenda.timers.set(due, Timer::PodGroups(group.clone()));
            return;
        }
        let write = PodGroupWrite {
            api: object.api,
            gang: id.clone(),
            uid: object.uid.clone(),
            version: object.version.clone(),
            status: wanted.clone(),
        };
        let written = StatusWrite {
            wanted,
            version: object.version.clone(),
            at: scene.terms.now.mono,
            stored: None,
            not_before: scene.terms.now.mono,
            under_way: true,
            failures,
        };
        agenda.effects.push(Effect::PodGroupStatus(Box::new(write)));
        agenda.timers.set(scene.terms.now.mono + LOST, Timer::PodGroups(group.clone()));
        if let Some(record) = self.groups.get_mut(group) {
            record.pod_groups.written.insert(id.clone(), written);
        }
    }

    /// The answer to a write: the status as it is stored, or `None` after a failure.
    pub fn pod_group_answered(
        &mut self,
        scene: Scene<'_>,
        agenda: &mut Agenda,
        id: &GangId,
        result: Option<PodGroupStatus>,
    ) {
        let Some(group) = scene.world.gangs().gang(id).map(|gang| gang.group().clone()) else { return };
        let Some(written) = self.groups.get_mut(&group).and_then(|record| record.pod_groups.written.get_mut(id)) else {
            return;
        };
        written.under_way = false;
        if let Some(stored) = result {
            written.stored = Some(stored);
        } else {
            written.not_before = scene.terms.now.mono + doubled(RETRY, written.failures);
            written.failures += 1;
        }
        self.report_pod_groups(scene, agenda, &group);
    }

    /// Creates the PodGroup of a gang that is named by `pod-group.scheduling.sigs.k8s.io/name`, if the configuration says so.
    fn make_pod_group(&mut self, scene: Scene<'_>, agenda: &mut Agenda, group: &GroupId, id: &GangId) {
        if !scene.terms.config.gangs.create_pod_groups {
            return;
        }
        let defaults = scene.world.gangs().defaults();
        let Some(gang) = scene.world.gangs().gang(id) else { return };
        let named = |gang: &Gang| gang.members().next()?.declared.named(defaults).map(|named| named.by);
        let Some(min) = gang.config().min.filter(|_| named(gang) == Some(NamedBy::PodGroupName)) else { return };
        if gang.counts().live() == 0 {
            return;
        }
        let owners = gang.owners().cloned().collect();
        if self.may_ask_again(scene.terms, agenda, group, id) {
            agenda.effects.push(Effect::MakePodGroup { gang: id.clone(), min, owners });
        }
    }

    /// No answer to a creation or deletion is awaited: the watch shows it, or it is requested again after [`LOST`].
    fn may_ask_again(&mut self, terms: Terms<'_>, agenda: &mut Agenda, group: &GroupId, id: &GangId) -> bool {
        let Some(record) = self.groups.get_mut(group) else { return false };
        let waits = record.pod_groups.asked.get(id).copied().filter(|again| terms.now.mono < *again);
        let again = waits.unwrap_or(terms.now.mono + LOST);
        record.pod_groups.asked.insert(id.clone(), again);
        agenda.timers.set(again, Timer::PodGroups(group.clone()));
        waits.is_none()
    }
}
