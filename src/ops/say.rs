//! What commands print: text that reaches its reader whole, or the reason why it did not.

use std::fmt::Display;
use std::io::{ErrorKind, Write, stderr, stdout};

use anyhow::Context;

/// Prints `text` on standard output. A reader that has gone (`| head`) has seen enough: that is no error.
pub fn say(text: impl Display) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.to_string().as_bytes()).and_then(|()| out.flush()) {
        Err(gone) if gone.kind() == ErrorKind::BrokenPipe => Ok(()),
        said => said.context("cannot write to standard output"),
    }
}

/// Prints a line on standard error. Where that is closed nobody can be told anyway.
pub fn remark(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

/// A command line that asks for what there is not. Ends the process with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
