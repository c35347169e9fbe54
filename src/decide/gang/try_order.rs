//! Which members of a group are tried, and in which order.

use std::cmp::Reverse;

use jiff::Timestamp;

use crate::core::Stats;
use crate::core::select::free::percent;
use crate::world::gangs::{Gang, GroupId, MemberState, rule};
use crate::world::{Pod, PodId, World};
use baton_contract::gang::Committed;
use baton_contract::key;

use super::alike::{AntiAffinityTerms, MemberKind};
use super::{GangOrder, TryOrder};

/// What an attempt is for.
#[derive(Clone, Copy)]
pub(super) enum Aim {
    /// Every gang's minimum, as its policy counts. `once`: the group was satisfied once.
    Minimum { once: bool },
    /// The rest of a commit that broke off: only members older than the commit, together with those that it has bound.
    Rest(Committed),
    /// No member is needed: those that fit are bound with the group.
    Surplus,
}

impl TryOrder {
    pub(super) fn of(world: &World, stats: &mut Stats, group: &GroupId, failed: &[MemberKind], aim: Aim) -> Self {
        let was_there = |pod: &&Pod| match aim {
            Aim::Rest(commit) => pod.facts.handoff.created < commit.attempt,
            Aim::Minimum { .. } | Aim::Surplus => true,
        };
        let waiting = |gang: &Gang| -> Vec<&Pod> {
            let waiting = gang.members().filter(|member| member.state == MemberState::Pending);
            waiting.filter_map(|member| world.pod(member.pod)).filter(was_there).collect()
        };
        let gangs = world.gangs().listing(group);
        let gangs: Vec<(&Gang, Vec<&Pod>)> = gangs.map(|gang| (gang, waiting(gang))).collect();
        let anti_affinity = AntiAffinityTerms::of(world, gangs.iter().flat_map(|(_, pods)| pods.iter().copied()));
        let failed = |pod: &Pod| !failed.is_empty() && anti_affinity.is_any(world, failed, pod);
        let gangs = gangs.into_iter().map(|(gang, pods)| of_gang(gang, pods, &failed, aim)).collect();
        let order = Self { gangs, anti_affinity };
        stats.groups.offered += order.len() as u64;
        order
    }

    pub(super) fn kind(&self, world: &World, pod: &Pod) -> MemberKind {
        self.anti_affinity.kind(world, pod)
    }

    pub(super) fn is_any(&self, world: &World, kinds: &[MemberKind], pod: &Pod) -> bool {
        self.anti_affinity.is_any(world, kinds, pod)
    }

    /// As many members as the group needs: each gang's best, gangs in id order, failed kinds last.
    pub(super) fn needed(&self) -> impl Iterator<Item = PodId> + '_ {
        let fresh = self.gangs.iter().flat_map(|gang| &gang.pending[..gang.needed.min(gang.fresh)]);
        let failed = self.gangs.iter().flat_map(|gang| {
            let upto = gang.needed.clamp(gang.fresh, gang.pending.len());
            &gang.pending[gang.fresh..upto]
        });
        fresh.chain(failed).copied()
    }

    /// `true` when every gang can reach its minimum without members of these kinds.
    pub(super) fn suffices_without(&self, world: &World, failed: &[MemberKind]) -> bool {
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

    /// Percent of GPUs that the needed members ask for at least.
    pub(super) fn least(&self, world: &World) -> i64 {
        let of = |id: &PodId| world.pod(*id).map(|pod| percent(&pod.facts.spec.requests));
        let of_gang = |gang: &GangOrder| {
            let looked_at = if gang.alike { 1 } else { gang.pending.len() };
            gang.needed as i64
                * gang.pending[..looked_at.min(gang.pending.len())].iter().filter_map(of).min().unwrap_or(0)
        };
        self.gangs.iter().map(of_gang).sum()
    }

    /// All waiting members are of one kind: their order does not matter.
    pub(super) fn is_uniform(&self) -> bool {
        self.gangs.len() == 1 && self.gangs.iter().all(|gang| gang.alike)
    }

    pub(super) fn len(&self) -> usize {
        self.gangs.iter().map(|gang| gang.pending.len()).sum()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = PodId> + '_ {
        self.gangs.iter().flat_map(|gang| gang.pending.iter().copied())
    }

    /// No member is needed any more.
    pub(super) fn is_satisfied(&self) -> bool {
        self.gangs.iter().all(|gang| gang.needed == 0)
    }
}

fn of_gang(gang: &Gang, pods: Vec<&Pod>, failed: &dyn Fn(&Pod) -> bool, aim: Aim) -> GangOrder {
    let config = gang.config();
    let min = config.min.unwrap_or(0);
    let mut pending: Vec<(Position<'_>, PodId)> = Vec::with_capacity(pods.len());
    let (mut last, mut alike): (Option<&Pod>, bool) = (None, true);
    for pod in pods {
        let position = match (last, pending.last()) {
            (Some(before), Some((position, _))) if before.is_of_template(pod) => position.of_same_template(pod),
            _ => {
                alike &= last.is_none();
                Position::of(pod, failed(pod))
            }
        };
        pending.push((position, pod.id));
        last = Some(pod);
    }
    pending.sort();
    let fresh = pending.partition_point(|(position, _)| !position.failed);
    let needed = match aim {
        Aim::Minimum { once } => rule::needed(config.policy, min, gang.counts(), once) as usize,
        Aim::Surplus => 0,
        Aim::Rest(commit) => {
            let bound = gang.landed().get(&commit).copied().unwrap_or(0) + gang.counts().waiting();
            let missing = rule::needed(config.policy, min, gang.counts(), false).min(min.saturating_sub(bound));
            (missing as usize).min(pending.len())
        }
    };
    GangOrder { needed, pending: pending.into_iter().map(|(_, id)| id).collect(), fresh, alike }
}

/// Where a member stands in the order of its gang.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Position<'a> {
    failed: bool,
    size: Reverse<(i64, i64, i64)>,
    created: Timestamp,
    name: &'a str,
}

impl<'a> Position<'a> {
    fn of(pod: &'a Pod, failed: bool) -> Self {
        Self { failed, size: Reverse(size(pod)), created: pod.facts.handoff.created, name: &pod.key().name }
    }

    /// The position of another pod of the same template.
    fn of_same_template(&self, pod: &'a Pod) -> Self {
        Self { failed: self.failed, size: self.size, created: pod.facts.handoff.created, name: &pod.key().name }
    }
}

/// What a pod requests: GPUs in percent of one, then thousandths of a CPU core, then bytes of memory.
fn size(pod: &Pod) -> (i64, i64, i64) {
    let requests = &pod.facts.spec.requests;
    let percent = [key::GPU, key::GPU_CORE, key::GPU_MEMORY_RATIO].map(|name| requests.scalar(name));
    let gpus = requests.scalar(key::NVIDIA_GPU).saturating_mul(100);
    let gpus = gpus.max(percent.into_iter().max().unwrap_or(0)).max(requests.scalar(key::RDMA) / 100);
    (gpus, requests.milli_cpu, requests.memory)
}
