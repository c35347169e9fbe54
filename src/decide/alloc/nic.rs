//! RDMA NICs of a pod: whole ones, shares by best fit, one virtual function of each where there are any; near the GPUs.

use super::exclusive::blame;
use super::grant::Part;
use super::phases::{merge, overlap, peak, split};
use super::pick::{Choice, Within};
use super::place::{Level, Place, bit, bits};
use super::reason::Reason;
use super::solve::solve;
use crate::contract::hint::TopologyScope;
use crate::decide::pod::ContainerKind;

/// NICs per container, and how far they are from the GPUs in all.
#[derive(Debug, Clone, Default)]
pub(super) struct NicPlan {
    pub containers: Vec<Vec<Part>>,
    pub distance: u32,
}

impl Choice<'_> {
    /// Chooses the pod's NICs for GPUs at `near`. With `strict`, NICs and GPUs must lie below the same switches, or below the
    /// same root complexes.
    pub(super) fn nics(&self, near: &[Place], strict: bool) -> Result<NicPlan, Reason> {
        if self.needs.iter().all(|need| need.nics == 0 && need.nic_share.is_none()) {
            return Ok(NicPlan { containers: vec![Vec::new(); self.needs.len()], distance: 0 });
        }
        let scope = self.wishes.rdma.required_topology_scope;
        let everywhere = Within { gpus: u128::MAX, migs: u128::MAX, nics: u128::MAX };
        if matches!(scope, None | Some(TopologyScope::Node)) {
            return self.nics_within(everywhere, near, strict);
        }
        let plans = self.scopes(scope).into_iter().filter_map(|within| self.nics_within(within, near, strict).ok());
        plans.min_by_key(|plan| plan.distance).ok_or_else(|| match self.nics_within(everywhere, near, strict) {
            Err(reason) => reason,
            Ok(_) => {
                Reason::Scope { what: "NICs", scope: scope.unwrap_or(TopologyScope::Node), wanted: self.nics_wanted() }
            }
        })
    }

    /// NICs that the pod holds at one time at most.
    pub(super) fn nics_wanted(&self) -> u32 {
        let count = |need: &super::need::Need<'_>| need.nics + need.nic_share.map_or(0, |(count, _)| count);
        peak(&self.kinds, &self.needs.iter().map(count).collect::<Vec<_>>())
    }

    /// Usable NICs below the switch or root complex of `place`.
    pub(super) fn nics_near(&self, place: Place) -> u32 {
        let nics = &self.pool.devices().nics;
        let whole = self.needs.iter().any(|need| need.nics > 0);
        let usable = self.with_vf() & if whole { self.eligible.free_nics } else { self.eligible.nics };
        bits(usable).filter(|at| nics[usize::from(*at)].place.distance(place) <= 1).count() as u32
    }

    fn nics_within(&self, within: Within, near: &[Place], strict: bool) -> Result<NicPlan, Reason> {
        let mut plan = NicPlan { containers: vec![Vec::new(); self.needs.len()], distance: 0 };
        let usable = self.with_vf() & within.nics;
        let whole = self.whole_nics(usable, near, &mut plan)?;
        self.nic_shares(usable, whole, near, &mut plan)?;
        if strict {
            self.same_pcie(near, &plan)?;
        }
        for part in plan.containers.iter_mut().flatten() {
            if let Part::Nic { nic, vfs, .. } = part {
                *vfs = self.free_vf(*nic).map_or(0, bit);
            }
        }
        Ok(plan)
    }

    fn whole_nics(&self, usable: u128, near: &[Place], plan: &mut NicPlan) -> Result<u128, Reason> {
        let counts: Vec<u32> = self.needs.iter().map(|need| need.nics).collect();
        let count = peak(&self.kinds, &counts);
        let mut left = self.eligible.free_nics & usable & !self.barred.nics;
        if left.count_ones() < count {
            if self.eligible.free_nics.count_ones() >= count
                && self.with_vf() & self.eligible.free_nics != self.eligible.free_nics
            {
                return Err(Reason::NoVf);
            }
            let (free, total) = (left.count_ones(), self.pool.summary().nics);
            return Err(blame(self.pool, self.wishes, false).unwrap_or(Reason::FewNics { wanted: count, free, total }));
        }
        let nics = &self.pool.devices().nics;
        let mut chosen: Vec<u8> = Vec::with_capacity(count as usize);
        while (chosen.len() as u32) < count {
            // Near first; then evenly over switches and root complexes, as the GPUs are.
            let Some(next) = bits(left).min_by_key(|at| {
                let place = nics[usize::from(*at)].place;
                let beside = |level: Level| {
                    chosen.iter().filter(|c| nics[usize::from(**c)].place.at(level) == place.at(level)).count()
                };
                let crowd = if near.is_empty() { (0, 0) } else { (beside(Level::Switch), beside(Level::Root)) };
                // Without GPUs to be near, NICs near each other.
                let apart: u32 = if near.is_empty() {
                    chosen.iter().map(|c| nics[usize::from(*c)].place.distance(place)).sum()
                } else {
                    0
                };
                (distance(place, near), crowd.0 > 0, crowd.1, crowd.0, apart, nics[usize::from(*at)].minor, *at)
            }) else {
                break;
            };
            left &= !bit(next);
            plan.distance += distance(nics[usize::from(next)].place, near);
            chosen.push(next);
        }
        // In the order of the GPUs that they are near to, so that containers with GPUs and NICs get neighbours.
        let beside = |at: u8| near.iter().position(|gpu| nics[usize::from(at)].place.distance(*gpu) == 0);
        chosen.sort_by_key(|at| (beside(*at).unwrap_or(usize::MAX), nics[usize::from(*at)].minor, *at));
        for (parts, own) in plan.containers.iter_mut().zip(split(&self.kinds, &counts, &chosen)) {
            parts.extend(own.into_iter().map(|nic| Part::Nic { nic, percent: nics[usize::from(nic)].percent, vfs: 0 }));
        }
        Ok(chosen.iter().fold(0, |mask, at| mask | bit(*at)))
    }

    fn nic_shares(&self, usable: u128, whole: u128, near: &[Place], plan: &mut NicPlan) -> Result<(), Reason> {
        let mut pieces: Vec<(usize, u16)> = Vec::new();
        for (container, need) in self.needs.iter().enumerate() {
            if let Some((count, percent)) = need.nic_share {
                // One container's shares lie on as many NICs; checked before a huge count is spelled out.
                let total = self.pool.summary().nics;
                if count > total {
                    let free = (self.eligible.nics & usable).count_ones();
                    return Err(Reason::FewNics { wanted: count, free, total });
                }
                pieces.extend((0..count).map(|_| (container, percent)));
            }
        }
        if pieces.is_empty() {
            return Ok(());
        }
        let nics = &self.pool.devices().nics;
        let whole_plan = plan.containers.clone();
        let idle = |nic: u8, container: usize| {
            whole_plan.iter().enumerate().all(|(other, parts)| {
                !overlap(&self.kinds, other, container)
                    || !parts.iter().any(|part| matches!(part, Part::Nic { nic: held, .. } if *held == nic))
            })
        };
        let options = |pieces: &[(usize, u16)], chosen: &[u8]| {
            let (container, percent) = pieces[chosen.len()];
            let mut fits: Vec<_> = bits(((self.eligible.nics & usable) | whole) & !self.barred.nics_for(container))
                .filter(|nic| whole & bit(*nic) == 0 || idle(*nic, container))
                .filter(|nic| !pieces.iter().zip(chosen).any(|((c, _), on)| on == nic && *c == container))
                .filter_map(|nic| {
                    let on_it = pieces.iter().zip(chosen).filter(|(_, on)| **on == nic);
                    let taken: u16 = on_it.map(|((_, percent), _)| *percent).sum();
                    let left = self.pool.nic_room(nic).checked_sub(taken)?.checked_sub(percent)?;
                    let foreign = whole & bit(nic) == 0;
                    let fresh = foreign && self.pool.used_nic(nic).holders == 0 && taken == 0;
                    let device = &nics[usize::from(nic)];
                    let far = distance(device.place, near);
                    let first = if self.wishes.joint.is_some() { far } else { 0 };
                    Some((first, foreign, fresh, left, far, device.minor, nic))
                })
                .collect();
            fits.sort_unstable();
            fits.into_iter().map(|fit| fit.6).collect::<Vec<u8>>()
        };
        let together = pieces.iter().any(|(container, _)| self.kinds[*container] == ContainerKind::Init);
        let placed = if together {
            // As for GPU shares: what a finished init container held may go to any later container.
            let fits = |nic: &u8| {
                let mut containers = vec![Vec::new(); self.kinds.len()];
                for (container, percent) in &pieces {
                    containers[*container].push(Part::Nic { nic: *nic, percent: *percent, vfs: 0 });
                }
                let most = merge(&self.kinds, &containers);
                let room = self.pool.nic_room(*nic);
                let idle = whole & bit(*nic) == 0 || pieces.iter().all(|(container, _)| idle(*nic, *container));
                idle && most.iter().all(|part| matches!(part, Part::Nic { percent, .. } if *percent <= room))
            };
            let single =
                pieces.iter().enumerate().all(|(at, (c, _))| !pieces[..at].iter().any(|(other, _)| other == c));
            let found = options(&pieces, &[]).into_iter().find(fits).filter(|_| single);
            found.map(|nic| vec![nic; pieces.len()])
        } else {
            solve(pieces.len(), &|chosen| options(&pieces, chosen))
        };
        let Some(placed) = placed else { return Err(self.no_nic_room(&pieces, usable)) };
        for ((container, percent), nic) in pieces.iter().zip(&placed) {
            plan.distance += distance(nics[usize::from(*nic)].place, near);
            plan.containers[*container].push(Part::Nic { nic: *nic, percent: *percent, vfs: 0 });
        }
        Ok(())
    }

    fn no_nic_room(&self, pieces: &[(usize, u16)], usable: u128) -> Reason {
        if let Some(reason) = blame(self.pool, self.wishes, false) {
            return reason;
        }
        if self.eligible.nics != 0 && self.with_vf() & self.eligible.nics == 0 {
            return Reason::NoVf;
        }
        let percent = pieces.iter().map(|(_, percent)| u32::from(*percent)).max().unwrap_or(0);
        let most = bits(self.eligible.nics & usable).map(|at| u32::from(self.pool.nic_room(at))).max().unwrap_or(0);
        Reason::NoNicRoom { percent, most }
    }

    /// NICs that need no virtual function, or have one to give.
    fn with_vf(&self) -> u128 {
        let nics = &self.pool.devices().nics;
        let must = self.wishes.rdma.vf_selector.is_some();
        let gives = |at: &u8| {
            let none = nics[usize::from(*at)].vfs.is_empty();
            (none && !must) || self.free_vf(*at).is_some()
        };
        bits(self.eligible.nics).filter(gives).fold(0, |mask, at| mask | bit(at))
    }

    /// The free virtual function of lowest address that matches, by number below its NIC.
    fn free_vf(&self, nic: u8) -> Option<u8> {
        let taken = self.pool.used_nic(nic).vfs;
        let vfs = &self.pool.devices().nics[usize::from(nic)].vfs;
        let selector = self.wishes.rdma.vf_selector.as_ref();
        let free = (0u8..).zip(vfs.iter()).filter(|(at, vf)| {
            taken & bit(*at) == 0 && vf.listed && selector.is_none_or(|selector| selector.matches(&vf.labels))
        });
        free.min_by(|a, b| a.1.bus_id.cmp(&b.1.bus_id)).map(|(at, _)| at)
    }

    /// `SamePCIe`: the switches of the GPUs are the switches of the NICs, or their root complexes are the same.
    fn same_pcie(&self, near: &[Place], plan: &NicPlan) -> Result<(), Reason> {
        let nics = &self.pool.devices().nics;
        let places: Vec<Place> = plan
            .containers
            .iter()
            .flatten()
            .filter_map(|part| match part {
                Part::Nic { nic, .. } => Some(nics[usize::from(*nic)].place),
                _ => None,
            })
            .collect();
        let covers = |of: &[Place], by: &[Place], level: Level| {
            let known = |place: &Place| place.at(level) != super::place::NOWHERE;
            of.iter().all(|place| known(place) && by.iter().any(|other| other.at(level) == place.at(level)))
        };
        let same = |level| covers(near, &places, level) && covers(&places, near, level);
        if same(Level::Switch) || same(Level::Root) {
            return Ok(());
        }
        let close = places.iter().filter(|place| near.iter().any(|gpu| gpu.distance(**place) <= 1)).count() as u32;
        let wanted = self.nics_wanted();
        Err(Reason::NotNear { wanted, near: close.min(wanted.saturating_sub(1)) })
    }
}

/// Steps from a NIC to the nearest GPU; 0 when there is none to be near to.
fn distance(nic: Place, near: &[Place]) -> u32 {
    near.iter().map(|gpu| gpu.distance(nic)).min().unwrap_or(0)
}
