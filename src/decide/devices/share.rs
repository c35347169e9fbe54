//! Shares of GPUs: best fit in two dimensions, so that whole GPUs stay whole.
//!
//! Containers that stay come first: they all run together. A plain init container runs beside the sidecars before it alone, so that each one
//! finds its GPUs by itself.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::exclusive::gpus_to_blame;
use super::grant::Part;
use super::objective::{Fit, objective};
use super::phases::{overlap, peak};
use super::pick::{GpuPlan, GpuShare, NicReach, PickInput, ShareSpread};
use super::place::{DeviceSet, bit, bits, mask};
use super::reason::{Reason, ShareMemory};
use super::solve::{DeviceSearch, SearchState, by_owner, solve};
use crate::pod::ContainerKind;

/// Steps from a container's share on a GPU to the container's NICs; `None` where they are too far.
type Distances = RefCell<BTreeMap<(usize, u8), Option<u32>>>;

/// One share of one container, or one of its whole GPUs.
#[derive(Clone, Copy)]
struct GpuPiece {
    container: usize,
    /// `None`: whole.
    share: Option<GpuShare>,
}

/// What is to be laid out.
#[derive(Clone, Copy)]
struct GpuPieces<'a> {
    /// Pieces of one container side by side.
    all: &'a [GpuPiece],
    /// Where the first of them lie already.
    first: &'a [u8],
    within: DeviceSet,
}

/// What is free of a GPU while a container runs.
struct GpuRoom {
    core: i64,
    memory: i64,
    /// No pod has a part of it then.
    untouched: bool,
    /// The pod has a part of it at another time.
    kept: bool,
}

