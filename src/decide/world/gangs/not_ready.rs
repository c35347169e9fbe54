//! Why a gang is not ready for an attempt, in words for its owner.

use std::fmt;

use super::book::{GangBook, Resolved};
use super::config::GroupId;
use super::gang::Gang;
use super::member::MemberCounts;
use super::rule;
use crate::world::Pod;
use baton_contract::ConditionReason;
use baton_contract::gang::{BadName, BadValue, GangId, MatchPolicy};

/// Why the pods of a gang are not ready for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// The name is not a valid one.
    BadName(BadName),
    /// A gang of the group has a list of gangs that cannot be read, or a PodGroup with a field that is not honoured.
    Unusable {
        /// The gang that has it.
        gang: GangId,
        /// What is wrong with it.
        bad: BadValue,
    },
    /// Members differ in what must be equal over the whole group.
    Unequal {
        /// The group.
        group: GroupId,
        /// `priority` or `schedulerName`.
        what: &'static str,
        /// One value.
        one: Box<str>,
        /// Another value.
        other: Box<str>,
    },
    /// The members name a PodGroup that does not exist.
    WaitingForPodGroup(GangId),
    /// Neither pods nor PodGroup state a minimum.
    NoMin(GangId),
    /// Too few members.
    TooFew {
        /// The gang; one of the group of the pods.
        gang: GangId,
        /// Members that count.
        counted: u32,
        /// How many it takes.
        min: u32,
        /// Members that do not count, by what keeps them from it.
        others: Uncounted,
        /// A StatefulSet that has made one of the pods that wait, and no further one.
        stateful_set: Option<Box<str>>,
    },
    /// A gang of the group is missing.
    Missing {
        /// The gang that lists it.
        gang: GangId,
        /// The one that is listed.
        missing: GangId,
    },
    /// A gang of the group lists other gangs.
    Mismatch {
        /// The gang that lists it.
        gang: GangId,
        /// What it lists.
        group: GroupId,
        /// The one that is listed.
        other: GangId,
        /// What that one lists.
        others: GroupId,
    },
    /// The volumes of the members that satisfy the group are being prepared; where that fails, they go back.
    NotSure(GroupId),
    /// The wait was over before the group was satisfied.
    TimedOut {
        /// The group.
        group: GroupId,
        /// Pods that carry the mark.
        marked: u32,
    },
}

/// Members that do not count for the minimum of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uncounted {
    policy: MatchPolicy,
    /// With a node, where the policy does not count these.
    placed: u32,
    /// Succeeded, where the policy does not count these.
    succeeded: u32,
    failed: u32,
    terminating: u32,
    gated: u32,
}

impl Uncounted {
    fn of(policy: MatchPolicy, counts: &MemberCounts) -> Self {
        let counts_placed = matches!(policy, MatchPolicy::WaitingAndRunning | MatchPolicy::WaitingRunningSucceed);
        let counts_succeeded = policy == MatchPolicy::WaitingRunningSucceed;
        Self {
            policy,
            placed: if counts_placed { 0 } else { counts.placed() },
            succeeded: if counts_succeeded { 0 } else { counts.succeeded },
            failed: counts.failed,
            terminating: counts.terminating,
            gated: counts.gated,
        }
    }
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, placed, succeeded, failed, terminating, gated } = *self;
        for (number, one, many) in [
            (placed, "has a node", "have a node"),
            (succeeded, "has succeeded", "have succeeded"),
            (failed, "has failed", "have failed"),
            (terminating, "is being deleted", "are being deleted"),
            (gated, "is held by scheduling gates", "are held by scheduling gates"),
        ] {
            if number > 0 {
                write!(f, ", {number} more {}", if number == 1 { one } else { many })?;
            }
        }
        if placed + succeeded > 0 {
            write!(f, "; match-policy {policy} does not count those with a node or that have succeeded")?;
        }
        Ok(())
    }
}

impl NotReady {
    /// Reason of the condition.
    pub const fn reason(&self) -> ConditionReason {
        match self {
            Self::BadName(_) | Self::Unusable { .. } | Self::Unequal { .. } => ConditionReason::InvalidGang,
            Self::WaitingForPodGroup(_) => ConditionReason::WaitingForPodGroup,
            Self::NoMin(_) | Self::TooFew { .. } | Self::Missing { .. } | Self::NotSure(_) => {
                ConditionReason::GangIncomplete
            }
            Self::Mismatch { .. } => ConditionReason::GangGroupMismatch,
            Self::TimedOut { .. } => ConditionReason::GangTimeout,
        }
    }
}

