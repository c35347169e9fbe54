//! What commands print: text that reaches its reader whole, or the reason why it did not.

use std::error::Error;
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

/// The causes of an error in one line: the first says what, the last says why. A message that already holds its cause does not
/// repeat it.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let why = cause.to_string();
        if !text.contains(&why) {
            text = format!("{text}: {why}");
        }
        next = cause.source();
    }
    text
}

/// A command line that asks for what there is not. Ends the process with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);
