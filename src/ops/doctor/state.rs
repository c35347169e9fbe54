//! The state directory: writable, held by a running daemon or not, and the ledger in it.

use std::io::ErrorKind;
use std::path::Path;

use rustix::fs::Access;

use super::report::Finding;
use baton_agent::AgentOptions;
use baton_agent::handoff::ledger_file::{self, LoadedLedger};

/// Findings about the state directory.
pub struct StateCheck {
    pub findings: Vec<Finding>,
    /// Whether a node daemon holds the directory; `None` when that cannot be seen.
    pub agent_runs: Option<bool>,
}

pub fn look(options: &AgentOptions, boot_id: &str) -> StateCheck {
    let directory = &options.paths.state_dir;
    let shown = directory.display();
    let advice =
        "the ledger lies here: run the daemon as root, and give --state-dir a writable directory on a local disk";
    let mut findings = vec![writable("state-dir", directory, advice)];
    let runs = match ledger_file::is_held(directory) {
        Ok(held) => Some(held),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(false),
        Err(error) => {
            let advice = "run the doctor as root on the node, or in the daemon's container";
            findings.push(Finding::warn("agent", format!("the lock in {shown} cannot be read: {error}"), advice));
            None
        }
    };
    match runs {
        Some(true) => findings.push(Finding::ok("agent", format!("a node daemon runs: it holds {shown}"))),
        Some(false) => {
            let advice = "`kubectl -n baton-system get pods -o wide` and the log of this node's baton-device-plugin; without it no pod gets devices here";
            findings.push(Finding::warn("agent", format!("no node daemon runs: no process holds {shown}"), advice));
        }
        None => {}
    }
    if directory.is_dir() {
        findings.push(match ledger_file::load(directory, boot_id) {
            LoadedLedger::Ledger(ledger) => Finding::ok("ledger", format!("{} containers have devices", ledger.len())),
            LoadedLedger::Lost(why) if runs == Some(true) => {
                let advice =
                    "the daemon rebuilds it from the kubelet and the pods' annotations; look at its log if this stays";
                Finding::warn("ledger", format!("{shown}: {why}"), advice)
            }
            LoadedLedger::Lost(why) => Finding::ok("ledger", format!("{why}; the daemon makes it when it starts")),
        });
    }
    StateCheck { findings, agent_runs: runs }
}

/// A directory that must be writable. One that is not there yet is made by the daemon, so its nearest existing parent must be.
pub(super) fn writable(check: &'static str, directory: &Path, advice: &str) -> Finding {
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let shown = directory.display();
    match rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there == directory => Finding::ok(check, format!("{shown} can be written")),
        Ok(()) => Finding::ok(check, format!("{shown} is not there yet and can be made")),
        Err(error) => Finding::fail(check, format!("{shown}: {} cannot be written: {error}", there.display()), advice),
    }
}
