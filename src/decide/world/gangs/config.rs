//! What holds for a gang by its members, its PodGroup and the configuration.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use baton_contract::gang::{Committed, GangId, MAX_WAIT, MatchPolicy, Mode, TimeoutClock, TopologyLayer};

/// The installation's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangDefaults {
    /// Waiting time of a gang that states none. 600 s.
    pub wait: Duration,
    /// Which members count. Once-satisfied.
    pub policy: MatchPolicy,
    /// `spec.schedulingGroup` names gangs, and PodGroups of `scheduling.k8s.io` are read.
    pub scheduling_groups: bool,
    /// A longer waiting time counts as this. 7 days, and never more.
    pub max_wait: Duration,
    /// Layers of the cluster, outermost first. Zone and NVLink domain.
    pub layers: Arc<[TopologyLayer]>,
}

impl Default for GangDefaults {
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(600),
            policy: MatchPolicy::default(),
            scheduling_groups: true,
            max_wait: MAX_WAIT,
            layers: TopologyLayer::defaults().into(),
        }
    }
}

/// What holds for one gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GangConfig {
    /// Fewest members; 0 means no gang rule; `None` when none is stated.
    pub min: Option<u32>,
    /// All members, as stated, never below the minimum. Shown only: what is offered is what exists.
    pub total: u32,
    /// What one failure means for the others.
    pub mode: Mode,
    /// Which members count.
    pub policy: MatchPolicy,
    /// Waiting time.
    pub wait: Duration,
    /// Members or PodGroup state it.
    pub wait_stated: bool,
    /// When that time begins, where it is stated.
    pub clock: Option<TimeoutClock>,
}

/// Gangs that start together: sorted, unique, never empty. Most groups are one gang. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(Arc<[GangId]>);

impl GroupId {
    /// One gang by itself.
    pub fn alone(gang: &GangId) -> Self {
        Self([gang.clone()].into())
    }

    /// What `gang` lists; it is implied in its own list.
    pub fn listed(gang: &GangId, listed: &BTreeSet<GangId>) -> Self {
        if listed.contains(gang) {
            Self(listed.iter().cloned().collect())
        } else {
            let mut all: Vec<GangId> = listed.iter().cloned().collect();
            all.insert(all.partition_point(|other| other < gang), gang.clone());
            Self(all.into())
        }
    }

    /// The gangs.
    pub fn gangs(&self) -> &[GangId] {
        &self.0
    }

    /// One gang by itself.
    pub fn is_alone(&self) -> bool {
        self.0.len() == 1
    }

    /// A commit of this group.
    pub fn commit(&self, attempt: Timestamp, members: u32) -> Committed {
        Committed { attempt, group: self.digits(), members }
    }

    /// `true` when the commit was this group's. A pod that moves to another gang takes its annotations along, and a group that
    /// is formed later finds commits of its gangs: neither proves that all of it was satisfied.
    pub fn made(&self, commit: &Committed) -> bool {
        commit.group == self.digits()
    }

    /// The same for the same gangs in every process: FNV-1a over their names.
    fn digits(&self) -> u16 {
        let names = self.0.iter().flat_map(|gang| [gang.namespace(), "/", gang.name(), ","]);
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        (names.flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, mix) % 1000) as u16
    }

    /// `true` when the gang is in it.
    pub fn contains(&self, gang: &GangId) -> bool {
        self.0.binary_search(gang).is_ok()
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (at, gang) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{gang}", if at == 0 { "" } else { ", " })?;
        }
        if self.0.len() > SHOWN {
            write!(f, " and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_the_sorted_list_with_the_gang_itself() {
        let id = |text: &str| GangId::parse(text).unwrap();
        let listed = |of: &str, gangs: &[&str]| GroupId::listed(&id(of), &gangs.iter().map(|gang| id(gang)).collect());
        assert_eq!(listed("a/m", &["b/x", "a/a"]).to_string(), "a/a, a/m, b/x");
        assert_eq!(listed("a/m", &["b/x", "a/m"]), listed("b/x", &["a/m"]));
        assert_eq!(listed("a/m", &[]), GroupId::alone(&id("a/m")));
        assert!(listed("a/m", &["b/x"]).contains(&id("b/x")) && !listed("a/m", &["b/x"]).contains(&id("b/y")));
        let many: Vec<String> = (0..12).map(|n| format!("a/g{n:02}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(listed("a/g00", &many).to_string().ends_with("a/g07 and 4 more"));
    }
}
