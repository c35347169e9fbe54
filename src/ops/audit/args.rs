//! The command line of `baton audit` and what it prints.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use kube::Client;
use serde_json::{Value, json};

use super::read::{self, AuditReport, AuditRules, NotedPods};
use crate::admission::InstalledPolicies;
use crate::live::{Access, Home};
use crate::say::{Format, NoVerdict, amount, say};
use crate::values;
use baton_contract::key;

/// Arguments of `baton audit`.
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Another format than lines: `{"nodes":3,"devices":3,"pods":12,"podsWithDevices":9,"violations":[{"kind":"DeviceTwice","text":"…",…}],"otherScheduler":[],"admission":{"state":"inForce"}}`.
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
    /// Which cluster.
    #[command(flatten)]
    pub access: Access,
    /// Where the daemons are.
    #[command(flatten)]
    pub home: Home,
    /// Node annotation of the lock.
    #[arg(long, default_value = key::NODE_LOCK, value_name = "KEY", value_parser = values::annotation_key)]
    pub node_lock_key: String,
    /// A lock that is older than this by its own time should have ended.
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = values::duration)]
    pub lock_ends: std::time::Duration,
    /// Whose pods are placed.
    #[command(flatten)]
    pub schedulers: SchedulersArgs,
}

/// Names of schedulers.
#[derive(Debug, Args)]
pub struct SchedulersArgs {
    /// As the scheduler has them, those that its extender serves included: waiting pods of other schedulers are listed that carry gang keys or
    /// ask for devices.
    #[arg(long, default_value = "baton-scheduler", value_name = "NAMES", value_delimiter = ',')]
    pub scheduler_names: Vec<String>,
}

/// Reads, checks, prints. Exit code 1 when something does not hold, 2 when that cannot be said.
pub async fn run(args: AuditArgs) -> anyhow::Result<ExitCode> {
    judge(args).await.context(NoVerdict)
}

async fn judge(args: AuditArgs) -> anyhow::Result<ExitCode> {
    let client = args.access.connect().await?;
    let rules = AuditRules {
        lock_key: args.node_lock_key.clone(),
        lock_ends: args.lock_ends,
        schedulers: args.schedulers.scheduler_names,
    };
    let (report, policies) = found(client, &args.home.namespace, &rules).await?;
    say(print(&report, &policies, args.output)?)?;
    let holds = report.violations.is_empty() && !matches!(policies, InstalledPolicies::Broken(_));
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Reads and checks the cluster, with the daemons in `namespace`.
pub(crate) async fn found(
    client: Client,
    namespace: &str,
    rules: &AuditRules,
) -> anyhow::Result<(AuditReport, InstalledPolicies)> {
    let report = read::read(client.clone(), namespace, rules).await?;
    let policies = InstalledPolicies::read(&client, namespace, &rules.lock_key).await;
    Ok((report, policies.context("cannot read the admission policies")?))
}

/// The JSON object of `-o json`.
pub(crate) fn json(report: &AuditReport, policies: &InstalledPolicies) -> Value {
    let mut printed = json!(report);
    for (item, violation) in printed["violations"].as_array_mut().into_iter().flatten().zip(&report.violations) {
        item["text"] = json!(violation.to_string());
    }
    printed["admission"] = json!(policies);
    printed["outcome"] = json!(report.outcome(policies.broken()));
    printed
}

fn print(report: &AuditReport, policies: &InstalledPolicies, output: Option<Format>) -> anyhow::Result<String> {
    let AuditReport {
        nodes,
        devices,
        pods: _,
        pods_with_devices,
        violations,
        leaving,
        stuck,
        unserved,
        unhealthy,
        unreadable,
        other_scheduler,
        visible_devices,
        leases_unread,
        slices_unread,
    } = report;
    if let Some(output) = output {
        return output.print_as("AuditReport", &self::json(report, policies));
    }
    let mut text = String::new();
    for violation in violations {
        writeln!(text, "{violation}")?;
    }
    if let Some(why) = leases_unread {
        writeln!(text, "note: {why}; so a pod that holds other devices than its annotation says is not found")?;
    }
    if let Some(why) = slices_unread {
        writeln!(
            text,
            "note: {why}; so another driver that hands out GPUs is not found: grant `list` on resourceslices"
        )?;
    }
    for words in leaving.iter().chain(stuck).chain(unserved).chain(unhealthy).chain(unreadable) {
        writeln!(text, "note: {words}")?;
    }
    let policy_words = policies.words();
    let broken = policies.broken();
    for words in policy_words {
        writeln!(text, "{}{words}", if broken == 0 { "note: " } else { "" })?;
    }
    for NotedPods { pods, text: why } in other_scheduler.iter().chain(visible_devices) {
        let more = if pods.len() > 1 { format!(" and {} more", pods.len() - 1) } else { String::new() };
        writeln!(text, "note: pod {}{more}: {why}", pods.first().map_or("", String::as_str))?;
    }
    let counts = [(nodes, "node"), (devices, "Device object"), (pods_with_devices, "pod")];
    let counts = counts.map(|(count, of)| amount(*count, of)).join(", ");
    let (ask, outcome) = (if *pods_with_devices == 1 { "asks" } else { "ask" }, report.outcome(broken));
    writeln!(text, "{counts} that {ask} for devices: {outcome}")?;
    Ok(text)
}