impl NotReady {
    /// How far it has come, in steps of a tenth of what it takes: a text with a number of another step says something wrong.
    pub fn step(&self) -> u32 {
        match self {
            Self::TooFew { counted, min, .. } => counted / (min / 10).max(1),
            Self::TimedOut { marked, .. } => *marked,
            _ => 0,
        }
    }
}

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName(bad) => write!(f, "{bad}: name the gang, a pod never runs without the gang that it declares"),
            Self::Unusable { gang, bad } => {
                write!(f, "gang {gang}: {bad}: correct it, a gang never starts otherwise than it declares")
            }
            Self::Unequal { group, what, one, other } => write!(
                f,
                "gang {group}: its pods differ in {what} ({one} and {other}); it must be equal over the whole group"
            ),
            Self::WaitingForPodGroup(gang) => write!(f, "PodGroup {gang} does not exist yet: create it"),
            Self::NoMin(gang) => {
                write!(f, "gang {gang}: min-available missing; state it on the pods or as spec.minMember of a PodGroup")
            }
            Self::TooFew { gang, counted, min, others, stateful_set } => {
                write!(f, "gang {gang} has {counted} of {min} pods{others}")?;
                let Some(name) = stateful_set else { return Ok(()) };
                write!(
                    f,
                    "; with podManagementPolicy OrderedReady, the default, StatefulSet {name} makes its next pod only when this one \
                     is ready: create it with podManagementPolicy: Parallel"
                )
            }
            Self::Missing { gang, missing } => {
                write!(f, "gang {gang} starts together with gang {missing}, which has no pods yet")
            }
            Self::Mismatch { gang, group, other, others } => write!(
                f,
                "gang {gang} lists the group {group} but gang {other} lists {others}: both must list the same gangs"
            ),
            Self::NotSure(group) => {
                write!(
                    f,
                    "gang {group}: the volumes of the members that start it are being prepared, this one goes after them"
                )
            }
            Self::TimedOut { group, marked } => {
                let (pods, them) = if *marked == 1 { ("pod is", "it") } else { ("pods are", "them") };
                write!(
                    f,
                    "gang {group} was not satisfied within its waiting time: {marked} {pods} marked as timed out and not \
                     scheduled; delete {them}, or remove the annotation gang.scheduling.koordinator.sh/timeout"
                )
            }
        }
    }
}

impl GangBook {
    /// Why this pod is not ready, apart from its gang's attempts. `once`: the group was satisfied once.
    pub fn pod_not_ready(&self, pod: &Pod, once: bool) -> Option<NotReady> {
        let declared = pod.facts.spec.gang.as_ref()?;
        if let Err(bad) = self.named(declared)? {
            return Some(NotReady::BadName(bad.clone()));
        }
        let gang = self.gang_of(pod.id)?;
        if declared.timed_out {
            return Some(self.timed_out(gang.group()));
        }
        self.not_ready(gang, once)
    }

    /// Why no member of this gang is attempted; `None` when its group may be attempted, or when it has no gang rule.
    /// `once`: the group was satisfied once.
    pub fn not_ready(&self, gang: &Gang, once: bool) -> Option<NotReady> {
        if gang.awaits_pod_group() {
            return Some(NotReady::WaitingForPodGroup(gang.id().clone()));
        }
        // Its group was satisfied once, and that is all that it asks for: what becomes of the other gangs does not matter.
        if rule::is_over(gang.config().policy, once) {
            return None;
        }
        let unusable = |gang: &Gang| Some((gang.id().clone(), gang.unusable()?.clone()));
        if let Some((gang, bad)) = self.of_group(gang.group()).find_map(unusable) {
            return Some(NotReady::Unusable { gang, bad });
        }
        if gang.group().is_alone() && gang.config().min == Some(0) {
            return None;
        }
        // Marks count whatever has become of the other gangs.
        let here = || self.of_group(gang.group()).filter(|other| other.group() == gang.group());
        if here().any(|other| other.counts().timed_out > 0) {
            return Some(self.timed_out(gang.group()));
        }
        let own = || (gang.config().min.is_none()).then(|| NotReady::NoMin(gang.id().clone()));
        let group = match self.resolve(gang) {
            Resolved::Whole(group) => group,
            Resolved::Missing(missing) => {
                return own().or_else(|| Some(NotReady::Missing { gang: gang.id().clone(), missing }));
            }
            Resolved::Mismatch(other, others) => {
                let group = gang.group().clone();
                return own().or_else(|| Some(NotReady::Mismatch { gang: gang.id().clone(), group, other, others }));
            }
        };
        // The gang itself first, so that its pods report their own problem before that of other gangs.
        let all = || std::iter::once(gang).chain(self.of_group(&group).filter(|other| other.id() != gang.id()));
        all()
            .find(|gang| gang.awaits_pod_group())
            .map(|gang| NotReady::WaitingForPodGroup(gang.id().clone()))
            .or_else(|| all().find(|gang| gang.config().min.is_none()).map(|gang| NotReady::NoMin(gang.id().clone())))
            .or_else(|| self.unequal(&group))
            .or_else(|| all().find_map(|gang| too_few(gang, once)))
    }

    fn timed_out(&self, group: &GroupId) -> NotReady {
        let marked = self.of_group(group).map(|gang| gang.counts().timed_out).sum();
        NotReady::TimedOut { group: group.clone(), marked }
    }

    fn unequal(&self, group: &GroupId) -> Option<NotReady> {
        let differ =
            |what, one: Box<str>, other: Box<str>| NotReady::Unequal { group: group.clone(), what, one, other };
        let mut priorities = self.of_group(group).flat_map(Gang::priorities);
        let first = priorities.next()?;
        if let Some(other) = priorities.find(|other| *other != first) {
            return Some(differ("priority", first.to_string().into(), other.to_string().into()));
        }
        let mut schedulers = self.of_group(group).flat_map(Gang::schedulers);
        let first = schedulers.next()?;
        let other = schedulers.find(|other| *other != first)?;
        Some(differ("schedulerName", first.into(), other.into()))
    }
}

fn too_few(gang: &Gang, once: bool) -> Option<NotReady> {
    let (policy, counts, min) = (gang.config().policy, gang.counts(), gang.config().min?);
    if rule::complete(policy, min, counts, once) {
        return None;
    }
    Some(NotReady::TooFew {
        gang: gang.id().clone(),
        counted: rule::counted(policy, counts),
        min,
        others: Uncounted::of(policy, counts),
        stateful_set: gang.stateful_set_with_one_waiting().map(|owner| owner.name.clone()),
    })
}
