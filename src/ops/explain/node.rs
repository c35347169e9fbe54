//! `baton explain node`: what one node takes, as the leading scheduler sees it.

use std::fmt::Write;

use clap::Args;

use super::devices;
use super::output::Common;
use super::verdict::device_table;
use crate::complete;
use crate::say::UsageError;
use baton_contract::name::check_subdomain;
use baton_decide::explain::NodeExplanation;

/// Arguments of `baton explain node`.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Name.
    #[arg(value_name = "NAME", add = complete::nodes())]
    pub node: String,
}

pub(super) async fn run(args: &NodeArgs, common: &Common) -> anyhow::Result<String> {
    check_subdomain("name", &args.node).map_err(|bad| UsageError(format!("{:?} is no node: {bad}", args.node)))?;
    let leader = common.leader().await?;
    let mut explanation: NodeExplanation = leader.get(&format!("/nodes/{}", args.node)).await?;
    if explanation.devices.iter().any(|device| !device.healthy)
        && let Some(snapshot) = devices::of_node(common, &args.node).await
    {
        devices::add_reasons(&mut explanation.devices, &snapshot);
    }
    common.print(&explanation, text)
}

/// What `baton explain node` prints.
pub fn text(explanation: &NodeExplanation, _wide: bool) -> String {
    let mut out = format!("Node {} {}.\n", explanation.node, explanation.message);
    let mut line = |what: &str, parts: &[String]| {
        if !parts.is_empty() {
            let _ = writeln!(out, "  {what} {}", parts.join(", "));
        }
    };
    line("only for pods that tolerate", &explanation.taints);
    line("kept for", explanation.kept_for.as_slice());
    line("suspect, but so are too many nodes to keep pods away:", explanation.suspect.as_slice());
    line("lock:", explanation.lock.as_slice());
    line("in the queue for the lock:", &explanation.waits_for_lock);
    line("reserved for pods that are not bound yet:", &explanation.reserved_for);
    if !explanation.devices.is_empty() {
        let _ = write!(out, "\n{}", device_table(&explanation.devices));
        for device in &explanation.devices {
            let Some(reason) = &device.reason else { continue };
            let since = device.since.map(|since| format!(" since {since:.0}")).unwrap_or_default();
            let _ = writeln!(out, "{} is out of service{since}: {reason}", device.name());
        }
    }
    if let Some(advice) = &explanation.advice {
        let _ = writeln!(out, "\nWhat helps:\n- {advice}.");
    }
    out
}
