//! Two types of one name are two things under one word: a reader, and a search, take one for the other.
//!
//! The simulated cluster counts by itself. It is other programs, and their words are theirs: its `Plugin` is the kubelet's.

use std::collections::BTreeMap;

use proc_macro2::TokenTree;

use super::source::{Source, ident, inside, punct};

/// Names that several types may have, each with the reason.
const ALLOWED: [(&str, &str); 0] = [];

/// First words of an item that is a type.
const TYPES: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

pub fn check(sources: &[Source]) -> Vec<String> {
    let mut by_name: BTreeMap<(bool, String), Vec<&str>> = BTreeMap::new();
    for source in sources {
        let Some(parts) = source.in_src().filter(|parts| !parts.iter().any(|part| is_test(part))) else { continue };
        for name in declared(&source.tokens) {
            by_name.entry((parts[0] == "sim", name)).or_default().push(&source.path);
        }
    }
    let several = by_name
        .into_iter()
        .filter(|((_, name), files)| files.len() > 1 && !ALLOWED.iter().any(|(allowed, _)| allowed == name));
    several.map(|((_, name), files)| format!("{}: `{name}` names several types", files.join(", "))).collect()
}

fn is_test(part: &str) -> bool {
    part.ends_with("tests") || part == "testing" || part.starts_with("test_")
}

/// Types of a file, public or not. Those inside a function or a module of tests are nowhere else to be read.
fn declared(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_tests = false;
    for (at, token) in tokens.iter().enumerate() {
        let name = ident(Some(token));
        if punct(Some(token), '#')
            && tokens.get(at + 1).is_some_and(|attribute| attribute.to_string() == "[cfg (test)]")
        {
            in_tests = true;
        } else if name.as_deref().is_some_and(|word| TYPES.contains(&word)) {
            found.extend(ident(tokens.get(at + 1)).filter(|_| !in_tests));
        } else if matches!(name.as_deref(), Some("word_enum" | "reasons")) && punct(tokens.get(at + 1), '!') {
            let inner = inside(tokens.get(at + 2)).unwrap_or_default();
            let before = |body: usize| body.checked_sub(1).and_then(|name| ident(inner.get(name)));
            found.extend((0..inner.len()).filter(|body| inside(inner.get(*body)).is_some()).find_map(before));
        }
        if punct(Some(token), ';') || token.to_string().starts_with('{') {
            in_tests = false;
        }
    }
    found
}
