//! Output of commands: text that reaches its reader whole, or an error.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::config::print_yaml;

pub use baton_decide::text::amount;

/// Version of what commands print for programs.
pub const API_VERSION: &str = "baton.io/v1alpha1";

/// `text` with what a terminal would obey as `\u001b`: objects of the cluster have texts of all who may write them. Lines stay.
pub fn visible(text: &str) -> Cow<'_, str> {
    let obeyed = |of: char| {
        of.is_control() && !matches!(of, '\n' | '\t')
            || matches!(of, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.chars().any(obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = |of: char| if obeyed(of) { format!("\\u{:04x}", of as u32) } else { of.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Prints `text` on standard output. A reader that has left (`| head`) is no error.
pub fn say(text: impl Display) -> anyhow::Result<()> {
    say_to_reader(visible(&text.to_string())).map(drop)
}

/// The same of a table, whose cells are [`visible`] and may have colours. `false` when the reader has left.
pub fn say_to_reader(text: impl Display) -> anyhow::Result<bool> {
    let mut out = stdout().lock();
    match out.write_all(text.to_string().as_bytes()).and_then(|()| out.flush()) {
        Err(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("cannot write to standard output"),
    }
}

/// Prints a line on standard error; an error there is ignored.
pub fn remark(line: impl Display) {
    let _ = writeln!(stderr(), "{}", visible(&line.to_string()));
}

/// How a program reads what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One JSON object.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    /// `answer` in this format, with `apiVersion` and `kind`.
    pub fn print_as(self, kind: &'static str, answer: &impl Serialize) -> anyhow::Result<String> {
        self.print(&VersionedAnswer { api_version: API_VERSION, kind, answer })
    }

    /// `value` in this format.
    pub fn print(self, value: &impl Serialize) -> anyhow::Result<String> {
        Ok(match self {
            Self::Json => serde_json::to_string_pretty(value)? + "\n",
            Self::Yaml => print_yaml(value)?,
        })
    }
}

/// An answer with its version and kind, as objects of Kubernetes have them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionedAnswer<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    answer: &'a T,
}

/// A command line that cannot be used. Ends the process with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// Nothing was judged. Ends the process with exit code 2, where 1 is a judgement.
#[derive(Debug, thiserror::Error)]
#[error("no verdict")]
pub struct NoVerdict;

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn what_a_terminal_would_obey_is_shown_and_all_else_stays() {
        for (text, shown) in [
            ("zwei Zeilen\n\tä × …", "zwei Zeilen\n\tä × …"),
            ("\u{1b}[31mEVIL\u{7}\r", "\\u001b[31mEVIL\\u0007\\u000d"),
            ("a\u{9b}2J\u{202e}b", "a\\u009b2J\\u202eb"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }
}
