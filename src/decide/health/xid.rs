//! What each XID means. Defaults as NVIDIA's device plugin has them, changed by a table and by its two variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// XIDs that an application causes and the GPU survives: graphics exception, page fault, stopped processing, preemptive
/// cleanup, video processor exception, context switch timeout.
const APPLICATION_ERRORS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// What an XID leads to; later is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum XidAction {
    /// Only counted.
    Ignore,
    /// Counted and told; the GPU stays in service.
    Warn,
    /// Out of service until it proves itself again.
    Unhealthy,
    /// Out of service until it was reset.
    NeedsReset,
    /// Out of service until the node was rebooted.
    NeedsReboot,
}

/// The text names no action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no XID action; expected one of ignore, warn, unhealthy, needs-reset, needs-reboot")]
pub struct BadAction(pub String);

impl FromStr for XidAction {
    type Err = BadAction;

    fn from_str(text: &str) -> Result<Self, BadAction> {
        match text {
            "ignore" => Ok(Self::Ignore),
            "warn" => Ok(Self::Warn),
            "unhealthy" => Ok(Self::Unhealthy),
            "needs-reset" => Ok(Self::NeedsReset),
            "needs-reboot" => Ok(Self::NeedsReboot),
            other => Err(BadAction(other.chars().take(64).collect())),
        }
    }
}

impl fmt::Display for XidAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ignore => "ignore",
            Self::Warn => "warn",
            Self::Unhealthy => "unhealthy",
            Self::NeedsReset => "needs-reset",
            Self::NeedsReboot => "needs-reboot",
        })
    }
}

/// The action of every XID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XidPolicy {
    table: BTreeMap<u64, XidAction>,
    disabled: Selection,
    enabled: Selection,
}

/// A list of XIDs as NVIDIA's variables write it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Selection {
    all: bool,
    xids: BTreeSet<u64>,
}

impl Selection {
    /// `all` or `xids` selects every XID; otherwise a comma list, in which what is no number is passed over.
    fn parse(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let words = || text.split(',').map(str::trim);
        let all = words().any(|word| word == "all" || word == "xids");
        let xids = if all { BTreeSet::new() } else { words().filter_map(|word| word.parse().ok()).collect() };
        Self { all, xids }
    }
}

impl XidPolicy {
    /// `table` overrides the defaults; `disable` and `enable` are the texts of `DP_DISABLE_HEALTHCHECKS` and
    /// `DP_ENABLE_HEALTHCHECKS`. What is enabled by name is acted on whatever else says no; `enable` of `all` turns
    /// even the application errors on.
    pub fn new(table: BTreeMap<u64, XidAction>, disable: Option<&str>, enable: Option<&str>) -> Self {
        let parse = |text: Option<&str>| text.map(Selection::parse).unwrap_or_default();
        Self { table, disabled: parse(disable), enabled: parse(enable) }
    }

    /// What `xid` leads to.
    pub fn action(&self, xid: u64) -> XidAction {
        let written = self.table.get(&xid).copied();
        if self.enabled.all || self.enabled.xids.contains(&xid) {
            return written.filter(|action| *action != XidAction::Ignore).unwrap_or(XidAction::Unhealthy);
        }
        if self.disabled.all || self.disabled.xids.contains(&xid) {
            return XidAction::Ignore;
        }
        let default = if APPLICATION_ERRORS.contains(&xid) { XidAction::Ignore } else { XidAction::Unhealthy };
        written.unwrap_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(disable: Option<&str>, enable: Option<&str>) -> XidPolicy {
        XidPolicy::new(BTreeMap::new(), disable, enable)
    }

    #[test]
    fn application_errors_are_ignored_and_all_others_take_the_gpu_out() {
        let policy = XidPolicy::default();
        for xid in 0..200 {
            let ignored = [13, 31, 43, 45, 68, 109].contains(&xid);
            let expected = if ignored { XidAction::Ignore } else { XidAction::Unhealthy };
            assert_eq!(policy.action(xid), expected, "XID {xid}");
        }
    }

    #[test]
    fn the_table_overrides_the_defaults() {
        let table = BTreeMap::from([(13, XidAction::Warn), (79, XidAction::NeedsReboot), (94, XidAction::Ignore)]);
        let policy = XidPolicy::new(table, None, None);
        let actions = [13, 79, 94, 48].map(|xid| policy.action(xid));
        assert_eq!(actions, [XidAction::Warn, XidAction::NeedsReboot, XidAction::Ignore, XidAction::Unhealthy]);
    }

    #[test]
    fn disable_takes_a_list_or_all_or_xids_in_any_case() {
        assert_eq!(policy(Some("48, 79"), None).action(79), XidAction::Ignore);
        assert_eq!(policy(Some("48, 79"), None).action(62), XidAction::Unhealthy);
        for all in ["all", "ALL", "xids", "48,xids"] {
            assert_eq!(policy(Some(all), None).action(62), XidAction::Ignore, "{all}");
        }
        assert_eq!(policy(Some(""), None), XidPolicy::default());
        assert_eq!(policy(Some("x,-3,48"), None).action(48), XidAction::Ignore, "what is no number is passed over");
    }

    #[test]
    fn enable_wins_over_disable_and_over_the_defaults() {
        assert_eq!(policy(Some("all"), Some("79")).action(79), XidAction::Unhealthy);
        assert_eq!(policy(Some("all"), Some("79")).action(48), XidAction::Ignore);
        assert_eq!(policy(None, Some("13")).action(13), XidAction::Unhealthy);
        assert_eq!(policy(Some("48"), Some("all")).action(48), XidAction::Unhealthy);
        assert_eq!(policy(None, Some("all")).action(31), XidAction::Unhealthy);
        let table = BTreeMap::from([(48, XidAction::NeedsReset)]);
        assert_eq!(XidPolicy::new(table, Some("all"), Some("48")).action(48), XidAction::NeedsReset);
    }

    #[test]
    fn actions_are_read_as_they_are_printed() {
        use XidAction::{Ignore, NeedsReboot, NeedsReset, Unhealthy, Warn};
        for action in [Ignore, Warn, Unhealthy, NeedsReset, NeedsReboot] {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        assert!("explode".parse::<XidAction>().unwrap_err().to_string().contains("explode"));
    }
}
