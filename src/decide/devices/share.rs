//! Shares of GPUs: best fit in two dimensions, so that whole GPUs stay whole.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::exclusive::blame;
use super::grant::Part;
use super::objective::{Fit, objective};
use super::phases::{merge, overlap};
use super::pick::{GpuPlan, GpuShare, PickInput};
use super::place::{DeviceSet, bit, bits, mask};
use super::reason::{Reason, ShareMemory};
use super::solve::{DeviceSearch, SearchState, by_owner, solve};
use crate::pod::ContainerKind;

/// Steps from a container's share on a GPU to the container's NICs; `None` where they are too far.
type Distances = RefCell<BTreeMap<(usize, u8), Option<u32>>>;

/// One share of one container.
#[derive(Clone, Copy)]
struct SharePiece {
    container: usize,
    share: GpuShare,
}

impl PickInput<'_> {
    /// Puts the shares of all containers onto GPUs.
    pub(super) fn shares(&self, within: DeviceSet, plan: &mut GpuPlan) -> Result<(), Reason> {
        let mut pieces = Vec::new();
        for (container, need) in self.needs.iter().enumerate() {
            if let Some(share) = need.share {
                // One container's shares lie on as many GPUs; checked before a huge count is spelled out.
                if share.count as usize > self.pool.devices().gpus.len() {
                    let GpuShare { count, core, memory } = share;
                    return Err(Reason::NoShareRoom { core: core.into(), memory, shares: count });
                }
                pieces.extend((0..share.count).map(|_| SharePiece { container, share }));
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let together = pieces.iter().any(|piece| self.kinds[piece.container] == ContainerKind::Init);
        let core: u32 = pieces.iter().map(|piece| u32::from(piece.share.core)).sum();
        let room = self.pool.summary().core_free + 100 * plan.whole.len() as u32;
        let placed = if !together && core > room {
            // No order of trying helps.
            None
        } else if together {
            self.on_one_gpu(&pieces, within, plan)
        } else {
            self.on_any_gpus(&pieces, within, plan, self.strict())
        };
        let Some(placed) = placed else {
            // With room on GPUs that have no NIC near, the NICs are to blame.
            let far = self.strict() && self.joint_nics() && !together && core <= room;
            if far && self.on_any_gpus(&pieces, within, plan, false).is_some() {
                return Err(self.not_near(self.eligible.gpus & within.gpus));
            }
            return Err(self.no_room(&pieces, within));
        };
        let distances = Distances::default();
        for (at, (piece, gpu)) in pieces.iter().zip(&placed).enumerate() {
            let before = if together { &[][..] } else { &placed[..at] };
            let fits = self.fits(&pieces[..=at], before, within, plan, &distances, false);
            plan.fits.extend(fits.into_iter().find(|fit| fit.number == *gpu));
            let parts: Vec<Part> = self.part(*gpu, piece.share).into_iter().collect();
            plan.containers[piece.container].extend(parts);
        }
        for parts in &mut plan.containers {
            parts.sort_unstable_by_key(|part| part.slot());
        }
        Ok(())
    }

    /// The part that a share is on `gpu`; `None` where bytes are asked for and the GPU's bytes are not known.
    fn part(&self, gpu: u8, share: GpuShare) -> Option<Part> {
        let device = &self.pool.devices().gpus[usize::from(gpu)];
        let memory = match share.memory {
            ShareMemory::Ratio(percent) => (i128::from(device.memory) * i128::from(percent) / 100) as i64,
            ShareMemory::Bytes(bytes) => device.bytes_known.then_some(bytes)?,
        };
        Some(Part::Gpu { gpu, core: share.core, memory })
    }

    /// The GPUs that the next piece (the one after `chosen`) may go to.
    fn fits(
        &self,
        pieces: &[SharePiece],
        chosen: &[u8],
        within: DeviceSet,
        plan: &GpuPlan,
        distances: &Distances,
        strict: bool,
    ) -> Vec<Fit> {
        let piece = pieces[chosen.len()];
        let own = mask(plan.whole.iter().copied());
        let candidates =
            bits(((self.eligible.gpus & within.gpus) | own) & !self.barred.for_share_of(piece.container).gpus);
        candidates
            .filter_map(|gpu| {
                if pieces.iter().zip(chosen).any(|(p, on)| *on == gpu && p.container == piece.container) {
                    return None;
                }
                let is_own = own & bit(gpu) != 0;
                if is_own && !self.idle(gpu, piece.container, plan) {
                    return None;
                }
                let device = &self.pool.devices().gpus[usize::from(gpu)];
                let (mut core, mut memory) = self.pool.gpu_room(gpu);
                let mut fresh = !is_own && self.pool.used_gpu(gpu).holders == 0;
                for (other, _) in pieces.iter().zip(chosen).filter(|(_, on)| **on == gpu) {
                    let Some(Part::Gpu { core: c, memory: m, .. }) = self.part(gpu, other.share) else { return None };
                    core = core.checked_sub(c)?;
                    memory -= m;
                    fresh = false;
                }
                let Some(Part::Gpu { core: c, memory: m, .. }) = self.part(gpu, piece.share) else { return None };
                if c > core || m > memory {
                    return None;
                }
                let steps = || self.steps_to_nics(piece.container, device.place);
                let distance = *distances.borrow_mut().entry((piece.container, gpu)).or_insert_with(steps);
                Some(Fit {
                    foreign: !is_own,
                    breaks_whole: fresh,
                    nic_distance: if strict { distance? } else { distance.unwrap_or(0) },
                    left: thousandths((core - c).into(), device.core.into()) + thousandths(memory - m, device.memory),
                    broken: if fresh { objective(self.pool, bit(gpu), 0).broken } else { 0 },
                    minor: device.minor,
                    number: gpu,
                })
            })
            .collect()
    }

    /// What is left of each GPU when the pieces before the next lie on `chosen`, whichever GPU it is.
    fn rooms(&self, pieces: &[SharePiece], chosen: &[u8], within: DeviceSet) -> SearchState {
        let container = pieces.get(chosen.len()).map(|piece| piece.container);
        let mut rooms: Vec<[i64; 6]> = bits(self.eligible.gpus & within.gpus)
            .map(|gpu| {
                let device = &self.pool.devices().gpus[usize::from(gpu)];
                let (core, mut memory) = self.pool.gpu_room(gpu);
                let (mut core, mut own) = (i64::from(core), false);
                for (piece, _) in pieces.iter().zip(chosen).filter(|(_, on)| **on == gpu) {
                    own |= Some(piece.container) == container;
                    if let Some(Part::Gpu { core: c, memory: m, .. }) = self.part(gpu, piece.share) {
                        core -= i64::from(c);
                        memory -= m;
                    }
                }
                [core, memory, i64::from(own), i64::from(device.core), device.memory, i64::from(device.bytes_known)]
            })
            .collect();
        rooms.sort_unstable();
        rooms.into_iter().flatten().collect()
    }

    /// Each share onto its best fit that leaves room for the others; with `strict`, where their NICs are near.
    fn on_any_gpus(&self, pieces: &[SharePiece], within: DeviceSet, plan: &GpuPlan, strict: bool) -> Option<Vec<u8>> {
        let distances = Distances::default();
        let options = |chosen: &[u8]| {
            let mut fits = self.fits(pieces, chosen, within, plan, &distances, strict);
            fits.sort_unstable();
            fits.into_iter().map(|fit| fit.number).collect()
        };
        let holds = |chosen: &[u8]| {
            self.leaves_whole(chosen, within, plan) && (!strict || self.nics_are_near(pieces, chosen, plan))
        };
        // GPUs that differ only in what is free of them may change places, unless it matters where they are.
        let alike = !strict && plan.whole.is_empty() && self.barred.has_no_gpu_shares();
        let owners: Vec<usize> = pieces.iter().map(|piece| piece.container).collect();
        let state = |chosen: &[u8]| if alike { self.rooms(pieces, chosen, within) } else { by_owner(&owners, chosen) };
        let search = DeviceSearch { pieces: pieces.len(), options: &options, holds: &holds, state: &state };
        solve(&search, &self.tries)
    }

    /// Where whole GPUs are chosen after the shares, enough are left for them.
    fn leaves_whole(&self, chosen: &[u8], within: DeviceSet, plan: &GpuPlan) -> bool {
        let wanted = if plan.whole.is_empty() { self.whole_wanted() } else { 0 };
        let taken = mask(chosen.iter().copied());
        wanted == 0 || (self.free_for_whole(within) & !taken).count_ones() >= wanted
    }

    fn nics_are_near(&self, pieces: &[SharePiece], chosen: &[u8], plan: &GpuPlan) -> bool {
        if !self.joint_nics() {
            return true;
        }
        let mut containers = plan.containers.clone();
        for (piece, gpu) in pieces.iter().zip(chosen) {
            containers[piece.container].extend(self.part(*gpu, piece.share));
        }
        self.nic_distance(&containers).is_some()
    }

    /// No container that runs together with `container` holds the pod's own `gpu` whole.
    fn idle(&self, gpu: u8, container: usize, plan: &GpuPlan) -> bool {
        plan.containers.iter().enumerate().all(|(other, parts)| {
            !overlap(&self.kinds, other, container)
                || self.needs[other].whole == 0
                || !parts.iter().any(|part| matches!(part, Part::Gpu { gpu: held, .. } if *held == gpu))
        })
    }

    /// The kubelet hands a finished init container's units to any later container, so all shares lie on one GPU: the best one
    /// that has room for the most that is held at one time.
    fn on_one_gpu(&self, pieces: &[SharePiece], within: DeviceSet, plan: &GpuPlan) -> Option<Vec<u8>> {
        let distances = Distances::default();
        let mut fits: Vec<Fit> = self.fits(pieces, &[], within, plan, &distances, self.strict());
        fits.sort_unstable();
        let gpu = fits.into_iter().map(|fit| fit.number).find(|gpu| {
            let mut containers = vec![Vec::new(); self.kinds.len()];
            for piece in pieces {
                let Some(part) = self.part(*gpu, piece.share) else { return false };
                containers[piece.container].push(part);
            }
            let room = self.pool.gpu_room(*gpu);
            let idle = pieces.iter().all(|piece| self.idle(*gpu, piece.container, plan));
            let most = merge(&self.kinds, &containers);
            let fits = most
                .iter()
                .all(|part| matches!(part, Part::Gpu { core, memory, .. } if *core <= room.0 && *memory <= room.1));
            idle && fits
                && self.leaves_whole(&[*gpu], within, plan)
                && pieces.iter().all(|piece| piece.share.count == 1)
                && (!self.strict() || self.nics_are_near(pieces, &vec![*gpu; pieces.len()], plan))
        })?;
        Some(vec![gpu; pieces.len()])
    }

    fn no_room(&self, pieces: &[SharePiece], within: DeviceSet) -> Reason {
        let ratio = |piece: &SharePiece| match piece.share.memory {
            ShareMemory::Ratio(percent) | ShareMemory::Bytes(percent) => percent,
        };
        let largest =
            pieces.iter().map(|piece| (ratio(piece), piece.share)).max_by_key(|(memory, s)| (*memory, s.core));
        if let Some(reason) = blame(self.pool, self.wishes, true) {
            return reason;
        }
        let Some((_, share)) = largest else { return Reason::NoMatch { what: "GPU" } };
        let room = bits(self.eligible.gpus & within.gpus)
            .any(|gpu| self.part(gpu, share).is_some_and(|part| self.pool.admits(part).is_ok()));
        // With room on a GPU that has no NIC near, the NICs are to blame.
        if room && pieces.len() == 1 && self.joint_nics() {
            return self.not_near(self.eligible.gpus & within.gpus);
        }
        Reason::NoShareRoom { core: share.core.into(), memory: share.memory, shares: pieces.len() as u32 }
    }
}

fn thousandths(part: i64, whole: i64) -> i64 {
    if whole <= 0 { 0 } else { (i128::from(part) * 1000 / i128::from(whole)) as i64 }
}
