//! `pick`: the devices of one node for one pod, or the reason why there are none.

use std::cell::Cell;

use super::assignment::Assignment;
use super::exclusive::{Eligible, closure, eligible};
use super::grant::{Grant, Part};
use super::objective::{Fit, Objective};
use super::phases::{merge, peak};
use super::place::{DeviceSet, Level, NOWHERE};
use super::pool::NodePool;
use super::reason::{Reason, ShareMemory};
use super::request::{ContainerDeviceRequest, PodDeviceRequest};
use super::solve::MAX_TRIES_OF_POD;
use super::wishes::{Joint, Wishes};
use crate::pod::ContainerKind;
use baton_contract::GpuRequest;
use baton_contract::hint::{Count, TopologyScope};
use baton_contract::key::WHOLE;

/// Chooses devices for `request`; changes nothing. Equal pools and shapes give equal answers. What is returned can be taken:
/// every part has room, is healthy and open.
pub fn pick(pool: &NodePool, request: &PodDeviceRequest) -> Result<Assignment, Reason> {
    pick_without(pool, request, &Barred::default())
}

/// [`pick()`], and how many sets of GPUs, places of shares and ways to give them NICs it has looked at: what it has cost, whatever the machine. Tests hold
/// that number to its limit.
pub fn pick_counting(pool: &NodePool, request: &PodDeviceRequest) -> (Result<Assignment, Reason>, u64) {
    let looked = Cell::new(0);
    (pick_with(pool, request, &Barred::default(), &looked), looked.get())
}

/// [`pick()`] with some devices barred: another choice.
pub(super) fn pick_without(pool: &NodePool, request: &PodDeviceRequest, barred: &Barred) -> Result<Assignment, Reason> {
    pick_with(pool, request, barred, &Cell::new(0))
}

fn pick_with(
    pool: &NodePool,
    request: &PodDeviceRequest,
    barred: &Barred,
    looked: &Cell<u64>,
) -> Result<Assignment, Reason> {
    if request.is_empty() {
        return Ok(Assignment::default());
    }
    let shape = request.shape();
    let eligible = eligible(pool, &shape.wishes);
    let choice = PickInput {
        pool,
        wishes: &shape.wishes,
        kinds: shape.wants.iter().map(|want| want.kind).collect(),
        needs: shape.wants.iter().map(|want| Need::of(want, &shape.wishes, &eligible)).collect(),
        eligible,
        barred,
        tries: Cell::new(MAX_TRIES_OF_POD),
        looked,
    };
    choice.run()
}

/// One choice under way: the question, in numbers of this node.
pub(super) struct PickInput<'a> {
    pub pool: &'a NodePool,
    pub wishes: &'a Wishes,
    pub kinds: Vec<ContainerKind>,
    pub needs: Vec<Need<'a>>,
    pub eligible: Eligible,
    pub barred: &'a Barred,
    /// What searches may still try for this pod.
    pub tries: Cell<u32>,
    /// Sets of GPUs, places of shares and ways to give them NICs that were looked at.
    pub looked: &'a Cell<u64>,
}

/// GPUs and MIG devices per container, and how good they are.
#[derive(Debug, Clone, Default)]
pub(super) struct GpuPlan {
    pub containers: Vec<Vec<Part>>,
    /// Whole GPUs of the pod, in the order in which the containers take them.
    pub whole: Vec<u8>,
    pub objective: Option<Objective>,
    pub fits: Vec<Fit>,
}

/// Where the NICs of a container may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NicReach {
    /// Below the same switches as its GPUs, or below the same root complexes.
    SamePcie,
    /// Anywhere on the node, the nearer the better.
    Anywhere,
}

/// On which devices the shares of a pod may lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShareSpread {
    /// All on one.
    OneDevice,
    /// Each on any.
    AnyDevice,
}

/// NICs per container, and how far they are from the GPUs in all.
#[derive(Debug, Clone, Default)]
pub(super) struct NicPlan {
    pub containers: Vec<Vec<Part>>,
    pub distance: u32,
}

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

    pub fn of(want: &'a ContainerDeviceRequest, wishes: &Wishes, eligible: &Eligible) -> Self {
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

/// Devices that a choice has to do without, so that another one is found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Barred {
    /// As whole GPUs, MIG devices and whole NICs.
    pub whole: DeviceSet,
    /// GPUs and NICs for the share of a container, by its place in the request.
    shares: Vec<DeviceSet>,
}

impl Barred {
    /// GPUs and NICs that must not carry a share of the container.
    pub fn for_share_of(&self, container: usize) -> DeviceSet {
        self.shares.get(container).copied().unwrap_or_default()
    }

    /// No GPU is barred for shares.
    pub fn has_no_gpu_shares(&self) -> bool {
        self.shares.iter().all(|barred| barred.gpus == 0)
    }

