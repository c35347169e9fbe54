//! What each container needs in numbers of this node: hints that change counts are applied here.

use super::exclusive::Eligible;
use super::reason::ShareMemory;
use super::request::Want;
use super::wishes::Wishes;
use crate::contract::GpuRequest;
use crate::contract::hint::Count;
use crate::contract::key::WHOLE;

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
        let number = |count, mask: u128| match count {
            Count::All => mask.count_ones().max(1),
            Count::Exactly(count) => count,
        };
        let gpus = |count| number(wishes.gpu.counting().devices(count), eligible.matching.0);
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
        if let Some(rdma) = want.rdma {
            let (count, percent) = wishes.rdma.counting().nics(rdma);
            let count = number(count, eligible.matching.1);
            if percent == WHOLE {
                need.nics = count;
            } else {
                need.nic_share = Some((count, percent as u16));
            }
        }
        need
    }
}
