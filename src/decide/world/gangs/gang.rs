//! One gang: its members, what they and its PodGroups state, and what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::config::{GangConfig, GangDefaults, GroupId};
use super::declared::{Declared, DeclaredFields, Owner, PodGroupFacts, Warning};
use super::member::{Member, MemberCounts, MemberState};
use super::votes::{MemberAge, Votes, count_in, count_out};
use baton_contract::gang::{
    BadValue, Committed, GangId, MatchPolicy, Mode, PodGroupApi, TimeoutClock, TopologySpec, key,
};

/// What members of one level state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Ballots {
    min: Votes<u32>,
    wait: Votes<std::time::Duration>,
    total: Votes<u32>,
    mode: Votes<Mode>,
    clock: Votes<TimeoutClock>,
    policy: Votes<MatchPolicy>,
    groups: Votes<Arc<BTreeSet<GangId>>>,
    topology: Votes<Arc<TopologySpec>>,
    own_topology: Votes<Arc<TopologySpec>>,
}

impl Ballots {
    fn cast(&mut self, rank: &MemberAge, fields: &DeclaredFields) {
        self.min.cast(rank, fields.min.as_ref());
        self.wait.cast(rank, fields.wait.as_ref());
        self.total.cast(rank, fields.total.as_ref());
        self.mode.cast(rank, fields.mode.as_ref());
        self.clock.cast(rank, fields.clock.as_ref());
        self.policy.cast(rank, fields.policy.as_ref());
        self.groups.cast(rank, fields.groups.as_ref());
        self.topology.cast(rank, fields.topology.as_ref());
        self.own_topology.cast(rank, fields.own_topology.as_ref());
    }

    fn withdraw(&mut self, rank: &MemberAge, fields: &DeclaredFields) {
        self.min.withdraw(rank, fields.min.as_ref());
        self.wait.withdraw(rank, fields.wait.as_ref());
        self.total.withdraw(rank, fields.total.as_ref());
        self.mode.withdraw(rank, fields.mode.as_ref());
        self.clock.withdraw(rank, fields.clock.as_ref());
        self.policy.withdraw(rank, fields.policy.as_ref());
        self.groups.withdraw(rank, fields.groups.as_ref());
        self.topology.withdraw(rank, fields.topology.as_ref());
        self.own_topology.withdraw(rank, fields.own_topology.as_ref());
    }
}

/// What becomes of a pod in a gang.
#[derive(Clone, Copy)]
enum Membership {
    Begins,
    Ends,
}

/// One gang. It exists while it has a member or a PodGroup.
#[derive(Debug, Clone, PartialEq)]
pub struct Gang {
    id: GangId,
    members: BTreeMap<MemberAge, Member>,
    counts: MemberCounts,
    koordinator: Ballots,
    pod_group: Ballots,
    /// Over living members.
    priorities: BTreeMap<i32, u32>,
    /// Over living members.
    schedulers: BTreeMap<Box<str>, u32>,
    /// Living members by what is wrong with them.
    warnings: BTreeMap<Warning, u32>,
    /// Living members whose name is that of a PodGroup.
    expecting: u32,
    /// Living members with a node, by the commit that bound them.
    commits: BTreeMap<Committed, u32>,
    /// Those, and members that have ended.
    landed: BTreeMap<Committed, u32>,
    /// Controllers of all members.
    owners: BTreeMap<Owner, u32>,
    /// Classes of service of all members.
    classes: BTreeMap<u8, u32>,
    /// By [`PodGroupApi`], in its order.
    objects: [Option<Arc<PodGroupFacts>>; 3],
    config: GangConfig,
    group: GroupId,
    topology: Option<Arc<TopologySpec>>,
    /// No member at all, and nothing states which gangs it starts with.
    silent: bool,
}

impl Gang {
    pub(super) fn new(id: GangId, defaults: &GangDefaults) -> Self {
        let group = GroupId::alone(&id);
        let config = GangConfig {
            min: None,
            total: 0,
            mode: Mode::default(),
            policy: defaults.policy,
            wait: defaults.wait,
            wait_stated: false,
            clock: None,
        };
        Self {
            id,
            members: BTreeMap::new(),
            counts: MemberCounts::default(),
            koordinator: Ballots::default(),
            pod_group: Ballots::default(),
            priorities: BTreeMap::new(),
            schedulers: BTreeMap::new(),
            warnings: BTreeMap::new(),
            expecting: 0,
            commits: BTreeMap::new(),
            landed: BTreeMap::new(),
            owners: BTreeMap::new(),
            classes: BTreeMap::new(),
            objects: [None, None, None],
            config,
            group,
            topology: None,
            silent: true,
        }
    }

