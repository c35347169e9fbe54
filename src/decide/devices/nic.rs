//! RDMA NICs of a pod: whole ones, shares by best fit, one virtual function of each where there are any; near the GPUs.

use super::exclusive::nics_to_blame;
use super::grant::Part;
use super::inventory::DeviceCommon;
use super::phases::{overlap, peak};
use super::pick::{Need, NicPlan, NicReach, PickInput, ShareSpread};
use super::place::{DevicePlace, DeviceSet, Level, NOWHERE, Slot, bit, bits, mask};
use super::reason::Reason;
use super::solve::{DeviceSearch, by_owner, solve};
use crate::pod::ContainerKind;
use baton_contract::hint::TopologyScope;

/// Where the GPUs are that the NICs of each container are to be near to.
struct Near {
    /// Places of each container's own GPUs and MIG devices.
    own: Vec<Vec<DevicePlace>>,
    /// Containers whose GPUs are not chosen yet.
    waiting: Vec<bool>,
    /// Places of all of the pod.
    pod: Vec<DevicePlace>,
}

impl Near {
    /// A container without GPUs is to be near those of the pod.
    fn of(&self, container: usize) -> &[DevicePlace] {
        match self.own.get(container) {
            Some(own) if !own.is_empty() => own,
            _ if self.waiting[container] => &[],
            _ => &self.pod,
        }
    }
}

/// One NIC of one container, or a share of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NicPiece {
    container: usize,
    /// Percent of a share; `None` for a whole NIC.
    share: Option<u16>,
}

