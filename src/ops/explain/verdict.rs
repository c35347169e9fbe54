//! A verdict as text: refusing rules, when it is tried again, advice, nodes and their devices.

use std::fmt::Write;
use std::time::Duration;

use crate::view::{age, plain};
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

/// When a pod or a gang that waits is tried: `Tried again when a node is added; at the latest in 5m0s.`
pub(super) fn tried_again(attempts: u64, wakes: &[String], next_try_seconds: Option<u64>) -> Option<String> {
    let seconds = |left| age(Duration::from_secs(left));
    let when = match (wakes, next_try_seconds) {
        ([], None) => return None,
        ([], Some(0)) => "now".to_owned(),
        ([], Some(left)) => format!("in {}", seconds(left)),
        (wakes, None) => format!("when {}", listed(wakes)),
        (wakes, Some(left)) => format!("when {}; at the latest in {}", listed(wakes), seconds(left)),
    };
    Some(format!("{} {when}.", if attempts > 0 { "Tried again" } else { "It is tried" }))
}

/// `a`, `a or b`, `a, b or c`.
fn listed(words: &[String]) -> String {
    match words {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        words => words.concat(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_gangs_say_in_one_sentence_when_they_are_tried_again() {
        let words = ["a", "b", "c"].map(str::to_owned);
        let said = |attempts, wakes: usize, next| tried_again(attempts, &words[..wakes], next).unwrap_or_default();
        assert_eq!(said(1, 1, None), "Tried again when a.");
        assert_eq!(said(1, 2, Some(300)), "Tried again when a or b; at the latest in 5m0s.");
        assert_eq!(said(0, 3, None), "It is tried when a, b or c.");
        assert_eq!(
            [said(1, 0, Some(5)), said(1, 0, Some(0)), said(1, 0, None)],
            ["Tried again in 5s.", "Tried again now.", ""]
        );
    }
}
