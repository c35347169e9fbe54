//! A real kubectl.

use std::path::PathBuf;

use crate::skip::skipped;

/// `BATON_KUBECTL`, else the `kubectl` of the PATH; where there is none, the test is reported as skipped.
pub fn kubectl() -> Option<PathBuf> {
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|file| file.is_file())
    };
    let found = std::env::var_os("BATON_KUBECTL").map(PathBuf::from).or_else(on_path);
    if found.is_none() {
        skipped("kubectl is not on the PATH");
    }
    found
}
