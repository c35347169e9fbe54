//! Runs programs under callgrind and reads what calls of their functions cost, and which functions ran.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Calls of one function from elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    pub count: u64,
    /// Including what the function calls.
    pub instructions: u64,
}

/// `true` when valgrind can be run.
pub fn is_there() -> bool {
    let run = Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Runs this binary with `environment`; calls by the last part of the functions' names.
pub fn costs(environment: &[(&str, &str)]) -> BTreeMap<String, Calls> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("callgrind.out");
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--cache-sim=no", "--branch-sim=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .envs(environment.iter().copied())
        .status()
        .unwrap();
    assert!(status.success(), "the run under valgrind failed");
    read(&std::fs::read_to_string(out).unwrap())
}

/// Reads callgrind's output: `cfn=(7) name` (later only `cfn=(7)`), then `calls=<count> …`, then `<line> <instructions>`.
fn read(text: &str) -> BTreeMap<String, Calls> {
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    let mut costs: BTreeMap<String, Calls> = BTreeMap::new();
    let (mut callee, mut count) = ("", None);
    for line in text.lines() {
        if let Some((kind, function)) = line.split_once('=').filter(|(kind, _)| matches!(*kind, "fn" | "cfn")) {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if kind == "cfn" {
                callee = names.get(id).copied().unwrap_or_default();
            }
        } else if let Some(calls) = line.strip_prefix("calls=") {
            count = calls.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        } else if let Some(count) = count.take() {
            let instructions = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
            let last = callee.rsplit("::").find(|part| !is_hash(part)).unwrap_or_default();
            let entry = costs.entry(last.to_owned()).or_default();
            entry.count += count;
            entry.instructions += instructions;
        }
    }
    costs
}

/// `h0123456789abcdef` at the end of a mangled name.
fn is_hash(part: &str) -> bool {
    part.len() == 17 && part.starts_with('h') && part[1..].bytes().all(|byte| byte.is_ascii_hexdigit())
}
