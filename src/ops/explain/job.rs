//! `baton explain job namespace/name`: its turn, its share, its places, and the rating of each node for the pods without one.

use std::fmt::Write;

use crate::view::plain;
use baton_decide::explain::{JobExplanation, NodeRating, SeatExplanation};

/// Nodes that are shown of each kind of pod; the wide output shows all.
const SHOWN: usize = 5;
/// Metrics are kept in billionths.
const UNIT: f64 = 1e9;

/// What `baton explain job` prints; `wide` shows every node.
pub fn text(answer: &JobExplanation, wide: bool) -> String {
    let mut out = String::new();
    let state = answer.schedule_state.map(|state| format!(" ({state:?})")).unwrap_or_default();
    let _ = writeln!(out, "TYJob {} is {}{state}, attempt {}.", answer.job, answer.class, answer.attempt);
    if !answer.message.is_empty() {
        let _ = writeln!(out, "  {}", answer.message);
    }
    let (queue, basic) = (&answer.job_queue_policy, &answer.basic_policy);
    let _ = writeln!(out, "  priority {}, queue {queue}, nodes by {basic}", answer.priority);
    if let Some((turn, of)) = answer.turn {
        let _ = writeln!(out, "  turn {turn} of {of} waiting jobs");
    }
    if let Some(resource) = &answer.dominant_resource {
        let _ = writeln!(out, "  dominant share {:.3}, of {resource}", answer.dominant_share);
    }
    if !answer.seats.is_empty() {
        let row = |seat: &SeatExplanation| {
            let more = if seat.pods > 1 { format!(" and {} more like it", seat.pods - 1) } else { String::new() };
            vec![format!("{}{more}", seat.pod), seat.state.clone(), seat.node.clone().unwrap_or_default()]
        };
        let _ = write!(out, "\n{}", plain(&["POD", "PLACE", "NODE"], answer.seats.iter().map(row)));
    }
    for seat in &answer.seats {
        if let Some(why) = &seat.refused {
            let _ = writeln!(out, "\n{} cannot be placed anywhere: {why}", seat.pod);
        }
        if !seat.nodes.is_empty() {
            let _ = writeln!(out, "\nNodes for {}:", seat.pod);
            let shown = if wide { seat.nodes.len() } else { SHOWN };
            let rows = seat.nodes.iter().take(shown).map(|node| cells(node, basic));
            let _ = write!(out, "{}", plain(&["NODE", "RANK", "WHY NOT"], rows));
            if let Some(left) = seat.nodes.len().checked_sub(shown).filter(|left| *left > 0) {
                let _ = writeln!(out, "and {left} more; -o wide shows all");
            }
        }
    }
    out
}

fn cells(node: &NodeRating, basic: &str) -> Vec<String> {
    let rank = node.rank.map(|rank| {
        let metric = rank.metric as f64 / UNIT;
        match basic {
            "JobAffinity" => format!("{} of the job here, room for {}, {metric:.3}", rank.company, rank.room),
            "JobAntiAffinity" => format!("{} of the job here, {metric:.3}", -rank.company),
            _ => format!("{metric:.3}"),
        }
    });
    vec![node.node.clone(), rank.unwrap_or_default(), node.refused.clone().unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_contract::tyjob::ScheduleState;
    use baton_decide::tyjob::placement::Rank;

    #[test]
    fn a_waiting_job_shows_its_turn_its_share_and_its_nodes() {
        let rating = |node: &str, metric, refused: Option<&str>| NodeRating {
            node: node.to_owned(),
            rank: refused.is_none().then_some(Rank { company: 0, room: 0, metric }),
            refused: refused.map(str::to_owned),
        };
        let answer = JobExplanation {
            job: "ml/rl".into(),
            class: "waiting".into(),
            schedule_state: Some(ScheduleState::Unscheduled),
            message: "the leader has no place".into(),
            turn: Some((2, 7)),
            priority: 5,
            job_queue_policy: "DRF".into(),
            basic_policy: "BinPack".into(),
            dominant_share: 0.4,
            dominant_resource: Some("memory".into()),
            attempt: 0,
            seats: vec![SeatExplanation {
                pod: "rl-actor-0".into(),
                pods: 3,
                node: None,
                state: "missing".into(),
                nodes: vec![rating("n1", 850_000_000, None), rating("n2", 0, Some("insufficient cpu"))],
                refused: None,
            }],
        };
        let text = text(&answer, false);
        for part in [
            "TYJob ml/rl is waiting (Unscheduled), attempt 0.",
            "turn 2 of 7 waiting jobs",
            "dominant share 0.400, of memory",
            "rl-actor-0 and 2 more like it",
            "0.850",
            "insufficient cpu",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
