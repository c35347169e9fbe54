//! Who may import whom: arrows go one way, siblings never meet.

use proc_macro2::TokenTree;

use super::source::{Source, ident, inside, path_sep, punct};

/// Folder of `src/` and the folders that it may name.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("contract", &[]),
    ("runtime", &[]),
    ("decide", &["contract"]),
    ("hardware", &["contract"]),
    ("cluster", &["contract", "decide", "runtime"]),
    ("agent", &["contract", "decide", "hardware", "cluster", "runtime"]),
    ("scheduler", &["contract", "decide", "cluster", "runtime"]),
    ("tyjob", &["contract", "decide", "cluster", "runtime"]),
    ("sim", &["contract", "runtime"]),
];
/// Folders without a limit: they wire everything.
const UNLIMITED: [&str; 3] = ["ops", "main", "lib"];

pub fn check(source: &Source) -> Vec<String> {
    let Some(parts) = source.in_src() else { return Vec::new() };
    let folder = parts[0];
    if UNLIMITED.contains(&folder) {
        return Vec::new();
    }
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("{}: src/{folder} is in no row of the import table of tests/layers", source.path)];
    };
    // `src/agent/a.rs` is the module `crate::agent::a`, two levels below the crate; `src/agent/mod.rs` is one.
    let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
    let mut named = Vec::new();
    collect(&source.tokens, depth, &mut named);
    named.retain(|name| name != folder && !allowed.contains(&name.as_str()));
    named.retain(|name| ALLOWED.iter().any(|(folder, _)| folder == name) || UNLIMITED.contains(&name.as_str()));
    named.sort();
    named.dedup();
    named.into_iter().map(|name| format!("{}: src/{folder} must not import src/{name}", source.path)).collect()
}

/// Every name that stands directly below the crate in some path, `depth` modules deep.
fn collect(tokens: &[TokenTree], depth: usize, named: &mut Vec<String>) {
    let mut at = 0;
    while at < tokens.len() {
        let word = ident(tokens.get(at));
        let starts_path = at < 2 || !path_sep(tokens, at - 2);
        if matches!(word.as_deref(), Some("crate" | "baton")) && starts_path && path_sep(tokens, at + 1) {
            below_crate(tokens.get(at + 3), named);
        }
        if word.as_deref() == Some("super") && starts_path {
            let mut supers = 1;
            while path_sep(tokens, at + 1) && ident(tokens.get(at + 3)).as_deref() == Some("super") {
                supers += 1;
                at += 3;
            }
            if supers == depth && path_sep(tokens, at + 1) {
                below_crate(tokens.get(at + 3), named);
            }
        }
        let inline_module = at >= 2 && ident(tokens.get(at - 2)).as_deref() == Some("mod");
        if let Some(inner) = inside(tokens.get(at)) {
            collect(&inner, depth + usize::from(inline_module), named);
        }
        at += 1;
    }
}

/// The name, or each first name of a `{…}` group, that follows `crate::`.
fn below_crate(token: Option<&TokenTree>, named: &mut Vec<String>) {
    named.extend(ident(token));
    let inner = inside(token).unwrap_or_default();
    for (at, token) in inner.iter().enumerate() {
        if at == 0 || punct(inner.get(at - 1), ',') {
            named.extend(ident(Some(token)));
        }
    }
}