    /// Namespace and name.
    pub fn id(&self) -> &GangId {
        &self.id
    }
    /// What holds for it.
    pub fn config(&self) -> &GangConfig {
        &self.config
    }
    /// The gangs that it wants to start with; whether they agree is [`super::GangBook::resolve`]'s answer.
    pub fn group(&self) -> &GroupId {
        &self.group
    }
    /// Where its members are to be gathered.
    pub fn topology(&self) -> Option<&Arc<TopologySpec>> {
        self.topology.as_ref()
    }
    /// Members by state.
    pub fn counts(&self) -> &MemberCounts {
        &self.counts
    }
    /// Members: the living first, then by age.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }
    /// Living members with a node, by the commit that bound them.
    pub fn commits(&self) -> &BTreeMap<Committed, u32> {
        &self.commits
    }
    /// Members that a commit has bound, whether they live or have ended, by that commit.
    pub fn landed(&self) -> &BTreeMap<Committed, u32> {
        &self.landed
    }
    /// Controllers of its members.
    pub fn owners(&self) -> impl Iterator<Item = &Owner> {
        self.owners.keys()
    }
    /// A StatefulSet that has made exactly one of the members that wait: by its default policy it makes the next one when this one
    /// is ready.
    pub fn stateful_set_with_one_waiting(&self) -> Option<&Owner> {
        let ordered = |owner: &&Owner| &*owner.kind == "StatefulSet" && owner.api_version.starts_with("apps/");
        self.owners.keys().filter(ordered).find(|owner| {
            let own = |member: &&Member| member.declared.owner.as_ref() == Some(*owner) && member.state.is_live();
            self.members.values().filter(own).filter(|member| !member.state.has_node()).take(2).count() == 1
        })
    }
    /// Priorities of living members; more than one is invalid.
    pub fn priorities(&self) -> impl Iterator<Item = i32> {
        self.priorities.keys().copied()
    }
    /// Scheduler names of living members; more than one is invalid.
    pub fn schedulers(&self) -> impl Iterator<Item = &str> {
        self.schedulers.keys().map(|name| &**name)
    }
    /// The lowest class of service of a living member.
    pub fn class(&self) -> Option<u8> {
        self.classes.last_key_value().map(|(class, _)| *class)
    }
    /// The PodGroup that counts.
    pub fn pod_group(&self) -> Option<&Arc<PodGroupFacts>> {
        self.objects.iter().flatten().next()
    }
    /// Where its minimum stands: at a key of its pods, or in a field of its PodGroup.
    pub fn min_stated(&self) -> Option<String> {
        let (id, living) = (&self.id, self.counts.live() > 0);
        let keys = [(&self.koordinator, key::MIN_AVAILABLE), (&self.pod_group, key::POD_GROUP_MIN_AVAILABLE)];
        if let Some((_, key)) = keys.into_iter().find(|(level, _)| level.min.decided(living).is_some()) {
            return Some(format!("{key} on the pods of {id}"));
        }
        let object = self.pod_group().filter(|object| object.spec.min.is_some())?;
        let field = match object.api {
            PodGroupApi::Sigs | PodGroupApi::Community => "spec.minMember",
            PodGroupApi::Kubernetes => "spec.schedulingPolicy.gang.minCount",
        };
        Some(format!("{field} of PodGroup {id}"))
    }
    /// Living members name a PodGroup and there is none.
    pub fn awaits_pod_group(&self) -> bool {
        self.expecting > 0 && self.pod_group().is_none()
    }
    /// When its PodGroup was created, else its oldest living member, else its oldest member.
    pub fn created(&self) -> Option<Timestamp> {
        let member = || self.members.first_key_value().map(|(rank, _)| rank.created);
        self.pod_group().map(|group| group.created).or_else(member)
    }
    /// When its oldest living member was created.
    pub fn oldest_live(&self) -> Option<Timestamp> {
        self.members.first_key_value().filter(|(rank, _)| !rank.ended).map(|(rank, _)| rank.created)
    }
    /// When its newest living member was created.
    pub fn newest_live(&self) -> Option<Timestamp> {
        self.members.keys().take_while(|rank| !rank.ended).last().map(|rank| rank.created)
    }
    /// When its newest member that has ended was created.
    pub fn newest_ended(&self) -> Option<Timestamp> {
        self.members.last_key_value().filter(|(rank, _)| rank.ended).map(|(rank, _)| rank.created)
    }
    /// That of the oldest member.
    pub fn sub_priority(&self) -> i64 {
        self.members.first_key_value().map_or(0, |(_, member)| member.declared.sub_priority)
    }
    /// It has no member at all, and nothing states which gangs it starts with.
    pub fn is_silent(&self) -> bool {
        self.silent
    }
    /// What a living member or the PodGroup states and what keeps the gang from starting.
    pub fn unusable(&self) -> Option<&BadValue> {
        let of_object = self.pod_group().into_iter().flat_map(|object| &object.warnings);
        self.warnings.keys().chain(of_object).find_map(Warning::holds)
    }
    /// What is wrong with the declarations without keeping a pod from running.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings: Vec<Warning> = self.warnings.keys().cloned().collect();
        let mut objects = self.objects.iter().flatten();
        if let Some(used) = objects.next() {
            warnings.extend(used.warnings.iter().cloned());
            let two = |ignored: &Arc<PodGroupFacts>| Warning::TwoPodGroups {
                used: used.api.group(),
                ignored: ignored.api.group(),
            };
            warnings.extend(objects.map(two));
        }
        warnings.retain(|warning| warning.holds().is_none());
        let (k, p, living) = (&self.koordinator, &self.pod_group, self.counts.live() > 0);
        let mut disagree = |key: &'static str, stated: Option<String>| {
            warnings.extend(stated.map(|used| Warning::Disagreement { key, used: used.into() }));
        };
        disagree(key::MIN_AVAILABLE, dispute(&k.min, living, u32::to_string));
        let min = |declared: &Declared| (declared.koordinator.min, declared.pod_group.min);
        disagree(key::MIN_AVAILABLE, self.dispute_across((&k.min, &p.min), min).map(|min| min.to_string()));
        let policy = |declared: &Declared| (declared.koordinator.policy, declared.pod_group.policy);
        disagree(
            key::MATCH_POLICY,
            self.dispute_across((&k.policy, &p.policy), policy).map(|policy| policy.to_string()),
        );
        let groups = |declared: &Declared| (declared.koordinator.groups.clone(), declared.pod_group.groups.clone());
        let across = self.dispute_across((&k.groups, &p.groups), groups);
        disagree(key::GROUPS, across.map(|listed| GroupId::listed(&self.id, &listed).to_string()));
        disagree(key::WAITING_TIME, dispute(&k.wait, living, |wait| format!("{wait:?}")));
        disagree(key::TOTAL_NUMBER, dispute(&k.total, living, u32::to_string));
        disagree(key::MODE, dispute(&k.mode, living, Mode::to_string));
        disagree(key::TIMEOUT_CLOCK, dispute(&k.clock, living, TimeoutClock::to_string));
        disagree(key::MATCH_POLICY, dispute(&k.policy, living, MatchPolicy::to_string));
        disagree(key::GROUPS, dispute(&k.groups, living, |listed| GroupId::listed(&self.id, listed).to_string()));
        disagree(key::NETWORK_TOPOLOGY_SPEC, dispute(&k.topology, living, ToString::to_string));
        disagree(key::REQUIRED_TOPOLOGY, dispute(&k.own_topology, living, ToString::to_string));
        // What the second level states does not matter where the first decides.
        if k.min.decided(living).is_none() {
            disagree(key::POD_GROUP_MIN_AVAILABLE, dispute(&p.min, living, u32::to_string));
        }
        if k.policy.decided(living).is_none() {
            disagree(key::POD_GROUP_MATCH_POLICY, dispute(&p.policy, living, MatchPolicy::to_string));
        }
        if k.groups.decided(living).is_none() {
            let text = |listed: &Arc<BTreeSet<GangId>>| GroupId::listed(&self.id, listed).to_string();
            disagree(key::POD_GROUP_GROUPS, dispute(&p.groups, living, text));
        }
        let mut topologies = self.stated_topologies().into_iter().flatten();
        if let Some((used, first)) = topologies.next() {
            let other = |(key, stated): (&'static str, &Arc<TopologySpec>)| {
                BadValue::new(key, &stated.to_string(), format!("differs from {used}, which {first}"))
            };
            warnings.extend(topologies.filter(|(_, stated)| *stated != first).map(other).map(Warning::Value));
        }
        if let (Some(min), Some(total)) = (self.config.min, self.stated_total())
            && total < min
        {
            warnings.push(Warning::TotalBelowMin { total, min });
        }
        warnings
    }

    /// The value of the first level that counts, where a living member states another one at the second level and none at the
    /// first. `own` gives both of a member. Nothing where members differ at the first level already.
    fn dispute_across<T: Ord + Clone>(
        &self,
        (first, second): (&Votes<T>, &Votes<T>),
        own: impl Fn(&Declared) -> (Option<T>, Option<T>),
    ) -> Option<T> {
        let used = first.decided(self.counts.live() > 0).filter(|used| !first.disagree() && second.has_other(used))?;
        let differs = |member: &Member| {
            let (stated, below) = own(&member.declared);
            stated.is_none() && below.is_some_and(|below| below != *used)
        };
        let mut living = self.members.iter().filter(|(rank, _)| !rank.ended).map(|(_, member)| member);
        living.any(differs).then(|| used.clone())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.objects.iter().all(Option::is_none)
    }

    /// Changes only where a member stands and which commit bound it; its rank and what it states stay. `None` where there is no such
    /// member, or one that is not `same`; `false` when nothing has changed.
    pub(super) fn move_member(
        &mut self,
        rank: &MemberAge,
        same: impl FnOnce(&Member) -> bool,
        to: MemberState,
        commit: Option<Committed>,
    ) -> Option<bool> {
        let member = self.members.get_mut(rank).filter(|member| same(member))?;
        let (from, was) = (member.state, member.committed);
        if (from, was) == (to, commit) {
            return Some(false);
        }
        (member.state, member.committed) = (to, commit);
        self.counts.leave(from);
        self.counts.enter(to);
        let (bound, landed) = ((from.is_bound(), to.is_bound()), (from.has_landed(), to.has_landed()));
        for (counts, (left, entered)) in [(&mut self.commits, bound), (&mut self.landed, landed)] {
            let (was, is) = (was.filter(|_| left), commit.filter(|_| entered));
            if was != is {
                was.iter().for_each(|commit| count_out(counts, commit));
                is.iter().for_each(|commit| count_in(counts, commit));
            }
        }
        Some(true)
    }

    pub(super) fn enter(&mut self, rank: MemberAge, member: Member, defaults: &GangDefaults) {
        self.koordinator.cast(&rank, &member.declared.koordinator);
        self.pod_group.cast(&rank, &member.declared.pod_group);
        self.counts.enter(member.state);
        self.count(&member, defaults, Membership::Begins);
        self.members.insert(rank, member);
    }

    /// `defaults` as they were when the member was entered.
    pub(super) fn leave(&mut self, rank: &MemberAge, defaults: &GangDefaults) {
        let Some(member) = self.members.remove(rank) else { return };
        self.koordinator.withdraw(rank, &member.declared.koordinator);
        self.pod_group.withdraw(rank, &member.declared.pod_group);
        self.counts.leave(member.state);
        self.count(&member, defaults, Membership::Ends);
    }

    fn count(&mut self, member: &Member, defaults: &GangDefaults, membership: Membership) {
        fn change<K: Ord + Clone>(counts: &mut BTreeMap<K, u32>, key: &K, membership: Membership) {
            match membership {
                Membership::Begins => count_in(counts, key),
                Membership::Ends => count_out(counts, key),
            }
        }
        let declared: &Declared = &member.declared;
        if let Some(owner) = &declared.owner {
            change(&mut self.owners, owner, membership);
        }
        if member.state.is_live() {
            change(&mut self.classes, &member.class, membership);
            change(&mut self.priorities, &member.priority, membership);
            change(&mut self.schedulers, &member.scheduler, membership);
            declared.all_warnings(defaults).for_each(|warning| change(&mut self.warnings, &*warning, membership));
            if declared.named(defaults).is_some_and(|named| named.by.expects_pod_group()) {
                match membership {
                    Membership::Begins => self.expecting += 1,
                    Membership::Ends => self.expecting -= 1,
                }
            }
        }
        if let Some(commit) = member.committed.as_ref().filter(|_| member.state.is_bound()) {
            change(&mut self.commits, commit, membership);
        }
        if let Some(commit) = member.committed.as_ref().filter(|_| member.state.has_landed()) {
            change(&mut self.landed, commit, membership);
        }
    }

    pub(super) fn put_object(&mut self, api: PodGroupApi, facts: Option<Arc<PodGroupFacts>>) {
        self.objects[api as usize] = facts;
    }

    pub(super) fn object(&self, api: PodGroupApi) -> Option<&Arc<PodGroupFacts>> {
        self.objects[api as usize].as_ref()
    }

    /// Decides every field again.
    pub(super) fn settle(&mut self, defaults: &GangDefaults) {
        let (k, p, living) = (&self.koordinator, &self.pod_group, self.counts.live() > 0);
        let object = self.pod_group();
        let annotated = object.map(|object| &object.annotated);
        let spec = object.map(|object| &object.spec);
        let min = k.min.decided(living).or_else(|| p.min.decided(living)).copied();
        let min = min.or_else(|| spec?.min);
        let wait = k.wait.decided(living).copied().or_else(|| spec?.wait);
        let mode = k.mode.decided(living).copied().or_else(|| annotated?.mode);
        let policy = k.policy.decided(living).or_else(|| p.policy.decided(living)).copied();
        let groups = k.groups.decided(living).or_else(|| p.groups.decided(living));
        let groups = groups.or_else(|| annotated?.groups.as_ref());
        let group = groups.map_or_else(|| GroupId::alone(&self.id), |listed| GroupId::listed(&self.id, listed));
        let config = GangConfig {
            min,
            total: self.stated_total().unwrap_or(0).max(min.unwrap_or(0)),
            mode: mode.unwrap_or_default(),
            policy: policy.or_else(|| annotated?.policy).unwrap_or(defaults.policy),
            wait: wait.unwrap_or(defaults.wait),
            wait_stated: wait.is_some(),
            clock: k.clock.decided(living).copied().or_else(|| annotated?.clock),
        };
        if group != self.group {
            self.group = group;
        }
        self.config = config;
        let topology = self.stated_topologies().into_iter().flatten().map(|(_, stated)| stated.clone()).next();
        self.topology = topology;
        self.silent = self.members.is_empty() && self.group.is_alone();
    }

    /// By precedence: Koordinator's annotation, Kubernetes' constraints, Baton's keys, each with its key.
    fn stated_topologies(&self) -> [Option<(&'static str, &Arc<TopologySpec>)>; 3] {
        let (k, living) = (&self.koordinator, self.counts.live() > 0);
        let object = self.pod_group();
        let annotated = object.map(|object| &object.annotated);
        let koordinator = k.topology.decided(living).or_else(|| annotated?.topology.as_ref());
        let native = object.and_then(|object| object.spec.topology.as_ref());
        let own = k.own_topology.decided(living).or_else(|| annotated?.own_topology.as_ref());
        let own_key = |stated: &Arc<TopologySpec>| {
            if stated.required.is_empty() { key::PREFERRED_TOPOLOGY } else { key::REQUIRED_TOPOLOGY }
        };
        [
            koordinator.map(|stated| (key::NETWORK_TOPOLOGY_SPEC, stated)),
            native.map(|stated| ("spec.schedulingConstraints.topology", stated)),
            own.map(|stated| (own_key(stated), stated)),
        ]
    }

    fn stated_total(&self) -> Option<u32> {
        let stated = self.koordinator.total.decided(self.counts.live() > 0).copied();
        stated.or_else(|| self.pod_group()?.annotated.total)
    }
}

/// The value that counts, where living members state different ones.
fn dispute<T: Ord + Clone>(votes: &Votes<T>, living: bool, text: impl Fn(&T) -> String) -> Option<String> {
    if votes.disagree() { votes.decided(living).map(text) } else { None }
}
