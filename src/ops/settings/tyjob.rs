//! The keys of the central scheduler that concern TYJobs.

use super::log::{Daemon, field};
use crate::ops::config::Setting;
use crate::scheduler::Options;

pub(super) fn tyjobs() -> Vec<Setting<Daemon<Options>>> {
    vec![
        field!(
            "job-period",
            "DURATION",
            "Waiting TYJobs are tried this often, and on useful events",
            options.jobs.period
        ),
        field!(
            "unfit-grace",
            "DURATION",
            "A TYJob that does not fit on all known nodes, as if they were empty, fails after this long",
            options.jobs.unfit_grace
        ),
        field!(
            "reservation-timeout",
            "DURATION",
            "The place of a TYJob's pod is void when the pod does not take it within this time",
            options.jobs.reservation_timeout
        ),
        field!(
            "job-weights",
            "RESOURCE=WEIGHT,…",
            "Weights of cpu, memory and nvidia.com/gpu (GPUs under any name) when TYJobs' policies rate nodes",
            options.jobs.weights
        ),
        field!(
            "job-raised-weight",
            "COUNT",
            "Weight that LeaderFirst gives to GPUs for leaders, and to cpu for workers",
            options.jobs.raised_weight
        ),
    ]
}
