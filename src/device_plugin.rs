//! The node daemon as a program of its own: `baton device-plugin` without the other commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton::ops::device_plugin()
}
