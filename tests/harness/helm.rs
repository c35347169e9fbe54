//! A real Helm and the chart of this repository.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::skip::skipped;

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/daemonset/chart");

pub struct Helm {
    program: PathBuf,
    home: tempfile::TempDir,
}

impl Helm {
    /// `BATON_HELM`, else the `helm` of the PATH; where there is none, the test is reported as skipped.
    pub fn find() -> Option<Self> {
        let on_path = || {
            let path = std::env::var_os("PATH")?;
            std::env::split_paths(&path).map(|dir| dir.join("helm")).find(|file| file.is_file())
        };
        let program = std::env::var_os("BATON_HELM").map(PathBuf::from).or_else(on_path);
        if program.is_none() {
            skipped("helm is not on the PATH");
        }
        Some(Self { program: program?, home: tempfile::tempdir().expect("a directory") })
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(&self.program).args(arguments).env("HOME", self.home.path()).output().expect("Helm runs")
    }

    /// What the chart gives in this namespace with these further arguments.
    pub fn template(&self, namespace: &str, more: &[&str]) -> String {
        let output = self.run(&[&["template", "baton", CHART, "-n", namespace], more].concat());
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}
