//! The scheduler's queue, by the answer of the leading scheduler.

use anyhow::bail;
use serde::Serialize;

use super::output::{Row, age};
use crate::decide::explain::{QueueItem, QueueReport};
use crate::ops::leader::Leader;

/// One queued item.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct QueueRow(QueueItem);

/// Everything queued.
pub async fn rows(leader: &Leader) -> anyhow::Result<Vec<QueueRow>> {
    let report: QueueReport = leader.get("/queue").await?;
    if !report.leading {
        bail!("that scheduler follows and has no queue: use the one that leads");
    }
    Ok(report.items.into_iter().map(QueueRow).collect())
}

impl Row for QueueRow {
    const WHAT: &'static str = "queued item";
    const PLURAL: &'static str = "queue";
    const NONE: &'static str = "Nothing is queued.";
    const HEADERS: &'static str =
        "NAME,KIND,PRIORITY,STATE,QUEUED,ATTEMPTS,NEXT TRY,REFUSED BY,NODE,WAKES WHEN,MESSAGE";
    const NARROW: usize = 8;
    fn name(&self) -> &str {
        &self.0.name
    }
    fn namespace(&self) -> Option<&str> {
        self.0.name.split_once('/').map(|(namespace, _)| namespace)
    }
    fn cells(&self) -> Vec<String> {
        let item = &self.0;
        let seconds = |seconds| age(std::time::Duration::from_secs(seconds));
        vec![
            item.name.clone(),
            item.kind.clone(),
            item.priority.to_string(),
            item.state.to_string(),
            seconds(item.queued_seconds),
            item.attempts.to_string(),
            match item.next_try_seconds {
                Some(0) => "now".to_owned(),
                Some(left) => format!("in {}", seconds(left)),
                None => String::new(),
            },
            item.rules.join(","),
            item.node.clone().unwrap_or_default(),
            item.wakes.join(", "),
            item.message.clone(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::explain::PodState;
    use crate::ops::get::output::table;

    #[test]
    fn an_item_says_what_it_waits_for() {
        let item = QueueItem {
            kind: "pod".into(),
            name: "ml/big".into(),
            priority: 7,
            state: PodState::Parked,
            attempts: 3,
            queued_seconds: 65,
            next_try_seconds: Some(240),
            wakes: vec!["a pod leaves its node".into()],
            rules: vec!["DeviceFit".into()],
            node: None,
            message: "0/1 nodes: 1 agent not ready".into(),
        };
        let text = table(&[QueueRow(item)], false);
        let line = text.lines().nth(1).unwrap();
        let cells: Vec<&str> = line.split("   ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["ml/big", "pod", "7", "parked", "1m5s", "3", "in 4m0s", "DeviceFit"]);
    }
}
