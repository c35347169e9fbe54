//! A verdict as text: refusing rules, advice, nodes and their devices.

use std::fmt::Write;

use crate::view::plain;
use baton_decide::explain::{DeviceDetail, PodVerdict, on_nodes};

/// Each reason once, with its nodes, and the node that is nearest. The rules are named beside each node.
pub(super) fn refusals(out: &mut String, verdict: &PodVerdict) {
    // What refuses the pod itself is shown already.
    if verdict.rules.iter().any(|rule| rule.count == 0) {
        out.push_str("  it is the pod itself that is refused, whatever the nodes are\n");
        return;
    }
    if verdict.rules.is_empty() {
        return;
    }
    for rule in &verdict.rules {
        let more = if rule.count > rule.examples.len() { ", …" } else { "" };
        let reason = on_nodes(rule.count, &rule.reason);
        let _ = writeln!(out, "  {reason} ({}{more})", rule.examples.join(", "));
    }
    if let Some(nearest) = &verdict.nearest {
        let _ = writeln!(out, "  Nearest: {nearest}.");
    }
}

/// What to do.
pub(super) fn advice(out: &mut String, verdict: &PodVerdict) {
    let a_move = verdict.one_move.as_ref().map(|found| format!("Move one pod: {found}"));
    let mut all = a_move.iter().chain(&verdict.advice).peekable();
    if all.peek().is_some() {
        out.push_str("\nWhat helps:\n");
    }
    for text in all {
        let _ = writeln!(out, "- {text}.");
    }
}

fn device_row(device: &DeviceDetail) -> Vec<String> {
    let health = if device.healthy { "healthy" } else { "unhealthy" };
    let cordon = device.cordon.as_ref().map(|cordon| format!(", {cordon}")).unwrap_or_default();
    vec![
        device.name(),
        device.id.clone(),
        format!("{health}{cordon}"),
        device.free.clone(),
        device.held_by.iter().chain(&device.still_used).cloned().collect::<Vec<_>>().join(", "),
    ]
}

/// The devices of one node.
pub(super) fn device_table(devices: &[DeviceDetail]) -> String {
    plain(&["DEVICE", "ID", "HEALTH", "FREE", "HELD BY"], devices.iter().map(device_row))
}

/// Every node, and each of its devices.
pub(super) fn nodes(out: &mut String, verdict: &PodVerdict) {
    let mut rows = Vec::new();
    for node in &verdict.nodes {
        let why = match (&node.rule, &node.reason) {
            (Some(rule), Some(reason)) => format!("{rule}: {reason}"),
            (None, Some(reason)) => reason.clone(),
            (_, None) => "fits".to_owned(),
        };
        rows.push(vec![node.node.clone(), why, String::new(), String::new(), String::new()]);
        rows.extend(node.devices.iter().map(|device| {
            let mut row = device_row(device);
            row[0].insert_str(0, "  ");
            row
        }));
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n{}", plain(&["NODE OR DEVICE", "VERDICT OR ID", "HEALTH", "FREE", "HELD BY"], rows));
    }
}
