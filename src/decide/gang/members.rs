//! The members of a group: which wait, which have a reservation, what was committed before. Reads of the world alone, and the
//! reservations of a group as one value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::core::agenda::Scene;
use crate::core::placing::Placing;
use crate::core::reservations::{Reservations, Saved};
use crate::world::gangs::{Gang, Generation, GroupId, Member, MemberState, Owner};
use crate::world::{PodId, World};
use baton_contract::gang::{Committed, GangId, MatchPolicy, Mode, TimeoutClock, key};

/// Members without a node that this scheduler has to place, the oldest first. `ours`: its scheduler names.
pub fn waiting<'a>(
    world: &'a World,
    ours: &'a BTreeSet<Box<str>>,
    group: &'a GroupId,
) -> impl Iterator<Item = &'a Member> + use<'a> {
    let gangs = world.gangs().listing(group).filter(|gang| gang.counts().unplaced() > 0);
    gangs.flat_map(Gang::members).filter(|member| {
        matches!(member.state, MemberState::Pending | MemberState::Gated | MemberState::TimedOut)
            && ours.contains(&member.scheduler)
    })
}

/// Ids of [`waiting`] members.
pub(super) fn waiting_members(scene: Scene<'_>, group: &GroupId) -> Vec<PodId> {
    waiting(scene.world, &scene.terms.config.scheduler_names, group).map(|member| member.pod).collect()
}

/// The ones of these without a scheduling gate: a gated pod has a condition of its own, and no room is made for it.
pub(super) fn pending_members(scene: Scene<'_>, group: &GroupId) -> Vec<PodId> {
    let gated = |member: &Member| match member.state {
        MemberState::Pending => false,
        _ => scene.world.pod(member.pod).is_none_or(|pod| !pod.facts.spec.gates.is_empty()),
    };
    let waiting = waiting(scene.world, &scene.terms.config.scheduler_names, group);
    waiting.filter(|member| !gated(member)).map(|member| member.pod).collect()
}

/// Members of this group that have a reservation and are in no commit: a committed member is about to be bound, and no attempt
/// counts it again.
pub(super) fn reserved_members(world: &World, reservations: &Reservations, group: &GroupId) -> Vec<PodId> {
    let gangs = world.gangs().of_group(group).filter(|gang| gang.counts().reserved > 0);
    let reserved = gangs.flat_map(Gang::members).filter(|member| member.state == MemberState::Reserved);
    let ours = |id: &PodId| {
        reservations.get(*id).is_some_and(|found| found.commit.is_none() && found.group.as_ref() == Some(group))
    };
    reserved.map(|member| member.pod).filter(ours).collect()
}

/// How many of these pods each gang has.
pub(super) fn by_gang(world: &World, pods: &[PodId]) -> BTreeMap<GangId, u32> {
    let mut counts = BTreeMap::new();
    for gang in pods.iter().filter_map(|id| world.gangs().gang_of(*id)) {
        match counts.get_mut(gang.id()) {
            Some(count) => *count += 1,
            None => drop(counts.insert(gang.id().clone(), 1)),
        }
    }
    counts
}

/// `true` when a live member names this scheduler.
pub fn is_ours(ours: &BTreeSet<Box<str>>, gang: &Gang) -> bool {
    gang.schedulers().any(|name| ours.contains(name))
}

/// Strict if any of its gangs is.
pub(super) fn is_strict(world: &World, group: &GroupId) -> bool {
    world.gangs().of_group(group).any(|gang| gang.config().mode == Mode::Strict)
}

/// The highest priority of a member.
pub(super) fn priority_of(world: &World, group: &GroupId) -> i32 {
    world.gangs().of_group(group).flat_map(Gang::priorities).max().unwrap_or(0)
}

/// The shortest waiting time of a group's gangs.
pub(super) fn wait_of(world: &World, group: &GroupId) -> Duration {
    let waits = world.gangs().of_group(group).map(|gang| gang.config().wait);
    waits.min().unwrap_or_default()
}

/// What begins the waiting time of a group: [`TimeoutClock::Pending`], the greater one, if any of its gangs states it.
pub(super) fn clock_of(scene: Scene<'_>, group: &GroupId) -> TimeoutClock {
    let stated = scene.world.gangs().of_group(group).filter_map(|gang| gang.config().clock);
    stated.max().unwrap_or(scene.terms.config.gangs.clock)
}

/// The latest commit of several members of the group, and how many of its members were bound. One that has ended since counts: a
/// short pod ends before the next leader leads.
pub(super) fn latest_commit(world: &World, group: &GroupId) -> Option<(Committed, u32)> {
    let gangs = || world.gangs().listing(group);
    let of_group = |commit: &&Committed| commit.members > 1 && group.made(commit);
    let latest = |gang: &Gang| gang.landed().keys().rev().find(of_group).copied();
    let commit = gangs().filter_map(latest).max()?;
    Some((commit, gangs().filter_map(|gang| gang.landed().get(&commit)).sum()))
}

