//! Labels, annotations, environment variables, finalizer and field managers of TYJobs and their pods.

use crate::gang::key::TIMEOUT_CLOCK;
use crate::key::GANG_COMMITTED;

/// API group of the TYJob.
pub const GROUP: &str = "arranger.taichu.io";
/// `apiVersion` of the TYJob.
pub const API_VERSION: &str = "arranger.taichu.io/v1alpha1";
/// `kind` of the TYJob.
pub const KIND: &str = "TYJob";

/// Prefix of every key of this group; pod templates may not use it.
pub const PREFIX: &str = "arranger.taichu.io/";
/// Pod label: name of the job.
pub const JOB: &str = "arranger.taichu.io/job";
/// Pod label: `leader` or `worker`.
pub const ROLE: &str = "arranger.taichu.io/role";
/// Pod label of workers: name of the worker set.
pub const WORKER_SET: &str = "arranger.taichu.io/worker-set";
/// Pod label of workers: index in the worker set, from 0.
pub const INDEX: &str = "arranger.taichu.io/index";
/// Pod label: `status.attempt` of the job when the pod was made.
pub const ATTEMPT: &str = "arranger.taichu.io/attempt";
/// Pod annotation: the node that the scheduler reserved for the pod. It counts only with a controller reference to the TYJob
/// whose status lists the pod.
pub const ALLOCATION: &str = "arranger.taichu.io/allocation";

/// Finalizer of a job: its pods and reservations are removed before the job is.
pub const FINALIZER: &str = "arranger.taichu.io/cleanup";
/// Field manager of the controller's half of the status.
pub const CONTROLLER_MANAGER: &str = "baton-controller";
/// Field manager of the scheduler's half of the status.
pub const SCHEDULER_MANAGER: &str = "baton-scheduler";

/// Environment: name of the job.
pub const ENV_NAME: &str = "TYJOB_NAME";
/// Environment: `leader` or `worker`.
pub const ENV_ROLE: &str = "TYJOB_ROLE";
/// Environment: name of the worker set; empty for the leader.
pub const ENV_WORKER_SET: &str = "TYJOB_WORKER_SET";
/// Environment: index in the worker set; `0` for the leader.
pub const ENV_INDEX: &str = "TYJOB_INDEX";
/// Environment: number of workers that the job asks for, over all sets, when the pod was made.
pub const ENV_NUM_WORKERS: &str = "TYJOB_NUM_WORKERS";
/// Environment of workers: the leader's pod IP.
pub const ENV_LEADER_ADDRESS: &str = "TYJOB_LEADER_ADDRESS";

/// Labels and annotations that make a pod a member of a gang: a job is scheduled as a job, never as a gang too.
pub const GANG_PREFIXES: [&str; 5] = [
    "gang.scheduling.koordinator.sh/",
    "pod-group.scheduling.sigs.k8s.io",
    "scheduling.x-k8s.io/pod-group",
    TIMEOUT_CLOCK,
    GANG_COMMITTED,
];

/// `true` for a label or annotation key that declares gang membership.
pub fn is_gang_key(key: &str) -> bool {
    GANG_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}
