//! `docs/` says what is there: links lead somewhere, and the reasons of events and conditions are those that are given.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)] // tests

#[path = "../harness/promql.rs"]
mod asked;
mod faults;
mod nvidia;
mod promql;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use baton::contract::{ConditionReason, EventReason, HealthReason};
use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use serde_json::Value;

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

/// The anchors of the headings of a page, as they are made from their words.
fn anchors(text: &str) -> BTreeSet<String> {
    let outside = text.split("\n```").step_by(2).flat_map(str::lines);
    let headings = outside.filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |word: &char| word.is_alphanumeric() || matches!(word, ' ' | '-' | '_');
    headings.map(|words| words.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")).collect()
}

/// That file below the root exists, and has a heading with that anchor.
fn leads_somewhere(path: &Path, anchor: &str) -> bool {
    path.exists() && (anchor.is_empty() || anchors(&read(path)).contains(anchor))
}

#[test]
fn every_link_of_the_documents_leads_to_a_heading() {
    let pages =
        ["docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/faults.md", "benches/placement/README.md"];
    for page in files(&pages, "md") {
        let text = read(&page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let there = link.starts_with("http") || leads_somewhere(&target, anchor);
            assert!(there, "{}: {link} does not exist", page.display());
        }
    }
}

#[test]
fn every_page_that_a_program_names_exists() {
    let mut named = 0;
    let sources = [files(&["src", "daemonset/chart"], "rs"), files(&["daemonset/chart"], "yaml")].concat();
    for source in sources {
        let text = read(&source);
        for rest in text.split("docs/").skip(1) {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".#-_".contains(c))).unwrap_or(rest.len());
            let link = rest[..end].trim_end_matches('.');
            let (page, anchor) = link.split_once('#').unwrap_or((link, ""));
            if page.ends_with(".md") {
                named += 1;
                let there = leads_somewhere(&root().join("docs").join(page), anchor);
                assert!(there, "{}: docs/{link} does not exist", source.display());
            }
        }
    }
    assert!(named > 30, "{named} pages named");
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
        let listed = !entry.path().is_dir() || text.contains(&format!("| `{name}/` |"));
        assert!(listed, "CONTRIBUTING.md has no row for src/{name}");
    }
}

