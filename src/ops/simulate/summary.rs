//! What the runs of one policy come to.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::experiment::{CAUSES, Departures, RunFigures};
use super::runs::Replay;

/// Mean and standard deviation over runs; `null` where no run has such a value.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct MeanOfRuns {
    /// Mean.
    pub mean: Option<f64>,
    /// Standard deviation of a sample; 0 for one run.
    pub sd: Option<f64>,
}

impl MeanOfRuns {
    /// Of the runs that have the value.
    pub fn of(values: impl IntoIterator<Item = Option<f64>>) -> Self {
        let values: Vec<f64> = values.into_iter().flatten().collect();
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = (squares / (values.len() - 1).max(1) as f64).sqrt();
        Self { mean: Some(hundredths(mean)), sd: Some(hundredths(sd)) }
    }
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// All of `baton simulate -o json`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SimulationSummary {
    /// Name of the trace.
    pub trace: String,
    /// Nodes.
    pub nodes: usize,
    /// GPUs.
    pub gpus: i64,
    /// Demand, or offered load, of all GPUs; `null` where pods come as recorded.
    pub load: Option<f64>,
    /// Seeds of the runs.
    pub seeds: Vec<u64>,
    /// Each policy.
    pub policies: Vec<PolicySummary>,
}

impl SimulationSummary {
    /// Of these policies; each has a run that was finished.
    pub fn of(
        replay: &Replay<'_>,
        load: Option<f64>,
        names: impl IntoIterator<Item = String>,
        runs: &[Vec<RunFigures>],
    ) -> Self {
        let trace = replay.trace;
        Self {
            trace: trace.name.clone(),
            nodes: trace.machines.len(),
            gpus: trace.machines.iter().map(|machine| i64::from(machine.gpus)).sum(),
            load,
            seeds: replay.seeds.clone(),
            policies: names.into_iter().zip(runs).map(|(name, runs)| PolicySummary::of(name, runs, load)).collect(),
        }
    }
}

/// One policy.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySummary {
    /// Its name.
    pub name: String,
    /// Seeds that were finished; all, unless the command was stopped.
    pub runs: usize,
    /// Percent of all GPUs in use.
    pub allocation: GpusInUse,
    /// Demand that had arrived with the first rejected pod, percent of all GPUs.
    pub first_rejection: MeanOfRuns,
    /// Percent of the pods of each size that were rejected.
    pub rejected: BTreeMap<String, f64>,
    /// Percent of all GPUs that lie idle at the end, by what keeps the pods of the trace from them.
    pub idle: BTreeMap<&'static str, f64>,
    /// Time of a decision, microseconds.
    pub decision_micros: Percentiles,
    /// Where pods end.
    pub departures: Option<Departures<MeanOfRuns>>,
    /// In how many domains a gang runs, by label.
    pub domains_per_gang: BTreeMap<Box<str>, MeanOfRuns>,
}

/// Percent of all GPUs in use.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpusInUse {
    /// When as much has arrived as there are GPUs.
    pub at100: MeanOfRuns,
    /// At the load; where pods end, in steady state.
    pub at_load: MeanOfRuns,
}

/// Of times.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Percentiles {
    /// Half of them are shorter.
    pub p50: f64,
    /// One in a hundred is longer.
    pub p99: f64,
}

/// Sizes that are always listed.
const SIZES: [&str; 5] = ["share", "1", "2", "4", "8"];

impl PolicySummary {
    /// Of the runs that were finished; at least one.
    fn of(name: String, runs: &[RunFigures], load: Option<f64>) -> Self {
        let spread = |value: fn(&RunFigures) -> Option<f64>| MeanOfRuns::of(runs.iter().map(value));
        // In a small cluster no pod may arrive at exactly this demand: the one before counts.
        let last = (100.0 * load.unwrap_or_default()).round() as u32;
        let before = |run: &RunFigures, percent: u32| run.curve.range(..=percent).next_back().map(|(_, used)| *used);
        let at = |percent: u32| MeanOfRuns::of(runs.iter().map(|run| before(run, percent).filter(|_| percent <= last)));
        let ends = runs.iter().any(|run| run.departures.is_some());
        let allocation = if ends {
            GpusInUse { at100: MeanOfRuns::default(), at_load: spread(|run| run.steady) }
        } else {
            GpusInUse { at100: at(100), at_load: at(last) }
        };
        let sizes: BTreeSet<String> =
            runs.iter().flat_map(|run| run.sizes.keys().cloned()).chain(SIZES.map(str::to_owned)).collect();
        let rejected = sizes.into_iter().map(|size| {
            let counts = runs.iter().filter_map(|run| run.sizes.get(&size));
            let (came, rejected) = counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
            (size, hundredths(100.0 * rejected as f64 / came.max(1) as f64))
        });
        let idle = CAUSES.iter().enumerate().map(|(at, cause)| {
            (*cause, hundredths(runs.iter().map(|run| run.idle[at]).sum::<f64>() / runs.len() as f64))
        });
        let mut micros: Vec<f64> =
            runs.iter().flat_map(|run| &run.decisions).map(|took| took.as_nanos() as f64 / 1000.0).collect();
        micros.sort_by(f64::total_cmp);
        let percentile =
            |part: f64| micros.get(((micros.len().max(1) - 1) as f64 * part) as usize).copied().map_or(0.0, hundredths);
        Self {
            name,
            runs: runs.len(),
            allocation,
            first_rejection: spread(|run| run.first_rejection),
            rejected: rejected.collect(),
            idle: idle.collect(),
            decision_micros: Percentiles { p50: percentile(0.5), p99: percentile(0.99) },
            domains_per_gang: domains_per_gang(runs),
            departures: ends.then(|| Departures {
                rejected_share: spread(|run| run.departures.map(|ends| ends.rejected_share)),
                rejected_multi_gpu_share: spread(|run| run.departures.map(|ends| ends.rejected_multi_gpu_share)),
                waiting_share: spread(|run| run.departures.map(|ends| ends.waiting_share)),
                mean_wait_seconds: spread(|run| run.departures.map(|ends| ends.mean_wait_seconds)),
            }),
        }
    }
}

fn domains_per_gang(runs: &[RunFigures]) -> BTreeMap<Box<str>, MeanOfRuns> {
    let labels: BTreeSet<&Box<str>> = runs.iter().flat_map(|run| run.domains.keys()).collect();
    let of = |run: &RunFigures, label: &str| {
        let found = run.domains.get(label).filter(|found| found.gangs > 0)?;
        Some(found.domains as f64 / found.gangs as f64)
    };
    labels.into_iter().map(|label| (label.clone(), MeanOfRuns::of(runs.iter().map(|run| of(run, label))))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_that_of_a_sample_of_the_runs_that_have_a_value() {
        assert_eq!(MeanOfRuns::of([Some(1.0), None, Some(3.0)]), MeanOfRuns { mean: Some(2.0), sd: Some(1.41) });
        assert_eq!(MeanOfRuns::of([Some(95.387)]), MeanOfRuns { mean: Some(95.39), sd: Some(0.0) });
        assert_eq!(MeanOfRuns::of([None]), MeanOfRuns { mean: None, sd: None });
    }
}
