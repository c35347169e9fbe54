//! `docs/` says what is there: links lead somewhere, and the reasons of events and conditions are those of the sources.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file below these places with that ending.
fn files(places: &[&str], ending: &str) -> Vec<PathBuf> {
    let mut todo: Vec<PathBuf> = places.iter().map(|place| root().join(place)).collect();
    let mut found = Vec::new();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|found| found == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn every_link_of_the_documents_leads_to_a_file() {
    for page in files(&["docs"], "md") {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let there = link.starts_with("http") || file.is_empty() || page.parent().unwrap().join(file).exists();
            assert!(there, "{}: {link} does not exist", page.display());
        }
    }
}

#[test]
fn every_document_is_reached_from_the_readme() {
    let readme = read(&root().join("README.md"));
    for page in files(&["docs"], "md") {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(readme.contains(&format!("(docs/{name})")), "README.md does not lead to docs/{name}");
    }
}

#[test]
fn the_layout_in_contributing_names_every_folder() {
    let text = read(&root().join("CONTRIBUTING.md"));
    for entry in std::fs::read_dir(root().join("src")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let told = !entry.path().is_dir() || text.contains(&format!("| `{name}/` |"));
        assert!(told, "CONTRIBUTING.md has no row for src/{name}");
    }
}

/// Where reasons of events and conditions are chosen.
const DECIDES: [&str; 9] = [
    "src/decide/handoff",
    "src/decide/gang",
    "src/decide/job",
    "src/decide/cycle",
    "src/decide/health",
    "src/agent/keeper.rs",
    "src/agent/health.rs",
    "src/agent/devices.rs",
    "src/cluster/bind.rs",
];

/// Words that look like reasons and are none: values of conditions, kinds, names of rules, what the kubelet says, states of members
/// in answers.
const NO_REASONS: [&str; 21] = [
    "True",
    "False",
    "Pod",
    "Node",
    "Health",
    "DeviceFit",
    "NodeAffinity",
    "NodeResourcesFit",
    "NodeResourcesBalancedAllocation",
    "TaintToleration",
    "InterPodAffinity",
    "PodTopologySpread",
    "InvalidImageName",
    "ErrImageNeverPull",
    "DisruptionTarget",
    "Reserved",
    "Bound",
    "Gated",
    "TimedOut",
    "Terminating",
    "Binding",
];

/// Words in CamelCase that stand alone in a string, outside tests.
fn words(source: &str) -> BTreeSet<String> {
    let shipped = source.split("#[cfg(test)]").next().unwrap();
    let code = shipped.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |text: &&str| {
        text.len() > 2 && text.starts_with(|c: char| c.is_ascii_uppercase()) && {
            text.chars().all(|c| c.is_ascii_alphabetic()) && text.chars().any(|c| c.is_ascii_lowercase())
        }
    };
    let strings = code.flat_map(|line| line.split('"').skip(1).step_by(2));
    strings.filter(is_word).map(str::to_owned).collect()
}

/// What stands in backquotes in the tables of docs/events.md.
fn documented() -> BTreeSet<String> {
    let text = read(&root().join("docs/events.md"));
    let rows =
        text.lines().filter(|line| line.starts_with("| `") || line.starts_with("| Pod") || line.starts_with("| TY"));
    let rows = rows.chain(text.lines().filter(|line| line.starts_with("| Device,")));
    rows.flat_map(|row| row.split('`').skip(1).step_by(2))
        .filter(|word| word.chars().all(|c| c.is_ascii_alphabetic()))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_reason_of_an_event_or_condition_is_documented() {
    let documented = documented();
    assert!(documented.len() > 40, "{documented:?}");
    let is_test =
        |path: &Path| path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "explain");
    let mut missing = BTreeSet::new();
    for file in files(&DECIDES, "rs") {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        if is_test(&file) || name.ends_with("tests") || name == "testing" {
            continue;
        }
        for word in words(&read(&file)) {
            if !documented.contains(&word) && !NO_REASONS.contains(&word.as_str()) {
                missing.insert(format!("{word} ({})", file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(missing.is_empty(), "neither in docs/events.md nor known to be no reason: {missing:#?}");
}

#[test]
fn every_documented_reason_is_in_the_sources() {
    let sources: String = files(&["src/decide", "src/agent", "src/cluster", "src/contract"], "rs")
        .iter()
        .map(|file| read(file))
        .collect();
    // The condition of a pod is Kubernetes' own.
    let stale: Vec<String> =
        documented().into_iter().filter(|word| !sources.contains(&format!("\"{word}\""))).collect();
    assert!(stale.is_empty(), "docs/events.md tells of reasons that nothing gives: {stale:?}");
}

#[test]
fn every_key_that_declares_a_gang_is_documented() {
    let text = read(&root().join("docs/gang.md"));
    let keys = read(&root().join("src/contract/gang/key.rs"));
    // As the document shortens them.
    let short = |key: &str| {
        key.replace("gang.scheduling.koordinator.sh/", "G/").replace("pod-group.scheduling.sigs.k8s.io", "P")
    };
    let mut checked = 0;
    for key in keys.lines().filter_map(|line| line.strip_prefix("pub const ")?.split('"').nth(1)) {
        checked += 1;
        assert!(text.contains(key) || text.contains(&format!("`{}`", short(key))), "docs/gang.md lacks {key}");
    }
    assert!(checked > 15, "{checked} keys");
}