/// What stands in backquotes in one column of docs/events.md, in the sections whose heading begins like that.
fn documented(under: &str, cell: usize) -> BTreeSet<String> {
    let text = read(&root().join("docs/events.md"));
    let sections = text.split("\n## ").filter(|section| section.starts_with(under));
    let rows = sections.flat_map(str::lines).filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split(" | ").nth(cell));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|word| word.chars().all(|c| c.is_ascii_alphabetic()))
        .filter(|word| word.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_documented_reasons_are_those_that_are_given() {
    let events: BTreeSet<String> = EventReason::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(documented("Events on", 0), events);
    let conditions = ConditionReason::ALL.iter().map(ToString::to_string);
    assert_eq!(documented("Conditions", 2), conditions.chain([HealthReason::Healthy.to_string()]).collect());
}

#[test]
fn the_documented_conditions_of_devices_are_the_table_of_the_decisions() {
    for table in [baton::decide::health::condition_table(), baton::decide::health::xid_table()] {
        let is_there = read(&root().join("docs/commands.md")).contains(&format!("\n\n{table}"));
        assert!(is_there, "put what `baton doctor --conditions` prints into docs/commands.md:\n{table}");
    }
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

/// Every block of YAML that stands by itself on a page, with its page.
fn yaml_blocks() -> Vec<(String, String)> {
    let pages = files(&["docs", "README.md"], "md").into_iter().map(|page| (page.display().to_string(), read(&page)));
    let blocks = |(page, text): (String, String)| {
        let after: Vec<String> = text.split("\n```yaml\n").skip(1).map(str::to_owned).collect();
        after.into_iter().map(move |rest| (page.clone(), rest.split("\n```").next().unwrap().to_owned() + "\n"))
    };
    pages.flat_map(blocks).collect()
}

/// The block that follows a mark.
fn marked(page: &str, mark: &str) -> Vec<Value> {
    let text = read(&root().join(page));
    let after = text.split(&format!("<!-- {mark} -->\n```yaml\n")).nth(1).unwrap_or_else(|| panic!("no block {mark}"));
    documents(after.split("```").next().unwrap())
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_str_multiple(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Reads a document as its Kubernetes type and back: a field that the type does not know would be lost on the way.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(document: &Value) {
    let read: T = serde_json::from_value(document.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), *document);
}

#[test]
fn every_block_of_yaml_can_be_read() {
    let blocks = yaml_blocks();
    assert!(blocks.len() > 15, "{} blocks", blocks.len());
    for (page, text) in blocks {
        let read: Result<Vec<Value>, _> = serde_saphyr::from_str_multiple(&text);
        assert!(read.is_ok_and(|documents| !documents.is_empty()), "{page}: {text}");
    }
}

#[test]
fn the_example_of_an_overlay_changes_what_is_there() {
    let manifests =
        files(&["daemonset"], "yaml").into_iter().filter(|file| file.parent().unwrap().ends_with("daemonset"));
    let manifests: Vec<Value> = manifests.flat_map(|file| documents(&read(&file))).collect();
    let overlay = marked("docs/operate.md", "overlay").remove(0);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    for change in overlay["patches"].as_array().unwrap() {
        let (kind, name) = (text(&change["target"]["kind"]), text(&change["target"]["name"]));
        let is_it = |found: &&Value| {
            text(&found["kind"]) == kind && (name.is_none() || text(&found["metadata"]["name"]) == name)
        };
        let found = manifests.iter().find(is_it).unwrap_or_else(|| panic!("nothing to change: {change}"));
        let patch = documents(change["patch"].as_str().unwrap()).remove(0);
        for container in patch["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten() {
            let there = found["spec"]["template"]["spec"]["containers"].as_array().unwrap();
            assert!(there.iter().any(|there| there["name"] == container["name"]), "it would be one more: {container}");
        }
    }
}

#[test]
fn the_example_of_a_policy_has_the_fields_of_its_kinds() {
    let example = read(&root().join("examples/scheduler-name.yaml"));
    let [policy, binding] = documents(&example).try_into().unwrap();
    typed::<MutatingAdmissionPolicy>(&policy);
    typed::<MutatingAdmissionPolicyBinding>(&binding);
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
}

#[test]
fn what_the_scheduler_says_to_claims_and_other_drivers_is_what_the_page_quotes() {
    let page = read(&root().join("docs/workloads.md"));
    let said = read(&root().join("src/decide/core/rules/plugins/dynamic_resources.rs"));
    let said = said.lines().find_map(|line| line.trim().strip_prefix("let text = \"")?.strip_suffix("\";")).unwrap();
    assert!(page.contains(said), "{said}");
    let drivers = read(&root().join("src/decide/world/node.rs"));
    let drivers = drivers.lines().find(|line| line.contains("].contains(&driver)")).unwrap();
    for driver in drivers.split('"').skip(1).step_by(2) {
        assert!(page.contains(&format!("`{driver}`")), "{driver}");
    }
}

#[test]
fn every_alert_looks_at_metrics_of_its_kind_and_links_to_its_section() {
    let (metrics, runbooks) = (read(&root().join("docs/metrics.md")), read(&root().join("docs/runbooks.md")));
    let mut sections: Vec<&str> = runbooks.lines().filter_map(|line| line.strip_prefix("### Baton")).collect();
    let objects = documents(&read(&root().join("daemonset/components/monitoring/monitoring.yaml")));
    let template = read(&root().join("daemonset/chart/templates/monitoring.yaml"));
    let rules = objects.iter().find(|object| object["kind"] == "PrometheusRule").unwrap();
    for rule in rules["spec"]["groups"][0]["rules"].as_array().unwrap() {
        let (alert, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
        let names = expression
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| word.starts_with("baton_"));
        let names: Vec<&str> = names.collect();
        assert!(!names.is_empty(), "{alert}");
        for name in names {
            let (counter, plain) = (name.strip_suffix("_total"), name);
            let row =
                counter.map_or_else(|| format!("\n| `{plain}` | gauge |"), |name| format!("\n| `{name}` | counter |"));
            assert!(metrics.contains(&row), "{alert}: no row{row}");
        }
        let link = format!("{{- include \"baton.runbook\" (list $ \"{}\") }}", alert.to_lowercase());
        assert_eq!(template.matches(&link).count(), 1, "{link}");
        let before = sections.len();
        sections.retain(|name| format!("Baton{name}") != alert);
        assert_eq!(sections.len() + 1, before, "{alert} has no section in docs/runbooks.md");
    }
    assert!(sections.is_empty(), "explained and not there: {sections:?}");
}
