//! A TYJob as the scheduler keeps it: what placement reads of the object, and what a pod of each template would ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::world::PodFacts;
use baton_contract::gang::{BadValue, TopologySpec};
use baton_contract::quota::PodAsk;
use baton_contract::tyjob::{Allocation, BasicPolicy, JobQueuePolicy, Role, ScheduleState, Stage, WorkerEnd, keys};
use baton_contract::{PodKey, PodRef};

use super::admission::ask_for;

/// A job by name and uid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobIdentity {
    /// Namespace and name.
    pub key: PodKey,
    /// Uid.
    pub uid: Box<str>,
}

/// What a job's object says.
#[derive(Debug, Clone, PartialEq)]
pub struct JobFacts {
    /// Name and uid.
    pub job: JobIdentity,
    /// resourceVersion as a number; 0 when it is none.
    pub version: u64,
    /// Creation.
    pub created: Timestamp,
    /// Deletion has been asked for.
    pub deleting: bool,
    /// Stage, as the controller has written it.
    pub stage: Option<Stage>,
    /// `status.scheduleState`, as the scheduler has written it.
    pub state: Option<ScheduleState>,
    /// `status.attempt`: places of another attempt are void.
    pub attempt: i32,
    /// The leader has an address: workers can be made.
    pub has_address: bool,
    /// Workers that have ended and are not made again.
    pub ended: BTreeMap<Box<str>, WorkerEnd>,
    /// Places, of any attempt.
    pub allocations: Vec<Allocation>,
    /// Condition `Scheduled`.
    pub scheduled: Option<ScheduledCondition>,
    /// The spec in force, or why there is none.
    pub spec: Result<JobSpec, Box<str>>,
}

/// A condition as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledCondition {
    /// Status `True`.
    pub holds: bool,
    /// Reason.
    pub reason: Box<str>,
    /// Message.
    pub message: Box<str>,
    /// Last change of the status.
    pub since: Timestamp,
}

/// What a valid job asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// 1 (last) to 10 (first).
    pub priority: i32,
    /// Order among jobs.
    pub queue: JobQueuePolicy,
    /// Nodes for the pods.
    pub basic: BasicPolicy,
    /// Workers that the job needs.
    pub min_workers: i64,
    /// Where its pods are gathered; the error is a wish that cannot be read, and keeps the job waiting.
    pub topology: Result<Option<Arc<TopologySpec>>, BadValue>,
    /// The user has ended the job.
    pub terminating: bool,
    /// The leader, then the worker sets.
    pub parts: Vec<JobPart>,
}

/// The leader or a worker set.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPart {
    /// Leader or worker.
    pub role: Role,
    /// Name in the job.
    pub name: Box<str>,
    /// How many pods.
    pub counts: i32,
    /// What the template asks for, by the names that quotas count.
    pub ask: PodAsk,
    /// Rules of the job read the label with the pod's index.
    pub indexed: bool,
    /// What one pod asks for, as admission makes it; its name and uid mean nothing.
    pub pod: PodFacts,
}

/// A PriorityClass, as far as admission gives its value to pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriorityClassFacts {
    /// Priority of its pods.
    pub value: i32,
    /// Pods that name no class get this one.
    pub default: bool,
    /// `preemptionPolicy` is `Never`: no pod is evicted for its pods.
    pub never_preempts: bool,
}

/// PriorityClasses by name.
pub type PriorityClasses = BTreeMap<Box<str>, PriorityClassFacts>;

/// One pod that a job asks for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seat {
    /// Name of the pod.
    pub pod: Box<str>,
    /// Position in [`JobSpec::parts`].
    pub part: usize,
    /// Index in the worker set; 0 for the leader.
    pub index: i32,
}

impl Seat {
    /// `true` for the leader.
    pub fn is_leader(&self) -> bool {
        self.part == 0
    }
}

impl JobSpec {
    /// Every pod of the job: the leader, then the workers by set in the order of the spec, then by index.
    pub fn seats<'a>(&'a self, job: &'a str) -> impl Iterator<Item = Seat> + 'a {
        self.parts.iter().enumerate().flat_map(move |(at, part)| {
            (0..part.counts.max(0)).map(move |index| Seat { pod: part.pod_name(job, index).into(), part: at, index })
        })
    }

