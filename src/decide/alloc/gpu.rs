//! Whole GPUs and MIG devices of a pod: how many at one time, which, and who of the containers gets which.

use super::exclusive::blame;
use super::grant::Part;
use super::objective::objective;
use super::partition;
use super::phases::{peak, split};
use super::pick::{Choice, GpuPlan, Within};
use super::place::{Place, bits};
use super::reason::Reason;
use super::{mig, whole};
use crate::contract::hint::PartitionPolicy;

impl Choice<'_> {
    /// Chooses the pod's whole GPUs, except `taken` ones, and splits them over the containers.
    pub(super) fn whole(&self, within: Within, taken: u128, plan: &mut GpuPlan) -> Result<(), Reason> {
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        let count = peak(&self.kinds, &counts);
        if count == 0 || self.cut_into_instances() {
            return Ok(());
        }
        let candidates = self.eligible.free_gpus & within.gpus & !taken & !self.barred.gpus;
        if candidates.count_ones() < count {
            let (free, total) = (candidates.count_ones(), self.pool.summary().gpus);
            return Err(blame(self.pool, self.wishes, true).unwrap_or(Reason::FewGpus { wanted: count, free, total }));
        }
        let gpus = &self.pool.devices().gpus;
        let distance = |set: u128| {
            if !self.joint_nics() {
                return Some(0);
            }
            let mut places: Vec<Place> = bits(set).map(|at| gpus[usize::from(at)].place).collect();
            places.sort_unstable();
            places.dedup();
            self.nic_distance(&places)
        };
        let chosen = match self.partitioned(candidates, count, &distance)? {
            Some(chosen) => Some(chosen),
            None => whole::best(self.pool, candidates, count, distance).set,
        };
        let Some((set, value)) = chosen else { return Err(self.not_near(candidates)) };
        plan.objective = Some(value);
        // Containers take neighbours.
        plan.whole = bits(set).collect();
        plan.whole.sort_by_key(|at| {
            let gpu = &gpus[usize::from(*at)];
            (gpu.place.nvlink, gpu.place.numa, gpu.place.switch, gpu.minor, *at)
        });
        for (parts, own) in plan.containers.iter_mut().zip(split(&self.kinds, &counts, &plan.whole)) {
            parts.extend(own.into_iter().map(|gpu| {
                let device = &gpus[usize::from(gpu)];
                Part::Gpu { gpu, core: device.core, memory: device.memory }
            }));
        }
        Ok(())
    }

    /// The best partition of the node's table, where the pod asks for one.
    fn partitioned(
        &self,
        candidates: u128,
        count: u32,
        distance: &impl Fn(u128) -> Option<u32>,
    ) -> Result<Option<(u128, super::objective::Objective)>, Reason> {
        let Some(spec) = &self.wishes.partition else { return Ok(None) };
        let table = self.pool.devices().partitions.as_ref();
        let best = table.and_then(|table| {
            partition::sets(table, self.pool, candidates, count, spec.ring_bus_bandwidth)
                .filter_map(|(set, score)| {
                    Some((std::cmp::Reverse(score), objective(self.pool, set, distance(set)?), set))
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
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        let count = peak(&self.kinds, &counts);
        if count > 0 && self.cut_into_instances() {
            let free = self.eligible.migs & within.migs & !self.barred.migs;
            let Some(chosen) = mig::choose(self.pool, free, count) else {
                let (free, total) = (free.count_ones(), self.pool.devices().migs.len() as u32);
                return Err(blame(self.pool, self.wishes, true).unwrap_or(Reason::FewGpus {
                    wanted: count,
                    free,
                    total,
                }));
            };
            for (parts, own) in plan.containers.iter_mut().zip(split(&self.kinds, &counts, &chosen)) {
                parts.extend(own.into_iter().map(|mig| Part::Mig { mig }));
            }
        }
        let mut profiles: Vec<&str> = self.needs.iter().filter_map(|need| Some(need.mig?.0)).collect();
        profiles.sort_unstable();
        profiles.dedup();
        for profile in profiles {
            let of =
                |mig: Option<(&str, u32)>| mig.filter(|(wanted, _)| *wanted == profile).map_or(0, |(_, count)| count);
            let counts: Vec<u32> = self.needs.iter().map(|need| of(need.mig)).collect();
            let count = peak(&self.kinds, &counts);
            let free = mig::of_profile(self.pool, self.eligible.migs & within.migs & !self.barred.migs, profile);
            let Some(chosen) = mig::choose(self.pool, free, count) else {
                let migs = &self.pool.devices().migs;
                let total = migs.iter().filter(|mig| *mig.profile == *profile).count() as u32;
                let few = Reason::FewMigs { profile: profile.into(), wanted: count, free: free.count_ones(), total };
                return Err(blame(self.pool, self.wishes, true).unwrap_or(few));
            };
            for (parts, own) in plan.containers.iter_mut().zip(split(&self.kinds, &counts, &chosen)) {
                parts.extend(own.into_iter().map(|mig| Part::Mig { mig }));
            }
        }
        Ok(())
    }
}
