//! The command line of `baton doctor`, and the order of its checks.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::report::DoctorReport;
use super::{
    access, admission, agreement, bypass, cdi, containerd, kubelet, machine, objects, offered, shares, slices, state,
};
use crate::config;
use crate::say::{Format, say};
use crate::settings;
use baton_agent::AgentOptions;
use baton_decide::health::{condition_table, xid_table};

#[derive(Args)]
struct ReportArgs {
    /// Another format than text
    #[arg(short, long, value_name = "json|yaml")]
    output: Option<Format>,
    /// Directory of the host's root, for the container runtime's configuration [default: --driver-root when --host-driver-root is /,
    /// else /]
    #[arg(long, value_name = "DIR")]
    host_root: Option<String>,
    /// Print the table of conditions by which the node daemon and this command judge devices, and look at nothing
    #[arg(long)]
    conditions: bool,
}

/// Adds the daemon's own flags, and those of the report.
pub fn arguments(command: Command) -> Command {
    let node = "Name of this node in the cluster [env: NODE_NAME] [default: the name of this machine]";
    let command = ReportArgs::augment_args(config::arguments(command, &settings::agent()));
    // The daemon needs its name; a check of a machine by hand may do without.
    command.mut_arg("node-name", |arg| arg.help(node))
}

/// Checks and prints. The exit code is 1 when a check failed.
pub async fn run(mut options: AgentOptions, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let args = ReportArgs::from_arg_matches(matches)?;
    if args.conditions {
        say(format!("{}\n{}", condition_table(), xid_table()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.node_name.is_empty() {
        options.node_name = host_name(&options).unwrap_or_default();
    }
    if let Err(error) = options.validate() {
        return Err(config::ConfigError::unusable("doctor", error).into());
    }
    let host_root = args.host_root.map_or_else(|| host_root(&options), |root| (root.into(), true));
    let report = examine(options, host_root).await?;
    say(match args.output {
        Some(format) => format.print_as("DoctorReport", &report.json())?,
        None => report.text(),
    })?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// A kubelet without a name of its own takes the machine's.
fn host_name(options: &AgentOptions) -> Option<String> {
    let path = options.paths.proc_root.join("sys/kernel/hostname");
    std::fs::read_to_string(path).ok().map(|name| name.trim().to_ascii_lowercase())
}

/// Where the host's files are, and whether that is known: in a container that has the driver's root alone, they are not seen.
fn host_root(options: &AgentOptions) -> (PathBuf, bool) {
    let paths = &options.paths;
    match &paths.host_driver_root {
        Some(root) if root.as_os_str() == "/" => (paths.driver_root.clone(), true),
        _ => ("/".into(), std::env::var_os("KUBERNETES_SERVICE_HOST").is_none()),
    }
}

async fn examine(options: AgentOptions, (host_root, is_host): (PathBuf, bool)) -> anyhow::Result<DoctorReport> {
    let looked = options.clone();
    let (seen, mut findings) = tokio::task::spawn_blocking(move || machine::look(&looked)).await?;
    let state = state::look(&options, &seen.boot_id);
    findings.extend(kubelet::look(&options).await);
    findings.extend(cdi::look(&options, &seen, state.agent_runs));
    findings.push(shares::look(&options));
    findings.extend(state.findings.clone());
    let cluster = objects::read(&options).await;
    findings.extend(cluster.findings.clone());
    if let Some(client) = &cluster.client {
        findings.extend(access::look(client, &options.namespace).await);
        findings.extend(admission::look(client, &options.namespace, &options.node_lock_key).await);
        findings.push(agreement::look(client, &options, cluster.lease.as_ref()).await);
        findings.push(slices::look(client, &options.node_name).await);
    }
    findings.push(containerd::look(&options, &host_root, cluster.node.as_ref()));
    findings.push(bypass::look(&options, (&host_root, is_host), cluster.node.as_ref()));
    findings.extend(offered::look(&options, &seen, &cluster, state.agent_runs));
    Ok(DoctorReport::new(&options.node_name, findings))
}
