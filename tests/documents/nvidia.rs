//! The table of NVIDIA's flags in `docs/migrate.md`: every flag of Baton that it names exists, and what it calls the same has
//! NVIDIA's names.

use std::collections::BTreeSet;

use baton::ops::settings;

/// Every flag and option of NVIDIA's plugin, v0.20.0.
const THEIRS: [&str; 23] = [
    "mig-strategy",
    "fail-on-init-error",
    "driver-root",
    "nvidia-driver-root",
    "dev-root",
    "pass-device-specs",
    "device-list-strategy",
    "device-id-strategy",
    "gdrcopy-enabled",
    "gds-enabled",
    "mofed-enabled",
    "cdi-annotation-prefix",
    "nvidia-cdi-hook-path",
    "driver-root-ctr-path",
    "mps-root",
    "shared-devices-allocation-policy",
    "device-discovery-strategy",
    "imex-channel-ids",
    "imex-required",
    "kubelet-socket",
    "config-file",
    "cdi-feature-flags",
    "cdi-disable-hooks",
];

const TEXT: &str = include_str!("../../docs/migrate.md");

fn rows() -> Vec<Vec<&'static str>> {
    let section = TEXT.split("\n## NVIDIA's flags\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let lines = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let cells = lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells.filter(|cells| cells[0] != "NVIDIA").collect()
}

/// `a` and `b` in "`--a`, `b`".
fn words(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(|word| word.trim_start_matches("--").to_owned()).collect()
}

fn ours() -> BTreeSet<String> {
    let names = settings::agent()
        .iter()
        .flat_map(|setting| setting.names().collect::<Vec<_>>())
        .map(str::to_owned)
        .collect::<Vec<_>>();
    names.into_iter().chain(["config-file".to_owned()]).collect()
}

#[test]
fn every_flag_of_baton_that_the_table_names_exists() {
    let ours = ours();
    let mut named = 0;
    for row in rows() {
        for flag in words(row[1]) {
            assert!(ours.contains(&flag), "{}: Baton has no --{flag}", row[0]);
            named += 1;
        }
    }
    assert!(named >= 15, "{named} flags named");
}

#[test]
fn what_is_called_the_same_has_the_same_flag_and_the_same_variable() {
    let settings = settings::agent();
    for row in rows().into_iter().filter(|row| row[2] == "same") {
        for flag in words(row[0]) {
            // Two have a variable and no flag there.
            let (flag, variable) = (flag.to_lowercase().replace('_', "-"), flag.to_uppercase().replace('-', "_"));
            assert!(ours().contains(&flag), "--{flag} is called the same");
            let known = settings.iter().any(|setting| setting.variables().any(|name| name == variable));
            assert!(known || flag == "config-file", "{variable} is called the same");
        }
    }
}

#[test]
fn every_flag_of_nvidia_has_a_row() {
    let named: BTreeSet<String> = rows().iter().flat_map(|row| words(row[0])).collect();
    let missing: Vec<_> = THEIRS.iter().filter(|flag| !named.contains(**flag)).collect();
    assert!(missing.is_empty(), "docs/migrate.md lacks {missing:?}");
}
