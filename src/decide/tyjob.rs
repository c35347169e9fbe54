//! TYJobs: [`stages`] is the life of one job in the job controller, [`placement`] rates nodes and orders jobs, and [`TyJobs`] is the
//! scheduler's owner of jobs. One item of the queue places all waiting jobs in their order. A place is room that is reserved in the
//! world until the controller's pod takes it over.
//!
//! ```text
//!   job ──review──▶ waiting ──round──▶ places (reserved) ──pod appears──▶ taken over: reservation, lock, Binding
//!    ▲                 ▲                  │
//!    │                 └──── void ◀───────┤ node vanished · not used in time
//!    └── status written ◀─────────────────┘ all of them: another attempt, job over or gone
//! ```
//!
//! Decisions are kept in a record per job and written into the job's status; after a restart the records are rebuilt from the
//! statuses alone.

pub(super) mod allowance;
pub(super) mod gather;
pub(super) mod place;
pub mod placement;
pub(super) mod review;
pub(super) mod round;
pub mod stages;
mod start_limit;
pub(super) mod table;
mod take;
mod write;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use crate::core::JobScheduleStatus;
use crate::core::agenda::Agenda;
use crate::core::context::Context;
use crate::core::reservations::Reservations;
use crate::world::{PodId, World};
use baton_contract::tyjob::ScheduleState;
use baton_contract::{ConditionReason, PodKey, Shared};

use allowance::Allowance;
use placement::{JobClass, JobFacts};
use start_limit::Start;
use table::JobTables;

/// Places of workers that have ended are kept up to this number, or to an eighth of all: each time that they go, the status is written.
const ENDED_KEPT: usize = 64;

/// Waiting jobs are tried one by one, in their order; pods and groups are tried between them, in theirs.
struct JobRound {
    /// Those that are still to be tried.
    rest: VecDeque<PodKey>,
    /// It has tried some.
    begun: bool,
}

/// The scheduler's records of TYJobs.
#[derive(Default)]
pub struct TyJobs {
    records: BTreeMap<PodKey, JobRecord>,
    /// Jobs to be reviewed.
    changed: BTreeSet<PodKey>,
    tables: JobTables,
    /// The round that is under way, or queued; `None` where one is to begin.
    round: Option<JobRound>,
    /// Position in the world's journal at the end of the last round: a node changed if it differs.
    journal_mark: Option<u64>,
    /// Something other than nodes changed since then, so that a job may be placeable now.
    placeable_changed: bool,
    /// What namespaces may still use, as far as this round has asked.
    allowances: BTreeMap<Box<str>, Allowance>,
    /// Namespaces whose quotas or limits changed.
    quotas_changed: BTreeSet<Box<str>>,
}

impl TyJobs {
    /// Records of jobs, by namespace and name.
    pub const fn records(&self) -> &BTreeMap<PodKey, JobRecord> {
        &self.records
    }

    /// The records alone: what explanations read.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self { records: self.records.clone(), ..Self::default() }
    }

    /// Releases every place and forgets the jobs: this process starts or stops leading.
    pub fn clear(&mut self, world: &mut World, reservations: &mut Reservations, agenda: &mut Agenda) {
        for key in self.records.keys().cloned().collect::<Vec<_>>() {
            self.release_places(world, agenda, &key);
        }
        reservations.take_freed_jobs();
        *self = Self { tables: std::mem::take(&mut self.tables), placeable_changed: true, ..Self::default() };
    }

    /// Builds the records from the TYJob objects: this process leads now.
    pub fn lead(&mut self, cx: &mut Context<'_>) {
        self.changed.extend(cx.world.jobs().map(|(key, _)| key.clone()));
        self.quotas_changed.extend(cx.world.jobs().map(|(key, _)| key.namespace.clone()));
        self.reconcile(cx);
    }
}

/// What a pod's claim to a place of a job results in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceRoute {
    /// No claim, or not a valid one: the pod is scheduled by itself.
    None,
    /// The job has a place for this pod.
    Place(PodKey),
    /// A pod of the job that has no place now, and why.
    Waits(String),
}

/// The place of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlace {
    /// Node.
    pub node: Box<str>,
    /// The room that is reserved there; `None` once the pod itself takes it or has ended.
    pub reservation: Option<PodId>,
    /// Monotonic time since which the controller can create the pod; a worker's also needs the leader's address.
    pub since: Duration,
}

