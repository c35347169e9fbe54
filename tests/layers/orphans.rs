//! A Rust file that no `mod` names is not compiled: it lies to its reader.

use std::collections::BTreeSet;

use proc_macro2::TokenTree;

use super::source::{Source, ident, inside, punct};

pub fn check(sources: &[Source]) -> Vec<String> {
    let named: BTreeSet<String> = sources.iter().flat_map(named_by).collect();
    let is_root = |path: &str| {
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            // Cargo finds tests and benches by itself; each folder of `src/` is a package.
            ["build.rs"]
            | ["src", "main.rs" | "lib.rs" | "device_plugin.rs"]
            | ["src", _, "mod.rs"]
            | ["src", "sim", "hardware", "nvml", "build.rs"]
            | ["tests" | "benches", _]
            | ["tests" | "benches", _, "main.rs"] => true,
            _ => false,
        }
    };
    let lost = sources.iter().filter(|source| !is_root(&source.path) && !named.contains(&source.path));
    lost.map(|source| format!("{}: orphan: no module declares this file", source.path)).collect()
}

/// Paths of the files that the `mod name;` of one file can mean.
fn named_by(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let is_root = matches!(stem, "mod" | "lib" | "main") || matches!(folder, "tests" | "benches");
    let children = if is_root { folder.to_owned() } else { format!("{folder}/{stem}") };
    let mut named = Vec::new();
    declared(&source.tokens, &children, folder, &mut named);
    named
}

fn declared(tokens: &[TokenTree], children: &str, folder: &str, named: &mut Vec<String>) {
    let mut path: Option<String> = None;
    for at in 0..tokens.len() {
        if punct(tokens.get(at), '#')
            && let Some(attribute) = inside(tokens.get(at + 1))
            && ident(attribute.first()).as_deref() == Some("path")
            && let Some(TokenTree::Literal(literal)) = attribute.get(2)
        {
            path = Some(literal.to_string().trim_matches('"').to_owned());
        }
        if ident(tokens.get(at)).as_deref() != Some("mod") {
            continue;
        }
        let Some(name) = ident(tokens.get(at + 1)) else { continue };
        if punct(tokens.get(at + 2), ';') {
            match path.take() {
                Some(path) => named.push(resolve(folder, &path)),
                None => named.extend([format!("{children}/{name}.rs"), format!("{children}/{name}/mod.rs")]),
            }
        } else if let Some(inner) = inside(tokens.get(at + 2)) {
            path = None;
            declared(&inner, &format!("{children}/{name}"), folder, named);
        }
    }
}

/// `folder` joined with a relative path, `..` taken out.
fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}
