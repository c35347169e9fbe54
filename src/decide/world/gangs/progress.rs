//! What only attempts know of a group: kept by who attempts, shown with the gang.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::decide::world::PodId;

/// The progress of one group. The times are wall times, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangProgress {
    /// Number of the schedule cycle, from 1.
    pub cycle: u32,
    /// No member has failed in this cycle.
    pub cycle_valid: bool,
    /// The last cycle in which each member was reserved, failed or refused; members that were not yet offered are absent (0).
    pub rounds: BTreeMap<PodId, u32>,
    /// Since when members are reserved and wait for others.
    pub holding_since: Option<Timestamp>,
    /// Attempts of the group so far.
    pub attempts: u64,
    /// When the group is tried again, where only time is waited for.
    pub next_try: Option<Timestamp>,
    /// Why the last attempt failed; `None` after a success.
    pub last_failure: Option<String>,
    /// Every gang of the group was satisfied at once.
    pub satisfied_once: bool,
}

impl Default for GangProgress {
    fn default() -> Self {
        Self {
            cycle: 1,
            cycle_valid: true,
            rounds: BTreeMap::new(),
            holding_since: None,
            attempts: 0,
            next_try: None,
            last_failure: None,
            satisfied_once: false,
        }
    }
}
