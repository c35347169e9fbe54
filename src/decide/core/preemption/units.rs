//! Pods that are preempted together: a gang never keeps fewer members than its minimum. Surplus members leave first, each by
//! itself; when one more has to leave, all of them do. A TYJob is a gang of its leader and the workers that it needs.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::gangs::{Gang, Member, MemberState};
use crate::world::tyjob_facts::JobFacts;
use crate::world::{Place, Pod, PodId, World};
use baton_contract::PodKey;
use baton_contract::gang::{GangId, MatchPolicy};
use baton_contract::tyjob::{Role, Stage, WorkerEnd, keys};

/// Names one set of pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitId {
    Gang(GangId),
    Job(PodKey),
}

/// One set of pods, and what a preemptor may do to it.
#[derive(Debug, Clone, Default)]
pub struct Unit {
    /// Every member with a node, without those that are victims already.
    pub members: Vec<PodId>,
    /// How many may leave while the others stay.
    pub surplus: usize,
    /// All of them may leave: each has a lower priority than the preemptor.
    pub movable: bool,
    /// The member that never leaves alone.
    pub leader: Option<PodId>,
}

/// The units of one dry run.
pub struct Units<'a> {
    /// Only pods below this priority may leave.
    below: i32,
    /// Pods that are victims already, and belong to no unit.
    gone: &'a BTreeSet<PodId>,
    known: BTreeMap<UnitId, Unit>,
}

impl<'a> Units<'a> {
    /// No unit is known yet; only pods below this priority may leave, and pods in `gone` are treated as gone.
    pub fn new(below: i32, gone: &'a BTreeSet<PodId>) -> Self {
        Self { below, gone, known: BTreeMap::new() }
    }

    /// Pods that are victims already.
    pub const fn gone(&self) -> &'a BTreeSet<PodId> {
        self.gone
    }

    /// The unit of a pod, which [`Units::get`] returns from now on. `None` for a pod that may leave by itself.
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
        // A terminating pod belongs to no unit.
        self.known[&name].members.contains(&id).then_some(name)
    }

    /// A unit that [`Units::of`] has returned.
    pub fn get(&self, id: &UnitId) -> &Unit {
        &self.known[id]
    }

    /// `bound` of the members may be surplus; with the succeeded ones, at least `min` must be left.
    fn unit(&self, world: &World, members: Vec<PodId>, (bound, succeeded, min): (usize, usize, usize)) -> Unit {
        let lower = |id: &PodId| world.pod(*id).is_some_and(|pod| pod.facts.spec.priority < self.below);
        let movable = members.iter().all(lower);
        Unit { members, surplus: (bound + succeeded).saturating_sub(min).min(bound), movable, leader: None }
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
        let members = pods.iter().map(|pod| pod.id).collect();
        Unit { leader, ..self.unit(world, members, (bound, succeeded, min)) }
    }

    fn gang(&self, world: &World, gang: &Gang) -> Unit {
        let there = || gang.members().filter(|member| member.state.has_node() && !self.gone.contains(&member.pod));
        let bound = there().filter(|member| member.state.is_bound()).count();
        // A gang whose rule ends with its start ends member by member: what they have done is not lost with the others. Those of an earlier
        // run have done nothing for this one.
        let of_this_run =
            |member: &&Member| member.committed.is_some_and(|commit| gang.commits().contains_key(&commit));
        let ended = || gang.members().filter(|member| member.state == MemberState::Succeeded);
        let succeeded = match gang.config().policy {
            MatchPolicy::WaitingRunningSucceed => gang.counts().succeeded as usize,
            MatchPolicy::OnceSatisfied => ended().filter(of_this_run).count(),
            MatchPolicy::OnlyWaiting | MatchPolicy::WaitingAndRunning => 0,
        };
        let min = gang.config().min.unwrap_or(0) as usize;
        self.unit(world, there().map(|member| member.pod).collect(), (bound, succeeded, min))
    }
}

/// The job that a pod belongs to, where the job is known and made the pod. A job that has ended needs no pods.
fn job_of<'a>(world: &'a World, pod: &Pod) -> Option<&'a JobFacts> {
    let claim = pod.facts.spec.job.as_ref()?;
    let job = world.job(&PodKey::new(&pod.key().namespace, &claim.name))?;
    let ended = job.stage.is_some_and(Stage::is_terminal);
    (*job.job.uid == *claim.uid && !ended).then_some(&**job)
}
