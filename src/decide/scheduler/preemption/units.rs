//! Pods that fall together: a gang never keeps fewer members than its minimum. Its surplus members leave first and by
//! themselves; one more, and all of them leave. A TYJob is a gang of its leader and the workers that it needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::PodKey;
use crate::contract::gang::{GangId, MatchPolicy};
use crate::contract::tyjob::{Role, Stage, WorkerEnd, keys};
use crate::decide::tyjob::placement::JobFacts;
use crate::decide::world::gangs::{Gang, MemberState};
use crate::decide::world::{Place, Pod, PodId, World};

/// Names one set of pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitId {
    Gang(GangId),
    Job(PodKey),
}

/// One set of pods, as far as a preemptor may touch it.
#[derive(Debug, Clone, Default)]
pub struct Unit {
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
pub struct Units<'a> {
    /// Only pods below this priority may leave.
    below: i32,
    /// Pods that have been chosen already, and are not there for anybody.
    gone: &'a BTreeSet<PodId>,
    known: BTreeMap<UnitId, Unit>,
}

impl<'a> Units<'a> {
    /// No unit is known yet; only pods below this priority may leave, and pods in `gone` are treated as gone.
    pub fn new(below: i32, gone: &'a BTreeSet<PodId>) -> Self {
        Self { below, gone, known: BTreeMap::new() }
    }

    /// Notes the unit of a pod, and names it. `None` for a pod that may leave by itself.
    pub fn of(&mut self, world: &World, id: PodId) -> Option<UnitId> {
        let job = world.pod(id).and_then(|pod| job_of(world, pod));
        let gang = || world.gangs().gang_of(id).filter(|gang| gang.config().min.is_some_and(|min| min > 0));
        let name = match job {
            Some(job) => UnitId::Job(job.job.key.clone()),
            None => UnitId::Gang(gang()?.id().clone()),
        };
        if !self.known.contains_key(&name) {
            let unit = match job {
                Some(job) => self.job(world, job),
                None => self.gang(world, gang()?),
            };
            self.known.insert(name.clone(), unit);
        }
        // Whoever leaves already is counted among nobody.
        self.known[&name].members.contains(&id).then_some(name)
    }

    /// A unit that was noted.
    pub fn get(&self, id: &UnitId) -> &Unit {
        &self.known[id]
    }

    fn movable(&self, world: &World, members: &[PodId]) -> bool {
        members.iter().all(|id| world.pod(*id).is_some_and(|pod| pod.facts.spec.priority < self.below))
    }

    /// The leader and as many workers as the job needs; workers that have ended well count.
    fn job(&self, world: &World, job: &JobFacts) -> Unit {
        let there = |pod: &&Pod| {
            pod.node().is_some()
                && pod.facts.handoff.deleting.is_none()
                && !self.gone.contains(&pod.id)
                && job_of(world, pod).is_some_and(|other| other.job == job.job)
        };
        let pods: Vec<&Pod> = world.pods().filter(there).collect();
        let leads = |pod: &&&Pod| pod.facts.spec.labels.get(keys::ROLE).is_some_and(|role| role == Role::Leader.word());
        let leader = pods.iter().find(leads).map(|pod| pod.id);
        let bound = pods.iter().filter(|pod| matches!(pod.place, Place::Bound(_)) && Some(pod.id) != leader).count();
        let succeeded = job.ended.values().filter(|end| matches!(end, WorkerEnd::Succeeded)).count();
        let min = job.spec.as_ref().map_or(usize::MAX, |spec| usize::try_from(spec.min_workers).unwrap_or(0));
        let members: Vec<PodId> = pods.iter().map(|pod| pod.id).collect();
        let movable = self.movable(world, &members);
        Unit { members, surplus: (bound + succeeded).saturating_sub(min).min(bound), movable, leader }
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
        let movable = self.movable(world, &members);
        Unit { members, surplus: (bound + succeeded).saturating_sub(min).min(bound), movable, leader: None }
    }
}

/// The job that a pod belongs to, where the job is known and the same that made the pod. One that has ended needs nobody.
fn job_of<'a>(world: &'a World, pod: &Pod) -> Option<&'a JobFacts> {
    let claim = pod.facts.spec.job.as_ref()?;
    let job = world.job(&PodKey::new(&pod.key().namespace, &claim.name))?;
    let ended = job.stage.is_some_and(Stage::is_terminal);
    (*job.job.uid == *claim.uid && !ended).then_some(&**job)
}
