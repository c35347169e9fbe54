//! The documentation of the keys is complete, and every default can be written down.

use super::DaemonSettings;
use crate::config::Setting;

fn reads_back<O: Default + PartialEq + std::fmt::Debug + 'static>(settings: Vec<Setting<DaemonSettings<O>>>) {
    for setting in settings {
        let mut daemon = DaemonSettings::<O>::default();
        let shown = (setting.show)(&daemon);
        (setting.set)(&mut daemon, &shown).unwrap_or_else(|error| panic!("{}: {error}", setting.name));
        assert_eq!(daemon, DaemonSettings::default(), "{}", setting.name);
    }
}

#[test]
fn every_default_reads_back_as_itself() {
    reads_back(super::agent());
    reads_back(super::scheduler());
    reads_back(super::controller());
}

/// One row of the table in `docs/configuration.md`.
fn row<O: Default>(setting: &Setting<O>) -> String {
    let names: Vec<String> = setting.names().map(|name| format!("`{name}`")).collect();
    let variables: Vec<String> = setting.variables().map(|name| format!("`{name}`")).collect();
    let default = (setting.show)(&O::default());
    let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
    let (value, help) = (setting.value.replace('|', "\\|"), setting.help.replace('|', "\\|"));
    format!("| {} | {} | {value} | {default} | {help} |", names.join(", "), variables.join(", "))
}

#[test]
fn the_documentation_lists_every_key_with_its_default() {
    let text = include_str!("../../../docs/configuration.md");
    let daemons = super::agent().iter().map(row).chain(super::scheduler().iter().map(row)).collect::<Vec<_>>();
    let rows = daemons.into_iter().chain(super::controller().iter().map(row)).collect::<Vec<_>>();
    let missing: Vec<&str> = rows.iter().map(String::as_str).filter(|row| !text.contains(row)).collect();
    assert!(missing.is_empty(), "docs/configuration.md lacks these rows:\n{}", missing.join("\n"));
    // A row of a key has its variable in the second column; tables of other things have none.
    let is_key = |line: &&str| {
        let variable = line.strip_prefix("| `").and_then(|rest| rest.split(" | ").nth(1));
        variable.is_some_and(|cell| cell.starts_with('`') && !cell.chars().any(|c| c.is_ascii_lowercase()))
    };
    let stale: Vec<&str> = text.lines().filter(is_key).filter(|line| !rows.iter().any(|row| row == line)).collect();
    assert!(stale.is_empty(), "docs/configuration.md has rows of keys that do not exist:\n{}", stale.join("\n"));
}
