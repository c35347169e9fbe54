//! A verdict as text: refusing rules, advice, nodes and their devices.

use std::fmt::Write;

use crate::decide::explain::{PodVerdict, RuleCount};
use crate::ops::get::plain;

/// The table of rules, reasons and nodes.
pub(super) fn refusals(out: &mut String, verdict: &PodVerdict) {
    // What refuses the pod itself is shown already.
    if let Some(rule) = verdict.rules.iter().find(|rule| rule.count == 0) {
        let _ = writeln!(out, "  rule {} refuses the pod itself, whatever the nodes are", rule.rule);
        return;
    }
    if verdict.rules.is_empty() {
        return;
    }
    let row = |rule: &RuleCount| {
        let more = if rule.count > rule.examples.len() { ", …" } else { "" };
        vec![rule.count.to_string(), rule.rule.clone(), rule.reason.clone(), rule.examples.join(", ") + more]
    };
    let _ = write!(out, "\n{}", plain(&["REFUSED", "BY RULE", "BECAUSE", "NODES"], verdict.rules.iter().map(row)));
}

/// What to do.
pub(super) fn advice(out: &mut String, verdict: &PodVerdict) {
    if verdict.advice.is_empty() {
        return;
    }
    out.push_str("\nWhat helps:\n");
    for text in &verdict.advice {
        let _ = writeln!(out, "- {text}.");
    }
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
        for device in &node.devices {
            let health = if device.healthy { "healthy" } else { "unhealthy" };
            let cordon = device.cordon.as_ref().map(|cordon| format!(", {cordon}")).unwrap_or_default();
            rows.push(vec![
                format!("  {} {}", device.kind, device.minor),
                device.id.clone(),
                format!("{health}{cordon}"),
                device.free.clone(),
                device.held_by.join(", "),
            ]);
        }
    }
    if !rows.is_empty() {
        let _ = write!(out, "\n{}", plain(&["NODE OR DEVICE", "VERDICT OR ID", "HEALTH", "FREE", "HELD BY"], rows));
    }
}
