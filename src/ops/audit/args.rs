//! The command line of `baton audit` and what it prints.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::read::{self, AuditReport};
use crate::contract::key;
use crate::ops::config::print_yaml;
use crate::ops::live;
use crate::ops::say::say;
use crate::ops::values;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One JSON object: `{"nodes":3,"devices":3,"pods":12,"violations":[{"kind":"DeviceTwice","text":"…",…}]}`.
    Json,
    /// The same as YAML.
    Yaml,
}

/// Arguments of `baton audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Another format than lines.
    #[arg(short, long, value_enum)]
    pub output: Option<Output>,
    /// Credentials; else KUBECONFIG, ~/.kube/config, or the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Node annotation of the lock.
    #[arg(long, default_value = key::NODE_LOCK, value_name = "KEY", value_parser = values::annotation_key)]
    pub node_lock_key: String,
    /// A lock that is older than this by its own time should have ended.
    #[arg(long, default_value = "10m", value_name = "DURATION", value_parser = values::duration)]
    pub lock_ends: std::time::Duration,
}

/// Reads, checks, prints. Exit code 1 when something does not hold.
pub async fn run(args: AuditArgs) -> anyhow::Result<ExitCode> {
    let client = live::connect(args.kubeconfig.as_deref()).await?;
    let report = read::read(client, &args.node_lock_key, args.lock_ends).await?;
    say(print(&report, args.output)?)?;
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print(report: &AuditReport, output: Option<Output>) -> anyhow::Result<String> {
    let AuditReport { nodes, devices, pods, violations } = report;
    if let Some(output) = output {
        let mut printed = json!(report);
        for (item, violation) in printed["violations"].as_array_mut().into_iter().flatten().zip(violations) {
            item["text"] = json!(violation.to_string());
        }
        return Ok(match output {
            Output::Json => serde_json::to_string_pretty(&printed)? + "\n",
            Output::Yaml => print_yaml(&printed)?,
        });
    }
    let mut text = String::new();
    for violation in violations {
        writeln!(text, "{violation}")?;
    }
    let outcome = match violations.len() {
        0 => "everything holds".to_owned(),
        1 => "1 thing does not hold".to_owned(),
        count => format!("{count} things do not hold"),
    };
    writeln!(text, "{nodes} nodes, {devices} Device objects, {pods} pods: {outcome}")?;
    Ok(text)
}
