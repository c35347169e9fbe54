//! Whole GPUs and MIG devices of a pod: how many at one time, which, and which container gets which.

use std::cell::Cell;

use super::exclusive::gpus_to_blame;
use super::grant::Part;
use super::objective::{Dispersion, Objective, objective};
use super::partition::{Partition, PartitionTable};
use super::phases::{overlap, peak, split};
use super::pick::{GpuPlan, PickInput};
use super::place::{DeviceSet, bit, bits, mask};
use super::pool::NodePool;
use super::reason::Reason;
use super::solve::{DeviceSearch, by_owner, solve};
use super::splits::{Split, Splits};
use super::whole;
use crate::pod::ContainerKind;
use baton_contract::Quantity;
use baton_contract::hint::PartitionPolicy;

impl PickInput<'_> {
    /// Chooses the pod's whole GPUs, and splits them over the containers.
    pub(super) fn whole(&self, within: DeviceSet, plan: &mut GpuPlan) -> Result<(), Reason> {
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        let count = self.whole_wanted();
        if count == 0 {
            return Ok(());
        }
        let candidates = self.free_for_whole(within);
        if candidates.count_ones() < count {
            let (free, total) = (candidates.count_ones(), self.pool.summary().gpus);
            return Err(gpus_to_blame(self.pool, self.wishes).unwrap_or(Reason::FewGpus {
                wanted: count,
                free,
                total,
            }));
        }
        let splits = Splits::new(self, candidates, &counts, &plan.containers);
        if self.wishes.partition.is_none() && !splits.may_fit(candidates) {
            return Err(self.not_near(candidates));
        }
        let any = Cell::new(false);
        let value = |set: u128| {
            if splits.are_trivial() {
                return Some((Dispersion::default(), 0));
            }
            // A place that was found is good enough when there is no time left to find a better one.
            if any.get() && self.tries.get() == 0 {
                return None;
            }
            let Split { spread, distance, .. } = splits.of(set)?;
            any.set(true);
            Some((spread, distance))
        };
        let chosen = match self.partitioned(candidates, count, &value)? {
            Some(chosen) => Some(chosen),
            None => whole::best_split(self.pool, candidates, count, value).set,
        };
        let shared_out = chosen.and_then(|(set, value)| Some((value, self.afresh(|| splits.of(set))?.gpus)));
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
    pub(super) fn free_for_whole(&self, within: DeviceSet) -> u128 {
        self.eligible.free_gpus & within.gpus & !self.barred.whole.gpus
    }

    /// The GPUs of a set, those near each other side by side.
    pub(super) fn neighbours(&self, set: u128) -> Vec<u8> {
        let gpus = &self.pool.devices().gpus;
        let mut order: Vec<u8> = bits(set).collect();
        order.sort_by_key(|at| {
            let gpu = &gpus[usize::from(*at)].common;
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
        value: &impl Fn(u128) -> Option<(Dispersion, u32)>,
    ) -> Result<Option<(u128, Objective)>, Reason> {
        let Some(spec) = &self.wishes.partition else { return Ok(None) };
        let table = self.pool.devices().partitions.as_ref();
        let best = table.and_then(|table| {
            self.partitions(table, candidates, count, spec.ring_bus_bandwidth)
                .filter_map(|(set, score)| {
                    let (spread, distance) = value(set)?;
                    let value = Objective { spread, ..objective(self.pool, set, distance) };
                    Some((std::cmp::Reverse(score), value, set))
                })
                .min()
        });
        match best {
            Some((_, value, set)) => Ok(Some((set, value))),
            None if self.needs_partition() => Err(Reason::Partition { wanted: count, table: table.is_some() }),
            None => Ok(None),
        }
    }

    /// Whole GPUs must be a partition of the node's table.
    pub(super) fn needs_partition(&self) -> bool {
        self.wishes.partition.as_ref().is_some_and(|spec| spec.allocate_policy == PartitionPolicy::Restricted)
    }

    /// These whole GPUs are a partition where they must be one.
    pub(super) fn is_partition(&self, set: u128) -> bool {
        let Some(spec) = self.wishes.partition.as_ref().filter(|_| set != 0 && self.needs_partition()) else {
            return true;
        };
        let table = self.pool.devices().partitions.as_ref();
        table.is_some_and(|table| {
            self.partitions(table, set, set.count_ones(), spec.ring_bus_bandwidth).next().is_some()
        })
    }

    /// The partitions of `count` GPUs whose GPUs are all among `candidates` and whose ring delivers at least `bandwidth`, with
    /// their scores.
    fn partitions<'a>(
        &'a self,
        table: &'a PartitionTable,
        candidates: u128,
        count: u32,
        bandwidth: Option<Quantity>,
    ) -> impl Iterator<Item = (u128, i64)> + 'a {
        let gpus = &self.pool.devices().gpus;
        let set = move |partition: &Partition| {
            let of_minor = |minor: &i32| gpus.iter().position(|gpu| gpu.common.minor == *minor && gpu.core > 0);
            partition.minors.iter().try_fold(0, |set, minor| Some(set | bit(of_minor(minor)? as u8)))
        };
        table.of_size(count).iter().filter_map(move |partition| {
            let enough =
                bandwidth.is_none_or(|least| partition.ring_bus_bandwidth.is_some_and(|bandwidth| bandwidth >= least));
            let set = set(partition).filter(|set| enough && set & !candidates == 0 && set.count_ones() == count)?;
            Some((set, partition.allocation_score))
        })
    }

    /// How near NICs can be to these GPUs at best, for the refusal.
    pub(super) fn not_near(&self, candidates: u128) -> Reason {
        self.not_near_any(DeviceSet { gpus: candidates, ..DeviceSet::default() })
    }

    fn not_near_any(&self, candidates: DeviceSet) -> Reason {
        let devices = self.pool.devices();
        let near = candidates.slots().map(|slot| self.nics_near(devices.place(slot))).max().unwrap_or(0);
        let wanted = self.nics_wanted();
        // The NICs may be near enough one by one, and still not be where all the GPUs are.
        Reason::NotNear { wanted, near: near.min(wanted.saturating_sub(1)) }
    }

    /// Every GPU of the node is cut into MIG devices: a pod that asks for GPUs gets these (strategy `single`).
    fn cut_into_instances(&self) -> bool {
        self.pool.summary().gpus == 0 && !self.pool.devices().migs.is_empty()
    }

    /// Chooses the pod's MIG devices, profile by profile, and splits them over the containers.
    pub(super) fn migs(&self, within: DeviceSet, plan: &mut GpuPlan) -> Result<(), Reason> {
        let open = self.eligible.migs & within.migs & !self.barred.whole.migs;
        let mut profiles: Vec<&str> = self.needs.iter().filter_map(|need| Some(need.mig?.0)).collect();
        profiles.sort_unstable();
        profiles.dedup();
        for profile in profiles {
            let of =
                |mig: Option<(&str, u32)>| mig.filter(|(wanted, _)| *wanted == profile).map_or(0, |(_, count)| count);
            let counts: Vec<u32> = self.needs.iter().map(|need| of(need.mig)).collect();
            let total = self.pool.devices().migs.iter().filter(|mig| *mig.profile == *profile).count() as u32;
            self.migs_of(of_profile(self.pool, open, profile), &counts, plan, |wanted, free| Reason::FewMigs {
                profile: profile.into(),
                wanted,
                free,
                total,
            })?;
        }
        // A container that takes any comes after those that want certain ones, and takes none that these hold at the same time.
        let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
        if counts.iter().any(|count| *count > 0) && self.cut_into_instances() {
            let total = self.pool.devices().migs.len() as u32;
            let beside = |holder: usize| {
                let mut takers = (0..counts.len()).filter(|taker| counts[*taker] > 0);
                takers.any(|taker| overlap(&self.kinds, holder, taker))
            };
            let held = plan.containers.iter().enumerate().filter(|(holder, _)| beside(*holder));
            let held: DeviceSet = held.flat_map(|(_, parts)| parts).map(|part| part.slot()).collect();
            self.migs_of(open & !held.migs, &counts, plan, |wanted, free| Reason::FewGpus { wanted, free, total })?;
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
        let Some(chosen) = choose_migs(self.pool, free, count) else {
            return Err(gpus_to_blame(self.pool, self.wishes).unwrap_or(few(count, free.count_ones())));
        };
        let mut split = split(&self.kinds, counts, &chosen);
        if self.joint_nics() {
            let Some(near) = self.migs_near_nics(free, counts, &plan.containers) else {
                return Err(self.not_near_any(DeviceSet { migs: free, ..DeviceSet::default() }));
            };
            split = near;
        }
        hand_out_migs(&split, &mut plan.containers);
        Ok(())
    }

    /// Free MIG devices of the parents that these parts are of: the fewer, the more these are cut into already.
    pub(super) fn siblings_left(&self, containers: &[Vec<Part>]) -> u32 {
        let migs = &self.pool.devices().migs;
        let taken: DeviceSet = containers.iter().flatten().map(|part| part.slot()).collect();
        let parents: Vec<_> = bits(taken.migs).map(|at| &migs[usize::from(at)].parent).collect();
        let open = bits(self.pool.summary().free_migs).filter(|at| parents.contains(&&migs[usize::from(*at)].parent));
        open.count() as u32
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
            let taken = mask(held().map(|(_, at)| at));
            let busy = held().filter(|(other, _)| overlap(&self.kinds, **other, container));
            let busy = mask(busy.map(|(_, at)| at));
            let open = if taken.count_ones() < most { u128::MAX } else { taken };
            let mut options: Vec<_> = bits(free & open & !busy)
                .filter_map(|at| {
                    let mig = &migs[usize::from(at)];
                    let beside = held().any(|(_, other)| migs[usize::from(other)].parent == mig.parent);
                    Some((
                        self.steps_to_nics(container, mig.common.place)?,
                        !beside,
                        siblings(at),
                        mig.common.minor,
                        taken & bit(at) == 0,
                        at,
                    ))
                })
                .collect();
            options.sort_unstable();
            // Of one parent's devices that no container holds, the first.
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
            hand_out_migs(&as_split(chosen), &mut containers);
            self.nic_distance(&containers).is_some()
        };
        let state = |chosen: &[u8]| by_owner(&pieces, chosen);
        let search = DeviceSearch { pieces: pieces.len(), first: &[], options: &options, holds: &holds, state: &state };
        solve(&search, &self.tries).map(|chosen| as_split(&chosen))
    }
}

