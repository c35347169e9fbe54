//! A summary as a table for people, or as JSON.

use std::fmt::Write;

use crate::view::plain;

use super::summary::{MeanOfRuns, PolicySummary, SimulationSummary};

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum SimulateOutput {
    /// Tables.
    #[default]
    Table,
    /// One object.
    Json,
}

/// The text of a summary.
pub fn print(summary: &SimulationSummary, output: SimulateOutput) -> serde_json::Result<String> {
    Ok(match output {
        SimulateOutput::Table => table(summary),
        SimulateOutput::Json => serde_json::to_string(summary)? + "\n",
    })
}

fn spread(spread: MeanOfRuns) -> String {
    match (spread.mean, spread.sd) {
        (Some(mean), Some(sd)) => format!("{mean:.2} ± {sd:.2}"),
        _ => String::new(),
    }
}

fn table(summary: &SimulationSummary) -> String {
    let SimulationSummary { trace, nodes, gpus, load, seeds, policies } = summary;
    let mut out = String::new();
    let (first, last) = (seeds.first().copied().unwrap_or(0), seeds.last().copied().unwrap_or(0));
    let percent = load.unwrap_or_default() * 100.0;
    let given = load.map_or_else(|| "as recorded".to_owned(), |_| format!("load {percent:.0} %"));
    let _ = writeln!(
        out,
        "{trace}: {nodes} nodes, {gpus} GPUs, {given}, seeds {first} to {last}; percent of all GPUs, mean ± sd\n"
    );
    let ends = policies.iter().any(|policy| policy.departures.is_some());
    out.push_str(&if ends { steady(policies) } else { at_load(policies, percent) });
    let mut grid = |title: &str, of: &dyn Fn(&PolicySummary) -> Vec<(String, f64)>| {
        let Some(first) = policies.first() else { return };
        let names: Vec<String> = of(first).into_iter().map(|(name, _)| name).collect();
        if names.is_empty() {
            return;
        }
        let head: Vec<&str> = std::iter::once("POLICY").chain(names.iter().map(String::as_str)).collect();
        let row = |policy: &PolicySummary| {
            let values = of(policy).into_iter().map(|(_, value)| format!("{value:.2}"));
            std::iter::once(policy.name.clone()).chain(values).collect()
        };
        let _ = write!(out, "\n{title}\n{}", plain(&head, policies.iter().map(row)));
    };
    let size = |size: &str| match size {
        "share" => "SHARE".to_owned(),
        "0" => "NO GPU".to_owned(),
        count => format!("{count} GPU"),
    };
    grid("Rejected pods, percent of their size", &|policy| {
        policy.rejected.iter().map(|(name, value)| (size(name), *value)).collect()
    });
    grid("Domains per gang, by label", &|policy| {
        let means = policy.domains_per_gang.iter();
        means.map(|(label, value)| (label.to_uppercase(), value.mean.unwrap_or_default())).collect()
    });
    grid("Idle GPUs at the end, percent of all, by what keeps the pods of the trace from them", &|policy| {
        policy.idle.iter().map(|(cause, value)| ((*cause).to_owned(), *value)).collect()
    });
    out
}

/// Where pods end.
fn steady(policies: &[PolicySummary]) -> String {
    let head = ["POLICY", "IN USE", "REJECTED", "OF SEVERAL GPUS", "WAITING", "MEAN WAIT", "DECISION P50", "P99"];
    let row = |policy: &PolicySummary| {
        let ends = policy.departures.unwrap_or_default();
        vec![
            policy.name.clone(),
            spread(policy.allocation.at_load),
            spread(ends.rejected_share),
            spread(ends.rejected_multi_gpu_share),
            spread(ends.waiting_share),
            ends.mean_wait_seconds.mean.map(|wait| format!("{wait:.0} s")).unwrap_or_default(),
            micros(policy.decision_micros.p50),
            micros(policy.decision_micros.p99),
        ]
    };
    plain(&head, policies.iter().map(row))
}

/// Where pods stay.
fn at_load(policies: &[PolicySummary], percent: f64) -> String {
    let at_load = format!("AT {percent:.0} %");
    let head = ["POLICY", "AT 100 %", &at_load, "FIRST REJECTION", "DECISION P50", "P99"];
    let row = |policy: &PolicySummary| {
        vec![
            policy.name.clone(),
            spread(policy.allocation.at100),
            spread(policy.allocation.at_load),
            spread(policy.first_rejection),
            micros(policy.decision_micros.p50),
            micros(policy.decision_micros.p99),
        ]
    };
    plain(&head, policies.iter().map(row))
}

fn micros(value: f64) -> String {
    format!("{value:.1} µs")
}
