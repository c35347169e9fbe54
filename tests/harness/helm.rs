//! A real Helm.

use std::path::PathBuf;

use crate::skip::skipped;

/// `BATON_HELM`, else the `helm` of the PATH; where there is none, the test is reported as skipped.
pub fn helm() -> Option<PathBuf> {
    let on_path = || {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|dir| dir.join("helm")).find(|file| file.is_file())
    };
    let found = std::env::var_os("BATON_HELM").map(PathBuf::from).or_else(on_path);
    if found.is_none() {
        skipped("helm is not on the PATH");
    }
    found
}
