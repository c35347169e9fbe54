//! The `baton` binary. The work is in `baton::ops`.

use std::process::ExitCode;

fn main() -> ExitCode {
    baton::ops::main()
}
