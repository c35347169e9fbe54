//! TYJobs: [`stages`] is the life of one job as its controller sees it, [`placement`] rates nodes and orders jobs, and [`TyJobs`] is
//! what the scheduler keeps: one item of the queue places all waiting jobs in their order; places are reservations in the world
//! until the controller's pods take them over.
//!
//! ```text
//!   job ──review──▶ waiting ──cycle──▶ places (reserved) ──pod appears──▶ taken over: reservation, lock, Binding
//!    ▲                 ▲                  │
//!    │                 └──── void ◀───────┤ node vanished · not used in time
//!    └── status written ◀─────────────────┘ all of them: another attempt, job over or gone
//! ```
//!
//! What is decided is kept in a record per job and written into the job's status; after a restart the records are made from
//! the status alone.

pub mod place;
pub mod placement;
pub mod record;
mod review;
pub mod round;
pub mod stages;
pub mod table;
mod take;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::contract::PodKey;
use crate::decide::scheduler::context::Context;

use table::Tables;

pub use record::{JobHalf, JobPlace, JobPolicy, JobRecord, JobWriteResult};

/// What the scheduler keeps of TYJobs.
#[derive(Default)]
pub struct TyJobs {
    records: BTreeMap<PodKey, JobRecord>,
    /// Jobs to be reviewed.
    changed: BTreeSet<PodKey>,
    tables: Tables,
    /// Monotonic time of the last round.
    ran: Option<Duration>,
    /// Position in the world's journal at the end of the last round.
    mark: Option<u64>,
    /// Something beside nodes has changed since.
    news: bool,
    /// Other jobs wait than when the round was queued, or they ask for something else.
    unkeyed: bool,
}

impl TyJobs {
    /// Records of jobs, by namespace and name.
    pub const fn records(&self) -> &BTreeMap<PodKey, JobRecord> {
        &self.records
    }

    /// Gives every place back and forgets the jobs: this process starts or stops leading.
    pub fn clear(&mut self, cx: &mut Context<'_>) {
        for key in self.records.keys().cloned().collect::<Vec<_>>() {
            self.release_places(cx, &key);
        }
        cx.reservations.take_freed_jobs();
        *self = Self { tables: std::mem::take(&mut self.tables), news: true, ..Self::default() };
    }

    /// Starts with what the objects say: this process leads now.
    pub fn lead(&mut self, cx: &mut Context<'_>) {
        self.changed.extend(cx.world.jobs().map(|(key, _)| key.clone()));
        self.reconcile(cx);
    }
}

/// What a pod's claim to a job's place comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaceRoute {
    /// No claim, or none that counts: the pod is on its own.
    None,
    /// The job's place for this very pod.
    Place(PodKey),
    /// The job's own pod, without a place for now.
    Waits(String),
}