impl PickInput<'_> {
    /// Chooses the pod's NICs for GPUs that lie in `gpus`, container by container.
    pub(super) fn nics(&self, gpus: &[Vec<Part>], reach: NicReach) -> Result<NicPlan, Reason> {
        if self.needs.iter().all(|need| need.nics == 0 && need.nic_share.is_none()) {
            return Ok(NicPlan { containers: vec![Vec::new(); self.needs.len()], distance: 0 });
        }
        let near = self.near(gpus);
        let scope = self.wishes.rdma.required_topology_scope;
        if matches!(scope, None | Some(TopologyScope::Node)) {
            return self.nics_within(DeviceSet::ALL, &near, reach);
        }
        self.nearest(&near, reach).ok_or_else(|| match self.nics_within(DeviceSet::ALL, &near, reach) {
            Err(reason) => reason,
            Ok(_) => {
                Reason::Scope { what: "NICs", scope: scope.unwrap_or(TopologyScope::Node), wanted: self.nics_wanted() }
            }
        })
    }

    /// [`Self::nics`] within the pod's reach, without a word about why there are none: that takes a search of its own.
    pub(super) fn nics_if_any(&self, gpus: &[Vec<Part>]) -> Option<NicPlan> {
        self.nearest(&self.near(gpus), self.nic_reach())
    }

    /// The nearest NICs within one of the parts of the node that the pod's scope allows.
    fn nearest(&self, near: &Near, reach: NicReach) -> Option<NicPlan> {
        let scopes = self.scopes(self.wishes.rdma.required_topology_scope).into_iter();
        let plans = scopes.filter_map(|within| {
            let usable = self.with_vf() & within.nics;
            self.plan_nics(&self.nic_pieces(usable).ok()?, usable, near, reach)
        });
        plans.min_by_key(|plan| plan.distance)
    }

    fn near(&self, gpus: &[Vec<Part>]) -> Near {
        let devices = self.pool.devices();
        let place = |part: &Part| devices.place(part.slot());
        let own: Vec<Vec<DevicePlace>> = gpus.iter().map(|parts| distinct(parts.iter().map(place))).collect();
        let wants = |need: &Need<'_>| need.whole > 0 || need.share.is_some() || need.mig.is_some();
        let waiting = |at: usize, need| wants(need) && own.get(at).is_none_or(Vec::is_empty);
        Near {
            waiting: self.needs.iter().enumerate().map(|(at, need)| waiting(at, need)).collect(),
            pod: distinct(own.iter().flatten().copied()),
            own,
        }
    }

    /// NICs that the pod holds at one time at most.
    pub(super) fn nics_wanted(&self) -> u32 {
        peak(&self.kinds, &self.needs.iter().map(Need::nic_count).collect::<Vec<_>>())
    }

    /// Usable NICs below the switch or root complex of `place`.
    pub(super) fn nics_near(&self, place: DevicePlace) -> u32 {
        let whole = self.needs.iter().any(|need| need.nics > 0);
        let usable = self.with_vf() & if whole { self.eligible.free_nics } else { self.eligible.nics };
        bits(usable).filter(|at| self.nic_place(*at).distance(place) <= 1).count() as u32
    }

    /// GPUs of the container are to be near NICs: its own, or those of the pod where no container has both.
    pub(super) fn has_nics_to_be_near(&self, container: usize) -> bool {
        let both =
            |need: &Need<'_>| need.nic_count() > 0 && (need.whole > 0 || need.share.is_some() || need.mig.is_some());
        self.joint_nics() && (self.needs[container].nic_count() > 0 || !self.needs.iter().any(both))
    }

    /// Steps from `place` to the nearest NICs that the container could have there, as many as it asks for (or one of the pod's);
    /// `None` where `SamePCIe` rules the place out. Other containers may want the same NICs.
    pub(super) fn steps_to_nics(&self, container: usize, place: DevicePlace) -> Option<u32> {
        if !self.has_nics_to_be_near(container) {
            return Some(0);
        }
        match &self.needs[container] {
            own if own.nic_count() > 0 => self.steps_to_nics_of(own, &[place]),
            // One that any container has will do.
            _ => {
                let others = self.needs.iter().filter(|need| need.nic_count() > 0);
                others.filter_map(|need| self.steps_to_nics_of(need, &[place])).min()
            }
        }
    }

    /// Least steps from the nearest of `places` to as many NICs as `need` asks for, each a NIC that it could have.
    pub(super) fn steps_to_nics_of(&self, need: &Need<'_>, places: &[DevicePlace]) -> Option<u32> {
        let share = need.nic_share.map_or(0, |(_, percent)| percent);
        let usable = self.with_vf() & if need.nics > 0 { self.eligible.free_nics } else { self.eligible.nics };
        let open = bits(usable).filter(|at| self.pool.nic_room(*at) >= share);
        let mut steps: Vec<u32> = open.map(|at| distance(self.nic_place(at), places)).collect();
        steps.sort_unstable();
        if self.strict() && steps.first().is_none_or(|nearest| *nearest > 1) {
            return None;
        }
        Some(steps.into_iter().take(need.nic_count() as usize).sum())
    }

    /// Near GPUs in these places there are as many NICs as the container asks for, whichever other container wants them.
    pub(super) fn has_enough_near(&self, container: usize, places: &[DevicePlace]) -> bool {
        let need = &self.needs[container];
        let usable = self.with_vf() & if need.nics > 0 { self.eligible.free_nics } else { self.eligible.nics };
        let near = bits(usable).filter(|at| distance(self.nic_place(*at), places) <= 1).count();
        near >= need.nic_count() as usize
    }

    fn nics_within(&self, within: DeviceSet, near: &Near, reach: NicReach) -> Result<NicPlan, Reason> {
        let usable = self.with_vf() & within.nics;
        let pieces = self.nic_pieces(usable)?;
        self.plan_nics(&pieces, usable, near, reach).ok_or_else(|| {
            // With room on NICs farther away, their distance is to blame.
            let farther = match reach {
                NicReach::SamePcie => self.place_nics(&pieces, usable, near, NicReach::Anywhere),
                NicReach::Anywhere => None,
            };
            match farther {
                Some(chosen) => self.too_far(&pieces, &chosen, near),
                None => self.no_nic_room(&pieces, usable),
            }
        })
    }

    fn plan_nics(&self, pieces: &[NicPiece], usable: u128, near: &Near, reach: NicReach) -> Option<NicPlan> {
        if reach == NicReach::SamePcie && self.too_many_places(near) {
            return None;
        }
        let chosen = self.place_nics(pieces, usable, near, reach)?;
        let nics = &self.pool.devices().nics;
        let mut plan = NicPlan { containers: vec![Vec::new(); self.needs.len()], distance: 0 };
        for (piece, at) in pieces.iter().zip(chosen) {
            let nic = &nics[usize::from(at)];
            plan.distance += distance(nic.common.place, near.of(piece.container));
            let vfs = self.free_vf(at).map_or(0, bit);
            let part = Part::Nic { nic: at, percent: piece.share.unwrap_or(nic.percent), vfs };
            plan.containers[piece.container].push(part);
        }
        Some(plan)
    }

    /// Every NIC and share that is asked for: whole NICs first, of containers that stay before those of plain init containers,
    /// which take what the others hold later; of these, containers with GPUs of their own first.
    fn nic_pieces(&self, usable: u128) -> Result<Vec<NicPiece>, Reason> {
        let count = peak(&self.kinds, &self.needs.iter().map(|need| need.nics).collect::<Vec<_>>());
        let free = self.eligible.free_nics & usable & !self.barred.whole.nics;
        let total = self.pool.summary().nics;
        if free.count_ones() < count {
            if self.eligible.free_nics.count_ones() >= count
                && self.with_vf() & self.eligible.free_nics != self.eligible.free_nics
            {
                return Err(Reason::NoVf);
            }
            let few = Reason::FewNics { wanted: count, free: free.count_ones(), total };
            return Err(nics_to_blame(self.pool, self.wishes).unwrap_or(few));
        }
        let mut pieces = Vec::new();
        for (container, need) in self.needs.iter().enumerate() {
            pieces.extend((0..need.nics).map(|_| NicPiece { container, share: None }));
        }
        let alone = |need: &Need<'_>| need.whole == 0 && need.share.is_none() && need.mig.is_none();
        pieces.sort_by_key(|piece| {
            (self.kinds[piece.container] == ContainerKind::Init, alone(&self.needs[piece.container]), piece.container)
        });
        let whole = pieces.len();
        for (container, need) in self.needs.iter().enumerate() {
            if let Some((count, percent)) = need.nic_share {
                // One container's shares lie on as many NICs; checked before a huge count is spelled out.
                if count > total {
                    let free = (self.eligible.nics & usable).count_ones();
                    return Err(Reason::FewNics { wanted: count, free, total });
                }
                pieces.extend((0..count).map(|_| NicPiece { container, share: Some(percent) }));
            }
        }
        pieces[whole..].sort_by_key(|piece| self.kinds[piece.container] == ContainerKind::Init);
        Ok(pieces)
    }

    /// A NIC for each piece.
    fn place_nics(&self, pieces: &[NicPiece], usable: u128, near: &Near, reach: NicReach) -> Option<Vec<u8>> {
        self.looked.set(self.looked.get() + 1);
        // As for GPU shares: the kubelet hands on what an init container had.
        let is_left = |piece: &NicPiece| piece.share.is_some() && self.kinds[piece.container] == ContainerKind::Init;
        let percents =
            self.needs.iter().map(|need| need.nic_share.map_or(0, |(count, percent)| count * u32::from(percent)));
        let one_carries_all = || peak(&self.kinds, &percents.collect::<Vec<_>>()) <= 100;
        let on_one = pieces.iter().any(is_left) && one_carries_all();
        let on_one = on_one.then(|| self.search_nics(pieces, usable, near, reach, ShareSpread::OneDevice));
        on_one.flatten().or_else(|| self.search_nics(pieces, usable, near, reach, ShareSpread::AnyDevice))
    }

    fn search_nics(
        &self,
        pieces: &[NicPiece],
        usable: u128,
        near: &Near,
        reach: NicReach,
        spread: ShareSpread,
    ) -> Option<Vec<u8>> {
        let first_share = pieces.iter().position(|piece| piece.share.is_some()).unwrap_or(pieces.len());
        let most = peak(&self.kinds, &self.needs.iter().map(|need| need.nics).collect::<Vec<_>>());
        let near_enough = |container: usize, nic: u8| {
            let places = near.of(container);
            places.is_empty() || distance(self.nic_place(nic), places) <= 1
        };
        let options = |chosen: &[u8]| {
            let mut options = if chosen.len() < first_share {
                self.whole_nic_options(pieces, chosen, usable, near, most)
            } else {
                self.nic_share_options(pieces, chosen, usable, near)
            };
            if let Some(one) = chosen.get(first_share).filter(|_| spread == ShareSpread::OneDevice) {
                options.retain(|nic| nic == one);
            }
            if reach == NicReach::SamePcie {
                options.retain(|nic| near_enough(pieces[chosen.len()].container, *nic));
            }
            options
        };
        let holds = |chosen: &[u8]| reach == NicReach::Anywhere || self.same_pcie(near, pieces, chosen);
        let state = |chosen: &[u8]| by_owner(pieces, chosen);
        let search = DeviceSearch { pieces: pieces.len(), first: &[], options: &options, holds: &holds, state: &state };
        solve(&search, &self.tries)
    }

    /// NICs for the next whole one, best first: near its container's GPUs; then evenly over switches and root complexes, as the
    /// GPUs are. Of equal NICs, the first.
    fn whole_nic_options(&self, pieces: &[NicPiece], chosen: &[u8], usable: u128, near: &Near, most: u32) -> Vec<u8> {
        let container = pieces[chosen.len()].container;
        let place = |at: u8| self.nic_place(at);
        let held = || pieces.iter().zip(chosen.iter().copied());
        let taken = mask(held().map(|(_, at)| at));
        let busy = held().filter(|(piece, _)| overlap(&self.kinds, piece.container, container));
        let busy = mask(busy.map(|(_, at)| at));
        // Not more than the pod holds at one time.
        let open = if taken.count_ones() < most { u128::MAX } else { taken };
        let candidates = self.eligible.free_nics & usable & !self.barred.whole.nics & open & !busy;
        let near = near.of(container);
        let mut options: Vec<_> = bits(candidates)
            .map(|at| {
                let beside = |level: Level| {
                    let own = held().filter(|(piece, _)| piece.container == container);
                    own.filter(|(_, other)| place(*other).at(level) == place(at).at(level)).count()
                };
                let crowd = if near.is_empty() { (0, 0) } else { (beside(Level::Switch), beside(Level::Root)) };
                // Without GPUs to be near, NICs near each other.
                let apart: u32 = if near.is_empty() {
                    chosen.iter().map(|other| place(*other).distance(place(at))).sum()
                } else {
                    0
                };
                let fresh = taken & bit(at) == 0;
                let minor = self.pool.devices().minor(Slot::Nic(at));
                (distance(place(at), near), crowd.0 > 0, crowd.1, crowd.0, apart, fresh, minor, at)
            })
            .collect();
        options.sort_unstable();
        let mut seen: Vec<DevicePlace> = Vec::new();
        options.retain(|option| {
            let like = option.5 && seen.contains(&place(option.7));
            if option.5 {
                seen.push(place(option.7));
            }
            !like
        });
        options.into_iter().map(|option| option.7).collect()
    }

    /// NICs for the next share, best first.
    fn nic_share_options(&self, pieces: &[NicPiece], chosen: &[u8], usable: u128, near: &Near) -> Vec<u8> {
        let nics = &self.pool.devices().nics;
        let piece = pieces[chosen.len()];
        let Some(percent) = piece.share else { return Vec::new() };
        let held = || pieces.iter().zip(chosen.iter().copied());
        let open = self.eligible.nics & usable & !self.barred.for_share_of(piece.container).nics;
        let mut fits: Vec<_> = bits(open)
            .filter_map(|nic| {
                let on_it = held().filter(|(_, on)| *on == nic).map(|(other, _)| other);
                let runs_too = |other: &&NicPiece| overlap(&self.kinds, other.container, piece.container);
                let (beside, apart): (Vec<&NicPiece>, Vec<&NicPiece>) = on_it.partition(runs_too);
                if beside.iter().any(|other| other.share.is_none() || other.container == piece.container) {
                    return None;
                }
                let taken: u16 = beside.iter().filter_map(|other| other.share).sum();
                let left = self.pool.nic_room(nic).checked_sub(taken)?.checked_sub(percent)?;
                let foreign = apart.is_empty();
                let fresh = foreign && self.pool.used_nic(nic).holders == 0 && taken == 0;
                let DeviceCommon { minor, place, .. } = &nics[usize::from(nic)].common;
                let far = distance(*place, near.of(piece.container));
                let first = if self.wishes.joint.is_some() { far } else { 0 };
                Some((first, foreign, fresh, left, far, *minor, nic))
            })
            .collect();
        fits.sort_unstable();
        fits.into_iter().map(|fit| fit.6).collect()
    }

    fn no_nic_room(&self, pieces: &[NicPiece], usable: u128) -> Reason {
        if let Some(reason) = nics_to_blame(self.pool, self.wishes) {
            return reason;
        }
        if self.eligible.nics != 0 && self.with_vf() & self.eligible.nics == 0 {
            return Reason::NoVf;
        }
        let percent = pieces.iter().filter_map(|piece| piece.share).map(u32::from).max().unwrap_or(0);
        let most = bits(self.eligible.nics & usable).map(|at| u32::from(self.pool.nic_room(at))).max().unwrap_or(0);
        Reason::NoNicRoom { percent, most }
    }

    fn nic_place(&self, at: u8) -> DevicePlace {
        self.pool.devices().place(Slot::Nic(at))
    }

    /// NICs that need no virtual function, or have one to give.
    fn with_vf(&self) -> u128 {
        let nics = &self.pool.devices().nics;
        let must = self.wishes.rdma.vf_selector.is_some();
        let gives = |at: &u8| {
            let none = nics[usize::from(*at)].vfs.is_empty();
            // A NIC that got its functions while a pod held it as one is not divided before that pod has gone.
            (none && !must) || (self.pool.used_nic(*at).undivided == 0 && self.free_vf(*at).is_some())
        };
        mask(bits(self.eligible.nics).filter(gives))
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

    /// Some container's GPUs lie in more places than it has NICs: `SamePCIe` cannot hold.
    fn too_many_places(&self, near: &Near) -> bool {
        near.own.iter().enumerate().any(|(container, own)| self.too_many(container, own))
    }

    pub(super) fn too_many(&self, container: usize, own: &[DevicePlace]) -> bool {
        let count = |level| {
            let mut groups: Vec<u8> = own.iter().map(|place| place.at(level)).collect();
            groups.sort_unstable();
            groups.dedup();
            groups.len() as u32
        };
        let nics = self.needs[container].nic_count();
        nics > 0 && count(Level::Switch) > nics && count(Level::Root) > nics
    }

    /// `SamePCIe`: the switches of a container's GPUs are the switches of its NICs, or their root complexes are the same. NICs
    /// of containers without GPUs lie where GPUs of the pod are, and where all of them are when no container has both.
    fn same_pcie(&self, near: &Near, pieces: &[NicPiece], chosen: &[u8]) -> bool {
        let covers = |of: &[DevicePlace], by: &[DevicePlace], level: Level| {
            let known = |place: &DevicePlace| place.at(level) != NOWHERE;
            of.iter().all(|place| known(place) && by.iter().any(|other| other.at(level) == place.at(level)))
        };
        let same = |one: &[DevicePlace], other: &[DevicePlace]| {
            [Level::Switch, Level::Root].into_iter().any(|level| covers(one, other, level) && covers(other, one, level))
        };
        let (mut without_gpus, mut both) = (Vec::new(), false);
        for container in 0..self.needs.len() {
            let own = pieces.iter().zip(chosen).filter(|(piece, _)| piece.container == container);
            let places: Vec<DevicePlace> = own.map(|(_, at)| self.nic_place(*at)).collect();
            match near.own.get(container) {
                _ if places.is_empty() => {}
                Some(gpus) if !gpus.is_empty() => {
                    both = true;
                    if !same(gpus, &places) {
                        return false;
                    }
                }
                _ if near.waiting[container] => both = true,
                _ => without_gpus.extend(places),
            }
        }
        if without_gpus.is_empty() || near.pod.is_empty() || near.waiting.contains(&true) {
            return true;
        }
        let near_some = |level| covers(&without_gpus, &near.pod, level);
        if both { near_some(Level::Switch) || near_some(Level::Root) } else { same(&near.pod, &without_gpus) }
    }

    /// The refusal when NICs are there, but not near enough.
    fn too_far(&self, pieces: &[NicPiece], chosen: &[u8], near: &Near) -> Reason {
        let is_close = |(piece, at): &(&NicPiece, &u8)| {
            near.of(piece.container).iter().any(|gpu| gpu.distance(self.nic_place(**at)) <= 1)
        };
        let close = pieces.iter().zip(chosen).filter(is_close).count() as u32;
        let wanted = self.nics_wanted();
        Reason::NotNear { wanted, near: close.min(wanted.saturating_sub(1)) }
    }
}

fn distinct(places: impl Iterator<Item = DevicePlace>) -> Vec<DevicePlace> {
    let mut places: Vec<DevicePlace> = places.collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Steps from a NIC to the nearest GPU; 0 when there is none to be near to.
fn distance(nic: DevicePlace, near: &[DevicePlace]) -> u32 {
    near.iter().map(|gpu| gpu.distance(nic)).min().unwrap_or(0)
}
