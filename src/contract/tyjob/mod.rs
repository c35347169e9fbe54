//! The TYJob object: a leader and sets of workers, `tyjobs.arranger.taichu.io/v1alpha1`.
//!
//! Two daemons write its status, each by apply with its own field manager and never the other's fields: the scheduler writes
//! `scheduleState`, `allocations` and the condition `Scheduled`; the controller writes the rest. Both read the job through
//! [`TyJob::effective`], so that a refused edit of a started job is void to both.

mod crd;
mod effective;
pub mod keys;
mod spec;
mod status;
mod template;
#[cfg(test)]
mod tests;
mod validate;

pub use crd::crd;
pub use effective::Effective;
pub use spec::{
    BasicPolicy, CleanPodPolicy, JobMember, JobQueuePolicy, Leader, MAX_PODS, MAX_WORKER_SETS, SchedulerPolicy, TyJob,
    TyJobSpec, WorkerSet,
};
pub use status::{Allocation, CountedRestarts, Role, ScheduleState, Stage, TyJobStatus, WorkerEnd, condition};
pub use template::PodTemplate;
pub use validate::{InvalidField, validate, validate_spec};
