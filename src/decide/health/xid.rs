//! What each XID means, and what it leads to. Defaults as NVIDIA's device plugin has them, changed by a table and by its two variables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use baton_contract::word::word_enum;

/// XIDs that an application causes and the GPU survives: graphics exception, page fault, stopped processing, preemptive
/// cleanup, video processor exception, context switch timeout.
const APPLICATION_ERRORS: [u64; 6] = [13, 31, 43, 45, 68, 109];

word_enum! {
    /// What an XID leads to; later is worse.
    XidAction {
        /// It is only counted.
        Ignore = "ignore",
        /// It is counted and logged; the GPU stays in service.
        Warn = "warn",
        /// Out of service until the GPU proves itself again.
        Unhealthy = "unhealthy",
        /// Out of service until the GPU was reset.
        NeedsReset = "needs-reset",
        /// Out of service until the node was rebooted.
        NeedsReboot = "needs-reboot",
    }
}

/// The action of every XID.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XidPolicy {
    table: BTreeMap<u64, XidAction>,
    disabled: BTreeSet<u64>,
    enabled: BTreeSet<u64>,
}

/// The XID that a word of NVIDIA's variables names; 0, which is none, stands for every one, as do `all` and `xids`.
pub fn xid_named(word: &str) -> Option<u64> {
    let word = word.trim().to_lowercase();
    let number = || word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?;
    if word == "all" || word == "xids" { Some(0) } else { number() }
}

impl XidPolicy {
    /// `table` overrides the defaults; `disable` and `enable` are the texts of `DP_DISABLE_HEALTHCHECKS` and
    /// `DP_ENABLE_HEALTHCHECKS`; what names no XID is passed over. What is enabled by name is acted on whatever else says no;
    /// `enable` of `all` turns even the application errors on.
    pub fn new(table: BTreeMap<u64, XidAction>, disable: Option<&str>, enable: Option<&str>) -> Self {
        let parse =
            |text: Option<&str>| text.into_iter().flat_map(|text| text.split(',')).filter_map(xid_named).collect();
        Self { table, disabled: parse(disable), enabled: parse(enable) }
    }

    /// What `xid` leads to.
    pub fn action(&self, xid: u64) -> XidAction {
        let action = self.table.get(&xid).copied().unwrap_or_else(|| by_default(xid));
        let names = |xids: &BTreeSet<u64>| xids.contains(&0) || xids.contains(&xid);
        if names(&self.enabled) {
            return if action == XidAction::Ignore { XidAction::Unhealthy } else { action };
        }
        if names(&self.disabled) {
            return XidAction::Ignore;
        }
        action
    }
}

/// What mends the GPU decides: one that answers probes again without the reset that it needs is not mended.
fn by_default(xid: u64) -> XidAction {
    let needs_reset = XIDS.iter().any(|rule| rule.xid == xid && matches!(rule.remedy, XidRemedy::Reset(_)));
    match xid {
        _ if needs_reset => XidAction::NeedsReset,
        _ if APPLICATION_ERRORS.contains(&xid) => XidAction::Ignore,
        _ => XidAction::Unhealthy,
    }
}

word_enum! {
    /// What is mostly to blame for an XID.
    XidOrigin {
        /// The program that used the GPU.
        Application = "application",
        /// The GPU, its memory, firmware or links.
        Hardware = "hardware",
    }
}

