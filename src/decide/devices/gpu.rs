//! Whole GPUs and MIG devices of a pod: how many at one time, which, and who of the containers gets which.

use std::cell::Cell;

use super::exclusive::blame;
use super::grant::{Part, Slot};
use super::objective::{Objective, Spread, objective};
use super::partition;
use super::phases::{overlap, peak, split};
use super::pick::{Choice, GpuPlan, Within};
use super::place::{bit, bits};
use super::reason::Reason;
use super::solve::{Search, by_owner, solve};
use super::splits::{Splits, Way};
use super::{mig, whole};
use crate::contract::hint::PartitionPolicy;
use crate::decide::pod::ContainerKind;

impl Choice<'_> {
    /// Chooses the pod's whole GPUs, except `taken` ones, and splits them over the containers.
    pub(super) fn whole(&self, within: Within, taken: u128, plan: &mut GpuPlan) -> Result<(), Reason> {
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        let count = self.whole_wanted();
        if count == 0 {
            return Ok(());
        }
        let candidates = self.free_for_whole(within) & !taken;
        if candidates.count_ones() < count {
            let (free, total) = (candidates.count_ones(), self.pool.summary().gpus);
            return Err(blame(self.pool, self.wishes, true).unwrap_or(Reason::FewGpus { wanted: count, free, total }));
        }
        let splits = Splits::new(self, candidates, &counts, &plan.containers);
        if self.wishes.partition.is_none() && !splits.may_fit(candidates) {
            return Err(self.not_near(candidates));
        }
        let any = Cell::new(false);
        let value = |set: u128| {
            if splits.are_trivial() {
                return Some((Spread::default(), 0));
            }
            // A place that was found is good enough when there is no time left to find a better one.
            if any.get() && self.tries.get() == 0 {
                return None;
            }
            let Way { spread, distance, .. } = splits.of(set)?;
            any.set(true);
            Some((spread, distance))
        };
        let chosen = match self.partitioned(candidates, count, &value)? {
            Some(chosen) => Some(chosen),
            None => whole::best_split(self.pool, candidates, count, value).set,
        };
        let shared_out = chosen.and_then(|(set, value)| Some((value, self.afresh(|| splits.of(set))?.split)));
        let Some((value, split)) = shared_out else { return Err(self.not_near(candidates)) };
        plan.objective = Some(value);
        plan.whole = self.neighbours(chosen.map_or(0, |(set, _)| set));
        self.hand_out(&split, &mut plan.containers);
        Ok(())
    }

    /// Whole GPUs that the pod holds at one time at most.
    pub(super) fn whole_wanted(&self) -> u32 {
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        if self.cut_into_instances() { 0 } else { peak(&self.kinds, &counts) }
    }

    /// GPUs that may be given whole.
    pub(super) fn free_for_whole(&self, within: Within) -> u128 {
        self.eligible.free_gpus & within.gpus & !self.barred.gpus
    }

    /// The GPUs of a set, those near each other side by side.
    pub(super) fn neighbours(&self, set: u128) -> Vec<u8> {
        let gpus = &self.pool.devices().gpus;
        let mut order: Vec<u8> = bits(set).collect();
        order.sort_by_key(|at| {
            let gpu = &gpus[usize::from(*at)];
            (gpu.place.nvlink, gpu.place.numa, gpu.place.switch, gpu.minor, *at)
        });
        order
    }

    pub(super) fn hand_out(&self, split: &[Vec<u8>], containers: &mut [Vec<Part>]) {
        for (parts, own) in containers.iter_mut().zip(split) {
            parts.extend(own.iter().map(|gpu| {
                let device = &self.pool.devices().gpus[usize::from(*gpu)];
                Part::Gpu { gpu: *gpu, core: device.core, memory: device.memory }
            }));
        }
    }

    /// The best partition of the node's table, where the pod asks for one.
    fn partitioned(
        &self,
        candidates: u128,
        count: u32,
        value: &impl Fn(u128) -> Option<(Spread, u32)>,
    ) -> Result<Option<(u128, Objective)>, Reason> {
        let Some(spec) = &self.wishes.partition else { return Ok(None) };
        let table = self.pool.devices().partitions.as_ref();
        let best = table.and_then(|table| {
            partition::sets(table, self.pool, candidates, count, spec.ring_bus_bandwidth)
                .filter_map(|(set, score)| {
                    let (spread, distance) = value(set)?;
                    let value = Objective { spread, ..objective(self.pool, set, distance) };
                    Some((std::cmp::Reverse(score), value, set))
                })
                .min()
        });
        match best {
            Some((_, value, set)) => Ok(Some((set, value))),
            None if spec.allocate_policy == PartitionPolicy::Restricted => {
                Err(Reason::Partition { wanted: count, table: table.is_some() })
            }
            None => Ok(None),
        }
    }

    /// How near NICs can be at best, for the refusal.
    pub(super) fn not_near(&self, candidates: u128) -> Reason {
        let gpus = &self.pool.devices().gpus;
        let near = bits(candidates).map(|at| self.nics_near(gpus[usize::from(at)].place)).max().unwrap_or(0);
        let wanted = self.nics_wanted();
        // The NICs may be near enough one by one, and still not be where all the GPUs are.
        Reason::NotNear { wanted, near: near.min(wanted.saturating_sub(1)) }
    }

    /// Every GPU of the node is cut into MIG devices: they are what it has for whoever asks for GPUs (strategy `single`).
    fn cut_into_instances(&self) -> bool {
        self.pool.summary().gpus == 0 && !self.pool.devices().migs.is_empty()
    }

    /// Chooses the pod's MIG devices, profile by profile, and splits them over the containers.
    pub(super) fn migs(&self, within: Within, plan: &mut GpuPlan) -> Result<(), Reason> {
        let open = self.eligible.migs & within.migs & !self.barred.migs;
        let mut profiles: Vec<&str> = self.needs.iter().filter_map(|need| Some(need.mig?.0)).collect();
        profiles.sort_unstable();
        profiles.dedup();
        for profile in profiles {
            let of =
                |mig: Option<(&str, u32)>| mig.filter(|(wanted, _)| *wanted == profile).map_or(0, |(_, count)| count);
            let counts: Vec<u32> = self.needs.iter().map(|need| of(need.mig)).collect();
            let total = self.pool.devices().migs.iter().filter(|mig| *mig.profile == *profile).count() as u32;
            self.migs_of(mig::of_profile(self.pool, open, profile), &counts, plan, |wanted, free| Reason::FewMigs {
                profile: profile.into(),
                wanted,
                free,
                total,
            })?;
        }
        // Whoever takes any comes after those that want certain ones, and takes none that these hold at the same time.
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        if counts.iter().any(|count| *count > 0) && self.cut_into_instances() {
            let total = self.pool.devices().migs.len() as u32;
            let beside = |holder: usize| {
                let mut takers = (0..counts.len()).filter(|taker| counts[*taker] > 0);
                takers.any(|taker| overlap(&self.kinds, holder, taker))
            };
            let held = plan.containers.iter().enumerate().filter(|(holder, _)| beside(*holder));
            let held = held.flat_map(|(_, parts)| parts).fold(0, |mask, part| match part.slot() {
                Slot::Mig(at) => mask | bit(at),
                _ => mask,
            });
            self.migs_of(open & !held, &counts, plan, |wanted, free| Reason::FewGpus { wanted, free, total })?;
        }
        Ok(())
    }

    /// `counts` of the MIG devices `free` for the containers.
    fn migs_of(
        &self,
        free: u128,
        counts: &[u32],
        plan: &mut GpuPlan,
        few: impl FnOnce(u32, u32) -> Reason,
    ) -> Result<(), Reason> {
        let count = peak(&self.kinds, counts);
        let Some(chosen) = mig::choose(self.pool, free, count) else {
            return Err(blame(self.pool, self.wishes, true).unwrap_or(few(count, free.count_ones())));
        };
        let mut split = split(&self.kinds, counts, &chosen);
        if self.joint_nics() {
            let Some(near) = self.migs_near_nics(free, counts, &plan.containers) else {
                let migs = &self.pool.devices().migs;
                let near = bits(free).map(|at| self.nics_near(migs[usize::from(at)].place)).max().unwrap_or(0);
                let wanted = self.nics_wanted();
                return Err(Reason::NotNear { wanted, near: near.min(wanted.saturating_sub(1)) });
            };
            split = near;
        }
        mig::hand_out(&split, &mut plan.containers);
        Ok(())
    }

    /// The MIG devices of each container, on parents near its NICs; of equally near ones, on those with the fewest free.
    fn migs_near_nics(&self, free: u128, counts: &[u32], others: &[Vec<Part>]) -> Option<Vec<Vec<u8>>> {
        let most = peak(&self.kinds, counts);
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|at| (self.kinds[*at] == ContainerKind::Init, !self.has_nics_to_be_near(*at), *at));
        let pieces: Vec<usize> =
            order.into_iter().flat_map(|at| std::iter::repeat_n(at, counts[at] as usize)).collect();
        let migs = &self.pool.devices().migs;
        let siblings = |at: u8| {
            let parent = &migs[usize::from(at)].parent;
            bits(self.pool.summary().free_migs).filter(|other| migs[usize::from(*other)].parent == *parent).count()
        };
        let options = |chosen: &[u8]| {
            let container = pieces[chosen.len()];
            let held = || pieces.iter().zip(chosen.iter().copied());
            let taken = held().fold(0, |mask, (_, at)| mask | bit(at));
            let busy = held().filter(|(other, _)| overlap(&self.kinds, **other, container));
            let busy = busy.fold(0, |mask, (_, at)| mask | bit(at));
            let open = if taken.count_ones() < most { u128::MAX } else { taken };
            let mut options: Vec<_> = bits(free & open & !busy)
                .filter_map(|at| {
                    let mig = &migs[usize::from(at)];
                    let beside = held().any(|(_, other)| migs[usize::from(other)].parent == mig.parent);
                    Some((
                        self.steps_to_nics(container, mig.place)?,
                        !beside,
                        siblings(at),
                        mig.minor,
                        taken & bit(at) == 0,
                        at,
                    ))
                })
                .collect();
            options.sort_unstable();
            // Of one parent's devices that nobody holds, the first.
            options.dedup_by(|b, a| b.4 && a.4 && migs[usize::from(a.5)].parent == migs[usize::from(b.5)].parent);
            options.into_iter().map(|option| option.5).collect::<Vec<u8>>()
        };
        let as_split = |chosen: &[u8]| {
            let mut split = vec![Vec::new(); counts.len()];
            for (container, at) in pieces.iter().zip(chosen) {
                split[*container].push(*at);
            }
            split
        };
        let holds = |chosen: &[u8]| {
            let mut containers = others.to_vec();
            mig::hand_out(&as_split(chosen), &mut containers);
            self.nic_distance(&containers).is_some()
        };
        let state = |chosen: &[u8]| by_owner(&pieces, chosen);
        let search = Search { pieces: pieces.len(), options: &options, holds: &holds, state: &state };
        solve(&search, &self.tries).map(|chosen| as_split(&chosen))
    }
}
