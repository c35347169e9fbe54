//! A source file as the rules see it: its path, its lines, and its tokens without comments and with strings as strings.

use std::path::Path;
use std::str::FromStr;

use proc_macro2::{TokenStream, TokenTree};

pub struct Source {
    /// Relative to the repository, `/` between parts.
    pub path: String,
    pub text: String,
    pub tokens: Vec<TokenTree>,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let tokens = TokenStream::from_str(text).unwrap_or_else(|error| panic!("{path}: no Rust source: {error}"));
        Self { path: path.to_owned(), text: text.to_owned(), tokens: tokens.into_iter().collect() }
    }

    /// Path within `src/` without the file's ending: `["agent", "grpc", "mod"]`; `None` for files elsewhere.
    pub fn in_src(&self) -> Option<Vec<&str>> {
        Some(self.path.strip_prefix("src/")?.strip_suffix(".rs")?.split('/').collect())
    }
}

/// Every Rust file below `places`, sorted by path.
pub fn read(root: &Path, places: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut todo: Vec<_> = places.iter().map(|place| root.join(place)).collect();
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            todo.extend(entries.map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let relative = path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/");
            found.push(Source::new(&relative, &std::fs::read_to_string(&path).unwrap()));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The identifier that a token is.
pub fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident.to_string()),
        _ => None,
    }
}

/// `true` for the punctuation `sign`.
pub fn punct(token: Option<&TokenTree>, sign: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

/// `true` when `::` stands at `at`.
pub fn path_sep(tokens: &[TokenTree], at: usize) -> bool {
    punct(tokens.get(at), ':') && punct(tokens.get(at + 1), ':')
}

pub fn inside(token: Option<&TokenTree>) -> Option<Vec<TokenTree>> {
    match token {
        Some(TokenTree::Group(group)) => Some(group.stream().into_iter().collect()),
        _ => None,
    }
}
