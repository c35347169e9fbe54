//! `baton explain node`: what one node takes, as the leading scheduler sees it.

use std::fmt::Write;

use clap::Args;

use super::devices;
use super::output::Common;
use super::verdict::device_table;
use crate::complete;
use crate::say::UsageError;
use crate::view::{LockRow, Look, NodesView, Rules};
use baton_contract::name::check_subdomain;
use baton_decide::explain::{NodeExplanation, QueueReport};

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
    let mut printed = serde_json::to_value(&explanation)?;
    let mut rows = Vec::new();
    // The rows of `baton get devices` in the place of the scheduler's own, where the node's objects can be read.
    if let Some(snapshot) = devices::of_node(common, &args.node).await {
        let said: QueueReport = leader.get("/queue").await.unwrap_or_default();
        let view = NodesView::of(&snapshot, &Rules::default(), &said);
        // Under another key, which these rules do not have, the scheduler's word stands.
        let lock = view.nodes.first().and_then(|node| node.lock.as_ref()).map(LockRow::sentence);
        explanation.lock = lock.or(explanation.lock);
        printed["lock"] = serde_json::to_value(&explanation.lock)?;
        rows = view.devices;
        printed["devices"] = serde_json::to_value(&rows)?;
    }
    common.print("NodeExplanation", &printed, |_, wide| {
        let look = if wide { Look::PLAIN } else { Look { colour: false, ..Look::of_stdout(true) } };
        text_with(&explanation, (!rows.is_empty()).then(|| devices::table(&rows, look)), wide)
    })
}

/// What `baton explain node` prints.
pub fn text(explanation: &NodeExplanation, wide: bool) -> String {
    text_with(explanation, None, wide)
}

fn text_with(explanation: &NodeExplanation, rows: Option<String>, _wide: bool) -> String {
    let mut out = format!("Node {} {}.\n", explanation.node, explanation.message);
    let mut line = |what: &str, parts: &[String]| {
        if !parts.is_empty() {
            let _ = writeln!(out, "  {what} {}", parts.join(", "));
        }
    };
    line("keeps away pods that do not tolerate", &explanation.taints);
    explanation.not_given.iter().for_each(|what| line("not given to new pods:", std::slice::from_ref(what)));
    line("kept for", explanation.kept_for.as_slice());
    line("suspect, but so are too many nodes to keep pods away:", explanation.suspect.as_slice());
    line("lock:", explanation.lock.as_slice());
    line("in the queue for the lock:", &explanation.waits_for_lock);
    line("reserved for pods that are not bound yet:", &explanation.reserved_for);
    let own = || (!explanation.devices.is_empty()).then(|| device_table(&explanation.devices));
    if let Some(table) = rows.or_else(own) {
        let _ = write!(out, "\n{table}");
    }
    if let Some(advice) = &explanation.advice {
        let _ = writeln!(out, "\nWhat helps:\n- {advice}.");
    }
    out
}