/// One job.
#[derive(Debug, Clone, Default)]
pub struct JobRecord {
    /// Uid of the job.
    pub uid: Box<str>,
    /// Attempt that the places are for.
    pub attempt: i32,
    /// Places by pod name.
    pub places: BTreeMap<Box<str>, JobPlace>,
    /// The last decision.
    pub state: Option<ScheduleState>,
    /// What was reported of it.
    pub report: ScheduledReport,
    /// What it waits for, as it was judged last.
    pub judged: JobJudgement,
    /// The job at the last review.
    last_seen: Option<Shared<JobFacts>>,
    /// Monotonic time since which the leader has an address.
    address_since: Option<Duration>,
    /// How its start goes: pods that are waited for, and the rest after they did not come.
    pub start: Start,
    writes: JobWrites,
}

/// The condition `Scheduled` of a job.
#[derive(Debug, Clone, Default)]
pub struct ScheduledReport {
    /// Its reason and message, and the monotonic time of their report.
    pub last: Option<(ConditionReason, String, Duration)>,
    /// Reason and message that are reported when the pause after the present ones is over.
    pending: Option<(ConditionReason, String)>,
    /// Its status, and the time of the last change of it.
    since: Option<(bool, Timestamp)>,
}

/// What a job waits for.
#[derive(Debug, Clone, Default)]
pub struct JobJudgement {
    /// The last classification.
    pub class: JobClass,
    /// Monotonic time since which the job is known not to fit, and why.
    pub unfit: Option<(Duration, String)>,
    /// Nodes or the job's requests have changed since it was judged not to fit.
    nodes_changed: bool,
}

/// Writes of the status of a job.
#[derive(Debug, Clone, Default)]
struct JobWrites {
    /// One is under way.
    under_way: bool,
    /// Content of the last one, unless it failed.
    last: Option<JobScheduleStatus>,
    /// The object's version after that; 0 before the first one.
    version: u64,
    /// The version of the object on which the last one was decided.
    attempted: u64,
    /// The newest version that is known to be out of date: the next write waits for a newer one.
    stale: u64,
    /// The monotonic end of that wait.
    stale_until: Duration,
    /// Failed ones in a row.
    failures: u32,
    /// None before this monotonic time.
    not_before: Duration,
}

impl JobWrites {
    /// A new attempt of the job: the answer to a write under way is still to come.
    fn of_next_attempt(self) -> Self {
        Self { last: None, failures: 0, not_before: Duration::ZERO, ..self }
    }
}

impl JobRecord {
    /// Remembers the job as it is now. Returns the job as it was if its requests or ended workers have changed, which makes earlier
    /// verdicts void.
    fn observe(&mut self, job: &Shared<JobFacts>) -> Option<Shared<JobFacts>> {
        let former = self.last_seen.replace(job.clone())?;
        let changed = !former.is_same(job) && (&former.spec, &former.ended) != (&job.spec, &job.ended);
        if changed {
            self.judged.unfit = None;
            self.judged.nodes_changed = true;
            self.start.end_rest();
        }
        changed.then_some(former)
    }

    /// The pods with a place whose template has changed.
    fn changed_templates(&self, former: &JobFacts, job: &JobFacts) -> Vec<Box<str>> {
        let template = |job: &JobFacts, pod: &str| {
            let spec = job.spec.as_ref().ok()?;
            let seat = spec.seat(&job.job.key.name, pod)?;
            let part = spec.parts.get(seat.part)?;
            Some((part.pod.clone(), part.ask.clone()))
        };
        let placed = self.places.keys();
        placed.filter(|pod| template(former, pod) != template(job, pod)).cloned().collect()
    }

    /// Forgets the places of workers that have ended, where there are many: they would be in the status for ever, and no decision reads
    /// them. etcd stores objects of up to 1.5 MiB, which a job of thousands of workers comes near to.
    fn forget_ended(&mut self, job: &JobFacts) {
        let ended = self.places.keys().filter(|pod| job.ended.contains_key(*pod)).count();
        if ended > ENDED_KEPT.max(self.places.len() / 8) {
            self.places.retain(|pod, _| !job.ended.contains_key(pod));
        }
    }

    /// Number of places that no pod has taken yet.
    pub fn reservations(&self) -> usize {
        self.places.values().filter(|place| place.reservation.is_some()).count()
    }
}
