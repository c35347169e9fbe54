//! The command lines of `baton manifests` and `baton crds`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};

use super::files::{EXTENDER, EXTENDER_GANGS, File, KUBE_SCHEDULER, SCHEDULER, Values, crds, files};
use crate::config::print_yaml;
use crate::say::{Format, say};
use crate::values;
use baton_contract::gang::pod_group::community_crd;

/// What `--extender` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Extender {
    /// Everything to apply.
    Installation,
    /// The configuration of kube-scheduler.
    SchedulerConfig,
}

#[derive(Debug, Args)]
pub struct ManifestsArgs {
    /// Write the files below this directory instead of printing them.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print an installation that serves the stock kube-scheduler: alone, everything to apply, with the extender in place of
    /// the Deployment baton-scheduler; with =scheduler-config, the file for kube-scheduler's --config.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "installation",
        conflicts_with = "dir"
    )]
    pub extender: Option<Extender>,
    /// Image of every daemon.
    #[arg(long, default_value_t = Values::default().image, value_parser = values::image)]
    pub image: String,
    /// Namespace of the daemons and of their Leases.
    #[arg(long, default_value_t = Values::default().namespace, value_parser = values::own_namespace)]
    pub namespace: String,
}

/// Prints or writes the manifests.
pub fn run(args: &ManifestsArgs) -> anyhow::Result<()> {
    let files = files(&Values { image: args.image.clone(), namespace: args.namespace.clone() });
    if let Some(dir) = &args.dir {
        return write(dir, &files);
    }
    let printed = |file: &&File| match (args.extender, file.path) {
        (None, _) => file.applied,
        (Some(Extender::SchedulerConfig), path) => path == KUBE_SCHEDULER,
        (Some(Extender::Installation), SCHEDULER) => false,
        (Some(Extender::Installation), path) => file.applied || [EXTENDER, EXTENDER_GANGS].contains(&path),
    };
    let documents: Vec<&str> = files.iter().filter(printed).map(|file| file.text.as_str()).collect();
    say(documents.join("---\n"))
}

fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    for file in files {
        let path = dir.join(file.path);
        let folder = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the directory {}", folder.display()))?;
        std::fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("{}\n", path.display()))?;
    }
    Ok(())
}

#[derive(Debug, Args)]
pub struct CrdsArgs {
    /// Format.
    #[arg(short, long, value_enum, default_value = "yaml")]
    pub output: Format,
    /// Only the PodGroup of the community's scheduler plugins, scheduling.x-k8s.io: for users who bring its YAML.
    #[arg(long)]
    pub community_podgroup: bool,
}

/// Prints every CustomResourceDefinition.
pub fn print_crds(args: &CrdsArgs) -> anyhow::Result<()> {
    let crds = if args.community_podgroup { vec![community_crd()] } else { crds() };
    match args.output {
        Format::Yaml => {
            let documents: Result<Vec<String>, _> = crds.iter().map(print_yaml).collect();
            say(documents?.join("---\n"))
        }
        Format::Json => {
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": crds });
            say(serde_json::to_string_pretty(&list)? + "\n")
        }
    }
}
