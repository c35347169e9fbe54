//! A test that cannot run where it is says so.

use std::io::Write as _;

/// Reports that the running test checks nothing, or only a part, and why: one line `skipped: <crate>::<test>: <why>`. It goes
/// to the end of the file that `BATON_SKIPPED` names, which `.ci/run` compares with `tests/skipped.txt`; without that variable
/// to standard error.
pub fn skipped(why: &str) {
    // libtest names the thread of a test after the test.
    let thread = std::thread::current();
    let test = thread.name().expect("called on the thread of the test");
    let line = format!("skipped: {}::{test}: {why}\n", env!("CARGO_CRATE_NAME"));
    eprint!("{line}");
    if let Some(path) = std::env::var_os("BATON_SKIPPED") {
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(path).expect("BATON_SKIPPED is writable");
        // One write, so that lines of several tests do not mix.
        file.write_all(line.as_bytes()).expect("BATON_SKIPPED is writable");
    }
}
