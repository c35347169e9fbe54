//! Every gang of the world, kept up to date pod by pod; each change costs time logarithmic in the number of members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::config::{GangDefaults, GroupId};
use super::declared::{Declared, PodGroupFacts};
use super::gang::Gang;
use super::member::{Member, MemberState};
use super::votes::MemberAge;
use crate::world::confinement::Confinement;
use crate::world::{Pod, PodId};
use baton_contract::gang::{BadName, GangId, PodGroupApi, TopologyLayer};

/// Where a pod was entered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PodEntry {
    gang: GangId,
    rank: MemberAge,
}

/// The registry of gangs. Lives in the world and follows it.
#[derive(Debug, Clone, Default)]
pub struct GangBook {
    defaults: GangDefaults,
    /// The layers that hold where no object states them.
    configured: Arc<[TopologyLayer]>,
    gangs: BTreeMap<GangId, Gang>,
    pods: BTreeMap<PodId, PodEntry>,
    /// By the set that they list: the gangs that list it.
    groups: BTreeMap<GroupId, BTreeSet<GangId>>,
    /// By gang: sets of several gangs that name it.
    named: BTreeMap<GangId, BTreeSet<GroupId>>,
    /// Gangs that state where their members are gathered.
    gathered: BTreeSet<GangId>,
    /// A group in hand, and the nodes that its pods may use meanwhile.
    confined: Option<(GroupId, Arc<Confinement>)>,
    /// Gangs that changed since [`GangBook::take_changed`].
    changed: BTreeMap<GangId, GangChange>,
}

/// How much of a gang changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GangChange {
    /// Only the states of members: members and declarations are as they were.
    Moved,
    /// Anything.
    Restated,
}

/// Whether the gangs of a group agree on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolved {
    /// All its gangs exist and list the same.
    Whole(GroupId),
    /// One that it lists does not exist, or has neither members nor a list of its own.
    Missing(GangId),
    /// One that it lists lists something else.
    Mismatch(GangId, GroupId),
}

impl GangBook {
    /// A registry without gangs.
    pub fn new(defaults: GangDefaults) -> Self {
        Self { configured: Arc::clone(&defaults.layers), defaults, ..Self::default() }
    }

    /// What holds where neither pods nor PodGroups state anything.
    pub fn defaults(&self) -> &GangDefaults {
        &self.defaults
    }

    /// The layers of the cluster are these, or those of the configuration; `true` where they were others.
    pub(in crate::world) fn set_layers(&mut self, layers: Option<Arc<[TopologyLayer]>>) -> bool {
        let layers = layers.unwrap_or_else(|| Arc::clone(&self.configured));
        let changed = self.defaults.layers != layers;
        if changed {
            self.defaults.layers = layers;
            self.changed.extend(self.gathered.iter().map(|gang| (gang.clone(), GangChange::Restated)));
        }
        changed
    }

    /// Some gang states where its members are gathered.
    pub fn gathers(&self) -> bool {
        !self.gathered.is_empty()
    }

    /// The nodes that pods of this group may use, while it is in hand.
    pub fn confined(&self, group: &GroupId) -> Option<&Arc<Confinement>> {
        self.confined.as_ref().filter(|(of, _)| of == group).map(|(_, to)| to)
    }

    pub(in crate::world) fn set_confined(&mut self, confined: Option<(GroupId, Arc<Confinement>)>) {
        self.confined = confined;
    }

    /// One gang.
    pub fn gang(&self, id: &GangId) -> Option<&Gang> {
        self.gangs.get(id)
    }

    /// Every gang, by id.
    pub fn gangs(&self) -> impl Iterator<Item = &Gang> {
        self.gangs.values()
    }

    /// The gang that a pod is a member of. `None` for pods of their own and for those with a bad name.
    pub fn gang_of(&self, pod: PodId) -> Option<&Gang> {
        self.gangs.get(&self.pods.get(&pod)?.gang)
    }

