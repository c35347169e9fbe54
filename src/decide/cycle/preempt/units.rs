//! Pods that fall together: a gang never keeps fewer members than its minimum. Its surplus members leave first and by
//! themselves; one more, and all of them leave.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::gang::{GangId, MatchPolicy};
use crate::decide::gang::{Gang, MemberState};
use crate::decide::world::{PodId, World};

/// One set of pods, as far as a preemptor may touch it.
#[derive(Debug, Clone, Default)]
pub(super) struct Unit {
    /// Every member with room, wherever it is; whoever has been chosen already is left out.
    pub members: Vec<PodId>,
    /// So many may leave while the others stay.
    pub surplus: usize,
    /// All of them may leave: nobody is as important as the preemptor.
    pub movable: bool,
    /// The member that never leaves alone.
    pub leader: Option<PodId>,
}

/// The units of one dry run.
pub(super) struct Units<'a> {
    /// Only pods below this priority may leave.
    below: i32,
    /// Pods that have been chosen already, and are not there for anybody.
    gone: &'a BTreeSet<PodId>,
    gangs: BTreeMap<GangId, Unit>,
}

impl<'a> Units<'a> {
    pub fn new(below: i32, gone: &'a BTreeSet<PodId>) -> Self {
        Self { below, gone, gangs: BTreeMap::new() }
    }

    /// Notes the unit of a pod, and names it. `None` for a pod that may leave by itself.
    pub fn of(&mut self, world: &World, id: PodId) -> Option<GangId> {
        let gang = world.gangs().gang_of(id).filter(|gang| gang.config().min.is_some_and(|min| min > 0))?;
        if !self.gangs.contains_key(gang.id()) {
            let unit = self.gang(world, gang);
            self.gangs.insert(gang.id().clone(), unit);
        }
        // Whoever leaves already is counted among nobody.
        self.gangs[gang.id()].members.contains(&id).then(|| gang.id().clone())
    }

    /// A unit that was noted.
    pub fn get(&self, id: &GangId) -> &Unit {
        &self.gangs[id]
    }

    fn gang(&self, world: &World, gang: &Gang) -> Unit {
        let there = |state: MemberState| state.is_bound() || state == MemberState::Reserved;
        let with_room = gang.members().filter(|member| there(member.state) && !self.gone.contains(&member.pod));
        let members: Vec<PodId> = with_room.map(|member| member.pod).collect();
        let bound = gang.members().filter(|member| member.state.is_bound() && !self.gone.contains(&member.pod)).count();
        let succeeded = match gang.config().policy {
            MatchPolicy::WaitingRunningSucceed => gang.counts().succeeded as usize,
            _ => 0,
        };
        let min = gang.config().min.unwrap_or(0) as usize;
        let movable = members.iter().all(|id| world.pod(*id).is_some_and(|pod| pod.facts.spec.priority < self.below));
        Unit { members, surplus: (bound + succeeded).saturating_sub(min).min(bound), movable, leader: None }
    }
}