    /// Bars more devices for the share of a container.
    pub fn bar_share(&mut self, container: usize, devices: DeviceSet) {
        if self.shares.len() <= container {
            self.shares.resize(container + 1, DeviceSet::default());
        }
        self.shares[container] |= devices;
    }
}

impl PickInput<'_> {
    fn run(&self) -> Result<Assignment, Reason> {
        if self.joint_nics() {
            // Too few NICs anywhere is a better reason than too few near.
            self.nics(&[], NicReach::Anywhere)?;
        }
        let gpus = self.gpus()?;
        let NicPlan { containers: nics, .. } = self.afresh(|| self.nics(&gpus.containers, self.nic_reach()))?;
        let mut containers = gpus.containers;
        for (parts, nics) in containers.iter_mut().zip(nics) {
            parts.extend(nics);
            parts.sort_unstable_by_key(|part| part.slot());
        }
        let parts: Box<[Part]> = merge(&self.kinds, &containers).into();
        let closed = closure(self.pool, &parts, self.wishes.exclusive());
        Ok(Assignment { grant: Grant { parts, closed }, containers })
    }

    /// Searches with tries of its own: what was found while there were some is found again when the other places that were
    /// looked at have used them up.
    pub fn afresh<T>(&self, search: impl FnOnce() -> T) -> T {
        let left = self.tries.replace(MAX_TRIES_OF_POD);
        let found = search();
        self.tries.set(left);
        found
    }

    /// NICs have a say in the choice of GPUs.
    pub fn joint_nics(&self) -> bool {
        self.wishes.joint.is_some() && self.needs.iter().any(|need| need.nics > 0 || need.nic_share.is_some())
    }

    /// NICs must be near the GPUs.
    pub fn strict(&self) -> bool {
        self.nic_reach() == NicReach::SamePcie
    }

    /// Where the pod's NICs may lie.
    pub fn nic_reach(&self) -> NicReach {
        if self.wishes.joint == Some(Joint::SamePcie) { NicReach::SamePcie } else { NicReach::Anywhere }
    }

    /// How far the NICs for containers with these GPUs would be; `None` when they cannot be used together.
    pub fn nic_distance(&self, gpus: &[Vec<Part>]) -> Option<u32> {
        if !self.joint_nics() {
            return Some(0);
        }
        self.nics_if_any(gpus).map(|plan| plan.distance)
    }

    /// The parts of the node that `scope` allows, each on its own.
    pub fn scopes(&self, scope: Option<TopologyScope>) -> Vec<DeviceSet> {
        let devices = self.pool.devices();
        let level = match scope {
            None | Some(TopologyScope::Node) => return vec![DeviceSet::ALL],
            Some(TopologyScope::Device) => return devices.slots().map(DeviceSet::of).collect(),
            Some(TopologyScope::Pcie) => Level::Switch,
            Some(TopologyScope::NumaNode) => Level::Numa,
        };
        // A device of unknown place is near itself only.
        let lost = devices.slots().filter(|slot| devices.place(*slot).at(level) == NOWHERE);
        devices.groups(level).iter().copied().chain(lost.map(DeviceSet::of)).collect()
    }

    fn gpus(&self) -> Result<GpuPlan, Reason> {
        let scope = self.wishes.gpu.required_topology_scope;
        if matches!(scope, None | Some(TopologyScope::Node)) {
            return self.gpus_within(DeviceSet::ALL);
        }
        let plans = self.scopes(scope).into_iter().filter_map(|within| self.gpus_within(within).ok());
        let plans = plans.map(|plan| (self.siblings_left(&plan.containers), plan));
        let best =
            plans.min_by(|(of_a, a), (of_b, b)| (&a.objective, &a.fits, of_a).cmp(&(&b.objective, &b.fits, of_b)));
        let best = best.map(|(_, plan)| plan);
        best.ok_or_else(|| {
            let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
            let wanted = peak(&self.kinds, &counts).max(1);
            let scope = scope.unwrap_or(TopologyScope::Node);
            // What is missing anywhere is a better reason than what is missing within the scope.
            self.gpus_within(DeviceSet::ALL).err().unwrap_or(Reason::Scope { what: "GPUs", scope, wanted })
        })
    }

    fn gpus_within(&self, within: DeviceSet) -> Result<GpuPlan, Reason> {
        let empty = || GpuPlan { containers: vec![Vec::new(); self.needs.len()], ..GpuPlan::default() };
        let mut plan = empty();
        self.whole(within, &mut plan)?;
        if let Err(reason) = self.shares(within, &mut plan) {
            if plan.whole.is_empty() {
                return Err(reason);
            }
            plan = empty();
            self.whole_and_shares(within, &mut plan).ok_or(reason)?;
        }
        self.migs(within, &mut plan)?;
        Ok(plan)
    }
}
