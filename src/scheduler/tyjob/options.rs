//! What an operator chooses for TYJobs.

use std::time::Duration;

use crate::contract::key;
use crate::decide::scheduler::JobPolicy;
use crate::decide::tyjob::placement::Weights;

/// How TYJobs are placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOptions {
    /// Waiting jobs are tried this often.
    pub period: Duration,
    /// A job that does not fit on all known nodes fails after this long.
    pub unfit_grace: Duration,
    /// A place that its pod does not take within this time is void.
    pub reservation_timeout: Duration,
    /// Weights of `cpu`, `memory` and `nvidia.com/gpu` (GPUs under any name) in node ratings; 1 where not named.
    pub weights: Vec<(String, i64)>,
    /// Weight that `LeaderFirst` gives to GPUs for leaders and to CPU for workers.
    pub raised_weight: u32,
}

impl Default for JobOptions {
    fn default() -> Self {
        let policy = JobPolicy::default();
        Self {
            period: policy.period,
            unfit_grace: policy.unfit_grace,
            reservation_timeout: policy.reservation_timeout,
            weights: ["cpu", "memory", key::NVIDIA_GPU].map(|name| (name.to_owned(), 1)).into(),
            raised_weight: policy.weights.raised,
        }
    }
}

impl JobOptions {
    /// What is wrong, by name of the key; `None` when it can work.
    pub fn problem(&self) -> Option<String> {
        let times = [("job-period", self.period), ("reservation-timeout", self.reservation_timeout)];
        if let Some((name, _)) = times.iter().find(|(_, value)| value.is_zero()) {
            return Some(format!("{name} is zero: give a value above zero"));
        }
        for (at, (name, weight)) in self.weights.iter().enumerate() {
            if !["cpu", "memory", key::NVIDIA_GPU].contains(&name.as_str()) {
                return Some(format!("job-weights names {name}: expected cpu, memory or {}", key::NVIDIA_GPU));
            }
            if !(1..=100).contains(weight) {
                return Some(format!("job-weights gives {name} the weight {weight}: expected 1 to 100"));
            }
            if self.weights[..at].iter().any(|(other, _)| other == name) {
                return Some(format!("job-weights names {name} twice: expected once"));
            }
        }
        let raised = self.raised_weight;
        (!(1..=100).contains(&raised)).then(|| format!("job-raised-weight is {raised}: expected 1 to 100"))
    }

    /// How jobs are treated.
    pub fn policy(&self) -> JobPolicy {
        let of = |name: &str| {
            let found = self.weights.iter().find(|(known, _)| known == name);
            found.and_then(|(_, weight)| u32::try_from(*weight).ok()).unwrap_or(1)
        };
        let (cpu, memory, gpu) = (of("cpu"), of("memory"), of(key::NVIDIA_GPU));
        JobPolicy {
            period: self.period,
            unfit_grace: self.unfit_grace,
            reservation_timeout: self.reservation_timeout,
            weights: Weights { cpu, memory, gpu, raised: self.raised_weight },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_decisions_and_a_bad_value_is_named() {
        assert_eq!((JobOptions::default().problem(), JobOptions::default().policy()), (None, JobPolicy::default()));
        let with = |weights: &[(&str, i64)]| JobOptions {
            weights: weights.iter().map(|(name, weight)| ((*name).to_owned(), *weight)).collect(),
            ..JobOptions::default()
        };
        assert_eq!(with(&[("cpu", 3)]).policy().weights, Weights { cpu: 3, ..Weights::default() });
        for bad in [&[("disk", 1)][..], &[("cpu", 0)], &[("cpu", 101)], &[("cpu", 1), ("cpu", 2)]] {
            assert!(with(bad).problem().unwrap().contains("job-weights"));
        }
        assert!(
            JobOptions { period: Duration::ZERO, ..JobOptions::default() }.problem().unwrap().contains("job-period")
        );
        assert!(
            JobOptions { raised_weight: 0, ..JobOptions::default() }.problem().unwrap().contains("job-raised-weight")
        );
    }
}
