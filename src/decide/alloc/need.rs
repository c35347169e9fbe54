//! What each container needs in numbers of this node: hints that change counts are applied here.

use super::exclusive::Eligible;
use super::reason::ShareMemory;
use super::request::Want;
use super::wishes::Wishes;
use crate::contract::hint::{AllocateStrategy, ExclusivePolicy};
use crate::contract::key::WHOLE;
use crate::contract::{GpuRequest, RdmaRequest};

/// One container's needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Need<'a> {
    /// Whole GPUs.
    pub whole: u32,
    /// The same share of each of several GPUs.
    pub share: Option<GpuShare>,
    /// MIG profile and count.
    pub mig: Option<(&'a str, u32)>,
    /// Whole NICs.
    pub nics: u32,
    /// Count and percent of NIC shares.
    pub nic_share: Option<(u32, u16)>,
}

/// A share of each of `count` GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GpuShare {
    pub count: u32,
    pub core: u16,
    pub memory: ShareMemory,
}

impl<'a> Need<'a> {
    /// NICs, whole ones and shares.
    pub fn nic_count(&self) -> u32 {
        self.nics.saturating_add(self.nic_share.map_or(0, |(count, _)| count))
    }

    pub fn of(want: &'a Want, wishes: &Wishes, eligible: &Eligible) -> Self {
        let mut need = Self::default();
        let all = |strategy, mask: u128, count| match strategy {
            Some(AllocateStrategy::ApplyForAll) => mask.count_ones().max(1),
            _ => count,
        };
        let gpus = |count| all(wishes.gpu.allocate_strategy, eligible.matching.0, count);
        match &want.gpu {
            None => {}
            Some(GpuRequest::Whole { count }) => need.whole = gpus(*count),
            Some(GpuRequest::Share { count, core, ratio, memory }) => {
                let memory = match (ratio, memory) {
                    (_, Some(bytes)) => ShareMemory::Bytes(*bytes),
                    (ratio, None) => ShareMemory::Ratio(ratio.unwrap_or(WHOLE)),
                };
                need.share = Some(GpuShare { count: gpus(*count), core: *core as u16, memory });
            }
            Some(GpuRequest::Mig { profile, count }) => need.mig = Some((profile, *count)),
        }
        if let Some(RdmaRequest { count, percent }) = want.rdma {
            let (count, percent) = match wishes.rdma.allocate_strategy {
                // The amount itself is a number of NICs; each gives one unit, or all of itself where it is exclusive.
                Some(AllocateStrategy::RequestsAsCount) => {
                    let amount = if count == 1 { percent as u32 } else { count.saturating_mul(WHOLE as u32) };
                    let alone = wishes.rdma.exclusive_policy == Some(ExclusivePolicy::DeviceLevel);
                    (amount, if alone { WHOLE } else { 1 })
                }
                strategy => (all(strategy, eligible.matching.1, count), percent),
            };
            if percent == WHOLE {
                need.nics = count;
            } else {
                need.nic_share = Some((count, percent as u16));
            }
        }
        need
    }
}
