//! `pick`: the devices of one node for one pod, or the reason why there are none.

use std::cell::Cell;

use super::assignment::Assignment;
use super::exclusive::{Eligible, closure, eligible};
use super::grant::{Grant, Part, Slot};
use super::mig::opened;
use super::need::Need;
use super::nic::NicPlan;
use super::objective::Objective;
use super::phases::{merge, peak};
use super::place::{Level, NOWHERE, Place, bit};
use super::pool::NodePool;
use super::reason::Reason;
use super::request::PodDeviceRequest;
use super::share::Fit;
use super::solve::MAX_TRIES_OF_POD;
use super::together::Barred;
use super::wishes::{Joint, Wishes};
use crate::contract::hint::TopologyScope;
use crate::decide::pod::ContainerKind;

/// Chooses devices for `request`; changes nothing. Equal pools and shapes give equal answers. What is returned can be taken:
/// every part has room, is healthy and open.
pub fn pick(pool: &NodePool, request: &PodDeviceRequest) -> Result<Assignment, Reason> {
    pick_without(pool, request, &Barred::default())
}

/// [`pick()`], and how many sets of GPUs and ways to give them NICs it has looked at: what it has cost, whatever the machine.
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
    let choice = Choice {
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
pub(super) struct Choice<'a> {
    pub pool: &'a NodePool,
    pub wishes: &'a Wishes,
    pub kinds: Vec<ContainerKind>,
    pub needs: Vec<Need<'a>>,
    pub eligible: Eligible,
    pub barred: &'a Barred,
    /// What searches may still try for this pod.
    pub tries: Cell<u32>,
    /// Sets of GPUs and ways to give them NICs that were looked at.
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

/// A part of the node that a required scope confines devices to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Within {
    pub gpus: u128,
    pub migs: u128,
    pub nics: u128,
}

impl Choice<'_> {
    fn run(&self) -> Result<Assignment, Reason> {
        if self.joint_nics() {
            // Too few NICs anywhere is a better reason than too few near.
            self.nics(&[], false)?;
        }
        let gpus = self.gpus()?;
        let NicPlan { containers: nics, .. } = self.afresh(|| self.nics(&gpus.containers, self.strict()))?;
        let mut containers = gpus.containers;
        for (parts, nics) in containers.iter_mut().zip(nics) {
            parts.extend(nics);
            parts.sort_unstable_by_key(|part| part.slot());
        }
        let parts: Box<[Part]> = merge(&self.kinds, &containers).into();
        let (closed_gpus, closed_nics, closed_migs) = closure(self.pool, &parts, self.wishes.exclusive());
        Ok(Assignment { grant: Grant { parts, closed_gpus, closed_nics, closed_migs }, containers })
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
        self.wishes.joint == Some(Joint::SamePcie)
    }

    /// How far the NICs for containers with these GPUs would be; `None` when they cannot be used together.
    pub fn nic_distance(&self, gpus: &[Vec<Part>]) -> Option<u32> {
        if !self.joint_nics() {
            return Some(0);
        }
        self.nics_if_any(gpus, self.strict()).map(|plan| plan.distance)
    }

    /// The parts of the node that `scope` allows, each on its own.
    pub fn scopes(&self, scope: Option<TopologyScope>) -> Vec<Within> {
        let level = match scope {
            None | Some(TopologyScope::Node) => {
                return vec![Within { gpus: u128::MAX, migs: u128::MAX, nics: u128::MAX }];
            }
            Some(TopologyScope::Device) => {
                let devices = self.pool.devices();
                let one = |gpus, migs, nics| Within { gpus, migs, nics };
                let gpus = (0..devices.gpus.len() as u8).map(|at| one(bit(at), 0, 0));
                let migs = (0..devices.migs.len() as u8).map(|at| one(0, bit(at), 0));
                let nics = (0..devices.nics.len() as u8).map(|at| one(0, 0, bit(at)));
                return gpus.chain(migs).chain(nics).collect();
            }
            Some(TopologyScope::Pcie) => Level::Switch,
            Some(TopologyScope::NumaNode) => Level::Numa,
        };
        let devices = self.pool.devices();
        let groups = devices.groups(level).iter();
        let known = groups.map(|group| Within { gpus: group.gpus, migs: group.migs, nics: group.nics });
        // A device of unknown place is near itself.
        let lost = |place: &Place| place.at(level) == NOWHERE;
        let one = |gpus, migs, nics| Within { gpus, migs, nics };
        let gpus = (0u8..).zip(&devices.gpus).filter(|(_, gpu)| lost(&gpu.place)).map(|(at, _)| one(bit(at), 0, 0));
        let migs = (0u8..).zip(&devices.migs).filter(|(_, mig)| lost(&mig.place)).map(|(at, _)| one(0, bit(at), 0));
        let nics = (0u8..).zip(&devices.nics).filter(|(_, nic)| lost(&nic.place)).map(|(at, _)| one(0, 0, bit(at)));
        known.chain(gpus).chain(migs).chain(nics).collect()
    }

    fn gpus(&self) -> Result<GpuPlan, Reason> {
        let scope = self.wishes.gpu.required_topology_scope;
        let everywhere = Within { gpus: u128::MAX, migs: u128::MAX, nics: u128::MAX };
        if matches!(scope, None | Some(TopologyScope::Node)) {
            return self.gpus_within(everywhere);
        }
        let plans = self.scopes(scope).into_iter().filter_map(|within| self.gpus_within(within).ok());
        let plans = plans.map(|plan| (opened(self.pool, &plan.containers), plan));
        let best =
            plans.min_by(|(of_a, a), (of_b, b)| (&a.objective, &a.fits, of_a).cmp(&(&b.objective, &b.fits, of_b)));
        let best = best.map(|(_, plan)| plan);
        best.ok_or_else(|| {
            let counts: Vec<u32> = self.needs.iter().map(|need| need.whole).collect();
            let wanted = peak(&self.kinds, &counts).max(1);
            let scope = scope.unwrap_or(TopologyScope::Node);
            // What is missing anywhere is a better reason than what is missing within the scope.
            self.gpus_within(everywhere).err().unwrap_or(Reason::Scope { what: "GPUs", scope, wanted })
        })
    }

    fn gpus_within(&self, within: Within) -> Result<GpuPlan, Reason> {
        let mut plan = GpuPlan { containers: vec![Vec::new(); self.needs.len()], ..GpuPlan::default() };
        self.whole(within, 0, &mut plan)?;
        if let Err(reason) = self.shares(within, &mut plan) {
            if plan.whole.is_empty() {
                return Err(reason);
            }
            // The whole GPUs may have taken the only ones with room for the shares: shares first, then.
            plan = GpuPlan { containers: vec![Vec::new(); self.needs.len()], ..GpuPlan::default() };
            self.shares(within, &mut plan).map_err(|_| reason.clone())?;
            let taken = plan.containers.iter().flatten().fold(0, |mask, part| match part.slot() {
                Slot::Gpu(at) => mask | bit(at),
                _ => mask,
            });
            self.whole(within, taken, &mut plan).map_err(|_| reason)?;
        }
        self.migs(within, &mut plan)?;
        Ok(plan)
    }
}