/// Bindings or PodGroups prove that these gangs of a group were satisfied at once: by a Binding of a commit that was large enough
/// for all of them, or by one proof for each of them. What was before the present members, as the status of PodGroups, counts unless
/// these are known to be a new `generation`.
pub(super) fn was_satisfied_before(group: &GroupId, gangs: &[&Gang], generation: Generation) -> bool {
    let said = generation != Generation::New;
    // A gang that does not exist had at least one member.
    let missing = group.gangs().len().saturating_sub(gangs.len()) as u32;
    let all: u32 = gangs.iter().map(|gang| gang.config().min.unwrap_or(0)).fold(missing, u32::saturating_add);
    // A single member is bound only after its group was satisfied, where that is all that the policy asks.
    let alone = gangs.iter().all(|gang| gang.config().policy == MatchPolicy::OnceSatisfied);
    let enough =
        |commit: &Committed| group.made(commit) && (commit.members >= all.max(1) || alone && commit.members == 1);
    // Members of that commit may all have ended: it counts while a live member is older than it or than the end of one of them, or
    // one of its Jobs goes on.
    let oldest = gangs.iter().filter_map(|gang| gang.oldest_live()).min();
    let outlived = |commit: &Committed| {
        said && oldest.is_some_and(|oldest| oldest < commit.attempt || ends(gangs, commit).any(|end| oldest < end))
    };
    let continued = continued(gangs);
    let present = |gang: &Gang, counts: &dyn Fn(&Committed) -> bool| {
        let ended = || gang.landed().keys().filter(|commit| continued.contains(commit));
        gang.commits().keys().chain(ended()).any(counts)
    };
    let of_all =
        |gang: &&Gang| present(gang, &enough) || gang.landed().keys().any(|commit| enough(commit) && outlived(commit));
    let of_each = |gang: &&Gang| {
        let min = gang.config().min.unwrap_or(0);
        let committed = present(gang, &|commit| group.made(commit));
        // A gang that was satisfied with others was satisfied alone; about a larger group that says nothing.
        let said = said && (group.is_alone() || !was_bound_elsewhere(gang, group));
        committed || said && was_satisfied(gang) || min > 0 && gang.counts().placed() >= min
    };
    gangs.iter().any(of_all) || missing == 0 && gangs.iter().all(of_each)
}

/// When members ended that this commit has bound.
fn ends<'a>(gangs: &'a [&Gang], commit: &'a Committed) -> impl Iterator<Item = Timestamp> + use<'a> {
    let members = gangs.iter().flat_map(|gang| gang.members());
    let bound = members.filter(|member| member.state.has_landed() && member.committed.as_ref() == Some(commit));
    bound.filter_map(|member| member.declared.ended)
}

/// Commits whose generation goes on though their members may all have ended: one of these has succeeded, and a controller of these
/// has made a member that lives. A run of a new Job has a controller of its own.
fn continued(gangs: &[&Gang]) -> BTreeSet<Committed> {
    if gangs.iter().all(|gang| gang.counts().succeeded == 0) {
        return BTreeSet::new();
    }
    let members = || gangs.iter().flat_map(|gang| gang.members());
    let living = members().filter(|member| member.state.is_live());
    let live: BTreeSet<&Owner> = living.filter_map(|member| member.declared.owner.as_ref()).collect();
    let is_of = |member: &&Member| member.declared.owner.as_ref().is_some_and(|owner| live.contains(owner));
    let made: BTreeSet<Committed> = members().filter(is_of).filter_map(|member| member.committed).collect();
    let succeeded = members().filter(|member| member.state == MemberState::Succeeded);
    succeeded.filter_map(|member| member.committed).filter(|commit| made.contains(commit)).collect()
}

/// Live members were bound for another group of the gang, and none for this one.
fn was_bound_elsewhere(gang: &Gang, group: &GroupId) -> bool {
    let mut commits = gang.commits().keys().peekable();
    commits.peek().is_some() && commits.all(|commit| !group.made(commit))
}

/// The PodGroup says that the group was satisfied, a live member is older than that, and one that was bound is still there. Where all
/// wait, the status proves nothing: those that it counted may all have gone since.
fn was_satisfied(gang: &Gang) -> bool {
    let Some(group) = gang.pod_group().filter(|_| gang.members().any(|member| member.state.has_landed())) else {
        return false;
    };
    let said = group.status.conditions.iter().find(|condition| condition.type_ == key::CONDITION_SATISFIED);
    let since = said.filter(|condition| condition.status == "True").map(|condition| condition.last_transition_time.0);
    since.zip(gang.oldest_live()).is_some_and(|(since, oldest)| oldest <= since)
}

/// The reservations of one group, to be restored as they were.
#[derive(Clone)]
pub(super) struct SavedGroup {
    group: GroupId,
    pods: Vec<Saved>,
}

impl SavedGroup {
    pub(super) const fn group(&self) -> &GroupId {
        &self.group
    }

    /// Releases the reservations so that they can be restored.
    pub(super) fn take(placing: &mut Placing<'_>, group: &GroupId) -> Self {
        let pods = reserved_members(placing.world, placing.reservations, group)
            .into_iter()
            .filter_map(|id| placing.reservations.save(placing.terms, placing.world, id))
            .collect();
        Self { group: group.clone(), pods }
    }

    /// Copies the reservations, which stay.
    pub(super) fn copy(world: &World, reservations: &Reservations, group: &GroupId) -> Self {
        let copy = |id: PodId| reservations.copy(world, id);
        Self {
            group: group.clone(),
            pods: reserved_members(world, reservations, group).into_iter().filter_map(copy).collect(),
        }
    }

    /// A reservation is on another node now, or has other devices.
    pub(super) fn has_moved(&self, world: &World) -> bool {
        self.pods.iter().any(|saved| !saved.stands(world))
    }

    pub(super) fn put(self, placing: &mut Placing<'_>) {
        self.pods.into_iter().for_each(|saved| placing.reservations.restore(placing.world, saved));
    }
}
