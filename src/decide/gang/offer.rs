//! Which members are offered, and in which order.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::contract::gang::Committed;
use crate::contract::key;
use crate::decide::world::gangs::{Gang, GroupId, MemberState, rule};
use crate::decide::world::{Pod, PodId, World};

use super::alike::{Kind, Refusals};

/// What an attempt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aim {
    /// Every gang's minimum, as its policy counts. `once`: the group was satisfied once.
    Minimum {
        /// The group's flag.
        once: bool,
    },
    /// The rest of a commit that broke off: only members that were there when it was decided, and with what it has bound.
    Rest(Committed),
    /// Nobody is needed any more: whoever finds a place comes along.
    Surplus,
}

/// Members of a group that may be offered.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    /// One entry per gang that still needs members, in id order.
    pub gangs: Vec<GangOffer>,
    /// Who keeps members away.
    pub refusals: Refusals,
}

/// Members of one gang.
#[derive(Debug, Clone)]
pub struct GangOffer {
    /// How many of them must get a place before the gang is satisfied.
    pub needed: usize,
    /// All that wait, best first: failed kinds last, then larger requests, creation, name.
    pub pending: Vec<PodId>,
    /// How many of these are of no failed kind.
    fresh: usize,
    /// All of them surely are of one kind.
    alike: bool,
}

impl Offer {
    /// The members of a group as they stand.
    pub fn of(world: &World, group: &GroupId, failed: &[Kind], aim: Aim) -> Self {
        let was_there = |pod: &&Pod| match aim {
            Aim::Rest(commit) => pod.facts.handoff.created < commit.attempt,
            Aim::Minimum { .. } | Aim::Surplus => true,
        };
        let waiting = |gang: &Gang| -> Vec<&Pod> {
            let waiting = gang.members().filter(|member| member.state == MemberState::Pending);
            waiting.filter_map(|member| world.pod(member.pod)).filter(was_there).collect()
        };
        let gangs = world.gangs().of_group(group).filter(|gang| gang.group() == group);
        let gangs: Vec<(&Gang, Vec<&Pod>)> = gangs.map(|gang| (gang, waiting(gang))).collect();
        let refusals = Refusals::of(world, gangs.iter().flat_map(|(_, pods)| pods.iter().copied()));
        let failed = |pod: &Pod| !failed.is_empty() && refusals.is_any(world, failed, pod);
        let gangs = gangs.into_iter().map(|(gang, pods)| of_gang(gang, pods, &failed, aim)).collect();
        Self { gangs, refusals }
    }

    /// The pod's kind.
    pub fn kind(&self, world: &World, pod: &Pod) -> Kind {
        self.refusals.kind(world, pod)
    }

    /// `true` when the pod is of one of these kinds.
    pub fn is_any(&self, world: &World, kinds: &[Kind], pod: &Pod) -> bool {
        self.refusals.is_any(world, kinds, pod)
    }

    /// The members without which the group cannot be satisfied: each gang's best, gangs in id order, failed kinds last.
    pub fn needed(&self) -> impl Iterator<Item = PodId> + '_ {
        let fresh = self.gangs.iter().flat_map(|gang| &gang.pending[..gang.needed.min(gang.fresh)]);
        let failed = self.gangs.iter().flat_map(|gang| {
            let upto = gang.needed.clamp(gang.fresh, gang.pending.len());
            &gang.pending[gang.fresh..upto]
        });
        fresh.chain(failed).copied()
    }

    /// Every gang can reach its minimum without members of these kinds.
    pub fn suffices_without(&self, world: &World, failed: &[Kind]) -> bool {
        self.gangs.iter().all(|gang| {
            let mut last: Option<(&Pod, bool)> = None;
            let others = gang.pending.iter().filter(|id| {
                let Some(pod) = world.pod(**id) else { return false };
                let other = match last {
                    Some((before, other)) if before.is_of_template(pod) => other,
                    _ => !self.is_any(world, failed, pod),
                };
                last = Some((pod, other));
                other
            });
            others.take(gang.needed).count() == gang.needed
        })
    }

    /// Everybody who waits is of one kind: their order does not matter.
    pub fn is_uniform(&self) -> bool {
        self.gangs.len() == 1 && self.gangs.iter().all(|gang| gang.alike)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.gangs.iter().map(|gang| gang.pending.len()).sum()
    }

    /// Everybody who waits.
    pub fn all(&self) -> impl Iterator<Item = PodId> + '_ {
        self.gangs.iter().flat_map(|gang| gang.pending.iter().copied())
    }

    /// Nobody is needed any more.
    pub fn is_satisfied(&self) -> bool {
        self.gangs.iter().all(|gang| gang.needed == 0)
    }
}

fn of_gang(gang: &Gang, pods: Vec<&Pod>, failed: &dyn Fn(&Pod) -> bool, aim: Aim) -> GangOffer {
    let config = gang.config();
    let min = config.min.unwrap_or(0);
    let mut pending: Vec<(Place<'_>, PodId)> = Vec::with_capacity(pods.len());
    let (mut last, mut alike): (Option<&Pod>, bool) = (None, true);
    for pod in pods {
        let place = match (last, pending.last()) {
            (Some(before), Some((place, _))) if before.is_of_template(pod) => place.of_template_mate(pod),
            _ => {
                alike &= last.is_none();
                Place::of(pod, failed(pod))
            }
        };
        pending.push((place, pod.id));
        last = Some(pod);
    }
    pending.sort();
    let fresh = pending.partition_point(|(place, _)| !place.failed);
    let needed = match aim {
        Aim::Minimum { once } => rule::needed(config.policy, min, gang.counts(), once) as usize,
        Aim::Surplus => 0,
        Aim::Rest(commit) => {
            let bound = gang.commits().get(&commit).copied().unwrap_or(0) + gang.counts().waiting();
            let missing = rule::needed(config.policy, min, gang.counts(), false).min(min.saturating_sub(bound));
            (missing as usize).min(pending.len())
        }
    };
    GangOffer { needed, pending: pending.into_iter().map(|(_, id)| id).collect(), fresh, alike }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'a> {
    failed: bool,
    size: Reverse<(i64, i64, i64)>,
    created: Timestamp,
    name: &'a str,
}

impl<'a> Place<'a> {
    fn of(pod: &'a Pod, failed: bool) -> Self {
        Self { failed, size: Reverse(size(pod)), created: pod.facts.handoff.created, name: &pod.key().name }
    }

    /// That of a pod that asks for the same.
    fn of_template_mate(&self, pod: &'a Pod) -> Self {
        Self { failed: self.failed, size: self.size, created: pod.facts.handoff.created, name: &pod.key().name }
    }
}

/// How much a pod asks for: GPUs in percent, then thousandths of CPU, then bytes.
pub fn size(pod: &Pod) -> (i64, i64, i64) {
    let requests = &pod.facts.spec.requests;
    let percent = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO].map(|name| requests.scalar(name));
    let gpus = requests.scalar(key::NVIDIA_GPU).saturating_mul(100);
    let gpus = gpus.max(percent.into_iter().max().unwrap_or(0)).max(requests.scalar(key::RDMA) / 100);
    (gpus, requests.milli_cpu, requests.memory)
}
