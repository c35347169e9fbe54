//! Gangs, by the answer of the leading scheduler.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::table::{Row, RowId};
use crate::leader::LeaderClient;
use baton_decide::explain::GangView;

/// What the scheduler answers at `/gangs`.
#[derive(Deserialize)]
pub(crate) struct GangItems {
    /// By namespace and name.
    pub items: Vec<GangView>,
}

/// The gangs of `namespace` (all when `None`), by namespace and name.
pub async fn gangs(leader: &LeaderClient, namespace: Option<&str>) -> anyhow::Result<Vec<GangView>> {
    let GangItems { items } = leader.get("/gangs").await?;
    let here = |gang: &GangView| namespace.is_none_or(|namespace| gang.namespace == namespace);
    Ok(items.into_iter().filter(here).collect())
}

impl Row for GangView {
    const WHAT: &'static str = "gang";
    const PLURAL: &'static str = "gangs";
    const NONE: &'static str = "No gang here; -A lists every namespace.";
    const HEADERS: &'static str = "NAMESPACE,NAME,MIN,MEMBERS,SATISFIED,ATTEMPTS,WHY,MODE,POLICY,WAIT,CYCLE,ROUNDS,TOTAL,CREATED,HOLDING SINCE,GROUP,NEXT TRY";
    const NARROW: usize = 7;
    fn id(&self) -> RowId<'_> {
        RowId { name: &self.name, namespace: Some(&self.namespace), ..RowId::default() }
    }
    fn cells(&self) -> Vec<String> {
        vec![
            self.namespace.clone(),
            self.name.clone(),
            self.min_required_number.to_string(),
            self.members(),
            if self.resource_satisfied { "yes" } else { "no" }.to_owned(),
            self.attempts.to_string(),
            self.last_failure.clone().unwrap_or_default(),
            self.mode.clone(),
            self.match_policy.clone(),
            self.wait_time.clone(),
            format!("{} ({})", self.schedule_cycle, if self.schedule_cycle_valid { "valid" } else { "invalid" }),
            rounds(self),
            self.total_children_num.to_string(),
            self.create_time.map(|at| format!("{at:.0}")).unwrap_or_default(),
            self.holding_since.map(|at| format!("{at:.0}")).unwrap_or_default(),
            self.gang_group.join(","),
            self.next_try.map(|at| format!("{at:.0}")).unwrap_or_default(),
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
