//! The command lines of `baton manifests` and `baton crds`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::files::{File, Values, crds, files};
use crate::ops::config::print_yaml;

/// Arguments of `baton manifests`.
#[derive(Debug, Args)]
pub struct ManifestsArgs {
    /// Write the files below this directory instead of printing them.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// With --dir: change nothing, and fail when a file is missing or differs.
    #[arg(long, requires = "dir")]
    pub check: bool,
    /// Print what an installation beside the stock kube-scheduler needs: its configuration, and the extender.
    #[arg(long, conflicts_with = "dir")]
    pub extender: bool,
    /// Image of both daemons.
    #[arg(long, default_value_t = Values::default().image)]
    pub image: String,
    /// Namespace of both daemons and of their Leases.
    #[arg(long, default_value_t = Values::default().namespace)]
    pub namespace: String,
}

/// Prints or writes the manifests.
pub fn run(args: &ManifestsArgs) -> anyhow::Result<()> {
    let values = Values { image: args.image.clone(), namespace: args.namespace.clone() };
    let files = files(&values)?;
    match &args.dir {
        Some(dir) if args.check => check(dir, &files),
        Some(dir) => write(dir, &files),
        None => {
            let printed = |file: &&File| if args.extender { file.path.starts_with("extender/") } else { file.applied };
            let documents: Vec<&str> = files.iter().filter(printed).map(|file| file.text.as_str()).collect();
            print!("{}", documents.join("---\n"));
            Ok(())
        }
    }
}

fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    for file in files {
        let path = dir.join(file.path);
        let folder = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make the directory {}", folder.display()))?;
        std::fs::write(&path, &file.text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

fn check(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    let differs = |file: &&File| std::fs::read_to_string(dir.join(file.path)).ok().as_deref() != Some(&file.text);
    let stale: Vec<String> =
        files.iter().filter(differs).map(|file| dir.join(file.path).display().to_string()).collect();
    if !stale.is_empty() {
        bail!("not what this version generates: {}; run `baton manifests --dir {}`", stale.join(", "), dir.display());
    }
    println!("{} files in {} are what this version generates", files.len(), dir.display());
    Ok(())
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
}

/// Prints every CustomResourceDefinition.
pub fn print_crds(args: &CrdsArgs) -> anyhow::Result<()> {
    let crds = crds();
    match args.output {
        Format::Yaml => {
            let documents: Result<Vec<String>, _> = crds.iter().map(print_yaml).collect();
            print!("{}", documents?.join("---\n"));
        }
        Format::Json => {
            let list = serde_json::json!({ "apiVersion": "v1", "kind": "List", "items": crds });
            println!("{}", serde_json::to_string_pretty(&list)?);
        }
    }
    Ok(())
}
