//! Output of commands: text that reaches its reader whole, or an error.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;

use super::config::print_yaml;

/// Version of what commands print for programs.
pub const API_VERSION: &str = "baton.io/v1alpha1";

/// Prints `text` on standard output. A reader that has left (`| head`) is no error.
pub fn say(text: impl Display) -> anyhow::Result<()> {
    say_to_reader(text).map(drop)
}

/// The same. `false` when the reader has left.
pub fn say_to_reader(text: impl Display) -> anyhow::Result<bool> {
    let mut out = stdout().lock();
    match out.write_all(text.to_string().as_bytes()).and_then(|()| out.flush()) {
        Err(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("cannot write to standard output"),
    }
}

/// Prints a line on standard error; an error there is ignored.
pub fn remark(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// `1 GPU`, `8 GPUs`.
pub fn amount(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
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