    /// The seat of a pod name; `None` when the job asks for no such pod.
    pub fn seat(&self, job: &str, pod: &str) -> Option<Seat> {
        let rest = pod.strip_prefix(job)?.strip_prefix('-')?;
        if self.parts.first().is_some_and(|leader| *leader.name == *rest) {
            return Some(Seat { pod: pod.into(), part: 0, index: 0 });
        }
        let (set, index) = rest.rsplit_once('-')?;
        let (at, part) = self.parts.iter().enumerate().skip(1).find(|(_, part)| *part.name == *set)?;
        let number: i32 = index.parse().ok().filter(|number| (0..part.counts).contains(number))?;
        (number.to_string() == index).then(|| Seat { pod: pod.into(), part: at, index: number })
    }

    /// Workers over all sets.
    pub fn workers(&self) -> i64 {
        self.parts.iter().skip(1).map(|part| i64::from(part.counts.max(0))).sum()
    }

    /// Highest priority of a pod of the job.
    pub fn pod_priority(&self) -> i32 {
        self.parts.iter().map(|part| part.pod.spec.priority).max().unwrap_or(0)
    }
}

impl JobPart {
    /// Gives the pods the priority that admission will give them. A class that is not there gives none: such a pod is refused.
    fn rate(&mut self, classes: &PriorityClasses) {
        let priority = match &self.ask.class {
            Some(name) => classes.get(name).map(|class| class.value),
            // Of several defaults the lowest counts.
            None => classes.values().filter(|class| class.default).map(|class| class.value).min(),
        };
        let priority = priority.unwrap_or(0);
        if self.pod.spec.priority != priority {
            self.pod.spec.priority = priority;
        }
    }

    fn pod_name(&self, job: &str, index: i32) -> String {
        match self.role {
            Role::Leader => format!("{job}-{}", self.name),
            Role::Worker => format!("{job}-{}-{index}", self.name),
        }
    }

    /// The pod of a seat as the controller would make it, under a uid that no pod of the cluster can have.
    pub fn pod_of(&self, job: &JobIdentity, seat: &Seat) -> PodFacts {
        let mut facts = self.pod.clone();
        if self.indexed {
            facts.spec.labels.insert(keys::INDEX.to_owned(), seat.index.to_string());
        }
        facts.handoff.pod = PodRef::new(&job.key.namespace, &seat.pod, &format!("place/{}/{}", job.uid, seat.pod));
        facts
    }
}

impl JobFacts {
    /// The seats that need a place: all but those of workers that have ended for good.
    pub fn open_seats(&self) -> Vec<Seat> {
        let Ok(spec) = &self.spec else { return Vec::new() };
        spec.seats(&self.job.key.name).filter(|seat| !self.ended.contains_key(&seat.pod)).collect()
    }

    /// Gives every pod of the job the priority of its class.
    pub fn rate(&mut self, classes: &PriorityClasses) {
        let parts = self.spec.as_mut().map(|spec| &mut spec.parts).into_iter().flatten();
        parts.for_each(|part| part.rate(classes));
    }

    /// Lets every pod of the job ask for what admission makes of its template.
    pub fn fill(&mut self, filled: impl Fn(&PodAsk) -> PodAsk) {
        let parts = self.spec.as_mut().map(|spec| &mut spec.parts).into_iter().flatten();
        parts.for_each(|part| ask_for(&mut part.pod, &filled(&part.ask)));
    }

    /// The controller has made the leader pod and knows of no end of it: placed pods keep their places.
    pub fn leads(&self) -> bool {
        matches!(self.stage, Some(Stage::Starting | Stage::Running))
    }

    /// The job has ended, or is about to.
    pub fn is_over(&self) -> bool {
        self.deleting
            || self.stage.is_some_and(Stage::is_terminal)
            || self.spec.as_ref().is_ok_and(|spec| spec.terminating)
    }

    /// The place of a seat, as the object lists it.
    pub fn allocation(&self, seat: &Seat, node: &str) -> Allocation {
        let part = self.spec.as_ref().ok().and_then(|spec| spec.parts.get(seat.part));
        let role = part.map_or(Role::Worker, |part| part.role);
        let worker_set = part.filter(|part| part.role == Role::Worker).map(|part| part.name.to_string());
        Allocation {
            pod: seat.pod.to_string(),
            role,
            worker_set,
            index: seat.index,
            node: node.to_owned(),
            attempt: self.attempt,
        }
    }
}
