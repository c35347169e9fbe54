//! `baton explain gang`: one gang and its group, as the leading scheduler sees them.

use std::fmt::Write;

use super::verdict::tried_again;
use crate::view::plain;
use baton_decide::explain::GangExplanation;

/// Members that are listed; `wide` lists all.
const MEMBERS: usize = 16;

/// What `baton explain gang` prints; `wide` adds every member.
pub fn text(explanation: &GangExplanation, wide: bool) -> String {
    let mut out = String::new();
    let words = match explanation.state.as_str() {
        "otherScheduler" => "is not this scheduler's",
        "held" => "is not tried",
        "marked" => "was given up: its waiting time was over",
        "waiting" => "waits for room and holds nothing",
        "tooLarge" => "is too large for these nodes, even when they are empty",
        "holding" => "holds room for some members and waits for the others",
        "binding" => "has room and is being bound",
        "satisfied" => "is bound: its members have their nodes",
        _ => "has no living member",
    };
    let _ = writeln!(out, "Gang {} {words}.", explanation.gang);
    let _ = writeln!(out, "  {}", explanation.message);
    out.push('\n');
    let rows = explanation.group.iter().map(|gang| {
        let phase = gang.phase.map(|phase| format!("{phase:?}")).unwrap_or_default();
        vec![gang.gang.clone(), gang.placed.to_string(), gang.needed.to_string(), gang.children.to_string(), phase]
    });
    out.push_str(&plain(&["GANG", "PLACED", "NEEDED", "PODS", "PHASE"], rows));
    for (gang, warning) in explanation.group.iter().flat_map(|gang| gang.warnings.iter().map(|w| (&gang.gang, w))) {
        let _ = writeln!(out, "warning: {gang}: {warning}");
    }
    if let Some(cause) = &explanation.root_cause {
        let _ = write!(out, "\nThe first pod without a place is {}:\n  {}\n", cause.pod, cause.summary);
    }
    if let Some(found) = &explanation.one_move {
        let _ = writeln!(out, "  one move would help: {found}");
    }
    let attempts = explanation.attempts;
    let again = tried_again(attempts, &explanation.wakes, explanation.next_try_seconds);
    // One that is bound, or that another scheduler starts, is not tried.
    let tried = match attempts {
        0 => again.as_ref().map(|_| "Not tried yet.".to_owned()),
        attempts => Some(format!("Attempts: {attempts}.")),
    };
    let said: Vec<String> = tried.into_iter().chain(again).collect();
    if !said.is_empty() {
        let _ = writeln!(out, "\n{}", said.join(" "));
    }
    if let Some(since) = explanation.holding_since {
        let _ = writeln!(out, "It holds room since {since:.0}, for at most {}.", explanation.wait_time);
    }
    if explanation.advice != "nothing" {
        let _ = writeln!(out, "What to do: {}.", explanation.advice);
    }
    if wide || explanation.members.len() <= MEMBERS {
        out.push('\n');
        let rows = explanation
            .members
            .iter()
            .map(|member| vec![member.pod.clone(), member.state.clone(), member.node.clone().unwrap_or_default()]);
        out.push_str(&plain(&["POD", "STATE", "NODE"], rows));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::text;
    use serde_json::json;

    #[test]
    fn the_text_says_who_waits_for_what_and_what_to_do() {
        let explanation = json!({
            "gang": "ml/train", "state": "waiting", "reason": "Unschedulable",
            "message": "gang ml/train: 2 of 4 placed; pod ml/train-2: 0/2 nodes: 2 have fewer than 2 free GPUs",
            "advice": "free or add what the root cause asks for",
            "group": [{"gang": "ml/train", "placed": 2, "needed": 4, "children": 4, "phase": "PreScheduling",
                "warnings": ["members disagree about mode"]}],
            "rootCause": {"pod": "ml/train-2", "summary": "0/2 nodes: 2 have fewer than 2 free GPUs"},
            "attempts": 3, "nextTrySeconds": 288, "wakes": ["a node is added", "a pod leaves its node"],
            "holdingSince": null, "waitTime": "10m0s",
            "members": [{"pod": "ml/train-2", "state": "Pending", "node": null}],
        });
        let explanation = serde_json::from_value(explanation).unwrap();
        let plain = text(&explanation, false);
        for part in [
            "Gang ml/train waits for room and holds nothing.",
            "ml/train   2        4        4      PreScheduling",
            "The first pod without a place is ml/train-2:\n  0/2 nodes: 2 have fewer than 2 free GPUs",
            "Attempts: 3. Tried again when a node is added or a pod leaves its node; at the latest in 4m48s.",
            "What to do: free or add",
            "warning: ml/train: members disagree about mode",
        ] {
            assert!(plain.contains(part), "{part:?} is missing:\n{plain}");
        }
        assert!(plain.contains("ml/train-2   Pending   -") && plain == text(&explanation, true));
    }
}
