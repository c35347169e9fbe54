//! The TYJob controller: one value that is shown what the watches and the answers to its requests show, and that decides which
//! requests follow. It performs none: the daemon does, and so does the simulation of the whole system.
//!
//! | A job is | until | then |
//! | --- | --- | --- |
//! | idle | a watch or an answer shows a change of it, of one of its pods or of their nodes; or all jobs are due | due |
//! | due | its time has come, it is not under way, and few enough jobs are | reading |
//! | reading | the API server has shown what the next status rests on: nodes that are gone, pods that have ended | writing |
//! | | a request fails | due after a pause |
//! | writing | the status that [`step`](crate::tyjob::stages::step()) decides is stored, or stands there already | finalizing |
//! | | the status is out of date, or the request fails; events tell why one is rejected or too large | due after a pause |
//! | | the job is gone | idle |
//! | finalizing | the finalizer is put on; or no pod is left and it is taken off | making |
//! | | a request fails | due after a pause |
//! | making | every pod is made, deleted or given its place, several at once | idle, or due at the time that the step names |
//! | | it is news that some pod cannot be made | due at once: the status names it |
//! | | a pod could not be made, or a request failed | due after a pause that grows |
//!
//! So what a step decides follows only when its status is stored. A change while a job is under way makes it due once more. All of
//! this is one term of leadership: it ends for good when the Lease does, and the requests under way with it. Each of them is complete
//! in itself, and the next term begins with a list of everything.

mod cache;
mod effect;
mod machine;
mod reconciliation;

pub use cache::{JobCache, JobKey};
pub use effect::{
    ControllerCounts, ControllerEffect, ControllerEvent, ControllerReport, EffectId, JobRequest, OwnedPod,
    RequestFailure, ShownJob,
};
pub use machine::{ControllerPolicy, JobController};
