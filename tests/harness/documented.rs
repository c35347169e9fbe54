//! For tests: `docs/metrics.md` has a row for every metric that a daemon prints, and no row for one that it does not.

use std::collections::BTreeMap;

/// `| name | kind |` of the rows in the section of `command`.
fn rows(section: &str) -> BTreeMap<&str, &str> {
    let lines = section.lines().filter_map(|line| line.strip_prefix("| `baton_")?.split_once("` | "));
    lines.map(|(name, rest)| (name, rest.split(' ').next().unwrap_or_default())).collect()
}

/// Compares what is printed, where every family has a member, with the section of that command.
pub fn check(printed: &str, command: &str) {
    let text = include_str!("../../docs/metrics.md");
    let section = text.split(&format!("\n## `{command}`\n")).nth(1).unwrap_or_else(|| panic!("no section {command}"));
    let documented = rows(section.split("\n## ").next().unwrap_or_default());
    let types = printed.lines().filter_map(|line| line.strip_prefix("# TYPE baton_")?.split_once(' '));
    let printed_text = printed;
    let printed: BTreeMap<&str, &str> = types.collect();
    let names: Vec<&str> = printed.keys().copied().collect();
    assert!(!printed.is_empty());
    // Readers of OpenMetrics take a family's unit from its own line, not from its name.
    for unit in ["seconds", "bytes"] {
        for name in names.iter().filter(|name| name.ends_with(&format!("_{unit}"))) {
            assert!(printed_text.contains(&format!("# UNIT baton_{name} {unit}\n")), "baton_{name} has no unit");
        }
    }
    assert_eq!(documented, printed, "docs/metrics.md, `{command}`");
}
