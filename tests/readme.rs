//! The README promises commands, and docs/faq.md quotes error texts; both must exist.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Lines of the shell block that follows a mark.
fn block(text: &str, mark: &str) -> Vec<String> {
    let after = text.split(&format!("<!-- {mark} -->\n```sh\n")).nth(1).unwrap_or_else(|| panic!("no block {mark}"));
    after.split("```").next().unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn two_commands_run_the_demo_and_the_tests() {
    let readme = read("README.md");
    for mark in ["demo", "tests"] {
        let lines = block(&readme, mark);
        assert_eq!(lines.len(), 1, "{mark}: {lines:?}");
        assert!(lines[0].starts_with("cargo "), "{}", lines[0]);
    }
    assert!(block(&readme, "demo")[0].ends_with("-- demo"));
}

/// All sources as one text without line breaks, string continuations joined.
fn sources() -> String {
    let mut all = String::new();
    let mut todo = vec![root().join("src")];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(path).unwrap();
            let mut lines = text.lines();
            while let Some(line) = lines.next() {
                let mut line = line.to_owned();
                while let Some(head) = line.strip_suffix('\\') {
                    let next = lines.next().unwrap_or_default().trim_start();
                    line = format!("{head}{next}");
                }
                all.push_str(&line);
                all.push('\n');
            }
        }
    }
    all
}

/// Every fixed part of the quoted texts occurs in some source; `…` stands for what varies.
fn unknown(page: &str, sources: &str) -> Vec<String> {
    let section = page.split("## Troubleshooting by error text").nth(1).unwrap().split("\n## ").next().unwrap();
    let texts = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let mut checked = 0;
    let mut missing = Vec::new();
    for text in texts {
        for part in text.split('…').map(str::trim).filter(|part| part.len() > 3) {
            checked += 1;
            if !sources.contains(part) {
                missing.push(part.to_owned());
            }
        }
    }
    assert!(checked >= 10, "only {checked} texts in the troubleshooting table");
    missing
}

#[test]
fn every_quoted_error_text_is_in_the_sources() {
    let missing = unknown(&read("docs/faq.md"), &sources());
    assert!(missing.is_empty(), "docs/faq.md quotes texts that no source has: {missing:#?}");
}

#[test]
fn a_text_that_no_source_has_is_found() {
    let page = read("docs/faq.md").replace("no NVML library could be loaded", "no such text anywhere in the code");
    assert!(unknown(&page, &sources()).iter().any(|part| part.contains("no such text")));
}

#[test]
fn every_link_leads_to_a_file() {
    for page in ["README.md", "CONTRIBUTING.md"] {
        let text = read(page);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            assert!(link.starts_with("http") || root().join(file).exists(), "{page}: {link} does not exist");
        }
    }
}