/// Those of `candidates` (numbers of this pool) that are of `profile`.
fn of_profile(pool: &NodePool, candidates: u128, profile: &str) -> u128 {
    let migs = &pool.devices().migs;
    mask(bits(candidates).filter(|at| *migs[usize::from(*at)].profile == *profile))
}

/// Adds the MIG devices of `split` to what the containers hold.
fn hand_out_migs(split: &[Vec<u8>], containers: &mut [Vec<Part>]) {
    for (parts, own) in containers.iter_mut().zip(split) {
        parts.extend(own.iter().map(|mig| Part::Mig { mig: *mig }));
    }
}

/// Chooses `count` of `candidates`, all of one profile, so that whole parents stay free: on one parent where one suffices (of these, the one with the fewest
/// free MIG devices), else from the parents with the most candidates, to touch few.
fn choose_migs(pool: &NodePool, candidates: u128, count: u32) -> Option<Vec<u8>> {
    if candidates.count_ones() < count {
        return None;
    }
    let migs = &pool.devices().migs;
    let siblings = |at: u8, among: u128| {
        let parent = &migs[usize::from(at)].parent;
        mask(bits(among).filter(|other| migs[usize::from(*other)].parent == *parent))
    };
    let (mut left, mut chosen) = (candidates, Vec::with_capacity(count as usize));
    while (chosen.len() as u32) < count {
        let wanted = count - chosen.len() as u32;
        let next = bits(left).min_by_key(|at| {
            let here = siblings(*at, left).count_ones();
            let free = siblings(*at, pool.summary().free_migs).count_ones();
            let enough = here >= wanted;
            (!enough, if enough { free } else { u32::MAX - here }, migs[usize::from(*at)].common.minor, *at)
        })?;
        for at in bits(siblings(next, left)).take(wanted as usize) {
            left &= !bit(at);
            chosen.push(at);
        }
    }
    Some(chosen)
}
