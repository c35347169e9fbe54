//! Gangs, by the answer of the leading scheduler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::output::Row;
use crate::decide::explain::GangView;
use crate::ops::leader::Leader;

/// One gang.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct GangRow(GangView);

#[derive(Deserialize)]
struct Items {
    items: Vec<GangView>,
}

/// The gangs of `namespace` (all when `None`), by namespace and name.
pub async fn rows(leader: &Leader, namespace: Option<&str>) -> anyhow::Result<Vec<GangRow>> {
    let Items { items } = leader.get("/gangs").await?;
    let here = |gang: &GangView| namespace.is_none_or(|namespace| gang.namespace == namespace);
    Ok(items.into_iter().filter(here).map(GangRow).collect())
}

impl Row for GangRow {
    const WHAT: &'static str = "gang";
    const PLURAL: &'static str = "gangs";
    const NONE: &'static str = "No gang here; -A lists every namespace.";
    const HEADERS: &'static str = "NAMESPACE,NAME,MIN,CHILDREN,RESERVED,BOUND,SATISFIED,ATTEMPTS,MODE,POLICY,WAIT,CYCLE,ROUNDS,PENDING,TOTAL,CREATED,HOLDING SINCE,GROUP,NEXT TRY,WHY";
    const NARROW: usize = 8;
    fn name(&self) -> &str {
        &self.0.name
    }
    fn namespace(&self) -> Option<&str> {
        Some(&self.0.namespace)
    }
    fn cells(&self) -> Vec<String> {
        let gang = &self.0;
        vec![
            gang.namespace.clone(),
            gang.name.clone(),
            gang.min_required_number.to_string(),
            gang.children.len().to_string(),
            gang.waiting_for_bind_children.len().to_string(),
            gang.bound_children.len().to_string(),
            if gang.resource_satisfied { "yes" } else { "no" }.to_owned(),
            gang.attempts.to_string(),
            gang.mode.clone(),
            gang.match_policy.clone(),
            gang.wait_time.clone(),
            format!("{} ({})", gang.schedule_cycle, if gang.schedule_cycle_valid { "valid" } else { "invalid" }),
            rounds(gang),
            gang.pending_children.len().to_string(),
            gang.total_children_num.to_string(),
            gang.create_time.map(|at| format!("{at:.0}")).unwrap_or_default(),
            gang.holding_since.map(|at| format!("{at:.0}")).unwrap_or_default(),
            gang.gang_group.join(","),
            gang.next_try.map(|at| format!("{at:.0}")).unwrap_or_default(),
            gang.last_failure.clone().unwrap_or_default(),
        ]
    }
}

/// Number of children by the cycle in which they were last tried: `1:3,2:1`.
fn rounds(gang: &GangView) -> String {
    let mut children: BTreeMap<u32, usize> = BTreeMap::new();
    gang.children_schedule_round_map.values().for_each(|round| *children.entry(*round).or_default() += 1);
    let words: Vec<String> = children.iter().map(|(round, count)| format!("{round}:{count}")).collect();
    words.join(",")
}
