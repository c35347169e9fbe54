//! What Cargo cannot say of the architecture: reads the sources and fails on an orphan file, logic in a `mod.rs`, an impure
//! decision, a forbidden name, two types of one name, a test's name of over 80 characters, a file over 800 lines that does not
//! say why it is one thing, or a key in a domain that is another project's. Who may import whom stands in the `Cargo.toml` of each folder of `src/`.
//!
//! The rules are functions over (path, text), so each is shown to fail on a synthetic source.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

#[path = "layers/keys.rs"]
mod keys;
#[path = "layers/orphans.rs"]
mod orphans;
#[path = "layers/rules.rs"]
mod rules;
#[path = "layers/source.rs"]
mod source;
#[path = "layers/types.rs"]
mod types;

use std::path::Path;

use source::Source;

/// Every rule on every file.
fn violations(sources: &[Source]) -> Vec<String> {
    let mut found = orphans::check(sources);
    found.extend(types::check(sources));
    for source in sources {
        found.extend(rules::check(source));
    }
    found.sort();
    found
}

#[test]
fn the_sources_hold_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = source::read(root, &["src", "tests", "benches", "build.rs"]);
    assert!(sources.len() > 30, "read only {} files below {}", sources.len(), root.display());
    let found = violations(&sources);
    assert!(found.is_empty(), "{} violations in {} files:\n{}", found.len(), sources.len(), found.join("\n"));
    println!("{} files hold the rules", sources.len());
}

/// Violations of a synthetic source tree.
fn of(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
    violations(&sources)
}

#[track_caller]
fn fails(files: &[(&str, &str)], because: &str) {
    let found = of(files);
    assert!(found.iter().any(|violation| violation.contains(because)), "no violation {because:?} in {found:#?}");
}

#[track_caller]
fn holds(files: &[(&str, &str)]) {
    assert_eq!(of(files), Vec::<String>::new());
}

const LIB: (&str, &str) = ("src/lib.rs", "//! The crate.\npub use baton_agent as agent;\n");
const AGENT: (&str, &str) = ("src/agent/mod.rs", "//! Agent.\nmod a;\n");
const SCHEDULER: (&str, &str) = ("src/scheduler/mod.rs", "//! Scheduler.\n");
const DECIDE: (&str, &str) = ("src/decide/mod.rs", "//! Decide.\nmod a;\n");
const DECIDE_A: (&str, &str) = ("src/decide/a.rs", "//! A.\n");

/// A tree whose only peculiarity is `text` in `src/agent/a.rs`.
fn agent(text: &str) -> [(&str, &str); 6] {
    [LIB, AGENT, SCHEDULER, DECIDE, DECIDE_A, ("src/agent/a.rs", text)]
}

/// The same for `src/decide/a.rs`.
fn decide(text: &str) -> [(&str, &str); 6] {
    [LIB, AGENT, SCHEDULER, DECIDE, ("src/agent/a.rs", "//! A.\n"), ("src/decide/a.rs", text)]
}

#[test]
fn a_file_that_no_module_names_is_an_orphan() {
    let mut files = agent("//! A.\n").to_vec();
    files.push(("src/agent/lost.rs", "//! Lost.\n"));
    fails(&files, "src/agent/lost.rs: orphan");
    files.pop();
    files.push(("src/agent/found.rs", "//! Found.\n"));
    files[5] = ("src/agent/a.rs", "//! A.\n#[path = \"found.rs\"]\nmod other_name;\n");
    holds(&files);
}

#[test]
fn a_long_file_must_say_why() {
    let long = format!("//! A.\n{}", "// line\n".repeat(800));
    fails(&agent(&long), "801 lines");
    holds(&agent(&format!("// Over 800 lines: one table of a foreign format.\n{long}")));
}

#[test]
fn a_long_name_of_a_test_is_found() {
    let test = |length| format!("//! A.\nmod tests {{\n    #[test]\n    fn {}() {{}}\n}}\n", "a".repeat(length));
    fails(&agent(&test(81)), "81 characters");
    holds(&agent(&test(80)));
}

#[test]
fn forbidden_names_are_found_in_folders_and_files() {
    for path in ["tests/common/mod.rs", "src/agent/util.rs", "src/agent/pod_manager.rs", "benches/helpers.rs"] {
        fails(&[LIB, AGENT, (path, "//! X.\n")], "forbidden name");
    }
}

#[test]
fn two_types_of_one_name_are_found() {
    for text in [
        "enum Node {}",
        "pub trait Node {}",
        "type Node = u8;",
        "word_enum! { #[derive(Default)] Node { A = \"a\", } }",
    ] {
        let text: &str = &format!("//! A.\n{text}\n");
        fails(
            &[LIB, AGENT, DECIDE, ("src/agent/a.rs", "//! A.\nstruct Node;\n"), ("src/decide/a.rs", text)],
            "`Node` names several",
        );
    }
    for text in [
        "struct Pod(Node);",
        "#[cfg(test)] mod tests { struct Node; }",
        "#[cfg(test)]\nstruct Node;",
        "fn a() { struct Node; }",
    ] {
        let text: &str = &format!("//! A.\n{text}\n");
        holds(&[LIB, AGENT, DECIDE, ("src/agent/a.rs", "//! A.\nstruct Node;\n"), ("src/decide/a.rs", text)]);
    }
    let sim = ("src/sim/mod.rs", "//! Sim.\nmod a;\n");
    holds(&[LIB, AGENT, sim, ("src/agent/a.rs", "//! A.\nstruct Node;\n"), ("src/sim/a.rs", "//! A.\nstruct Node;\n")]);
}

#[test]
fn a_mod_file_with_logic_is_found() {
    for logic in ["fn a() {}", "pub struct A;", "impl A {}", "const A: u8 = 1;", "mod a { fn b() {} }"] {
        let text = format!("//! Agent.\nmod a;\n{logic}\n");
        fails(
            &[LIB, SCHEDULER, DECIDE, DECIDE_A, ("src/agent/a.rs", "//! A.\n"), ("src/agent/mod.rs", &text)],
            "logic",
        );
    }
    let text = "//! Agent.\n#[cfg(unix)]\npub(crate) mod a;\npub use a::{B, C};\npub mod proto { tonic::include_proto!(\"v1\"); }\n";
    holds(&[LIB, SCHEDULER, DECIDE, DECIDE_A, ("src/agent/a.rs", "//! A.\n"), ("src/agent/mod.rs", text)]);
}

#[test]
fn a_decision_that_is_not_pure_is_found() {
    for (text, word) in [
        ("//! A.\nuse std::collections::HashMap;\n", "HashMap"),
        ("//! A.\nasync fn a() {}\n", "async"),
        ("//! A.\nuse std::sync::Mutex;\n", "Mutex"),
        ("//! A.\nfn a() { std::env::var(\"A\").ok(); }\n", "std::env"),
    ] {
        fails(&decide(text), word);
    }
    holds(&decide("//! A.\nuse std::collections::BTreeMap;\nuse jiff::Timestamp;\n"));
    holds(&decide("//! A.\n#[cfg(test)]\nmod tests { fn a() { println!(\"seed\"); } }\n"));
}

#[test]
fn a_file_without_a_doc_is_found() {
    fails(&agent("use baton_contract::key;\n"), "module doc");
}
