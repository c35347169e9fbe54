//! What a group's members are at the moment: which wait, which are reserved, what was committed before. Reads of the world alone,
//! and the reservations of a group as one value.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::contract::gang::{Committed, GangId, Mode, key};
use crate::decide::scheduler::context::Context;
use crate::decide::scheduler::reservations::{Reservations, Saved};
use crate::decide::world::gangs::{Gang, GroupId, Member, MemberState};
use crate::decide::world::{PodId, World};

/// Members without a node that are ours to place, the oldest first. `ours`: our scheduler names.
pub fn waiting<'a>(
    world: &'a World,
    ours: &'a BTreeSet<Box<str>>,
    group: &'a GroupId,
) -> impl Iterator<Item = &'a Member> + use<'a> {
    let gangs = world.gangs().of_group(group);
    let gangs = gangs.filter(move |gang| gang.group() == group && gang.counts().unplaced() > 0);
    gangs.flat_map(Gang::members).filter(|member| {
        matches!(member.state, MemberState::Pending | MemberState::Gated | MemberState::TimedOut)
            && ours.contains(&member.scheduler)
    })
}

/// Ids of [`waiting`] members.
pub fn waiting_members(cx: &Context<'_>, group: &GroupId) -> Vec<PodId> {
    waiting(cx.world, &cx.config.scheduler_names, group).map(|member| member.pod).collect()
}

/// Of these, the ones that only lack room: a gated pod says so in its own condition, and no room is made for it.
pub fn pending_members(cx: &Context<'_>, group: &GroupId) -> Vec<PodId> {
    let gated = |member: &Member| match member.state {
        MemberState::Pending => false,
        _ => cx.world.pod(member.pod).is_none_or(|pod| !pod.facts.spec.gates.is_empty()),
    };
    let waiting = waiting(cx.world, &cx.config.scheduler_names, group);
    waiting.filter(|member| !gated(member)).map(|member| member.pod).collect()
}

/// Members of this group that are held and not on their way.
pub fn held_members(cx: &Context<'_>, group: &GroupId) -> Vec<PodId> {
    let gangs = cx.world.gangs().of_group(group).filter(|gang| gang.counts().reserved > 0);
    let reserved = gangs.flat_map(Gang::members).filter(|member| member.state == MemberState::Reserved);
    let ours = |id: &PodId| cx.reservations.get(*id).is_some_and(|hold| hold.group.as_ref() == Some(group));
    reserved.map(|member| member.pod).filter(ours).collect()
}

/// How many of these pods each gang has.
pub fn by_gang(cx: &Context<'_>, pods: &[PodId]) -> BTreeMap<GangId, u32> {
    let mut counts = BTreeMap::new();
    for gang in pods.iter().filter_map(|id| cx.world.gangs().gang_of(*id)) {
        match counts.get_mut(gang.id()) {
            Some(count) => *count += 1,
            None => drop(counts.insert(gang.id().clone(), 1)),
        }
    }
    counts
}

/// One of its living members is for this scheduler.
pub fn is_ours(ours: &BTreeSet<Box<str>>, gang: &Gang) -> bool {
    gang.schedulers().any(|name| ours.contains(name))
}

/// Strict if any of its gangs is.
pub fn is_strict(cx: &Context<'_>, group: &GroupId) -> bool {
    cx.world.gangs().of_group(group).any(|gang| gang.config().mode == Mode::Strict)
}

/// The highest priority of a member.
pub fn priority_of(cx: &Context<'_>, group: &GroupId) -> i32 {
    cx.world.gangs().of_group(group).flat_map(Gang::priorities).max().unwrap_or(0)
}

/// The smallest wait of a group's gangs.
pub fn wait_of(cx: &Context<'_>, group: &GroupId) -> Duration {
    let waits = cx.world.gangs().of_group(group).map(|gang| gang.config().wait);
    waits.min().unwrap_or_default()
}

/// The latest commit of several members that the group has made, and how many of them live with a node.
pub fn latest_commit(world: &World, group: &GroupId) -> Option<(Committed, u32)> {
    let gangs = || world.gangs().of_group(group).filter(|gang| gang.group() == group);
    let of_group = |commit: &&Committed| commit.members > 1 && group.made(commit);
    let latest = |gang: &Gang| gang.commits().keys().rev().find(of_group).copied();
    let commit = gangs().filter_map(latest).max()?;
    Some((commit, gangs().filter_map(|gang| gang.commits().get(&commit)).sum()))
}

/// What is bound, or what the PodGroups say, proves that these gangs, which are a group, were satisfied at once: a Binding of a
/// commit that was large enough for all of them, or for each of them something. `said`: PodGroups are believed.
pub fn was_satisfied_before(group: &GroupId, gangs: &[&Gang], said: bool) -> bool {
    // A gang that does not exist had at least one member.
    let missing = group.gangs().len().saturating_sub(gangs.len()) as u32;
    let all: u32 = gangs.iter().map(|gang| gang.config().min.unwrap_or(0)).fold(missing, u32::saturating_add);
    let of_all = |gang: &&Gang| gang.commits().keys().any(|commit| commit.members >= all.max(1) && group.made(commit));
    let of_each = |gang: &&Gang| {
        let min = gang.config().min.unwrap_or(0);
        let committed = gang.commits().keys().any(|commit| group.made(commit));
        // Who was satisfied with others was so alone; of a larger group that says nothing.
        let said = said && (group.is_alone() || !was_bound_elsewhere(gang, group));
        committed || said && was_satisfied(gang) || min > 0 && gang.counts().placed() >= min
    };
    gangs.iter().any(of_all) || missing == 0 && gangs.iter().all(of_each)
}

/// Members that live were bound for another group of the gang, and none for this one.
pub fn was_bound_elsewhere(gang: &Gang, group: &GroupId) -> bool {
    let mut commits = gang.commits().keys().peekable();
    commits.peek().is_some() && commits.all(|commit| !group.made(commit))
}

/// The PodGroup says that the group was satisfied, and a member that lives is older than that.
pub fn was_satisfied(gang: &Gang) -> bool {
    let Some(group) = gang.pod_group() else { return false };
    let said = group.status.conditions.iter().find(|condition| condition.type_ == key::CONDITION_SATISFIED);
    let since = said.filter(|condition| condition.status == "True").map(|condition| condition.last_transition_time.0);
    since.zip(gang.oldest_live()).is_some_and(|(since, oldest)| oldest <= since)
}

/// What one group holds, to be put back as it was.
#[derive(Clone)]
pub struct Holdings {
    group: GroupId,
    pods: Vec<Saved>,
}

impl Holdings {
    /// The group.
    pub const fn group(&self) -> &GroupId {
        &self.group
    }

    /// Gives back what a group holds, so that it can be put back.
    pub fn take(cx: &mut Context<'_>, group: &GroupId) -> Self {
        let pods = held_members(cx, group).into_iter().filter_map(|id| Reservations::save(cx, id)).collect();
        Self { group: group.clone(), pods }
    }

    /// What a group holds, without taking it.
    pub fn copy(cx: &Context<'_>, group: &GroupId) -> Self {
        let copy = |id: PodId| cx.reservations.copy(cx.world, id);
        Self { group: group.clone(), pods: held_members(cx, group).into_iter().filter_map(copy).collect() }
    }

    /// Reserves all of it again.
    pub fn put(self, cx: &mut Context<'_>) {
        self.pods.into_iter().for_each(|saved| Reservations::restore(cx, saved));
    }
}