/// What to do about an XID.
#[derive(Clone, Copy, Debug)]
pub enum XidRemedy {
    /// Reset the GPU, for nothing less mends it; the text goes on from there.
    Reset(&'static str),
    /// What the text says. NVIDIA asks for no reset, or only where something else fails too.
    Other(&'static str),
}

impl fmt::Display for XidRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset(more) => write!(f, "reset the GPU{more}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// An XID in words.
#[derive(Clone, Copy, Debug)]
pub struct XidRule {
    /// Its number.
    pub xid: u64,
    /// What is mostly to blame.
    pub origin: XidOrigin,
    /// What it is.
    pub words: &'static str,
    /// What to do.
    pub remedy: XidRemedy,
}

const fn row(xid: u64, origin: XidOrigin, words: &'static str, remedy: XidRemedy) -> XidRule {
    XidRule { xid, origin, words, remedy }
}

use XidOrigin::{Application, Hardware};
use XidRemedy::{Other, Reset};

/// The XIDs that matter, after NVIDIA's catalogue: <https://docs.nvidia.com/deploy/xid-errors/>.
#[rustfmt::skip]
pub const XIDS: &[XidRule] = &[
    row(13, Application, "graphics engine exception",
        Other("the program used a wrong address or instruction: look at it with compute-sanitizer")),
    row(31, Application, "GPU memory page fault",
        Other("the program read or wrote where it has no memory: look at it with compute-sanitizer")),
    row(32, Hardware, "invalid or corrupted push buffer stream", Other("look at the PCIe link and the system memory of the node")),
    row(43, Application, "GPU stopped processing", Other("start the program again")),
    row(45, Application, "preemptive cleanup, due to previous errors", Other("look at the error before it")),
    row(46, Hardware, "GPU stopped processing, beyond the program's own channel", Reset("; if it returns, have the GPU replaced")),
    row(48, Hardware, "double bit ECC error", Reset("; if it returns, have the GPU replaced")),
    row(61, Hardware, "internal micro-controller breakpoint or warning", Reset(", and update its driver")),
    row(62, Hardware, "internal micro-controller halt", Reset(", and update its driver")),
    row(63, Hardware, "ECC page retirement or row remapping", Other("reset the GPU when it is idle, so that the row is remapped")),
    row(64, Hardware, "ECC page retirement or row remapping failed", Reset("; if it returns, have the GPU replaced")),
    row(68, Application, "video processor exception", Other("start the program again, and update the driver")),
    row(69, Application, "graphics engine class error", Other("the program used the GPU wrongly: look at it with compute-sanitizer")),
    row(74, Hardware, "NVLink error",
        Other("where programs fail on the link, reset its GPUs; if it returns, look at bridge, board and switch")),
    row(79, Hardware, "GPU has fallen off the bus", Other("drain the node (kubectl drain) and reboot it; if it returns, look at power, temperature and slot")),
    row(92, Hardware, "high rate of single bit ECC errors", Other("watch the GPU; if it goes on, have the GPU replaced")),
    row(94, Hardware, "contained memory error", Other("start the program again, and reset the GPU when it is idle")),
    row(95, Hardware, "uncontained memory error", Reset("; if it returns, have the GPU replaced")),
    row(109, Application, "context switch timeout", Other("start the program again, and update the driver")),
    row(110, Hardware, "security fault", Reset("; if it returns, update its driver")),
    row(119, Hardware, "GSP RPC timeout", Reset(", and update its driver; if that fails, reboot the node")),
    row(120, Hardware, "GSP error", Reset(", and update its driver; if that fails, reboot the node")),
    row(121, Hardware, "corrected error of the C2C link", Other("reset the GPU when it is idle")),
    row(136, Hardware, "training of an NVLink failed", Reset("; if it returns, look at bridge, board and switch")),
    row(137, Application, "NVLink access without permission", Other("the program used memory of another GPU wrongly: start it again")),
    row(140, Hardware, "unrecovered ECC error", Reset("; if it returns, have the GPU replaced")),
    row(143, Hardware, "initialization of the GPU failed", Reset("; if it returns, reboot the node")),
    row(154, Hardware, "the GPU asks for a recovery action", Other("do what nvidia-smi -q names as its recovery action")),
    row(158, Hardware, "fatal timeout of the GPU", Reset("; if it returns, have the GPU replaced")),
];

/// `XID 79: GPU has fallen off the bus (hardware): drain the node (kubectl drain) and reboot it; …`, and the number alone of an XID that the table lacks.
pub fn xid_words(xid: u64) -> String {
    let rule = XIDS.iter().find(|rule| rule.xid == xid);
    let words = rule.map(|XidRule { origin, words, remedy, .. }| format!(": {words} ({origin}): {remedy}"));
    format!("XID {xid}{}", words.unwrap_or_default())
}

/// The table in Markdown.
pub fn xid_table() -> String {
    let head = "| XID | what it is | mostly | what to do |\n| --- | --- | --- | --- |\n".to_owned();
    let line = |rule: &XidRule| format!("| {} | {} | {} | {} |\n", rule.xid, rule.words, rule.origin, rule.remedy);
    XIDS.iter().map(line).fold(head, |table, line| table + &line)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `getDisabledHealthCheckXids` and `IsDisabled` of NVIDIA's plugin, v0.20.0: its map of XIDs, in which 0 stands for all.
    fn ignored_there(disable: &str, enable: &str, xid: u64) -> bool {
        let parse = |text: &str| {
            let mut map = BTreeMap::new();
            for word in text.to_lowercase().split(',') {
                match word.trim() {
                    "all" | "xids" => return BTreeMap::from([(0, true)]),
                    word if word.is_empty() || word.starts_with('+') => {}
                    word => drop(word.parse::<u64>().ok().map(|xid| map.insert(xid, true))),
                }
            }
            map
        };
        let mut disabled: BTreeMap<u64, bool> = parse(disable);
        disabled.extend(APPLICATION_ERRORS.map(|xid| (xid, true)));
        disabled.extend(parse(enable).into_keys().map(|xid| (xid, false)));
        match (disabled.get(&0), disabled.get(&xid)) {
            (Some(false), _) => false,
            (_, Some(own)) => *own,
            (all, None) => all.copied().unwrap_or(false),
        }
    }

    const WORDS: &str = "(all|xids|ALL|Xids| all |13|31|48|79| 62 |0|00|x|-3|\\+5|18446744073709551616|)";

    proptest! {
        #[test]
        fn the_two_variables_mean_what_they_mean_to_nvidias_plugin(
            disable in proptest::collection::vec(WORDS, 0..5), enable in proptest::collection::vec(WORDS, 0..3),
        ) {
            let (disable, enable) = (disable.join(","), enable.join(","));
            let policy = policy(Some(&disable), Some(&enable));
            for xid in [1, 5, 13, 31, 43, 48, 62, 79, 109, u64::MAX] {
                let ignored = policy.action(xid) == XidAction::Ignore;
                prop_assert_eq!(ignored, ignored_there(&disable, &enable, xid), "{} / {}: {}", disable, enable, xid);
            }
        }

        #[test]
        fn no_text_of_the_variables_or_of_an_action_panics(text in "\\PC{0,80}", xid: u64) {
            let policy = policy(Some(&text), Some(&text));
            prop_assert!(policy.action(xid) >= XidAction::Ignore);
            if let Ok(action) = text.parse::<XidAction>() {
                prop_assert_eq!(action.to_string(), text);
            }
        }

        #[test]
        fn the_table_is_the_last_word_but_for_what_is_enabled_or_disabled_by_name(
            xid in 1u64..200, written in 0usize..5, named: bool,
        ) {
            use XidAction::{Ignore, NeedsReboot, NeedsReset, Unhealthy, Warn};
            let action = [Ignore, Warn, Unhealthy, NeedsReset, NeedsReboot][written];
            let of = |disable, enable| XidPolicy::new([(xid, action)].into(), disable, enable).action(xid);
            prop_assert_eq!(of(None, None), action);
            let name = if named { xid.to_string() } else { "all".to_owned() };
            prop_assert_eq!(of(Some(&name), None), Ignore);
            let enabled = if action == Ignore { Unhealthy } else { action };
            prop_assert_eq!(of(Some("all"), Some(&name)), enabled);
        }
    }

    fn policy(disable: Option<&str>, enable: Option<&str>) -> XidPolicy {
        XidPolicy::new(BTreeMap::new(), disable, enable)
    }

    #[test]
    fn application_errors_are_ignored_and_all_others_take_the_gpu_out() {
        let policy = XidPolicy::default();
        for xid in 0..200 {
            let expected = match xid {
                13 | 31 | 43 | 45 | 68 | 109 => XidAction::Ignore,
                46 | 48 | 61 | 62 | 64 | 95 | 110 | 119 | 120 | 136 | 140 | 143 | 158 => XidAction::NeedsReset,
                _ => XidAction::Unhealthy,
            };
            assert_eq!(policy.action(xid), expected, "XID {xid}");
        }
    }

    #[test]
    fn the_table_overrides_the_defaults() {
        let table = BTreeMap::from([(13, XidAction::Warn), (79, XidAction::NeedsReboot), (94, XidAction::Ignore)]);
        let policy = XidPolicy::new(table, None, None);
        let actions = [13, 79, 94, 48].map(|xid| policy.action(xid));
        assert_eq!(actions, [XidAction::Warn, XidAction::NeedsReboot, XidAction::Ignore, XidAction::NeedsReset]);
    }

    #[test]
    fn disable_takes_a_list_or_all_or_xids_in_any_case() {
        assert_eq!(policy(Some("48, 79"), None).action(79), XidAction::Ignore);
        assert_eq!(policy(Some("48, 79"), None).action(74), XidAction::Unhealthy);
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
        assert_eq!(policy(Some("48"), Some("all")).action(48), XidAction::NeedsReset);
        assert_eq!(policy(None, Some("all")).action(31), XidAction::Unhealthy);
        let table = BTreeMap::from([(48, XidAction::NeedsReset)]);
        assert_eq!(XidPolicy::new(table, Some("all"), Some("48")).action(48), XidAction::NeedsReset);
    }

    #[test]
    fn an_xid_that_is_ignored_is_an_applications_and_each_is_told_in_words() {
        assert_eq!(XIDS.len(), 29);
        assert!(XIDS.is_sorted_by(|a, b| a.xid < b.xid));
        for xid in APPLICATION_ERRORS {
            assert!(XIDS.iter().any(|rule| rule.xid == xid && rule.origin == Application), "{xid}");
        }
        assert!(xid_words(79).starts_with("XID 79: GPU has fallen off the bus (hardware): drain the node (kubectl"));
        assert_eq!(xid_words(7_000), "XID 7000");
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
