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

pub(super) mod place;
pub mod placement;
mod record;
mod review;
pub(super) mod round;
pub mod stages;
pub(super) mod table;
mod take;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::contract::PodKey;
use crate::decide::scheduler::context::Context;

use table::Tables;

pub use record::{JobPlace, JobPolicy, JobRecord, JobScheduleStatus, JobWriteResult};

/// The scheduler's records of TYJobs.
#[derive(Default)]
pub struct TyJobs {
    records: BTreeMap<PodKey, JobRecord>,
    /// Jobs to be reviewed.
    changed: BTreeSet<PodKey>,
    tables: Tables,
    /// Monotonic time of the last round.
    last_round: Option<Duration>,
    /// Position in the world's journal at the end of the last round: a node changed if it differs.
    journal_mark: Option<u64>,
    /// Something other than nodes changed since then, so that a job may be placeable now.
    placeable_changed: bool,
    /// The waiting jobs or their requests changed since the round was queued: its priority and time are out of date.
    key_outdated: bool,
}

impl TyJobs {
    /// Records of jobs, by namespace and name.
    pub const fn records(&self) -> &BTreeMap<PodKey, JobRecord> {
        &self.records
    }

    /// Releases every place and forgets the jobs: this process starts or stops leading.
    pub fn clear(&mut self, cx: &mut Context<'_>) {
        for key in self.records.keys().cloned().collect::<Vec<_>>() {
            self.release_places(cx, &key);
        }
        cx.reservations.take_freed_jobs();
        *self = Self { tables: std::mem::take(&mut self.tables), placeable_changed: true, ..Self::default() };
    }

    /// Builds the records from the TYJob objects: this process leads now.
    pub fn lead(&mut self, cx: &mut Context<'_>) {
        self.changed.extend(cx.world.jobs().map(|(key, _)| key.clone()));
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
