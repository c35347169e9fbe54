//! The scheduler's queue, by the answer of the leading scheduler.

use std::time::Duration;

use anyhow::bail;

use super::table::{Row, RowId, age};
use crate::leader::{LeaderArgs, LeaderClient};
use crate::live::Access;
use baton_decide::explain::{QueueItem, QueueReport};

/// Longest wait for what may be left out.
const SOON: Duration = Duration::from_secs(2);

/// What the scheduler says of nodes that take no pods and of devices that it has reserved. Nothing where it cannot be asked
/// soon: everything else of the nodes is known without it. `known` is the one that was asked before, and is found again.
pub async fn report_soon(known: &mut Option<LeaderClient>, scheduler: &LeaderArgs, access: &Access) -> QueueReport {
    let report = async {
        let leader = match known.take() {
            Some(leader) => leader,
            None => LeaderClient::find(scheduler, access).await?,
        };
        let report: QueueReport = leader.get("/queue").await?;
        *known = report.leading.then_some(leader);
        anyhow::Ok(report)
    };
    let report = tokio::time::timeout(SOON, report).await;
    report.ok().and_then(Result::ok).unwrap_or_default()
}

/// Everything queued.
pub async fn queued(leader: &LeaderClient) -> anyhow::Result<Vec<QueueItem>> {
    let report: QueueReport = leader.get("/queue").await?;
    if !report.leading {
        bail!("that scheduler follows and has no queue: use the one that leads");
    }
    Ok(report.items)
}

/// What an item is, for tables and pages: a group is a gang, or gangs that start together.
pub fn kind(item: &QueueItem) -> &str {
    match item.kind.as_str() {
        "group" => "gang",
        "jobs" => "TYJobs",
        kind => kind,
    }
}

impl Row for QueueItem {
    const WHAT: &'static str = "queued item";
    const PLURAL: &'static str = "queue";
    const NONE: &'static str = "Nothing is queued.";
    const HEADERS: &'static str =
        "NAME,KIND,PRIORITY,STATE,QUEUED,ATTEMPTS,NEXT TRY,MESSAGE,REFUSED BY,NODE,WAKES WHEN";
    const NARROW: usize = 8;
    fn id(&self) -> RowId<'_> {
        let namespace = self.name.split_once('/').map(|(namespace, _)| namespace);
        RowId { name: &self.name, namespace, node: self.node.as_deref(), labels: None }
    }
    fn cells(&self) -> Vec<String> {
        let seconds = |seconds| age(std::time::Duration::from_secs(seconds));
        vec![
            self.name.clone(),
            kind(self).to_owned(),
            self.priority.to_string(),
            self.state.to_string(),
            seconds(self.queued_seconds),
            self.attempts.to_string(),
            match self.next_try_seconds {
                Some(0) => "now".to_owned(),
                Some(left) => format!("in {}", seconds(left)),
                None => String::new(),
            },
            self.message.clone(),
            self.rules.join(","),
            self.node.clone().unwrap_or_default(),
            self.wakes.join(", "),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_decide::explain::PodState;

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
            message: "0/1 nodes: 1 has no live node daemon".into(),
        };
        assert_eq!(
            item.cells()[..QueueItem::NARROW],
            ["ml/big", "pod", "7", "parked", "1m5s", "3", "in 4m0s", "0/1 nodes: 1 has no live node daemon"]
        );
        let shown = |kind: &str| QueueItem { kind: kind.to_owned(), ..item.clone() }.cells()[1].clone();
        assert_eq!(["group", "jobs"].map(shown), ["gang", "TYJobs"]);
    }
}
