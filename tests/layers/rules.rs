//! Rules on one file: size, names and their length, module docs, `mod.rs` without logic, pure decisions, arrows between their rooms.

use proc_macro2::TokenTree;

use super::source::{Source, ident, inside, path_sep, punct};

const MAX_LINES: usize = 800;
const REASON: &str = "// Over 800 lines:";
/// Longest name of a function; those of tests are sentences.
const MAX_NAME: usize = 80;
/// Names that say nothing about what is inside.
const FORBIDDEN_NAMES: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "managers", "misc"];
/// What a decision may not touch: it is a function of (state, event, time). Clocks are forbidden by `clippy.toml`.
/// Crates that are not pure are no dependency of the package.
const IMPURE: [&str; 7] = ["HashMap", "HashSet", "async", "await", "Mutex", "RwLock", "println"];
const IMPURE_PATHS: [&str; 4] = ["std::env", "std::fs", "std::net", "std::thread"];
/// Rooms of the scheduler's decisions, and those above them that they may not name.
const ABOVE: [(&str, &[&str]); 5] = [
    ("world", &["core", "bind", "gang", "tyjob", "scheduler", "explain"]),
    ("core", &["bind", "gang", "tyjob", "scheduler", "explain"]),
    ("bind", &["gang", "tyjob", "scheduler", "explain"]),
    ("gang", &["tyjob", "scheduler", "explain"]),
    ("tyjob", &["bind", "gang", "scheduler", "explain"]),
];
/// First words of an item with logic.
const LOGIC: [&str; 10] = ["fn", "struct", "enum", "impl", "trait", "const", "static", "type", "macro_rules", "union"];

pub fn check(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut violation = |text: String| found.push(format!("{}: {text}", source.path));
    let lines = source.text.lines().count();
    if lines > MAX_LINES && !source.text.lines().take(3).any(|line| line.starts_with(REASON)) {
        violation(format!("{lines} lines, at most {MAX_LINES}: split it, or start it with `{REASON} <reason>`"));
    }
    for part in source.path.trim_end_matches(".rs").split('/') {
        if part.split('_').any(|word| FORBIDDEN_NAMES.contains(&word)) {
            violation(format!("forbidden name `{part}`: say what is inside"));
        }
    }
    for name in functions(&source.tokens).into_iter().filter(|name| name.len() > MAX_NAME) {
        violation(format!("{name} has {} characters, a name at most {MAX_NAME}", name.len()));
    }
    let Some(parts) = source.in_src() else { return found };
    if parts != ["main"] && !source.text.lines().take(3).any(|line| line.starts_with("//!")) {
        violation("no module doc (`//!`) on top".to_owned());
    }
    if matches!(parts.last(), Some(&"mod" | &"lib"))
        && let Some(word) = logic(&source.tokens)
    {
        violation(format!("holds logic (`{word}`): only docs, `mod` and `pub use` belong here"));
    }
    if parts == ["main"] && lines > 60 {
        violation(format!("{lines} lines: main is short, the work is in ops/"));
    }
    // Tests of decisions may print and draw; what they test may not.
    if parts[0] == "decide" && !parts.iter().any(|part| part.ends_with("tests")) {
        for word in impure(&source.tokens) {
            violation(format!("`{word}` in a decision: it must be a pure function"));
        }
        let above = ABOVE.iter().find(|(room, _)| parts.get(1) == Some(room)).map_or(&[][..], |(_, above)| above);
        let words = words(&source.tokens);
        for room in above.iter().filter(|room| words.contains(&format!("crate::{room}"))) {
            violation(format!("names `{room}`, which is above it"));
        }
    }
    found
}

/// Names of functions, at any depth.
fn functions(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        if ident(Some(token)).as_deref() == Some("fn") {
            found.extend(ident(tokens.get(at + 1)));
        }
        found.extend(inside(Some(token)).map(|inner| functions(&inner)).unwrap_or_default());
    }
    found
}

/// The first word of an item that is no `mod`, `use` or a module with nothing but an include.
fn logic(tokens: &[TokenTree]) -> Option<String> {
    for (at, token) in tokens.iter().enumerate() {
        if let Some(word) = ident(Some(token)).filter(|word| LOGIC.contains(&word.as_str())) {
            return Some(word);
        }
        if at >= 2 && ident(tokens.get(at - 2)).as_deref() == Some("mod") {
            let word = inside(Some(token)).and_then(|inner| logic(&inner));
            if word.is_some() {
                return word;
            }
        }
    }
    None
}

fn impure(tokens: &[TokenTree]) -> Vec<String> {
    let words = words(tokens);
    let mut found: Vec<String> = words.iter().filter(|word| IMPURE.contains(&word.as_str())).cloned().collect();
    found.extend(words.iter().filter(|word| IMPURE_PATHS.contains(&word.as_str())).cloned());
    found.sort();
    found.dedup();
    found
}

/// Every identifier, and every pair of identifiers joined by `::`, at any depth.
fn words(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if let Some(word) = ident(tokens.get(at)) {
            if path_sep(tokens, at + 1) {
                let next = ident(tokens.get(at + 3));
                found.extend(next.map(|next| format!("{word}::{next}")));
            }
            found.push(word);
        }
        // Attributes name derives and cfgs, no code of this file.
        let attribute = at >= 1 && punct(tokens.get(at - 1), '#');
        let tests = at >= 1 && ident(tokens.get(at - 1)).as_deref() == Some("tests");
        if let Some(inner) = inside(tokens.get(at)).filter(|_| !attribute && !tests) {
            found.extend(words(&inner));
        }
    }
    found
}
