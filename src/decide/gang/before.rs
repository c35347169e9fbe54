//! What proves after a restart that a group was satisfied at once: Bindings, and what its PodGroups say.

use crate::contract::gang::key;
use crate::decide::world::gangs::{Gang, GroupId};

/// What is bound, or what the PodGroups say, proves that these gangs, which are a group, were satisfied at once: a Binding of a
/// commit that was large enough for all of them, or for each of them something. `said`: PodGroups are believed.
pub(in crate::decide) fn was_satisfied_before(group: &GroupId, gangs: &[&Gang], said: bool) -> bool {
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
fn was_bound_elsewhere(gang: &Gang, group: &GroupId) -> bool {
    let mut commits = gang.commits().keys().peekable();
    commits.peek().is_some() && commits.all(|commit| !group.made(commit))
}

/// The PodGroup says that the group was satisfied, and a member that lives is older than that.
fn was_satisfied(gang: &Gang) -> bool {
    let Some(group) = gang.pod_group() else { return false };
    let said = group.status.conditions.iter().find(|condition| condition.type_ == key::CONDITION_SATISFIED);
    let since = said.filter(|condition| condition.status == "True").map(|condition| condition.last_transition_time.0);
    since.zip(gang.oldest_live()).is_some_and(|(since, oldest)| oldest <= since)
}