    /// What a pod's declaration names, valid or not.
    pub fn named<'a>(&self, declared: &'a Declared) -> Option<Result<&'a GangId, &'a BadName>> {
        declared.named(&self.defaults).map(|named| named.gang.as_ref())
    }

    /// Priority of the pods of a gang, and whether they never preempt, where its PodGroup states these.
    pub fn stated_priority(&self, gang: &GangId) -> (Option<i32>, Option<bool>) {
        let object = self.gangs.get(gang).and_then(Gang::pod_group);
        object.map_or((None, None), |object| (object.priority, object.never_preempts))
    }

    /// Gangs that changed since the last call: the gangs themselves and those that list them.
    pub fn take_changed(&mut self) -> BTreeMap<GangId, GangChange> {
        std::mem::take(&mut self.changed)
    }

    /// Forgets that gangs of this group changed.
    pub fn settle_changed(&mut self, group: &GroupId) {
        let (gangs, changed) = (&self.gangs, &mut self.changed);
        changed.retain(|id, _| gangs.get(id).is_none_or(|gang| gang.group() != group));
    }

    /// Whether the group of a gang is whole, and if not, the first gang that keeps it from being so.
    pub fn resolve(&self, gang: &Gang) -> Resolved {
        let group = gang.group();
        let agreed = self.groups.get(group);
        if agreed.is_some_and(|listing| listing.len() == group.gangs().len()) {
            return Resolved::Whole(group.clone());
        }
        let others = || group.gangs().iter().filter(|id| !agreed.is_some_and(|listing| listing.contains(id)));
        let absent = |id: &&GangId| self.gangs.get(*id).is_none_or(Gang::is_silent);
        if let Some(missing) = others().find(absent) {
            return Resolved::Missing(missing.clone());
        }
        let other = others().find_map(|id| self.gangs.get(id));
        match other {
            Some(other) => Resolved::Mismatch(other.id().clone(), other.group().clone()),
            None => Resolved::Whole(group.clone()),
        }
    }

    /// The gangs of a group, those that exist.
    pub fn of_group<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = &'a Gang> {
        group.gangs().iter().filter_map(|id| self.gangs.get(id))
    }

    /// The gangs of a group that list exactly this group.
    pub fn listing<'a>(&'a self, group: &'a GroupId) -> impl Iterator<Item = &'a Gang> {
        self.of_group(group).filter(move |gang| gang.group() == group)
    }

    /// Enters a pod, or what changed of it.
    pub fn pod(&mut self, pod: &Pod) {
        let declared = pod.facts.spec.gang.as_ref();
        let named = declared.and_then(|declared| Some((declared, declared.named(&self.defaults)?)));
        let Some((declared, named)) = named else { return self.pod_gone(pod.id) };
        let Ok(gang) = &named.gang else { return self.pod_gone(pod.id) };
        let handoff = &pod.facts.handoff;
        let state = MemberState::of(pod);
        let same = |known: &Member| {
            known.declared == *declared
                && known.priority == pod.facts.spec.priority
                && known.class == pod.facts.spec.qos as u8
                && known.scheduler == handoff.scheduler_name
                && known.state.is_live() == state.is_live()
        };
        let committed = handoff.assignment.committed;
        if let Some(entry) = self.pods.get(&pod.id).filter(|entry| entry.gang == *gang)
            && let Some(home) = self.gangs.get_mut(gang)
            && let Some(moved) = home.move_member(&entry.rank, same, state, committed)
        {
            if moved && !self.changed.contains_key(gang) {
                self.changed.insert(gang.clone(), GangChange::Moved);
            }
            return;
        }
        self.pod_gone_but(pod.id, Some(gang));
        let name = handoff.pod.key.name.as_ref().into();
        let rank = MemberAge { ended: !state.is_live(), created: handoff.created, name };
        let member = Member {
            pod: pod.id,
            identity: handoff.pod.clone(),
            state,
            priority: pod.facts.spec.priority,
            class: pod.facts.spec.qos as u8,
            scheduler: handoff.scheduler_name.clone(),
            committed,
            declared: Arc::clone(declared),
        };
        let home = self.gangs.entry(gang.clone()).or_insert_with(|| Gang::new(gang.clone(), &self.defaults));
        home.enter(rank.clone(), member, &self.defaults);
        self.pods.insert(pod.id, PodEntry { gang: gang.clone(), rank });
        self.settle(gang);
    }

    /// Takes a pod out.
    pub fn pod_gone(&mut self, pod: PodId) {
        self.pod_gone_but(pod, None);
    }

    /// Takes a pod out; `stays` is settled by the caller.
    fn pod_gone_but(&mut self, pod: PodId, stays: Option<&GangId>) {
        let Some(PodEntry { gang, rank }) = self.pods.remove(&pod) else { return };
        if let Some(home) = self.gangs.get_mut(&gang) {
            home.leave(&rank, &self.defaults);
        }
        if stays != Some(&gang) {
            self.settle(&gang);
        }
    }

    /// Enters a PodGroup, or what changed of it.
    pub fn pod_group(&mut self, mut facts: PodGroupFacts) {
        facts.clamp(&self.defaults);
        let (id, api) = (facts.gang.clone(), facts.api);
        let home = self.gangs.entry(id.clone()).or_insert_with(|| Gang::new(id.clone(), &self.defaults));
        if home.object(api).is_some_and(|known| **known == facts) {
            return;
        }
        home.put_object(api, Some(Arc::new(facts)));
        self.settle(&id);
    }

    /// Takes a PodGroup out.
    pub fn pod_group_gone(&mut self, api: PodGroupApi, id: &GangId) {
        if let Some(home) = self.gangs.get_mut(id) {
            home.put_object(api, None);
            self.settle(id);
        }
    }

    /// Decides a gang's fields after a change, moves it between groups, and forgets it when nothing of it is left.
    fn settle(&mut self, id: &GangId) {
        let Some(gang) = self.gangs.get_mut(id) else { return };
        let (before, silent) = (gang.group().clone(), gang.is_silent());
        gang.settle(&self.defaults);
        if gang.topology().is_some() && !gang.is_empty() {
            self.gathered.insert(id.clone());
        } else if !self.gathered.is_empty() {
            self.gathered.remove(id);
        }
        let (empty, now, spoke) = (gang.is_empty(), gang.group().clone(), gang.is_silent() != silent);
        let entered = self.groups.get(&before).is_some_and(|listing| listing.contains(id));
        self.changed.insert(id.clone(), GangChange::Restated);
        if empty {
            self.gangs.remove(id);
        }
        if entered && !empty && before == now {
            if spoke {
                self.touch_gangs_naming(id);
            }
            return;
        }
        if entered {
            self.leave_group(id, &before);
        }
        if !empty {
            self.groups.entry(now.clone()).or_default().insert(id.clone());
            for other in now.gangs().iter().filter(|_| !now.is_alone()) {
                self.named.entry(other.clone()).or_default().insert(now.clone());
            }
        }
        self.touch_gangs_naming(id);
    }

    fn leave_group(&mut self, id: &GangId, group: &GroupId) {
        let Some(listing) = self.groups.get_mut(group) else { return };
        listing.remove(id);
        let left: Vec<GangId> = listing.iter().cloned().collect();
        if !left.is_empty() {
            self.changed.extend(left.into_iter().map(|id| (id, GangChange::Restated)));
            return;
        }
        self.groups.remove(group);
        for other in group.gangs() {
            if let Some(sets) = self.named.get_mut(other) {
                sets.remove(group);
                if sets.is_empty() {
                    self.named.remove(other);
                }
            }
        }
    }

    /// A gang appeared, vanished or changed its list: the gangs that name it count as changed.
    fn touch_gangs_naming(&mut self, id: &GangId) {
        let sets = self.named.get(id).into_iter().flatten();
        let naming = sets.filter_map(|set| self.groups.get(set)).flatten();
        self.changed.extend(naming.map(|id| (id.clone(), GangChange::Restated)));
    }
}

impl PartialEq for GangBook {
    /// Which changes were taken is no part of it.
    fn eq(&self, other: &Self) -> bool {
        (&self.defaults, &self.gangs, &self.pods, &self.groups, &self.named)
            == (&other.defaults, &other.gangs, &other.pods, &other.groups, &other.named)
    }
}
