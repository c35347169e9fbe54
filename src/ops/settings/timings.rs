//! The hidden key of every daemon's file that shortens the times which it fixes, for tests.

use super::log::DaemonSettings;
use crate::config::{Misplaced, Section, Value, YamlNode};
use baton_agent::options::AgentOptions;
use baton_runtime::timings::Timed;
use baton_tyjob::ControllerOptions;
use std::time::Duration;

pub const TIMINGS: &str = "timings";
/// What only the file of the node daemon has.
pub const AGENT_SECTIONS: &[Section<DaemonSettings<AgentOptions>>] = &[timings()];
/// What only the file of the TYJob controller has.
pub const CONTROLLER_SECTIONS: &[Section<DaemonSettings<ControllerOptions>>] = &[timings()];

/// The section of the file: names of times with their values.
pub(super) const fn timings<O: Timed>() -> Section<DaemonSettings<O>> {
    Section { name: TIMINGS, needs: &[], advice: "", read: |daemon, node| read(daemon.options.times(), node) }
}

fn read(times: Vec<(&'static str, &mut Duration)>, node: &YamlNode) -> Result<(), Misplaced> {
    let names: Vec<&'static str> = times.iter().map(|(name, _)| *name).collect();
    let fields = node.fields(TIMINGS, &names)?;
    for (name, time) in times {
        let Some((_, node)) = fields.get(name) else { continue };
        let path = format!("{TIMINGS}.{name}");
        *time = Duration::read(node.text(&path)?).map_err(|problem| node.wrong(&path, problem))?;
        if time.is_zero() {
            return Err(node.wrong(&path, "zero: give a value above zero"));
        }
    }
    Ok(())
}
