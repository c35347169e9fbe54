//! The command lines of `baton manifests` and `baton crds`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::chart::chart;
use super::choices::{Admission, Kinds, Values};
use super::files::{EXTENDER, EXTENDER_GANGS, File, KUBE_SCHEDULER, SCHEDULER, crds, files};
use crate::config::print_yaml;
use crate::say::say;
use crate::values;
use baton_contract::gang::pod_group::community_crd;
use baton_contract::key;

/// What `--extender` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Extender {
    /// Everything to apply.
    Installation,
    /// The configuration of kube-scheduler.
    SchedulerConfig,
}

/// Arguments of `baton manifests`.
#[derive(Debug, Args)]
pub struct ManifestsArgs {
    /// Write the files below this directory instead of printing them.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// With --dir: change nothing, and fail when a file is missing or differs.
    #[arg(long, requires = "dir")]
    pub check: bool,
    /// Write a Helm chart below this directory; the other options are the defaults of its values. It is installed into the
    /// namespace of the release: helm install baton DIR -n baton-system --create-namespace.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["dir", "extender", "namespace"])]
    pub helm: Option<PathBuf>,
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
    /// Which CustomResourceDefinitions come along: where Koordinator or the community's scheduler plugins have installed
    /// Device or PodGroup already, keep theirs with `own`.
    #[arg(long, value_enum, default_value = "all", value_name = "WHICH")]
    pub crds: Kinds,
    /// Admission policies: who may write assignments, node locks and what node daemons report. Without them, what a tenant or a
    /// stolen node writes is believed.
    #[arg(long, value_enum, default_value = "on", value_name = "WHICH")]
    pub admission: Policies,
    /// User that writes assignments and node locks beside this installation's scheduler, such as
    /// system:serviceaccount:koordinator-system:koord-scheduler; may be given more than once.
    #[arg(long, value_name = "USER", value_delimiter = ',', value_parser = values::user)]
    pub assignment_writers: Vec<String>,
    /// Namespace whose pods may ask for devices and come with spec.nodeName, such as gpu-operator; may be given more than once.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = values::namespace)]
    pub pinned_namespaces: Vec<String>,
    /// Addresses that reach the daemons' admin address, such as 10.0.0.0/24: those of the API servers, through whose proxy the
    /// commands ask; may be given more than once. Without it every client reaches it, and needs a token.
    #[arg(long, value_name = "CIDR", value_delimiter = ',', value_parser = values::cidr)]
    pub admin_from: Vec<String>,
    /// Bring what the Prometheus operator and Grafana's side-car read: PodMonitor, alerts, dashboards.
    #[arg(long)]
    pub monitoring: bool,
    /// Where the pages of docs/ can be read in a browser; the alerts link there. Without it they have no links.
    #[arg(long, value_name = "URL", value_parser = values::url)]
    pub docs_url: Option<String>,
    /// Node annotation of the lock, as the daemons have it.
    #[arg(long, default_value = key::NODE_LOCK, value_name = "KEY", value_parser = values::annotation_key)]
    pub node_lock_key: String,
    /// What the node daemons do with pods that no scheduler gave devices to; with serve, pods that come with spec.nodeName are let in.
    #[arg(long, value_enum, default_value = "deny", value_name = "WHAT")]
    pub unassigned_pods: Unassigned,
}

/// Whether the admission policies come along.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Policies {
    /// They do.
    On,
    /// They do not.
    Off,
}

/// What the node daemons do with pods without an assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Unassigned {
    /// They refuse them.
    Deny,
    /// They serve them.
    Serve,
}

/// Prints or writes the manifests.
pub fn run(args: &ManifestsArgs) -> anyhow::Result<()> {
    let admission = Admission {
        on: args.admission == Policies::On,
        more_writers: args.assignment_writers.clone(),
        pinned_namespaces: args.pinned_namespaces.clone(),
        unassigned: args.unassigned_pods == Unassigned::Serve,
        lock_key: args.node_lock_key.clone(),
    };
    if let Some(problem) = admission.contradiction() {
        bail!(problem);
    }
    let values = Values {
        image: args.image.clone(),
        namespace: args.namespace.clone(),
        crds: args.crds,
        admission,
        admin_from: args.admin_from.clone(),
        monitoring: args.monitoring,
        docs_url: args.docs_url.clone(),
    };
    if let Some(dir) = &args.helm {
        return write(dir, &chart(&values)?);
    }
    let files = files(&values)?;
    match &args.dir {
        Some(dir) if args.check => check(dir, &files),
        Some(dir) => write(dir, &files),
        None => {
            let printed = |file: &&File| match (args.extender, file.path.as_str()) {
                (None, _) => file.applied,
                (Some(Extender::SchedulerConfig), path) => path == KUBE_SCHEDULER,
                (Some(Extender::Installation), SCHEDULER) => false,
                (Some(Extender::Installation), path) => file.applied || [EXTENDER, EXTENDER_GANGS].contains(&path),
            };
            let documents: Vec<&str> = files.iter().filter(printed).map(|file| file.text.as_str()).collect();
            say(documents.join("---\n"))
        }
    }
}

fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    for file in files {
        let path = dir.join(&file.path);
        let folder = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the directory {}", folder.display()))?;
        std::fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        say(format_args!("{}\n", path.display()))?;
    }
    Ok(())
}

fn check(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    let differs = |file: &&File| std::fs::read_to_string(dir.join(&file.path)).ok().as_deref() != Some(&file.text);
    let stale: Vec<String> =
        files.iter().filter(differs).map(|file| dir.join(&file.path).display().to_string()).collect();
    if !stale.is_empty() {
        bail!("not what this version generates: {}; run `baton manifests --dir {}`", stale.join(", "), dir.display());
    }
    say(format_args!("{} files in {} are what this version generates\n", files.len(), dir.display()))
}

/// How `baton crds` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// YAML documents.
    Yaml,
    /// One JSON List.
    Json,
}

/// Arguments of `baton crds`.
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
