//! The binary's own words: exit codes, and errors that say what, why, and what to do.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use std::path::Path;
use std::process::{Command, Output};

fn baton(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.env_clear().envs(environment.iter().copied()).args(args).output().unwrap()
}

/// Runs, expects this exit code, and returns what was said on standard error.
#[track_caller]
fn fails(code: i32, args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = baton(args, environment);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in:\n{said}");
    }
}

fn kubeconfig(folder: &Path) -> String {
    let path = folder.join("kubeconfig");
    let text = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n\
                contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n";
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn an_unknown_flag_names_the_nearest_one_and_ends_with_2() {
    says(&fails(2, &["device-plugin", "--mig-stratgy=none"], &[]), &["--mig-stratgy", "--mig-strategy"]);
    says(&fails(2, &["devise-plugin"], &[]), &["devise-plugin", "device-plugin"]);
}

#[test]
fn an_unknown_key_and_a_bad_value_in_the_file_are_named_with_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("baton.yaml");
    let path = file.to_str().unwrap();
    for (command, text, parts) in [
        ("device-plugin", "node-name: a\nmigStrategy: none\n", ["baton.yaml:2:1", "migStrategy", "\"mig-strategy\"?"]),
        ("device-plugin", "mig-strategy: double\n", ["baton.yaml:1:15", "double", "none, single, mixed"]),
        ("device-plugin", "rdma: [\n", ["baton.yaml:", "", ""]),
        ("scheduler", "lease-duration: 15\n", ["baton.yaml:1:17", "lease-duration", "30s"]),
        ("scheduler", "mig-strategy: none\n", ["baton.yaml:1:1", "mig-strategy", "`baton scheduler --help`"]),
    ] {
        std::fs::write(&file, text).unwrap();
        says(&fails(2, &[command, "--config-file", path], &[]), &parts);
        says(&fails(2, &[command], &[("CONFIG_FILE", path)]), &parts);
    }
    says(&fails(2, &["scheduler", "--config-file", "/nonexistent/baton.yaml"], &[]), &["/nonexistent/baton.yaml"]);
}

#[test]
fn a_bad_value_of_environment_or_flag_is_named() {
    let bad = [("FAIL_ON_INIT_ERROR", "perhaps"), ("NODE_NAME", "a")];
    says(&fails(2, &["device-plugin"], &bad), &["FAIL_ON_INIT_ERROR", "perhaps", "true nor false"]);
    says(&fails(2, &["device-plugin", "--rpc-budget=2"], &[]), &["--rpc-budget", "\"2\""]);
    says(&fails(2, &["device-plugin", "--log=,,=x"], &[]), &["--log"]);
}

#[test]
fn options_that_cannot_work_end_with_2_and_say_what_to_do() {
    says(&fails(2, &["device-plugin"], &[]), &["--node-name", "NODE_NAME"]);
    let leases = ["scheduler", "--lease-retry=30s"];
    says(&fails(2, &leases, &[]), &["lease-retry", "lease-renew-deadline"]);
}

#[test]
fn a_missing_nvml_library_lists_every_path_tried() {
    let folder = tempfile::tempdir().unwrap();
    let (config, state) = (kubeconfig(folder.path()), folder.path().join("state"));
    let root = folder.path().display().to_string();
    let state = format!("--state-dir={}", state.display());
    let (driver, sysfs) = (format!("--driver-root={root}"), format!("--sysfs-root={root}"));
    let library = "--nvml-library=/nonexistent/libnvidia-ml.so.1";
    let said = fails(
        1,
        &["device-plugin", "--node-name=a", "--kubeconfig", &config, &state, &driver, &sysfs, library, "--listen=none"],
        &[],
    );
    says(&said, &["/nonexistent/libnvidia-ml.so.1", "--fail-on-init-error=false", "--nvml-library"]);
}

#[test]
fn the_effective_configuration_is_logged_with_its_sources() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    let file = folder.path().join("baton.yaml");
    std::fs::write(&file, "rdma: false\n").unwrap();
    let root = folder.path().display().to_string();
    let state = format!("--state-dir={root}/state");
    let args =
        ["device-plugin", "--kubeconfig", &config, &state, "--config-file", file.to_str().unwrap(), "--listen=none"];
    // NVML is not there: the daemon ends by itself after it has said how it is configured.
    let library = ["--nvml-library=/nonexistent.so", "--log-format=json"];
    let args: Vec<&str> = args.into_iter().chain(library).collect();
    let said = fails(1, &args, &[("NODE_NAME", "node-a")]);
    let line = said.lines().find(|line| line.contains("effective configuration")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    let effective = line["config"].as_str().unwrap();
    says(effective, &["node-name=\"node-a\" (env NODE_NAME)", "baton.yaml:1)", "mig-strategy=\"none\" (default)"]);
    says(effective, &["nvml-library=\"/nonexistent.so\" (flag)"]);
}

#[test]
fn an_api_server_that_is_not_there_is_an_error_of_get() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(folder.path());
    let said = fails(1, &["get", "nodes", "--kubeconfig", &config], &[]);
    says(&said, &["cannot list nodes", "reachable"]);
    says(&fails(1, &["get", "nodes"], &[("KUBECONFIG", "/nonexistent/config")]), &["/nonexistent/config"]);
}

#[test]
fn the_help_teaches_exit_codes_and_layers() {
    let help = |args: &[&str]| String::from_utf8(baton(args, &[]).stdout).unwrap();
    says(&help(&["--help"]), &["Exit codes", "device-plugin", "scheduler", "get", "manifests", "crds"]);
    let text = help(&["device-plugin", "--help"]);
    says(&text, &["MIG_STRATEGY", "[default: none]", "--nvidia-driver-root", "flag wins over environment"]);
}