impl PickInput<'_> {
    /// Puts the shares of all containers onto GPUs, beside the whole ones of the plan.
    pub(super) fn shares(&self, within: DeviceSet, plan: &mut GpuPlan) -> Result<(), Reason> {
        let shares = self.share_pieces()?;
        if shares.is_empty() {
            return Ok(());
        }
        let whole = plan.containers.iter().enumerate().flat_map(|(container, parts)| {
            let piece = GpuPiece { container, share: None };
            parts
                .iter()
                .filter_map(move |part| if let Part::Gpu { gpu, .. } = part { Some((piece, *gpu)) } else { None })
        });
        let (mut all, first): (Vec<GpuPiece>, Vec<u8>) = whole.unzip();
        all.extend(&shares);
        let pieces = GpuPieces { all: &all, first: &first, within };
        let Some(placed) = self.lay_out(pieces, self.nic_reach()) else {
            // With room on GPUs that have no NIC near, the NICs are to blame.
            if self.strict() && self.joint_nics() && self.lay_out(pieces, NicReach::Anywhere).is_some() {
                return Err(self.not_near(self.eligible.gpus & within.gpus));
            }
            return Err(self.no_room(&shares, within));
        };
        self.hand_out_pieces(pieces, &placed, plan);
        Ok(())
    }

    /// Whole GPUs and shares in one search: where the best set of whole GPUs leaves no room for the shares, another one may.
    pub(super) fn whole_and_shares(&self, within: DeviceSet, plan: &mut GpuPlan) -> Option<()> {
        let mut all = self.share_pieces().ok()?;
        for (container, need) in self.needs.iter().enumerate() {
            all.extend((0..need.whole).map(|_| GpuPiece { container, share: None }));
        }
        all.sort_by_key(|piece| self.kinds[piece.container] == ContainerKind::Init);
        let pieces = GpuPieces { all: &all, first: &[], within };
        let placed = self.lay_out(pieces, self.nic_reach())?;
        self.hand_out_pieces(pieces, &placed, plan);
        let whole = pieces.whole(&placed);
        (plan.whole, plan.objective) = (self.neighbours(whole), Some(objective(self.pool, whole, 0)));
        Some(())
    }

    /// The shares of all containers, those of plain init containers last.
    fn share_pieces(&self) -> Result<Vec<GpuPiece>, Reason> {
        let mut pieces = Vec::new();
        for (container, need) in self.needs.iter().enumerate() {
            if let Some(share) = need.share {
                // One container's shares lie on as many GPUs; checked before a huge count is spelled out.
                if share.count as usize > self.pool.devices().gpus.len() {
                    let GpuShare { count, core, memory } = share;
                    return Err(Reason::NoShareRoom { core: core.into(), memory, shares: count });
                }
                pieces.extend((0..share.count).map(|_| GpuPiece { container, share: Some(share) }));
            }
        }
        pieces.sort_by_key(|piece| self.kinds[piece.container] == ContainerKind::Init);
        Ok(pieces)
    }

    fn hand_out_pieces(&self, pieces: GpuPieces<'_>, placed: &[u8], plan: &mut GpuPlan) {
        let distances = Distances::default();
        for at in pieces.first.len()..placed.len() {
            let (piece, gpu) = (pieces.all[at], placed[at]);
            if piece.share.is_some() {
                let fits = self.fits(pieces, &placed[..at], &distances, NicReach::Anywhere);
                plan.fits.extend(fits.into_iter().find(|fit| fit.number == gpu));
            }
            plan.containers[piece.container].extend(self.part(gpu, piece.share));
        }
        for parts in &mut plan.containers {
            parts.sort_unstable_by_key(|part| part.slot());
        }
    }

    /// The part that a share is on `gpu`, or all of it; `None` where bytes are asked for and the GPU's bytes are not known.
    fn part(&self, gpu: u8, share: Option<GpuShare>) -> Option<Part> {
        let device = &self.pool.devices().gpus[usize::from(gpu)];
        let Some(share) = share else { return Some(Part::Gpu { gpu, core: device.core, memory: device.memory }) };
        let memory = match share.memory {
            ShareMemory::Ratio(percent) => (i128::from(device.memory) * i128::from(percent) / 100) as i64,
            ShareMemory::Bytes(bytes) => device.bytes_known.then_some(bytes)?,
        };
        Some(Part::Gpu { gpu, core: share.core, memory })
    }

    /// What the pieces that lie on `chosen` leave of `gpu` while `container` runs; `None` where one that runs too has it whole.
    fn room(&self, pieces: GpuPieces<'_>, chosen: &[u8], gpu: u8, container: usize) -> Option<GpuRoom> {
        let (core, memory) = self.pool.gpu_room(gpu);
        let untouched = self.pool.used_gpu(gpu).holders == 0;
        let mut room = GpuRoom { core: core.into(), memory, untouched, kept: false };
        for other in pieces.on(chosen, gpu) {
            if !overlap(&self.kinds, other.container, container) {
                room.kept = true;
                continue;
            }
            let Some(Part::Gpu { core, memory, .. }) = self.part(gpu, Some(other.share?)) else { return None };
            room.core -= i64::from(core);
            room.memory -= memory;
            room.untouched = false;
        }
        Some(room)
    }

    /// The GPUs that the next piece (the one after `chosen`) may go to.
    fn fits(&self, pieces: GpuPieces<'_>, chosen: &[u8], distances: &Distances, reach: NicReach) -> Vec<Fit> {
        let piece = pieces.all[chosen.len()];
        let candidates = if piece.share.is_some() {
            self.eligible.gpus & pieces.within.gpus & !self.barred.for_share_of(piece.container).gpus
        } else {
            // Not more than the pod holds at one time.
            let taken = pieces.whole(chosen);
            let open = if taken.count_ones() < self.whole_wanted() { u128::MAX } else { taken };
            self.free_for_whole(pieces.within) & open
        };
        bits(candidates)
            .filter_map(|gpu| {
                if pieces.on(chosen, gpu).any(|other| other.container == piece.container) {
                    return None;
                }
                let room = self.room(pieces, chosen, gpu, piece.container)?;
                let device = &self.pool.devices().gpus[usize::from(gpu)];
                let Some(Part::Gpu { core, memory, .. }) = self.part(gpu, piece.share) else { return None };
                let (core, memory) = (room.core - i64::from(core), room.memory - memory);
                if core < 0 || memory < 0 || (piece.share.is_none() && !room.untouched) {
                    return None;
                }
                let steps = || self.steps_to_nics(piece.container, device.common.place);
                let distance = *distances.borrow_mut().entry((piece.container, gpu)).or_insert_with(steps);
                let fresh = self.pool.used_gpu(gpu).holders == 0 && pieces.on(chosen, gpu).next().is_none();
                Some(Fit {
                    foreign: !room.kept,
                    breaks_whole: fresh,
                    nic_distance: match reach {
                        NicReach::SamePcie => distance?,
                        NicReach::Anywhere => distance.unwrap_or(0),
                    },
                    left: thousandths(core, device.core.into()) + thousandths(memory, device.memory),
                    broken: if fresh { objective(self.pool, bit(gpu), 0).broken } else { 0 },
                    minor: device.common.minor,
                    number: gpu,
                })
            })
            .collect()
    }

    /// What is left of each GPU for the containers that have pieces after those on `chosen`, whichever GPU it is.
    fn rooms(&self, pieces: GpuPieces<'_>, chosen: &[u8]) -> SearchState {
        let mut left: Vec<usize> = pieces.all[chosen.len()..].iter().map(|piece| piece.container).collect();
        left.dedup();
        let free = self.free_for_whole(pieces.within);
        let row = |gpu: u8| {
            let device = &self.pool.devices().gpus[usize::from(gpu)];
            let own = pieces.on(chosen, gpu).any(|piece| Some(&piece.container) == left.first());
            let whole = pieces.on(chosen, gpu).any(|piece| piece.share.is_none());
            let flags = [own, whole, free & bit(gpu) != 0, device.bytes_known].map(i64::from);
            let rooms = left.iter().map(|container| match self.room(pieces, chosen, gpu, *container) {
                Some(room) => [room.core, room.memory, i64::from(room.untouched)],
                None => [-1; 3],
            });
            let row = [i64::from(device.core), device.memory].into_iter().chain(flags);
            row.chain(rooms.flatten()).collect()
        };
        let mut rows: Vec<SearchState> = bits(self.eligible.gpus & pieces.within.gpus).map(row).collect();
        rows.sort_unstable();
        rows.concat()
    }

    /// Each piece onto its best fit that leaves room for the others, and its NICs within `reach`.
    fn lay_out(&self, pieces: GpuPieces<'_>, reach: NicReach) -> Option<Vec<u8>> {
        let core = |share: GpuShare| share.count * u32::from(share.core);
        let core: Vec<u32> = self.needs.iter().map(|need| need.share.map_or(0, core)).collect();
        if peak(&self.kinds, &core) > self.pool.summary().core_free {
            // No order of trying helps.
            return None;
        }
        // The kubelet hands the units of an init container that has ended to any later container: they are of the right GPU where all
        // shares lie on one.
        let is_left = |piece: &GpuPiece| piece.share.is_some() && self.kinds[piece.container] == ContainerKind::Init;
        let on_one = pieces.all.iter().any(is_left).then(|| self.search_layout(pieces, reach, ShareSpread::OneDevice));
        on_one.flatten().or_else(|| self.search_layout(pieces, reach, ShareSpread::AnyDevice))
    }

    fn search_layout(&self, pieces: GpuPieces<'_>, reach: NicReach, spread: ShareSpread) -> Option<Vec<u8>> {
        let distances = Distances::default();
        let options = |chosen: &[u8]| {
            let mut fits = self.fits(pieces, chosen, &distances, reach);
            let share = pieces.all.iter().zip(chosen).find(|(piece, _)| piece.share.is_some());
            if let Some((_, one)) = share.filter(|_| spread == ShareSpread::OneDevice) {
                fits.retain(|fit| fit.number == *one || pieces.all[chosen.len()].share.is_none());
            }
            fits.sort_unstable();
            fits.into_iter().map(|fit| fit.number).collect()
        };
        let anywhere = reach == NicReach::Anywhere;
        let holds =
            |chosen: &[u8]| self.is_partition(pieces.whole(chosen)) && (anywhere || self.nics_are_near(pieces, chosen));
        // GPUs that differ only in what is free of them may change places, unless it matters where they are.
        let alike = anywhere && !self.needs_partition() && self.barred.has_no_gpu_shares();
        let owners: Vec<usize> = pieces.all.iter().map(|piece| piece.container).collect();
        let state = |chosen: &[u8]| if alike { self.rooms(pieces, chosen) } else { by_owner(&owners, chosen) };
        let search = DeviceSearch {
            pieces: pieces.all.len(),
            first: pieces.first,
            options: &options,
            holds: &holds,
            state: &state,
        };
        let left = self.tries.get();
        let found = solve(&search, &self.tries);
        self.looked.set(self.looked.get() + u64::from(left - self.tries.get()));
        found
    }

    fn nics_are_near(&self, pieces: GpuPieces<'_>, chosen: &[u8]) -> bool {
        if !self.joint_nics() {
            return true;
        }
        let mut containers = vec![Vec::new(); self.needs.len()];
        for (piece, gpu) in pieces.all.iter().zip(chosen) {
            containers[piece.container].extend(self.part(*gpu, piece.share));
        }
        self.nic_distance(&containers).is_some()
    }

    fn no_room(&self, pieces: &[GpuPiece], within: DeviceSet) -> Reason {
        let ratio = |share: &GpuShare| match share.memory {
            ShareMemory::Ratio(percent) | ShareMemory::Bytes(percent) => percent,
        };
        let largest = pieces.iter().filter_map(|piece| piece.share).max_by_key(|share| (ratio(share), share.core));
        if let Some(reason) = gpus_to_blame(self.pool, self.wishes) {
            return reason;
        }
        let Some(share) = largest else { return Reason::NoMatch { what: "GPU" } };
        let room = bits(self.eligible.gpus & within.gpus)
            .any(|gpu| self.part(gpu, Some(share)).is_some_and(|part| self.pool.admits(part).is_ok()));
        // With room on a GPU that has no NIC near, the NICs are to blame.
        if room && pieces.len() == 1 && self.joint_nics() {
            return self.not_near(self.eligible.gpus & within.gpus);
        }
        Reason::NoShareRoom { core: share.core.into(), memory: share.memory, shares: pieces.len() as u32 }
    }
}

impl<'a> GpuPieces<'a> {
    /// The pieces on one GPU.
    fn on(self, chosen: &[u8], gpu: u8) -> impl Iterator<Item = &'a GpuPiece> {
        self.all.iter().zip(chosen).filter(move |(_, on)| **on == gpu).map(|(piece, _)| piece)
    }

    /// The GPUs that are held whole.
    fn whole(self, chosen: &[u8]) -> u128 {
        let whole = self.all.iter().zip(chosen).filter(|(piece, _)| piece.share.is_none());
        mask(whole.map(|(_, gpu)| *gpu))
    }
}

fn thousandths(part: i64, whole: i64) -> i64 {
    if whole <= 0 { 0 } else { (i128::from(part) * 1000 / i128::from(whole)) as i64 }
}
