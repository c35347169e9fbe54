//! The command: reads a file, converts it, checks that the scheduler would start with the result, prints it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::configuration::of_configuration;
use super::converted::Converted;
use super::part::drop_empty;
use super::policy::of_policy;
use crate::config::{load_text, read_yaml_value};
use crate::say::{amount, remark, say};
use crate::settings::{KUBE_VERSIONS, SCHEDULER_SECTIONS, scheduler};

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: ConfigVerb,
}

/// What `baton config` does.
#[derive(Debug, Subcommand)]
pub enum ConfigVerb {
    /// Print Baton's configuration for a kube-scheduler's
    Convert {
        /// A KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1 or v1beta1 to v1beta3, or a Policy; YAML or JSON.
        file: PathBuf,
    },
}

/// Exit code where something that is not carried over changes where pods go.
const PODS_MOVE: u8 = 3;

pub fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let ConfigVerb::Convert { file } = &args.verb;
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let value = read_yaml_value(&text).map_err(|problem| anyhow::anyhow!("{}: {problem}", file.display()))?;
    let converted = convert(value).with_context(|| file.display().to_string())?;
    let text = converted.print()?;
    starts(&text).with_context(|| format!("{}: the scheduler refuses what this becomes", file.display()))?;
    say(text)?;
    let moves = converted.moves.len();
    if moves == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let settings = amount(moves, "setting");
    remark(format_args!(
        "baton: {}: not carried over, and changes where pods go: {settings}, named at the top",
        file.display()
    ));
    Ok(ExitCode::from(PODS_MOVE))
}

/// Converts what the file holds.
pub fn convert(mut file: Value) -> anyhow::Result<Converted> {
    match (file["kind"].as_str(), file["apiVersion"].as_str().unwrap_or_default()) {
        (Some("Policy"), _) => of_policy(&file),
        (Some("KubeSchedulerConfiguration"), version) if KUBE_VERSIONS.contains(&version) => {
            let version = version.to_owned();
            drop_empty(&mut file);
            of_configuration(&file, &version)
        }
        (Some("KubeSchedulerConfiguration"), version) => {
            bail!("apiVersion {version:?} is not read; expected {}", KUBE_VERSIONS.join(", "))
        }
        (kind, _) => {
            bail!("kind {:?} is not read; expected KubeSchedulerConfiguration or Policy", kind.unwrap_or_default())
        }
    }
}

/// Whether the scheduler starts with this file.
fn starts(text: &str) -> anyhow::Result<()> {
    let loaded = load_text(&scheduler(), SCHEDULER_SECTIONS, Path::new("converted"), text, "baton scheduler");
    // Not as the error of a daemon's own configuration, which has an exit code.
    let loaded = loaded.map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(loaded.options.options.validate()?)
}
