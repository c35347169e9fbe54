//! CDI: the directory, our own files, or the vendor's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::machine::MachineView;
use super::report::Finding;
use super::state::writable;
use crate::config::read_yaml_value;
use crate::say::amount;
use baton_agent::AgentOptions;
use baton_agent::cdi::{SpecState, states};
use baton_contract::{DeviceId, DeviceType};

/// Where vendors' static specs lie, beside `--cdi-root`.
const STATIC: &str = "/etc/cdi";
/// Largest spec file that is read.
const MAX_FILE: u64 = 8 << 20;

pub fn look(options: &AgentOptions, seen: &MachineView, agent_runs: Option<bool>) -> Vec<Finding> {
    if !options.by_cdi() {
        return vec![Finding::ok("cdi-root", "CDI is not used by --device-list-strategy")];
    }
    let advice = "spec files lie here: run the daemon as root, and mount the directory writable at --cdi-root";
    let mut findings = vec![writable("cdi-root", &options.paths.cdi_root, advice)];
    if seen.complete {
        let files = states(options, &seen.table);
        findings.extend(files.into_iter().map(|(path, states)| own(&path, states, agent_runs)));
        if options.foreign_cdi() {
            findings.push(foreign(options, seen));
        }
    } else {
        let advice = "see the line nvml; CDI files are judged when the machine can be read";
        findings.push(Finding::warn("cdi-spec", "not compared with the machine", advice));
    }
    findings
}

fn own(path: &Path, states: SpecState, agent_runs: Option<bool>) -> Finding {
    let shown = path.display();
    let runs = agent_runs == Some(true);
    match states {
        SpecState::Current(devices) => {
            Finding::ok("cdi-spec", format!("{shown} is current: {}", amount(devices, "device")))
        }
        SpecState::Absent(0) => {
            Finding::ok("cdi-spec", format!("{shown} is not needed: the machine has no such device"))
        }
        SpecState::NoNodes(devices) => {
            let ids: Vec<&str> = devices.iter().map(DeviceId::as_str).collect();
            let advice = "the file can name a device only by its node: see the line device-nodes";
            Finding::fail("cdi-spec", format!("{shown} is not there: no device node of {}", ids.join(", ")), advice)
        }
        SpecState::Absent(devices) => {
            let advice = if runs {
                "something removed it while the daemon runs: it is written again at the next scan, within a minute; check what cleans the directory"
            } else {
                "the daemon writes it when it starts"
            };
            Finding::bad(
                runs,
                "cdi-spec",
                format!("{shown} is missing, needed for {}", amount(devices, "device")),
                advice,
            )
        }
        SpecState::Unusable(why) => {
            let advice = "container runtimes refuse the file, and every container with such a device: delete it and restart the daemon, which writes it again";
            Finding::fail("cdi-spec", format!("{shown}: {why}"), advice)
        }
        SpecState::Outdated(what) => {
            let advice = "the daemon writes it again within a minute of a change; if this stays, look at its log";
            Finding::warn("cdi-spec", format!("{shown}: {what}"), advice)
        }
    }
}

/// A spec of the vendor's: every GPU must be in it, by UUID.
fn foreign(options: &AgentOptions, seen: &MachineView) -> Finding {
    let kind = &options.cdi_kind;
    let wanted: Vec<String> = seen.table.of(&DeviceType::Gpu).map(|(id, _)| id.to_string()).collect();
    let mut names = BTreeSet::new();
    let mut files: Vec<String> = Vec::new();
    for path in spec_files(&[&options.paths.cdi_root, Path::new(STATIC)]) {
        let Some(spec) = read(&path).filter(|spec| spec["kind"] == kind.as_str()) else { continue };
        files.push(path.display().to_string());
        let devices = spec["devices"].as_array().into_iter().flatten();
        names.extend(devices.filter_map(|device| device["name"].as_str()).map(str::to_owned));
    }
    let advice = format!(
        "--cdi-kind={kind} leaves the spec to its vendor: nvidia-ctk cdi generate --device-name-strategy=uuid --output={}/nvidia.yaml (and again after each driver update), or leave --cdi-kind out and let the daemon write one",
        options.paths.cdi_root.display()
    );
    if files.is_empty() {
        let places = format!("{} and {STATIC}", options.paths.cdi_root.display());
        return Finding::fail("cdi-spec", format!("no spec of kind {kind} in {places}"), advice);
    }
    let missing: Vec<String> = wanted.iter().filter(|id| !names.contains(*id)).cloned().collect();
    if missing.is_empty() {
        return Finding::ok(
            "cdi-spec",
            format!("{} names all of this machine's {}", files.join(", "), amount(wanted.len(), "GPU")),
        );
    }
    Finding::fail("cdi-spec", format!("{} lacks {kind}={}", files.join(", "), missing.join(", ")), advice)
}

fn spec_files(directories: &[&Path]) -> Vec<PathBuf> {
    let entries = directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let is_spec = |path: &PathBuf| path.extension().is_some_and(|end| end == "json" || end == "yaml");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_spec).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Option<Value> {
    std::fs::metadata(path).ok().filter(|meta| meta.is_file() && meta.len() <= MAX_FILE)?;
    // JSON is YAML.
    read_yaml_value(&std::fs::read_to_string(path).ok()?).ok()
}
